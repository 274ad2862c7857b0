//! Request and response by every design of *RDMA Communication Patterns*, as actors: on real devices in threads or
//! processes, and in virtual time.
//!
//! | module | what |
//! |---|---|
//! | [`design`] | the verbs, connections and flags of a design, and their translation into types |
//! | [`task`] | one point to measure, which every actor receives; the roles |
//! | [`prices`] | processor time of the program's own work, in virtual time |
//! | `mail_connect` | connecting all queue pairs of an actor by mail |
//! | `load` | when requests begin, and what a requester counts |
//! | `requesters`, `responders`, `dispatchers` | the actors |
//! | [`plan`], [`results`] | plans as files; a folder of results, into which an interrupted run goes on |
//! | [`advice`] | the design that results favour for a described workload |
//! | [`mod@run`] | running a task in a world, and its result |
//! | [`hand_written`] | the same loops as a program would write them by hand |
//! | [`instructions`] | counting the instructions of both under callgrind |
//! | [`one_thread`] | requesters and a responder that take turns in one thread |

pub mod advice;
pub mod design;
mod dispatchers;
pub mod hand_written;
pub mod instructions;
mod load;
mod mail_connect;
pub mod one_thread;
pub mod plan;
pub mod prices;
mod requesters;
mod responders;
pub mod results;
pub mod run;
pub mod task;

pub use design::{Connections, Design, MailboxFlag, MessageVerb};
pub use prices::PatternPrices;
pub use run::{PatternResult, run};
pub use task::{PatternTask, register};

#[cfg(test)]
mod tests;

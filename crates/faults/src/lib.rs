//! Fault injection, for all devices that misbehave on purpose: the software RNIC and the simulated network. Pure.
//!
//! | item | what |
//! |---|---|
//! | [`Random`] | seeded random numbers; every decision has a stream of its own |
//! | [`Rule`] | decides about one event: a fault, or none |
//! | [`RuleList`] | rules in order, and the seed that they draw from |
//! | [`FaultModel`] | the events and verdicts of one kind of device |
//! | [`Digest`] | a number that is equal in two runs with the same faults |
//! | [`FaultSpec`] | a fault as users write it: `rnr=1%`, `wr_flush@qp=3,after=1000` |
//!
//! A rule has no state, no clock and no I/O. What it draws depends only on the seed, the event and the rule's rank, which
//! a rule before or behind it does not change. So a run is repeated by repeating its seed, and a rule that is added changes nothing that the others draw.
#![forbid(unsafe_code)]

mod digest;
mod random;
mod rules;
mod spec;

pub use digest::Digest;
pub use random::{Random, mix};
pub use rules::{FaultModel, Rule, RuleList, from_fn};
pub use spec::{BadFault, FaultSpec, Filters, Rate};

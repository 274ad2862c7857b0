//! Congestion: finite queues, pauses (PFC), marks (ECN) and the rates that they lead to (DCQCN). Pure.
//!
//! | module | contents |
//! |---|---|
//! | [`booked_queue`] | a queue whose departures are known: a switch's port, an RNIC's receive buffer |
//! | [`switch_port`] | the switch's queue to one port of a host: marks, pauses, drops |
//! | [`dcqcn`] | the rate of one queue pair |

pub(crate) mod booked_queue;
pub(crate) mod dcqcn;
pub(crate) mod switch_port;

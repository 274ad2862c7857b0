//! Processor time of the program's own work in virtual time: what the device's calls do not cost.
//!
//! The prices of the loops come from counts of this project's own code: instructions of the building blocks outside of
//! device calls (`program` in the experiment `patterns-fig4`), and of the copies that they make (`other`), by callgrind
//! on x86-64 with the profile `dist`. The constants of the machine turn them into time.

use headworks::sim::Preset;
use headworks::verbs::Duration;

/// Instructions that a processor retires in a cycle in these loops. Assumed: they are loads and stores that hit the
/// first-level cache, and well-predicted branches.
const INSTRUCTIONS_PER_CYCLE: f64 = 2.0;
/// Instructions of a requester for each request, with copies: by WriteWrite with responses of 64 B.
const REQUEST_INSTRUCTIONS: f64 = 160.0;
/// Instructions of a responder for each request, with copies: by WriteWrite with responses of 64 B.
const RESPOND_INSTRUCTIONS: f64 = 123.0;

/// Prices of a requester's and a responder's own work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatternPrices {
    /// Preparing a request, and handling its response.
    pub request: Duration,
    /// Handling a request.
    pub respond: Duration,
    /// Reading a message's cache line, which the RNIC wrote: the constant `cpu.message`.
    pub message: Duration,
    /// Reading the flag of one mailbox, in nanoseconds: the constant `cpu.scan`.
    pub scan_ns: f64,
    /// The lock of a shared receive queue, for each completion and each receive posted: the constant `cpu.srq_lock`.
    pub srq_lock: Duration,
    /// Reading a cache line that another core wrote: the constant `cpu.line`.
    pub line: Duration,
    /// Clock of a core in GHz: the constant `cpu.clock`.
    pub ghz: f64,
}

impl PatternPrices {
    /// Returns the prices of `machine`.
    pub fn of(machine: &Preset) -> Self {
        let nanos = |nanos: f64| Duration::from_nanos(nanos.round() as u64);
        let work =
            |instructions: f64| nanos(instructions / INSTRUCTIONS_PER_CYCLE / machine.clock_ghz);
        Self {
            request: work(REQUEST_INSTRUCTIONS),
            respond: work(RESPOND_INSTRUCTIONS),
            message: nanos(machine.message_ns),
            scan_ns: machine.scan_ns,
            srq_lock: nanos(machine.srq_lock_ns),
            line: nanos(machine.line_ns),
            ghz: machine.clock_ghz,
        }
    }

    /// Returns the price of `loads` flags read.
    pub fn scan(&self, loads: u64) -> Duration {
        Duration::from_nanos((loads as f64 * self.scan_ns).round() as u64)
    }
}

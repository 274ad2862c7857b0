//! One load on many queue pairs: what it carries, and what the sending RNIC's caches miss meanwhile.

use headworks::sim::{Counters, Usage};
use headworks::verbs::Duration;

use crate::nic::loaded::Load;
use crate::report::csv::Cell;
use crate::transports::ArmError;
use crate::world::Place;

/// Processes on each server (sections II-B and V-A).
pub(super) const PAIRS: usize = 8;
/// Requests outstanding of a queue pair (section V-B).
pub(super) const DEPTH: usize = 128;
/// Bytes of frames beyond the payload that a port counts, of a SEND: Ethernet's preamble and gap are not among them.
/// What the paper has as throughput is what ports count (mlnx_perf).
pub(crate) const COUNTED: f64 = 62.0;
/// Less than this part of the highest throughput is a drop.
pub(super) const DROP: f64 = 0.95;

/// One point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Of all processes together.
    pub(super) queue_pairs: usize,
    /// Of payload.
    pub(super) gbit_per_s: f64,
    pub(super) misses: Option<Misses>,
}

impl Point {
    /// Measures `load` of so many queue pairs, which all processes have together.
    pub(super) fn sample(
        place: &Place<'_>,
        load: Load,
        queue_pairs: usize,
        times: (Duration, Duration),
    ) -> Result<Option<Self>, ArmError> {
        let load = Load {
            queue_pairs: (queue_pairs / PAIRS).max(1),
            ..load
        };
        let rate = load.rate(place, PAIRS, times)?;
        Ok(rate.map(|rate| Self {
            queue_pairs,
            gbit_per_s: rate * load.size as f64 * 8e-9,
            misses: place.usage().as_ref().and_then(Misses::of),
        }))
    }

    /// The same by what the sending RNIC counted meanwhile: that is right however many completions lie there to be
    /// taken.
    pub(super) fn counted(
        place: &Place<'_>,
        load: Load,
        queue_pairs: usize,
        times: (Duration, Duration),
    ) -> Result<Option<Self>, ArmError> {
        let point = Self::sample(place, load, queue_pairs, times)?;
        let usage = place.usage();
        let sent = usage.as_ref().and_then(|usage| {
            // Picoseconds.
            let seconds = usage.over as f64 * 1e-12;
            Some(sender(usage)?.bytes_out as f64 / seconds)
        });
        Ok(point.zip(sent).map(|(point, sent)| Self {
            gbit_per_s: sent * 8e-9,
            ..point
        }))
    }

    /// Misses of each kind, for a table of points.
    pub(super) fn cells(&self) -> [Cell; 4] {
        MISSES.map(|kind| self.misses.as_ref().map(kind.of).into())
    }
}

/// Misses of the sending RNIC's caches for each request that it sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Misses {
    pub(super) icm: f64,
    pub(super) mtt: f64,
    pub(super) mpt: f64,
    pub(super) wqe: f64,
}

impl Misses {
    /// Of the host that sends.
    pub(super) fn of(usage: &Usage) -> Option<Self> {
        let counters = sender(usage)?;
        let each = |misses: u64| misses as f64 / counters.requests as f64;
        (counters.requests > 0).then(|| Self {
            icm: each(counters.icm_misses),
            mtt: each(counters.mtt_misses),
            mpt: each(counters.mpt_misses),
            wqe: each(counters.wqe_misses),
        })
    }
}

/// What the RNIC of the host that sends counted.
fn sender(usage: &Usage) -> Option<&Counters> {
    let hosts = usage.hosts.iter().map(|host| &host.counters);
    hosts.max_by_key(|counters| counters.requests)
}

/// Misses of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// As people call them.
    pub(super) name: &'static str,
    /// Their column among the points.
    pub(super) column: &'static str,
    /// Which they are.
    pub(super) of: fn(&Misses) -> f64,
}

/// All kinds.
pub(super) const MISSES: [Kind; 4] = [
    Kind {
        name: "ICM (contexts)",
        column: "ICM misses [1/request]",
        of: |misses| misses.icm,
    },
    Kind {
        name: "MTT (translations)",
        column: "MTT misses [1/request]",
        of: |misses| misses.mtt,
    },
    Kind {
        name: "MPT (protections)",
        column: "MPT misses [1/request]",
        of: |misses| misses.mpt,
    },
    Kind {
        name: "WQE (requests)",
        column: "WQE misses [1/request]",
        of: |misses| misses.wqe,
    },
];

/// Said in reports.
pub(super) const NOTE: &str = "All of it is simulated. Misses are those of the sending host's RNIC, over the requests that it sent in \
     the same time: of contexts of queue pairs (ICM), of translations and protections of memory (MTT, MPT), of \
     requests that had been fetched and were gone by their turn, or by their end (WQE). The paper's figure has them \
     as counts; its text says from how many queue pairs on they rise.";

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::sim::usage::HostUsage;

    #[test]
    fn misses_are_of_the_host_that_sends() {
        let counters = |requests, misses: u64| Counters {
            requests,
            icm_misses: misses,
            mtt_misses: 2 * misses,
            mpt_misses: 3 * misses,
            wqe_misses: 4 * misses,
            ..Counters::default()
        };
        let host = |name: &str, counters| HostUsage {
            host: name.to_owned(),
            counters,
            groups: Vec::new(),
        };
        let mut usage = Usage {
            hosts: vec![
                host("receiver", counters(0, 9)),
                host("sender", counters(100, 10)),
            ],
            ..Usage::default()
        };
        let misses = Misses::of(&usage).unwrap();
        let each = MISSES.map(|kind| (kind.of)(&misses));
        assert_eq!(each, [0.1, 0.2, 0.3, 0.4]);
        usage.hosts.pop();
        assert_eq!(Misses::of(&usage), None);
    }
}

//! The arms of Weir's evaluation (section V-B), the base delay, and one load over many queue pairs: its
//! throughput, and the misses of the sending RNIC's caches during it.

use std::fmt;

use headworks::sim::Usage;

use crate::cases::prelude::*;
use crate::nic::{Batches, PostingOrder, Verb, VerbLoad};

/// Processes on each server (sections II-B and V-A).
pub const PAIRS: usize = 8;
/// Requests outstanding on a queue pair (section V-B).
pub const DEPTH: usize = 128;
/// Bytes of a SEND's frame beyond the payload that a port counts. Ethernet's preamble and gap are not
/// counted. The paper's throughput is that of a port's counters (mlnx_perf).
pub const COUNTED: f64 = 62.0;
/// Processor time of pacing for each request, beside the verbs that it calls, in nanoseconds. The value was
/// measured with weir-overhead (docs/pacing.md).
pub(crate) const PACING_NS: u64 = 50;
/// Requests that one step of any arm posts. They take about a microsecond, a fraction of the credit that
/// pacing gives an idle device at once.
const AT_ONCE: usize = 4;
/// Bytes of the requests that measure the base delay, and the warm-up and the measured time.
const PROBE: usize = 512;
const PROBED: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

/// Gbit/s of payload, by the completions that programs polled and by the bytes that the sending RNIC counted.
/// The second is right however many completions wait to be polled.
pub(super) const POLLED: Quantity = "polled";
pub(super) const SENT: Quantity = "sent";
/// Misses of the sending RNIC's caches for each request, by cache.
pub(super) const ICM: Quantity = "ICM";
pub(super) const MTT: Quantity = "MTT";
pub(super) const MPT: Quantity = "MPT";
pub(super) const WQE: Quantity = "WQE";
pub(super) const MISSES: [(Quantity, &str); 4] = [
    (ICM, "contexts"),
    (MTT, "translations"),
    (MPT, "protections"),
    (WQE, "requests"),
];

/// How requests reach the RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Posted immediately, with that many outstanding on a queue pair.
    Plain(usize),
    /// Paced at a rate, as in the paper; the program has 128 requests outstanding on a queue pair.
    Paced,
    /// Paced by a limit on the requests in flight instead of a rate. The paper does not have this arm.
    Windowed,
}

impl Arm {
    /// The arms that the paper compares, in its order, and the window.
    pub(super) const ALL: [Self; 6] = [
        Self::PLAIN,
        Self::Plain(64),
        Self::Plain(32),
        Self::Plain(16),
        Self::Paced,
        Self::Windowed,
    ];
    /// The baseline.
    pub(super) const PLAIN: Self = Self::Plain(DEPTH);

    /// Adapts `load` to this arm: its depth, the processor time of pacing, and processes that post
    /// independently of each other.
    pub(super) fn load(self, load: VerbLoad) -> VerbLoad {
        let (depth, pacing_ns) = match self {
            Self::Plain(depth) => (depth, 0),
            Self::Paced | Self::Windowed => (DEPTH, PACING_NS),
        };
        VerbLoad {
            depth,
            work_ns: load.work_ns + pacing_ns,
            posting_order: PostingOrder::Random(AT_ONCE),
            ..load
        }
    }

    /// Returns the testbed of this arm. If the arm paces, the devices of `hosts` are paced, with the further
    /// pacing options `more`.
    pub(super) fn testbed<'a>(
        self,
        place: &Testbed<'a>,
        hosts: &[usize],
        base_delay: Duration,
        more: &str,
    ) -> Result<Testbed<'a>, WorkloadError> {
        let mut place = place.clone();
        let window = match self {
            Self::Plain(_) => return Ok(place),
            Self::Paced => "",
            Self::Windowed => ",pace_window=1",
        };
        for &host in hosts {
            let device = &mut place.devices[host];
            let base_delay = base_delay.nanos();
            let name = format!("{device},pace,pace_base_delay_ns={base_delay}{more}{window}");
            *device = name.parse().map_err(|e| WorkloadError::at("device", e))?;
        }
        Ok(place)
    }

    /// Returns the arm's note for the report.
    pub(super) fn note(self) -> ArmNote {
        let how = match self {
            Self::Plain(depth) => {
                format!("plain verbs, {depth} requests outstanding on each queue pair")
            }
            Self::Paced => format!(
                "the same program with {DEPTH} outstanding, on a device that paces doorbells; each request costs \
                 {PACING_NS} ns more processor time, as weir-overhead measured elsewhere"
            ),
            Self::Windowed => {
                "as paced, but with a limit on the requests in flight (pace_window) instead of the \
                               rate, which the paper does not have"
                    .to_owned()
            }
        };
        let what = format!(
            "{how}; each request is posted by a separate call and signalled, as perftest does it, and the program \
             takes the constant cpu.bench for it beside the verbs"
        );
        arm(self.to_string(), what, "poll", "0")
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(depth) => write!(f, "TX depth {depth}"),
            Self::Paced => f.write_str("paced"),
            Self::Windowed => f.write_str("paced by a window"),
        }
    }
}

/// Measures the base delay on the plain device, which pacing needs, and notes it in the report.
pub(super) fn base_delay<A: Copy + PartialEq + fmt::Display + 'static>(
    bench: &mut Bench<'_>,
    t: &mut Table<A>,
) -> Result<Duration, RunError> {
    let machine = bench.options.machine().and_then(Result::ok);
    let gbps = machine.map_or(f64::NAN, |(preset, _)| preset.link_gbps);
    let delay = bench.once("base delay", |bench| probe(&bench.testbed, gbps))?;
    let delay = delay.map_err(|why| RunError::Failed(why.to_string()))?;
    t.note(format!(
        "Pacing is configured with a base delay of {} ns. This run measured it on the plain device: the median time \
         from the doorbell to the completion of one SEND of {PROBE} B at a time, less the time of its bytes on the \
         link.",
        delay.nanos()
    ));
    t.note(
        "Pacing cuts long WRITEs and READs into slices (section IV-D). It never cuts SENDs, because the receiver \
         would get other messages. The paper's traffic and this experiment's are SENDs, so no request is cut here.",
    );
    Ok(delay)
}

/// Measures the base delay of a device whose link carries `gbps` Gbit/s: the time from a SEND's doorbell to
/// its completion on an idle device, less the time of its bytes on the link.
pub(super) fn probe(place: &Testbed<'_>, gbps: f64) -> Result<Duration, WorkloadError> {
    probe_of(place, gbps, VerbLoad::of(Verb::Send, PROBE))
}

/// As [`probe`], with the requests of `load`, one at a time.
pub(crate) fn probe_of(
    place: &Testbed<'_>,
    gbps: f64,
    load: VerbLoad,
) -> Result<Duration, WorkloadError> {
    let batches = Batches { load, pause_ns: 0 };
    let delays = batches.batch_delays(place, PROBED)?;
    let first = delays.first();
    let first = first.ok_or_else(|| WorkloadError("base delay: no request completed".into()))?;
    let on_the_line = load.size as f64 * 8.0 / gbps;
    let nanos = (first.p50_ns - on_the_line).max(1.0);
    Ok(Duration::from_nanos(nanos as u64))
}

/// Measures `load` over `queue_pairs` queue pairs of all processes together.
pub(super) fn sample(
    place: &Testbed<'_>,
    load: VerbLoad,
    queue_pairs: u64,
    times: (Duration, Duration),
) -> Result<Option<Sample>, WorkloadError> {
    let load = VerbLoad {
        queue_pairs: (queue_pairs as usize / PAIRS).max(1),
        ..load
    };
    let rate = load.rate(place, PAIRS, times)?;
    let counted = place.usage().as_ref().and_then(counted);
    Ok(rate.map(|rate| {
        let polled = (POLLED, rate * load.size as f64 * 8e-9);
        Sample::of([polled].into_iter().chain(counted.into_iter().flatten()))
    }))
}

/// Returns what the sending host's RNIC counted, or `None` if it sent nothing.
fn counted(usage: &Usage) -> Option<[(Quantity, f64); 5]> {
    let hosts = usage.hosts.iter().map(|host| &host.counters);
    let sender = hosts.max_by_key(|counters| counters.requests)?;
    let each = |misses: u64| misses as f64 / sender.requests as f64;
    // `over` is in picoseconds.
    let seconds = usage.over as f64 * 1e-12;
    (sender.requests > 0).then(|| {
        [
            (SENT, sender.bytes_out as f64 / seconds * 8e-9),
            (ICM, each(sender.icm_misses)),
            (MTT, each(sender.mtt_misses)),
            (MPT, each(sender.mpt_misses)),
            (WQE, each(sender.wqe_misses)),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::sim::Counters;
    use headworks::sim::utilisation::HostUsage;

    #[test]
    fn throughput_and_misses_are_of_the_host_that_sends() {
        let host = |name: &str, requests, misses: u64| HostUsage {
            host: name.to_owned(),
            counters: Counters {
                requests,
                bytes_out: 1000,
                icm_misses: misses,
                mtt_misses: 2 * misses,
                mpt_misses: 3 * misses,
                wqe_misses: 4 * misses,
                ..Counters::default()
            },
            receiving: None,
            units: Vec::new(),
        };
        let mut usage = Usage {
            hosts: vec![host("receiver", 0, 9), host("sender", 100, 10)],
            over: 1_000_000,
            ..Usage::default()
        };
        let found = counted(&usage).unwrap();
        let wanted = [(SENT, 8.0), (ICM, 0.1), (MTT, 0.2), (MPT, 0.3), (WQE, 0.4)];
        assert_eq!(found, wanted);
        usage.hosts.pop();
        assert_eq!(counted(&usage), None);
    }
}

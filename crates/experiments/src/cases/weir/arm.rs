//! The arms of Weir's evaluation (section V-B): plain verbs, so many requests outstanding of a queue pair, and doorbells
//! that are paced.

use std::fmt;

use headworks::verbs::Duration;

use super::point::DEPTH;
use crate::bench::Bench;
use crate::nic::batches::Batches;
use crate::nic::loaded::{Gait, Load, Verb};
use crate::outcome::ArmNote;
use crate::transports::ArmError;
use crate::world::Place;

/// What pacing costs the processor for each request beside the verbs that it calls, in nanoseconds: what weir-overhead
/// read (docs/pacing.md).
pub(super) const PACING_NS: u64 = 50;
/// Requests that a step of any arm posts: about a microsecond, a few times shorter than what an idle clock of pacing
/// gives at once.
const AT_ONCE: usize = 4;
/// Bytes of the requests that tell the delay of a device that has nothing to do.
const PROBE: usize = 512;
/// So long are they measured.
const PROBED: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

/// Where processes run.
pub(super) const PINNING: &str =
    "each sending process on a simulated core of one host, each receiving one on another's";

/// How requests come to the RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arm {
    /// As they are posted, so many outstanding of a queue pair.
    Plain(usize),
    /// When they are due, [`DEPTH`] outstanding of a queue pair for the program.
    Paced,
    /// The same, but what is in flight is limited and not the rate, which is not the paper's.
    Windowed,
}

impl Arm {
    /// All that the paper compares, in its order, and what it does not.
    pub(super) const ALL: [Self; 6] = [
        Self::PLAIN,
        Self::Plain(64),
        Self::Plain(32),
        Self::Plain(16),
        Self::Paced,
        Self::Windowed,
    ];
    /// What is compared with.
    pub(super) const PLAIN: Self = Self::Plain(DEPTH);

    /// The same load in this arm: its depth, what the processor does for pacing, and processes that go
    /// their own ways.
    pub(super) fn load(self, load: Load) -> Load {
        let (depth, pacing_ns) = match self {
            Self::Plain(depth) => (depth, 0),
            Self::Paced | Self::Windowed => (DEPTH, PACING_NS),
        };
        Load {
            depth,
            work_ns: load.work_ns + pacing_ns,
            gait: Gait::Apart(AT_ONCE),
            ..load
        }
    }

    /// Where it runs: the devices of those hosts, sending and receiving ones, are paced, or they are not.
    pub(super) fn place<'a>(
        self,
        place: &Place<'a>,
        hosts: &[usize],
        base_delay: Probed,
    ) -> Result<Place<'a>, ArmError> {
        match self {
            Self::Plain(_) => Ok(place.clone()),
            Self::Paced | Self::Windowed => paced(place, hosts, base_delay, self.options()),
        }
    }

    /// What the device's name says of pacing, beside the base delay.
    pub(super) fn options(self) -> &'static str {
        match self {
            Self::Windowed => ",pace_window=1",
            _ => "",
        }
    }

    /// For the report.
    pub(super) fn note(self) -> ArmNote {
        let how = match self {
            Self::Plain(depth) => {
                format!("plain verbs, {depth} requests outstanding of each queue pair")
            }
            Self::Paced => format!(
                "the same program with {DEPTH} outstanding, on a device that paces doorbells; its processor does \
                 {PACING_NS} ns more for each request, which weir-overhead read elsewhere"
            ),
            Self::Windowed => "the same, but what is in flight is limited and not the rate (pace_window), which is not \
                               the paper's"
                .to_owned(),
        };
        ArmNote {
            name: self.to_string(),
            what: format!(
                "{how}; each is posted by a call of its own and signalled, as perftest does it, and the program takes \
                 the constant cpu.bench for it beside the verbs"
            ),
            waiting: "poll",
            copies: "0".into(),
        }
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

/// The same place with paced devices, of those hosts, with further options of pacing.
pub(super) fn paced<'a>(
    place: &Place<'a>,
    hosts: &[usize],
    Probed(base_delay): Probed,
    more: &str,
) -> Result<Place<'a>, ArmError> {
    let mut place = place.clone();
    for &host in hosts {
        let device = &mut place.devices[host];
        let base_delay = base_delay.nanos();
        let name = format!("{device},pace,pace_base_delay_ns={base_delay}{more}");
        *device = name.parse().map_err(|e| ArmError::at("device", e))?;
    }
    Ok(place)
}

/// What a SEND takes from its doorbell to its completion on a device that has nothing else to do, without what its bytes
/// take on the line: what delays are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Probed(Duration);

/// Measures it on the plain device.
pub(super) fn base_delay(bench: &Bench<'_>) -> Result<Probed, ArmError> {
    let machine = bench.options.machine().and_then(Result::ok);
    let gbps = machine.map(|(preset, _)| preset.link_gbps);
    let gbps = gbps.ok_or_else(|| ArmError("the device is not simulated".into()))?;
    probe(&bench.place, gbps)
}

/// The same of a link that carries so many Gbit/s.
pub(super) fn probe(place: &Place<'_>, gbps: f64) -> Result<Probed, ArmError> {
    let batches = Batches {
        load: Load::of(Verb::Send, PROBE),
        pause_ns: 0,
    };
    let delays = batches.delays(place, PROBED)?;
    let first = delays.first();
    let first = first.ok_or_else(|| ArmError("base delay: no request ended".into()))?;
    let on_the_line = PROBE as f64 * 8.0 / gbps;
    let nanos = (first.p50_ns - on_the_line).max(1.0);
    Ok(Probed(Duration::from_nanos(nanos as u64)))
}

impl Probed {
    /// So many times that.
    pub(super) fn times(self, count: u64) -> Self {
        Self(self.0.times(count))
    }

    /// Said in reports.
    pub(super) fn note(self) -> String {
        format!(
            "Pacing is told a base delay of {} ns: the median from the doorbell to the completion of one SEND of \
             {PROBE} B at a time on the plain device, which this run measured, without what the bytes take on the line.",
            self.0.nanos()
        )
    }
}

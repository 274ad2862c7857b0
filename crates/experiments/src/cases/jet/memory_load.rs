//! The load of a host's memory at which throughput begins to fall, and what a short message waits meanwhile. On simulated
//! devices that model the memory of hosts.

use std::fmt;

use super::receiving_host::{
    self, FASTER_TESTBED, about, check_arms, memory_of, refuse_antagonist,
};
use super::storage::{
    self, ANTAGONIST, Arm as Design, LARGE, LATENCY, MEMORY, QUICK_TIMES, THROUGHPUT, TIMES,
};
use crate::cases::prelude::*;
use crate::nic::{Verb, VerbLoad};

/// Demand of the antagonist, in percent of the memory's bandwidth.
const DEMANDS: [u64; 9] = [0, 40, 60, 70, 80, 85, 90, 95, FULL];
const QUICK_DEMANDS: [u64; 6] = [0, 70, 80, 90, 95, FULL];
const FULL: u64 = 100;
/// Bytes of the probe: one WRITE at a time, or one READ by the server. Either brings these bytes to the loaded host.
const PROBE: usize = 64;
/// KiB of the WRITEs, and of the short messages.
const WRITES: u64 = 1024;
const SHORT: u64 = 4;
/// Share of the throughput without an antagonist below which it has begun to fall.
const FALLEN: f64 = 0.95;

/// Average time of a probe in microseconds.
const PROBE_TIME: Quantity = "probe";
/// In the first point of an arm: the lowest demand at which throughput had fallen, in percent.
const FALLS_AT: Quantity = "falls at";

/// A load on the receiving host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// WRITEs of 1 MiB, as in figure 2.
    Writes,
    /// The storage server, with messages of so many KiB.
    Server(Design, u64),
}

impl Arm {
    const ALL: [Self; 5] = [
        Self::Writes,
        Self::Server(Design::O, LARGE),
        Self::Server(Design::JET, LARGE),
        Self::Server(Design::O, SHORT),
        Self::Server(Design::JET, SHORT),
    ];

    /// Returns the word for this arm in the names of metrics.
    fn key(self) -> String {
        match self {
            Self::Writes => "writes_1m".to_owned(),
            Self::Server(design, kib) => {
                let name = if design.has_pool() { "jet" } else { "areas" };
                format!("{name}_{kib}k")
            }
        }
    }

    fn note(self) -> ArmNote {
        match self {
            Self::Writes => {
                let what = "WRITEs of 1 MiB over 32 queue pairs, each into a buffer of one message";
                arm(self.to_string(), what, "poll", "0")
            }
            Self::Server(design, _) => arm(self.to_string(), design.note().what, "poll", "0"),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writes => f.write_str("WRITEs of 1 MiB"),
            Self::Server(design, kib) => write!(f, "{design}, {kib} KiB"),
        }
    }
}

fn at(arm: Arm, demand: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, demand), quantity)
}

/// The experiment `jet-load`.
pub static LOAD: Case<Arm> = Case {
    about: about(
        "jet-load",
        "Figure 1 and section 2.1",
        "The load of a host's memory at which throughput begins to fall, and the time of a short probe meanwhile \
         (--device sim:cx4lx-2x25g or sim:cx6dx-2x100g).",
        "An antagonist uses 0 to 100 % of the memory's bandwidth while a host receives WRITEs of 1 MiB, or messages of 256 or \
         4 KiB (SENDs) of a storage server with areas and with Jet: throughput, latency, and the time of a probe \
         of 64 bytes beside it.",
    ),
    table,
    measure: |bench, _, _| {
        let preset = memory_of(bench)?;
        refuse_antagonist(bench, LOAD.about.name)?;
        let designs = [Design::O, Design::JET];
        check_arms(bench, designs.map(|design| design.settings(&preset, 1.0)))?;
        let (demands, times) = match bench.options.quick {
            true => (&QUICK_DEMANDS[..], QUICK_TIMES),
            false => (&DEMANDS[..], TIMES),
        };
        let probe = |verb| VerbLoad::of(verb, PROBE);
        let sweep = Sweep::in_virtual_time("% antagonist", "");
        let points = grid("", &Arm::ALL, demands);
        let mut measured = bench.measure(points, sweep, |bench, point, _| {
            let part = point.x as f64 / 100.0;
            let settings = match point.arm {
                Arm::Writes => vec![format!("host.antagonist={}", part * preset.host_memory)],
                Arm::Server(design, _) => design.settings(&preset, part),
            };
            let testbed = bench.testbed_with(&settings)?;
            let (sample, probes) = match point.arm {
                Arm::Writes => {
                    receiving_host::writes_beside(&testbed, WRITES, &probe(Verb::Write), times)?
                }
                Arm::Server(design, kib) => {
                    let load = design.load(kib, 4);
                    let (stored, probes) =
                        load.serve_beside(&probe(Verb::Read), &testbed, times)?;
                    let usage = testbed.take_usage();
                    let sample = usage.and_then(|usage| storage::sample(&usage, &stored));
                    (sample, probes)
                }
            };
            // Without a probe that ended there is no time.
            Ok(sample.map(|sample| match probes > 0.0 {
                true => sample.with(PROBE_TIME, 1e6 / probes),
                false => sample,
            }))
        })?;
        add_falls(&mut measured);
        Ok(measured)
    },
};

/// Adds to the first point of each arm the demand at which its throughput had fallen.
fn add_falls(measured: &mut Measured<Arm>) {
    for arm in Arm::ALL {
        let mut of_arm = measured.series(|point| point.arm == arm, THROUGHPUT);
        of_arm.sort_by_key(|(demand, _)| *demand);
        let Some((_, quiet)) = of_arm.first().copied() else {
            continue;
        };
        let mut fallen = of_arm.iter().filter(|(_, rate)| *rate < FALLEN * quiet);
        if let Some((demand, _)) = fallen.next() {
            measured.extend(Point::at(arm, 0), FALLS_AT, *demand as f64);
        }
    }
}

fn table() -> Table<Arm> {
    let mut t = Table::new(Arm::ALL.map(Arm::note).to_vec());
    t.arm().x("demand of the antagonist [%]");
    t.value("throughput [GB/s]", THROUGHPUT);
    t.value("average latency [µs]", LATENCY);
    t.value("a probe of 64 B beside it, average [µs]", PROBE_TIME);
    t.value("memory, without the antagonist [GB/s]", MEMORY);
    t.value("antagonist [GB/s]", ANTAGONIST);
    for arm in Arm::ALL {
        let key = arm.key();
        let falls = t.metric(format!("{key}_falls_at_percent"), at(arm, 0, FALLS_AT));
        if arm == Arm::Writes {
            falls.paper_on(
                FASTER_TESTBED,
                Claim::About(92.0),
                "2.1, Figure 1b: 230 of 250 GB/s during an incident",
            );
        }
        let of = |quantity| at(arm, FULL, quantity) / at(arm, 0, quantity);
        t.metric(format!("{key}_loaded_over_quiet"), of(THROUGHPUT));
        t.metric(format!("{key}_latency_loaded_over_quiet"), of(LATENCY));
        t.metric(format!("{key}_probe_loaded_over_quiet"), of(PROBE_TIME));
        t.metric(format!("{key}_probe_loaded_us"), at(arm, FULL, PROBE_TIME));
    }
    t.note(
        "Everything is simulated. Throughput has begun to fall where it is less than 95 % of that without an antagonist, at \
         one of the demands that were measured. The paper states the load of two incidents: about 60 GB/s, close to the \
         capacity, and about 230 of 250 GB/s.",
    );
    t.note(
        "The latency of WRITEs is Little's law on what is outstanding, so it grows as throughput falls. The probe of 64 \
         bytes is a WRITE beside the WRITEs, and a READ by the server, one at a time. It goes to memory that stays cached, but \
         waits behind the others in the RNIC's buffer and in the switch. The paper \
         states 11.1, 5.1, 9.8 and 8.9 times for averages and 99th percentiles of its messages (2.1).",
    );
    let x = || Axis::linear("demand of the antagonist [% of the bandwidth]");
    for (file, title, quantity, y) in [
        (
            "throughput.svg",
            "Throughput over the load of the memory",
            THROUGHPUT,
            "throughput [GB/s]",
        ),
        (
            "probe.svg",
            "Time of a probe of 64 B over the load of the memory",
            PROBE_TIME,
            "time [µs]",
        ),
    ] {
        t.lines(file, title, (x(), Axis::linear(y)), move |point| {
            Expr::At(*point, quantity)
        });
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_demand_with_less_than_95_percent_counts() {
        let of = |demand, rate| {
            let sample = Sample::of([(THROUGHPUT, rate)]);
            (Point::at(Arm::Writes, demand), vec![Some(sample)])
        };
        let points = [of(0, 10.0), of(80, 9.6), of(90, 9.0), of(100, 5.0)];
        let mut measured = Measured::new(points, std::collections::BTreeMap::new());
        add_falls(&mut measured);
        assert_eq!(at(Arm::Writes, 0, FALLS_AT).median(&measured), Some(90.0));
        assert_eq!(at(Arm::Writes, 0, THROUGHPUT).median(&measured), Some(10.0));
    }

    #[test]
    fn arms_have_keys_of_their_own() {
        let keys = Arm::ALL.map(Arm::key);
        assert_eq!(
            keys,
            ["writes_1m", "areas_256k", "jet_256k", "areas_4k", "jet_4k"]
        );
    }
}

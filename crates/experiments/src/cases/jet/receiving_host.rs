//! Figures 2, 3 and 5: what the memory of a receiving host does to WRITEs while an antagonist uses its bandwidth,
//! and how many READs at a time fill the links. On simulated devices that model the memory of hosts.

use std::fmt;

use headworks::sim::{HostCounters, Preset, Usage};

use crate::cases::prelude::*;
use crate::nic::{Verb, VerbLoad};
use crate::service::virtual_time::Machine;

/// Presets that stand for the paper's testbeds: 2 × 25 Gbit/s with PFC, and 2 × 100 Gbit/s without, which production
/// has, too.
pub(super) const SLOWER_TESTBED: &[&str] = &["cx4lx-2x25g"];
/// See [`SLOWER_TESTBED`].
pub(super) const FASTER_TESTBED: &[&str] = &["cx6dx-2x100g"];
/// Both testbeds.
pub(super) const TESTBEDS: &[&str] = &["cx4lx-2x25g", "cx6dx-2x100g"];

/// Queue pairs, as the paper has them, and processes that share them. Each process tells when it is warm, so that
/// what the hosts count is of the measured time.
const QUEUE_PAIRS: usize = 32;
const PAIRS: usize = 2;
/// Requests outstanding on each queue pair. perftest has 128, which only makes the beginning longer.
const DEPTH: usize = 16;

/// Sizes of messages in KiB.
const SIZES: [u64; 7] = [16, 32, 64, 128, 256, 512, 1024];
const QUICK_SIZES: [u64; 3] = [SMALL, MIDDLE, LARGE];
const SMALL: u64 = 64;
const MIDDLE: u64 = 256;
const LARGE: u64 = 1024;

/// Warm-up and measured time. Rates that congestion control cut at the beginning need tens of milliseconds, and queue
/// pairs that wait for the acknowledgement timeout 67 ms.
const TIMES: (Duration, Duration) = (Duration::from_millis(160), Duration::from_millis(20));
pub(super) const QUICK_TIMES: (Duration, Duration) =
    (Duration::from_millis(80), Duration::from_millis(10));

/// READs of figure 5: at a time, and KiB of each.
const CONCURRENCY: [u64; 6] = [1, 2, 4, 8, 16, 32];
const READ_SIZES: [u64; 4] = [4, 16, 64, 256];
const READ_TIMES: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(2));

/// Quantities of a point: GB/s that arrived, and lines that DMA wrote and that were not cached, in percent.
pub const THROUGHPUT: Quantity = "throughput";
/// See [`THROUGHPUT`].
pub const MISSES: Quantity = "DMA misses";
const STALLED: Quantity = "stalled";
pub(super) const PAUSED: Quantity = "paused";
const NOTIFICATIONS: Quantity = "notifications";
const DROPPED: Quantity = "dropped";
const LATENCY: Quantity = "latency";
const MEMORY: Quantity = "memory";
const ANTAGONIST: Quantity = "antagonist";

/// A machine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// Nothing else uses the memory.
    Quiet,
    /// An antagonist would use all of the memory's bandwidth.
    Antagonist,
    /// As [`Arm::Antagonist`], and DMA allocates in twice as much of the cache.
    Doubled,
}

impl Arm {
    const ALL: [Self; 3] = [Self::Quiet, Self::Antagonist, Self::Doubled];

    /// Returns this arm's settings of a machine.
    fn settings(self, preset: &Preset) -> Vec<String> {
        let antagonist = format!("host.antagonist={}", preset.host_memory);
        match self {
            Self::Quiet => Vec::new(),
            Self::Antagonist => vec![antagonist],
            Self::Doubled => {
                let ways = format!("host.dma_cache={}", 2 * preset.host_dma_kib);
                vec![antagonist, ways]
            }
        }
    }

    fn note(self) -> ArmNote {
        let what = match self {
            Self::Quiet => "nothing else uses the memory of the hosts",
            Self::Antagonist => {
                "an antagonist, like membw, would use all of the memory's bandwidth if it were alone"
            }
            Self::Doubled => {
                "as antagonist, and DMA may allocate lines in twice as much of the cache"
            }
        };
        arm(self.to_string(), what, "poll", "0")
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quiet => "quiet",
            Self::Antagonist => "antagonist",
            Self::Doubled => "antagonist, twice the cache for DMA",
        })
    }
}

/// Describes an experiment that reproduces figures of Jet on simulated devices.
pub(super) const fn about(
    name: &'static str,
    figure: &'static str,
    line: &'static str,
    measures: &'static str,
) -> About {
    About {
        paper: Some(Paper {
            title: "From RDMA to RDCA: Toward High-Speed Last Mile of Data Center Networks Using Remote Direct Cache Access",
            year: 2022,
            figure,
        }),
        runs_on: RunsOn::Simulated,
        ..About::new(name, line, measures)
    }
}

fn at(arm: Arm, kib: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, kib), quantity)
}

/// Figures 2 and 3.
pub static FIG2: Case<Arm> = Case {
    about: about(
        "jet-fig2",
        "Figures 2 and 3",
        "WRITEs into a host whose memory an antagonist uses, over the size of messages (--device sim:cx4lx-2x25g or \
         sim:cx6dx-2x100g).",
        "WRITEs over 32 queue pairs, each into a buffer of one message, as ib_write_bw has them: throughput, average \
         latency, pauses, notifications, packets that were dropped, stalled writes, and the share of the lines that \
         were not in the receiver's cache. Alone; with an antagonist; and with twice the cache for DMA.",
    ),
    table: fig2,
    measure: |bench, t, _| {
        let preset = memory_of(bench)?;
        let (sizes, times) = match bench.options.quick {
            true => (&QUICK_SIZES[..], QUICK_TIMES),
            false => (&SIZES[..], TIMES),
        };
        check_arms(bench, Arm::ALL.map(|arm| arm.settings(&preset)))?;
        // With an antagonist that the user set, the quiet machine is the contended one.
        let arms = match bench.options.is_set("host.antagonist") {
            true => &Arm::ALL[1..],
            false => &Arm::ALL[..],
        };
        t.note(format!(
            "{}: {} GB/s of memory, {} KiB of cache, of which DMA allocates in {} KiB. host.rnic_share is fitted to \
             Figure 2 on cx4lx-2x25g, to its 43.2 % and nothing else. On cx6dx-2x100g all values are predictions.",
            preset.name, preset.host_memory, preset.host_cache_kib, preset.host_dma_kib
        ));
        let points = grid("", arms, sizes);
        bench.measure(
            points,
            Sweep::in_virtual_time("message size [KiB]", ""),
            |bench, point, _| {
                let settings = unless_set(bench, point.arm.settings(&preset));
                let testbed = bench.testbed_with(&settings)?;
                let load = VerbLoad {
                    queue_pairs: QUEUE_PAIRS / PAIRS,
                    depth: DEPTH,
                    work_ns: bench.perftest_ns(),
                    warm_requests: 2 * QUEUE_PAIRS,
                    ..VerbLoad::of(Verb::Write, (point.x * 1024) as usize)
                };
                load.rate(&testbed, PAIRS, times)?;
                Ok(testbed
                    .take_usage()
                    .as_ref()
                    .and_then(|usage| sample(usage, &load)))
            },
        )
    },
};

/// Measures WRITEs of `kib` KiB over all queue pairs; `None` if nothing arrived. perftest's own work for a request
/// is left out: it does not limit messages of these sizes.
///
/// # Errors
///
/// The actors failed.
pub fn write_all(
    testbed: &Testbed<'_>,
    kib: u64,
    times: (Duration, Duration),
) -> Result<Option<Sample>, WorkloadError> {
    let load = VerbLoad {
        queue_pairs: QUEUE_PAIRS / PAIRS,
        depth: DEPTH,
        warm_requests: 2 * QUEUE_PAIRS,
        ..VerbLoad::of(Verb::Write, (kib * 1024) as usize)
    };
    load.rate(testbed, PAIRS, times)?;
    let usage = testbed.take_usage();
    Ok(usage.as_ref().and_then(|usage| sample(usage, &load)))
}

/// Measures WRITEs of `kib` KiB over all queue pairs, as [`write_all`] does, and the requests per second of `probe` in a
/// process of its own beside them.
pub(super) fn writes_beside(
    testbed: &Testbed<'_>,
    kib: u64,
    probe: &VerbLoad,
    times: (Duration, Duration),
) -> Result<(Option<Sample>, f64), WorkloadError> {
    let load = VerbLoad {
        queue_pairs: QUEUE_PAIRS / PAIRS,
        depth: DEPTH,
        warm_requests: 2 * QUEUE_PAIRS,
        ..VerbLoad::of(Verb::Write, (kib * 1024) as usize)
    };
    let (_, probes) = load.rate_beside(probe, testbed, PAIRS, times)?;
    let usage = testbed.take_usage();
    Ok((
        usage.as_ref().and_then(|usage| sample(usage, &load)),
        probes,
    ))
}

/// Returns the preset of the device.
///
/// # Errors
///
/// [`RunError::BadInput`]: it does not model the memory of hosts.
pub(crate) fn memory_of(bench: &Bench<'_>) -> Result<Preset, RunError> {
    let machine = bench.options.machine().and_then(Result::ok);
    let modelled = machine.filter(|(preset, _)| preset.host_cache_kib > 0);
    let (preset, _) = modelled.ok_or_else(|| {
        RunError::BadInput(format!(
            "{} does not model the memory of hosts, or host.cache is 0: take sim:cx4lx-2x25g or sim:cx6dx-2x100g, or \
             set host.cache",
            bench.options.device
        ))
    })?;
    Ok(preset)
}

/// Refuses an antagonist that the user set, in an experiment whose points differ by their antagonist.
///
/// # Errors
///
/// [`RunError::BadInput`]: `host.antagonist` is set.
pub(crate) fn refuse_antagonist(bench: &Bench<'_>, name: &str) -> Result<(), RunError> {
    match bench.options.is_set("host.antagonist") {
        true => Err(RunError::BadInput(format!(
            "--set host.antagonist: {name} sets it for each point, from 0 to host.memory: leave the setting out"
        ))),
        false => Ok(()),
    }
}

/// Returns an arm's settings of a machine without that of the antagonist if the user set it (`--set host.antagonist=0`
/// switches it off in every arm).
pub(crate) fn unless_set(bench: &Bench<'_>, mut settings: Vec<String>) -> Vec<String> {
    if bench.options.is_set("host.antagonist") {
        settings.retain(|setting| !setting.starts_with("host.antagonist="));
    }
    settings
}

/// Returns the device's machine with further settings, and the seed.
///
/// # Errors
///
/// As [`memory_of`]; or a setting is not legal, or settings contradict each other.
pub(crate) fn machine_with(
    bench: &Bench<'_>,
    settings: Vec<String>,
) -> Result<Machine, WorkloadError> {
    let machine = bench.options.machine().and_then(Result::ok);
    let machine = machine.ok_or_else(|| WorkloadError("the device is not simulated".into()))?;
    let (mut preset, seed) = machine;
    for setting in unless_set(bench, settings) {
        let (key, value) = setting.split_once('=').unwrap_or_default();
        let set = preset.set(key, value);
        set.map_err(|e| WorkloadError::at("setting", e))?;
    }
    let checked = preset.check();
    checked.map_err(|why| WorkloadError::at("settings of an arm", why))?;
    Ok(Machine { preset, seed })
}

/// Checks that the settings of every arm agree with those of the user.
///
/// # Errors
///
/// [`RunError::BadInput`]: a setting of an arm contradicts one of the user.
pub(super) fn check_arms(
    bench: &Bench<'_>,
    arms: impl IntoIterator<Item = Vec<String>>,
) -> Result<(), RunError> {
    for settings in arms {
        machine_with(bench, settings).map_err(|why| RunError::BadInput(why.to_string()))?;
    }
    Ok(())
}

/// Returns the bandwidth of an antagonist on one host, in GB/s: `gb_per_s`, unless the user set another one.
pub(crate) fn antagonist_of(bench: &Bench<'_>, gb_per_s: f64) -> Result<f64, WorkloadError> {
    let machine = machine_with(bench, vec![format!("host.antagonist={gb_per_s}")])?;
    Ok(machine.preset.host_antagonist)
}

/// Returns what the hosts counted in the measured time; `None` if nothing arrived.
fn sample(usage: &Usage, load: &VerbLoad) -> Option<Sample> {
    let arrived = |host: &&headworks::sim::utilisation::HostUsage| host.counters.bytes_in;
    let receiver = usage.hosts.iter().max_by_key(arrived)?;
    let host: HostCounters = receiver.receiving?;
    // `over` is in picoseconds.
    let seconds = usage.over as f64 * 1e-12;
    let bytes = receiver.counters.bytes_in as f64;
    if bytes == 0.0 || seconds == 0.0 {
        return None;
    }
    let share = |time: u64| 100.0 * time as f64 / usage.over as f64;
    let lines = (host.dma_hits + host.dma_misses) as f64;
    // Little's law: the time of a message in a closed loop.
    let outstanding = (QUEUE_PAIRS * load.depth * load.size) as f64;
    Some(Sample::of([
        (THROUGHPUT, bytes / seconds * 1e-9),
        (LATENCY, outstanding / (bytes / seconds) * 1e6),
        (MISSES, 100.0 * host.dma_misses as f64 / lines),
        (STALLED, share(host.stalled_writes)),
        (PAUSED, share(host.paused / receiver.ports())),
        (
            NOTIFICATIONS,
            host.notifications_sent as f64 / seconds * 1e-3,
        ),
        (DROPPED, host.dropped as f64 / seconds * 1e-3),
        (
            MEMORY,
            (host.memory_rnic + host.memory_processors) as f64 / seconds * 1e-9,
        ),
        (ANTAGONIST, host.memory_antagonist as f64 / seconds * 1e-9),
    ]))
}

fn fig2() -> Table<Arm> {
    let mut t = Table::new(Arm::ALL.map(Arm::note).to_vec());
    t.arm().x("message size [KiB]");
    t.value("throughput [GB/s]", THROUGHPUT);
    t.value("average latency [µs]", LATENCY);
    t.value("paused [% of the time, mean of the ports]", PAUSED);
    t.value("notifications [1,000/s]", NOTIFICATIONS);
    t.value("dropped packets [1,000/s]", DROPPED);
    t.value("stalled writes [% of the time]", STALLED);
    t.value("lines that were not cached [%]", MISSES);
    t.value("antagonist [GB/s]", ANTAGONIST);
    let lost = Expr::Is(1.0)
        - at(Arm::Antagonist, LARGE, THROUGHPUT) / at(Arm::Antagonist, SMALL, THROUGHPUT);
    t.metric("lost_1m_percent", lost * 100.0)
        .paper_on(SLOWER_TESTBED, Claim::About(43.2), "calibrated: 2.1")
        .paper_on(FASTER_TESTBED, Claim::About(43.1), "2.1");
    t.metric("missed_1m_percent", at(Arm::Antagonist, LARGE, MISSES))
        .paper_on(TESTBEDS, Claim::Exactly(100.0), "2.1, Figure 3");
    for (key, kib) in [
        ("doubled_over_single_1m", LARGE),
        ("doubled_over_single_256k", MIDDLE),
    ] {
        let gain = at(Arm::Doubled, kib, THROUGHPUT) / at(Arm::Antagonist, kib, THROUGHPUT);
        t.metric(key, gain).paper_on(
            TESTBEDS,
            Claim::About(1.0),
            "2.1: twice the cache for DMA changes nothing",
        );
    }
    let latency = at(Arm::Antagonist, LARGE, LATENCY) / at(Arm::Antagonist, SMALL, LATENCY);
    t.metric("latency_1m_over_64k", latency);
    t.metric("quiet_1m_gb_per_s", at(Arm::Quiet, LARGE, THROUGHPUT));
    t.metric(
        "antagonist_1m_gb_per_s",
        at(Arm::Antagonist, LARGE, THROUGHPUT),
    );
    t.note(
        "Everything is simulated. The receiver's host has a cache of which DMA allocates lines in a part, and memory \
         whose bandwidth processors get first. The RNIC keeps a share of it.",
    );
    t.note(
        "The average latency is Little's law on what is outstanding: 16 messages on each queue pair. The paper states \
         11.1, 5.1, 9.8 and 8.9 times for averages and 99th percentiles of its two testbeds, and not how many messages \
         were outstanding, so no constant is taken from them. A closed loop of messages that are 16 times as long takes \
         at least 16 times as long.",
    );
    t.note("The paper's pauses (\"80K\") have no unit, so only the trend can be compared.");
    let x = || Axis::log("message size [KiB]");
    for (file, title, quantity, y) in [
        (
            "throughput.svg",
            "Throughput of WRITEs over 32 queue pairs",
            THROUGHPUT,
            "throughput [GB/s]",
        ),
        (
            "misses.svg",
            "Lines that DMA wrote and that were not cached",
            MISSES,
            "lines [%]",
        ),
        (
            "stalled.svg",
            "Time for which posted writes waited",
            STALLED,
            "time [%]",
        ),
    ] {
        let axes = (x(), Axis::linear(y));
        t.lines(file, title, axes, move |point| Expr::At(*point, quantity));
    }
    t
}

/// The arm of figure 5.
const READS: &str = "READs";

fn reads(concurrency: u64, kib: u64) -> Expr<&'static str> {
    Expr::At(Point::at(READS, concurrency).with(kib), VALUE)
}

/// Figure 5.
pub static FIG5: Case<&str> = Case {
    about: about(
        "jet-fig5",
        "Figure 5",
        "READs by one thread: throughput over their number at a time and their size (--device sim:cx6dx-2x100g).",
        "One thread READs 4 to 256 KiB over 1 to 32 queue pairs, one READ outstanding on each: throughput.",
    ),
    table: fig5,
    measure: |bench, _, _| {
        let preset = memory_of(bench)?;
        let sizes = match bench.options.quick {
            true => &READ_SIZES[2..],
            false => &READ_SIZES[..],
        };
        let points = grid("", &[READS], &CONCURRENCY).into_iter();
        let points = points.flat_map(|point| sizes.iter().map(move |kib| point.with(*kib)));
        let all_ports = preset.link_gbps * preset.ports as f64;
        let sweep = Sweep::in_virtual_time("READs at a time", "KiB");
        bench.measure(points.collect(), sweep, |bench, point, _| {
            let load = VerbLoad {
                queue_pairs: point.x as usize,
                work_ns: bench.perftest_ns(),
                ..VerbLoad::of(Verb::Read, (point.n * 1024) as usize)
            };
            let rate = load.rate(&bench.testbed, 1, READ_TIMES)?;
            let of_link = |rate: f64| rate * load.size as f64 * 8e-9;
            Ok(rate.map(|rate| {
                let gbps = of_link(rate);
                Sample::of([(VALUE, gbps), (LINKS, 100.0 * gbps / all_ports)])
            }))
        })
    },
};

/// Throughput in percent of the rate of all links.
const LINKS: Quantity = "of the links";

fn fig5() -> Table<&'static str> {
    let what =
        "one thread, one READ outstanding on each queue pair; queue pairs use the ports in turn";
    let mut t = Table::new(vec![arm(READS, what, "poll", "0")]);
    t.x("READs at a time").n("size [KiB]");
    t.value("throughput [Gbit/s]", VALUE);
    t.value("of the links' rate [%]", LINKS);
    let links = |kib| Expr::At(Point::at(READS, 4).with(kib), LINKS);
    t.metric("four_reads_256k_percent", links(256)).paper_on(
        FASTER_TESTBED,
        Claim::Above(90.0),
        "4.1.2: four fill 2 × 100 Gbit/s",
    );
    t.metric("four_reads_64k_percent", links(64));
    t.metric("thirty_two_reads_64k_gbps", reads(32, 64));
    t.note("Everything is simulated. Headers leave 98 % of a link to the payload.");
    let title = "Throughput of READs by one thread";
    let axes = (
        Axis::log("READs at a time"),
        Axis::linear("throughput [Gbit/s]"),
    );
    t.marks("throughput.svg", title, axes, |point| {
        let name = format!("{} KiB", point.n);
        vec![(name, Expr::Is(point.x as f64), Expr::At(*point, VALUE))]
    });
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_set_what_they_say() {
        let preset = Preset::named("cx4lx-2x25g").expect("a preset");
        assert!(Arm::Quiet.settings(&preset).is_empty());
        assert_eq!(Arm::Antagonist.settings(&preset), ["host.antagonist=60"]);
        let doubled = Arm::Doubled.settings(&preset);
        assert_eq!(doubled, ["host.antagonist=60", "host.dma_cache=8192"]);
    }

    #[test]
    fn a_sample_is_of_the_host_that_receives() {
        let host = |name: &str, bytes_in, receiving| headworks::sim::utilisation::HostUsage {
            host: name.to_owned(),
            counters: headworks::sim::Counters {
                bytes_in,
                ..Default::default()
            },
            receiving: Some(receiving),
            units: Vec::new(),
        };
        let counted = HostCounters {
            dma_hits: 1,
            dma_misses: 3,
            stalled_writes: 250_000_000,
            ..HostCounters::default()
        };
        let usage = Usage {
            over: 1_000_000_000,
            hosts: vec![
                host("a", 0, HostCounters::default()),
                host("b", 1_000_000, counted),
            ],
            ..Usage::default()
        };
        let load = VerbLoad::of(Verb::Write, 1 << 20);
        let found = sample(&usage, &load).expect("a sample");
        assert_eq!(found.get(THROUGHPUT), 1.0);
        assert_eq!((found.get(MISSES), found.get(STALLED)), (75.0, 25.0));
    }
}

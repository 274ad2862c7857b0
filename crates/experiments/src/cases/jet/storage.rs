//! Figures 6 to 8 and 12: a storage server receives messages by READs while an antagonist uses its memory. All
//! combinations of the paper's three designs, and two that the paper never separates. On simulated devices that model
//! the memory of hosts.

use std::fmt;

use headworks::sim::{HostCounters, Preset, Usage};

use super::receiving_host::{
    FASTER_TESTBED, SLOWER_TESTBED, about, check_arms, memory_of, unless_set,
};
use crate::cases::prelude::*;
use crate::nic::storage::{StayTime, StorageLoad};
use crate::nic_measurements::Stored;

/// Connections (section 4.1.2), and messages under way on each.
const CONNECTIONS: usize = 32;
const OUTSTANDING: usize = 4;
/// Bytes of the pool for long messages, and of the cache that DMA allocates in, for all arms (section 6.1).
const POOL: u64 = 8 << 20;
pub(super) const DMA_CACHE_KIB: u64 = 12 << 10;
/// Mean time for which a message stays in memory (section 2.2).
const STAY_NS: u64 = 200_000;
/// Sizes of messages in KiB.
const SIZES: [u64; 6] = [SHORT, 16, 32, 64, 128, LARGE];
const QUICK_SIZES: [u64; 3] = [SHORT, 16, LARGE];
/// Messages of this size are SENDs.
pub(super) const SHORT: u64 = 4;
pub(super) const LARGE: u64 = 256;
/// Messages for which an area of each connection has room, where it is not said otherwise; and in the figure over them.
const AREA: u64 = OUTSTANDING as u64;
const AREAS: [u64; 4] = [1, 2, 4, 8];
/// Warm-up and measured time. A queue pair whose retransmitted packets were lost, too, waits for the acknowledgement
/// timeout, which is 67 ms. That happens at the beginning, before congestion control has cut the rates.
pub(super) const TIMES: (Duration, Duration) =
    (Duration::from_millis(160), Duration::from_millis(20));
pub(super) const QUICK_TIMES: (Duration, Duration) =
    (Duration::from_millis(80), Duration::from_millis(10));

/// Quantities of a point.
pub(super) const THROUGHPUT: Quantity = "throughput";
pub(super) const MESSAGES: Quantity = "messages";
pub(super) const LATENCY: Quantity = "latency";
pub(super) const TAIL: Quantity = "p99.9";
pub(super) const HITS: Quantity = "DMA hits";
const HIT_RATE: Quantity = "DMA hit rate";
pub(super) const DEVICE_HITS: Quantity = "device hits";
const STALLED: Quantity = "stalled";
const PAUSED: Quantity = "paused";
const NOTIFICATIONS: Quantity = "notifications";
const DROPPED: Quantity = "dropped";
pub(super) const MEMORY: Quantity = "memory";
pub(super) const ANTAGONIST: Quantity = "antagonist";

/// A combination of designs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arm {
    /// I: processors do not allocate in the cache for DMA.
    isolates: bool,
    /// F: memory is released by slices.
    frees_slices: bool,
    /// R: a pool; without it areas that are used in turn.
    pool: bool,
    /// Whether READs in flight are limited in number and bytes.
    windows: bool,
}

impl Arm {
    const fn of(isolates: bool, frees_slices: bool, pool: bool) -> Self {
        Self {
            isolates,
            frees_slices,
            pool,
            windows: pool,
        }
    }

    pub(super) const O: Self = Self::of(false, false, false);
    pub(super) const I: Self = Self::of(true, false, false);
    const F: Self = Self::of(false, true, false);
    const R: Self = Self::of(false, false, true);
    pub(super) const IF: Self = Self::of(true, true, false);
    pub(super) const IR: Self = Self::of(true, false, true);
    const FR: Self = Self::of(false, true, true);
    pub(super) const JET: Self = Self::of(true, true, true);
    /// The areas with the pool's windows.
    const O_WINDOWS: Self = Self {
        windows: true,
        ..Self::O
    };
    /// The pool's order of memory without its windows and its size.
    const R_ALONE: Self = Self {
        windows: false,
        ..Self::R
    };
    const ALL: [Self; 10] = [
        Self::O,
        Self::I,
        Self::F,
        Self::R,
        Self::IF,
        Self::IR,
        Self::FR,
        Self::JET,
        Self::O_WINDOWS,
        Self::R_ALONE,
    ];
    /// Arms of a quick run, and of the figure over areas.
    const QUICK: [Self; 6] = [Self::O, Self::I, Self::R, Self::IF, Self::IR, Self::JET];

    pub(super) fn has_pool(self) -> bool {
        self.pool
    }

    pub(super) fn frees_slices(self) -> bool {
        self.frees_slices
    }

    pub(super) fn isolates(self) -> bool {
        self.isolates
    }

    pub(super) fn load(self, kib: u64, area: u64) -> StorageLoad {
        let size = kib * 1024;
        let areas = CONNECTIONS as u64 * area * size;
        StorageLoad {
            size: size as usize,
            least: size as usize,
            connections: CONNECTIONS,
            outstanding: OUTSTANDING,
            memory: if self.pool && self.windows {
                POOL
            } else {
                areas
            },
            is_pool: self.pool,
            has_windows: self.windows,
            by_slices: self.frees_slices,
            stay_ns: STAY_NS,
            stay: StayTime::Fixed,
            sample_ns: 0,
        }
    }

    /// Returns this arm's settings of a machine whose memory an antagonist uses.
    pub(super) fn settings(self, preset: &Preset, antagonist: f64) -> Vec<String> {
        vec![
            format!("host.dma_cache={DMA_CACHE_KIB}"),
            format!("host.isolated={}", u8::from(self.isolates)),
            format!("host.antagonist={}", antagonist * preset.host_memory),
        ]
    }

    pub(super) fn note(self) -> ArmNote {
        let memory = match (self.pool, self.windows) {
            (true, true) => "a receive pool of 8 MiB: what was released most recently is used next",
            (true, false) => {
                "what was released most recently is used next, in as much memory as the areas have"
            }
            (false, _) => "an area for each connection, used in turn",
        };
        let windows = match self.windows {
            true => "at most 32 READs and 8 MiB in flight",
            false => "no limit on READs in flight",
        };
        let release = match self.frees_slices {
            true => "released by slices of 4 KiB",
            false => "released by whole messages",
        };
        let isolated = match self.isolates {
            true => "the cache for DMA is isolated from processors",
            false => "processors allocate in all of the cache",
        };
        let what = format!("{memory}; {windows}; {release}; {isolated}");
        arm(self.to_string(), what, "poll", "0")
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.isolates, "I"),
            (self.frees_slices, "F"),
            (self.pool, "R"),
        ];
        let parts = parts.iter().filter(|(is_on, _)| *is_on);
        let parts: Vec<&str> = parts.map(|(_, name)| *name).collect();
        match parts.is_empty() {
            true => f.write_str("O")?,
            false => f.write_str(&parts.join("+"))?,
        }
        match (self.pool, self.windows) {
            (false, true) => f.write_str(" with windows"),
            (true, false) => f.write_str(" without windows"),
            _ => Ok(()),
        }
    }
}

fn at(arm: Arm, kib: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, kib).with(AREA), quantity)
}

/// Returns a quantity of one arm over that of another, at the largest size.
fn over(arm: Arm, other: Arm, kib: u64, quantity: Quantity) -> Expr<Arm> {
    at(arm, kib, quantity) / at(other, kib, quantity)
}

/// Figures 6 and 12 or 7 and 12: the testbeds.
pub static FIG6: Case<Arm> = Case {
    about: about(
        "jet-fig6",
        "Figures 6, 7 and 12",
        "A storage server under memory pressure: areas, isolation, slices and the receive pool, over the size of messages \
         (--device sim:cx4lx-2x25g or sim:cx6dx-2x100g).",
        "A server receives messages of 4 KiB (SENDs) and READs messages of 16 to 256 KiB over 32 connections into memory, where they stay for 200 µs, while an \
         antagonist would use all of the memory's bandwidth: throughput, latency, pauses, notifications, hits of DMA and \
         of the device that reads the messages, stalled writes, and what the antagonist gets. All combinations of the \
         paper's designs; areas with the pool's windows; the pool's order without its windows; and areas of 1, 2, 4 and 8 \
         messages.",
    ),
    table,
    measure: |bench, t, _| {
        let preset = memory_of(bench)?;
        check_arms(bench, Arm::ALL.map(|arm| arm.settings(&preset, 1.0)))?;
        let is_quick = bench.options.quick;
        let (arms, sizes) = match is_quick {
            true => (&Arm::QUICK[..], &QUICK_SIZES[..]),
            false => (&Arm::ALL[..], &SIZES[..]),
        };
        t.note(format!(
            "{}: DMA allocates in {} MiB of the cache in every arm, as in section 6.1.",
            preset.name,
            DMA_CACHE_KIB >> 10
        ));
        let points = grid("", arms, sizes).into_iter();
        let mut points: Vec<_> = points.map(|point| point.with(AREA)).collect();
        let areas = AREAS.iter().filter(|area| !is_quick && **area != AREA);
        points.extend(areas.map(|area| Point::at(Arm::O, LARGE).with(*area)));
        bench.measure(
            points,
            Sweep::in_virtual_time("message size [KiB]", "area"),
            |bench, point, _| {
                let settings = unless_set(bench, point.arm.settings(&preset, 1.0));
                let testbed = bench.testbed_with(&settings)?;
                serve(&testbed, &point.arm.load(point.x, point.n), is_quick)
            },
        )
    },
};

/// Measures a load; `None` if nothing arrived.
pub(super) fn serve(
    testbed: &Testbed<'_>,
    load: &StorageLoad,
    is_quick: bool,
) -> Result<Option<Sample>, WorkloadError> {
    let times = if is_quick { QUICK_TIMES } else { TIMES };
    let stored = load.serve(testbed, times)?;
    let usage = testbed.take_usage();
    Ok(usage.as_ref().and_then(|usage| sample(usage, &stored)))
}

/// Returns what the server's host counted in the measured time.
pub(super) fn sample(usage: &Usage, stored: &Stored) -> Option<Sample> {
    let hosts = usage.hosts.iter();
    let server = hosts.max_by_key(|host| host.counters.bytes_in)?;
    let host: HostCounters = server.receiving?;
    // `over` is in picoseconds.
    let seconds = usage.over as f64 * 1e-12;
    if seconds == 0.0 || stored.per_second == 0.0 {
        return None;
    }
    let per_second = |count: u64| count as f64 / seconds;
    let share = |time: u64| 100.0 * time as f64 / usage.over as f64;
    let percent = |part: u64, rest: u64| match part + rest {
        0 => 0.0,
        all => 100.0 * part as f64 / all as f64,
    };
    Some(Sample::of([
        // Bytes that arrived. Whole messages would include bytes that arrived before the measured time.
        (THROUGHPUT, per_second(server.counters.bytes_in) * 1e-9),
        (MESSAGES, stored.per_second * 1e-3),
        (LATENCY, stored.latency.mean_ns * 1e-3),
        (TAIL, stored.latency.p999_ns * 1e-3),
        (HITS, per_second(host.dma_hits) * 64e-9),
        (HIT_RATE, percent(host.dma_hits, host.dma_misses)),
        (DEVICE_HITS, percent(host.device_hits, host.device_misses)),
        (STALLED, share(host.stalled_writes)),
        (PAUSED, share(host.paused / server.ports())),
        (NOTIFICATIONS, per_second(host.notifications_sent) * 1e-3),
        (DROPPED, per_second(host.dropped) * 1e-3),
        (
            MEMORY,
            per_second(host.memory_rnic + host.memory_processors) * 1e-9,
        ),
        (ANTAGONIST, per_second(host.memory_antagonist) * 1e-9),
    ]))
}

fn table() -> Table<Arm> {
    let mut t = Table::new(Arm::ALL.map(Arm::note).to_vec());
    columns(&mut t);
    metrics(&mut t);
    notes(&mut t);
    charts_over_size(&mut t);
    chart_over_areas(&mut t);
    t
}

fn columns(t: &mut Table<Arm>) {
    t.arm().x("message size [KiB]").n("area [messages]");
    t.value("throughput [GB/s]", THROUGHPUT);
    t.value("average latency [µs]", LATENCY);
    t.value("p99.9 [µs]", TAIL);
    t.value("hits of DMA [GB/s]", HITS);
    t.value("of all lines [%]", HIT_RATE);
    t.value("hits of the device that reads [%]", DEVICE_HITS);
    t.value("stalled writes [% of the time]", STALLED);
    t.value("paused [% of the time]", PAUSED);
    t.value("notifications [1,000/s]", NOTIFICATIONS);
    t.value("dropped packets [1,000/s]", DROPPED);
    t.value("memory, without the antagonist [GB/s]", MEMORY);
    t.value("antagonist [GB/s]", ANTAGONIST);
}

fn metrics(t: &mut Table<Arm>) {
    // The paper's baseline has areas of a size that it does not state.
    t.metric(
        "pool_over_areas_256k",
        over(Arm::IR, Arm::O, LARGE, THROUGHPUT),
    )
    .paper_on(SLOWER_TESTBED, Claim::About(1.54), "6.2")
    .paper_on(FASTER_TESTBED, Claim::About(1.96), "6.2");
    t.metric(
        "isolated_over_areas_256k",
        over(Arm::I, Arm::O, LARGE, THROUGHPUT),
    )
    .paper_on(SLOWER_TESTBED, Claim::Exactly(1.026), "6.2: 2.6 % more")
    .paper_on(FASTER_TESTBED, Claim::Exactly(1.05), "6.2: 5 % more");
    t.metric(
        "all_over_areas_256k",
        over(Arm::JET, Arm::O, LARGE, THROUGHPUT),
    )
    .paper_on(FASTER_TESTBED, Claim::About(2.11), "6.3: in production");
    let fewer = |quantity| (Expr::Is(1.0) - over(Arm::IR, Arm::O, LARGE, quantity)) * 100.0;
    t.metric("latency_lower_256k_percent", fewer(LATENCY))
        .paper_on(SLOWER_TESTBED, Claim::About(74.8), "6.2");
    let short = (Expr::Is(1.0) - over(Arm::IR, Arm::O, SHORT, LATENCY)) * 100.0;
    t.metric("latency_lower_4k_percent", short)
        .paper_on(SLOWER_TESTBED, Claim::About(46.4), "6.2");
    t.metric("stalls_fewer_256k_percent", fewer(STALLED))
        .paper_on(SLOWER_TESTBED, Claim::About(96.4), "6.2")
        .paper_on(FASTER_TESTBED, Claim::About(99.1), "6.2");
    t.metric("hits_over_areas_256k", over(Arm::IR, Arm::O, LARGE, HITS))
        .paper_on(SLOWER_TESTBED, Claim::About(26.7), "6.2")
        .paper_on(FASTER_TESTBED, Claim::About(56.6), "6.2");
    t.metric("memory_fewer_256k_percent", fewer(MEMORY));
    t.metric(
        "tail_lower_256k_percent",
        (Expr::Is(1.0) - over(Arm::JET, Arm::O, LARGE, TAIL)) * 100.0,
    )
    .paper_on(
        FASTER_TESTBED,
        Claim::About(86.4),
        "6.3: P99.9, in production",
    );
    t.metric("pool_256k_gb_per_s", at(Arm::IR, LARGE, THROUGHPUT));
    t.metric("pool_alone_256k_gb_per_s", at(Arm::R, LARGE, THROUGHPUT));
    t.metric("areas_256k_gb_per_s", at(Arm::O, LARGE, THROUGHPUT));
}

fn notes(t: &mut Table<Arm>) {
    t.note(
        "Everything is simulated, and nothing is fitted to these figures. Messages are announced 4 µs after the one before \
         is over, and the announcement takes no bandwidth. A device such as an SSD reads each message from memory by DMA \
         during the time for which it stays; with slices it reads them one after the other.",
    );
    t.note(
        "Artefacts of the model. The gain of the pool cannot exceed the rate of the links over what the RNIC gets of the \
         memory (host.rnic_share). The application's own hits in the cache are not modelled, so isolation costs nothing. \
         Messages that the device reads from the cache cause no memory traffic. P99.9 without the pool follows the timers \
         of congestion control.",
    );
    t.note(
        "Messages of 4 KiB are SENDs. All connections share the receives of 4 KiB: 1,024 with the pool and its windows \
         (4.1.3), and 4,096 (16 MiB) without. The paper does not state how many receives its baseline has: this number is \
         assumed. Latency counts from the SEND here, and from the announcement otherwise.",
    );
    t.note(
        "Areas are one area that is used in turn; their size is a number of messages for each connection. The paper does \
         not state its own. Its gains in hits imply at most 5.8 and 3.5 % of hits for the baseline if the pool always hits.",
    );
}

fn charts_over_size(t: &mut Table<Arm>) {
    let x = || Axis::log("message size [KiB]");
    for (file, title, quantity, y) in [
        (
            "throughput.svg",
            "Throughput of a storage server under memory pressure",
            THROUGHPUT,
            "throughput [GB/s]",
        ),
        (
            "latency.svg",
            "Average latency of messages",
            LATENCY,
            "latency [µs]",
        ),
        (
            "hits.svg",
            "DMA that finds its lines in the cache",
            HITS,
            "hits [GB/s]",
        ),
        (
            "stalled.svg",
            "Time for which posted writes waited",
            STALLED,
            "time [%]",
        ),
        (
            "device-hits.svg",
            "Lines that the device found in the cache",
            DEVICE_HITS,
            "lines [%]",
        ),
    ] {
        t.marks(file, title, (x(), Axis::linear(y)), move |point| {
            match point.n == AREA {
                true => vec![(
                    point.arm.to_string(),
                    Expr::Is(point.x as f64),
                    Expr::At(*point, quantity),
                )],
                false => Vec::new(),
            }
        });
    }
}

fn chart_over_areas(t: &mut Table<Arm>) {
    let title = "Throughput of areas over their size, messages of 256 KiB";
    let axes = (
        Axis::log("area of a connection [messages]"),
        Axis::linear("throughput [GB/s]"),
    );
    t.marks("areas.svg", title, axes, |point| {
        match point.arm == Arm::O && point.x == LARGE {
            true => vec![(
                "O".to_owned(),
                Expr::Is(point.n as f64),
                Expr::At(*point, THROUGHPUT),
            )],
            false => Vec::new(),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_named_by_their_designs_and_differ() {
        let names = Arm::ALL.map(|arm| arm.to_string());
        let expected = [
            "O",
            "I",
            "F",
            "R",
            "I+F",
            "I+R",
            "F+R",
            "I+F+R",
            "O with windows",
            "R without windows",
        ];
        assert_eq!(names, expected);
        for (at, arm) in Arm::ALL.iter().enumerate() {
            assert!(!Arm::ALL[..at].contains(arm));
        }
    }

    #[test]
    fn the_pool_has_its_own_size_and_areas_that_of_their_messages() {
        assert_eq!(Arm::R.load(256, 8).memory, POOL);
        assert_eq!(Arm::O.load(256, 8).memory, 64 << 20);
        assert_eq!(Arm::R_ALONE.load(256, 2).memory, 16 << 20);
        let set = Arm::I.settings(&Preset::named("cx4lx-2x25g").expect("a preset"), 0.5);
        assert_eq!(set[1..], ["host.isolated=1", "host.antagonist=30"]);
    }
}

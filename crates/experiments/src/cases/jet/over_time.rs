//! Figures 1, 10 and 11: a simulated storage server over time. An antagonist on its host comes and goes, or the memory is
//! not used by others at all. On simulated devices that model the memory of hosts.

use std::fmt;

use headworks::sim::Preset;
use headworks_workloads::report::StorageSample;

use super::receiving_host::{FASTER_TESTBED, TESTBEDS, about, check_arms, machine_with, memory_of};
use super::storage::{Arm as Design, DMA_CACHE_KIB, LARGE};
use crate::cases::prelude::*;
use crate::nic::storage::{StayTime, StorageLoad};
use crate::storage_series::{Antagonist, StorageSeries, Window};

/// Length of a window, and time before the first one. Congestion control has settled by then.
const WINDOW: Duration = Duration::from_millis(1);
const WARM_UP: Duration = Duration::from_millis(40);

/// Quantities of a window.
const THROUGHPUT: Quantity = "throughput";
const PAUSED: Quantity = "paused";
const NOTIFICATIONS: Quantity = "notifications";
const DROPPED: Quantity = "dropped";
const MEMORY: Quantity = "memory";
const ANTAGONIST: Quantity = "antagonist";
const HELD: Quantity = "held";
const REPLACED: Quantity = "replaced";
const ESCAPES: Quantity = "escapes";
const COPIES: Quantity = "copies";
const SIGNALS: Quantity = "signals";
/// Quantities of a whole run, in the sample of the first window.
const BEFORE: Quantity = "before";
const DURING: Quantity = "during";
const AFTER: Quantity = "after";
const PAUSED_DURING: Quantity = "paused during";
const NOTIFIED_DURING: Quantity = "notified during";
const MEMORY_DURING: Quantity = "memory during";
const ESCAPES_DURING: Quantity = "escapes during";
const MEAN_MEMORY: Quantity = "mean memory";
const VARIATION: Quantity = "variation";
const MOST_REPLACED: Quantity = "most replaced";
const MOST_HELD: Quantity = "most held";
const MEAN_HELD: Quantity = "mean held";
const AVERAGE: Quantity = "mean throughput";
const ALL_ESCAPES: Quantity = "all escapes";
const ALL_COPIES: Quantity = "all copies";
const ALL_SIGNALS: Quantity = "all signals";

/// A server, in an experiment over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    design: Design,
    /// Share of its messages that are injected stragglers, in percent.
    straggler_percent: u64,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.straggler_percent {
            0 => self.design.fmt(f),
            percent => write!(f, "{}, {percent} % stragglers", self.design),
        }
    }
}

const O: Served = Served::of(Design::O, 0);
const JET: Served = Served::of(Design::JET, 0);
/// Stragglers that the pool's memory for replacement holds.
const FEW_STRAGGLERS: Served = Served::of(Design::JET, 1);
/// Stragglers that it does not hold.
const MANY_STRAGGLERS: Served = Served::of(Design::JET, 10);
const ARMS: [Served; 2] = [O, JET];
/// Arms of the experiment about the pool.
const POOL_ARMS: [Served; 4] = [O, JET, FEW_STRAGGLERS, MANY_STRAGGLERS];

impl Served {
    const fn of(design: Design, straggler_percent: u64) -> Self {
        Self {
            design,
            straggler_percent,
        }
    }

    /// Messages of 256 KiB that stay in memory for 200 µs on average, as in production: few stay for long.
    fn load(self) -> StorageLoad {
        StorageLoad {
            stay: StayTime::Pareto,
            ..self.design.load(LARGE, 4)
        }
    }

    /// Returns the arm's settings of a machine. They have no antagonist: the rule of the run is the only one.
    fn settings(self, preset: &Preset) -> Vec<String> {
        let mut settings = self.design.settings(preset, 0.0);
        settings.retain(|setting| !setting.starts_with("host.antagonist="));
        if self.straggler_percent > 0 {
            settings.push(format!("host.straggler_share={}", self.straggler_percent));
        }
        settings
    }

    fn note(self) -> ArmNote {
        let mut note = self.design.note();
        note.name = self.to_string();
        if self.straggler_percent > 0 {
            note.what += &format!(
                "; {} % of the messages stay in memory for host.straggler_time",
                self.straggler_percent
            );
        }
        note
    }
}

/// Numbers of windows: before the antagonist, while it runs, and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phases([usize; 3]);

impl Phases {
    const FULL: Self = Self([10, 150, 40]);
    const QUICK: Self = Self([5, 15, 10]);
    /// Without an antagonist.
    const QUIET: Self = Self([0, 0, 60]);
    const QUICK_QUIET: Self = Self([0, 0, 25]);

    /// Returns the phases of a run, and how many windows there are.
    fn of(is_quick: bool, has_antagonist: bool) -> (Self, usize) {
        let phases = match (is_quick, has_antagonist) {
            (false, true) => Self::FULL,
            (true, true) => Self::QUICK,
            (false, false) => Self::QUIET,
            (true, false) => Self::QUICK_QUIET,
        };
        (phases, phases.0.iter().sum())
    }
}

/// Measures the windows of these servers.
fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Served>,
    arms: &[Served],
    has_antagonist: bool,
) -> Result<Measured<Served>, RunError> {
    let preset = memory_of(bench)?;
    let (phases, windows) = Phases::of(bench.options.quick, has_antagonist);
    let [before, during, _] = phases.0;
    let antagonist = has_antagonist.then_some(Antagonist {
        from: before,
        windows: during,
        gb_per_s: preset.host_memory as u32,
    });
    let when = match has_antagonist {
        true => format!(
            "the antagonist runs from {before} to {} ms and would use all of it",
            before + during
        ),
        false => "no antagonist uses it unless one is set".to_owned(),
    };
    t.note(format!(
        "{}: {} GB/s of memory, and {when}. DMA allocates in {} MiB of the cache in every arm.",
        preset.name,
        preset.host_memory,
        DMA_CACHE_KIB >> 10
    ));
    let points = grid("", arms, &[0]);
    let sweep = Sweep::in_virtual_time("", "");
    check_arms(bench, arms.iter().map(|arm| arm.settings(&preset)))?;
    bench.measure_lists(&points, sweep, |bench, point| {
        let machine = machine_with(bench, point.arm.settings(&preset))?;
        let series = StorageSeries {
            load: point.arm.load(),
            warm_up: WARM_UP,
            window: WINDOW,
            windows,
            antagonist,
        };
        let (found, _) = series.measure(&machine, bench.stop())?;
        Ok(samples(&found, phases, preset.ports as f64))
    })
}

/// Returns a sample of each window. The first one has what is of the whole run.
fn samples(windows: &[Window], Phases([before, during, _]): Phases, ports: f64) -> Vec<Sample> {
    let gb = |bytes: u64, seconds: f64| bytes as f64 / seconds * 1e-9;
    let counts_of = |memory: &StorageSample| [memory.replacements, memory.copies, memory.signals];
    let mut counted = windows
        .first()
        .map_or([0; 3], |first| counts_of(&first.memory));
    let mut all: Vec<Sample> = windows
        .iter()
        .map(|window| {
            let (host, seconds) = (&window.host, window.seconds);
            let counts = counts_of(&window.memory);
            let [replacements, copies, signals] =
                [0, 1, 2].map(|at| (counts[at] - counted[at]) as f64);
            counted = counts;
            Sample::of([
                (THROUGHPUT, gb(window.arrived, seconds)),
                (PAUSED, 100.0 * host.paused as f64 * 1e-12 / ports / seconds),
                (
                    NOTIFICATIONS,
                    host.notifications_sent as f64 / seconds * 1e-3,
                ),
                (DROPPED, host.dropped as f64),
                (
                    MEMORY,
                    gb(host.memory_rnic + host.memory_processors, seconds),
                ),
                (ANTAGONIST, gb(host.memory_antagonist, seconds)),
                (HELD, window.memory.held as f64 / MIB as f64),
                (REPLACED, window.memory.replaced as f64 / MIB as f64),
                (ESCAPES, replacements),
                (COPIES, copies),
                (SIGNALS, signals),
            ])
        })
        .collect();
    let values = |from: usize, until: usize, quantity: Quantity| -> Vec<f64> {
        all[from..until]
            .iter()
            .map(|sample| sample.get(quantity))
            .collect()
    };
    let mean = |values: &[f64]| match values.len() {
        0 => f64::NAN,
        count => values.iter().sum::<f64>() / count as f64,
    };
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let (begins, until, end) = (before, before + during, all.len());
    // Rates need some milliseconds to fall and to rise: the second halves count.
    let from = begins + during / 2;
    let risen = until + (end - until) / 2;
    let of = |quantity| values(0, end, quantity);
    let whole = [
        (BEFORE, mean(&values(0, begins, THROUGHPUT))),
        (DURING, mean(&values(from, until, THROUGHPUT))),
        (AFTER, mean(&values(risen, end, THROUGHPUT))),
        (PAUSED_DURING, mean(&values(from, until, PAUSED))),
        (NOTIFIED_DURING, mean(&values(from, until, NOTIFICATIONS))),
        (
            MEMORY_DURING,
            mean(&values(from, until, MEMORY)) + mean(&values(from, until, ANTAGONIST)),
        ),
        (ESCAPES_DURING, values(begins, until, ESCAPES).iter().sum()),
        (AVERAGE, mean(&of(THROUGHPUT))),
        (VARIATION, 100.0 * crate::incast::variation(&of(THROUGHPUT))),
        (MEAN_MEMORY, mean(&of(MEMORY))),
        (MOST_REPLACED, most(&of(REPLACED))),
        (MOST_HELD, most(&of(HELD))),
        (MEAN_HELD, mean(&of(HELD))),
        (ALL_ESCAPES, of(ESCAPES).iter().sum()),
        (ALL_COPIES, of(COPIES).iter().sum()),
        (ALL_SIGNALS, of(SIGNALS).iter().sum()),
    ];
    if let Some(first) = all.first_mut() {
        let one = std::mem::take(first);
        *first = whole.into_iter().fold(one, |sample, (quantity, value)| {
            sample.with(quantity, value)
        });
    }
    all
}

fn first(arm: Served, quantity: Quantity) -> Expr<Served> {
    Expr::At(Point::at(arm, 0), quantity)
}

/// Makes a table of windows of these servers.
fn windows(arms: &[Served]) -> Table<Served> {
    let mut t = Table::new(arms.iter().map(|arm| arm.note()).collect());
    t.arm().x("time [ms]");
    t.value("throughput [GB/s]", THROUGHPUT);
    t.value("paused [% of the time, mean of the ports]", PAUSED);
    t.value("notifications [1,000/s]", NOTIFICATIONS);
    t.value("dropped packets", DROPPED);
    t.value("memory, without the antagonist [GB/s]", MEMORY);
    t.value("antagonist [GB/s]", ANTAGONIST);
    t.value("held by messages [MiB]", HELD);
    t.value("replaced [MiB]", REPLACED);
    t.value("extents replaced", ESCAPES);
    t.unlisted();
    t.note(
        "Everything is simulated. A window has 1 ms. The server is that of jet-fig6 with messages of 256 KiB, which stay in \
         memory for 200 µs on average, with a Pareto distribution. The paper shows 30 minutes of a machine in production.",
    );
    t
}

/// A chart over time: its file, the title of its y axis, and its lines, each with its name behind the arm's.
type Chart = (
    &'static str,
    &'static str,
    &'static [(&'static str, Quantity)],
);

/// Chart of the throughput.
const THROUGHPUT_CHART: Chart = ("throughput.svg", "throughput [GB/s]", &[("", THROUGHPUT)]);

/// Adds charts over time with the same title.
fn charts(t: &mut Table<Served>, title: &'static str, all: impl IntoIterator<Item = Chart>) {
    for (file, y, lines) in all {
        let axes = (Axis::linear("time [ms]"), Axis::linear(y));
        t.marks(file, title, axes, move |point| {
            let lines = lines.iter().map(|(name, quantity)| {
                let name = match name.is_empty() {
                    true => point.arm.to_string(),
                    false => format!("{}: {name}", point.arm),
                };
                (name, Expr::Is(point.x as f64), Expr::At(*point, quantity))
            });
            lines.collect()
        });
    }
}

/// Figure 1.
pub static FIG1: Case<Served> = Case {
    about: about(
        "jet-fig1",
        "Figure 1",
        "An incident over time: an antagonist on the host of a storage server comes and goes (--device sim:cx4lx-2x25g or \
         sim:cx6dx-2x100g).",
        "A storage server receives messages of 256 KiB while an antagonist begins to use its host's memory and ends again: \
         throughput, pauses, notifications, memory traffic, and extents that the pool replaced, every millisecond. Areas, \
         and Jet.",
    ),
    table: || {
        let mut t = windows(&ARMS);
        let lost = |arm| (Expr::Is(1.0) - first(arm, DURING) / first(arm, BEFORE)) * 100.0;
        t.metric("areas_lost_percent", lost(O)).paper_on(
            TESTBEDS,
            Claim::About(15.0),
            "2.1: up to about 15 % of a server's throughput",
        );
        t.metric("jet_lost_percent", lost(JET));
        for (arm, key) in [(O, "areas"), (JET, "jet")] {
            let mut add = |what: &str, value| {
                t.metric(format!("{key}_{what}"), value);
            };
            add("before_gb_per_s", first(arm, BEFORE));
            add("during_gb_per_s", first(arm, DURING));
            add("after_over_before", first(arm, AFTER) / first(arm, BEFORE));
            add("paused_during_percent", first(arm, PAUSED_DURING));
            add(
                "notified_during_thousands_per_s",
                first(arm, NOTIFIED_DURING),
            );
            add("memory_during_gb_per_s", first(arm, MEMORY_DURING));
            add("replaced_during", first(arm, ESCAPES_DURING));
        }
        t.note(
            "Pauses exist on cx4lx-2x25g, notifications of the RNIC on cx6dx-2x100g. The pauses of both ports are added. \
             The trace of the paper's incident is not published, and its pauses have no unit.",
        );
        let title = "A storage server, while an antagonist comes and goes";
        let all = [
            THROUGHPUT_CHART,
            (
                "paused.svg",
                "paused [% of the time, mean of the ports]",
                &[("", PAUSED)],
            ),
            (
                "notifications.svg",
                "notifications [1,000/s]",
                &[("", NOTIFICATIONS)],
            ),
            (
                "memory.svg",
                "memory traffic [GB/s]",
                &[("server", MEMORY), ("antagonist", ANTAGONIST)],
            ),
            ("escape.svg", "extents replaced in 1 ms", &[("", ESCAPES)]),
        ];
        charts(&mut t, title, all);
        t
    },
    measure: |bench, t, _| measure(bench, t, &ARMS, true),
};

/// Figure 10.
pub static FIG10: Case<Served> = Case {
    about: about(
        "jet-fig10",
        "Figure 10",
        "A storage server over time without memory pressure: throughput and memory traffic (--device sim:cx6dx-2x100g).",
        "The server of jet-fig1 without an antagonist: throughput, how it varies, and memory traffic, every millisecond. \
         Areas, and Jet.",
    ),
    table: || {
        let mut t = windows(&ARMS);
        let gain = (first(JET, AVERAGE) / first(O, AVERAGE) - Expr::Is(1.0)) * 100.0;
        t.metric("throughput_more_percent", gain).paper_on(
            FASTER_TESTBED,
            Claim::About(4.5),
            "6.3, Figure 10a: on average",
        );
        let fewer = (Expr::Is(1.0) - first(JET, MEAN_MEMORY) / first(O, MEAN_MEMORY)) * 100.0;
        t.metric("memory_fewer_percent", fewer).paper_on(
            FASTER_TESTBED,
            Claim::About(89.0),
            "6.3, Figure 10b",
        );
        t.metric("jet_memory_gb_per_s", first(JET, MEAN_MEMORY))
            .paper_on(
                FASTER_TESTBED,
                Claim::Below(0.5),
                "6.3: memory bandwidth of the escape",
            );
        t.metric("areas_memory_gb_per_s", first(O, MEAN_MEMORY));
        t.metric("jet_variation_percent", first(JET, VARIATION));
        t.metric("areas_variation_percent", first(O, VARIATION));
        let title = "A storage server without memory pressure";
        let memory: Chart = ("memory.svg", "memory traffic [GB/s]", &[("", MEMORY)]);
        charts(&mut t, title, [THROUGHPUT_CHART, memory]);
        t
    },
    measure: |bench, t, _| measure(bench, t, &ARMS, false),
};

/// Figure 11.
pub static FIG11: Case<Served> = Case {
    about: about(
        "jet-fig11",
        "Figure 11",
        "The receive pool of a storage server over time without memory pressure (--device sim:cx6dx-2x100g).",
        "The server of jet-fig10: throughput, memory of the pool that messages occupy, memory that replaces stragglers \
         (escape), copies and signals, every millisecond. Also with 1 and 10 % of the messages as stragglers, which stay in \
         memory for 10 ms.",
    ),
    table: || {
        let mut t = windows(&POOL_ARMS);
        t.value("times that data was copied out", COPIES);
        t.value("signals to the senders", SIGNALS);
        t.metric("jet_most_replaced_mib", first(JET, MOST_REPLACED))
            .paper_on(
                FASTER_TESTBED,
                Claim::Below(1.0),
                "6.3, Figure 11b: extra cache of the escape",
            );
        t.metric("jet_replaced", first(JET, ALL_ESCAPES));
        t.metric("jet_mean_held_mib", first(JET, MEAN_HELD));
        t.metric("jet_most_held_mib", first(JET, MOST_HELD));
        t.metric("jet_gb_per_s", first(JET, AVERAGE));
        for (arm, key) in [
            (FEW_STRAGGLERS, "few_stragglers"),
            (MANY_STRAGGLERS, "many_stragglers"),
        ] {
            let mut add = |what: &str, quantity| {
                t.metric(format!("{key}_{what}"), first(arm, quantity));
            };
            add("most_replaced_mib", MOST_REPLACED);
            add("replaced", ALL_ESCAPES);
            add("copies", ALL_COPIES);
            add("signals", ALL_SIGNALS);
            add("gb_per_s", AVERAGE);
        }
        t.note("The allocated cache of the figure is the pool: 8 MiB.");
        t.note(
            "Stragglers are injected: the paper does not state how many messages are. They occupy up to 2 MiB of memory that \
             replaces them (MEM_ESC). Beyond that the server copies what stragglers occupy. Signals are counted, and the \
             senders do not heed them.",
        );
        let title = "The receive pool without memory pressure";
        let pool: Chart = (
            "pool.svg",
            "memory [MiB]",
            &[("held by messages", HELD), ("replaced (escape)", REPLACED)],
        );
        charts(&mut t, title, [THROUGHPUT_CHART, pool]);
        t
    },
    measure: |bench, t, _| measure(bench, t, &POOL_ARMS, false),
};

#[cfg(test)]
mod tests {
    use headworks::sim::HostCounters;

    use super::*;

    #[test]
    fn the_first_sample_has_what_is_of_the_whole_run() {
        let window = |arrived, replacements| Window {
            seconds: 1e-3,
            arrived,
            host: HostCounters {
                paused: 500_000_000,
                ..HostCounters::default()
            },
            memory: StorageSample {
                at_ns: 0,
                bytes: 0,
                held: 2 << 20,
                replaced: 1 << 19,
                replacements,
                copies: 0,
                signals: 0,
            },
        };
        let windows = [
            window(4_000_000, 5),
            window(2_000_000, 8),
            window(3_000_000, 8),
            window(4_000_000, 9),
        ];
        let all = samples(&windows, Phases([1, 1, 2]), 1.0);
        // Rounded: sums of floating-point numbers are not exact.
        let of = |quantity| (all[0].get(quantity) * 1e6).round() / 1e6;
        assert_eq!((of(BEFORE), of(DURING), of(AFTER)), (4.0, 2.0, 4.0));
        assert_eq!((of(PAUSED_DURING), of(ESCAPES_DURING)), (50.0, 3.0));
        assert_eq!((of(ALL_ESCAPES), of(MOST_REPLACED)), (4.0, 0.5));
        assert_eq!(all.len(), 4);
        assert_eq!(all[3].get(ESCAPES), 1.0);
    }

    #[test]
    fn phases_add_up_to_the_windows() {
        assert_eq!(Phases::of(true, true).1, 30);
        assert_eq!(Phases::of(false, true).1, 200);
        assert_eq!(Phases::of(true, false), (Phases([0, 0, 25]), 25));
    }
}

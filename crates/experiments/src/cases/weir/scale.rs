//! Figures 2 and 7 to 9: throughput and misses of the RNIC's caches over the number of queue pairs. Figure 2
//! is without Weir; figures 7 to 9 compare plain verbs, with fewer requests outstanding, and paced doorbells,
//! by message size.

#[cfg(test)]
mod tests;

use super::about;
use super::arms::{self, Arm, COUNTED, DEPTH, ICM, MISSES, MPT, MTT, POLLED, SENT};
use crate::cases::prelude::*;
use crate::nic::{Verb, VerbLoad};

/// Queue pairs of all processes together.
const QUEUE_PAIRS: [u64; 12] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, MOST];
/// The highest number of queue pairs, for which figures 7 to 9 have metrics.
const MOST: u64 = 16384;
/// Queue pairs of a quick run, and the number at which it measures all arms of figures 7 to 9. At other
/// numbers it measures only the arms that metrics compare.
const QUICK_FIG2: &[u64] = &[64, 128, 256, 2048, 4096];
const QUICK: &[u64] = &[64, QUICK_ALL, MOST];
const QUICK_ALL: u64 = 1024;
/// A throughput below this fraction of the highest is a drop.
const DROP: f64 = 0.95;
/// An abrupt drop: twice the queue pairs have at most this fraction of the throughput.
const ABRUPT: f64 = 0.9;
/// Misses for each request: from the first number on there are some (fewer are first accesses), from the
/// second many.
const MISSING: f64 = 0.01;
const MANY: f64 = 0.1;

/// The metrics of Figure 2 that are numbers of queue pairs.
const DROP_AT: &str = "drop_begins_at_queue_pairs";
const NO_ICM: &str = "no_icm_misses_up_to_queue_pairs";
/// Bytes of a message of Figure 2, which the paper does not state; and the warm-up and the measured time.
const FIG2_SIZE: usize = 512;
const FIG2_TIMES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));
/// Time for pacing to settle. It takes about 3 ms after the queue pairs were filled, as weir-fig10b shows:
/// many requests complete at once then, and the rate falls to its lowest and rises again.
const SETTLES: Duration = Duration::from_millis(5);

/// Returns how many requests of each process must have completed before a point of figures 7 to 9 is measured
/// (or twice the outstanding ones, if that is fewer), and the measured time. With the most queue pairs the
/// warm-up ends long after all were filled: a program replaces the completions that it had not polled by then
/// with new requests, faster than the RNIC sends them.
const fn extent(is_quick: bool) -> (usize, Duration) {
    match is_quick {
        true => (163_840, Duration::from_micros(500)),
        false => (262_144, Duration::from_millis(5)),
    }
}

/// Returns a quantity of an arm over `queue_pairs` queue pairs.
fn at(arm: Arm, queue_pairs: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, queue_pairs), quantity)
}

/// Returns a quantity of an arm, such as the throughput, over each number of queue pairs.
fn rates(arm: Arm, quantity: Quantity) -> Vec<Expr<Arm>> {
    QUEUE_PAIRS.map(|count| at(arm, count, quantity)).to_vec()
}

/// Adds a column for each kind of misses, and notes.
fn misses_columns(t: &mut Table<Arm>) {
    for (kind, _) in MISSES {
        t.value(format!("{kind} misses [1/request]"), kind);
    }
    t.note(
        "Everything is simulated. Misses are those of the sending host's RNIC, divided by the requests that it sent \
         in the same time: misses of queue pair contexts (ICM), of translations and protections of memory (MTT, \
         MPT), and of requests that had been fetched but were evicted before their turn or before their end (WQE). \
         The paper's figures show counts.",
    );
    t.note(
        "Eight processes on one host send, and eight on the other receive. The paper starts eight on each server \
         \"to send traffic to each other\", which may mean both directions at once.",
    );
}

fn axes(y: &str) -> (Axis, Axis) {
    (Axis::log("queue pairs"), Axis::linear(y))
}

/// Figure 2.
pub static FIG2: Case<Arm> = Case {
    about: about(
        "weir-fig2",
        "Figure 2",
        "Throughput of an RNIC, and misses of its caches, against the number of queue pairs.",
        "Eight processes on one host SEND messages of 512 B to eight on another over 8 to 16,384 queue pairs, 128 \
         outstanding on each: throughput, and misses of the sending RNIC's caches.",
    ),
    table: fig2,
    measure: |bench, _, outcome| {
        let quick = bench.options.quick;
        let counts = if quick { QUICK_FIG2 } else { &QUEUE_PAIRS };
        let points = grid("", &[Arm::PLAIN], counts);
        let sweep = Sweep::in_virtual_time("queue pairs", "");
        let measured = bench.measure(points, sweep, |bench, point, _| {
            let load = VerbLoad {
                depth: DEPTH,
                work_ns: bench.perftest_ns(),
                ..VerbLoad::of(Verb::Send, FIG2_SIZE)
            };
            arms::sample(&bench.testbed, load, point.x, FIG2_TIMES)
        })?;
        record_fig2(&measured, outcome);
        Ok(measured)
    },
};

fn fig2() -> Table<Arm> {
    let what = "plain verbs, as perftest posts them: 128 requests outstanding on each queue pair";
    let mut t = Table::new(vec![arm(Arm::PLAIN.to_string(), what, "poll", "0")]);
    t.x("queue pairs").value("throughput [Gbit/s]", POLLED);
    misses_columns(&mut t);
    t.declare([DROP_AT, NO_ICM]);
    let fitted = "calibrated: nic.wqe_cache and nic.icm, II-B";
    t.of(DROP_AT).paper(Claim::Exactly(128.0), fitted);
    t.of(NO_ICM).paper(Claim::Exactly(2048.0), fitted);
    let rates = rates(Arm::PLAIN, POLLED);
    let (lowest, highest) = (Expr::Lowest(rates.clone()), Expr::Highest(rates));
    t.metric("highest_gbit_per_s", highest.clone());
    t.metric("lowest_over_highest", lowest / highest);
    let says = "128 queue pairs: a large number of MTT and MPT misses, and ICM misses do not change (II-B)";
    let stated = [
        (ICM, Claim::Below(MISSING)),
        (MTT, Claim::Above(MANY)),
        (MPT, Claim::Above(MANY)),
    ];
    let misses = |(kind, claim)| (kind, at(Arm::PLAIN, 128, kind), claim);
    t.sentence(says, stated.map(misses));
    t.note(
        "The paper repeats the experiment with one memory region for all queue pairs, and finds the same. Here the \
         queue pairs of a process share a region in any case, so there is no separate arm.",
    );
    let title = "Throughput against queue pairs";
    let y = axes("throughput [Gbit/s]");
    t.lines("throughput.svg", title, y, |point| Expr::At(*point, POLLED));
    let title = "Misses of the sending RNIC's caches against queue pairs";
    t.marks("misses.svg", title, axes("misses each request"), |point| {
        let mark = |(kind, what)| {
            let x = Expr::Is(point.x as f64);
            (format!("{kind} ({what})"), x, Expr::At(*point, kind))
        };
        MISSES.map(mark).to_vec()
    });
    t
}

/// Records the metrics that are numbers of queue pairs. A lower throughput with fewer queue pairs than the
/// highest has is not a drop.
fn record_fig2(measured: &Measured<Arm>, outcome: &mut Outcome) {
    let rates = measured.series(|_| true, POLLED);
    let highest = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut from = rates.iter().skip_while(|(_, rate)| *rate < highest);
    let drop = from.find(|(_, rate)| *rate < DROP * highest);
    let misses = measured.series(|_| true, ICM);
    let held = misses.iter().take_while(|(_, icm)| *icm < MISSING).last();
    let count = |(count, _): &(u64, f64)| Spread::single(*count as f64);
    outcome.measured_or(DROP_AT, drop.map(count), "there is no drop");
    let always = "contexts miss from the first point on";
    outcome.measured_or(NO_ICM, held.map(count), always);
}

/// Declares the figure of messages of that size.
macro_rules! figure {
    ($figure:ident, $name:literal, $number:literal, $size:literal) => {
        #[doc = concat!($number, ": messages of ", $size, " B.")]
        pub static $figure: Case<Arm> = Case {
            about: About {
                paces: true,
                ..about(
                    $name,
                    $number,
                    concat!(
                        "Throughput and misses of an RNIC's caches against the number of queue pairs, paced and not, ",
                        $size,
                        " B."
                    ),
                    concat!(
                        "Eight processes on one host SEND messages of ",
                        $size,
                        " B to eight on another over 8 to 16,384 queue pairs: with 128, 64, 32 and 16 outstanding on \
                         each; and with 128 outstanding and paced doorbells, by the paper's rate and by a window. \
                         Throughput, as the port counts it, and misses of the sending RNIC's caches."
                    ),
                )
            },
            table: || by_size($size),
            measure: |bench, t, outcome| measure(bench, t, outcome, $size),
        };
    };
}

figure!(FIG7, "weir-fig7", "Figure 7", 512);
figure!(FIG8, "weir-fig8", "Figure 8", 256);
figure!(FIG9, "weir-fig9", "Figure 9", 128);

/// The kinds of misses that figures 7 to 9 show: all but those of requests.
const SHOWN: [Quantity; 3] = [ICM, MTT, MPT];
/// The metric that a quick run does not measure.
const WINDOWED: &str = "windowed_gbps_16k_qps";

fn misses_key(kind: Quantity) -> String {
    format!("{}_miss_plain_over_paced_16k", kind.to_lowercase())
}

/// Returns the misses of plain over those of paced requests.
fn fewer(kind: Quantity) -> Expr<Arm> {
    at(Arm::PLAIN, MOST, kind) / at(Arm::Paced, MOST, kind)
}

fn by_size(size: usize) -> Table<Arm> {
    let mut t = Table::new(Arm::ALL.map(Arm::note).to_vec());
    let port = move |payload: Expr<Arm>| payload * (size as f64 + COUNTED) / size as f64;
    let counted = move |point: &Point<Arm>| port(Expr::At(*point, SENT));
    t.arm().x("queue pairs").value("throughput [Gbit/s]", SENT);
    t.median("throughput as the port counts [Gbit/s]", counted);
    misses_columns(&mut t);
    for (key, arm) in [
        ("paced_gbps_16k_qps", Arm::Paced),
        ("plain_gbps_16k_qps", Arm::PLAIN),
        (WINDOWED, Arm::Windowed),
    ] {
        t.metric(key, port(at(arm, MOST, SENT)));
    }
    for kind in SHOWN {
        t.metric(misses_key(kind), fewer(kind))
            .paper(Claim::Between(5.0, 10.0), "abstract");
    }
    statements(&mut t, size);
    let title = format!("Throughput against queue pairs, SEND {size} B");
    let y = axes("throughput as the port counts [Gbit/s]");
    t.lines("throughput.svg", title, y, counted);
    for (kind, what) in MISSES {
        let file = format!("{}.svg", kind.to_lowercase());
        let title = format!("Misses of {kind} ({what}) against queue pairs, SEND {size} B");
        let y = axes("misses each request");
        t.lines(file, title, y, move |point| Expr::At(*point, kind));
    }
    t
}

/// Adds the statements of the paper's text about messages of that size.
fn statements(t: &mut Table<Arm>, size: usize) {
    let gain = |count| at(Arm::Paced, count, SENT) / at(Arm::PLAIN, count, SENT);
    t.metric("paced_over_plain_16k_qps", gain(MOST));
    let gains = |count, claim| (format!("{count}: times"), gain(count), claim);
    let kept = |arm, count, claim| {
        let kept = at(arm, count, SENT) / Expr::Highest(rates(arm, SENT));
        (format!("{count}: of the highest"), kept, claim)
    };
    let (drop, no_drop) = (Claim::Below(DROP), Claim::Above(DROP));
    let says = "few queue pairs: throughput basically the same as of plain verbs (V-B)";
    let same = Claim::Between(0.95, 1.05);
    t.sentence(says, [8, 64].map(|count| gains(count, same)));
    if size == 512 {
        let stated = Claim::Exactly(97.0);
        t.of("paced_gbps_16k_qps").paper(stated, "abstract");
        let says = "no degradation with pacing up to 16 Ki queue pairs (abstract)";
        t.sentence(says, [kept(Arm::Paced, MOST, no_drop)]);
        let says = "plain verbs decrease significantly (V-B)";
        t.sentence(says, [kept(Arm::PLAIN, MOST, drop)]);
    } else {
        let range = Claim::Between(1.5, 2.0);
        t.of("paced_over_plain_16k_qps").paper(range, "V-B");
        let says = "8 Ki to 16 Ki queue pairs: pacing's throughput decreases, and is 1.5 to 2 times plain verbs' (V-B)";
        let kept = kept(Arm::Paced, MOST, drop);
        t.sentence(says, [gains(8192, range), gains(MOST, range), kept]);
    }
    let says = "TX depth 64, 32 and 16: less at few queue pairs, more with their number, then an abrupt drop (V-B)";
    let depths = [64, 32, 16].into_iter().flat_map(|depth| {
        let rate = |count| at(Arm::Plain(depth), count, SENT);
        let few = rate(8) / at(Arm::PLAIN, 8, SENT);
        let more = Expr::Highest(rates(Arm::Plain(depth), SENT)) / rate(8);
        let doubled = QUEUE_PAIRS
            .windows(2)
            .map(|pair| rate(pair[1]) / rate(pair[0]));
        [
            (
                format!("{depth}: 8 queue pairs, of depth 128"),
                few,
                Claim::Below(DROP),
            ),
            (
                format!("{depth}: the highest over that"),
                more,
                Claim::More(1.0),
            ),
            (
                format!("{depth}: the steepest step to twice the queue pairs, times"),
                Expr::Lowest(doubled.collect()),
                Claim::Below(ABRUPT),
            ),
        ]
    });
    t.sentence(says, depths);
    let says = "plain verbs' ICM misses tend to zero, and grow beyond 2 Ki queue pairs, more slowly beyond 8 Ki (V-B; replacement by chance is calibrated to it)";
    let icm = |count| at(Arm::PLAIN, count, ICM);
    let slower = (icm(MOST) - icm(8192)) / (icm(8192) - icm(4096));
    let few = ("2048:", icm(2048), Claim::Below(MISSING));
    let grows = (
        "growth from 8 Ki to 16 Ki over that from 4 Ki to 8 Ki",
        slower,
        Claim::Between(0.0, 1.0),
    );
    t.sentence(says, [few, grows]);
    let says = "plain verbs' MTT and MPT misses grow rapidly, then tend to a stable value (V-B)";
    let stable = |kind| {
        let over = |count| at(Arm::PLAIN, count, kind) / at(Arm::PLAIN, MOST, kind);
        let few = (
            format!("{kind}: 8 over 16 Ki queue pairs"),
            over(8),
            Claim::Below(0.5),
        );
        [
            few,
            (
                format!("{kind}: 8 Ki over 16 Ki"),
                over(8192),
                Claim::About(1.0),
            ),
        ]
    };
    t.sentence(says, [MTT, MPT].into_iter().flat_map(stable));
    let says = "16 Ki queue pairs: each kind of misses about an order of magnitude fewer with pacing (V-B)";
    let tenth = |kind| (format!("{kind}: times"), fewer(kind), Claim::About(10.0));
    t.sentence(says, SHOWN.map(tenth));
}

fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
    outcome: &mut Outcome,
    size: usize,
) -> Result<Measured<Arm>, RunError> {
    let is_quick = bench.options.quick;
    let counts = if is_quick { QUICK } else { &QUEUE_PAIRS };
    let (warm_requests, run) = extent(is_quick);
    let base_delay = arms::base_delay(bench, t)?;
    t.note(format!(
        "Every arm first posts all requests that may be outstanding, queue pair after queue pair. It waits until \
         {warm_requests} requests of each process have completed, or until all have completed twice, and then for {} \
         µs. Then it is measured. Throughput is counted by the sending RNIC, as in the paper.",
        SETTLES.nanos() / 1000
    ));
    let mut points = grid("", &Arm::ALL, counts);
    let is_compared = |arm| [Arm::PLAIN, Arm::Paced].contains(&arm);
    points.retain(|point| !is_quick || point.x == QUICK_ALL || is_compared(point.arm));
    let sweep = Sweep::in_virtual_time("queue pairs", "");
    let measured = bench.measure(points, sweep, |bench, point, _| {
        let load = VerbLoad {
            work_ns: bench.perftest_ns(),
            warm_requests,
            ..VerbLoad::of(Verb::Send, size)
        };
        sample(&bench.testbed, point, load, base_delay, (SETTLES, run))
    })?;
    if is_quick {
        outcome.skip(WINDOWED, "not measured in a quick run");
    }
    skip_without_misses(&measured, outcome);
    Ok(measured)
}

/// Skips the ratios of misses that do not occur with pacing.
fn skip_without_misses(of: &Measured<Arm>, outcome: &mut Outcome) {
    for kind in SHOWN {
        let misses = |arm| at(arm, MOST, kind).median(of);
        if let (Some(plain), Some(0.0)) = (misses(Arm::PLAIN), misses(Arm::Paced)) {
            let plain = human(plain);
            let why = format!("no misses with pacing, {plain} a request without");
            outcome.skip(misses_key(kind), why);
        }
    }
}

/// Measures one point of figures 7 to 9.
fn sample(
    place: &Testbed<'_>,
    point: &Point<Arm>,
    load: VerbLoad,
    base_delay: Duration,
    times: (Duration, Duration),
) -> Result<Option<Sample>, WorkloadError> {
    let place = point.arm.testbed(place, &[0], base_delay, "")?;
    arms::sample(&place, point.arm.load(load), point.x, times)
}

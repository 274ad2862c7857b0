//! Plans of rates and round trips of message channels over size and pairs, and their measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use super::huge_pages::refusal;
use super::{operation_counts, simulated_notes};
use crate::bench::{Bench, Sweep};
use crate::cpu_affinity::cpus_off;
use crate::error::RunError;
use crate::format::svg::Axis;
use crate::latency::Quantiles;
use crate::outcome::Outcome;
use crate::table::*;
use crate::testbed::{Testbed, private_dir};
use crate::transports::WorkloadError;
use crate::transports::job::{Channel, Job, Report, RingMode, Variant, Workload};

/// The load of one-way messages.
pub(super) const RATES: &str = "rate";
/// The load of round trips, one message at a time.
pub(super) const TRIPS: &str = "round trips";
/// The same loads with both ends of all pairs in threads of one process.
pub(super) const THREAD_RATES: &str = "rate, threads";
pub(super) const THREAD_TRIPS: &str = "round trips, threads";
/// Messages or round trips of the pair that made the fewest, if its time was up before it made all.
const FEWEST: Quantity = "fewest";

/// Most attempts to measure a rate. Each takes longer than the one before.
const TRIES: u32 = 3;
/// Bytes over which a full run measures a rate, in all rounds and pairs together (section V-A).
const VOLUME: u64 = 40_000_000_000;
/// Round trips of the warm-up and of a latency measurement, in all rounds together (section V-A).
const WARM_ROUNDS: u64 = 100_000;
const MEASURED_ROUNDS: u64 = 300_000;
/// Time limits of a repeat of a full run for its bytes and for its round trips. A repeat that reaches its
/// limit has fewer.
const VOLUME_LIMIT: Duration = Duration::from_secs(10);
const ROUNDS_LIMIT: Duration = Duration::from_secs(60);
/// Longest time for which a quick run measures a rate. A fifth of it is the warm-up of a full run's rates.
const QUICK: Duration = Duration::from_millis(700);
/// Longest message, in bytes, for which a quick run makes many round trips.
const SHORT: u64 = 65536;

/// The charts over the message size.
const OVER_SIZE: [(&str, &str, Quantity); 4] = [
    ("rate.svg", "rate [msg/s]", RATE),
    ("bandwidth.svg", "throughput [GB/s]", RATE),
    ("rtt-mean.svg", "mean round trip [µs]", MEAN),
    ("rtt-p999.svg", "99.9th percentile [µs]", P999),
];

/// The arms, sizes and pairs that are measured for a figure, and remarks on the results.
#[derive(Default)]
pub(super) struct SweepPlan {
    /// Arms whose rates are measured.
    pub rates: Vec<Channel>,
    /// Arms whose round trips are measured.
    pub trips: Vec<Channel>,
    /// Arms whose rates and round trips are also measured with all ends in threads of one process.
    pub threads: Vec<Channel>,
    /// Bytes of a message: for a full run, and for a quick one.
    pub sizes: [&'static [u64]; 2],
    /// Pairs at the same time: for a full run, and for a quick one. Empty means one pair.
    pub pairs: [&'static [u64]; 2],
    /// Arms whose requests and completions are counted, and the sizes for which they are.
    pub counted: (Vec<Channel>, &'static [u64]),
    /// Remark on results of software RNICs.
    pub soft: &'static str,
    /// Remark on why results of simulated machines differ from the paper's.
    pub simulated: &'static str,
}

/// Returns messages per second of `channel`.
pub(super) const fn rate(channel: Channel, size: u64) -> Expr<Channel> {
    Expr::At(Point::of(RATES, channel, size), RATE)
}

/// Returns gigabytes per second of `channel`.
pub(super) fn bandwidth(channel: Channel, size: u64) -> Expr<Channel> {
    rate(channel, size) * (size as f64 * 1e-9)
}

/// Returns a quantity of the round trips of `channel`.
pub(super) const fn trip(channel: Channel, size: u64, quantity: Quantity) -> Expr<Channel> {
    Expr::At(Point::of(TRIPS, channel, size), quantity)
}

pub(super) fn is_rate(point: &Point<Channel>) -> bool {
    [RATES, THREAD_RATES].contains(&point.load)
}

fn has_threads(point: &Point<Channel>) -> bool {
    [THREAD_RATES, THREAD_TRIPS].contains(&point.load)
}

/// Returns the name of a point's row and line.
fn line(point: &Point<Channel>) -> String {
    let threads = if has_threads(point) { "-threads" } else { "" };
    point.arm.name() + threads
}

impl SweepPlan {
    /// Makes a table of the arms with the columns of every sweep, and charts over the size if there are many
    /// sizes.
    pub(super) fn table(&self) -> Table<Channel> {
        let [rates, trips] = [&self.rates, &self.trips];
        let arms = if rates.is_empty() { trips } else { rates };
        let mut t = Table::new(arms.iter().map(|channel| channel.note()).collect());
        let at = |quantity: Quantity| move |point: &Point<Channel>| Expr::At(*point, quantity);
        t.cell("arm", |point| line(point).as_str().into());
        t.x("size [B]").n("pairs").spread("rate [msg/s]", at(RATE));
        t.median("bandwidth [GB/s]", |point| {
            Expr::At(*point, RATE) * point.x as f64 / 1e9
        });
        for (name, quantity) in [("mean", MEAN), ("p50", P50), ("p99", P99), ("p99.9", P999)] {
            t.median(format!("round trip {name} [ns]"), at(quantity));
        }
        t.repeats(|point| Expr::At(*point, if is_rate(point) { RATE } else { MEAN }));
        for (file, y, quantity) in OVER_SIZE {
            let arms = if quantity == RATE { rates } else { trips };
            if self.sizes[0].len() > 2 && !arms.is_empty() {
                chart(&mut t, file, y, quantity, false);
            }
        }
        t
    }

    /// Measures all points, and adds the remarks to the table.
    pub(super) fn measure(
        &self,
        bench: &mut Bench<'_>,
        t: &mut Table<Channel>,
        outcome: &mut Outcome,
    ) -> Result<Measured<Channel>, RunError> {
        let (mut points, mut refused) = (self.points(bench), BTreeMap::new());
        points.retain(|point| match refusal(bench, point) {
            None => true,
            Some(why) => {
                refused.entry(point.arm.name()).or_insert(why);
                false
            }
        });
        let (mut counted, sizes) = self.counted.clone();
        counted.retain(|arm| points.iter().any(|point| point.arm == *arm));
        t.arms
            .retain(|arm| points.iter().any(|point| point.arm.name() == arm.name));
        t.notes.extend(amounts_notes(bench, &points));
        let sweep = Sweep {
            share: 0.8,
            n: "pairs",
            ..Sweep::over("B", Duration::from_millis(45), QUICK)
        };
        let mut measured = bench.measure(points, sweep, sample)?.sorted();
        for (arm, why) in refused {
            measured.failures.entry(arm).or_insert(why);
        }
        t.notes.extend(cut_short(&measured));
        if !counted.is_empty() {
            operation_counts::record(bench, outcome, &counted, sizes)?;
        }
        if bench.options.device.kind() == "soft" && !self.soft.is_empty() {
            t.note(self.soft);
        }
        t.notes.extend(simulated_notes(bench, self.simulated));
        Ok(measured)
    }

    fn points(&self, bench: &Bench<'_>) -> Vec<Point<Channel>> {
        let of = |values: [&'static [u64]; 2]| values[usize::from(bench.options.quick)];
        let mut loads = vec![(RATES, &self.rates), (TRIPS, &self.trips)];
        // Actors on simulated machines have no processes, so threads would make no difference.
        if !bench.testbed.is_simulated() {
            loads.extend([THREAD_RATES, THREAD_TRIPS].map(|load| (load, &self.threads)));
        }
        let pairs = match of(self.pairs) {
            [] => &[1],
            pairs => pairs,
        };
        let mut points = Vec::new();
        for pairs in pairs {
            for (load, arms) in &loads {
                let grid = grid(load, arms, of(self.sizes));
                points.extend(grid.into_iter().map(|point| point.with(*pairs)));
            }
        }
        points
    }
}

/// Adds a chart of `quantity`, in the unit at the end of `y`, with a line for each arm that it is measured
/// for. The x axis is the number of pairs or else the size.
pub(super) fn chart(
    t: &mut Table<Channel>,
    file: &str,
    y: &'static str,
    quantity: Quantity,
    over_pairs: bool,
) {
    let (x, axes) = match (over_pairs, quantity) {
        (false, _) => ("size", (Axis::log("message size [B]"), Axis::log(y))),
        (true, RATE) => ("pairs", (Axis::linear("pairs"), Axis::linear(y))),
        (true, _) => ("pairs", (Axis::linear("pairs"), Axis::log(y))),
    };
    let title = format!("{} over {x}", y.split(" [").next().unwrap_or(y));
    t.chart(file, title, axes, move |point| {
        let x = if over_pairs { point.n } else { point.x };
        let scale = match y.rsplit('[').next()? {
            "GB/s]" => point.x as f64 * 1e-9,
            "Mmsg/s]" => 1e-6,
            "µs]" => 1e-3,
            _ => 1.0,
        };
        let y = Expr::At(*point, quantity) * scale;
        (is_rate(point) == (quantity == RATE)).then(|| (line(point), x as f64, y))
    });
}

/// Makes a note of the points that ended because their time was up; `None` if there are none.
fn cut_short(measured: &Measured<Channel>) -> Option<String> {
    let points = measured.points().filter_map(|point| {
        let fewest = Expr::At(point, FEWEST).spread(measured)?.low;
        let (name, size, pairs) = (line(&point), point.x, point.n);
        Some(format!("{name} {size} B × {pairs}: {fewest}"))
    });
    let points: Vec<String> = points.collect();
    (!points.is_empty()).then(|| {
        let points = points.join("; ");
        format!("Points that ended because their time was up, with their pairs and the fewest messages or round \
                 trips of one pair: {points}.")
    })
}

/// Returns the testbed of a point: actors in threads of this process, or on another NUMA node, or the bench's
/// own.
fn place<'a>(bench: &Bench<'a>, point: &Point<Channel>) -> Testbed<'a> {
    let mut place = match has_threads(point) {
        true => bench.testbed.in_threads(),
        false => bench.testbed.clone(),
    };
    if let Channel::Ring(RingMode::Paper(Variant::WrongThreads(node))) = point.arm {
        place.cpus = cpus_off(node).unwrap_or(place.cpus);
    }
    place
}

/// Measures one point once; returns `None` if the time was too short.
fn sample(
    bench: &Bench<'_>,
    point: &Point<Channel>,
    run: Duration,
) -> Result<Option<Sample>, WorkloadError> {
    let (dir, place) = (private_dir()?, place(bench, point));
    let (simulated, quick) = (place.is_simulated(), bench.options.quick);
    let workload = amount(bench, point);
    let mut run = match is_rate(point) {
        true if simulated => virtual_time(quick, point.x),
        true if !quick => VOLUME_LIMIT,
        false if !quick || simulated => ROUNDS_LIMIT,
        _ => run,
    };
    for _ in 0..TRIES {
        let mut job = Job::new(point.arm, workload, point.x, run, dir.path());
        if let Workload::Volume { .. } = workload {
            job.warm_ns = QUICK.as_nanos() as u64 / 5;
        }
        job.yields = place.is_crowded(point.n as usize);
        job.together = point.n > 1;
        let reports = place.run(job, point.n as usize)?;
        if let Some(sample) = gathered(workload, &reports) {
            return Ok(Some(sample));
        }
        // On a busy machine the scheduler may keep an actor off its processor for the whole time.
        run *= 4;
    }
    Ok(None)
}

/// Returns the virtual time for which a rate is measured: the time of ten thousand messages at 100 Gbit/s, so
/// that one batch more or less does not matter, and at least 5 ms. A quick run takes the time of a thousand
/// messages, and at least a third of that minimum.
fn virtual_time(quick: bool, size: u64) -> Duration {
    let (of_messages, least) = (Duration::from_nanos(800 * size), Duration::from_millis(5));
    match quick {
        true => (of_messages / 10).max(least / 3),
        false => of_messages.max(least),
    }
}

/// Combines the reports of all pairs; returns `None` if a pair has nothing to report. The rate is that of all
/// messages, from the start of the first pair to the end of the last. Round trips are those of the slowest
/// pair.
fn gathered(workload: Workload, reports: &[[Report; 2]]) -> Option<Sample> {
    let (mut messages, mut began, mut ended) = (0, u64::MAX, 0);
    let (mut fewest, mut slowest) = (u64::MAX, Quantiles::default());
    for pair in reports {
        let count = pair.iter().find_map(|report| match *report {
            Report::Rate {
                messages: count,
                nanos,
                began_ns,
            } if count > 0 && nanos > 0 => {
                began = began.min(began_ns);
                ended = ended.max(began_ns.saturating_add(nanos));
                Some(count)
            }
            Report::Latency(trips) if trips.count > 0 => {
                if trips.p999_ns >= slowest.p999_ns {
                    slowest = trips;
                }
                Some(trips.count)
            }
            _ => None,
        })?;
        messages += count;
        fewest = fewest.min(count);
    }
    let (sample, wanted) = match workload {
        Workload::Rounds { measured, .. } => (slowest.into(), measured),
        _ => {
            let rate = messages as f64 * 1e9 / (ended - began) as f64;
            // A receiver starts to count a little later than its sender.
            let wanted = workload.volume().map_or(0, |volume| volume / 20 * 19);
            (Sample::of([(RATE, rate)]), wanted)
        }
    };
    Some(match fewest < wanted {
        true => sample.with(FEWEST, fewest as f64),
        false => sample,
    })
}

/// Returns the workload of a point: the paper's bytes or round trips, divided among the rounds and the pairs.
/// A quick run makes fewer, and so does virtual time, where nothing disturbs them.
fn amount(bench: &Bench<'_>, point: &Point<Channel>) -> Workload {
    let (simulated, quick) = (bench.testbed.is_simulated(), bench.options.quick);
    let parts = bench.rounds() as u64;
    if is_rate(point) {
        let messages = VOLUME.div_ceil(parts * point.n * point.x);
        return match simulated || quick {
            true => Workload::Rate,
            false => Workload::Volume { messages },
        };
    }
    let less = match (simulated, quick, point.x > SHORT) {
        (false, false, _) => 1,
        (false, true, false) => 50,
        (false, true, true) => 1000,
        (true, false, false) => 10,
        (true, false, true) => 100,
        (true, true, false) => 200,
        (true, true, true) => 1000,
    };
    Workload::Rounds {
        warm: WARM_ROUNDS.div_ceil(parts) / less,
        measured: MEASURED_ROUNDS.div_ceil(parts) / less,
    }
}

/// Describes how much is measured.
fn amounts_notes(bench: &Bench<'_>, points: &[Point<Channel>]) -> Vec<String> {
    const RATE: &str = "A full run on a machine measures a rate over the paper's 40 GB, divided among the repeats \
        and the pairs, or for 10 s a repeat. A quick run measures a rate for a fixed time. So does any run in \
        virtual time, where all laps of a ring are alike.";
    const TAIL: &str = " In virtual time nothing disturbs the round trips. The 99.9th percentile shows only what the \
        design itself does now and then: pushing heads and posting receives.";
    let mut notes = Vec::new();
    if points.iter().any(is_rate) {
        notes.push(RATE.to_owned());
    }
    if let Some(point) = points.iter().find(|point| !is_rate(point)) {
        let of = |x| match amount(bench, &Point { x, ..*point }) {
            Workload::Rounds { warm, measured } => format!("{measured} after {warm}"),
            _ => String::new(),
        };
        let (short, long) = (of(SHORT), of(SHORT + 1));
        let tail = if bench.testbed.is_simulated() {
            TAIL
        } else {
            ""
        };
        notes.push(format!(
            "Round trips measured in a repeat after those of its warm-up: {short}; for messages over {SHORT} B, \
             {long}; fewer where the time is up.{tail}"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::L5;

    #[test]
    fn pairs_add_up_over_the_time_of_all_and_the_slowest_counts() {
        let rate = |messages, began_ns| Report::Rate {
            messages,
            nanos: 1_000_000_000,
            began_ns,
        };
        let trip = |count, p999_ns| {
            Report::Latency(Quantiles {
                count,
                p999_ns,
                ..Quantiles::default()
            })
        };
        let rounds = Workload::Rounds {
            warm: 0,
            measured: 3,
        };
        let (once, volume) = (Workload::Rate, Workload::Volume { messages: 40 });
        let late = 1_000_000_005;
        // The expected value, and the fewest messages of a pair if its time was up.
        for (case, workload, pairs, found, fewest) in [
            ("at once", once, &[rate(10, 5), rate(30, 5)][..], 40.0, ""),
            ("late 1", once, &[rate(10, late), rate(30, 5)], 20.0, ""),
            ("late 2", once, &[rate(10, 5), rate(30, late)], 20.0, ""),
            ("without", once, &[rate(10, 5), rate(0, 5)], 0.0, ""),
            ("trips", rounds, &[trip(3, 9.0)], 9.0, ""),
            ("cut", rounds, &[trip(3, 9.0), trip(1, 2.0)], 9.0, "1."),
            ("all", volume, &[rate(39, 5)], 39.0, ""),
            ("cut", volume, &[rate(40, 5), rate(37, 5)], 77.0, "37."),
        ] {
            let pairs = pairs.iter().map(|pair| [Report::None, pair.clone()]);
            let sample = gathered(workload, &pairs.collect::<Vec<_>>());
            let quantity = if workload == rounds { P999 } else { RATE };
            let value = sample.as_ref().map_or(0.0, |sample| sample.get(quantity));
            assert_eq!(value, found, "{case}");
            let point = Point::of(TRIPS, L5, 64);
            let measured = Measured::new([(point, vec![None, sample])], Default::default());
            let note = cut_short(&measured).unwrap_or_default();
            assert_eq!(note.is_empty(), fewest.is_empty(), "{case}");
            assert!(note.ends_with(fewest), "{case}: {note}");
        }
    }
}

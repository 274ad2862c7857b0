//! Rates and round trips of message channels, over size and pairs.

use std::time::Duration;

use super::SLOTS;
use crate::bench::{Bench, Sweep};
use crate::error::RunError;
use crate::format::svg::Axis;
use crate::latency::Quantiles;
use crate::outcome::ArmNote;
use crate::table::{Expr, MEAN, Measured, P50, P99, P999, Point, Quantity, RATE, Sample, Table};
use crate::transports::ArmError;
use crate::transports::job::{Channel, Job, Report, Workload};

/// Messages one way.
pub(super) const RATES: &str = "rate";
/// Messages there and back, one at a time.
pub(super) const TRIPS: &str = "round trips";
/// Round trips of the pair that made the fewest, where time cut one short.
const FEWEST: Quantity = "fewest";

/// How often a rate is tried, each time for longer.
const TRIES: u32 = 3;
/// Round trips before and in a figure of latency, over all rounds (section V-A).
const WARM_ROUNDS: u64 = 100_000;
const MEASURED_ROUNDS: u64 = 300_000;
/// Longest that a part of a full run takes over its round trips, fewer though they be then.
const ROUNDS_LIMIT: Duration = Duration::from_secs(60);
/// Longest message, in bytes, of which a quick run makes many round trips.
const SHORT: u64 = 65536;

/// Messages per second of `channel`.
pub(super) const fn rate(channel: Channel, size: u64) -> Expr<Channel> {
    Expr::At(Point::of(RATES, channel, size), RATE)
}

/// A quantity of the round trips of `channel`.
pub(super) const fn trip(channel: Channel, size: u64, quantity: Quantity) -> Expr<Channel> {
    Expr::At(Point::of(TRIPS, channel, size), quantity)
}

/// A table of these arms with the columns of every sweep.
pub(super) fn table(arms: &[Channel]) -> Table<Channel> {
    let notes: Vec<ArmNote> = arms.iter().map(|channel| channel.note()).collect();
    let mut table = Table::new(notes);
    let at = |quantity: Quantity| move |point: &Point<Channel>| Expr::At(*point, quantity);
    table.arm().x("size [B]");
    table.cell("pairs", |point| (point.n as f64).into());
    table.spread("rate [msg/s]", at(RATE));
    table.median("bandwidth [GB/s]", |point| {
        Expr::At(*point, RATE) * point.x as f64 / 1e9
    });
    for (name, quantity) in [("mean", MEAN), ("p50", P50), ("p99", P99), ("p99.9", P999)] {
        table.median(format!("round trip {name} [ns]"), at(quantity));
    }
    table.repeats(|point| match point.load {
        RATES => Expr::At(*point, RATE),
        _ => Expr::At(*point, MEAN),
    });
    table
}

/// A chart of `quantity` over size, a line for each arm that has the load.
pub(super) fn chart(
    table: &mut Table<Channel>,
    (file, title, y): (&'static str, &str, &str),
    load: &'static str,
    of: fn(&Point<Channel>) -> Expr<Channel>,
) {
    let axes = (Axis::log("message size [B]"), Axis::log(y));
    table.chart(file, title, axes, move |point| {
        (point.load == load).then(|| (point.arm.name(), point.x as f64, of(point)))
    });
}

/// Measures `points`, with `share` of a quick run's budget, or each rate for `full`.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    table: &mut Table<Channel>,
    points: Vec<Point<Channel>>,
    share: f64,
    full: Duration,
) -> Result<Measured<Channel>, RunError> {
    let trips = points.iter().any(|point| point.load == TRIPS);
    table.notes.extend(rounds_note(bench).filter(|_| trips));
    let sweep = Sweep {
        share,
        n: "pairs",
        ..Sweep::over("B", Duration::from_millis(45), full)
    };
    let measured = bench.measure(points, sweep, sample)?.sorted();
    table.notes.extend(cut_short(&measured));
    Ok(measured)
}

/// What is to be said of round trips that time cut short.
fn cut_short(measured: &Measured<Channel>) -> Option<String> {
    let points = measured.points().filter_map(|point| {
        let fewest = Expr::At(point, FEWEST).spread(measured)?.low;
        let (name, size) = (point.arm.name(), point.x);
        let pairs = if point.n == 1 {
            String::new()
        } else {
            format!(", {} pairs", point.n)
        };
        Some(format!("{name} {size} B{pairs}: {fewest}"))
    });
    let points: Vec<String> = points.collect();
    (!points.is_empty()).then(|| {
        let points = points.join("; ");
        format!("Round trips that ended because their time was up, with the fewest of a repeat: {points}.")
    })
}

/// What both parts of a pair are told.
pub(super) fn job(
    channel: Channel,
    workload: Workload,
    size: u64,
    run: Duration,
    dir: &tempfile::TempDir,
) -> Job {
    let run_ns = run.as_nanos() as u64;
    Job {
        channel,
        workload,
        size: size as usize,
        slots: SLOTS,
        touch: false,
        run_ns: run_ns / 5 * 4,
        warm_ns: run_ns / 5,
        buffer: None,
        yields: false,
        counted: false,
        together: false,
        dir: dir.path().to_owned(),
    }
}

/// A directory for one measurement.
pub(super) fn private() -> Result<tempfile::TempDir, ArmError> {
    let dir = tempfile::Builder::new().prefix("headworks-").tempdir();
    dir.map_err(|e| ArmError::at("private directory", e))
}

/// Measures one point once; nothing if the time was too short.
fn sample(
    bench: &Bench<'_>,
    point: &Point<Channel>,
    run: Duration,
) -> Result<Option<Sample>, ArmError> {
    let dir = private()?;
    let is_rate = point.load == RATES;
    let workload = match is_rate {
        true => Workload::Rate,
        false => rounds(bench, point.x),
    };
    let mut run = match is_rate {
        true if bench.place.is_simulated() => simulated(bench.options.quick, point.x),
        false if !bench.options.quick || bench.place.is_simulated() => ROUNDS_LIMIT,
        _ => run,
    };
    for _ in 0..TRIES {
        let mut job = job(point.arm, workload, point.x, run, &dir);
        job.yields = bench.place.is_crowded(point.n as usize);
        job.together = point.n > 1;
        let reports = bench.place.run(job.clone(), point.n as usize)?;
        if let Some(sample) = gathered(workload, &reports) {
            return Ok(Some(sample));
        }
        // On a busy machine a part may have slept all that time.
        run *= 4;
    }
    Ok(None)
}

/// How long a rate is measured in virtual time: as long as ten thousand messages take at 100 Gbit/s, so that a
/// batch more or less is no matter, but for 5 ms at least; a quick run as long as a thousand take, and for a third of
/// the least.
fn simulated(quick: bool, size: u64) -> Duration {
    let (of_messages, least) = (Duration::from_nanos(800 * size), Duration::from_millis(5));
    match quick {
        true => (of_messages / 10).max(least / 3),
        false => of_messages.max(least),
    }
}

/// What all pairs reported, together; nothing where one has nothing to report. The rate is that of all messages, from
/// the first pair that began to the last that ended; round trips are those of the slowest pair.
fn gathered(workload: Workload, reports: &[[Report; 2]]) -> Option<Sample> {
    let Workload::Rounds { measured, .. } = workload else {
        let (mut messages, mut began, mut ended) = (0, u64::MAX, 0);
        for pair in reports {
            let (count, from, nanos) = pair.iter().find_map(|report| match *report {
                Report::Rate {
                    messages,
                    nanos,
                    began_ns,
                } if messages > 0 && nanos > 0 => Some((messages, began_ns, nanos)),
                _ => None,
            })?;
            messages += count;
            began = began.min(from);
            ended = ended.max(from.saturating_add(nanos));
        }
        let per_second = messages as f64 * 1e9 / (ended - began) as f64;
        return Some(Sample::of([(RATE, per_second)]));
    };
    let (mut slowest, mut fewest) = (Quantiles::default(), measured);
    for pair in reports {
        let trips = pair.iter().find_map(|report| match report {
            Report::Latency(quantiles) if quantiles.count > 0 => Some(*quantiles),
            _ => None,
        })?;
        fewest = fewest.min(trips.count);
        if trips.p999_ns >= slowest.p999_ns {
            slowest = trips;
        }
    }
    let quantities = [
        (MEAN, slowest.mean_ns),
        (P50, slowest.p50_ns),
        (P99, slowest.p99_ns),
        (P999, slowest.p999_ns),
    ];
    let cut = (fewest < measured).then_some((FEWEST, fewest as f64));
    Some(Sample::of(quantities.into_iter().chain(cut)))
}

/// The paper's numbers of round trips, divided among the rounds; fewer in a quick run, and where time is
/// virtual and nothing disturbs them.
fn rounds(bench: &Bench<'_>, size: u64) -> Workload {
    let parts = bench.rounds() as u64;
    let less = match (
        bench.place.is_simulated(),
        bench.options.quick,
        size > SHORT,
    ) {
        (false, false, _) => 1,
        (false, true, false) => 50,
        (false, true, true) => 1000,
        (true, false, false) => 10,
        (true, false, true) => 100,
        (true, true, false) => 200,
        (true, true, true) => 1000,
    };
    let (warm, measured) = (WARM_ROUNDS.div_ceil(parts), MEASURED_ROUNDS.div_ceil(parts));
    Workload::Rounds {
        warm: warm / less,
        measured: measured / less,
    }
}

/// How many round trips are made where those are not the paper's, in words.
fn rounds_note(bench: &Bench<'_>) -> Option<String> {
    let simulated = bench.place.is_simulated();
    let which = match (simulated, bench.options.quick) {
        (false, false) => return None,
        (false, true) => "A quick run makes",
        (true, false) => "In virtual time a run makes",
        (true, true) => "In virtual time a quick run makes",
    };
    let of = |size| match rounds(bench, size) {
        Workload::Rounds { warm, measured } => (warm, measured),
        _ => (0, 0),
    };
    let ((warm, measured), (warm_long, measured_long)) = (of(SHORT), of(SHORT + 1));
    let mut note = format!(
        "{which} {measured} round trips a repeat, after {warm}, of messages over {SHORT} B {measured_long} after \
         {warm_long}, and fewer where its time is up."
    );
    note += match simulated {
        true => {
            " Nothing disturbs them there: the 99.9th percentile is of what the design itself does now and \
             then, heads and receives."
        }
        false => {
            " So few have no 99.9th percentile worth the name: of the longer messages it is the slowest."
        }
    };
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::L5;

    #[test]
    fn pairs_add_up_over_the_time_of_all_and_the_slowest_counts() {
        let rate = |messages, began_ns| {
            let nanos = 1_000_000_000;
            [
                Report::None,
                Report::Rate {
                    messages,
                    nanos,
                    began_ns,
                },
            ]
        };
        let late = 1_000_000_005;
        for (case, pairs, per_second) in [
            ("at the same time", [rate(10, 5), rate(30, 5)], Some(40.0)),
            ("the first late", [rate(10, late), rate(30, 5)], Some(20.0)),
            ("the second late", [rate(10, 5), rate(30, late)], Some(20.0)),
            ("one without a message", [rate(10, 5), rate(0, 5)], None),
        ] {
            let sample = gathered(Workload::Rate, &pairs);
            assert_eq!(sample.map(|sample| sample.get(RATE)), per_second, "{case}");
        }
        let trip = |count, p999_ns| {
            let quantiles = Quantiles {
                count,
                p999_ns,
                ..Quantiles::default()
            };
            [Report::Latency(quantiles), Report::None]
        };
        let rounds = Workload::Rounds {
            warm: 0,
            measured: 3,
        };
        let sample = gathered(rounds, &[trip(2, 5.0), trip(3, 9.0), trip(1, 2.0)]).unwrap();
        assert_eq!((sample.get(P999), sample.get(FEWEST)), (9.0, 1.0));
        let point = Point::of(TRIPS, L5, 64);
        let measured = Measured::new([(point, vec![None, Some(sample)])], Default::default());
        assert!(cut_short(&measured).unwrap().contains("l5 64 B: 1."));
        let whole = gathered(rounds, &[trip(3, 9.0)]);
        let measured = Measured::new([(point, vec![whole])], Default::default());
        assert_eq!(cut_short(&measured), None);
    }
}

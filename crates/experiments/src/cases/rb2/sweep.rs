//! Measuring arms over message sizes, in turns, and what is drawn and written from that.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bench::Bench;
use crate::latency::Quantiles;
use crate::outcome::{Grid, Outcome};
use crate::report::csv::{Cell, Table};
use crate::report::human;
use crate::report::svg::Series;
use crate::runner::RunError;
use crate::stats::{Spread, paired_ratio};
use crate::transports::ArmError;
use crate::transports::job::{Channel, Job, Report, Workload};

use super::SLOTS;

/// A pair of processes takes about so long to start, meet and end.
const OVERHEAD: Duration = Duration::from_millis(45);
/// How often a rate is tried, each time for longer.
const TRIES: u32 = 3;
/// Round trips before and in a figure of latency, over all rounds (section V-A).
const WARM_ROUNDS: u64 = 100_000;
const MEASURED_ROUNDS: u64 = 300_000;
/// Longest that a part of a full run takes over its round trips, fewer though they be then.
const ROUNDS_LIMIT: Duration = Duration::from_secs(60);
/// A quick run makes that part of the round trips, and of those of messages over [`SHORT`].
const QUICK_PART: u64 = 50;
const QUICK_PART_LONG: u64 = 1000;
/// In virtual time one does of the shorter ones, and a tenth of that of the longer ones.
const SIMULATED_PART: u64 = 10;
/// Longest message, in bytes, of which a quick run makes many round trips.
const SHORT: usize = 65536;

/// What is measured at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Messages per second, one way.
    Rate,
    /// The time of round trips.
    RoundTrip,
}

/// One point of one arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) what: What,
    /// Bytes of a message.
    pub(super) size: usize,
    /// Pairs of processes that do it at once.
    pub(super) pairs: usize,
    pub(super) channel: Channel,
}

impl Point {
    /// Of one pair.
    pub(super) const fn new(what: What, channel: Channel, size: usize) -> Self {
        Self {
            what,
            size,
            pairs: 1,
            channel,
        }
    }

    /// It in words, which no other point has.
    fn words(&self) -> String {
        let what = match self.what {
            What::Rate => "rate",
            What::RoundTrip => "round trips",
        };
        let pairs = match self.pairs {
            1 => String::new(),
            pairs => format!(", {pairs} pairs"),
        };
        format!("{} {} B{pairs}, {what}", self.channel.name(), self.size)
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(super) struct Sample {
    /// Messages per second of all pairs together.
    pub(super) per_second: f64,
    /// Round trips; of several pairs the slowest's.
    pub(super) round_trip: Quantiles,
    /// Round trips that a pair lacks because its time was up.
    pub(super) short_of: u64,
    /// Round trips of the pair that made the fewest.
    pub(super) fewest: u64,
}

/// All points with their samples, one per round, and why arms could not be measured.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) samples: BTreeMap<Point, Vec<Option<Sample>>>,
    pub(super) failures: BTreeMap<Channel, String>,
    /// What there is to say of the round trips.
    pub(super) rounds_note: Option<String>,
}

impl Sweep {
    /// Measures `points`, with `share` of what is left of a quick run's budget, or each rate for
    /// `full`.
    pub(super) fn measure(
        bench: &mut Bench<'_>,
        points: Vec<Point>,
        share: f64,
        full: Duration,
    ) -> Result<Self, RunError> {
        let run = bench.time_per_point(points.len(), share, OVERHEAD, full);
        let trips = points.iter().any(|point| point.what == What::RoundTrip);
        let rounds_note = rounds_note(bench).filter(|_| trips);
        let rounds = bench.alternate_arms(
            &points,
            |point| point.channel,
            Point::words,
            |bench, point| sample(bench, *point, bench.hurried(run)),
        )?;
        Ok(Self {
            samples: points.into_iter().zip(rounds.samples).collect(),
            failures: rounds.failures,
            rounds_note,
        })
    }

    /// How many rounds there were.
    pub(super) fn rounds(&self) -> usize {
        self.samples.values().map(Vec::len).max().unwrap_or(0)
    }

    /// A figure of each round, `NaN` where there is none, so that rounds stay aligned.
    pub(super) fn numbers(&self, point: Point, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let samples = self.samples.get(&point).map(Vec::as_slice);
        let samples = samples.unwrap_or_default().iter();
        samples
            .map(|sample| sample.as_ref().map_or(f64::NAN, &of))
            .collect()
    }

    /// The figure over all rounds.
    pub(super) fn spread(&self, point: Point, of: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(&self.numbers(point, of))
    }

    /// One point's figure over another's, round by round.
    pub(super) fn ratio(
        &self,
        ours: Point,
        theirs: Point,
        of: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        paired_ratio(&self.numbers(ours, &of), &self.numbers(theirs, &of))
    }

    /// Why a point has no figure.
    pub(super) fn why(&self, point: Point) -> String {
        let name = point.channel.name();
        let none = || format!("no round of {name} at {} B gave a figure", point.size);
        self.failures
            .get(&point.channel)
            .cloned()
            .unwrap_or_else(none)
    }

    /// Lines over the size, one an arm; `scale` sees the size.
    pub(super) fn lines(
        &self,
        channels: &[Channel],
        what: What,
        of: impl Fn(&Sample, usize) -> f64,
    ) -> Vec<Series> {
        self.series(channels, what, |point| point.size as f64, of)
    }

    /// Lines over what `x` says of a point.
    pub(super) fn series(
        &self,
        channels: &[Channel],
        what: What,
        x: impl Fn(&Point) -> f64,
        of: impl Fn(&Sample, usize) -> f64,
    ) -> Vec<Series> {
        let line = |channel: &Channel| {
            let points = self
                .samples
                .keys()
                .filter(|point| (point.channel, point.what) == (*channel, what));
            let points = points.filter_map(|&point| {
                let spread = self.spread(point, |sample| of(sample, point.size))?;
                Some((x(&point), spread.median))
            });
            Series {
                name: channel.name(),
                points: points.collect(),
            }
        };
        let lines = channels.iter().map(line);
        lines.filter(|series| !series.points.is_empty()).collect()
    }

    /// `points.csv`, the tables of the report and what failed.
    pub(super) fn record(&self, outcome: &mut Outcome) {
        outcome.repeats = self.rounds();
        let mut table = Table::new(&[
            "arm",
            "size [B]",
            "pairs",
            "rate [msg/s]",
            "rate low [msg/s]",
            "rate high [msg/s]",
            "bandwidth [GB/s]",
            "round trip mean [ns]",
            "round trip p50 [ns]",
            "round trip p99 [ns]",
            "round trip p99.9 [ns]",
            "repeats",
        ]);
        let grid = |title: &str, header: &[&str]| Grid {
            title: title.into(),
            header: header.iter().map(|&name| name.to_owned()).collect(),
            rows: Vec::new(),
        };
        let mut rates = grid(
            "Messages per second: median (lowest – highest repeat)",
            &["arm", "size [B]", "pairs", "rate", "GB/s"],
        );
        let mut trips = grid(
            "Round trip [ns]: median over repeats (lowest – highest)",
            &["arm", "size [B]", "pairs", "mean", "p99.9"],
        );
        for &point in self.samples.keys() {
            let mut row: Vec<Cell> = vec![
                point.channel.name().as_str().into(),
                (point.size as f64).into(),
                (point.pairs as f64).into(),
            ];
            let words = [
                point.channel.name(),
                point.size.to_string(),
                point.pairs.to_string(),
            ];
            let repeats = match point.what {
                What::Rate => {
                    let rate = self.spread(point, |sample| sample.per_second);
                    let gb = rate.map(|rate| rate.median * point.size as f64 / 1e9);
                    row.extend([
                        rate.map(|rate| rate.median).into(),
                        rate.map(|rate| rate.low).into(),
                        rate.map(|rate| rate.high).into(),
                        gb.into(),
                    ]);
                    let gb = gb.map_or_else(|| "–".into(), human);
                    rates.rows.push([&words[..], &[text(rate), gb]].concat());
                    rate
                }
                What::RoundTrip => {
                    row.resize(7, Cell::Empty);
                    let of = |of: fn(&Quantiles) -> f64| {
                        self.spread(point, |sample| of(&sample.round_trip))
                    };
                    let mean = of(|q| q.mean_ns);
                    let tail = of(|q| q.p999_ns);
                    let others = [mean, of(|q| q.p50_ns), of(|q| q.p99_ns), tail];
                    row.extend(others.map(|s| Cell::from(s.map(|s| s.median))));
                    trips
                        .rows
                        .push([&words[..], &[text(mean), text(tail)]].concat());
                    mean
                }
            };
            row.resize(11, Cell::Empty);
            row.push(repeats.map(|s| s.repeats as f64).into());
            table.push(row);
        }
        outcome.points = table;
        let grids = [rates, trips];
        let grids = grids.into_iter().filter(|grid| !grid.rows.is_empty());
        outcome.grids.extend(grids);
        outcome.notes.extend(self.rounds_note.clone());
        outcome.notes.extend(self.cut_short());
        for (channel, why) in &self.failures {
            outcome.notes.push(format!(
                "{} was not measured, or not in every round: {why}",
                channel.name()
            ));
        }
    }

    /// What is to be said of round trips that time cut short.
    fn cut_short(&self) -> Option<String> {
        let points = self.samples.iter().filter_map(|(point, samples)| {
            let fewest = samples.iter().flatten().filter(|s| s.short_of > 0);
            let fewest = fewest.map(|s| s.fewest).min()?;
            let (name, size, pairs) = (point.channel.name(), point.size, point.pairs);
            Some(match pairs {
                1 => format!("{name} {size} B: {fewest}"),
                _ => format!("{name} {size} B, {pairs} pairs: {fewest}"),
            })
        });
        let points: Vec<String> = points.collect();
        (!points.is_empty()).then(|| {
            let points = points.join("; ");
            format!("Round trips that ended because their time was up, with the fewest of a repeat: {points}.")
        })
    }
}

/// `median (low – high)`.
fn text(value: Option<Spread>) -> String {
    value.map_or_else(
        || "–".to_owned(),
        |s| format!("{} ({} – {})", human(s.median), human(s.low), human(s.high)),
    )
}

/// What both parts of a pair are told.
pub(super) fn job(
    channel: Channel,
    workload: Workload,
    size: usize,
    run: Duration,
    dir: &tempfile::TempDir,
) -> Job {
    let run_ns = run.as_nanos() as u64;
    Job {
        channel,
        workload,
        size,
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
fn sample(bench: &Bench<'_>, point: Point, run: Duration) -> Result<Option<Sample>, ArmError> {
    let dir = private()?;
    let workload = match point.what {
        What::Rate => Workload::Rate,
        What::RoundTrip => rounds(bench, point.size),
    };
    let mut run = match point.what {
        What::Rate if bench.place.is_simulated() => simulated(bench.options.quick, point.size),
        What::RoundTrip if !bench.options.quick || bench.place.is_simulated() => ROUNDS_LIMIT,
        _ => run,
    };
    for _ in 0..TRIES {
        let mut job = job(point.channel, workload, point.size, run, &dir);
        job.yields = bench.place.is_crowded(point.pairs);
        job.together = point.pairs > 1;
        let reports = bench.place.run_pairs(&job, point.pairs)?;
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
fn simulated(quick: bool, size: usize) -> Duration {
    let (of_messages, least) = (
        Duration::from_nanos(800 * size as u64),
        Duration::from_millis(5),
    );
    match quick {
        true => (of_messages / 10).max(least / 3),
        false => of_messages.max(least),
    }
}

/// What all pairs reported, together; nothing where one has nothing to report. The rate is that of all
/// messages, from the first pair that began to the last that ended.
fn gathered(workload: Workload, reports: &[[Report; 2]]) -> Option<Sample> {
    let mut together = Sample::default();
    let (mut messages, mut began, mut ended) = (0, u64::MAX, 0);
    for pair in reports {
        if let Workload::Rounds { measured, .. } = workload {
            let round_trip = pair.iter().find_map(|report| match report {
                Report::Latency(quantiles) if quantiles.count > 0 => Some(*quantiles),
                _ => None,
            })?;
            let missing = measured.saturating_sub(round_trip.count);
            together.short_of = together.short_of.max(missing);
            together.fewest = measured - together.short_of;
            let slowest = &mut together.round_trip;
            if round_trip.p999_ns >= slowest.p999_ns {
                *slowest = round_trip;
            }
        } else {
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
    }
    if ended > began {
        together.per_second = messages as f64 * 1e9 / (ended - began) as f64;
    }
    Some(together)
}

/// The paper's numbers of round trips, divided among the rounds; fewer in a quick run, and where time is
/// virtual and nothing disturbs them.
fn rounds(bench: &Bench<'_>, size: usize) -> Workload {
    let parts = bench.rounds() as u64;
    let less = match (
        bench.place.is_simulated(),
        bench.options.quick,
        size > SHORT,
    ) {
        (false, false, _) => 1,
        (false, true, false) => QUICK_PART,
        (false, true, true) => QUICK_PART_LONG,
        (true, false, false) => SIMULATED_PART,
        (true, false, true) => SIMULATED_PART * 10,
        (true, true, false) => SIMULATED_PART * 20,
        (true, true, true) => SIMULATED_PART * 100,
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
        "{which} {measured} round trips a repeat, after {warm}, of messages over {SHORT} B \
         {measured_long} after {warm_long}, and fewer where its time is up."
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
    use crate::cases::rb2::{L5, RB2, fig3, fig7};
    use std::collections::BTreeSet;

    #[test]
    fn no_two_points_of_an_experiment_are_called_alike() {
        for points in [fig3::points(&[64, 4096]), fig7::points(&[1, 2, 8])] {
            let words: BTreeSet<_> = points.iter().map(Point::words).collect();
            assert_eq!(words.len(), points.len(), "{words:?}");
        }
        let many = Point {
            pairs: 8,
            ..Point::new(What::RoundTrip, L5, 64)
        };
        assert_eq!(many.words(), "l5 64 B, 8 pairs, round trips");
    }

    #[test]
    fn pairs_add_up_over_the_time_of_all_and_the_slowest_counts() {
        let rate = |messages, began_ns| {
            let nanos = 1_000_000_000;
            let rate = Report::Rate {
                messages,
                nanos,
                began_ns,
            };
            [Report::None, rate]
        };
        let all = |pairs: &[[Report; 2]]| gathered(Workload::Rate, pairs);
        let sample = all(&[rate(10, 5), rate(30, 5)]).unwrap();
        assert_eq!(sample.per_second, 40.0);
        // One after the other they reach half of that.
        let late = 1_000_000_005;
        for pairs in [[rate(10, late), rate(30, 5)], [rate(10, 5), rate(30, late)]] {
            assert_eq!(all(&pairs).unwrap().per_second, 20.0);
        }
        assert_eq!(all(&[rate(10, 5), rate(0, 5)]), None);
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
        assert_eq!(sample.round_trip.p999_ns, 9.0);
        let mut sweep = Sweep::default();
        let point = Point::new(What::RoundTrip, L5, 64);
        sweep.samples.insert(point, vec![None, Some(sample)]);
        let note = sweep.cut_short().unwrap();
        assert!(note.contains("l5 64 B: 1."), "{note}");
        let enough = Sample {
            fewest: 0,
            short_of: 0,
            ..sample
        };
        sweep.samples.insert(point, vec![Some(enough)]);
        assert_eq!(sweep.cut_short(), None);
    }

    #[test]
    fn ratios_and_lines_come_from_the_right_points() {
        let mut sweep = Sweep::default();
        let samples = |xs: [f64; 2]| {
            let sample = |per_second| {
                Some(Sample {
                    per_second,
                    ..Sample::default()
                })
            };
            xs.map(sample).to_vec()
        };
        let point = |channel, size| Point::new(What::Rate, channel, size);
        sweep.samples.insert(point(RB2, 64), samples([30.0, 60.0]));
        sweep.samples.insert(point(L5, 64), samples([10.0, 20.0]));
        sweep.samples.insert(point(L5, 4096), samples([4.0, 4.0]));
        let of = |sample: &Sample| sample.per_second;
        let ratio = sweep.ratio(point(RB2, 64), point(L5, 64), of);
        assert_eq!(ratio.unwrap().median, 3.0);
        let lines = sweep.lines(&[L5, RB2], What::Rate, |s, size| s.per_second * size as f64);
        assert_eq!(lines[0].points, [(64.0, 960.0), (4096.0, 16384.0)]);
        assert_eq!((lines.len(), lines[1].name.as_str()), (2, "rb2-in-place"));
        assert!(sweep.ratio(point(RB2, 64), point(RB2, 4096), of).is_none());
    }
}

//! Figure 11(b): what pacing costs the processor, on this machine and its software RNIC: nanoseconds and instructions
//! of a request, and a ping-pong.

use headworks::verbs::{DeviceName, Duration};

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::latency::Quantiles;
use crate::nic::loaded::{Load, Verb};
use crate::nic::{pingpong, posts};
use crate::outcome::{ArmNote, Grid, Outcome};
use crate::probe;
use crate::report::csv::{Cell, Table};
use crate::report::svg::{Axis, Figure, Series};
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::ArmError;
use crate::world::Place;

use super::paper;

/// The experiment.
#[derive(Debug)]
pub struct Overhead;

/// Requests that each end posts for a round trip of the ping-pong.
const POSTS_PER_ROUND_TRIP: f64 = 2.0;
/// Bytes of the ping-pong's messages.
const PINGPONG: usize = 64;

static ABOUT: About = About {
    name: "weir-overhead",
    line: "What pacing costs for each request on the software RNIC, when nothing has to wait.",
    measures: "WRITEs of 64 B by one queue pair, each call timed from its post to its completions' being polled, on the \
               plain and on the paced device in turn; instructions of a post under callgrind; a ping-pong.",
    paper: Some(paper("Figure 11(b)")),
    keys: &[
        "added_ns_median",
        "added_ns_mean",
        "added_ns_p99",
        "added_ns_p999",
        "added_ns_median_chain16",
        "added_instructions",
        "instructions_plain",
        "instructions_paced",
        "pingpong_paced_over_plain",
        "pingpong_added_ns",
        "pingpong_allowed_ns",
    ],
    paper_values: &[],
    replays: false,
};

/// What is measured of either device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Calls of so many requests.
    Posts(usize),
    PingPong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    what: What,
    is_paced: bool,
}

const WHATS: [What; 3] = [
    What::Posts(1),
    What::Posts(posts::CHAIN_MAX),
    What::PingPong,
];

impl Point {
    fn all() -> Vec<Self> {
        let of = |what| [false, true].map(|is_paced| Self { what, is_paced });
        WHATS.into_iter().flat_map(of).collect()
    }

    fn name(self) -> String {
        let device = if self.is_paced { "paced" } else { "plain" };
        match self.what {
            What::Posts(chain) => format!("{device}, {chain} a call"),
            What::PingPong => format!("{device}, ping-pong"),
        }
    }

    fn measure(
        self,
        place: &Place<'_>,
        times: (Duration, Duration),
    ) -> Result<Option<Quantiles>, ArmError> {
        let mut place = place.clone();
        if self.is_paced {
            for device in &mut place.devices {
                *device = paced(device)?;
            }
        }
        match self.what {
            What::Posts(chain) => posts::call(&place, chain, times),
            What::PingPong => {
                pingpong::half_round_trip(&Load::of(Verb::Write, PINGPONG), &place, times)
            }
        }
    }
}

fn paced(device: &DeviceName) -> Result<DeviceName, ArmError> {
    let name = format!("{device},pace").parse();
    name.map_err(|e| ArmError::at("device", e))
}

impl Experiment for Overhead {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn not_simulated(&self) -> Option<&'static str> {
        Some("it measures what pacing costs on this machine, by the wall clock")
    }

    fn paces(&self) -> bool {
        true
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = bench.pinned(|[here, there]| {
            format!("who posts on cpu {here}, the other end, which sleeps but for the ping-pong, on cpu {there}, for every arm")
        });
        outcome.arms = notes();
        let points = Point::all();
        let run = bench.time_per_point(points.len(), PART, OVERHEAD, PER_POINT);
        let run = Duration::from_nanos(run.as_nanos() as u64);
        let times = (WARM, run);
        let measured = bench.alternate_arms(
            &points,
            |point| *point,
            |point| point.name(),
            |bench, point| point.measure(&bench.place, times),
        )?;
        for (point, why) in measured.failures {
            outcome.notes.push(format!("{}: {why}", point.name()));
        }
        outcome.repeats = measured.samples.iter().map(Vec::len).max().unwrap_or(0);
        let samples: Vec<Vec<Quantiles>> = measured
            .samples
            .into_iter()
            .map(|rounds| rounds.into_iter().flatten().collect())
            .collect();
        record(&mut outcome, &points, &samples);
        instructions(bench, &mut outcome)?;
        Ok(outcome)
    }
}

/// Measured of a point, and not measured before that.
const PER_POINT: std::time::Duration = std::time::Duration::from_secs(1);
const WARM: Duration = Duration::from_millis(100);
/// What making its parts and connecting them takes.
const OVERHEAD: std::time::Duration = std::time::Duration::from_millis(300);
/// Of a quick run's time; the rest is for counting instructions.
const PART: f64 = 0.6;

fn notes() -> Vec<ArmNote> {
    let of = |name: &str, what: &str| ArmNote {
        name: name.into(),
        what: what.into(),
        waiting: "poll",
        copies: "1".into(),
    };
    vec![
        of(
            "plain",
            "the device as it is; every request signalled and its completion polled before the next call",
        ),
        of(
            "paced",
            "the same program on the same device, paced, with its default constants: nothing has to wait",
        ),
    ]
}

/// The instructions of a post of either device, as far as they can be counted here.
fn instructions(bench: &mut Bench<'_>, outcome: &mut Outcome) -> Result<(), RunError> {
    let plain = bench.place.devices[0].clone();
    let Ok(with_pacing) = paced(&plain) else {
        return Ok(());
    };
    let mut found = [None, None];
    let named = [
        ("instructions_plain", plain),
        ("instructions_paced", with_pacing),
    ];
    for ((key, device), found) in named.iter().zip(&mut found) {
        let label = format!("instructions of a post, {device}");
        let counted = bench.once(&label, |b| probe::post_instructions(device, b.stop()))?;
        match counted {
            Ok((count, version)) => {
                outcome
                    .notes
                    .push(format!("{device}: counted by {version}"));
                outcome.measured(*key, Spread::single(count));
                *found = Some(count);
            }
            Err(why) => outcome.skip(*key, why.to_string()),
        }
    }
    let added = match found {
        [Some(plain), Some(paced)] => Spread::of(&[paced - plain]),
        _ => None,
    };
    outcome.measured_or("added_instructions", added, "they could not be counted");
    Ok(())
}

/// Picks one figure of a distribution, for each request.
type Pick = fn(&Quantiles) -> f64;

/// What is read off the distributions, and under which key its difference is.
const PICKS: [(&str, Pick); 4] = [
    ("added_ns_median", |q| q.p50_ns),
    ("added_ns_mean", |q| q.mean_ns),
    ("added_ns_p99", |q| q.p99_ns),
    ("added_ns_p999", |q| q.p999_ns),
];

fn record(outcome: &mut Outcome, points: &[Point], samples: &[Vec<Quantiles>]) {
    let mut table = Table::new(&[
        "arm",
        "round",
        "calls",
        "median [ns/call]",
        "mean [ns/call]",
        "p99 [ns/call]",
        "p999 [ns/call]",
    ]);
    for (point, rounds) in points.iter().zip(samples) {
        for (round, found) in rounds.iter().enumerate() {
            let mut row = vec![Cell::Text(point.name()), (round as f64).into()];
            let values = [
                found.count as f64,
                found.p50_ns,
                found.mean_ns,
                found.p99_ns,
                found.p999_ns,
            ];
            row.extend(values.map(Into::into));
            table.push(row);
        }
    }
    outcome.points = table;
    let of = |what: What, is_paced: bool| {
        let point = Point { what, is_paced };
        let found = points.iter().position(|other| *other == point);
        found
            .and_then(|at| samples.get(at))
            .map_or(&[][..], Vec::as_slice)
    };
    // Round by round, so that both were measured next to each other.
    let added = |what: What, by: f64, pick: Pick| {
        let pairs = of(what, false).iter().zip(of(what, true));
        let all: Vec<f64> = pairs
            .map(|(plain, paced)| by * (pick(paced) - pick(plain)))
            .collect();
        Spread::of(&all)
    };
    let none = "nothing was measured";
    for (key, pick) in PICKS {
        outcome.measured_or(key, added(What::Posts(1), 1.0, pick), none);
    }
    let chain = posts::CHAIN_MAX;
    let each = 1.0 / chain as f64;
    let of_chain = added(What::Posts(chain), each, PICKS[0].1);
    outcome.measured_or("added_ns_median_chain16", of_chain, none);
    let pairs = of(What::PingPong, false)
        .iter()
        .zip(of(What::PingPong, true));
    let over: Vec<f64> = pairs
        .map(|(plain, paced)| paced.p50_ns / plain.p50_ns)
        .collect();
    outcome.measured_or("pingpong_paced_over_plain", Spread::of(&over), none);
    // What is measured is half a round trip.
    let of_pingpong = added(What::PingPong, 2.0, PICKS[0].1);
    outcome.measured_or("pingpong_added_ns", of_pingpong, none);
    let allowed = added(What::Posts(1), 2.0 * POSTS_PER_ROUND_TRIP, PICKS[0].1);
    outcome.measured_or("pingpong_allowed_ns", allowed, none);
    outcome.grids.push(grid(points, samples));
    outcome.figures.push(figure(&of));
    outcome.notes.push(NOTE.into());
}

/// Said in the report.
const NOTE: &str = "A call is timed from the end of the one before to its last completion's being polled, with one look \
     at the clock; what is added is the difference of both devices' figures, round by round. One request in eight is \
     measured by the pacing itself (the constant sample_every), which is what the far end of the distribution shows; the \
     device's clock is not looked at here, as the software RNIC has the host's. pingpong_allowed_ns is what the added time \
     of a request allows: twice the requests of a round trip, as both posting and polling may wait for the other side.";

fn grid(points: &[Point], samples: &[Vec<Quantiles>]) -> Grid {
    let median = |rounds: &[Quantiles], pick: Pick| {
        let all: Vec<f64> = rounds.iter().map(pick).collect();
        Spread::of(&all).map_or_else(String::new, |spread| format!("{:.0}", spread.median))
    };
    let row = |(point, rounds): (&Point, &Vec<Quantiles>)| {
        let mut row = vec![point.name()];
        row.extend(PICKS.map(|(_, pick)| median(rounds, pick)));
        row
    };
    let header = ["arm", "median", "mean", "p99", "p99.9"];
    Grid {
        title: "Nanoseconds of a call (ping-pong: half a round trip), medians over rounds".into(),
        header: header.map(String::from).to_vec(),
        rows: points.iter().zip(samples).map(row).collect(),
    }
}

fn figure<'s>(of: &impl Fn(What, bool) -> &'s [Quantiles]) -> Figure {
    let part = |pick: Pick, rounds: &[Quantiles]| {
        let all: Vec<f64> = rounds.iter().map(pick).collect();
        Spread::of(&all).map(|spread| spread.median)
    };
    let places: [(f64, Pick); 3] = [
        (0.5, |q| q.p50_ns),
        (0.99, |q| q.p99_ns),
        (0.999, |q| q.p999_ns),
    ];
    let series = |is_paced: bool, name: &str| Series {
        name: name.into(),
        points: places
            .iter()
            .filter_map(|(at, pick)| Some((part(*pick, of(What::Posts(1), is_paced))?, *at)))
            .collect(),
    };
    Figure {
        file: "calls.svg".into(),
        title: "A WRITE of 64 B from its post to its completion".into(),
        x: Axis::log("nanoseconds"),
        y: Axis::linear("part of all calls that were no slower"),
        series: vec![series(false, "plain"), series(true, "paced")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantiles(p50: f64) -> Quantiles {
        Quantiles {
            count: 10,
            p50_ns: p50,
            p99_ns: 2.0 * p50,
            p999_ns: 3.0 * p50,
            max_ns: 4.0 * p50,
            mean_ns: p50 + 1.0,
        }
    }

    #[test]
    fn what_is_added_is_the_median_of_the_rounds_differences() {
        let points = Point::all();
        let samples: Vec<Vec<Quantiles>> = points
            .iter()
            .map(|point| {
                let more = if point.is_paced { 50.0 } else { 0.0 };
                (0..3)
                    .map(|round| quantiles(100.0 + f64::from(round) + more))
                    .collect()
            })
            .collect();
        let mut outcome = Outcome::default();
        record(&mut outcome, &points, &samples);
        let of = |key: &str| outcome.ratios()[key].median;
        assert_eq!(of("added_ns_median"), 50.0);
        assert_eq!(of("added_ns_p999"), 150.0);
        assert_eq!(of("added_ns_median_chain16"), 50.0 / 16.0);
        assert_eq!(of("pingpong_added_ns"), 100.0);
        assert_eq!(of("pingpong_allowed_ns"), 200.0);
        assert!((of("pingpong_paced_over_plain") - 151.0 / 101.0).abs() < 1e-9);
        let keys: Vec<_> = ABOUT
            .keys
            .iter()
            .filter(|key| !key.contains("instructions"))
            .collect();
        assert!(keys.iter().all(|key| outcome.ratios().contains_key(**key)));
    }

    #[test]
    fn nothing_measured_is_said() {
        let mut outcome = Outcome::default();
        record(&mut outcome, &Point::all(), &[]);
        assert!(outcome.skipped().contains_key("added_ns_median"));
    }
}

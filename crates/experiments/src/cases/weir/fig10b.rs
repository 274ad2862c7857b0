//! Figure 10(b): how the rate of paced doorbells comes to what the network carries.

use super::arm::{self, Arm, Probed};
use super::paper;
use super::timeline::{self, COLUMNS, Moment, Shape};
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::Table;
use crate::report::human;
use crate::report::svg::{Axis, Figure};
use crate::runner::RunError;
use crate::simulated::Simulated;
use crate::stats::Spread;
use crate::transports::ArmError;
use crate::world::Place;

/// The experiment.
#[derive(Debug)]
pub struct Fig10b;

/// What the link carries, in Gbit/s, and how it is paced.
const ARMS: [(u64, Arm); 3] = [(100, Arm::Paced), (40, Arm::Paced), (40, Arm::Windowed)];
/// What pacing takes it for, whatever it is.
const STARTS: &str = ",pace_line_rate_gbps=100";
/// It is near its median when it is off by no more.
const WITHIN: f64 = 0.1;

static ABOUT: About = About {
    name: "weir-fig10b",
    line: "The rate of paced doorbells against time, where the link carries 100 and 40 Gbit/s.",
    measures: "Eight processes SEND messages of 512 B over 1,024 queue pairs (256 in a quick run), 128 outstanding of \
               each, with doorbells paced at 100 Gbit/s at first, over a link of 100 Gbit/s and over one of 40: the \
               rate and what is delivered, every 50 µs. Over that of 40 also paced by a window. The rate counts for \
               each message what frames add to it.",
    paper: Some(paper("Figure 10(b)")),
    keys: &[
        "settled_gbps_100",
        "settled_gbps_40",
        "reaches_40_after_ms",
        "settles_40_after_ms",
        "fluctuation_40",
        "delivered_gbps_100",
        "delivered_gbps_40",
        "delivered_gbps_40_windowed",
        "delay_us_40",
        "delay_us_40_windowed",
    ],
    paper_values: &[("settled_gbps_100", 100.0), ("settled_gbps_40", 40.0)],
    replays: false,
};

impl Experiment for Fig10b {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn kind(&self) -> Option<&'static str> {
        Some(headworks::sim::KIND)
    }

    fn paces(&self) -> bool {
        true
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = bench.outcome(arm::PINNING.to_owned());
        let probed = bench.once("base delay", arm::base_delay)?;
        let shape = Shape::new(bench.options.quick, bench.perftest_ns());
        let measured = bench.alternate_arms(
            &ARMS,
            |arm| *arm,
            |arm| name(*arm),
            |bench, (link, arm)| {
                let probed = probed.as_ref().map_err(|why| ArmError(why.0.clone()))?;
                let place = with_link(bench, *link)?;
                let options = format!("{STARTS}{}", arm.options());
                timeline::measure(&place, shape, *probed, &options).map(Some)
            },
        )?;
        outcome.repeats = 1;
        for (arm, why) in measured.failures {
            outcome.notes.push(format!("{}: {why}", name(arm)));
        }
        outcome.notes.extend(probed.ok().map(Probed::note));
        outcome.notes.push(LINK_NOTE.into());
        let arms = measured.samples.into_iter();
        let arms: Vec<_> = arms
            .map(|samples| samples.into_iter().flatten().next().unwrap_or_default())
            .collect();
        record(&mut outcome, &arms);
        Ok(outcome)
    }
}

/// Said in the report.
const LINK_NOTE: &str = "The paper slows the switch's port down; here all links are of that rate (link.rate), so that requests \
     wait in the sending RNIC, since nothing in the model would have a full switch tell it to. The base delay is that \
     of the preset's own link.";

fn name((link, arm): (u64, Arm)) -> String {
    format!("{link} Gbit/s, {arm}")
}

/// The same machines with another link.
fn with_link<'a>(bench: &Bench<'a>, link: u64) -> Result<Place<'a>, ArmError> {
    let setting = format!("link.rate={link}").parse();
    let mut set = bench.options.set.clone();
    set.push(setting.map_err(|e| ArmError::at("link", e))?);
    let machines = Simulated::on(&bench.options.device, &set, None);
    let machines = machines.ok_or_else(|| ArmError("the device is not simulated".into()))?;
    let machines = machines.map_err(|e| ArmError::at("device", e))?;
    Ok(Place {
        counted: bench.place.counted.clone(),
        ..machines.place(bench.place.stop)
    })
}

/// Everything from the moments by arm; none of an arm that was not measured.
fn record(outcome: &mut Outcome, arms: &[Vec<Moment>]) {
    let of = |index: usize| arms.get(index).map(Vec::as_slice).unwrap_or_default();
    let none = "nothing was measured";
    let one = |value: f64| Spread::of(&[value]);
    let mut table = Table::new(&[&["link [Gbit/s]", "arm"][..], &COLUMNS].concat());
    let mut settled = Vec::new();
    for (index, (link, arm)) in ARMS.into_iter().enumerate() {
        let moments = of(index);
        for moment in moments {
            let mut row = vec![(link as f64).into(), arm.to_string().as_str().into()];
            row.extend(moment.cells());
            table.push(row);
        }
        let suffix = match arm {
            Arm::Windowed => "_windowed",
            _ => "",
        };
        let delivered = timeline::settled_at(moments, |moment| moment.gbit_per_s);
        outcome.measured_or(&format!("delivered_gbps_{link}{suffix}"), delivered, none);
        if link < 100 {
            let delay = timeline::settled_at(moments, Moment::delay_us);
            outcome.measured_or(&format!("delay_us_{link}{suffix}"), delay, none);
        }
        if arm == Arm::Paced {
            let rate = timeline::settled_at(moments, Moment::rate);
            outcome.measured_or(&format!("settled_gbps_{link}"), rate, none);
            settled.push((rate, delivered));
        }
    }
    let slow = of(1);
    let [reaches, settles] = timeline::near_median(slow, WITHIN);
    outcome.measured_or("reaches_40_after_ms", reaches.and_then(one), none);
    let why = match slow.is_empty() {
        true => none,
        false => "it leaves what it settles at by more than a tenth until the end",
    };
    outcome.measured_or("settles_40_after_ms", settles.and_then(one), why);
    let (rate, _) = settled[1];
    let moved = rate.map(|rate| (rate.high - rate.low) / rate.median);
    outcome.measured_or("fluctuation_40", moved.and_then(one), none);
    outcome.points = table;
    outcome.arms = [Arm::Paced, Arm::Windowed].map(Arm::note).to_vec();
    outcome.grids.extend(statements(&settled, reaches, moved));
    outcome.figures = figures(of(0), of(1), of(2));
}

/// What the text says of the figure, beside what came of it here.
fn statements(
    settled: &[(Option<Spread>, Option<Spread>)],
    reaches: Option<f64>,
    moved: Option<f64>,
) -> Option<Grid> {
    let [(fast, _), (slow, carried)] = *settled else {
        return None;
    };
    let (fast, slow, carried) = (fast?, slow?, carried?);
    let row = |says: &str, ours: String, holds: bool| {
        let holds = if holds { "yes" } else { "no" };
        vec![says.to_owned(), ours, holds.to_owned()]
    };
    let near = |rate: f64, goal: f64| (rate / goal - 1.0).abs() <= WITHIN;
    let span = |rate: Spread| {
        let [median, low, high] = [rate.median, rate.low, rate.high].map(human);
        format!("{median} Gbit/s, {low} to {high}")
    };
    Some(Grid {
        title: "What the paper says of it".into(),
        header: ["paper", "ours (simulated)", "the same"]
            .map(String::from)
            .to_vec(),
        rows: vec![
            row(
                "100 Gbit/s: stabilises at a level close to it (V-C)",
                span(fast),
                near(fast.median, 100.0),
            ),
            row(
                "40 Gbit/s: quickly converges to that level (V-C)",
                format!("{}; first after {} ms", span(slow), human(reaches?)),
                near(slow.median, 40.0),
            ),
            row(
                "thus it matches the rate of consumption (V-C)",
                format!("delivered {}", span(carried)),
                near(carried.median, slow.median),
            ),
            row(
                "and fluctuates slightly (V-C)",
                format!("{} of it", human(moved?)),
                moved? <= 2.0 * WITHIN,
            ),
        ],
    })
}

fn figures(fast: &[Moment], slow: &[Moment], windowed: &[Moment]) -> Vec<Figure> {
    let delivered = |moment: &Moment| moment.gbit_per_s;
    let lines = |link: u64, moments: &[Moment]| {
        [
            timeline::series(&format!("rate, link {link}"), moments, Moment::rate),
            timeline::series(&format!("delivered, link {link}"), moments, delivered),
        ]
    };
    let window = timeline::series("delivered by a window, link 40", windowed, delivered);
    vec![Figure {
        file: "rate.svg".into(),
        title: "Rate of paced doorbells, and what is delivered, against time".into(),
        x: Axis::linear("time [ms]"),
        y: Axis::linear("[Gbit/s]"),
        series: [&lines(100, fast)[..], &lines(40, slow), &[window]].concat(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::tests::assert_skipped;
    use crate::cases::weir::timeline::tests::told;

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        for nothing in [vec![], vec![Vec::new(); ARMS.len()]] {
            let mut outcome = Outcome::default();
            record(&mut outcome, &nothing);
            assert_skipped(&ABOUT, &outcome);
        }
    }

    fn rates(all: &[f64]) -> Vec<Moment> {
        told(&all.iter().map(|rate| (*rate, 5.0)).collect::<Vec<_>>())
    }

    fn recorded(fast: &[f64], slow: &[f64]) -> Outcome {
        let mut outcome = Outcome::default();
        record(&mut outcome, &[rates(fast), rates(slow), rates(&[39.0; 4])]);
        assert!(outcome.undeclared(ABOUT.keys).is_empty());
        outcome
    }

    #[test]
    fn convergence_is_told_from_when_it_comes_and_stays_near() {
        let outcome = recorded(&[100.0, 98.0, 99.0, 98.0], &[41.0, 50.0, 42.0, 40.0, 40.0]);
        let found = |key: &str| outcome.ratios()[key].median;
        assert!((found("settled_gbps_40") - 40.0).abs() < 1e-9);
        assert_eq!(found("reaches_40_after_ms"), 0.0);
        assert_eq!(found("settles_40_after_ms"), 2.0);
        assert!((found("fluctuation_40") - 0.05).abs() < 1e-9);
        let rows = outcome.grids[0].rows.iter();
        let said: Vec<_> = rows.map(|row| row[2].as_str()).collect();
        assert_eq!(said, ["yes"; 4]);
        assert_eq!(outcome.figures[0].series.len(), 5);
        assert!((found("delivered_gbps_40_windowed") - 39.0).abs() < 1e-9);
        assert!((found("delay_us_40_windowed") - 5.0).abs() < 1e-9);
        let outcome = recorded(&[80.0; 4], &[100.0, 60.0, 55.0, 55.0, 55.0]);
        let rows = outcome.grids[0].rows.iter();
        let said: Vec<_> = rows.map(|row| row[2].as_str()).collect();
        assert_eq!(said, ["no", "no", "yes", "yes"]);
        let outcome = recorded(&[100.0; 4], &[100.0, 60.0, 40.0, 40.0, 60.0]);
        let why = &outcome.skipped()["settles_40_after_ms"];
        assert!(why.contains("until the end"), "{why}");
        assert!(outcome.ratios().contains_key("fluctuation_40"));
    }
}

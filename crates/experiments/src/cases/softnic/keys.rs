//! The keys of the summary and what each is computed from.

use super::arms::name;
use super::points::Points;
use crate::nic::{Way, What};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::{Cell, Table};
use crate::report::human;
use crate::stats::{Spread, paired_ratio};

const fn flow(way: Way, chain: usize) -> What {
    What::Flow { way, chain }
}

const POLLED: What = flow(Way::PolledMemory, 1);
const POLLED_16: What = flow(Way::PolledMemory, 16);
const SRQ: What = flow(Way::SharedReceives, 1);
const SRQ_16: What = flow(Way::SharedReceives, 16);

/// Ratios of one arm's rate to another's.
const RATIOS: [(&str, What, What); 2] = [
    ("srq64_over_write_and_poll", SRQ, POLLED),
    ("srq64_over_write_and_poll_chain16", SRQ_16, POLLED_16),
];

/// Plain rates, in millions per second.
const RATES: [(&str, What); 4] = [
    ("srq64_mmsg_per_s", SRQ),
    ("write_and_poll64_mmsg_per_s", POLLED),
    ("srq64_chain16_mmsg_per_s", SRQ_16),
    ("write_and_poll64_chain16_mmsg_per_s", POLLED_16),
];

const ALL: [&str; RATIOS.len() + RATES.len()] = {
    let mut all = [""; RATIOS.len() + RATES.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < RATIOS.len() {
            RATIOS[i].0
        } else {
            RATES[i - RATIOS.len()].0
        };
        i += 1;
    }
    all
};

/// Every key of this experiment.
pub(super) const KEYS: &[&str] = &ALL;

/// Computes every key, and the tables.
pub(super) fn record(outcome: &mut Outcome, points: &Points) {
    for (key, ours, theirs) in RATIOS {
        let (a, b) = (points.rates(ours), points.rates(theirs));
        let missing = match Spread::of(&a) {
            None => points.why(ours),
            Some(_) => points.why(theirs),
        };
        outcome.measured_or(key, paired_ratio(&a, &b), missing);
    }
    for (key, what) in RATES {
        let spread = Spread::of(&points.rates(what)).map(|s| s.scaled(1e-6));
        outcome.measured_or(key, spread, points.why(what));
    }
    table(outcome, points);
    for (what, why) in &points.failures {
        outcome.notes.push(format!(
            "{} was not measured, or not in every round: {why}",
            name(*what)
        ));
    }
    outcome.notes.push(
        "Ratios are medians of the ratios within each round, in which all arms take their turn."
            .into(),
    );
}

fn table(outcome: &mut Outcome, points: &Points) {
    let mut table = Table::new(&[
        "arm",
        "rate [1/s]",
        "rate low [1/s]",
        "rate high [1/s]",
        "repeats",
    ]);
    let mut grid = Grid {
        title: "Per second: median (lowest – highest repeat)".into(),
        header: ["arm", "rate"].map(String::from).to_vec(),
        rows: Vec::new(),
    };
    for &what in points.samples.keys() {
        let Some(rate) = Spread::of(&points.rates(what)) else {
            continue;
        };
        let figures = [rate.median, rate.low, rate.high, rate.repeats as f64];
        let mut row: Vec<Cell> = vec![name(what).as_str().into()];
        row.extend(figures.map(Cell::from));
        table.push(row);
        grid.rows.push(vec![
            name(what),
            format!(
                "{} ({} – {})",
                human(rate.median),
                human(rate.low),
                human(rate.high)
            ),
        ]);
    }
    outcome.points = table;
    outcome.grids = vec![grid];
}

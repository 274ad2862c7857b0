//! What the paper's text says of the figures, each beside what came of it here.

use super::findings::{Fewer, Points, at, counts, fewer, gain};
use crate::cases::weir::arm::Arm;
use crate::cases::weir::point::{DROP, Kind, MISSES};
use crate::outcome::Grid;
use crate::report::human;

/// Throughputs that differ by no more are basically the same.
const SAME: f64 = 0.05;
/// So many queue pairs are few.
const FEW: usize = 64;
/// From so many queue pairs on it is contexts that are missing (section V-B).
const MANY: usize = 8192;
/// So many times what plain verbs carry there (section V-B).
const GAIN: std::ops::RangeInclusive<f64> = 1.5..=2.0;
/// So many times fewer misses at least (abstract).
const FEWER: f64 = 5.0;

/// All statements about messages of that size; none without points.
pub(super) fn grid(size: usize, points: &Points) -> Option<Grid> {
    let counts = counts(points);
    let most = *counts.last()?;
    let mut rows = vec![few(points, &counts)];
    match size {
        512 => rows.extend([steady(points, &counts), falls(points, &counts)]),
        _ => rows.push(gains(points, &counts)),
    }
    rows.push(shallow(points, &counts));
    // The text says it of what the RNIC's tools show, which does not show requests.
    rows.extend(MISSES[..3].iter().map(|kind| misses(points, most, *kind)));
    let row = |(says, ours, holds): (String, String, bool)| {
        let holds = if holds { "yes" } else { "no" };
        vec![says, ours, holds.to_owned()]
    };
    Some(Grid {
        title: "What the paper says of it".into(),
        header: ["paper", "ours (simulated)", "the same"]
            .map(String::from)
            .to_vec(),
        rows: rows.into_iter().flatten().map(row).collect(),
    })
}

/// What it says, what came of it, and whether that is the same.
type Statement = Option<(String, String, bool)>;

/// Payload of an arm over so many queue pairs, in order of their number.
fn rates(points: &Points, counts: &[usize], arm: Arm) -> Vec<(usize, f64)> {
    let rates = counts.iter();
    let rates = rates.filter_map(|count| Some((*count, at(points, arm, *count)?.gbit_per_s)));
    rates.collect()
}

fn highest(rates: &[(usize, f64)]) -> Option<(usize, f64)> {
    let highest = rates.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    highest.copied()
}

/// What pacing has of what plain verbs have, from so many queue pairs on.
fn over_plain(points: &Points, counts: &[usize], from: usize) -> Vec<(usize, f64)> {
    let counts = counts.iter().filter(|count| **count >= from);
    let of = |count: usize| {
        let [paced, plain] = [Arm::Paced, Arm::PLAIN].map(|arm| at(points, arm, count));
        Some((count, gain((paced?, plain?))))
    };
    counts.filter_map(|count| of(*count)).collect()
}

fn few(points: &Points, counts: &[usize]) -> Statement {
    let (count, over) = *over_plain(points, counts, 0).first()?;
    (count <= FEW).then_some(())?;
    Some((
        "few queue pairs: throughput basically the same as of plain verbs (V-B)".into(),
        format!("{count} queue pairs: {} times", human(over)),
        (over - 1.0).abs() <= SAME,
    ))
}

fn steady(points: &Points, counts: &[usize]) -> Statement {
    let rates = rates(points, counts, Arm::Paced);
    let ((most, last), (_, highest)) = (*rates.last()?, highest(&rates)?);
    Some((
        "512 B: 97 Gbit/s without degradation up to 16 Ki queue pairs (abstract)".into(),
        format!("{most} queue pairs: {} of the most", human(last / highest)),
        last >= DROP * highest,
    ))
}

fn falls(points: &Points, counts: &[usize]) -> Statement {
    let rates = rates(points, counts, Arm::PLAIN);
    let ((most, last), (_, highest)) = (*rates.last()?, highest(&rates)?);
    Some((
        "512 B: plain verbs decrease significantly (V-B)".into(),
        format!("{most} queue pairs: {} of the most", human(last / highest)),
        last < DROP * highest,
    ))
}

fn gains(points: &Points, counts: &[usize]) -> Statement {
    let gains = over_plain(points, counts, MANY);
    let said = gains.iter();
    let said = said.map(|(count, gain)| format!("{count}: {} times", human(*gain)));
    let said: Vec<_> = said.collect();
    let all = gains.iter().all(|(_, gain)| GAIN.contains(gain));
    (!said.is_empty()).then(|| {
        let says = "8 Ki to 16 Ki queue pairs: 1.5 to 2 times plain verbs (V-B)";
        (says.into(), said.join("; "), all)
    })
}

fn shallow(points: &Points, counts: &[usize]) -> Statement {
    let rates = rates(points, counts, Arm::Plain(16));
    let said = [*rates.first()?, highest(&rates)?, *rates.last()?];
    let [(count, first), (_, highest), (_, last)] = said;
    (count <= FEW).then_some(())?;
    let said = said.map(|(count, rate)| format!("{count} queue pairs: {} Gbit/s", human(rate)));
    Some((
        "TX depth 16: less at few queue pairs, more with their number, then an abrupt drop (V-B)"
            .into(),
        format!("{} of payload", said.join("; ")),
        first < DROP * highest && last < DROP * highest,
    ))
}

fn misses(points: &Points, most: usize, kind: Kind) -> Statement {
    let [plain, paced] = [Arm::PLAIN, Arm::Paced].map(|arm| at(points, arm, most));
    let (ours, holds) = match fewer(plain, paced, kind)? {
        Fewer::Times(times) => (format!("{} times fewer", human(times)), times >= FEWER),
        Fewer::All(plain) => (format!("none, of {} a request", human(plain)), plain > 0.0),
    };
    let says = format!("{}: 5 to 10 times fewer misses (abstract)", kind.name);
    Some((says, format!("{most} queue pairs: {ours}"), holds))
}

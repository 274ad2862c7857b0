//! From samples to figures: everything that is computed from the points.

use super::load::Loaded;
use super::points::Points;
use super::{drawings, keys, tables};
use crate::outcome::Outcome;

/// Puts everything into `outcome`.
pub(super) fn record(outcome: &mut Outcome, points: &Points, loads: &[Loaded]) {
    keys::record(outcome, points);
    tables::table(outcome, points, loads);
    tables::grids(outcome, points, loads);
    drawings::figures(outcome, points, loads);
    for (arm, why) in &points.failures {
        outcome.notes.push(format!(
            "{arm} was not measured, or not in every round: {why}"
        ));
    }
    outcome.notes.push(
        "Ratios are medians of the ratios within each round, in which all arms take their turn."
            .into(),
    );
    outcome.notes.push(
        "The buffered streams gather messages in the application, up to 64 KiB a call: their rate \
         at small sizes is that of large calls, and they are not measured for latency. The others \
         hand over one message a call, as the ring does."
            .into(),
    );
    outcome.notes.push(
        "Every arm reads messages where they were received. memcpy and the rings go round their \
         whole arrays; ucx_perftest sends the same buffer again and again, which stays in the \
         processor's cache. The cache line goes between two threads of one process, which is the \
         same line to the processors."
            .into(),
    );
    outcome.notes.push(
        "ucx_perftest neither writes nor reads the bytes of its messages, so it has no touched \
         figures, and prints one percentile only. The cache line is timed in batches, the arms' \
         ping-pongs with one clock read per round trip."
            .into(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::ring_vs_peers::keys::{KEYS, RING, rate};
    use crate::cases::ring_vs_peers::points::Sample;
    use crate::transports::job::Channel;
    use std::collections::BTreeMap;

    #[test]
    fn every_key_is_measured_or_skipped_with_the_arms_own_reason() {
        let failures = BTreeMap::from([("ucx-am".to_owned(), "not installed".to_owned())]);
        let mut points = Points {
            failures,
            ..Points::default()
        };
        let samples = |xs: [f64; 3]| xs.map(|x| Some(Sample::PerSecond(x))).to_vec();
        points
            .samples
            .insert(rate(RING, 64), samples([40e6, 20e6, 44e6]));
        points
            .samples
            .insert(rate(Channel::Bare, 64), samples([50e6, 25e6, 50e6]));
        let mut outcome = Outcome::default();
        record(&mut outcome, &points, &[]);
        assert_eq!(outcome.ratios()["ring64_over_bare"].median, 0.8);
        assert_eq!(outcome.ratios()["ring64_mmsg_per_s"].median, 40.0);
        assert_eq!(outcome.skipped()["ring64_over_ucx_am"], "not installed");
        outcome.complete(KEYS.iter().copied());
        for key in KEYS {
            assert!(outcome.ratios().contains_key(*key) != outcome.skipped().contains_key(*key));
        }
        assert_eq!(outcome.points.len(), 2);
        assert!(outcome.figures.iter().all(|f| f.to_svg().is_ok()));
    }
}

//! Advice: the design that measured results favour for a described workload. Pure.

use std::collections::BTreeSet;

use super::plan::PlanPoint;
use super::results::MeasuredPoint;

/// A workload that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Number of requesters.
    pub requesters: usize,
    /// Number of responders.
    pub responders: usize,
    /// Bytes of a response.
    pub response: usize,
    /// Requests outstanding for each requester.
    pub outstanding: u32,
}

/// The quantity by which designs are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankedBy {
    /// The highest rate.
    Rate,
    /// The lowest 99th percentile of latency.
    Tail,
}

/// Advice: the best design first.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The designs that were measured for the workload, the best first, each with its score: rate in 1/s, or 99th
    /// percentile in nanoseconds.
    pub ranked: Vec<(PlanPoint, f64)>,
    /// How much better the best one is than the runner-up: a quotient of scores, at least 1; `None` if only one design
    /// was measured.
    pub advantage: Option<f64>,
    /// Whether the lowest repeat of the best is above the highest of the runner-up; if not, the order may be noise.
    /// Always true by latency, whose repeats are not kept apart.
    pub is_clear: bool,
}

/// No result is about the described workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no design was measured with {} = {}; measured: {}",
    what,
    value,
    measured
)]
pub struct NotMeasured {
    what: &'static str,
    value: usize,
    measured: String,
}

/// Returns the designs for `described`, by what `results` say. Nothing is interpolated.
///
/// # Errors
///
/// [`NotMeasured`]: names the number that was not measured, and those that were.
pub fn advise(
    results: &[MeasuredPoint],
    described: Described,
    by: RankedBy,
) -> Result<Advice, NotMeasured> {
    let mut left: Vec<&MeasuredPoint> = results.iter().collect();
    type Field = fn(&PlanPoint) -> usize;
    let fields: [(&'static str, usize, Field); 4] = [
        ("requesters", described.requesters, |p| p.requesters),
        ("responders", described.responders, |p| p.responders),
        ("response", described.response, |p| p.response),
        ("outstanding", described.outstanding as usize, |p| {
            p.outstanding as usize
        }),
    ];
    for (what, value, of) in fields {
        let measured: BTreeSet<usize> = left.iter().map(|one| of(&one.point)).collect();
        left.retain(|one| of(&one.point) == value);
        if left.is_empty() {
            let measured: Vec<String> = measured.iter().map(usize::to_string).collect();
            let measured = match measured.is_empty() {
                true => "nothing".to_owned(),
                false => measured.join(", "),
            };
            return Err(NotMeasured {
                what,
                value,
                measured,
            });
        }
    }
    let score = |one: &MeasuredPoint| match by {
        RankedBy::Rate => one.rate(),
        RankedBy::Tail => one.latency().p99_ns,
    };
    left.sort_by(|a, b| match by {
        RankedBy::Rate => score(b).total_cmp(&score(a)),
        RankedBy::Tail => score(a).total_cmp(&score(b)),
    });
    let ranked: Vec<_> = left.iter().map(|one| (one.point, score(one))).collect();
    let advantage = match (ranked.first(), ranked.get(1)) {
        (Some((_, best)), Some((_, next))) => Some((best / next).max(next / best)),
        _ => None,
    };
    let is_clear = match (left.first(), left.get(1)) {
        (Some(best), Some(next)) => {
            let lowest = best.per_second.iter().copied().fold(f64::MAX, f64::min);
            let highest = next.per_second.iter().copied().fold(0.0, f64::max);
            match by {
                RankedBy::Rate => lowest > highest,
                RankedBy::Tail => true,
            }
        }
        _ => true,
    };
    Ok(Advice {
        ranked,
        advantage,
        is_clear,
    })
}

#[cfg(test)]
mod tests {
    use super::super::design::Design;
    use super::*;

    fn measured(design: Design, requesters: usize, rates: [f64; 2], nanos: u64) -> MeasuredPoint {
        let point = PlanPoint {
            design,
            response: 4096,
            requesters,
            responders: 1,
            outstanding: 1,
        };
        let mut measured = MeasuredPoint::of(point, &[]);
        measured.per_second = rates.to_vec();
        measured.latencies = vec![(nanos, 10)];
        measured
    }

    const DESCRIBED: Described = Described {
        requesters: 40,
        responders: 1,
        response: 4096,
        outstanding: 1,
    };

    #[test]
    fn the_fastest_design_is_advised_with_its_advantage() {
        let [ww, ss, ws, _] = Design::PAIRS;
        let results = [
            measured(ss, 40, [50.0, 50.0], 900),
            measured(ww, 40, [100.0, 100.0], 2_000),
            measured(ws, 40, [79.0, 81.0], 1_500),
            measured(ss, 8, [900.0, 900.0], 1),
        ];
        let advice = advise(&results, DESCRIBED, RankedBy::Rate).unwrap();
        let order: Vec<_> = advice
            .ranked
            .iter()
            .map(|(point, _)| point.design)
            .collect();
        assert_eq!(order, [ww, ws, ss]);
        assert_eq!((advice.advantage, advice.is_clear), (Some(1.25), true));
        let advice = advise(&results, DESCRIBED, RankedBy::Tail).unwrap();
        assert_eq!(advice.ranked[0].0.design, ss);
        let close = [
            measured(ww, 40, [90.0, 110.0], 1),
            measured(ss, 40, [80.0, 95.0], 1),
        ];
        assert!(!advise(&close, DESCRIBED, RankedBy::Rate).unwrap().is_clear);
    }

    #[test]
    fn counts_that_were_not_measured_are_refused_with_those_that_were() {
        let results = [
            measured(Design::PAIRS[0], 40, [1.0, 1.0], 1),
            measured(Design::PAIRS[0], 8, [1.0, 1.0], 1),
        ];
        let says = |described| {
            advise(&results, described, RankedBy::Rate)
                .unwrap_err()
                .to_string()
        };
        let error = says(Described {
            requesters: 41,
            ..DESCRIBED
        });
        assert_eq!(
            error,
            "no design was measured with requesters = 41; measured: 8, 40"
        );
        let error = says(Described {
            response: 64,
            ..DESCRIBED
        });
        assert!(error.contains("response = 64; measured: 4096"), "{error}");
        assert!(advise(&[], DESCRIBED, RankedBy::Rate).is_err());
    }
}

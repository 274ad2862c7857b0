//! Medians and spreads over repeats, as pure functions.

/// A figure over repeats: its median and range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median; for an even number of repeats the mean of the two in the middle.
    pub median: f64,
    /// The smallest repeat.
    pub low: f64,
    /// The largest repeat.
    pub high: f64,
    /// Number of repeats.
    pub repeats: usize,
}

impl Spread {
    /// Computes the spread of `samples` without those that are not finite. `None` if none is left.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&low, &high) = (sorted.first()?, sorted.last()?);
        let repeats = sorted.len();
        Some(Self {
            median: f64::midpoint(sorted[(repeats - 1) / 2], sorted[repeats / 2]),
            low,
            high,
            repeats,
        })
    }

    /// Makes the spread of a figure that has one value only.
    pub fn single(value: f64) -> Self {
        Self {
            median: value,
            low: value,
            high: value,
            repeats: 1,
        }
    }

    /// Converts the figure to another unit, by a factor.
    pub fn scaled(self, by: f64) -> Self {
        let (a, b) = (self.low * by, self.high * by);
        Self {
            median: self.median * by,
            low: a.min(b),
            high: a.max(b),
            repeats: self.repeats,
        }
    }
}

/// Fairness: how evenly something is shared out.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Shares {
    /// Jain's index: (Σx)² / (n Σx²), from 1/n, if one part has everything, to 1, if all parts are equal.
    pub jain: f64,
    /// The smallest share over the largest.
    pub smallest_over_largest: f64,
}

impl Shares {
    /// Computes the fairness of `parts`; `None` if there are no parts, or all are 0.
    pub fn of(parts: &[u64]) -> Option<Self> {
        let (smallest, largest) = (parts.iter().min()?, parts.iter().max()?);
        if *largest == 0 {
            return None;
        }
        let sum: f64 = parts.iter().map(|&x| x as f64).sum();
        let squares: f64 = parts.iter().map(|&x| (x as f64).powi(2)).sum();
        Some(Self {
            jain: sum * sum / (parts.len() as f64 * squares),
            smallest_over_largest: *smallest as f64 / *largest as f64,
        })
    }
}

/// Returns the median of `samples` without those that are not finite.
pub fn median(samples: &[f64]) -> Option<f64> {
    Spread::of(samples).map(|s| s.median)
}

/// Computes `ours / theirs`, repeat by repeat. Repeats of one round were measured next to each other, so a
/// machine that slows down slows both. Repeats beyond the shorter of the two are left out.
pub fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
    let pairs = ours.iter().zip(theirs);
    Spread::of(
        &pairs
            .map(|(ours, theirs)| ours / theirs)
            .collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn median_of_odd_and_even() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN, 5.0]), Some(5.0));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine became half as fast, and the ratio did not change.
        let ratio = paired_ratio(&[10.0, 5.0], &[20.0, 10.0]).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (0.5, 0.5, 0.5));
        assert_eq!(paired_ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn shares_are_even_or_one_has_all() {
        let shares = |parts: &[u64]| {
            let shares = Shares::of(parts).unwrap();
            (shares.jain, shares.smallest_over_largest)
        };
        assert_eq!(shares(&[7, 7, 7, 7]), (1.0, 1.0));
        assert_eq!(shares(&[0, 0, 9, 0]), (0.25, 0.0));
        assert_eq!(shares(&[1, 3]), (0.8, 1.0 / 3.0));
        assert_eq!(Shares::of(&[]), None);
        assert_eq!(Shares::of(&[0, 0]), None);
    }

    proptest! {
        #[test]
        fn the_median_lies_within_the_spread(samples in prop::collection::vec(-1e12..1e12, 1..50)) {
            let s = Spread::of(&samples).unwrap();
            prop_assert!(s.low <= s.median && s.median <= s.high);
            prop_assert_eq!(s.repeats, samples.len());
            let below = samples.iter().filter(|x| **x < s.median).count();
            prop_assert!(below <= samples.len() / 2);
        }
    }
}

//! A value that a paper states: the form of the claim, and the section that makes it.

use std::fmt;

use serde::Serialize;

use crate::format::human;

/// Tolerance of [`Claim::About`] in both directions, as a fraction of the stated value.
pub const ABOUT: f64 = 0.15;
/// Tolerance of [`Claim::Exactly`], as a fraction of the stated value: it accepts what rounds to that value.
pub const EXACT: f64 = 0.02;

/// A value as a paper states it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Claim {
    /// The value itself, within [`EXACT`].
    Exactly(f64),
    /// "About", "around", "close to": within [`ABOUT`].
    About(f64),
    /// "Below", "less than", "at most".
    Below(f64),
    /// "Above", "more than", "at least".
    Above(f64),
    /// "Higher than", "better than": higher than every value that rounds to the stated one ([`EXACT`]). An
    /// equal value does not satisfy the claim.
    More(f64),
    /// The range from the first to the second value.
    Between(f64, f64),
}

impl Claim {
    /// Returns whether `ours` satisfies the claim.
    pub fn holds(self, ours: f64) -> bool {
        let tolerance = match self {
            Self::Exactly(_) => EXACT,
            Self::About(_) => ABOUT,
            Self::Below(_) | Self::Above(_) | Self::More(_) | Self::Between(..) => 0.0,
        };
        self.off(ours).abs() <= tolerance
    }

    /// Returns the relative deviation of `ours` from the nearest value that the claim allows; 0.1 is a tenth
    /// more. For [`Claim::Exactly`] and [`Claim::About`] that is the stated value itself, without its
    /// tolerance.
    pub fn off(self, ours: f64) -> f64 {
        match self {
            Self::Exactly(value) | Self::About(value) => ours / value - 1.0,
            Self::Below(limit) => (ours / limit - 1.0).max(0.0),
            Self::Above(limit) => (ours / limit - 1.0).min(0.0),
            Self::More(than) => (ours / (than * (1.0 + EXACT)) - 1.0).min(0.0),
            Self::Between(low, high) => (ours / low - 1.0).min(0.0) + (ours / high - 1.0).max(0.0),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exactly(value) => f.write_str(&human(value)),
            Self::About(value) => write!(f, "about {}", human(value)),
            Self::Below(limit) => write!(f, "below {}", human(limit)),
            Self::Above(limit) => write!(f, "above {}", human(limit)),
            Self::More(than) => write!(f, "more than {}", human(than)),
            Self::Between(low, high) => write!(f, "{} to {}", human(low), human(high)),
        }
    }
}

/// A claim, and the section of the paper that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PaperValue {
    /// The claim, in the unit of the metric.
    pub claim: Claim,
    /// Section, figure or table, as the paper numbers it. It begins with "derived: " where the value follows
    /// from a sentence, and with "calibrated: " where a constant of simulated RNICs was fitted to the value.
    pub section: &'static str,
    /// Presets of simulated devices that stand for the testbeds of the value. Empty: the value is for any device.
    #[serde(skip)]
    pub presets: &'static [&'static str],
}

/// The values that a paper states of one metric: one for any device, or several, each for some testbeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stated(Vec<PaperValue>);

impl Stated {
    /// Adds a value.
    pub fn add(&mut self, value: PaperValue) {
        self.0.push(value);
    }

    /// Returns whether the paper states nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value that holds on simulated devices of `preset`, or on other devices if that is `None`.
    pub fn on(&self, preset: Option<&str>) -> Option<PaperValue> {
        let holds = |value: &&PaperValue| {
            let presets = value.presets;
            presets.is_empty() || preset.is_some_and(|preset| presets.contains(&preset))
        };
        self.0.iter().find(holds).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Claim::{About, Above, Below, Between, Exactly, More};
    use super::{PaperValue, Stated};

    #[test]
    fn a_value_of_a_testbed_holds_on_its_presets_only() {
        let value = |value, presets| PaperValue {
            claim: About(value),
            section: "1",
            presets,
        };
        let mut stated = Stated::default();
        assert!(stated.is_empty() && stated.on(Some("a")).is_none());
        stated.add(value(1.0, &["a", "b"]));
        stated.add(value(2.0, &["c"]));
        let claims = [Some("b"), Some("c"), Some("d"), None];
        let claims = claims.map(|preset| stated.on(preset).map(|value| value.claim));
        assert_eq!(claims, [Some(About(1.0)), Some(About(2.0)), None, None]);
        let mut general = Stated::default();
        general.add(value(3.0, &[]));
        assert!(general.on(None).is_some() && general.on(Some("d")).is_some());
    }

    #[test]
    fn a_claim_holds_exactly_for_its_stated_range() {
        for (claim, text, inside, outside) in [
            (Exactly(0.66), "0.660", [0.65, 0.67], [0.6, 0.7]),
            (
                About(4000.0),
                "about 4000",
                [3500.0, 4500.0],
                [3300.0, 4700.0],
            ),
            (Below(7.0), "below 7.000", [0.0, 7.0], [7.1, 100.0]),
            (Above(2.0), "above 2.000", [2.0, 80.0], [1.9, 0.0]),
            (More(1.0), "more than 1.000", [1.03, 9.0], [1.0, 1.01]),
            (Between(1.5, 2.0), "1.500 to 2.000", [1.5, 2.0], [1.4, 2.1]),
        ] {
            assert_eq!(claim.to_string(), text);
            for ours in inside {
                assert!(claim.holds(ours), "{claim} holds {ours}");
            }
            for ours in outside {
                assert!(!claim.holds(ours), "{claim} does not hold {ours}");
            }
        }
        assert!((Between(5.0, 10.0).off(20.0) - 1.0).abs() < 1e-12);
        assert!((Above(5.0).off(4.0) + 0.2).abs() < 1e-12);
    }
}

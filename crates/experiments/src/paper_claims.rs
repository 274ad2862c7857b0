//! Statements of the papers about raw devices and plain verbs, and what the presets make of them.
//!
//! docs/simulation.md shows them as a table. A test compares the table with this list, and writes it anew. The papers' own
//! systems are predictions, and belong to the experiments; one value is derived from such a system, and says so.

mod list;
mod measures;

use std::fmt::Write;
use std::sync::atomic::AtomicBool;

use crate::claim::Claim;
use crate::format::human;
use crate::simulated::Simulated;
use crate::transports::ArmError;

pub use list::STATED;

/// A statement of a paper about a raw device.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The paper, by the name that the documentation has for it, and the section.
    pub paper: &'static str,
    /// What it says, in few words.
    pub says: &'static str,
    /// Its value, and how ours is measured.
    pub figure: Figure,
}

/// A statement's value.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// Ours is measured.
    Measured {
        /// The preset that it is measured on.
        preset: &'static str,
        /// The stated value, in `unit`.
        claim: Claim,
        /// The unit of both values.
        unit: &'static str,
        /// Measures ours.
        ours: Ours,
        /// Why ours does not meet the claim; `None` where it does.
        unmet: Option<&'static str>,
    },
    /// Ours is not measured.
    Left {
        /// The stated value, with its unit.
        value: &'static str,
        /// The reason.
        why: &'static str,
    },
}

/// Measures a value; `None` where what is stated does not happen.
pub type Ours = fn(&Bed<'_>) -> Result<Option<f64>, ArmError>;

/// A value that is measured on that preset.
const fn on(preset: &'static str, claim: Claim, unit: &'static str, ours: Ours) -> Figure {
    Figure::Measured {
        preset,
        claim,
        unit,
        ours,
        unmet: None,
    }
}

/// A value that is not measured, for that reason.
const fn left(value: &'static str, why: &'static str) -> Figure {
    Figure::Left { value, why }
}

impl Figure {
    /// The same, which ours does not meet for that reason.
    const fn unmet(mut self, why: &'static str) -> Self {
        if let Self::Measured { unmet, .. } = &mut self {
            *unmet = Some(why);
        }
        self
    }
}

/// What a statement is measured on.
pub struct Bed<'a> {
    /// The preset's machines.
    pub(crate) machines: Simulated,
    pub(crate) stop: &'a AtomicBool,
}

/// A statement with what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// The statement.
    pub statement: &'static Statement,
    /// Ours, if it was measured and happened.
    pub ours: Option<f64>,
}

impl Compared {
    /// How far ours is from what is stated; `None` where there is nothing to compare.
    pub fn off(&self) -> Option<f64> {
        match self.statement.figure {
            Figure::Measured { claim, .. } => self.ours.map(|ours| claim.off(ours)),
            Figure::Left { .. } => None,
        }
    }

    /// Whether ours is as stated, or near enough; `None` of what is not measured.
    pub fn is_met(&self) -> Option<bool> {
        match self.statement.figure {
            Figure::Measured { claim, .. } => Some(self.ours.is_some_and(|ours| claim.holds(ours))),
            Figure::Left { .. } => None,
        }
    }
}

/// Measures every statement that can be, one after the other, in virtual time.
///
/// # Errors
///
/// What kept one from being measured, with its name.
pub fn compare() -> Result<Vec<Compared>, ArmError> {
    let stop = AtomicBool::new(false);
    let compared = STATED.iter().map(|statement| {
        let ours = match statement.figure {
            Figure::Left { .. } => None,
            Figure::Measured { preset, ours, .. } => {
                let machines = Simulated::named(preset);
                let machines = machines.ok_or_else(|| ArmError(format!("no preset {preset}")))?;
                let stop = &stop;
                let found = ours(&Bed { machines, stop });
                found.map_err(|why| ArmError::at(statement.says, why))?
            }
        };
        Ok(Compared { statement, ours })
    });
    compared.collect()
}

/// The table of the documentation.
pub fn table(compared: &[Compared]) -> String {
    let mut text =
        "\n| statement | paper | preset | stated | ours | off |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let mut causes = Vec::new();
    for found in compared {
        let Statement {
            paper,
            says,
            figure,
        } = found.statement;
        // Writing to a string does not fail.
        let _ = match figure {
            Figure::Left { value, why } => {
                writeln!(text, "| {says} | {paper} | – | {value} | {why} | – |")
            }
            Figure::Measured {
                preset,
                claim,
                unit,
                unmet,
                ..
            } => {
                let stated = match claim {
                    Claim::About(stated) => format!("about {stated} {unit}"),
                    Claim::Exactly(stated) => format!("{stated} {unit}"),
                    Claim::Below(stated) => format!("below {stated} {unit}"),
                    other => format!("{other} {unit}"),
                };
                let ours = match found.ours {
                    Some(ours) => format!("{} {unit}", human(ours)),
                    None => "none".to_owned(),
                };
                let off = match (found.off(), claim) {
                    (None, _) => "–".to_owned(),
                    (Some(0.0), Claim::Below(_)) => "within".to_owned(),
                    (Some(off), _) => format!("{:+.0} %", 100.0 * off),
                };
                let note = match unmet {
                    None => String::new(),
                    Some(why) => {
                        causes.push(format!("{says}: {why}"));
                        format!(" ({})", causes.len())
                    }
                };
                writeln!(
                    text,
                    "| {says} | {paper} | {preset} | {stated} | {ours} | {off}{note} |"
                )
            }
        };
    }
    for (at, why) in (1..).zip(causes) {
        let _ = write!(text, "\n({at}) {why}\n");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    static ABOUT: Statement = Statement {
        paper: "A V",
        says: "something",
        figure: on("cx5-100g", Claim::About(100.0), "Gbit/s", |_| Ok(None)).unmet("because"),
    };
    static BELOW: Statement = Statement {
        figure: on("cx5-100g", Claim::Below(3.0), "µs", |_| Ok(None)),
        ..ABOUT
    };
    static LEFT: Statement = Statement {
        figure: left("66 %", "nobody locks"),
        ..ABOUT
    };

    fn found(statement: &'static Statement, ours: Option<f64>) -> Compared {
        Compared { statement, ours }
    }

    #[test]
    fn near_enough_is_met_on_either_side_and_what_does_not_happen_is_not() {
        for (ours, met) in [(86.0, true), (84.0, false), (114.0, true), (116.0, false)] {
            assert_eq!(found(&ABOUT, Some(ours)).is_met(), Some(met), "{ours}");
        }
        assert_eq!(found(&ABOUT, None).is_met(), Some(false));
        for (ours, met) in [(0.1, true), (3.0, true), (3.1, false)] {
            assert_eq!(found(&BELOW, Some(ours)).is_met(), Some(met), "{ours}");
        }
        assert_eq!(found(&LEFT, None).is_met(), None);
    }

    #[test]
    fn the_table_has_a_line_for_each_and_the_causes_below() {
        let text = table(&[
            found(&ABOUT, Some(120.0)),
            found(&BELOW, Some(1.5)),
            found(&LEFT, None),
            found(&ABOUT, None),
        ]);
        for line in [
            "| something | A V | cx5-100g | about 100 Gbit/s | 120 Gbit/s | +20 % (1) |",
            "| something | A V | cx5-100g | below 3 µs | 1.500 µs | within |",
            "| something | A V | – | 66 % | nobody locks | – |",
            "| something | A V | cx5-100g | about 100 Gbit/s | none | – (2) |",
            "(1) something: because",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn every_statement_says_where_it_is_stated() {
        assert!(STATED.len() > 10);
        for statement in STATED {
            let known = ["RB² ", "RaaS ", "Patterns ", "Jet ", "Weir "];
            let paper = statement.paper;
            assert!(known.iter().any(|name| paper.starts_with(name)), "{paper}");
            assert!(!statement.says.contains('|') && !statement.says.is_empty());
        }
    }
}

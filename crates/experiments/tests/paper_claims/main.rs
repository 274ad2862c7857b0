//! Statements of the papers about raw devices and plain verbs. The presets satisfy them, and
//! docs/simulation.md has the same table.
//!
//! The papers' own systems are predictions, which the experiments test; one value is derived from such a
//! system, and says so. Everything runs in virtual time, so two runs give the same values, to the byte.

mod list;
mod measurements;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use headworks_experiments::claim::Claim;
use headworks_experiments::format::human;
use headworks_experiments::simulated_machine::SimulatedMachine;
use headworks_experiments::transports::WorkloadError;

use list::STATED;

/// The lines before and after the generated part of the page.
const BEGIN: &str = "--test paper_claims`. -->\n";
const END: &str = "<!-- End of that. -->\n";

/// A statement of a paper about a raw device.
#[derive(Clone, Copy, Debug)]
struct Statement {
    paper: &'static str,
    says: &'static str,
    figure: Figure,
}

/// A statement's value.
#[derive(Clone, Copy, Debug)]
enum Figure {
    /// Our value is measured.
    Measured {
        preset: &'static str,
        claim: Claim,
        unit: &'static str,
        ours: Ours,
        /// Reason for which our value does not satisfy the claim; empty if it does.
        unmet: &'static str,
    },
    /// Our value is not measured.
    Left {
        /// The stated value, with its unit.
        value: &'static str,
        why: &'static str,
    },
}

/// A function that measures a value; `None` if the stated effect does not occur.
type Ours = fn(&ClaimTestbed<'_>) -> Result<Option<f64>, WorkloadError>;

/// Makes a value that is measured on the preset `preset`.
const fn on(preset: &'static str, claim: Claim, unit: &'static str, ours: Ours) -> Figure {
    Figure::Measured {
        preset,
        claim,
        unit,
        ours,
        unmet: "",
    }
}

/// Makes a value that is not measured, with the reason.
const fn left(value: &'static str, why: &'static str) -> Figure {
    Figure::Left { value, why }
}

impl Figure {
    /// Adds the reason why our value does not satisfy the claim.
    const fn unmet(mut self, why: &'static str) -> Self {
        if let Self::Measured { unmet, .. } = &mut self {
            *unmet = why;
        }
        self
    }
}

/// The simulated machines on which a statement is measured, and the stop flag.
struct ClaimTestbed<'a> {
    machines: SimulatedMachine,
    stop: &'a AtomicBool,
}

/// A statement, and our value.
#[derive(Clone, Copy, Debug)]
struct Compared {
    statement: &'static Statement,
    /// Our value, if it was measured and the effect occurred.
    ours: Option<f64>,
}

impl Compared {
    /// Returns an error of the list: an unsatisfied claim without a reason, or a satisfied claim with one.
    fn wrong(&self) -> Option<String> {
        let Figure::Measured { claim, unmet, .. } = self.statement.figure else {
            return None;
        };
        let is_met = self.ours.is_some_and(|ours| claim.holds(ours));
        let what = if is_met {
            "is met by now"
        } else {
            "is not met"
        };
        (is_met != unmet.is_empty()).then(|| format!("{}: {what}", self.statement.says))
    }
}

/// Measures every statement that can be measured, one after the other.
fn compare() -> Vec<Compared> {
    let stop = AtomicBool::new(false);
    let compared = STATED.iter().map(|statement| {
        let Figure::Measured { preset, ours, .. } = statement.figure else {
            let ours = None;
            return Compared { statement, ours };
        };
        let machines = SimulatedMachine::named(preset).expect(preset);
        let stop = &stop;
        let ours = ours(&ClaimTestbed { machines, stop }).expect(statement.says);
        Compared { statement, ours }
    });
    compared.collect()
}

/// Makes the table of the documentation.
fn table(compared: &[Compared]) -> String {
    let header = "| statement | paper | preset | stated | ours | off |\n|---|---|---|---|---|---|";
    let mut text = format!("\n{header}\n");
    let mut causes = Vec::new();
    for Compared { statement, ours } in compared {
        let Statement { paper, says, .. } = statement;
        let cells = match statement.figure {
            Figure::Left { value, why } => format!("– | {value} | {why} | –"),
            Figure::Measured {
                preset,
                claim,
                unit,
                unmet,
                ..
            } => {
                let stated = match claim {
                    Claim::About(stated) => format!("about {stated}"),
                    Claim::Exactly(stated) => stated.to_string(),
                    Claim::Below(stated) => format!("below {stated}"),
                    other => other.to_string(),
                };
                let (ours, off) = match ours.map(|ours| (ours, claim.off(ours))) {
                    None => ("none".to_owned(), "–".to_owned()),
                    Some((ours, off)) => {
                        let off = match claim {
                            Claim::Below(_) if off == 0.0 => "within".to_owned(),
                            _ => format!("{:+.0} %", 100.0 * off),
                        };
                        (format!("{} {unit}", human(ours)), off)
                    }
                };
                let mut note = String::new();
                if !unmet.is_empty() {
                    causes.push(format!("{says}: {unmet}"));
                    note = format!(" ({})", causes.len());
                }
                format!("{preset} | {stated} {unit} | {ours} | {off}{note}")
            }
        };
        text += &format!("| {says} | {paper} | {cells} |\n");
    }
    for (at, why) in (1..).zip(causes) {
        text += &format!("\n({at}) {why}\n");
    }
    text + "\n"
}

#[test]
fn statements_about_raw_devices_are_met_and_documented() {
    let compared = compare();
    let there = table(&compared);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulation.md");
    let text = std::fs::read_to_string(&path).expect("docs/simulation.md");
    let (before, rest) = text.split_once(BEGIN).expect("where the table begins");
    let (old, after) = rest.split_once(END).expect("where it ends");
    if std::env::var_os("HEADWORKS_WRITE_TABLE").is_some() {
        let whole = format!("{before}{BEGIN}{there}{END}{after}");
        std::fs::write(&path, whole).expect("a page of docs/ can be written");
    } else {
        assert!(
            old == there,
            "docs/simulation.md is out of date: \
             HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-experiments --test paper_claims\n{there}"
        );
    }
    let wrong: Vec<_> = compared.iter().filter_map(|found| found.wrong()).collect();
    assert!(wrong.is_empty(), "{}\n{there}", wrong.join("\n"));
}

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
fn a_claim_is_met_within_tolerance_on_either_side() {
    // The first statement has a reason why it is not satisfied; the others have none.
    for (statement, ours, is_met) in [
        (&ABOUT, Some(86.0), true),
        (&ABOUT, Some(84.0), false),
        (&ABOUT, Some(114.0), true),
        (&ABOUT, Some(116.0), false),
        (&ABOUT, None, false),
        (&BELOW, Some(0.1), true),
        (&BELOW, Some(3.0), true),
        (&BELOW, Some(3.1), false),
        (&LEFT, None, true),
    ] {
        let is_wrong = found(statement, ours).wrong().is_some();
        let has_reason = std::ptr::eq(statement, &ABOUT);
        assert_eq!(is_wrong, is_met == has_reason, "{statement:?} {ours:?}");
    }
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

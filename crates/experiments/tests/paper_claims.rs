//! The presets meet what papers state of raw devices, and docs/simulation.md has the same table. Everything runs in virtual
//! time, so two runs find the same values, to the byte.

use std::path::Path;

use headworks_experiments::paper_claims::{Figure, compare, table};

/// The lines around the generated part of the page.
const BEGIN: &str = "--test paper_claims`. -->\n";
const END: &str = "<!-- End of that. -->\n";

#[test]
fn statements_about_raw_devices_are_met_and_documented() {
    let compared = compare().expect("every statement can be measured");
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
    let mut wrong = Vec::new();
    for found in &compared {
        let Figure::Measured { unmet, .. } = found.statement.figure else {
            continue;
        };
        let is_met = found.is_met() == Some(true);
        if is_met == unmet.is_some() {
            let what = if is_met {
                "is met by now"
            } else {
                "is not met"
            };
            wrong.push(format!("{}: {what}", found.statement.says));
        }
    }
    assert!(wrong.is_empty(), "{}\n{there}", wrong.join("\n"));
}

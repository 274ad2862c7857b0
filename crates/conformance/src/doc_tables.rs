//! Tables for the documentation: `docs/conformance.md` lists what the cases cover, `docs/verbs.md` what
//! devices do [differently](device_differences).

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{Case, Row};

pub mod device_differences;

const HEAD: &str = "\
# What the conformance suite covers

This page is generated from the cases of `headworks-conformance`; do not edit it. After you change a case, run
`HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-conformance --test doc_tables`.

Each row names an operation of a verb, its fault or special condition (`-` for none), the required
outcome, and the case that checks it. `HEADWORKS_CASE=NAME cargo test -p headworks-conformance --test soft`
runs the cases whose name contains NAME.
";

/// Returns the coverage page as Markdown.
pub fn markdown(cases: impl IntoIterator<Item = Case>) -> String {
    let mut by_verb: BTreeMap<&str, Vec<(Row, String)>> = BTreeMap::new();
    for case in cases {
        for row in case.rows {
            let rows = by_verb.entry(row.verb).or_default();
            rows.push((row, case.name.clone()));
        }
    }
    let mut text = HEAD.to_owned();
    for (verb, rows) in by_verb {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n## `{verb}`\n\n| operation | condition | outcome | case |\n|---|---|---|---|\n"
        );
        for (row, case) in rows {
            let Row {
                operation,
                wrong,
                outcome,
                ..
            } = row;
            let _ = writeln!(text, "| {operation} | {wrong} | {outcome} | `{case}` |");
        }
    }
    text
}

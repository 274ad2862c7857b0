//! Checks that the generated pages are up to date: `docs/conformance.md` (what the cases cover) and
//! `docs/verbs.md` (how devices differ).

use std::collections::BTreeSet;
use std::path::Path;

use headworks_conformance::doc_tables::{self, device_differences};
use headworks_conformance::{cases, known_deviations};

/// Checks that a page of `docs/` equals `generated`. If `HEADWORKS_WRITE_TABLE` is set, writes it first.
fn expect_page(name: &str, generated: &str) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let path = docs.join(name);
    if std::env::var_os("HEADWORKS_WRITE_TABLE").is_some() {
        std::fs::write(&path, generated).expect("a page of docs/ can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == generated,
        "docs/{name} is out of date: \
         HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-conformance --test doc_tables"
    );
}

#[test]
fn the_table_in_the_documentation_is_that_of_the_cases() {
    expect_page("conformance.md", &doc_tables::markdown(cases()));
}

#[test]
fn the_documentation_lists_device_differences() {
    expect_page(
        "verbs.md",
        &device_differences::markdown(known_deviations::RXE),
    );
}

#[test]
fn every_case_has_a_name_of_its_own_and_covers_something() {
    let mut names = BTreeSet::new();
    for case in cases() {
        assert!(!case.rows.is_empty(), "{} covers nothing", case.name);
        assert!(
            names.insert(case.name.clone()),
            "{} is there twice",
            case.name
        );
    }
}

#[test]
fn known_deviations_name_existing_cases() {
    let names: BTreeSet<_> = cases().map(|case| case.name).collect();
    for case in known_deviations::RXE.iter().flat_map(|known| known.cases) {
        assert!(names.contains(*case), "no case {case}");
    }
}

//! `docs/conformance.md` says what the cases cover.

use std::path::Path;

use headworks_conformance::{cases, table};

#[test]
fn the_table_in_the_documentation_is_that_of_the_cases() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let generated = table::markdown(cases());
    if std::env::var_os("HEADWORKS_WRITE_TABLE").is_some() {
        std::fs::write(&path, &generated).expect("docs/conformance.md can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == generated,
        "docs/conformance.md is out of date: \
         HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-conformance --test table"
    );
}

#[test]
fn every_case_has_a_name_of_its_own_and_covers_something() {
    let mut names = std::collections::BTreeSet::new();
    for case in cases() {
        assert!(!case.rows.is_empty(), "{} covers nothing", case.name);
        assert!(
            names.insert(case.name.clone()),
            "{} is there twice",
            case.name
        );
    }
}

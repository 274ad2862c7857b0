//! The repository keeps its own rules.

use xtask::{arrows, root, tidy};

fn assert_none(what: &str, wrong: &[impl ToString]) {
    let lines: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
}

#[test]
fn dependencies_follow_the_arrows() {
    let workspace = arrows::metadata(&root()).unwrap();
    assert_none("dependencies", &arrows::check(&workspace));
}

#[test]
fn sources_are_tidy() {
    assert_none("not tidy", &tidy::check(&root()).unwrap());
}

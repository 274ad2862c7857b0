//! Checks the repository against its own rules.

use std::process::{Command, Stdio};

use xtask::{layering, module_cycles, root, tidy};

fn assert_none(what: &str, wrong: &[impl ToString]) {
    let lines: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
}

#[test]
fn dependencies_follow_the_layering() {
    // A machine that has only the built test may have no cargo.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut asked = Command::new(&cargo);
    asked.arg("--version").stdout(Stdio::null());
    if let Err(error) = asked.status() {
        println!("skipped: {}: {error}", cargo.display());
        let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|word| word == "cargo");
        assert!(!required, "cargo is required: {error}");
        return;
    }
    let workspace = layering::metadata(&root()).unwrap();
    assert_none("dependencies", &layering::check(&workspace));
}

#[test]
fn modules_of_a_crate_form_no_cycle() {
    assert_none("cycles", &module_cycles::check(&root()).unwrap());
}

#[test]
fn sources_are_tidy() {
    assert_none("not tidy", &tidy::check(&root()).unwrap());
}

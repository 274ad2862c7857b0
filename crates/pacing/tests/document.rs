//! Checks that docs/pacing.md lists every constant as the code has it.

use std::fmt::Write;
use std::path::Path;

use headworks_pacing::CONSTANTS;

/// The generated part of the page begins after this.
const MARK: &str = "--test document`. -->\n";

fn table() -> String {
    let mut text =
        "\n| constant | unit | may be | default | what |\n|---|---|---|---|---|\n".to_owned();
    for constant in CONSTANTS {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            constant.key,
            constant.unit,
            constant.range(),
            constant.default(),
            constant.what,
        );
    }
    text
}

fn page() -> (std::path::PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pacing.md");
    let text = std::fs::read_to_string(&path).expect("docs/pacing.md");
    (path, text)
}

#[test]
fn the_constants_in_the_documentation_are_those_of_the_code() {
    let (path, text) = page();
    let (prose, there) = text.split_once(MARK).expect("the mark");
    if std::env::var_os("HEADWORKS_WRITE_TABLE").is_some() {
        let whole = format!("{prose}{MARK}{}", table());
        return std::fs::write(&path, whole).expect("a page of docs/ can be written");
    }
    assert!(
        there == table(),
        "docs/pacing.md is out of date: \
         HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-pacing --test document"
    );
}

#[test]
fn the_documentation_names_no_constant_that_there_is_not() {
    let (_, text) = page();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let keys = words.filter_map(|word| word.strip_prefix("pace_"));
    let mut count = 0;
    for key in keys.filter(|key| *key != "KEY") {
        assert!(
            CONSTANTS.iter().any(|constant| constant.key == key),
            "{key}"
        );
        count += 1;
    }
    assert!(count > 5, "{count}");
}

//! Checks that docs/simulation.md lists every constant with its current values.

use std::fmt::Write;
use std::path::Path;

use headworks_simnic::{CONSTANTS, Preset};

/// End of the page's written part; the generated table follows.
const MARK: &str = "--test document`. -->\n";

fn table() -> String {
    let presets: Vec<_> = Preset::NAMES
        .into_iter()
        .filter_map(Preset::named)
        .collect();
    let mut text = format!(
        "\n| constant | unit | {} | what | source |\n|---|---|{}---|---|\n",
        Preset::NAMES.join(" | "),
        "---|".repeat(presets.len()),
    );
    for constant in CONSTANTS {
        let values = presets
            .iter()
            .filter_map(|preset| preset.value(constant.key));
        let values: Vec<_> = values.map(|value| value.to_string()).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            constant.key,
            constant.unit,
            values.join(" | "),
            constant.what,
            constant.source
        );
    }
    text
}

fn page() -> (std::path::PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulation.md");
    let text = std::fs::read_to_string(&path).expect("docs/simulation.md");
    (path, text)
}

#[test]
fn the_constants_in_the_documentation_are_those_of_the_code() {
    let names = [
        "cx3-40g",
        "cx5-100g",
        "cx6-100g",
        "cx4lx-2x25g",
        "cx6dx-2x100g",
    ];
    assert_eq!(Preset::NAMES, names);
    let (path, text) = page();
    let (prose, there) = text.split_once(MARK).expect("the mark");
    if std::env::var_os("HEADWORKS_WRITE_TABLE").is_some() {
        let whole = format!("{prose}{MARK}{}", table());
        return std::fs::write(&path, whole).expect("a page of docs/ can be written");
    }
    assert!(
        there == table(),
        "docs/simulation.md is out of date: \
         HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-simnic --test document"
    );
}

#[test]
fn the_page_states_roce_goodput_for_512_bytes() {
    let (_, text) = page();
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    let preset = Preset::named("cx6-100g").expect("a preset");
    let carries = |headers: u64| preset.link_gbps * 512.0 / (512 + headers) as f64;
    let sends = carries(preset.header_bytes);
    let writes = carries(preset.header_bytes + preset.reth_bytes);
    let says = format!(
        "RoCE carries at most {sends:.1} Gbit/s of payload by SENDs of 512 B, and {writes:.1} Gbit/s by \
         WRITEs of 512 B"
    );
    assert!(text.contains(&says), "{says}");
}

#[test]
fn the_documentation_names_no_constant_that_there_is_not() {
    let (_, text) = page();
    let groups = ["cpu.", "pcie.", "nic.", "link."];
    let named = text.split('`').skip(1).step_by(2);
    let named = named.filter(|name| groups.iter().any(|group| name.starts_with(group)));
    let mut count = 0;
    for name in named {
        // Some are named together with another value.
        let (key, _) = name.split_once('=').unwrap_or((name, ""));
        let known = CONSTANTS.iter().any(|constant| constant.key == key);
        assert!(known, "{name}");
        count += 1;
    }
    assert!(count > 2 * CONSTANTS.len(), "{count}");
}

#[test]
fn every_constant_of_the_model_is_in_the_text_or_says_that_it_is_not() {
    let (_, text) = page();
    let (prose, _) = text.split_once(MARK).expect("the mark");
    for constant in CONSTANTS {
        let is_told = prose.contains(&format!("`{}`", constant.key));
        // These are self-explanatory, or not used by the model.
        let plain = constant.key.ends_with("_ways")
            || constant.key.ends_with("latency")
            || [
                "cpu.bench",
                "cpu.lock",
                "cpu.page",
                "cpu.huge_page",
                "nic.wqe",
                "nic.max_inline",
            ]
            .contains(&constant.key);
        assert!(is_told || plain, "{}", constant.key);
    }
}

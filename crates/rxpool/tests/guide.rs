//! The guide must show its program exactly as it is built here, and the program must do what the guide says.
#![cfg(feature = "crc32c")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_guide_shows_the_program_as_it_is() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(package.join(path)).expect("a file");
    let (page, program) = (
        read("../../docs/receive-pool.md"),
        read("examples/receive.rs"),
    );
    // The page describes the program in its own words instead of the module's documentation.
    let (_, program) = program.split_once("\n").expect("code");
    let shown = format!("```rust\n{}```", program.trim_start());
    assert!(
        page.contains(&shown),
        "copy examples/receive.rs to the page"
    );
}

#[test]
fn the_program_of_the_guide_sends_and_receives_all_bytes() {
    // `cargo test` builds the examples beside the folder of this test.
    let this = std::env::current_exe().expect("this program");
    let target: PathBuf = this.ancestors().nth(2).expect("a target folder").into();
    let program = target.join("examples").join("receive");
    let output = Command::new(program).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = text.lines().collect();
    let starts = [
        "100000 bytes (copied) arrived, CRC32C 0x",
        "1000000 bytes (registered) arrived, CRC32C 0x",
    ];
    assert_eq!(lines.len(), starts.len(), "{text}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{text}");
    }
}

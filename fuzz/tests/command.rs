//! Tests of the program `headworks-fuzz`.

use std::fs;
use std::path::Path;
use std::process::Command;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_headworks-fuzz"))
}

/// The target `registry` empties the registry that it runs on. It must not run on one that the user named.
#[test]
fn a_registry_named_by_the_user_is_left_alone() {
    let theirs = tempfile::tempdir().unwrap();
    let file = theirs.path().join("c.0000000000000001.0000");
    fs::write(&file, "somebody's").unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/registry");
    let inputs = fs::read_dir(corpus).unwrap();
    let ran = program()
        .args(["replay", "registry"])
        .args(inputs.map(|entry| entry.unwrap().path()))
        .env("HEADWORKS_FABRIC", theirs.path())
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");
}

#[test]
fn an_unknown_target_is_reported() {
    for args in [["run", "--seconds"], ["replay", "nothing"]] {
        let ran = program().args(args).arg("1").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2));
        assert!(
            said.contains(args[1]) && said.contains("slot_queue"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

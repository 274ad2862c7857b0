//! Wrong input is one clear line and the right exit code.

use std::process::Stdio;

use crate::common::{Fabric, Side};

fn fails(fabric: &Fabric, args: &[&str], code: i32, says: &str) {
    let mut side = Side::start(&mut fabric.headworks(args));
    let complaint = side.ends_with(code);
    assert!(complaint.contains(says), "{args:?}: {complaint}");
    assert!(complaint.chars().count() < 1100, "{args:?}: {complaint}");
}

#[test]
fn bad_input_is_one_line() {
    let fabric = Fabric::new();
    fails(
        &fabric,
        &["pipe", "connect", "a"],
        1,
        "nobody listens under the name a",
    );
    fails(&fabric, &["pipe", "connect", "a/b"], 2, "bad name");
    fails(&fabric, &["pipe", "listen", ""], 2, "bad name");
    fails(
        &fabric,
        &["pipe", "listen", "a", "--device", "nope"],
        2,
        "no device kind \"nope\" (known: soft)",
    );
    fails(
        &fabric,
        &["pipe", "listen", "a", "--device", "soft,x=1"],
        2,
        "x",
    );
    fails(&fabric, &["pipe", "listen"], 2, "NAME");
    fails(&fabric, &["pipe", "listen", "a", "--bogus"], 2, "--bogus");
    fails(
        &fabric,
        &["experiment", "run", "no-such"],
        2,
        "no experiment is called \"no-such\" (known: ",
    );
    fabric.is_clean();
}

/// The exit code where standard error is a pipe that nobody reads.
fn code_unheard(fabric: &Fabric, args: &[&str]) -> Option<i32> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut side = Side::start(fabric.headworks(args).stderr(writer));
    side.wait().code()
}

#[test]
fn exit_codes_are_the_same_where_nobody_reads_standard_error() {
    let fabric = Fabric::new();
    for (args, code) in [
        (&["pipe", "connect", "a"][..], 1),
        (&["pipe", "connect", "a/b"], 2),
        (&["pipe", "listen"], 2),
        (&["pipe"], 2),
        (&["no-such"], 2),
        (&["demo", "/no/such/file"], 2),
        (&["devices"], 0),
    ] {
        assert_eq!(code_unheard(&fabric, args), Some(code), "{args:?}");
    }
    // With all that can be said on the way.
    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let args = ["-vvv", "pipe", "connect", "a", "--progress"];
    assert_eq!(code_unheard(&fabric, &args), Some(0));
    listener.ends_with(0);
    fabric.is_clean();
}

#[test]
fn timeouts_name_who_did_not_come_and_how_long_that_was_waited_for() {
    let fabric = Fabric::new();
    for (verb, says) in [
        ("listen", "waiting for a caller under the name nemo"),
        ("connect", "waiting for a listener under the name nemo"),
    ] {
        fails(&fabric, &["pipe", verb, "nemo", "--timeout", "0"], 1, says);
        let args = ["pipe", verb, "nemo", "--timeout", "1"];
        fails(&fabric, &args, 1, "(1 s)");
        for wrong in ["-1", "1.5", "", "x", "31536001", "99999999999999999999"] {
            let args = ["pipe", verb, "nemo", "--timeout", wrong];
            fails(&fabric, &args, 2, "whole seconds, 0 to 31536000");
        }
    }
    fabric.is_clean();
}

#[test]
fn what_is_far_too_long_is_cut() {
    let fabric = Fabric::new();
    let long = "x".repeat(100_000);
    fails(&fabric, &["pipe", "listen", &long], 2, "bad name \"xxx");
    fails(
        &fabric,
        &["pipe", "connect", &long],
        2,
        "1 to 64 characters",
    );
    fails(&fabric, &["experiment", "run", &long], 2, "xxx…");
    fails(&fabric, &["demo", &long], 2, "xxx…");
    fails(&fabric, &["demo", "--device", &long], 2, "xxx…");
    let words = "x ".repeat(50_000);
    fails(&fabric, &["demo", "--device", &words], 2, "x x…");
    fabric.is_clean();
}

#[test]
fn a_name_in_use_is_refused() {
    let fabric = Fabric::new();
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let pid = listener.0.id().to_string();
    fails(&fabric, &["pipe", "listen", "a"], 2, &pid);
    drop(listener);
    fabric.is_clean_after_next_user();
}

#[test]
fn a_full_output_is_a_failure() {
    let fabric = Fabric::new();
    for args in [&["devices"][..], &["experiment", "list"]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut side = Side::start(fabric.headworks(args).stdout(full.expect("/dev/full")));
        assert_eq!(side.wait().code(), Some(1), "{args:?}");
        let said = side.complaint();
        assert!(said.contains("writing to standard output"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn what_was_closed_is_refused() {
    let fabric = Fabric::new();
    for (args, closes, name) in [
        ("listen a", ">&-", "output"),
        ("connect a", "<&-", "input"),
        ("connect a --reverse", ">&-", "output"),
    ] {
        let mut shell = std::process::Command::new("sh");
        let program = env!("CARGO_BIN_EXE_headworks");
        shell
            .args(["-c", &format!("exec '{program}' pipe {args} {closes}")])
            .env("HEADWORKS_FABRIC", fabric.registry())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped());
        let mut side = Side::start(&mut shell);
        assert_eq!(side.wait().code(), Some(2), "{args}");
        let said = side.complaint();
        assert!(
            said.contains(&format!("standard {name} is closed")),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

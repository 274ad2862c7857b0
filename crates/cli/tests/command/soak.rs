//! `headworks sim soak`.

use std::process::{Command, Output};

fn soak(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headworks"))
        .args(["sim", "soak"])
        .args(args)
        .output()
        .expect("starts")
}

#[test]
fn seeds_are_run_and_counted_and_come_to_the_same_again() {
    let first = soak(&["--seeds", "1..6"]);
    assert!(first.status.success(), "{first:?}");
    let text = String::from_utf8_lossy(&first.stdout);
    assert!(
        text.starts_with("simulated: 5 seeds from 1 on, ") && text.ends_with(" 0 seeds failed\n"),
        "{text}"
    );
    assert_eq!(soak(&["--seeds", "1..6"]).stdout, first.stdout);
}

#[test]
fn it_ends_when_the_time_is_over() {
    for (args, from) in [
        (&["--for", "1"][..], "seeds from 1 on,"),
        (&["--for", "1", "--seeds", "700.."], "seeds from 700 on,"),
    ] {
        let done = soak(args);
        assert!(done.status.success(), "{done:?}");
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(text.contains(from), "{text}");
    }
    // Both limits given: the first to be reached ends it.
    let done = soak(&["--for", "3600", "--seeds", "700..702"]);
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        text.starts_with("simulated: 2 seeds from 700 on, "),
        "{text}"
    );
}

#[test]
fn wrong_seeds_and_times_are_one_line() {
    for (args, says) in [
        (&["--seeds", "7"][..], "A..B"),
        (&["--seeds", "7..7"], "the first below the second"),
        (&["--seeds", "-1..7"], "whole numbers"),
        (
            &["--seeds", "1..18446744073709551616"],
            "at most 18446744073709551615",
        ),
        (&["--for", "0"], "whole seconds, 1 to"),
        (&["--for", "x"], "whole seconds, 1 to"),
        (
            &["--seeds", "7.."],
            "--seeds 7..: seeds without an end need --for",
        ),
        (&["--seeds", ".."], "A.. with --for"),
        (&["--for", "1", "--seeds", "..7"], "A.. with --for"),
    ] {
        let done = soak(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        let line = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(line.contains(says) && line.lines().count() == 1, "{line}");
    }
}

//! Bad input gives one clear line and the right exit code.

use std::process::Stdio;

use crate::test_env::{CommandProcess, TestEnv};

fn fails(fabric: &TestEnv, args: &[&str], code: i32, says: &str) {
    let mut side = CommandProcess::start(&mut fabric.headworks(args));
    let complaint = side.expect_exit(code);
    assert!(complaint.contains(says), "{args:?}: {complaint}");
    assert!(complaint.chars().count() < 1100, "{args:?}: {complaint}");
}

#[test]
fn bad_input_is_one_line() {
    let fabric = TestEnv::new();
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
        "no device kind \"nope\" (known: soft, ibv, sim)",
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

#[test]
fn a_wrong_option_of_a_hostile_device_is_one_line() {
    let fabric = TestEnv::new();
    let seeds = "seed=N, a number from 0 to 18446744073709551615";
    let kills = "kills=N, one request in N from 1 to 4294967295";
    let empty = "keys of [a-z0-9_], neither empty";
    for (device, wrong, legal) in [
        (
            "soft,hostile,loss=3",
            "loss=3",
            "hostile, seed=N, kills=N and losses=N",
        ),
        ("soft,hostile=yes", "hostile=yes", "hostile takes no value"),
        ("soft,hostile,seed=abc", "seed=abc", seeds),
        ("soft,hostile,seed=+7", "seed=+7", seeds),
        ("soft,hostile,seed", "seed", seeds),
        ("soft,seed=7", "seed=7", seeds),
        ("soft,hostile,kills=yes", "kills=yes", kills),
        ("soft,hostile,kills=0", "kills=0", kills),
        (
            "soft,hostile,losses=0",
            "losses=0",
            "losses=N, one datagram or UC message in N",
        ),
        ("soft,kills=9", "kills=9", kills),
        (
            "soft,hostile,ordered_between_writes=maybe",
            "ordered_between_writes=maybe",
            "ordered_between_writes=yes or ordered_between_writes=no",
        ),
        (
            "soft,hostile,atomic_aligned_8",
            "atomic_aligned_8",
            "atomic_aligned_8=yes or atomic_aligned_8=no",
        ),
        ("soft,hostile=", "hostile=", empty),
        ("soft,hostile,seed=", "seed=", empty),
        ("soft,", "", empty),
        ("soft,,hostile", "", empty),
        ("soft,hostile,seed=1,seed=1", "seed", "given twice"),
        ("soft,hostile,hostile", "hostile", "given twice"),
    ] {
        for args in [
            &["pipe", "listen", "a"][..],
            &["pipe", "connect", "a"],
            &["demo"],
        ] {
            let args = [args, &["--device", device]].concat();
            let mut side = CommandProcess::start(&mut fabric.headworks(&args));
            let complaint = side.expect_exit(2);
            let named = complaint.contains(&format!("device option {wrong:?}"));
            assert!(named && complaint.contains(legal), "{args:?}: {complaint}");
        }
    }
    fabric.is_clean();
}

#[test]
fn the_doctor_rejects_devices_it_cannot_examine() {
    let fabric = TestEnv::new();
    for (device, says) in [
        ("soft:h1", "doctor examines RDMA devices"),
        ("ibv:no_such_device", "ibv:no_such_device"),
        ("a/b", "a/b"),
    ] {
        fails(&fabric, &["doctor", device], 2, says);
    }
}

#[test]
fn a_bundle_that_cannot_be_written_is_bad_input() {
    let fabric = TestEnv::new();
    let missing = fabric.file("missing/report.tar");
    let missing = missing.to_str().expect("text");
    for (args, says) in [
        (&["--bundle", missing][..], "cannot write"),
        (&["--bundle", "/"], "names no file"),
        (&["--bundle", "/proc"], "exists, and is not replaced"),
        (&["--with-addresses"], "--bundle <FILE>"),
        (&["--bundle", missing, "--json"], "cannot be used with"),
        (
            &["soft:h1", "--bundle", "x.tar"],
            "doctor examines RDMA devices",
        ),
    ] {
        fails(&fabric, &[&["doctor"], args].concat(), 2, says);
    }
}

#[test]
fn illegal_options_are_reported_alike_for_all_device_kinds() {
    let fabric = TestEnv::new();
    let ordered = "ordered_between_writes=yes or";
    for (device, option, legal) in [
        ("soft", "frob", "hostile, seed=N"),
        ("ibv:x", "frob", "port=N, gid_index=N"),
        ("soft", "frob=1", "hostile, seed=N"),
        ("ibv:x", "frob=1", "port=N, gid_index=N"),
        ("soft", "ordered_between_writes=7", ordered),
        ("ibv:x", "ordered_between_writes=7", ordered),
    ] {
        let name = format!("{device},{option}");
        let kind = device.split(':').next().expect("a kind");
        let says = format!("device option {option:?} is not legal for {kind}: {legal}");
        for args in [&["pipe", "listen", "a"][..], &["demo"]] {
            let args = [args, &["--device", &name]].concat();
            fails(&fabric, &args, 2, &says);
        }
    }
    fabric.is_clean();
}

/// Returns the exit code if standard error is a pipe without a reader.
fn code_unheard(fabric: &TestEnv, args: &[&str]) -> Option<i32> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut side = CommandProcess::start(fabric.headworks(args).stderr(writer));
    side.wait().code()
}

#[test]
fn exit_codes_are_unchanged_when_standard_error_is_unread() {
    let fabric = TestEnv::new();
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
    // With every log line and the progress display on the way.
    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let args = ["-vvv", "pipe", "connect", "a", "--progress"];
    assert_eq!(code_unheard(&fabric, &args), Some(0));
    listener.expect_exit(0);
    fabric.is_clean();
}

#[test]
fn a_timeout_names_the_missing_peer_and_the_wait() {
    let fabric = TestEnv::new();
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
fn overlong_arguments_are_cut_in_error_messages() {
    let fabric = TestEnv::new();
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
    let fabric = TestEnv::new();
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let pid = listener.0.id().to_string();
    fails(&fabric, &["pipe", "listen", "a"], 2, &pid);
    drop(listener);
    fabric.is_clean_after_next_user();
}

#[test]
fn a_full_output_is_a_failure() {
    let fabric = TestEnv::new();
    for args in [&["devices"][..], &["experiment", "list"]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut side =
            CommandProcess::start(fabric.headworks(args).stdout(full.expect("/dev/full")));
        assert_eq!(side.wait().code(), Some(1), "{args:?}");
        let said = side.stderr_line();
        assert!(said.contains("writing to standard output"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn the_null_device_is_no_closed_stream() {
    // As daemon(3) and Python's subprocess.DEVNULL open it.
    let null = || {
        let both = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null");
        Stdio::from(both.expect("the null device"))
    };
    let fabric = TestEnv::new();
    let mut one = fabric.listen(&[], "a", null(), null());
    let mut other = fabric.connect(&[], "a", null(), null());
    assert_eq!(other.wait().code(), Some(0), "{}", other.stderr_line());
    assert_eq!(one.wait().code(), Some(0), "{}", one.stderr_line());
}

#[test]
fn a_closed_standard_stream_is_refused() {
    let fabric = TestEnv::new();
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
        let mut side = CommandProcess::start(&mut shell);
        assert_eq!(side.wait().code(), Some(2), "{args}");
        let said = side.stderr_line();
        assert!(
            said.contains(&format!("standard {name} is closed")),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

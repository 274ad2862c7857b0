//! Experiments that end early.

use std::io::{BufRead, BufReader, Read};

use rustix::process::Signal;

use crate::test_env::{CommandProcess, TestEnv};

#[test]
fn ctrl_c_before_anything_was_measured_leaves_no_results() {
    let fabric = TestEnv::new();
    let out = fabric.file("all/results");
    let place = out.display().to_string();
    let args = [
        "experiment",
        "run",
        "rb2-table2",
        "--quick",
        "--out",
        &place,
    ];
    let mut side = CommandProcess::start(&mut fabric.headworks(&args));
    let mut errors = BufReader::new(side.0.stderr.take().expect("standard error"));
    let mut said = String::new();
    errors.read_line(&mut said).expect("a line");
    assert!(said.contains("points to measure"), "{said}");
    side.signal(Signal::INT);
    assert_eq!(side.wait().code(), Some(130));
    errors.read_to_string(&mut said).expect("the rest");
    assert!(said.ends_with("headworks: interrupted\n"), "{said}");
    assert!(!fabric.file("all").exists(), "{said}");
    fabric.is_clean();
}

#[test]
fn an_experiment_that_is_about_rdma_devices_takes_none_in_silence() {
    let fabric = TestEnv::new();
    let out = fabric.file("results");
    let place = out.display().to_string();
    let args = ["experiment", "run", "rxe-ring", "--quick", "--out", &place];
    let mut side = CommandProcess::start(&mut fabric.headworks(&args));
    let said = side.expect_exit(2);
    assert!(
        said.contains("rxe-ring") && said.contains("ibv:NAME") && said.contains("--device"),
        "{said}"
    );
    assert!(!out.exists());
    fabric.is_clean();
}

//! Files of simulated experiments: equal in every run, each run in a separate process.

use std::fs::read_to_string;
use std::process::{Child, Stdio};

use crate::test_env::{CommandProcess, TestEnv};

/// Starts experiment `name` on simulated devices, with results in the directory `place` of the fabric.
fn begin(fabric: &TestEnv, name: &str, device: &str, more: &[&str], place: &str) -> Child {
    let out = fabric.file(place).display().to_string();
    let args = [
        "experiment",
        "run",
        name,
        "--quick",
        "--device",
        device,
        "--out",
        &out,
    ];
    let mut command = fabric.headworks(&[&args[..], more].concat());
    command.stderr(Stdio::piped()).spawn().expect("starts")
}

fn end(run: Child) {
    let output = run.wait_with_output().expect("ends");
    assert!(output.status.success(), "{output:?}");
}

fn read(fabric: &TestEnv, place: &str, name: &str, file: &str) -> String {
    let path = fabric.file(place).join(name).join(file);
    read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn summary(fabric: &TestEnv, place: &str, name: &str) -> serde_json::Value {
    let text = read(fabric, place, name, "summary.json");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn results_record_the_seed_and_utilisation() {
    let (fabric, name) = (TestEnv::new(), "weir-fig4");
    end(begin(&fabric, name, "sim:cx6-100g,seed=2", &[], "two"));
    end(begin(&fabric, name, "sim:cx6-100g", &[], "usual"));
    for (place, seed) in [("two", 2), ("usual", 1)] {
        assert_eq!(summary(&fabric, place, name)["seed"], seed);
        let report = read(&fabric, place, name, "report.md");
        assert!(report.contains(&format!("- seed: {seed}\n")), "{report}");
        let table = report.split("## Utilisation (simulated)").nth(1);
        assert!(
            table.is_some_and(|table| table.contains("| sender: tx units |")),
            "{report}"
        );
    }
    fabric.is_clean();
}

#[test]
fn a_trace_is_in_its_place_once_all_is_measured_and_nothing_beside_it() {
    let (fabric, name) = (TestEnv::new(), "weir-fig4");
    let trace = fabric.file("trace");
    std::fs::write(&trace, "of before").expect("a file");
    let path = trace.display().to_string();
    let run = begin(
        &fabric,
        name,
        "sim:cx6-100g",
        &["--sim-trace", &path],
        "out",
    );
    let output = run.wait_with_output().expect("ends");
    assert!(output.status.success(), "{output:?}");
    let text = read_to_string(&trace).expect("a trace");
    let traced: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let entries = traced["traceEvents"].as_array().map(Vec::len);
    assert!(entries > Some(100), "{entries:?}");
    let parent = trace.parent().expect("a directory");
    let names = std::fs::read_dir(parent).expect("a directory").flatten();
    let mut names = names.map(|entry| entry.file_name());
    assert!(!names.any(|name| name.to_string_lossy().contains("tmp")));
    fabric.is_clean();
}

#[test]
fn other_values_for_constants_are_written_down_and_come_out_the_same_again() {
    let (fabric, name) = (TestEnv::new(), "rb2-case3");
    let slow = ["--set", "link.rate=5", "--set", "link.propagation=900"];
    let run = |more: &[&str], place| begin(&fabric, name, "sim:cx5-100g", more, place);
    let (one, again) = (run(&slow, "one"), run(&slow, "again"));
    for run in [one, again, run(&[], "usual")] {
        end(run);
    }
    let points = |place: &str| read(&fabric, place, name, "points.csv");
    assert_eq!(points("one"), points("again"));
    assert_ne!(points("one"), points("usual"));
    let settings = |place: &str| summary(&fabric, place, name)["settings"].clone();
    let wanted = serde_json::json!({"link.propagation": 900, "link.rate": 5});
    assert_eq!(settings("one"), wanted);
    assert_eq!(settings("usual"), serde_json::json!({}));
    let line = "- settings: link.propagation=900 ns, link.rate=5 Gbit/s; the preset has others\n";
    let [one, usual] = ["one", "usual"].map(|place| read(&fabric, place, name, "report.md"));
    assert!(one.contains(line) && !usual.contains("- settings"), "{one}");
    let drawn = read(&fabric, "usual", name, "rate.svg");
    assert!(drawn.contains("(simulated)"), "{drawn}");
    fabric.is_clean();
}

#[test]
fn the_speed_of_the_simulator_is_measured_by_the_wall_clock_and_says_so() {
    let (fabric, name) = (TestEnv::new(), "sim-speed");
    end(begin(&fabric, name, "sim:cx5-100g", &[], "out"));
    let found = summary(&fabric, "out", name);
    let keys = [
        "sim_mwr_per_s",
        "sim_mwr_per_s_cached",
        "sim_mwr_per_s_missing",
    ];
    for key in keys {
        let rate = found["ratios"][key].as_f64();
        assert!(rate.is_some_and(|rate| rate > 0.0), "{key}: {found}");
    }
    let report = read(&fabric, "out", name, "report.md");
    for wanted in [
        "by the wall clock of this machine",
        "- pinning: one thread, on cpu ",
    ] {
        assert!(report.contains(wanted), "{report}");
    }
    assert!(!report.contains("## Utilisation"), "{report}");
    let args = ["experiment", "run", name, "--out", "/nowhere"];
    let said = CommandProcess::start(&mut fabric.headworks(&args)).expect_exit(2);
    assert!(
        said.contains("sim-speed is about devices sim:NAME, and not soft"),
        "{said}"
    );
    fabric.is_clean();
}

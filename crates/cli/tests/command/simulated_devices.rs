//! Output of the command about simulated devices.

use std::process::Stdio;

use crate::test_env::{CommandProcess, TestEnv};

/// Names of the presets, in the order of their columns.
const PRESETS: [&str; 5] = [
    "cx3-40g",
    "cx5-100g",
    "cx6-100g",
    "cx4lx-2x25g",
    "cx6dx-2x100g",
];

/// Runs the program, which must succeed, and returns its standard output.
fn printed(fabric: &TestEnv, args: &[&str]) -> String {
    let output = fabric.headworks(args).stdout(Stdio::piped()).output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn preset_constants_are_printed_in_aligned_columns() {
    let fabric = TestEnv::new();
    let text = printed(&fabric, &["sim", "presets"]);
    assert!(text.starts_with("simulated "), "{text}");
    let mut rows = text.lines().filter(|line| !line.starts_with(' ')).skip(2);
    let head = rows.find(|line| line.starts_with("key ")).expect("a head");
    let ends: Vec<_> = PRESETS
        .iter()
        .map(|name| head.find(name).expect("a column") + name.len())
        .collect();
    let mut count = 0;
    for row in rows {
        // Units may have letters of several bytes.
        let letters: Vec<char> = row.chars().collect();
        for end in &ends {
            let is_value = letters[end - 1].is_ascii_digit() && letters[*end] == ' ';
            assert!(is_value, "{row}\n{head}");
        }
        count += 1;
    }
    assert!(count > 40, "{count} constants");
    let icm = text.lines().find(|line| line.starts_with("nic.icm "));
    let words: Vec<_> = icm.expect("a row").split_whitespace().collect();
    assert_eq!(
        words[..7],
        ["nic.icm", "entries", "400", "2048", "2048", "2048", "2048"]
    );
    assert_eq!(words[7..11], ["0", "to", "16777216,", "whole"]);
    for (key, bounds) in [
        ("link.rate ", "  0.1 to 10000  "),
        ("pcie.payload ", " to 4096, 2^n "),
    ] {
        let row = text.lines().find(|line| line.starts_with(key));
        assert!(row.is_some_and(|row| row.contains(bounds)), "{row:?}");
    }
    let one = printed(&fabric, &["sim", "presets", "cx3-40g"]);
    assert!(
        one.contains("cx3-40g") && !one.contains("cx5-100g"),
        "{one}"
    );
    fabric.is_clean();
}

#[test]
fn the_constants_are_there_for_programs() {
    let fabric = TestEnv::new();
    let text = printed(&fabric, &["sim", "presets", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(all["simulated"], true);
    let constants = all["constants"].as_array().expect("a list");
    for constant in constants {
        for key in ["key", "unit", "what", "source"] {
            assert!(constant[key].as_str().is_some_and(|text| !text.is_empty()));
        }
        let lowest = constant["lowest"].as_f64().expect("a number");
        let highest = constant["highest"].as_f64().expect("a number");
        for name in PRESETS {
            let value = constant["values"][name].as_f64().expect("a number");
            assert!((lowest..=highest).contains(&value), "{constant}");
        }
    }
    assert_eq!(all["presets"].as_array().map(Vec::len), Some(PRESETS.len()));
    fabric.is_clean();
}

#[test]
fn simulated_devices_are_refused_between_processes() {
    let fabric = TestEnv::new();
    let device = "sim:cx5-100g,host=a";
    for args in [
        &["pipe", "listen", "a", "--device", device][..],
        &["pipe", "connect", "a", "--reverse", "--device", device],
        &["pipe", "connect", "rdma:h:7471", "--device", device],
        &["demo", "--device", device],
        &["demo", "--device", "soft", "--peer-device", device],
    ] {
        let complaint = CommandProcess::start(&mut fabric.headworks(args)).expect_exit(2);
        for wanted in [device, "is simulated", "no other process", "experiment run"] {
            assert!(complaint.contains(wanted), "{args:?}: {complaint}");
        }
    }
    fabric.is_clean();
}

#[test]
fn experiments_that_measure_this_machine_refuse_simulated_devices() {
    let fabric = TestEnv::new();
    let device = "sim:cx5-100g,seed=3";
    for name in [
        "ring-vs-peers",
        "ring-fanin",
        "verbs-perftest",
        "softnic",
        "service-connections",
        "raas-fig8",
        "raas-fig9",
    ] {
        // Nothing is measured, even if another experiment could run.
        for devices in [
            &["--device", device][..],
            &["--device", device, "--peer-device", device],
        ] {
            let args = ["experiment", "run", "rb2-case3", name, "--quick", "--out"];
            let args = [&args[..], &["/nowhere"], devices].concat();
            let said = CommandProcess::start(&mut fabric.headworks(&args)).expect_exit(2);
            for part in [name, device, "is simulated", "--device: soft or ibv:NAME"] {
                assert!(said.contains(part), "{args:?}: {said}");
            }
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
    fabric.is_clean();
}

#[test]
fn a_bad_simulated_name_lists_presets_and_legal_options() {
    let fabric = TestEnv::new();
    let host = "host=NAME, 1 to 64 of [A-Za-z0-9._-]";
    let seed = "seed=N, a number from 0 to 18446744073709551615";
    let there = "presets are cx3-40g, cx5-100g, cx6-100g, cx4lx-2x25g, cx6dx-2x100g";
    let long = format!("sim,host={}", "a".repeat(300));
    for (device, legal) in [
        ("sim:cx9", there),
        ("sim:", there),
        ("sim:,seed=1", there),
        ("sim:cx5-100g,host=../x", host),
        ("sim:cx5-100g,host=a b", host),
        ("sim:cx5-100g,host=é", host),
        (&long, host),
        ("sim:cx5-100g,seed=-1", seed),
        ("sim:cx5-100g,seed=1.5", seed),
        ("sim:cx5-100g,seed=18446744073709551616", seed),
    ] {
        let args = ["experiment", "run", "rb2-table2", "--device", device];
        let args = [&args[..], &["--quick", "--out", "/nowhere"]].concat();
        let complaint = CommandProcess::start(&mut fabric.headworks(&args)).expect_exit(2);
        assert!(complaint.contains(legal), "{device}: {complaint}");
    }
    fabric.is_clean();
}

#[test]
fn a_run_that_is_refused_touches_no_file() {
    let fabric = TestEnv::new();
    let (trace, none) = (fabric.file("trace"), fabric.file("none"));
    std::fs::write(&trace, "of before").expect("a file");
    let [trace_path, none_path] = [&trace, &none].map(|path| path.display().to_string());
    let out = fabric.file("out").display().to_string();
    let on_file = format!("{trace_path}/out");
    for (name, device, out) in [
        ("rb2-table2", "sim:cx9", &*out),
        ("rb2-table2", "sim:cx5-100g,seed=x", &*out),
        ("rb2-table2", "sim:cx5-100g", &*trace_path),
        ("rb2-table2", "sim:cx5-100g", &*on_file),
        ("rb2-table2", "sim:cx5-100g", "/proc/self/out"),
        ("rb2-table2", "sim:cx5-100g", "/proc/self/task"),
        ("no-such", "sim:cx5-100g", &*out),
        ("rxe-ring", "sim:cx5-100g", &*out),
    ] {
        for to in [&trace_path, &none_path] {
            let args = ["experiment", "run", name, "--quick", "--device", device];
            let more = ["--out", out, "--sim-trace", to];
            let args = [&args[..], &more].concat();
            let complaint = CommandProcess::start(&mut fabric.headworks(&args)).expect_exit(2);
            let there = std::fs::read_to_string(&trace).expect("a file");
            assert_eq!(there, "of before", "{args:?}: {complaint}");
        }
    }
    let parent = trace.parent().expect("a directory");
    let there = std::fs::read_dir(parent).expect("a directory").flatten();
    let mut names: Vec<_> = there.map(|entry| entry.file_name()).collect();
    names.retain(|name| name != "fabric");
    assert_eq!(names, ["trace"]);
    fabric.is_clean();
}

#[test]
fn a_wrong_preset_or_constant_is_one_line() {
    let fabric = TestEnv::new();
    let run = [
        "experiment",
        "run",
        "rb2-table2",
        "--quick",
        "--out",
        "/nowhere",
    ];
    let on_sim = [&run[..], &["--device", "sim:cx5-100g"]].concat();
    for (args, says) in [
        (
            vec!["sim", "presets", "cx9"],
            "there are cx3-40g, cx5-100g, cx6-100g, cx4lx-2x25g, cx6dx-2x100g",
        ),
        (
            [&on_sim[..], &["--set", "nic.magic=1"]].concat(),
            "no constant is called \"nic.magic\"",
        ),
        (
            [&on_sim[..], &["--set", "nic.icm"]].concat(),
            "KEY=VALUE, as in nic.icm=4096",
        ),
        (
            [&on_sim[..], &["--set", "nic.icm=-1"]].concat(),
            "nic.icm=\"-1\": a whole number from 0 to 16777216, in entries",
        ),
        (
            [
                &on_sim[..],
                &["--set", "link.rate=100", "--set", "link.rate=fast"],
            ]
            .concat(),
            "link.rate=\"fast\": a number from 0.1 to 10000, in Gbit/s",
        ),
        (
            [
                &on_sim[..],
                &["--set", "link.rate=100", "--set", "link.rate=56"],
            ]
            .concat(),
            "--set link.rate is given twice",
        ),
        (
            [&on_sim[..], &["--sim-trace", "/dev/null/trace"]].concat(),
            "--sim-trace: /dev/null/trace",
        ),
        (
            [&on_sim[..], &["--peer-device", "sim:cx3-40g,seed=9"]].concat(),
            "--peer-device sim:cx3-40g,seed=9: not on one network with --device sim:cx5-100g",
        ),
        (
            [&run[..], &["--set", "nic.icm=1"]].concat(),
            "--device sim:PRESET",
        ),
        (
            [&run[..], &["--sim-trace", "/dev/null"]].concat(),
            "--device sim:PRESET",
        ),
    ] {
        let mut side = CommandProcess::start(&mut fabric.headworks(&args));
        let complaint = side.expect_exit(2);
        assert!(complaint.contains(says), "{args:?}: {complaint}");
    }
    fabric.is_clean();
}

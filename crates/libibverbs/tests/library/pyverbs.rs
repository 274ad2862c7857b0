//! The tests that rdma-core has for its Python bindings, where the packages with both are installed (Debian: python3-pyverbs).

use std::path::Path;
use std::process::Command;

use crate::run::{Fabric, end};

/// Debian installs the tests here.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// The interpreter that the package is for.
const PYTHON: &str = "/usr/bin/python3";

/// Copies the tests to the folder in the first argument, unpacked, without those for drivers and hardware of vendors.
const UNPACK: &str = "
import gzip, os, sys
source, to = sys.argv[1:]
os.mkdir(to)
for name in os.listdir(source):
    if name.startswith(('test_mlx5', 'test_efa', 'test_cuda')):
        continue
    path = os.path.join(source, name)
    if os.path.isfile(path):
        data = open(path, 'rb').read()
        if name.endswith('.gz'):
            name, data = name[:-3], gzip.decompress(data)
        open(os.path.join(to, name), 'wb').write(data)
";

#[test]
fn the_tests_of_the_python_bindings_pass() {
    let mut import = Command::new(PYTHON);
    let has_bindings = import.args(["-c", "import pyverbs.device"]).output();
    let has_bindings = has_bindings.is_ok_and(|done| done.status.success());
    if !has_bindings || !Path::new(TESTS).exists() {
        println!("skipped: no pyverbs, or not its tests (Debian: python3-pyverbs)");
        return;
    }
    let fabric = Fabric::new();
    let tests = fabric.file("tests");
    let folder = tests.to_str().expect("a path");
    fabric.good(&[PYTHON, "-c", UNPACK, TESTS, folder]);
    let log = fabric.file("log");
    let mut run = fabric.command(&[PYTHON, "tests/run_tests.py", "-v"]);
    // The tests print more than a pipe holds.
    run.current_dir(tests.parent().expect("a folder"))
        .env("PYTHONPATH", &tests)
        .stdout(std::fs::File::create(&log).expect("a file"))
        .stderr(
            std::fs::File::options()
                .append(true)
                .open(&log)
                .expect("a file"),
        );
    end(run.spawn().expect("starts"));
    let text = std::fs::read_to_string(&log).expect("text");
    let mut failed: Vec<_> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("ERROR: ")
                .or_else(|| line.strip_prefix("FAIL: "))
        })
        .filter_map(|line| line.split(' ').next())
        .collect();
    failed.sort_unstable();
    assert!(text.contains("\nRan "), "{text}");
    assert!(failed.is_empty(), "{failed:?}: {text}");
    let summary = text.lines().rev().take(3).collect::<Vec<_>>();
    println!("{summary:?}");
}

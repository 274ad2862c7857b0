//! The conformance suite on the library's devices, through our own provider of devices of libibverbs: what a program sees is what RDMA NICs
//! do.

use std::process::Command;

use headworks_conformance::worlds::{InProcessWorld, ProcessWorld, WorldLayout, processes};
use headworks_conformance::{World, cases, runner};
use headworks_runtime::{ActorRegistry, Processes, child_entry_in_test, no_device_opener};

#[path = "../../conformance/tests/shared/rdma_devices.rs"]
#[expect(dead_code, reason = "other tests look for devices")]
mod rdma_devices;

use rdma_devices::{RDMA_NIC_BEHAVIOUR, opener};

/// Two devices of the library.
const NAMES: [&str; 2] = ["ibv:headworks_0", "ibv:headworks_1"];

/// Runs only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    let mut actors = ActorRegistry::new();
    processes::register(&mut actors, |_| opener());
    child_entry_in_test(&actors, no_device_opener());
}

/// Runs `test` of this program once more, with the library, unless it is there. Returns whether it is.
fn has_library(test: &str) -> bool {
    const MARK: &str = "HEADWORKS_TEST_WITH_LIBRARY";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("a path");
    let library = program.with_file_name("libibverbs.so");
    let fabric = tempfile::tempdir().expect("a folder");
    let done = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(MARK, "1")
        .env("LD_PRELOAD", library)
        .env("HEADWORKS_FABRIC", fabric.path().join("fabric"))
        .env("HEADWORKS_VERBS_DEVICES", "headworks_0,headworks_1")
        .status();
    assert!(done.expect("runs").success(), "{test} failed");
    false
}

fn run_in<W: World>(name: &str, world: impl Fn() -> W) {
    let tally = runner::run_cases(name, cases().filter(runner::case_filter()), world);
    let (ran, skipped, failed) = (tally.ran, &tally.skipped, &tally.failed);
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
}

#[test]
fn on_one_device() {
    if has_library("on_one_device") {
        let layout = WorldLayout::loopback(NAMES[0]).with(RDMA_NIC_BEHAVIOUR);
        run_in("loopback", || InProcessWorld::new(opener(), layout.clone()));
    }
}

#[test]
fn between_processes() {
    if has_library("between_processes") {
        let layout = WorldLayout::of([NAMES[0], NAMES[1], NAMES[0]]).with(RDMA_NIC_BEHAVIOUR);
        run_in("processes", || {
            let these = Processes::of_this_test("child_process_entry");
            ProcessWorld::new(these, "", layout.clone())
        });
    }
}

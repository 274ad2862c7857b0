//! Runs the cases on the RDMA devices of this machine: between two devices (or two openings of the only
//! one), on one device in loopback, and between processes that can be killed. Without a device the tests are
//! skipped, with the reason; with `HEADWORKS_REQUIRE=ibv` they fail instead. `cargo xtask rxe` provides a
//! machine with two devices.

use headworks_conformance::worlds::{InProcessWorld, ProcessWorld, WorldLayout, processes};
use headworks_conformance::{World, cases, runner};
use headworks_runtime::{ActorRegistry, Processes, child_entry_in_test, no_device_opener};

#[path = "shared/rdma_devices.rs"]
mod rdma_devices;

use rdma_devices::{RDMA_NIC_BEHAVIOUR, devices, known_deviations, opener};

/// Runs only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    let mut actors = ActorRegistry::new();
    processes::register(&mut actors, |_| opener());
    child_entry_in_test(&actors, no_device_opener());
}

fn run_in<W: World>(name: &str, world: impl Fn() -> W) {
    let tally = runner::run_cases(name, cases().filter(runner::case_filter()), world);
    let (ran, skipped, failed) = (tally.ran, &tally.skipped, &tally.failed);
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    let asked = std::env::var("HEADWORKS_CASE").unwrap_or_default();
    let none = ran == 0 && (asked.is_empty() || skipped.is_empty());
    assert!(!none, "{name}: no case ran: HEADWORKS_CASE is {asked:?}");
}

fn layout(names: &[String; 2]) -> WorldLayout {
    let mut layout = WorldLayout::of([&names[0], &names[1], &names[0]]).with(RDMA_NIC_BEHAVIOUR);
    if std::env::var_os("HEADWORKS_LONG").is_some() {
        layout.behaviour.objects_max = 70_000;
    }
    layout.with_known_deviations(known_deviations(names))
}

#[test]
fn between_two_devices() {
    let Some(names) = devices() else { return };
    let layout = layout(&names);
    run_in("two devices", || {
        InProcessWorld::new(opener(), layout.clone())
    });
}

#[test]
fn on_one_device() {
    let Some([name, _]) = devices() else { return };
    let layout = WorldLayout::loopback(&name).with(RDMA_NIC_BEHAVIOUR);
    let layout = layout.with_known_deviations(known_deviations(&[name]));
    run_in("loopback", || InProcessWorld::new(opener(), layout.clone()));
}

#[test]
fn between_processes() {
    let Some(names) = devices() else { return };
    let layout = layout(&names);
    run_in("processes", || {
        ProcessWorld::new(
            Processes::of_this_test("child_process_entry"),
            "",
            layout.clone(),
        )
    });
}

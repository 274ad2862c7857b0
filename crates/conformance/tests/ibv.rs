//! The cases on the machine's own RDMA devices: between two of them (or two openings of one, where there
//! is one only), on one that talks to itself, and between processes that can be killed. Skipped, with the
//! reason, where there is none; `HEADWORKS_REQUIRE=ibv` has that fail. `cargo xtask rxe` is a machine that
//! has two.

use headworks_conformance::worlds::{Apart, Layout, Local, apart};
use headworks_conformance::{World, cases, run};
use headworks_runtime::{ActorRegistry, Processes, child_entry_in_test, no_device_opener};

#[path = "shared/devices.rs"]
mod shared;

use shared::{PLAIN, devices, knowledge, opener};

/// Runs only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    let mut cast = ActorRegistry::new();
    apart::register(&mut cast, |_| opener());
    child_entry_in_test(&cast, no_device_opener());
}

fn run_in<W: World>(name: &str, world: impl Fn() -> W) {
    let tally = run::run(name, cases().filter(run::wanted()), world);
    let (ran, skipped, failed) = (tally.ran, &tally.skipped, &tally.failed);
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    let asked = std::env::var("HEADWORKS_CASE").unwrap_or_default();
    let none = ran == 0 && (asked.is_empty() || skipped.is_empty());
    assert!(!none, "{name}: no case ran: HEADWORKS_CASE is {asked:?}");
}

fn layout(names: &[String; 2]) -> Layout {
    let mut layout = Layout::of([&names[0], &names[1], &names[0]]).with(PLAIN);
    if std::env::var_os("HEADWORKS_LONG").is_some() {
        layout.manners.many = 70_000;
    }
    layout.knowing(knowledge(names))
}

#[test]
fn between_two_devices() {
    let Some(names) = devices() else { return };
    let layout = layout(&names);
    run_in("two devices", || Local::new(opener(), layout.clone()));
}

#[test]
fn on_one_device() {
    let Some([name, _]) = devices() else { return };
    let layout = Layout::loopback(&name).with(PLAIN);
    let layout = layout.knowing(knowledge(&[name]));
    run_in("loopback", || Local::new(opener(), layout.clone()));
}

#[test]
fn between_processes() {
    let Some(names) = devices() else { return };
    let layout = layout(&names);
    run_in("processes", || {
        Apart::new(
            Processes::of_this_test("child_process_entry"),
            "",
            layout.clone(),
        )
    });
}

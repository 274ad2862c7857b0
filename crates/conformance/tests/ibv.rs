//! The cases on the machine's own RDMA devices: between two of them (or two openings of one, where there
//! is one only), on one that talks to itself, and between processes that can be killed. Skipped, with the
//! reason, where there is none; `HEADWORKS_REQUIRE=ibv` has that fail. `cargo xtask rxe` is a machine that
//! has two.

use std::sync::Arc;

use headworks_conformance::worlds::{Apart, Layout, Local, apart};
use headworks_conformance::{Deviation, Manners, World, cases, known, run};
use headworks_ibverbs::IbvProvider;
use headworks_stage::{Cast, Opener, Processes, child_entry_in_test, no_devices};
use headworks_verbs::Provider;

/// Runs only in the processes that the tests below start.
#[test]
fn plays_a_part() {
    let mut cast = Cast::new();
    apart::register(&mut cast, |_| opener());
    child_entry_in_test(&cast, no_devices());
}

fn opener() -> Opener {
    let provider = IbvProvider::new();
    Arc::new(move |name| provider.open(name))
}

/// Whatever a device does in its own time, and says only as far as the specification makes it.
const PLAIN: Manners = Manners {
    at_once: false,
    refusals: 0,
    late: 0,
    checks_first: false,
    tells_twice: false,
    notices_deaths: false,
    holds_unpolled: false,
    refuses_datagrams: true,
    // Each is a system call or two, and slow where the machine is emulated.
    many: 10_000,
    keeps_what_overran: false,
};

/// The names of two devices: those of `HEADWORKS_IBV`, separated by a semicolon, or the first two that
/// there are. One twice, if there is no other.
fn devices() -> Option<[String; 2]> {
    let names: Vec<String> = match std::env::var("HEADWORKS_IBV") {
        Ok(names) => names.split(';').map(str::to_owned).collect(),
        Err(_) => {
            let listed = IbvProvider::new().devices();
            let listed = listed.expect("the devices can be listed");
            listed.iter().map(|info| info.name.to_string()).collect()
        }
    };
    let (Some(first), second) = (names.first(), names.get(1)) else {
        let why = IbvProvider::missing().map_or_else(
            || "libibverbs knows of no device here".to_owned(),
            |error| error.to_string(),
        );
        let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
        let is_required = required.split(',').any(|name| name == "ibv");
        assert!(!is_required, "ibv is required, but {why}");
        println!("skipped: {why}");
        return None;
    };
    Some([first.clone(), second.unwrap_or(first).clone()])
}

/// What is known of a device that its driver alone tells.
fn deviations(name: &str) -> &'static [Deviation] {
    let name = name.parse().expect("the name of a device");
    let opened = IbvProvider::new().open(&name);
    let opened = opened.unwrap_or_else(|error| panic!("{error}"));
    match opened.info().description.contains("(rxe)") {
        true => known::RXE,
        false => &[],
    }
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
    layout.deviating(deviations(&names[0]))
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
    let layout = layout.deviating(deviations(&name));
    run_in("loopback", || Local::new(opener(), layout.clone()));
}

#[test]
fn between_processes() {
    let Some(names) = devices() else { return };
    let layout = layout(&names);
    run_in("processes", || {
        Apart::new(Processes::of_this_test("plays_a_part"), "", layout.clone())
    });
}

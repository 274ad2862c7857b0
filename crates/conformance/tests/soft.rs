//! Runs the cases on the software RNIC: between two soft hosts, between two contexts of one, on one device in
//! loopback, between processes that can be killed, and between hostile devices.

use std::path::Path;

use headworks_conformance::runner::CaseTally;
use headworks_conformance::worlds::{InProcessWorld, ProcessWorld, WorldLayout, processes};
use headworks_conformance::{
    Call, CaseContext, DeviceBehaviour, HostRole, Reply, World, cases, runner,
};
use headworks_runtime::{ActorRegistry, Processes, child_entry_in_test, no_device_opener};
use headworks_verbs::Duration;

#[path = "shared/soft_registry.rs"]
mod soft_registry;

use soft_registry::soft_opener as opener;

/// Runs only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    let mut actors = ActorRegistry::new();
    processes::register(&mut actors, |fabric| opener(Path::new(fabric)));
    child_entry_in_test(&actors, no_device_opener());
}

/// Runs each case in a world with its own fabric, which must be gone afterwards.
fn run_in<W: World>(name: &str, world: impl Fn(&Path) -> W) {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let is_wanted = runner::case_filter();
    let mut tally = CaseTally::default();
    for case in cases().filter(is_wanted) {
        let name_of = case.name.clone();
        tally.add(runner::run_cases(name, [case], || world(&path)));
        if path.exists() {
            // A killed host leaves an entry, which the next host to open removes.
            let next = opener(&path)(&"soft:h4".parse().expect("a name"));
            drop(next.expect("opens after a death"));
        }
        assert!(
            !path.exists(),
            "after {name_of}: the last to leave removes the directory"
        );
    }
    let CaseTally {
        ran,
        skipped,
        failed,
    } = tally;
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    // All cases that the environment names may be skipped here, and the runner has printed why.
    let asked = std::env::var("HEADWORKS_CASE").unwrap_or_default();
    let none = ran == 0 && (asked.is_empty() || skipped.is_empty());
    assert!(!none, "{name}: no case ran: HEADWORKS_CASE is {asked:?}");
}

fn local(path: &Path, layout: WorldLayout) -> InProcessWorld {
    InProcessWorld::new(opener(path), layout)
}

#[test]
fn between_two_hosts() {
    let layout = WorldLayout::of(["soft:h1", "soft:h2", "soft:h3"]).with(DeviceBehaviour::SOFT);
    run_in("two hosts", |path| local(path, layout.clone()));
}

#[test]
fn between_two_contexts_of_a_host() {
    let layout = WorldLayout::of(["soft"; 3]).with(DeviceBehaviour::SOFT);
    run_in("one host", |path| local(path, layout.clone()));
}

#[test]
fn on_one_device() {
    let layout = WorldLayout::loopback("soft").with(DeviceBehaviour::SOFT);
    run_in("loopback", |path| local(path, layout.clone()));
}

/// Returns a layout of hostile devices, which do whatever their declarations and the specification allow.
fn hostile(options: &str) -> WorldLayout {
    let name = |host: &str| format!("soft:{host},hostile,kills=no,{options}");
    let [first, second, third] = ["h1", "h2", "h3"].map(name);
    WorldLayout::of([&*first, &*second, &*third]).with(DeviceBehaviour {
        completes_in_call: false,
        spurious_refusals: 3,
        empty_polls_max: 6,
        ..DeviceBehaviour::SOFT
    })
}

/// Returns these seeds, or many more if long runs are requested.
fn seeds(few: [u64; 2]) -> Vec<u64> {
    match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => (1..=32).collect(),
        None => few.to_vec(),
    }
}

#[test]
fn between_hostile_hosts() {
    for seed in seeds([1, 3]) {
        let layout = hostile(&format!("seed={seed}"));
        let name = format!("hostile hosts, seed {seed}");
        run_in(&name, |path| local(path, layout.clone()));
    }
}

#[test]
fn between_hostile_hosts_that_promise_little() {
    for seed in seeds([4, 5]) {
        let layout = hostile(&format!(
            "seed={seed},ordered_between_writes=no,atomic_aligned_8=no"
        ));
        let name = format!("hostile hosts without promises, seed {seed}");
        run_in(&name, |path| local(path, layout.clone()));
    }
}

fn in_processes(path: &Path, layout: WorldLayout) -> ProcessWorld {
    let processes = Processes::of_this_test("child_process_entry");
    ProcessWorld::new(processes, path.to_string_lossy(), layout)
}

fn apart(path: &Path) -> ProcessWorld {
    let layout = WorldLayout::of(["soft:h1", "soft:h2", "soft:h3"]).with(DeviceBehaviour::SOFT);
    in_processes(path, layout)
}

#[test]
fn between_processes() {
    run_in("processes", apart);
}

#[test]
fn between_hostile_processes() {
    let layout = hostile("seed=6");
    run_in("hostile processes", |path| {
        in_processes(path, layout.clone())
    });
}

#[test]
fn a_host_that_answers_late_is_not_asked_again() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let mut world = apart(&path);
    let host = world.host(HostRole::First).expect("a host");
    let (device, channel, end) = (1, 2, HostRole::First);
    let opened = world.call(host, Call::Open { device, end });
    assert!(matches!(opened, Reply::Device(_)), "{opened:?}");
    let made = world.call(host, Call::CreateChannel { channel, device });
    assert_eq!(made, Reply::Done);
    let mut world = world.with_call_timeout(Duration::from_millis(20));
    let at_most_ms = 10_000;
    let sleep = Call::Sleep {
        channel,
        at_most_ms,
    };
    let late = world.call(host, sleep);
    assert!(matches!(late, Reply::No(_)), "{late:?}");
    let next = world.call(host, Call::DeviceTime { device });
    assert_eq!(next, Reply::Gone, "what comes late answers nothing else");
}

#[test]
fn when_both_die_the_next_one_cleans_up() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let mut world = apart(&path);
    let mut cx = CaseContext::new(&mut world);
    let (a, b) = cx.connected_pair().expect("connects");
    cx.kill(a.host).expect("killed");
    cx.kill(b.host).expect("killed");
    // Dropping the world waits until both hosts are dead.
    drop(world);
    let entries = || std::fs::read_dir(&path).map_or(0, Iterator::count);
    let left = entries();
    assert!(left > 5, "the dead leave their entries");
    let device = opener(&path)(&"soft:h1".parse().expect("a name")).expect("opens");
    assert!(
        entries() <= 5,
        "the lock, the identity, and a process with one context"
    );
    drop(device);
    assert!(!path.exists(), "something is left");
}

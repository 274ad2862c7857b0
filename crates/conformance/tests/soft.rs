//! The cases on the software RNIC: between two soft hosts, between two contexts of one, on one
//! device that talks to itself, between processes that can be killed; and between hostile devices.

use std::path::Path;

use headworks_conformance::run::Tally;
use headworks_conformance::worlds::{Apart, Layout, Local, apart};
use headworks_conformance::{Bench, Call, End, Manners, Reply, World, cases, run};
use headworks_runtime::{ActorRegistry, Processes, child_entry_in_test, no_device_opener};
use headworks_verbs::Duration;

#[path = "shared/fabric.rs"]
mod fabric;

use fabric::soft as opener;

/// Runs only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    let mut cast = ActorRegistry::new();
    apart::register(&mut cast, |fabric| opener(Path::new(fabric)));
    child_entry_in_test(&cast, no_device_opener());
}

/// Runs the cases in worlds of a fabric of their own, which must be gone after each.
fn run_in<W: World>(name: &str, world: impl Fn(&Path) -> W) {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let is_wanted = run::wanted();
    let mut tally = Tally::default();
    for case in cases().filter(is_wanted) {
        let name_of = case.name.clone();
        tally.add(run::run(name, [case], || world(&path)));
        if path.exists() {
            // Whoever was killed leaves an entry, which goes with the next to come.
            let next = opener(&path)(&"soft:h4".parse().expect("a name"));
            drop(next.expect("opens after a death"));
        }
        assert!(
            !path.exists(),
            "after {name_of}: the last to leave removes the directory"
        );
    }
    let Tally {
        ran,
        skipped,
        failed,
    } = tally;
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    // Those that one name asks for may all be such as this world skips, and has said so.
    let asked = std::env::var("HEADWORKS_CASE").unwrap_or_default();
    let none = ran == 0 && (asked.is_empty() || skipped.is_empty());
    assert!(!none, "{name}: no case ran: HEADWORKS_CASE is {asked:?}");
}

fn local(path: &Path, layout: Layout) -> Local {
    Local::new(opener(path), layout)
}

#[test]
fn between_two_hosts() {
    let layout = Layout::of(["soft:h1", "soft:h2", "soft:h3"]).with(Manners::SOFT);
    run_in("two hosts", |path| local(path, layout.clone()));
}

#[test]
fn between_two_contexts_of_a_host() {
    let layout = Layout::of(["soft"; 3]).with(Manners::SOFT);
    run_in("one host", |path| local(path, layout.clone()));
}

#[test]
fn on_one_device() {
    let layout = Layout::loopback("soft").with(Manners::SOFT);
    run_in("loopback", |path| local(path, layout.clone()));
}

/// Hostile at both ends: within what they declare and what the specification leaves open.
fn hostile(options: &str) -> Layout {
    let name = |host: &str| format!("soft:{host},hostile,kills=no,{options}");
    let [first, second, third] = ["h1", "h2", "h3"].map(name);
    Layout::of([&*first, &*second, &*third]).with(Manners {
        at_once: false,
        refusals: 3,
        late: 6,
        ..Manners::SOFT
    })
}

/// These, and many more where long runs are asked for.
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

fn in_processes(path: &Path, layout: Layout) -> Apart {
    let processes = Processes::of_this_test("child_process_entry");
    Apart::new(processes, path.to_string_lossy(), layout)
}

fn apart(path: &Path) -> Apart {
    let layout = Layout::of(["soft:h1", "soft:h2", "soft:h3"]).with(Manners::SOFT);
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
    let host = world.host(End::First).expect("a host");
    let (device, channel, end) = (1, 2, End::First);
    let opened = world.call(host, Call::Open { device, end });
    assert!(matches!(opened, Reply::Facts(_)), "{opened:?}");
    let made = world.call(host, Call::CreateChannel { channel, device });
    assert_eq!(made, Reply::Done);
    let mut world = world.with_patience(Duration::from_millis(20));
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
    let mut bench = Bench::new(&mut world);
    let (a, b) = bench.pair().expect("connects");
    bench.kill(a.host).expect("killed");
    bench.kill(b.host).expect("killed");
    // Until they are dead.
    drop(world);
    let entries = || std::fs::read_dir(&path).map_or(0, Iterator::count);
    assert!(entries() >= 2, "the dead leave their entries");
    let device = opener(&path)(&"soft:h1".parse().expect("a name")).expect("opens");
    assert!(entries() <= 2, "the lock and one entry");
    drop(device);
    assert!(!path.exists(), "something is left");
}

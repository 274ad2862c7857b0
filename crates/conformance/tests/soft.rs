//! The cases on the software RNIC: between two soft hosts, between two contexts of one, and on one
//! device that talks to itself.

use std::sync::Arc;

use headworks_conformance::{Bench, cases};
use headworks_shm::FabricDir;
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, Provider};

fn run(name: &str, bench: impl Fn(&dyn Fn(&str) -> Arc<dyn Device>) -> Bench) {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let provider = SoftProvider::on(FabricDir::at(&path).expect("fabric"));
    let open = |name: &str| {
        let name = name.parse().expect("a name");
        provider.open(&name).expect("opens")
    };
    let wanted = std::env::var("HEADWORKS_CASE").unwrap_or_default();
    let long = std::env::var_os("HEADWORKS_LONG").is_some();
    let mut failed = Vec::new();
    for case in cases().filter(|case| case.name.contains(&wanted) && (long || !case.long)) {
        let start = std::time::Instant::now();
        let verdict = (case.run)(&bench(&open));
        let took = start.elapsed().as_millis();
        match verdict {
            Ok(()) => println!("{name}: {} ok, {took} ms", case.name),
            Err(seen) => {
                println!("{name}: {} FAILED after {took} ms: {seen}", case.name);
                failed.push(case.name);
            }
        }
    }
    assert!(failed.is_empty(), "{name}: {failed:?}");
    assert!(!path.exists(), "the last to leave removes the directory");
}

#[test]
fn between_two_hosts() {
    run("two hosts", |open| Bench {
        a: open("soft:h1"),
        b: open("soft:h2"),
    });
}

#[test]
fn between_two_contexts_of_a_host() {
    run("one host", |open| Bench {
        a: open("soft"),
        b: open("soft"),
    });
}

#[test]
fn on_one_device() {
    run("loopback", |open| {
        let a = open("soft");
        Bench { b: a.clone(), a }
    });
}

//! Runs every pair in one process, and asserts that it counts something. The actors themselves check what
//! arrives.

use super::*;
use crate::actor_pair::Role;
use crate::actor_pair::testing::run_both;
use crate::report::Report;

fn pair(what: NicWorkload) -> [Report; 2] {
    let dir = tempfile::tempdir().unwrap();
    let task = NicTask {
        what,
        run_ns: 2_000_000,
        warm_ns: 200_000,
        together: false,
        dir: dir.path().to_owned(),
    };
    run_both(move |pair| actor(&task, pair), "")
}

/// Runs pairs, and asserts that each counts something at the end that measures.
fn all_count<const N: usize>(whats: [NicWorkload; N], measures: Role) {
    for what in whats {
        let reports = pair(what);
        let report = &reports[usize::from(measures == Role::Receiver)];
        assert!(report.per_second().is_some(), "{what:?} {report:?}");
    }
}

#[test]
fn messages_flow_both_ways_and_in_chains() {
    let flow = |(way, chain)| NicWorkload::Flow { way, chain };
    let (polled, shared) = (MessagePath::PolledMemory, MessagePath::SharedReceives);
    let flows = [(polled, 1), (polled, 16), (shared, 1), (shared, 16)];
    all_count(flows.map(flow), Role::Receiver);
}

#[test]
fn writes_spread_over_queue_pairs() {
    let spread = |(queue_pairs, chain)| NicWorkload::Spread { queue_pairs, chain };
    let spreads = [(1, 1), (1, 16), (7, 1), (7, 16)];
    all_count(spreads.map(spread), Role::Sender);
}

#[test]
fn memory_of_queue_pairs_is_counted_on_both_ends() {
    // A process of its own, because the memory of other tests would be counted too.
    let alone = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "nic::tests::memory_alone"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&alone.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "counts what its process has; run by another test"]
fn memory_alone() {
    for report in pair(NicWorkload::Footprint { queue_pairs: 50 }) {
        let Report::Grown { heap, .. } = report else {
            panic!("{report:?}");
        };
        // Both ends are in one process here.
        assert!((50 * 100..50 * 100_000).contains(&heap), "{heap}");
    }
}

#[test]
fn memory_from_elsewhere_is_written_both_ways() {
    for over in [RemoteWritePath::Verbs, RemoteWritePath::SystemCall] {
        let foreign = |size| NicWorkload::Foreign { size, over };
        all_count([64, 65536].map(foreign), Role::Sender);
    }
}

#[test]
fn ends_wake_each_other_both_ways() {
    all_count(
        [WakeMethod::Channel, WakeMethod::EventFd].map(NicWorkload::Wake),
        Role::Sender,
    );
}

#[test]
fn every_verb_loads_and_is_timed() {
    for verb in Verb::ALL {
        let (sizes, inlined) = match (verb.is_atomic(), verb.is_answered()) {
            (true, _) => (&[8][..], &[][..]),
            (false, true) => (&[8, 64, 65536][..], &[][..]),
            (false, false) => (&[8, 64, 65536][..], &[8, 64][..]),
        };
        let ways = [(false, sizes), (true, inlined)];
        let loads = ways.map(|(inline, sizes)| sizes.iter().map(move |size| (inline, *size)));
        for (inline, size) in loads.into_iter().flatten() {
            let one = VerbLoad {
                inline,
                ..VerbLoad::of(verb, size)
            };
            let many = VerbLoad {
                queue_pairs: 3,
                depth: 16,
                ..one
            };
            all_count([NicWorkload::Loaded(many)], Role::Sender);
            let [sent, _] = pair(NicWorkload::Batches(Batches {
                load: VerbLoad { depth: 5, ..one },
                pause_ns: 1000,
            }));
            let Report::Delays(delays) = sent else {
                panic!("{one} {sent:?}");
            };
            let counts: Vec<_> = delays.iter().map(|each| each.count).collect();
            assert!(counts[0] > 0, "{one} {counts:?}");
            assert_eq!(counts, [counts[0]; 5], "{one}");
            if verb.is_answered() {
                continue;
            }
            let [sent, _] = pair(NicWorkload::PingPong(one));
            let Report::Latency(found) = sent else {
                panic!("{one} {sent:?}");
            };
            assert!(found.count > 0 && found.p50_ns > 0.0, "{one} {found:?}");
        }
    }
}

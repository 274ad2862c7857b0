//! Every pair does its work, in one process, and says what it counted. What arrives is checked by the
//! parts themselves.

use super::*;
use crate::arms::desk::play_both;
use crate::arms::job::Report;

fn pair(what: What) -> [Report; 2] {
    let dir = tempfile::tempdir().unwrap();
    let task = Task {
        what,
        run_ns: 2_000_000,
        warm_ns: 200_000,
        dir: dir.path().to_owned(),
    };
    play_both(&|role, handed| part(&task, role, handed))
}

#[test]
fn messages_flow_both_ways_and_in_chains() {
    for way in [Way::PolledMemory, Way::SharedReceives] {
        for chain in [1, 16] {
            let [_, got] = pair(What::Flow { way, chain });
            assert!(got.per_second().is_some(), "{way:?} {chain} {got:?}");
        }
    }
}

#[test]
fn writes_spread_over_queue_pairs() {
    for (queue_pairs, chain) in [(1, 1), (1, 16), (7, 1), (7, 16)] {
        let [sent, _] = pair(What::Spread { queue_pairs, chain });
        assert!(
            sent.per_second().is_some(),
            "{queue_pairs} {chain} {sent:?}"
        );
    }
}

#[test]
fn memory_of_queue_pairs_is_counted_on_both_ends() {
    // Other tests would be counted too.
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
    for report in pair(What::Footprint { queue_pairs: 50 }) {
        let Report::Grown { heap, .. } = report else {
            panic!("{report:?}");
        };
        // Both ends are of one process here.
        assert!((50 * 100..50 * 100_000).contains(&heap), "{heap}");
    }
}

#[test]
fn memory_from_elsewhere_is_written_both_ways() {
    for over in [Over::Verbs, Over::SystemCall] {
        for size in [64, 65536] {
            let [sent, _] = pair(What::Foreign { size, over });
            assert!(sent.per_second().is_some(), "{over:?} {size} {sent:?}");
        }
    }
}

#[test]
fn ends_wake_each_other_both_ways() {
    for waker in [Waker::Channel, Waker::EventFd] {
        let [sent, _] = pair(What::Wake(waker));
        assert!(sent.per_second().is_some(), "{waker:?} {sent:?}");
    }
}

//! Every pair does its work, in one process, and says what it counted. What arrives is checked by the
//! parts themselves.

use super::*;
use crate::transports::desk::play_both;
use crate::transports::job::Report;

fn pair(what: What) -> [Report; 2] {
    let dir = tempfile::tempdir().unwrap();
    let task = Task {
        what,
        run_ns: 2_000_000,
        warm_ns: 200_000,
        together: false,
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

#[test]
fn pairs_that_load_at_once_measure_at_once() {
    use super::loaded::{Load, Verb, play};
    use crate::simulated::Simulated;
    use std::sync::atomic::AtomicBool;
    let (machines, stop) = (
        Simulated::named("cx5-100g").unwrap(),
        AtomicBool::new(false),
    );
    let load = Load {
        depth: 16,
        ..Load::of(Verb::Write, 4096)
    };
    let times = (Duration::from_micros(20), Duration::from_micros(100));
    let place = machines.place(&stop);
    let pairs = play(&place, What::Loaded(load), 8, times).unwrap();
    let measured = pairs.iter().map(|[sent, _]| match sent {
        Report::Rate {
            nanos, began_ns, ..
        } => (*began_ns, began_ns + nanos),
        other => panic!("{other:?}"),
    });
    let measured: Vec<(u64, u64)> = measured.collect();
    // But for the time from a completion to the next.
    let (began, ended): (Vec<u64>, Vec<u64>) = measured.iter().copied().unzip();
    for times in [began, ended] {
        let (first, last) = (times.iter().min(), times.iter().max());
        assert!(last.unwrap() - first.unwrap() < 10_000, "{measured:?}");
    }
    // No more than the link carries, as it would be if some ended while others went on.
    let rates = pairs.iter().filter_map(|[sent, _]| sent.per_second());
    let gbit_per_s = rates.sum::<f64>() * 4096.0 * 8e-9;
    assert!(
        (85.0..=100.0).contains(&gbit_per_s),
        "{gbit_per_s}: {measured:?}"
    );
}

#[test]
fn every_verb_loads_and_is_timed() {
    use super::batches::Batches;
    use super::loaded::{Load, Verb};
    for verb in Verb::ALL {
        for size in [8, 64, 65536] {
            if verb.is_atomic() && size > 8 {
                continue;
            }
            for inline in [false, true] {
                if inline && (verb.is_answered() || size > 64) {
                    continue;
                }
                let one = Load {
                    inline,
                    ..Load::of(verb, size)
                };
                let many = Load {
                    queue_pairs: 3,
                    depth: 16,
                    ..one
                };
                let [sent, _] = pair(What::Loaded(many));
                assert!(sent.per_second().is_some(), "{many} {sent:?}");
                let [sent, _] = pair(What::Batches(Batches {
                    load: Load { depth: 5, ..one },
                    pause_ns: 1000,
                }));
                let Report::Delays(delays) = sent else {
                    panic!("{one} {sent:?}");
                };
                let counts: Vec<_> = delays.iter().map(|each| each.count).collect();
                assert_eq!(counts.len(), 5, "{one}");
                assert!(
                    counts[0] > 0 && counts.iter().all(|n| *n == counts[0]),
                    "{counts:?}"
                );
                if verb.is_answered() {
                    continue;
                }
                let [sent, _] = pair(What::PingPong(one));
                let Report::Latency(found) = sent else {
                    panic!("{one} {sent:?}");
                };
                assert!(found.count > 0 && found.p50_ns > 0.0, "{one} {found:?}");
            }
        }
    }
}

//! Rings on simulated RNICs under faults from a seed: a batch of seeds, and the same seed twice.

use std::process::Command;

use headworks::testing::{SEED_VARIABLE, each_seed};
use headworks_soak as soak;

/// Makes this program print the results of its seeds and nothing else.
const HISTORY: &str = "HEADWORKS_TEST_HISTORY";

#[test]
fn rings_keep_their_guarantees_under_faults() {
    let last = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 10_000,
        None => 1_000,
    };
    let (mut whole, mut broken) = (0, 0);
    // Seeds in which packets were dropped, senders notified, links paused, and antagonists ran.
    let mut congested = [0; 4];
    each_seed(1..=last, |seed| match soak::run(seed) {
        Ok(ran) => {
            whole += ran.rings - ran.broken;
            broken += ran.broken;
            let found = ran.congestion;
            let counts = [
                found.dropped,
                found.notified,
                found.paused_nanos,
                found.antagonist_bytes,
            ];
            for (seeds, count) in congested.iter_mut().zip(counts) {
                *seeds += u64::from(count > 0);
            }
        }
        Err(violation) => panic!("{violation}"),
    });
    println!("{whole} rings ended whole, {broken} broke");
    if std::env::var_os(SEED_VARIABLE).is_none() {
        assert!(whole > 500 && broken > 50, "{whole}, {broken}");
        let is_rare = congested.iter().any(|seeds| *seeds < 5);
        assert!(!is_rare, "{congested:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_to_the_event_also_in_another_process() {
    // In 88 packets are dropped for lack of room, and in 126 senders are notified of congestion.
    let seeds = [3, 48, 88, 120, 126, 287, 550];
    let run = || {
        let ran = seeds.map(|seed| soak::run(seed).unwrap_or_else(|why| panic!("{why}")));
        ran.map(|ran| format!("{ran:?}"))
    };
    let here = run();
    if std::env::var_os(HISTORY).is_some() {
        println!("{HISTORY}{}", here.join("/"));
        return;
    }
    assert_eq!(here, run());
    // Another process has other memory addresses.
    let name = "the_same_seed_is_the_same_to_the_event_also_in_another_process";
    let ours = std::env::current_exe().expect("this program");
    let other = Command::new(ours)
        .args(["--exact", name, "--nocapture"])
        .env(HISTORY, "1")
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&other.stdout);
    let there = text
        .split(HISTORY)
        .nth(1)
        .and_then(|rest| rest.lines().next());
    assert_eq!(there, Some(here.join("/").as_str()), "{text}");
    // Different seeds have different results.
    let all: std::collections::BTreeSet<_> = here.iter().collect();
    assert_eq!(all.len(), seeds.len());
}

//! Runs of every design, in threads and in virtual time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks::sim::{Preset, SimWorld};
use headworks_runtime::{ActorRegistry, InProcess};

use super::run::PatternBed;
use super::*;

fn soft() -> PatternBed {
    let mut actors = ActorRegistry::new();
    register(&mut actors, None);
    PatternBed {
        world: Arc::new(InProcess::new(actors, headworks::opener())),
        devices: ["soft:h1", "soft:h2"].map(|name| name.parse().unwrap()),
        actors_per_host: 8,
        responder_hosts: 1,
        usage_monitor: None,
    }
}

fn simulated(order: &str) -> PatternBed {
    let mut preset = Preset::named("cx5-100g").unwrap();
    preset.set("nic.write_order", order).unwrap();
    let mut actors = ActorRegistry::new();
    register(&mut actors, Some(PatternPrices::of(&preset)));
    PatternBed {
        world: Arc::new(SimWorld::new(actors, preset, 1)),
        devices: ["sim:cx5-100g", "sim:cx5-100g"].map(|name| name.parse().unwrap()),
        actors_per_host: 8,
        responder_hosts: 6,
        usage_monitor: None,
    }
}

fn short(design: Design, requesters: usize, responders: usize) -> PatternTask {
    PatternTask {
        warm_ns: 20_000,
        run_ns: 100_000,
        per_actor: 1,
        ..PatternTask::paper(design, 256, requesters, responders)
    }
}

fn every_design() -> Vec<Design> {
    let flags = [
        MailboxFlag::InMessage,
        MailboxFlag::SecondWrite,
        MailboxFlag::Dense,
    ];
    let designs = flags.iter().flat_map(|flag| {
        Design::PAIRS
            .into_iter()
            .map(move |pair| pair.with_flag(*flag))
    });
    designs
        .flat_map(|design| [design, design.dispatched()])
        .collect()
}

#[test]
fn every_design_runs_in_virtual_time_and_repeats_exactly() {
    let stop = AtomicBool::new(false);
    let bed = simulated("65536");
    for design in every_design() {
        let task = PatternTask {
            per_actor: 4,
            ..short(design, 8, 3)
        };
        let measure = || run(&task, &bed, &stop).unwrap();
        let (one, again) = (measure(), measure());
        assert!(one.per_second > 1e5, "{design}: {one:?}");
        assert_eq!(one.per_second, again.per_second, "{design}");
        assert_eq!(one.latency(), again.latency(), "{design}");
        // Little's law: each requester always has one request under way, so none waits for a retry.
        let under_way = (1.0 - one.empty_mailboxes) * 3.0;
        assert!((0.9..1.1).contains(&under_way), "{design}: {under_way}");
    }
}

#[test]
fn every_design_runs_in_threads() {
    let stop = AtomicBool::new(false);
    for design in every_design() {
        let task = PatternTask {
            per_actor: 2,
            run_ns: 2_000_000,
            ..short(design, 2, 1)
        };
        let result = run(&task, &soft(), &stop).unwrap();
        assert!(result.per_second > 0.0, "{design}: {result:?}");
    }
}

#[test]
fn idle_turns_lower_the_rate_as_littles_law_says() {
    let stop = AtomicBool::new(false);
    let design = Design::of(MessageVerb::Write, MessageVerb::Send);
    let busy = short(design, 4, 1);
    let task = PatternTask {
        idle_share: 0.8,
        run_ns: 2_000_000,
        ..busy.clone()
    };
    let bed = simulated("65536");
    let rate = |task: &PatternTask| run(task, &bed, &stop).unwrap().per_second;
    // Four requesters, whose requests take some time and whose four waits before each take 32 µs.
    let request = 4.0 / rate(&busy);
    let expected = 4.0 / (request + 32e-6);
    let found = rate(&task);
    assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
}

#[test]
fn a_run_that_cannot_work_says_why() {
    let stop = AtomicBool::new(false);
    let design = Design::of(MessageVerb::Write, MessageVerb::Write);
    let refused = run(&short(design, 1, 1), &simulated("0"), &stop).unwrap_err();
    assert!(
        refused.to_string().contains("in_order_within_write"),
        "{refused}"
    );
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let interrupted = run(&short(design, 1, 1), &soft(), &stop).unwrap_err();
    assert_eq!(interrupted.to_string(), "interrupted");
}

//! Pairs of actors in virtual time, with processor time charged.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks::sim::{Preset, SimWorld};
use headworks_runtime::ActorRegistry;

use super::*;
use crate::case_studies::{CaseStudy, StudyTask};
use crate::report::Report;
use crate::task::register;
use crate::testbed::Testbed;
use crate::transports::job::{Job, Workload};

/// Returns the machine that most of these tests use, with `settings` applied.
fn machine(settings: &[&str]) -> Preset {
    let mut machine = Preset::named("cx5-100g").unwrap();
    for setting in settings {
        machine.apply(&setting.parse().unwrap());
    }
    machine
}

/// Runs something between two hosts of this kind.
fn between<T>(machine: &Preset, run: impl FnOnce(&Testbed<'_>) -> T) -> T {
    let mut actors = ActorRegistry::new();
    register(&mut actors, Some(CpuPrices::of(machine)));
    let stop = AtomicBool::new(false);
    let device = || "sim:cx5-100g".parse().unwrap();
    run(&Testbed {
        world: Arc::new(SimWorld::new(actors, machine.clone(), 1)),
        devices: [device(), device()],
        cpus: [0, 1],
        stop: &stop,
        usage_monitor: None,
        measured_usage: Arc::default(),
    })
}

/// Returns the reports of a pair of actors.
fn pair(machine: &Preset, channel: Channel, size: usize, workload: Workload) -> [Report; 2] {
    let dir = tempfile::tempdir().unwrap();
    let run = std::time::Duration::from_micros(500);
    let job = Job::new(channel, workload, size as u64, run, dir.path());
    between(machine, |place| place.run_pair(job.clone())).unwrap()
}

/// Returns the nanoseconds per message, one way.
fn each(machine: &Preset, channel: Channel, size: usize) -> f64 {
    let reports = pair(machine, channel, size, Workload::Rate);
    let rate = reports.iter().find_map(Report::per_second).unwrap();
    1e9 / rate
}

#[test]
fn raw_writes_are_as_slow_as_perftest_makes_them() {
    let bench = |ns: u64| machine(&[&format!("cpu.bench={ns}")]);
    let time = |ns| each(&bench(ns), baseline(PaperBaseline::Raw), 64);
    let (less, more) = (time(200), time(300));
    assert!((more - less - 100.0).abs() < 2.0, "{less} {more}");
    // Rings are not charged for it.
    let ring = ring(Variant::Full);
    assert_eq!(each(&bench(200), ring, 64), each(&bench(300), ring, 64));
}

#[test]
fn copies_take_as_long_as_the_machine_takes_for_them() {
    let copies = |rate: u64| machine(&[&format!("cpu.copy_rate={rate}"), "nic.mtt=0"]);
    let size = 65536;
    for channel in [
        PaperBaseline::L5,
        PaperBaseline::SocksDirect,
        PaperBaseline::Farm,
    ]
    .map(baseline)
    {
        // At 10 Gbit/s only the copy matters. FaRM's receiver clears memory as well.
        let time = each(&copies(10), channel, size);
        let copied = size as f64 * 8.0 / 10.0;
        let of = match channel {
            Channel::Baseline(PaperBaseline::Farm) => 1.5,
            _ => 1.0,
        };
        assert!((time / copied - of).abs() < 0.05, "{channel:?}: {time}");
    }
    let ring = ring(Variant::Full);
    assert_eq!(each(&copies(10), ring, size), each(&copies(80), ring, size));
}

fn flows(channel: Channel) -> [Report; 2] {
    let task = StudyTask {
        study: CaseStudy::Flows {
            records: 5_000,
            capture: None,
        },
        channel,
        yields: false,
        planned_ns: 5_000_000_000,
    };
    let played = between(&machine(&[]), |place| place.run_pair(task.clone()));
    played.unwrap()
}

#[test]
fn an_application_sees_completions_when_they_come() {
    let machine = machine(&[]);
    // Minimum cost of a request. The design batches only with ten requests in flight. It sends one request
    // per record, unless it sees completions too late.
    let least = machine.post_ns + machine.doorbell_cpu_ns + machine.poll_cqe_ns;
    let [_, counted] = flows(baseline(PaperBaseline::SocksDirect));
    let rate = counted.per_second().unwrap();
    assert!(rate < 1e9 / least, "{rate}");
}

#[test]
fn the_same_comes_of_the_same() {
    for channel in [ring(Variant::Full), baseline(PaperBaseline::Farm)] {
        assert_eq!(flows(channel), flows(channel));
    }
}

#[test]
fn raw_writes_go_there_and_back_where_bytes_come_in_any_order() {
    let rounds = Workload::Rounds {
        warm: 0,
        measured: 100,
    };
    // Longer than a line, on a device that promises no order: they are known by their number alone.
    let [sent, _] = pair(&machine(&[]), baseline(PaperBaseline::Raw), 1000, rounds);
    let all = matches!(sent, Report::Latency(quantiles) if quantiles.count == 100);
    assert!(all, "{sent:?}");
}

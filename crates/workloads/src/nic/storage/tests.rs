use std::sync::atomic::AtomicBool;

use super::*;
use crate::nic_measurements::Stored;
use crate::simulated_machine::SimulatedMachine;

fn load(least: usize, size: usize, is_pool: bool) -> StorageLoad {
    StorageLoad {
        size,
        least,
        connections: 8,
        outstanding: 4,
        memory: 8 << 20,
        is_pool,
        has_windows: is_pool,
        by_slices: is_pool,
        stay_ns: 20_000,
        stay: StayTime::Fixed,
        sample_ns: 100_000,
    }
}

fn served(load: &StorageLoad) -> Stored {
    let machine = SimulatedMachine::named("cx4lx-2x25g").expect("a preset");
    let stop = AtomicBool::new(false);
    let times = (Duration::from_millis(1), Duration::from_millis(1));
    let stored = load.serve(&machine.testbed(&stop), times);
    stored.unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn short_messages_are_sent_and_come_over_all_connections() {
    for is_pool in [true, false] {
        let load = load(SHORT, SHORT, is_pool);
        let stored = served(&load);
        // 32 messages that stay for 20 µs and are granted 4 µs later, with the time on the way.
        assert!((0.5e6..1.3e6).contains(&stored.per_second), "{stored:?}");
        assert_eq!(stored.bytes_per_s, stored.per_second * SHORT as f64);
        assert!(stored.latency.mean_ns < 20_000.0, "{stored:?}");
        assert_eq!(stored, served(&load), "a run repeats");
    }
}

#[test]
fn messages_of_many_sizes_come_by_sends_and_reads() {
    let stored = served(&load(SHORT, 64 << 10, true));
    let mean = stored.bytes_per_s / stored.per_second;
    // The mean of 4, 8, 16, 32 and 64 KiB.
    assert!((20_000.0..32_000.0).contains(&mean), "{stored:?}");
    assert!((10..=12).contains(&stored.samples.len()), "{stored:?}");
    assert!(stored.samples.iter().any(|sample| sample.held > 0));
}

/// Returns the last sample of a pool with messages of 256 KiB, of which `percent` % are stragglers.
fn last_sample(percent: &str) -> StorageSample {
    let device = "sim:cx4lx-2x25g".parse().expect("a device's name");
    let set = format!("host.straggler_share={percent}");
    let set = [set.parse().expect("a setting")];
    let machine = SimulatedMachine::on(&device, &set, None).expect("a simulated device");
    let machine = machine.unwrap_or_else(|why| panic!("{why}"));
    let load = StorageLoad {
        outstanding: 16,
        ..load(256 << 10, 256 << 10, true)
    };
    let (stop, times) = (
        AtomicBool::new(false),
        (Duration::from_millis(1), Duration::from_millis(25)),
    );
    let stored = load.serve(&machine.testbed(&stop), times);
    let stored = stored.unwrap_or_else(|why| panic!("{why}"));
    *stored.samples.last().expect("samples")
}

#[test]
fn stragglers_are_replaced_and_many_are_copied_out() {
    let none = last_sample("0");
    assert_eq!((none.replacements, none.copies, none.signals), (0, 0, 0));
    let few = last_sample("2");
    assert!(few.replacements > 0 && few.copies == 0, "{few:?}");
    let many = last_sample("30");
    assert!(many.replacements > 0 && many.copies > 0, "{many:?}");
}

#[test]
fn sizes_are_powers_of_two_within_their_range() {
    let load = load(SHORT, 32 << 10, true);
    let mut random = Random::new(1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        seen.insert(load.draw_size(&mut random));
    }
    let expected = [4096, 8192, 16384, 32768];
    assert!(seen.into_iter().eq(expected));
}

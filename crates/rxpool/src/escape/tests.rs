use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::config::PoolConfig;

fn config() -> EscapeConfig {
    EscapeConfig {
        cache_safe_units: 100,
        cache_danger_units: 40,
        mem_esc_units: 64,
        credit: 50,
        straggler_time: Duration::from_micros(500),
        margin_units: 10,
        signal_interval: Duration::from_micros(100),
    }
}

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

#[test]
fn each_action_begins_and_ends() {
    let mut controller = EscapeController::new(config());
    let mut decide = |available, replaced, micros| {
        let decided = controller.decide(available, replaced, at(micros));
        (decided.relief, decided.stops_admission, decided.signals)
    };
    assert_eq!(decide(100, 0, 0), (Relief::None, false, false));
    assert_eq!(decide(99, 0, 1), (Relief::Replace(64), false, false));
    assert_eq!(decide(90, 60, 2), (Relief::Replace(4), false, false));
    assert_eq!(decide(90, 64, 3), (Relief::Copy, false, false));
    // In danger, admission stops at once; the signal follows, and then others at their distance.
    assert_eq!(decide(39, 64, 10), (Relief::Copy, true, false));
    assert_eq!(decide(39, 64, 109), (Relief::Copy, true, false));
    assert_eq!(decide(39, 64, 110), (Relief::Copy, true, true));
    assert_eq!(decide(0, 64, 209), (Relief::Copy, true, false));
    assert_eq!(decide(0, 64, 210), (Relief::Copy, true, true));
    // Each action ends only above its margin.
    assert_eq!(decide(49, 64, 211), (Relief::Copy, true, false));
    assert_eq!(decide(50, 64, 212), (Relief::Copy, false, false));
    assert_eq!(decide(109, 10, 213), (Relief::Replace(54), false, false));
    assert_eq!(decide(110, 0, 214), (Relief::None, false, false));
    assert_eq!(decide(100, 0, 215), (Relief::None, false, false));
    // Danger while stragglers are still being replaced.
    assert_eq!(decide(10, 0, 216), (Relief::Replace(64), true, false));
}

#[test]
fn slow_is_who_holds_more_stragglers_than_the_credit() {
    let controller = EscapeController::new(config());
    assert!(!controller.is_slow(0, 0));
    assert!(!controller.is_slow(5, 10));
    assert!(controller.is_slow(6, 10));
    assert!(controller.is_slow(u32::MAX, u32::MAX));
}

/// All states of a small controller, each decision from each state, with levels and times at every edge.
#[test]
fn no_state_of_a_small_controller_breaks_a_rule() {
    let config = EscapeConfig {
        cache_safe_units: 4,
        cache_danger_units: 2,
        mem_esc_units: 1,
        margin_units: 1,
        signal_interval: Duration::from_nanos(2),
        ..config()
    };
    let mut seen = HashSet::new();
    // The time since the last signal matters up to its distance.
    let mut open = vec![(EscapeController::new(config), 10u64)];
    while let Some((controller, now)) = open.pop() {
        let wait = controller.signal_from.nanos().saturating_sub(now);
        if !seen.insert((controller.is_short, controller.is_in_danger, wait)) {
            continue;
        }
        for (available, replaced, passed) in (0..7).flat_map(|available| {
            (0..2).flat_map(move |replaced| (0..3).map(move |passed| (available, replaced, passed)))
        }) {
            let mut next = controller.clone();
            let now = now + passed;
            let decided = next.decide(available, replaced, Instant::from_nanos(now));
            assert!(available >= 4 || decided.relief != Relief::None);
            assert!(available < 5 || decided.relief == Relief::None);
            assert!(available >= 2 || decided.stops_admission);
            assert!(available < 3 || !decided.stops_admission);
            assert!(decided.stops_admission || !decided.signals);
            let has_stopped = controller.is_in_danger;
            assert!(
                has_stopped || !decided.signals,
                "a signal before admission stopped"
            );
            assert!(decided.relief != Relief::Copy || replaced == 1);
            assert!(!decided.signals || next.signal_from.nanos() == now + 2);
            open.push((next, now));
        }
    }
    assert!(seen.len() >= 8, "{seen:?}");
}

proptest! {
    /// Signals keep their distance, whatever the level does.
    #[test]
    fn signals_keep_their_distance(
        steps in proptest::collection::vec((0u32..150, 0u64..80), 1..200),
    ) {
        let mut controller = EscapeController::new(config());
        let (mut now, mut last) = (0, None);
        for (available, passed) in steps {
            now += passed;
            if controller.decide(available, 0, at(now)).signals {
                if let Some(last) = last {
                    prop_assert!(now - last >= 100);
                }
                last = Some(now);
                prop_assert!(available < 50);
            }
            prop_assert!(controller.deadline().is_none_or(|until| until > at(now)));
        }
    }
}

#[test]
fn every_legal_configuration_leaves_every_action_when_nothing_is_held() {
    let mib = 1 << 20;
    let unit = u64::from(crate::units::UNIT);
    for budget in [mib / 4, mib, 8 * mib, 12 * mib + unit] {
        for safe in [None, Some(2 * unit), Some(budget), Some(budget - unit)] {
            for danger in [None, Some(0), safe.map(|safe| safe - unit)] {
                let config = PoolConfig {
                    budget,
                    cache_safe: safe,
                    cache_danger: danger,
                    ..PoolConfig::default()
                };
                config.check().unwrap();
                let mut controller = EscapeController::new(config.escape());
                let none = controller.decide(0, 0, at(0));
                let has_danger = config.escape().cache_danger_units > 0;
                assert_eq!(none.stops_admission, has_danger, "{config:?}");
                let all = controller.decide(config.budget_units(), 0, at(1));
                assert_eq!(all, EscapeDecision::default(), "{config:?}");
            }
        }
    }
}

use proptest::prelude::*;

use super::*;
use headworks_verbs::Duration;

use crate::units::UNIT;

const MIB: u64 = 1 << 20;

/// A pool of 256 units with 64 in reserve, which is short below 64 and in danger below 16.
fn config() -> PoolConfig {
    PoolConfig {
        budget: MIB,
        straggler_time: Duration::from_micros(100),
        signal_interval: Duration::from_micros(50),
        ..PoolConfig::default()
    }
}

const LIMITS: AppLimits = AppLimits {
    class: Class::Normal,
    quota: u32::MAX,
};

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

fn take(pool: &mut ReceivePool, app: AppId, units: &[u32], now: Instant) -> Vec<HeldExtent> {
    let extents = units
        .iter()
        .map(|units| pool.get(app, *units, now).unwrap());
    extents.collect()
}

#[test]
fn stragglers_are_replaced_and_their_memory_joins_the_reserve() {
    let mut pool = ReceivePool::new(&config());
    let (slow, fast) = (pool.add(LIMITS), pool.add(LIMITS));
    let held = take(&mut pool, slow, &[64, 32, 16], at(0));
    let young = take(&mut pool, fast, &[64, 32], at(90));
    assert_eq!(pool.available(), 48);
    // Nothing is a straggler yet.
    assert_eq!(pool.escape_step(at(100)), EscapeStep::default());
    assert!(pool.is_short());
    // The oldest is replaced, which uses up the reserve; the next does not fit. Then the level is safe again.
    let step = pool.escape_step(at(101));
    assert_eq!((step.replaced, step.copy), (64, None));
    assert_eq!((pool.available(), pool.replaced()), (112, 64));
    assert_eq!(pool.used(slow).replaced, 64);
    assert_eq!(pool.escape_step(at(102)), EscapeStep::default());
    // Other extents circulate, and none of those in use is among them.
    let more = take(&mut pool, fast, &[64, 32, 16], at(103));
    let all = held.iter().chain(&young).chain(&more);
    let mut units: Vec<u32> = all
        .flat_map(|one| one.extent.first..one.extent.first + one.extent.units)
        .collect();
    units.sort_unstable();
    units.dedup();
    assert_eq!(units.len(), 64 + 32 + 16 + 64 + 32 + 64 + 32 + 16);
    // Replacement is over: slow applications are copied out.
    let step = pool.escape_step(at(104));
    assert_eq!(
        (step.replaced, step.copy, step.stops_admission),
        (0, Some(slow), true)
    );
    pool.remove(slow);
    assert_eq!((pool.available(), pool.replaced()), (48, 0));
    pool.remove(fast);
    assert_eq!(pool.available(), 256);
}

#[test]
fn slow_applications_are_copied_in_turn_and_others_are_not() {
    let mut pool = ReceivePool::new(&PoolConfig {
        mem_esc: Some(0),
        ..config()
    });
    let apps = [LIMITS; 3].map(|limits| pool.add(limits));
    take(&mut pool, apps[0], &[64], at(0));
    take(&mut pool, apps[2], &[64], at(0));
    // A third of what this one holds are stragglers.
    take(&mut pool, apps[1], &[16], at(0));
    take(&mut pool, apps[1], &[32, 32], at(90));
    let copied: Vec<_> = (0..4)
        .map(|step| pool.escape_step(at(101 + step)).copy)
        .collect();
    let (first, third) = (Some(apps[0]), Some(apps[2]));
    assert_eq!(copied, [first, third, first, third]);
}

#[test]
fn a_quota_bounds_what_an_application_holds() {
    let mut pool = ReceivePool::new(&config());
    let few = pool.add(AppLimits {
        quota: 20,
        ..LIMITS
    });
    let held = pool.get(few, 16, at(0)).unwrap();
    assert_eq!(pool.get(few, 5, at(0)), Err(GetError::Quota));
    assert_eq!(pool.get_up_to(few, 5, at(0)), Err(GetError::Quota));
    pool.release(few, held, 0, 1).unwrap();
    assert!(pool.get(few, 5, at(0)).is_ok());
    let counters = pool.counters();
    assert_eq!((counters.gets, counters.over_quota), (2, 2));
}

#[derive(Clone, Debug)]
enum Action {
    Get(u8, u32, bool),
    Release(usize, u32, u32),
    Wait(u64),
    Escape,
    Remove(u8),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        5 => (0u8..3, 1u32..65, any::<bool>())
            .prop_map(|(app, units, exact)| Action::Get(app, units, exact)),
        4 => (any::<usize>(), 0u32..64, 1u32..65)
            .prop_map(|(at, from, units)| Action::Release(at, from, units)),
        2 => (0u64..100).prop_map(Action::Wait),
        4 => Just(Action::Escape),
        1 => (0u8..3).prop_map(Action::Remove),
    ]
}

proptest! {
    /// The budget circulates, whatever is replaced and whoever leaves. Nothing is held by two, and nothing is lost.
    #[test]
    fn the_budget_always_circulates(actions in proptest::collection::vec(action(), 0..300)) {
        let config = config();
        let (budget, reserve) = (config.budget_units(), (config.mem_esc_bytes() / u64::from(UNIT)) as u32);
        let mut pool = ReceivePool::new(&config);
        let quota = 150;
        let limits = AppLimits { quota, ..LIMITS };
        let mut apps = [limits; 3].map(|limits| pool.add(limits));
        let mut held: Vec<(AppId, HeldExtent)> = Vec::new();
        let mut now = at(0);
        for action in actions {
            match action {
                Action::Get(app, units, exact) => {
                    let app = apps[usize::from(app)];
                    let room = quota - pool.used(app).held;
                    let got = match exact {
                        true => pool.get(app, units, now),
                        false => pool.get_up_to(app, units, now),
                    };
                    match got {
                        Ok(one) => {
                            prop_assert!(one.extent.units <= units && units <= room);
                            held.push((app, one));
                        }
                        Err(GetError::Quota) => prop_assert!(units > room),
                        Err(GetError::Short) => prop_assert!(exact || pool.available() == 0),
                    }
                }
                Action::Release(at, from, units) if !held.is_empty() => {
                    let (app, one) = held[at % held.len()];
                    let _ = pool.release(app, one, from, units);
                }
                Action::Release(..) => {}
                Action::Wait(micros) => now += Duration::from_micros(micros),
                Action::Escape => {
                    let before = pool.available();
                    let step = pool.escape_step(now);
                    prop_assert_eq!(pool.available(), before + step.replaced);
                    prop_assert!(step.replaced == 0 || step.copy.is_none());
                    if let Some(app) = step.copy {
                        let used = pool.used(app);
                        prop_assert!(2 * used.stragglers > used.held);
                    }
                }
                Action::Remove(app) => {
                    let app = usize::from(app);
                    pool.remove(apps[app]);
                    held.retain(|(of, _)| *of != apps[app]);
                    apps[app] = pool.add(limits);
                }
            }
            let used = apps.map(|app| pool.used(app));
            let all: u32 = used.iter().map(|one| one.held).sum();
            let replaced: u32 = used.iter().map(|one| one.replaced).sum();
            prop_assert_eq!(replaced, pool.replaced());
            prop_assert!(replaced <= reserve);
            prop_assert_eq!(pool.available() + all - replaced, budget);
            let mut units = vec![false; config.memory_units() as usize];
            for app in apps {
                for (one, mask) in pool.held(app) {
                    for unit in (0..one.extent.units).filter(|unit| mask >> unit & 1 == 1) {
                        let unit = &mut units[(one.extent.first + unit) as usize];
                        prop_assert!(!std::mem::replace(unit, true), "held by two");
                    }
                }
            }
        }
        apps.into_iter().for_each(|app| pool.remove(app));
        prop_assert_eq!((pool.available(), pool.replaced()), (budget, 0));
    }
}

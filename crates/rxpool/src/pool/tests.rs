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
    let extents = units.iter().map(|units| {
        let held = pool.get(app, *units).unwrap();
        assert!(pool.arrived(app, held, now));
        held
    });
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
fn slow_applications_are_named_once_and_others_are_not() {
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
    let mut copied: Vec<_> = (0..4)
        .filter_map(|step| pool.escape_step(at(101 + step)).copy)
        .collect();
    copied.sort_unstable();
    assert_eq!(copied, [apps[0], apps[2]]);
}

#[test]
fn a_quota_bounds_what_an_application_holds() {
    let mut pool = ReceivePool::new(&config());
    let few = pool.add(AppLimits {
        quota: 20,
        ..LIMITS
    });
    let held = pool.get(few, 16).unwrap();
    assert_eq!(pool.get(few, 5), Err(GetError::Quota));
    assert_eq!(pool.get_up_to(few, 5).map(|held| held.extent.units), Ok(4));
    pool.release(few, held, 0, 5).unwrap();
    assert!(pool.get(few, 5).is_ok());
    assert_eq!(pool.get_up_to(few, 1), Err(GetError::Quota));
    assert_eq!(pool.get(few, 0), Err(GetError::Length(0)));
    assert_eq!(pool.get_up_to(few, 65), Err(GetError::Length(65)));
    assert_eq!(pool.get(pool.clone().add(LIMITS), 1), Err(GetError::NoApp));
    let counters = pool.counters();
    assert_eq!((counters.gets, counters.over_quota), (3, 2));
}

#[test]
fn a_claim_is_kept_for_its_application_and_comes_back_with_each_release() {
    let mut pool = ReceivePool::new(&config());
    let (one, other) = (pool.add(LIMITS), pool.add(LIMITS));
    assert!(pool.claim(one, 100));
    assert_eq!(
        (pool.reserved(), pool.may_get(other), pool.may_get(one)),
        (100, 156, 256)
    );
    let held = pool.get(one, 64).unwrap();
    assert_eq!((pool.reserved(), pool.may_get(other)), (36, 156));
    // While others wait, the claim is also the most.
    pool.set_contended(true);
    assert_eq!((pool.may_get(one), pool.may_get(other)), (36, 0));
    pool.release(one, held, 0, 10).unwrap();
    assert_eq!(pool.may_get(one), 46);
    let claimable = Claimable {
        quota: u32::MAX,
        free: 256 - 54 - 46,
    };
    assert_eq!(pool.claimable(other), claimable);
    pool.unclaim(one, 1000);
    assert_eq!((pool.reserved(), pool.claimable(other).free), (0, 202));
}

#[test]
fn a_pool_without_stragglers_is_whole_again() {
    // 32 blocks and 8 in reserve. One unit of each block is replaced.
    let mut pool = ReceivePool::new(&PoolConfig {
        budget: 8 * MIB,
        straggler_time: Duration::from_micros(100),
        ..PoolConfig::default()
    });
    let (slow, other) = (pool.add(LIMITS), pool.add(LIMITS));
    let slowly = take(&mut pool, slow, &[64; 32], at(0));
    for held in &slowly {
        pool.release(slow, *held, 1, 63).unwrap();
    }
    let fill = take(&mut pool, other, &[32; 32], at(50));
    let more = take(&mut pool, other, &[16; 31], at(50));
    assert!(pool.available() < 512);
    pool.escape_step(at(101));
    pool.escape_step(at(102));
    assert_eq!(pool.replaced(), 32);
    let last = take(&mut pool, other, &[8; 8], at(103));
    for held in slowly {
        pool.release(slow, held, 0, 1).unwrap();
    }
    for held in fill.into_iter().chain(more).chain(last) {
        pool.release(other, held, 0, held.extent.units).unwrap();
    }
    assert_eq!((pool.available(), pool.replaced()), (2048, 0));
    let whole = take(&mut pool, other, &[64; 32], at(200));
    assert!(whole.iter().all(|held| held.extent.first < 2048));
}

#[test]
fn no_more_stragglers_are_replaced_than_the_pool_needs() {
    let mut pool = ReceivePool::new(&config());
    let app = pool.add(LIMITS);
    take(&mut pool, app, &[8; 25], at(0));
    assert_eq!(pool.available(), 56);
    // Short below 64, until 76 are free.
    assert_eq!(pool.escape_step(at(200)).replaced, 24);
    assert_eq!(pool.deadline(), None, "short no more");
    take(&mut pool, app, &[16, 2], at(200));
    assert_eq!(pool.escape_step(at(201)).replaced, 16);
    take(&mut pool, app, &[8; 5], at(202));
    assert_eq!(pool.escape_step(at(203)).replaced, 24);
    // The next straggler of those that arrived at 200.
    let ages = at(300) + Duration::from_nanos(1);
    assert_eq!(pool.deadline(), Some(ages));
}

#[derive(Clone, Debug)]
enum Action {
    Get(u8, u32, bool),
    Arrive(usize),
    Release(usize, u32, u32),
    Claim(u8, u32),
    Unclaim(u8, u32),
    Contend(bool),
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
        4 => any::<usize>().prop_map(Action::Arrive),
        1 => (0u8..3, 0u32..100).prop_map(|(app, units)| Action::Claim(app, units)),
        1 => (0u8..3, 0u32..100).prop_map(|(app, units)| Action::Unclaim(app, units)),
        1 => any::<bool>().prop_map(Action::Contend),
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
                    let may = pool.may_get(app);
                    let got = match exact {
                        true => pool.get(app, units),
                        false => pool.get_up_to(app, units),
                    };
                    match got {
                        Ok(one) => {
                            prop_assert!(one.extent.units <= units.min(may));
                            prop_assert!(!exact || one.extent.units == units);
                            held.push((app, one));
                        }
                        Err(GetError::Quota | GetError::Short) => prop_assert!(exact || may == 0),
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Action::Arrive(at) if !held.is_empty() => {
                    let (app, one) = held[at % held.len()];
                    pool.arrived(app, one, now);
                }
                Action::Arrive(_) => {}
                Action::Claim(app, units) => {
                    let app = apps[usize::from(app)];
                    let claimable = pool.claimable(app);
                    let may = units <= claimable.quota.min(claimable.free);
                    prop_assert_eq!(pool.claim(app, units), may);
                }
                Action::Unclaim(app, units) => pool.unclaim(apps[usize::from(app)], units),
                Action::Contend(is_contended) => pool.set_contended(is_contended),
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
                    held.retain(|(of, one)| {
                        if *of == apps[app] {
                            pool.arrived(*of, *one, now);
                        }
                        *of != apps[app]
                    });
                    prop_assert!(pool.remove(apps[app]));
                    prop_assert!(!pool.remove(apps[app]));
                    apps[app] = pool.add(limits);
                }
            }
            let used = apps.map(|app| pool.used(app));
            let all: u32 = used.iter().map(|one| one.held).sum();
            let replaced: u32 = used.iter().map(|one| one.replaced).sum();
            prop_assert_eq!(replaced, pool.replaced());
            prop_assert!(replaced <= reserve);
            prop_assert_eq!(pool.available() + all - replaced, budget);
            prop_assert!(pool.reserved() <= pool.available(), "more is claimed than is free");
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
        for (app, one) in held {
            pool.arrived(app, one, now);
        }
        for app in apps {
            prop_assert!(pool.remove(app));
        }
        prop_assert_eq!((pool.available(), pool.replaced(), pool.reserved()), (budget, 0, 0));
        // The units that circulated at first do so again.
        pool.set_contended(false);
        let last = pool.add(LIMITS);
        for block in 0..4 {
            let whole = pool.get(last, 64).unwrap().extent;
            prop_assert!(whole.first < budget, "{} {:?}", block, whole);
        }
    }
}

#[test]
fn an_application_that_keeps_what_it_has_is_named_overdue_and_one_that_releases_is_not() {
    let reset_time = Duration::from_micros(500);
    for releases in [false, true] {
        let mut pool = ReceivePool::new(&PoolConfig {
            mem_esc: Some(0),
            reset_time,
            ..config()
        });
        let slow = pool.add(LIMITS);
        let held = take(&mut pool, slow, &[64, 64, 64, 16], at(0));
        pool.escape_step(at(100));
        assert_eq!(pool.escape_step(at(200)).copy, Some(slow));
        assert_eq!(pool.escape_step(at(699)).overdue, None);
        let due = pool.deadline().expect("the pool is short");
        assert!(due <= at(700), "{due:?}");
        if releases {
            // What is left is young.
            for one in held {
                pool.release(slow, one, 0, one.extent.units).unwrap();
            }
            take(&mut pool, slow, &[64, 64, 64, 16], at(699));
        }
        let overdue = pool.escape_step(at(700)).overdue;
        assert_eq!(overdue, (!releases).then_some(slow));
        assert_eq!(pool.escape_step(at(1199)).overdue, None);
        assert_eq!(pool.counters().resets, u64::from(!releases));
        assert_eq!(pool.escape_step(at(1200)).overdue, overdue, "again");
    }
}

use proptest::prelude::*;

use super::*;
use crate::units::FreeUnits;

const STRAGGLER: Duration = Duration::from_micros(100);

/// An extent as the plain oracle knows it.
struct Known {
    app: AppId,
    held: HeldExtent,
    /// When its bytes arrived, and as which of all.
    arrived: Option<(u32, Instant)>,
    units: Vec<u32>,
    is_replaced: bool,
}

impl Known {
    fn is_straggler(&self, now: Instant) -> bool {
        self.arrived
            .is_some_and(|(_, since)| now.since(since) > STRAGGLER)
    }
}

#[derive(Clone, Debug)]
enum Action {
    Take(u8, u32),
    Arrive(usize),
    /// Releases some units of an extent as an application: its own, or another.
    Release(usize, u32, u32, bool),
    /// Releases an extent that ended.
    Stale(usize),
    Wait(u64),
    Look(u8),
    Replace(u8, u32),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0u8..3, 1u32..65).prop_map(|(app, units)| Action::Take(app, units)),
        4 => (any::<usize>(), 0u32..64, 1u32..65, any::<bool>())
            .prop_map(|(at, from, len, own)| Action::Release(at, from, len, own || at % 4 != 0)),
        4 => any::<usize>().prop_map(Action::Arrive),
        1 => any::<usize>().prop_map(Action::Stale),
        2 => (0u64..60).prop_map(Action::Wait),
        2 => (0u8..3).prop_map(Action::Look),
        2 => (0u8..3, 1u32..65).prop_map(|(app, most)| Action::Replace(app, most)),
    ]
}

proptest! {
    /// Counts, order, stragglers and refusals are those of a plain list of extents.
    #[test]
    fn holdings_are_those_of_a_plain_list(actions in proptest::collection::vec(action(), 0..300)) {
        let mut free = FreeUnits::free(300);
        let mut holdings = Holdings::new(300, STRAGGLER);
        let apps = [holdings.add(), holdings.add(), holdings.add()];
        let (mut known, mut ended): (Vec<Known>, Vec<(AppId, HeldExtent)>) = Default::default();
        let mut looked = [Instant::ZERO; 3];
        let mut now = Instant::from_nanos(1_000_000);
        let mut refused = [0; 3];
        let mut arrivals = 0;
        for action in actions {
            match action {
                Action::Take(app, units) => {
                    let app = apps[usize::from(app)];
                    let Some(extent) = free.take(units) else { continue };
                    let held = holdings.hold(app, extent);
                    let units = (0..units).collect();
                    known.push(Known { app, held, arrived: None, units, is_replaced: false });
                }
                Action::Arrive(at) if !known.is_empty() => {
                    let at = at % known.len();
                    let one = &mut known[at];
                    let is_new = one.arrived.is_none();
                    prop_assert_eq!(holdings.arrived(one.app, one.held, now), is_new);
                    let other = apps[(one.app.place() + 1) % 3];
                    prop_assert!(!holdings.arrived(other, one.held, now));
                    if is_new {
                        one.arrived = Some((arrivals, now));
                        arrivals += 1;
                    }
                }
                Action::Arrive(_) => {}
                Action::Release(at, from, len, own) if !known.is_empty() => {
                    let at = at % known.len();
                    let one = &mut known[at];
                    let app = if own { one.app } else { apps[(one.app.place() + 1) % 3] };
                    let released = holdings.release(app, one.held, from, len);
                    let all = from..from + len;
                    let expected = if !own {
                        Err(ReleaseError::NotHeld)
                    } else if all.end > one.held.extent.units {
                        Err(ReleaseError::Range)
                    } else if all.clone().any(|unit| !one.units.contains(&unit)) {
                        Err(ReleaseError::Twice)
                    } else {
                        one.units.retain(|unit| !all.contains(unit));
                        let first = one.held.extent.first + from;
                        Ok(Released {
                            units: PoolExtent { first, units: len },
                            is_replaced: one.is_replaced,
                            is_last: one.units.is_empty(),
                            since: one.arrived.map(|(_, since)| since),
                        })
                    };
                    prop_assert_eq!(released, expected);
                    refused[app.place()] += u64::from(expected.is_err());
                    if let Ok(released) = expected {
                        if !released.is_replaced {
                            free.release(released.units).unwrap();
                        }
                        if released.is_last {
                            let one = known.remove(at);
                            ended.push((one.app, one.held));
                        }
                    }
                }
                Action::Release(..) => {}
                Action::Stale(at) if !ended.is_empty() => {
                    let (app, held) = ended[at % ended.len()];
                    prop_assert_eq!(holdings.release(app, held, 0, 1), Err(ReleaseError::NotHeld));
                    refused[app.place()] += 1;
                }
                Action::Stale(_) => {}
                Action::Wait(micros) => now += Duration::from_micros(micros),
                Action::Look(app) => {
                    looked[usize::from(app)] = now;
                    holdings.age(apps[usize::from(app)], now);
                }
                Action::Replace(app, most) => {
                    let id = apps[usize::from(app)];
                    let at = looked[usize::from(app)];
                    let own = known.iter_mut().filter(|one| one.app == id && !one.is_replaced);
                    let next = own.filter(|one| one.arrived.is_some()).min_by_key(|one| one.arrived);
                    let expected = match next.filter(|one| one.is_straggler(at)) {
                        None => Replacement::None,
                        Some(one) if one.units.len() as u32 > most => Replacement::TooLong,
                        Some(one) => {
                            one.is_replaced = true;
                            Replacement::Done(one.units.len() as u32)
                        }
                    };
                    prop_assert_eq!(holdings.replace(id, most), expected);
                }
            }
            for app in apps {
                let at = app.place();
                let own = || known.iter().filter(|one| one.app == app);
                let units = |of: &dyn Fn(&&Known) -> bool| -> u32 {
                    own().filter(|one| of(one)).map(|one| one.units.len() as u32).sum()
                };
                let expected = AppUse {
                    held: units(&|_| true),
                    stragglers: units(&|one| one.is_straggler(looked[at])),
                    replaced: units(&|one| one.is_replaced),
                    refused: refused[at],
                };
                prop_assert_eq!(holdings.used(app), expected);
                let listed: Vec<HeldExtent> = holdings.of(app).map(|(held, _)| held).collect();
                let mut in_order: Vec<_> = own().filter(|one| one.arrived.is_some()).collect();
                in_order.sort_by_key(|one| one.arrived);
                let in_order: Vec<HeldExtent> = in_order.into_iter().map(|one| one.held).collect();
                prop_assert_eq!(listed, in_order);
            }
        }
        for one in known {
            prop_assert!(!holdings.remove(one.app), "it holds something");
            for unit in one.units {
                prop_assert!(holdings.release(one.app, one.held, unit, 1).is_ok());
            }
        }
        for app in apps {
            prop_assert!(holdings.remove(app));
            prop_assert!(!holdings.remove(app));
        }
    }
}

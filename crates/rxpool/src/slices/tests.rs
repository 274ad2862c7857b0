use proptest::prelude::*;

use super::*;
use crate::admission::Class;
use crate::config::PoolConfig;
use crate::pool::{AppLimits, ReceivePool};
use crate::units::UNITS_MAX;

#[derive(Clone, Debug)]
enum Action {
    Next,
    /// Ends the processing of a slice, chosen among those that are being processed.
    Processed(usize),
    PutBack(usize),
    /// Ends the processing of a unit that may not be processed.
    Wrong(u32),
    Release,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Next),
        3 => any::<usize>().prop_map(Action::Processed),
        1 => any::<usize>().prop_map(Action::PutBack),
        1 => prop_oneof![0u32..66, any::<u32>()].prop_map(Action::Wrong),
        2 => Just(Action::Release),
    ]
}

/// What the oracle knows of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Waiting,
    Begun,
    Free,
    Released,
}

/// A pool, and an extent of it.
fn extent(units: u32) -> (ReceivePool, crate::holdings::AppId, HeldExtent) {
    let mut pool = ReceivePool::new(&PoolConfig::default());
    let app = pool.add(AppLimits {
        class: Class::Normal,
        quota: u32::MAX,
    });
    pool.get(app, 5).unwrap();
    let held = pool.get(app, units).unwrap();
    (pool, app, held)
}

proptest! {
    /// Each byte of the extent is in exactly one slice, and each unit becomes releasable once, after its slice was
    /// processed and not before, whatever the order.
    #[test]
    fn slices_are_those_of_a_plain_list(
        units in 1u32..=UNITS_MAX,
        len in any::<proptest::sample::Index>(),
        at in 0u64..1 << 40,
        actions in proptest::collection::vec(action(), 0..400),
    ) {
        let (mut pool, app, held) = extent(units);
        let available = pool.available();
        let len = len.index(held.extent.len() as usize) as u32 + 1;
        let mut slices = ExtentSlices::new(held, at, len).unwrap();
        let mut known: Vec<Known> = (0..units)
            .map(|unit| if unit * UNIT < len { Known::Waiting } else { Known::Free })
            .collect();
        // What is left is processed and released in order.
        let rest = [Action::Next, Action::Processed(0), Action::Release].into_iter().cycle();
        for action in actions.into_iter().chain(rest.take(3 * 66)) {
            let begun: Vec<u32> = (0..units).filter(|at| known[*at as usize] == Known::Begun).collect();
            let pick = |which: usize| begun.get(which.checked_rem(begun.len())?).copied();
            match action {
                Action::Next => {
                    let unit = (0..units).find(|at| known[*at as usize] == Known::Waiting);
                    let expected = unit.map(|unit| Slice {
                        unit,
                        offset: (u64::from(held.extent.first) + u64::from(unit)) * 4096,
                        at: at + u64::from(unit) * 4096,
                        len: (len - unit * 4096).min(4096),
                    });
                    prop_assert_eq!(slices.peek(), expected);
                    prop_assert_eq!(slices.next(), expected);
                    if let Some(unit) = unit {
                        known[unit as usize] = Known::Begun;
                    }
                }
                Action::Processed(which) => if let Some(unit) = pick(which) {
                    prop_assert_eq!(slices.processed(unit), Ok(()));
                    prop_assert_eq!(slices.processed(unit), Err(SliceError::NotBegun(unit)));
                    known[unit as usize] = Known::Free;
                },
                Action::PutBack(which) => if let Some(unit) = pick(which) {
                    prop_assert_eq!(slices.put_back(unit), Ok(()));
                    known[unit as usize] = Known::Waiting;
                },
                Action::Wrong(unit) => if !begun.contains(&unit) {
                    prop_assert_eq!(slices.processed(unit), Err(SliceError::NotBegun(unit)));
                    prop_assert_eq!(slices.put_back(unit), Err(SliceError::NotBegun(unit)));
                },
                Action::Release => {
                    let first = (0..units).find(|at| known[*at as usize] == Known::Free);
                    let expected = first.map(|first| {
                        let end = (first..units).find(|at| known[*at as usize] != Known::Free);
                        first..end.unwrap_or(units)
                    });
                    let free = slices.releasable();
                    prop_assert_eq!(&free, &expected);
                    for unit in free.clone().into_iter().flatten() {
                        known[unit as usize] = Known::Released;
                    }
                    if let Some(free) = free {
                        let released = pool.release(app, held, free.start, free.len() as u32);
                        prop_assert!(released.is_ok());
                    }
                }
            }
            let is_over = known.iter().all(|one| *one == Known::Released);
            prop_assert_eq!(slices.is_over(), is_over);
        }
        prop_assert!(slices.is_over());
        prop_assert_eq!(pool.available(), available + units);
    }
}

#[test]
fn lengths_that_the_extent_does_not_have_are_refused() {
    let (_pool, _app, held) = extent(2);
    for len in [0, 8193, u32::MAX] {
        let refused = ExtentSlices::new(held, 0, len).map(|_| ());
        assert_eq!(refused, Err(SliceError::Length { len, extent: 8192 }));
    }
    assert!(ExtentSlices::new(held, 0, 8192).is_ok());
}

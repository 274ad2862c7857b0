use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The longest run of free units in each block, from a set of the units in use.
fn longest(used: &BTreeSet<u32>, units: u32) -> u32 {
    let (mut longest, mut run) = (0, 0);
    for unit in 0..units {
        if unit % UNITS_MAX == 0 || used.contains(&unit) {
            run = 0;
        }
        run += u32::from(!used.contains(&unit));
        longest = longest.max(run);
    }
    longest
}

#[derive(Clone, Debug)]
enum Action {
    Take(u32),
    TakeUpTo(u32),
    /// Takes from a range of blocks.
    TakeWithin(u32, u32, u32),
    /// Releases part of an extent: which one, from which unit, how many.
    Release(usize, u32, u32),
    /// Releases units that may be free.
    Wrong(u32, u32),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0u32..70).prop_map(Action::Take),
        1 => (1u32..64).prop_map(Action::TakeUpTo),
        4 => (any::<usize>(), 0u32..64, 1u32..65).prop_map(|(at, from, len)| Action::Release(at, from, len)),
        1 => (prop_oneof![0u32..400, any::<u32>()], prop_oneof![0u32..70, any::<u32>()])
            .prop_map(|(first, units)| Action::Wrong(first, units)),
        1 => (0u32..5, 0u32..5, 1u32..65)
            .prop_map(|(from, to, units)| Action::TakeWithin(from, to, units)),
    ]
}

proptest! {
    /// No unit is taken twice, none is lost, and units that lie side by side are found.
    #[test]
    fn units_are_taken_once_and_found_again(
        units in 1u32..300,
        actions in proptest::collection::vec(action(), 0..300),
    ) {
        let mut pool = FreeUnits::free(units);
        let mut used = BTreeSet::new();
        let mut taken: Vec<PoolExtent> = Vec::new();
        for action in actions {
            match action {
                Action::Take(wanted) => {
                    let run = longest(&used, units);
                    let is_there = wanted > 0 && wanted.next_power_of_two() <= run;
                    let extent = pool.take(wanted);
                    prop_assert_eq!(extent.is_some(), is_there, "{} of {}", wanted, run);
                    if let Some(extent) = extent {
                        prop_assert_eq!(extent.units, wanted);
                        prop_assert!(extent.is_valid() && extent.first + wanted <= units);
                        for unit in extent.first..extent.first + wanted {
                            prop_assert!(used.insert(unit), "unit {} taken twice", unit);
                        }
                        taken.push(extent);
                    }
                }
                Action::TakeUpTo(wanted) => {
                    let extent = pool.take_up_to(wanted);
                    prop_assert_eq!(extent.is_none(), used.len() == units as usize);
                    if let Some(extent) = extent {
                        prop_assert!(extent.units <= wanted);
                        for unit in extent.first..extent.first + extent.units {
                            prop_assert!(used.insert(unit), "unit {} taken twice", unit);
                        }
                        taken.push(extent);
                    }
                }
                Action::TakeWithin(from, to, wanted) => {
                    let range = from * UNITS_MAX..to * UNITS_MAX;
                    let is_there = range.clone().any(|unit| unit < units && !used.contains(&unit));
                    let extent = pool.take_within(range.clone(), wanted);
                    prop_assert_eq!(extent.is_some(), is_there);
                    if let Some(extent) = extent {
                        prop_assert!(extent.units <= wanted && extent.is_valid());
                        for unit in extent.first..extent.first + extent.units {
                            prop_assert!(range.contains(&unit));
                            prop_assert!(used.insert(unit), "unit {} taken twice", unit);
                        }
                        taken.push(extent);
                    }
                }
                Action::Release(at, from, len) if !taken.is_empty() => {
                    let at = at % taken.len();
                    let whole = taken[at];
                    let from = from % whole.units;
                    let part = whole.part(from, len.min(whole.units - from)).unwrap();
                    prop_assert_eq!(pool.release(part), Ok(()));
                    prop_assert!(pool.release(part).is_err(), "released twice");
                    taken.swap_remove(at);
                    for unit in part.first..part.first + part.units {
                        used.remove(&unit);
                    }
                    let behind = from + part.units;
                    taken.extend(whole.part(0, from));
                    taken.extend(whole.part(behind, whole.units - behind));
                }
                Action::Release(..) => {}
                Action::Wrong(first, count) => {
                    let all_used = (1..=UNITS_MAX).contains(&count)
                        && first < units
                        && (first..first + count).all(|unit| used.contains(&unit))
                        && first / UNITS_MAX == (first + count - 1) / UNITS_MAX;
                    if !all_used {
                        let before = pool.available();
                        let extent = PoolExtent { first, units: count };
                        prop_assert!(pool.release(extent).is_err());
                        prop_assert_eq!(pool.available(), before);
                    }
                }
            }
            prop_assert_eq!(pool.available() as usize + used.len(), units as usize);
        }
        for extent in taken {
            prop_assert_eq!(pool.release(extent), Ok(()));
        }
        prop_assert_eq!(pool.available(), units);
        let half = units.min(UNITS_MAX) / 2 + 1;
        let is_there = longest(&BTreeSet::new(), units) >= half.next_power_of_two();
        prop_assert_eq!(pool.take(half).is_some(), is_there);
    }

    /// Extents of one size, a power of two, touch only as much memory as was in use at the same time.
    #[test]
    fn memory_that_was_used_last_is_used_next(
        log in 0u32..7,
        order in proptest::collection::vec(any::<proptest::sample::Index>(), 1..400),
        most in 1usize..9,
    ) {
        let units = 1 << log;
        let mut pool = FreeUnits::free(48 * UNITS_MAX);
        let (mut held, mut touched): (Vec<PoolExtent>, _) = (Vec::new(), BTreeSet::new());
        for which in order {
            if held.len() == most {
                let oldest = held.swap_remove(which.index(most));
                prop_assert_eq!(pool.release(oldest), Ok(()));
            }
            let extent = pool.take(units).unwrap();
            touched.insert(extent.first);
            held.push(extent);
        }
        let per_block = UNITS_MAX / units;
        let blocks: BTreeSet<u32> = touched.iter().map(|first| first / UNITS_MAX).collect();
        prop_assert!(blocks.len() as u32 <= (most as u32).div_ceil(per_block), "{:?}", blocks);
    }
}

#[test]
fn the_worst_fragmentation_is_as_stated() {
    let blocks = 5;
    for log in 0..=6 {
        let run = 1 << log;
        let mut pool = FreeUnits::partly_free(blocks * UNITS_MAX, 0..0);
        // One unit in use at the end of each run.
        for first in (0..blocks * UNITS_MAX).step_by(run as usize) {
            let free = PoolExtent {
                first,
                units: run - 1,
            };
            if run > 1 {
                pool.release(free).unwrap();
            }
        }
        let in_use = blocks * (UNITS_MAX / run);
        assert_eq!(pool.available(), blocks * UNITS_MAX - in_use);
        assert_eq!(pool.take(run), None, "runs of {run}");
        // With one unit less in use there is such a run.
        let last = PoolExtent {
            first: run - 1,
            units: 1,
        };
        pool.release(last).unwrap();
        assert!(pool.clone().take(run).is_some(), "runs of {run}");
        // All free memory is found in several extents.
        let mut taken = 0;
        while let Some(extent) = pool.take_up_to(run) {
            taken += extent.units;
        }
        assert_eq!(taken, blocks * UNITS_MAX - in_use + 1);
    }
}

#[test]
fn memory_taken_in_turn_is_all_used_before_any_is_used_again() {
    let mut pool = FreeUnits::free(3 * UNITS_MAX);
    let mut next = 0;
    for round in 0..3 {
        for expected in (0..3 * UNITS_MAX).step_by(16) {
            let extent = pool.take_from(next, 16).unwrap();
            assert_eq!(extent.first, expected, "round {round}");
            next = extent.first + extent.units;
            pool.release(extent).unwrap();
        }
    }
    // What is in use is passed over, also in the block where the search begins.
    let used = pool.take_from(8, 16).unwrap();
    assert_eq!((used.first, used.units), (8, 16));
    assert_eq!(pool.take_from(20, 8).unwrap().first, 24);
    assert_eq!(pool.take_from(3 * UNITS_MAX - 4, 8).unwrap().first, 0);
    assert_eq!(pool.take_from(9, UNITS_MAX).unwrap().first, UNITS_MAX);
    assert_eq!(pool.take_from(0, 0), None);
    let mut full = FreeUnits::partly_free(UNITS_MAX, 0..0);
    assert_eq!(full.take_from(5, 1), None);
}

proptest! {
    /// A long run is found where a plain search finds one, is taken once, and is released whole.
    #[test]
    fn long_runs_are_found_and_taken_once(
        units in 1u32..400,
        steps in proptest::collection::vec((any::<bool>(), 0u32..300, any::<usize>()), 0..60),
    ) {
        let mut pool = FreeUnits::free(units);
        let mut used = BTreeSet::new();
        let mut taken: Vec<Range<u32>> = Vec::new();
        for (takes, wanted, which) in steps {
            if takes {
                let is_there = if wanted <= UNITS_MAX {
                    wanted > 0 && wanted.next_power_of_two() <= longest(&used, units)
                } else {
                    let starts = (0..units).step_by(UNITS_MAX as usize);
                    starts.into_iter().any(|first| {
                        first + wanted <= units
                            && used.range(first..first + wanted).next().is_none()
                    })
                };
                let run = pool.take_run(wanted);
                prop_assert_eq!(run.is_some(), is_there, "{} units", wanted);
                if let Some(run) = run {
                    prop_assert!(run.end <= units && run.len() == wanted as usize);
                    for unit in run.clone() {
                        prop_assert!(used.insert(unit), "unit {} taken twice", unit);
                    }
                    taken.push(run);
                }
            } else if !taken.is_empty() {
                let run = taken.swap_remove(which % taken.len());
                let longer = run.start..run.end + 1;
                if !used.contains(&run.end) {
                    prop_assert!(pool.release_run(&longer).is_err());
                }
                prop_assert_eq!(pool.release_run(&run), Ok(()));
                prop_assert!(pool.release_run(&run).is_err(), "released twice");
                run.for_each(|unit| assert!(used.remove(&unit)));
            }
            prop_assert_eq!(pool.available(), units - used.len() as u32);
        }
    }
}

#[test]
fn impossible_runs_are_refused() {
    let mut pool = FreeUnits::partly_free(2 * UNITS_MAX, 0..0);
    let wrong = [(5, 5), (9, 5), (0, u32::MAX), (u32::MAX - 1, u32::MAX)];
    for run in wrong.map(|(from, to)| from..to) {
        assert!(pool.release_run(&run).is_err(), "{run:?}");
    }
    assert_eq!(pool.release_run(&(3..100)), Ok(()));
    assert_eq!(pool.available(), 97);
}

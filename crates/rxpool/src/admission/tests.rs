use proptest::prelude::*;

use super::*;
use crate::units::EXTENT_MAX;

const NANO: Estimate = Estimate {
    rate: 1,
    residence: Duration::from_nanos(1),
};
const ENDLESS: Estimate = Estimate {
    rate: u64::MAX,
    residence: Duration::from_micros(1_000_000),
};

fn admission(reads: u32) -> Admission<u32> {
    Admission::new(&PoolConfig {
        reads,
        ..PoolConfig::default()
    })
}

#[test]
fn a_footprint_is_rate_times_residence_within_fragment_and_transfer() {
    let of = |rate: u64, micros: u64, bytes| {
        let residence = Duration::from_micros(micros);
        Estimate { rate, residence }.footprint(bytes, EXTENT_MAX)
    };
    // 25 GB/s that stay for 200 µs are 5 MB (section 2.2).
    assert_eq!(of(25_000_000_000, 200, 1 << 30), 5_000_000);
    assert_eq!(of(1_000_000, 200, 1 << 30), EXTENT_MAX.into());
    assert_eq!(of(1_000_000, 200, 9000), 9000);
    assert_eq!(of(25_000_000_000, 200, 1 << 20), 1 << 20);
    assert_eq!(of(u64::MAX, u64::MAX / 1000, 1 << 40), 1 << 40);
}

#[test]
fn a_transfer_longer_than_the_pool_waits_for_all_of_it() {
    let mut admission = admission(32);
    let budget = PoolConfig::default().budget_units();
    admission.announce(1, Class::Normal, 1 << 30, ENDLESS);
    admission.announce(2, Class::Normal, 4096, NANO);
    assert_eq!(
        admission.admit(budget - 1),
        None,
        "the first waits, and so does who is behind it"
    );
    let mut first = admission.admit(budget).unwrap();
    assert_eq!((first.transfer, first.promised), (1, budget));
    assert_eq!(admission.admit(budget), None, "all is promised");
    // What it takes is no longer promised, but no longer free either.
    admission.take(&mut first, budget - 1);
    assert_eq!(admission.admit(1), None);
    assert_eq!(admission.admit(2).unwrap().transfer, 2);
}

#[test]
fn a_low_class_is_overtaken_a_few_times_and_then_goes_first() {
    let mut admission = admission(1000);
    admission.announce(0, Class::Low, 1 << 20, ENDLESS);
    (1..=20).for_each(|number| admission.announce(number, Class::High, 4096, NANO));
    let mut next = |available| admission.admit(available).map(|one| one.transfer);
    for number in 1..=BYPASSES_MAX {
        assert_eq!(next(100 + number), Some(number));
    }
    // Its 256 units are not free, and nobody overtakes it any more.
    assert_eq!(next(200), None);
    assert_eq!(next(300), Some(0));
    assert_eq!(next(300), Some(BYPASSES_MAX + 1));
}

#[test]
fn the_window_bounds_reads_and_their_bytes() {
    let mut admission = admission(32);
    for _ in 0..32 {
        assert!(admission.may_read(EXTENT_MAX));
        admission.read_begun(EXTENT_MAX);
    }
    assert!(!admission.may_read(1));
    admission.read_ended(EXTENT_MAX);
    assert!(admission.may_read(EXTENT_MAX));
    admission.read_begun(1);
    assert_eq!(admission.in_flight(), (32, 31 * u64::from(EXTENT_MAX) + 1));
    admission.read_ended(EXTENT_MAX);
    assert!(admission.may_read(EXTENT_MAX), "both windows have room");
    let mut few = Admission::<u32>::new(&PoolConfig {
        read_bytes: EXTENT_MAX.into(),
        ..PoolConfig::default()
    });
    few.read_begun(4096);
    assert!(!few.may_read(EXTENT_MAX));
    assert!(few.may_read(EXTENT_MAX - 4096));
}

#[test]
fn averages_reach_what_stays_the_same() {
    let mut estimator = Estimator::default();
    for _ in 0..300 {
        estimator.arrived(1 << 16, Duration::from_micros(16));
        estimator.released(Duration::from_micros(70));
    }
    let estimate = estimator.estimate();
    assert!(
        estimate.rate.abs_diff(4_096_000_000) < 100_000_000,
        "{estimate:?}"
    );
    assert!(
        estimate.residence.nanos().abs_diff(70_000) < 100,
        "{estimate:?}"
    );
}

#[derive(Clone, Debug)]
enum Action {
    Announce(Class, u64, bool),
    Admit,
    /// An admitted transfer takes units, as many as it may and needs.
    Take(usize, u32),
    End(usize),
    /// Units are released.
    Release(u32),
    Withdraw(u32),
}

fn action() -> impl Strategy<Value = Action> {
    let class = proptest::sample::select(&Class::ALL[..]);
    prop_oneof![
        3 => (class, 1u64..4_000_000, any::<bool>())
            .prop_map(|(class, bytes, endless)| Action::Announce(class, bytes, endless)),
        3 => Just(Action::Admit),
        3 => (any::<usize>(), 1u32..65).prop_map(|(at, units)| Action::Take(at, units)),
        2 => any::<usize>().prop_map(Action::End),
        2 => (1u32..500).prop_map(Action::Release),
        1 => (0u32..100).prop_map(Action::Withdraw),
    ]
}

proptest! {
    /// What is promised is always free. Each class is first in, first out. Whoever waits is admitted once memory is free.
    #[test]
    fn promises_are_kept_and_nobody_starves(
        actions in proptest::collection::vec(action(), 0..300),
        reads in 1u32..10,
    ) {
        let config = PoolConfig { reads, ..PoolConfig::default() };
        let budget = config.budget_units();
        let mut admission = Admission::<u32>::new(&config);
        let mut free = budget;
        let mut number = 0;
        let mut oracle: [VecDeque<u32>; 3] = Default::default();
        let mut admitted: Vec<Admitted<u32>> = Vec::new();
        let drain = std::iter::repeat_n([Action::Release(u32::MAX), Action::End(0), Action::Admit], 700);
        for action in actions.into_iter().chain(drain.flatten()) {
            match action {
                Action::Announce(class, bytes, endless) => {
                    let estimate = if endless { ENDLESS } else { NANO };
                    admission.announce(number, class, bytes, estimate);
                    oracle[class as usize].push_back(number);
                    number += 1;
                }
                Action::Admit => {
                    if let Some(one) = admission.admit(free) {
                        prop_assert_eq!(oracle[one.class as usize].pop_front(), Some(one.transfer));
                        admitted.push(one);
                    }
                }
                Action::Take(at, units) if !admitted.is_empty() => {
                    let at = at % admitted.len();
                    let may = admission.spare(&admitted[at], free);
                    prop_assert!(may >= admitted[at].promised, "a promise is broken");
                    let units = units.min(may);
                    admission.take(&mut admitted[at], units);
                    free -= units;
                }
                Action::End(at) if !admitted.is_empty() => {
                    let at = at % admitted.len();
                    admission.end(admitted.swap_remove(at));
                }
                Action::Release(units) => free += units.min(budget - free),
                Action::Withdraw(which) => {
                    for class in Class::ALL {
                        let queue = &mut oracle[class as usize];
                        let waited = queue.contains(&which);
                        queue.retain(|one| *one != which);
                        prop_assert_eq!(admission.withdraw(which, class), waited);
                    }
                }
                Action::Take(..) | Action::End(_) => {}
            }
            prop_assert!(admission.promised() <= free, "more is promised than is free");
            let promised: u32 = admitted.iter().map(|one| one.promised).sum();
            prop_assert_eq!(admission.promised(), promised);
            prop_assert!(admitted.len() <= reads as usize);
            for class in Class::ALL {
                prop_assert_eq!(admission.waiting(class), oracle[class as usize].len());
            }
        }
        prop_assert!(oracle.iter().all(VecDeque::is_empty), "{oracle:?} still wait");
    }
}

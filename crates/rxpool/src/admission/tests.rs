use proptest::prelude::*;

use super::*;
use crate::holdings::HeldExtent;
use crate::pool::AppLimits;
use crate::units::EXTENT_MAX;

const NANO: Estimate = Estimate {
    rate: 1,
    residence: Duration::from_nanos(1),
};
const ENDLESS: Estimate = Estimate {
    rate: u64::MAX,
    residence: Duration::from_micros(1_000_000),
};

/// A pool of 2,048 units with applications of each class, and its admission.
struct World {
    pool: ReceivePool,
    admission: Admission<u32>,
    apps: Vec<(AppId, Class)>,
}

impl World {
    fn new(reads: u32, quotas: &[(Class, u32)]) -> Self {
        let config = PoolConfig {
            reads,
            ..PoolConfig::default()
        };
        let mut pool = ReceivePool::new(&config);
        let apps = quotas
            .iter()
            .map(|(class, quota)| {
                let (class, quota) = (*class, *quota);
                (pool.add(AppLimits { class, quota }), class)
            })
            .collect();
        Self {
            pool,
            admission: Admission::new(&config),
            apps,
        }
    }

    fn announce(&mut self, transfer: u32, app: usize, bytes: u64, estimate: Estimate) {
        let app = self.apps[app];
        self.admission.announce(transfer, app, bytes, estimate);
    }

    fn admit(&mut self) -> Option<Admitted<u32>> {
        self.admission.admit(&mut self.pool)
    }

    /// Lets an application hold units until the rest is free.
    fn leave_free(&mut self, app: usize, free: u32) -> Vec<HeldExtent> {
        let app = self.apps[app].0;
        let mut held = Vec::new();
        while self.pool.available() > free {
            let units = (self.pool.available() - free).min(64);
            held.push(self.pool.get_up_to(app, units).unwrap());
        }
        held
    }
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
fn a_transfer_longer_than_the_pool_claims_a_quarter_of_it() {
    let mut world = World::new(32, &[(Class::Normal, u32::MAX); 3]);
    world.announce(1, 0, 1 << 30, ENDLESS);
    world.announce(2, 0, 4096, NANO);
    let held = world.leave_free(2, 511);
    assert_eq!(
        world.admit(),
        None,
        "the first waits, and so does the one behind it"
    );
    assert!(world.admission.is_short());
    let app = world.apps[2].0;
    world.pool.release(app, held[0], 0, 1).unwrap();
    let first = world.admit().unwrap();
    assert_eq!((first.transfer(), first.footprint()), (1, 512));
    assert_eq!(world.admit(), None, "all is claimed");
    // Held units count towards the claim. The application claims them again when it releases them.
    let own = world.apps[0].0;
    let taken = world.pool.get(own, 64).unwrap();
    world.pool.release(own, taken, 0, 64).unwrap();
    assert_eq!(world.admit(), None);
    assert_eq!(world.pool.reserved(), 512);
    world.admission.end(first, &mut world.pool);
    assert_eq!(world.admit().unwrap().transfer(), 2);
    assert!(!world.admission.is_short());
}

#[test]
fn a_low_class_is_overtaken_a_few_times_and_then_goes_first() {
    let mut world = World::new(1000, &[(Class::Low, u32::MAX), (Class::High, u32::MAX)]);
    world.announce(0, 0, 1 << 20, ENDLESS);
    (1..=20).for_each(|number| world.announce(number, 1, 4096, NANO));
    let held = world.leave_free(1, 200);
    for number in 1..=BYPASSES_MAX {
        assert_eq!(world.admit().map(|one| one.transfer()), Some(number));
    }
    // Its 256 units are not free, and nobody overtakes it any more.
    assert_eq!(world.admit(), None);
    let app = world.apps[1].0;
    for held in &held[..2] {
        world
            .pool
            .release(app, *held, 0, held.extent.units)
            .unwrap();
    }
    assert_eq!(world.admit().unwrap().transfer(), 0);
    assert_eq!(world.admit().unwrap().transfer(), BYPASSES_MAX + 1);
}

#[test]
fn the_applications_of_a_class_take_turns_and_a_full_quota_stops_nobody_else() {
    let normal = |quota| (Class::Normal, quota);
    let mut world = World::new(1000, &[normal(3), normal(u32::MAX), normal(u32::MAX)]);
    for number in 0..12 {
        world.announce(number, (number / 4) as usize, 8192, NANO);
    }
    let order: Vec<u32> = std::iter::from_fn(|| world.admit().map(|one| one.transfer())).collect();
    // The first application may claim one transfer of two units.
    assert_eq!(order, [0, 4, 8, 5, 9, 6, 10, 7, 11]);
    assert_eq!(world.admission.waiting(Class::Normal), 3);
    assert!(world.admission.is_waited_for() && !world.admission.is_short());
    assert!(world.admission.withdraw(2, world.apps[0]));
    assert!(!world.admission.withdraw(2, world.apps[0]));
    assert_eq!(world.admission.waiting(Class::Normal), 2);
}

#[test]
fn the_window_bounds_reads_and_their_bytes() {
    let mut admission = World::new(32, &[]).admission;
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
    Announce(usize, u64, bool),
    Admit,
    /// An application takes units, as many as it may.
    Take(usize, u32),
    Release(usize),
    End(usize),
    Withdraw(u32),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0usize..5, 1u64..4_000_000, any::<bool>())
            .prop_map(|(app, bytes, endless)| Action::Announce(app, bytes, endless)),
        3 => Just(Action::Admit),
        4 => (0usize..5, 1u32..65).prop_map(|(app, units)| Action::Take(app, units)),
        3 => any::<usize>().prop_map(Action::Release),
        2 => any::<usize>().prop_map(Action::End),
        1 => (0u32..100).prop_map(Action::Withdraw),
    ]
}

proptest! {
    /// Claimed units are free. Each application's transfers are first in, first out. Each waiting transfer is
    /// admitted, although an application takes all that it may and releases little by little.
    #[test]
    fn claims_are_kept_and_no_transfer_starves(
        actions in proptest::collection::vec(action(), 0..300),
        reads in 1u32..10,
    ) {
        let all = u32::MAX;
        let quotas = [(Class::High, all), (Class::High, 600), (Class::Normal, all), (Class::Low, all), (Class::Low, 513)];
        let mut world = World::new(reads, &quotas);
        let mut number = 0;
        let mut oracle: [VecDeque<u32>; 5] = Default::default();
        let mut admitted: Vec<Admitted<u32>> = Vec::new();
        let mut held: Vec<(AppId, HeldExtent)> = Vec::new();
        let count = actions.len();
        // At the end all go on, one unit at a time, and one of them takes whatever it may.
        let end = [Action::Admit, Action::Take(3, 64), Action::Take(3, 64), Action::Release(0), Action::Release(1), Action::End(0)];
        let mut rounds = 0;
        for action in actions.into_iter().chain(std::iter::repeat_n(end, 4000).flatten()) {
            rounds += 1;
            let is_end = rounds > count;
            if is_end && oracle.iter().all(VecDeque::is_empty) {
                break;
            }
            match action {
                Action::Announce(app, bytes, endless) => {
                    let estimate = if endless { ENDLESS } else { NANO };
                    world.announce(number, app, bytes, estimate);
                    oracle[app].push_back(number);
                    number += 1;
                }
                Action::Admit => {
                    if let Some(one) = world.admit() {
                        let app = world.apps.iter().position(|(id, _)| *id == one.app()).unwrap();
                        prop_assert_eq!(oracle[app].pop_front(), Some(one.transfer()));
                        admitted.push(one);
                    }
                    world.pool.set_contended(world.admission.lacks_memory());
                }
                Action::Take(app, units) => {
                    let app = world.apps[app].0;
                    if let Ok(one) = world.pool.get_up_to(app, units) {
                        held.push((app, one));
                    }
                }
                Action::Release(at) if !held.is_empty() => {
                    let (app, one) = held.remove(at % held.len());
                    world.pool.release(app, one, 0, one.extent.units).unwrap();
                }
                Action::End(at) if !admitted.is_empty() => {
                    let one = admitted.remove(at % admitted.len());
                    world.admission.end(one, &mut world.pool);
                }
                Action::Withdraw(which) => {
                    for (queue, app) in oracle.iter_mut().zip(&world.apps) {
                        let waited = queue.contains(&which);
                        queue.retain(|one| *one != which);
                        prop_assert_eq!(world.admission.withdraw(which, *app), waited);
                    }
                }
                Action::Release(_) | Action::End(_) => {}
            }
            prop_assert!(world.pool.reserved() <= world.pool.available(), "more is claimed than is free");
            prop_assert!(admitted.len() <= reads as usize);
            let waiting: usize = Class::ALL.iter().map(|class| world.admission.waiting(*class)).sum();
            prop_assert_eq!(waiting, oracle.iter().map(VecDeque::len).sum::<usize>());
        }
        prop_assert!(oracle.iter().all(VecDeque::is_empty), "{oracle:?} still wait");
    }
}

/// An application that keeps what has arrived gets memory for its next transfers, though others of its transfers wait for
/// their turn: there is memory enough.
#[test]
fn a_full_window_of_transfers_is_no_lack_of_memory() {
    let mut world = World::new(2, &[(Class::Normal, u32::MAX)]);
    let app = world.apps[0].0;
    (0..6).for_each(|transfer| world.announce(transfer, 0, 16_384, NANO));
    for _ in 0..2 {
        let admitted: Vec<_> = std::iter::from_fn(|| world.admit()).collect();
        assert_eq!(admitted.len(), 2);
        assert!(world.admission.is_short() && !world.admission.lacks_memory());
        world.pool.set_contended(world.admission.lacks_memory());
        for admitted in admitted {
            // What is handed out stays in use.
            world.pool.get(app, 4).expect("memory");
            world.admission.end(admitted, &mut world.pool);
        }
    }
    // All memory is claimed or in use: now it is memory that the transfers wait for.
    world.leave_free(0, 3);
    assert!(world.admit().is_none());
    assert!(world.admission.is_short() && world.admission.lacks_memory());
}

use headworks::sim::Preset;

use super::*;

fn measured(load: &SharePacePool) -> SharePacePoolResult {
    let mut preset = Preset::named("cx6dx-2x100g").expect("a preset");
    for (key, value) in LOSSLESS {
        preset.set(key, value).expect("legal");
    }
    let machine = Machine { preset, seed: 1 };
    let times = (Duration::from_millis(1), Duration::from_micros(500));
    let found = load.measure(&machine, times, &AtomicBool::new(false));
    found.unwrap_or_else(|why| panic!("{why}"))
}

fn load(hosts: usize, connections: usize) -> SharePacePool {
    SharePacePool {
        hosts,
        connections,
        is_shared: false,
        depth: DEPTH,
        pacing: String::new(),
        pacing_ns: 0,
        is_pooled: false,
        antagonist: 250.0,
    }
}

#[test]
fn requests_leave_the_cache_with_many_queue_pairs_and_stay_if_connections_share_a_few() {
    let native = load(16, 1024);
    let found = measured(&native);
    assert_eq!(
        (found.queue_pairs, found.dropped, found.repeated),
        (1024, 0, 0)
    );
    assert!(found.wqe_misses > Some(0.9), "{found:?}");
    assert_eq!(found, measured(&native), "a run repeats");
    let shared = measured(&SharePacePool {
        is_shared: true,
        ..native
    });
    // A hash selects the sets of the cache, so a few overflow.
    assert_eq!(shared.queue_pairs, 32);
    let few = |misses| misses < 0.05;
    assert!(shared.wqe_misses.is_some_and(few), "{shared:?}");
    assert!(shared.out_per_s > 2.0 * found.out_per_s, "{shared:?}");
}

#[test]
fn as_few_requests_outstanding_as_of_shared_queue_pairs_stay_in_the_cache_on_many_queue_pairs_too()
{
    let native = SharePacePool {
        depth: 4,
        ..load(16, 1024)
    };
    let found = measured(&native);
    assert_eq!((found.queue_pairs, found.outstanding), (1024, 4096));
    assert!(
        found.wqe_misses.is_some_and(|misses| misses < 0.1),
        "{found:?}"
    );
}

#[test]
fn pacing_keeps_the_requests_of_many_queue_pairs_in_the_cache() {
    let plain = load(16, 1024);
    let paced = SharePacePool {
        pacing: ",pace,pace_base_delay_ns=2000".to_owned(),
        pacing_ns: 50,
        ..plain.clone()
    };
    let (plain, paced) = (measured(&plain), measured(&paced));
    assert!(
        paced.wqe_misses.is_some_and(|misses| misses < 0.05),
        "{paced:?}"
    );
    assert!(
        paced.out_per_s > 2.0 * plain.out_per_s,
        "{paced:?} {plain:?}"
    );
}

#[test]
fn the_pool_stays_in_the_cache_and_the_rings_of_many_connections_do_not() {
    let rings = load(16, 1024);
    let pool = SharePacePool {
        is_pooled: true,
        ..rings.clone()
    };
    let (rings, pool) = (measured(&rings), measured(&pool));
    assert!(
        pool.ddio_hits > Some(0.9) && rings.ddio_hits < Some(0.5),
        "{pool:?} {rings:?}"
    );
    assert!(pool.in_per_s > 1.2 * rings.in_per_s, "{pool:?} {rings:?}");
    assert_eq!((pool.dropped, pool.repeated), (0, 0));
}

#[test]
fn a_number_of_connections_that_hosts_cannot_share_equally_is_refused() {
    let machine = Machine {
        preset: Preset::named("cx6dx-2x100g").expect("a preset"),
        seed: 1,
    };
    let times = (Duration::from_millis(1), Duration::from_millis(1));
    let refused = load(3, 64).measure(&machine, times, &AtomicBool::new(false));
    assert!(refused.is_err());
}

use headworks::sim::Preset;

use super::*;

/// Constants that drop no packet: links are paused in place.
pub(super) const LOSSLESS: [(&str, &str); 5] = [
    ("dcqcn.on", "0"),
    ("nic.rx_pause", "768"),
    ("nic.rx_resume", "640"),
    ("switch.pause", "2048"),
    ("switch.resume", "1920"),
];

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
    assert!(found.wqe_misses > 0.9, "{found:?}");
    assert_eq!(found, measured(&native), "a run repeats");
    let shared = measured(&SharePacePool {
        is_shared: true,
        ..native
    });
    // A hash selects the sets of the cache, so a few overflow.
    assert_eq!(shared.queue_pairs, 32);
    assert!(shared.wqe_misses < 0.05, "{shared:?}");
    assert!(shared.out_per_s > 2.0 * found.out_per_s, "{shared:?}");
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
        pool.ddio_hits > 0.9 && rings.ddio_hits < 0.5,
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

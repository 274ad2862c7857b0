use super::native_callers::SimulatedLock;
use super::*;

fn machine() -> Machine {
    Machine {
        preset: Preset::named("cx3-40g").expect("a preset"),
        seed: 1,
    }
}

fn measured(load: OneSidedLoad, arm: RequestPath) -> LoadResult {
    let times = (Duration::from_micros(20), Duration::from_micros(100));
    let found = load.measure(arm, &machine(), times, &AtomicBool::new(false));
    found.unwrap_or_else(|why| panic!("{arm:?}: {why}"))
}

const READS: OneSidedOp = OneSidedOp::Reads {
    bytes: 64,
    region: 1 << 16,
};

#[test]
fn every_arm_completes_reads_reproducibly() {
    let load = OneSidedLoad {
        what: READS,
        callers: 3,
        connections: 6,
        hosts: 2,
        outstanding: 4,
    };
    for (arm, queue_pairs) in [
        (RequestPath::Native, 6),
        (RequestPath::Locked(3), 2),
        (RequestPath::Service, 4),
        (RequestPath::Workers(1), 4),
        (RequestPath::Workers(4), 4),
    ] {
        let found = measured(load, arm);
        assert_eq!(found.queue_pairs, queue_pairs, "{arm:?}");
        assert!(found.ended > 50 && found.per_second > 0.0, "{found:?}");
        assert_eq!(measured(load, arm), found, "{arm:?}");
    }
}

#[test]
fn added_values_match_the_counters() {
    let load = OneSidedLoad {
        what: OneSidedOp::Adds { words: 5 },
        callers: 2,
        connections: 2,
        hosts: 1,
        outstanding: 4,
    };
    for arm in [
        RequestPath::Native,
        RequestPath::Locked(2),
        RequestPath::Service,
    ] {
        assert!(measured(load, arm).ended > 50, "{arm:?}");
    }
}

#[test]
fn messages_come_whole_and_the_longer_the_later() {
    let took = |bytes| {
        let load = OneSidedLoad {
            what: OneSidedOp::Messages {
                bytes,
                way: MessageWay::Any,
            },
            callers: 1,
            connections: 1,
            hosts: 1,
            outstanding: 1,
        };
        let times = (Duration::from_micros(200), Duration::from_millis(1));
        let found = load.measure(
            RequestPath::Service,
            &machine(),
            times,
            &AtomicBool::new(false),
        );
        let found = found.unwrap_or_else(|why| panic!("{bytes} B: {why}"));
        assert!(found.ended > 2, "{found:?}");
        found.latency.p50_ns
    };
    let [short, long, longest] = [8, 4096, 100_000].map(took);
    assert!(short < long && long < longest, "{short} {long} {longest}");
}

#[test]
fn a_lock_is_had_in_the_order_of_asking_and_is_dearer_the_more_wait() {
    let (has, waits) = (Duration::from_nanos, Instant::from_nanos);
    let mut lock = SimulatedLock::new([has(150), has(10)]);
    // Each entry: thread, time and whether it queues; the expected answer; the time of release if it got the
    // lock.
    let trace = [
        ((1, 100, true), Ok(0), 200),
        ((1, 200, true), Ok(0), 300),
        ((3, 210, true), Err(300), 0),
        ((2, 220, true), Err(300), 0),
        ((2, 300, true), Err(320), 0),
        ((4, 300, false), Err(320), 0),
        ((3, 300, true), Ok(160), 500),
        ((2, 320, true), Err(500), 0),
        ((4, 320, false), Err(500), 0),
        ((2, 500, true), Ok(150), 700),
        ((4, 900, false), Ok(150), 950),
    ];
    for ((who, now, queues), answer, released) in trace {
        let asked = lock.ask(who, waits(now), queues);
        assert_eq!(asked, answer.map(has).map_err(waits), "{who} at {now}");
        if asked.is_ok() {
            lock.release(waits(released));
        }
    }
}

//! A snapshot of a registry in which one context is fake. The fake context's record leads to any data, which
//! may change while the snapshot is taken.

use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::segment::LAYOUT_VERSION;
use headworks_softnic::inspect::{self, ContextSnapshot};
use headworks_verbs::SrqInit;

use super::fixtures::{open, registry};
use super::softnic_record::{FakeContext, end};
use crate::input::Input;

/// Number of rows that a table has for queue pairs, and for completion queues.
const ROWS_MAX: usize = 4096;

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let fabric = registry();
    let victim = open("soft:victim");
    let _ours = end(&victim);
    let domain = victim.alloc_pd().expect("a domain");
    let _queue = domain.create_srq(&SrqInit {
        max_wr: 8,
        max_sge: 2,
        limit: 2,
    });
    let things = FakeContext::new(&mut input, &fabric);
    let mut record = things.record(&mut input);
    // With another layout version the rest of the record is not read, so most records get this one.
    if record.layout_version >= 8 {
        record.layout_version = LAYOUT_VERSION;
    }
    let claim = things.claim(&record);
    let hammers = input.byte() >= 200;
    // The first part of the input describes the writes, the rest which of them precede a snapshot.
    let (mut writes, stop) = (Input::new(input.bytes(512)), AtomicBool::new(false));
    let look = || {
        let seen = inspect::look(&fabric, None).expect("the registry is readable");
        assert!(seen.contexts.len() + seen.unreadable.len() <= 2);
        let of = |host: &str| seen.contexts.iter().find(|seen| seen.host == host);
        let honest = of("victim").expect("the honest context is found");
        let held = (
            honest.queue_pairs.len(),
            honest.completion_queues.len(),
            honest.shared_receive_queues.len(),
        );
        assert_eq!(held, (1, 1, 1));
        assert_eq!(honest.completion_queues[0].counters.unpolled, 0);
        assert_eq!(honest.regions.count, 1);
        if let Some(odd) = of("none") {
            check(odd);
        }
    };
    std::thread::scope(|scope| {
        if hammers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    things.scribble(&mut writes);
                    std::thread::yield_now();
                }
            });
            look();
            look();
            stop.store(true, Ordering::Relaxed);
        }
    });
    while !writes.is_over() {
        for _ in 0..1 + writes.below(4) {
            match writes.byte() {
                0..40 => things.scribble(&mut writes),
                _ => things.scribble_one(&mut writes),
            }
        }
        look();
    }
    drop(claim);
}

/// Checks that the snapshot of a fake context is bounded, and that the queue lengths are possible ones.
fn check(odd: &ContextSnapshot) {
    assert!(odd.queue_pairs.len() <= ROWS_MAX && odd.completion_queues.len() <= ROWS_MAX);
    for queue in &odd.shared_receive_queues {
        assert!(queue.waiting <= 1 << 24, "{queue:?}");
    }
}

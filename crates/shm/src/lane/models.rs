use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::slots::tests::Heap;

/// A producer whose values 1, 2, 3 complete by the lane, by somebody else, and as the rule says.
struct Shared {
    lane: Lane<u64>,
    heap: Heap<u64>,
    detour: Detour,
    retired: AtomicU64,
    /// Values with somebody else.
    waiting: AtomicU64,
}

impl Shared {
    fn past_the_lane(&self, number: u64) {
        self.detour.take(number);
        self.heap.queue.push(1, &number).unwrap();
    }

    /// As a queue pair completes a request that it executed while posting.
    fn complete(&self, number: u64) {
        if !self.detour.is_over(&self.retired) {
            return self.past_the_lane(number);
        }
        // SAFETY: one thread of the model calls this.
        assert!(unsafe { self.lane.push(|slot| *slot = number) });
    }

    fn poll(&self, most: usize, got: &mut Vec<u64>) {
        let queued = !self.heap.queue.is_empty();
        if !queued && self.lane.is_empty() {
            return;
        }
        // SAFETY: one thread of the model polls at a time, and takes values in no other way.
        unsafe {
            let mut queue = self.heap.queue.only_consumer();
            let take = |_, value: &u64| {
                retire(&self.retired, *value);
                got.push(*value);
            };
            take_in_order(&self.lane, &mut queue, queued, most, take).unwrap();
        }
    }
}

fn check(most: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let shared = Arc::new(Shared {
            lane: Lane::new(2),
            heap: Heap::new(2),
            detour: Detour::new(),
            retired: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        });
        let poster = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.complete(1);
                shared.waiting.store(1, Ordering::Release);
                let carrier = {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        shared.past_the_lane(2);
                        shared.waiting.fetch_sub(1, Ordering::AcqRel);
                    })
                };
                // Values do not overtake those that wait.
                let last = match shared.waiting.load(Ordering::Acquire) {
                    0 => {
                        shared.complete(3);
                        3
                    }
                    _ => 2,
                };
                carrier.join().unwrap();
                last
            })
        };
        let mut got = Vec::new();
        for _ in 0..2 {
            shared.poll(most, &mut got);
        }
        let last = poster.join().unwrap();
        for _ in 0..3 {
            shared.poll(most, &mut got);
        }
        assert_eq!(got, (1..=last).collect::<Vec<_>>());
    });
}

#[test]
fn loom_lane_and_queue_never_overtake_each_other() {
    check(4);
}

#[test]
fn loom_lane_and_queue_never_overtake_each_other_one_at_a_time() {
    check(1);
}

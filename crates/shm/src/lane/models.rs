use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::slot_queue::tests::HeapQueue;

/// State of a producer. Another thread completes some of its values.
struct Shared {
    lane: Lane<u64>,
    heap: HeapQueue<u64>,
    lane_bypass: LaneBypass,
    retired: AtomicU64,
    /// Number of values that another thread has yet to complete.
    waiting: AtomicU64,
    /// The consumer's, which one thread at a time is.
    turn: std::sync::Mutex<LaneTurn>,
}

impl Shared {
    fn past_the_lane(&self, number: u64) {
        self.lane_bypass.record(number);
        self.heap.queue.push(1, &number).unwrap();
    }

    /// Completes a value on the producer's own thread: through the lane if the bypass is over, else through the
    /// queue.
    fn complete(&self, number: u64) {
        if !self.lane_bypass.is_over(&self.retired) {
            return self.past_the_lane(number);
        }
        // SAFETY: only one thread of the model calls this.
        assert!(unsafe { self.lane.push(|slot| *slot = number) });
    }

    /// `queued` is whether an earlier look found the queue non-empty.
    fn poll(&self, queued: bool, most: usize, got: &mut Vec<u64>) {
        // SAFETY: one thread of the model polls at a time, and values are taken in no other way.
        unsafe {
            let mut queue = self.heap.queue.single_consumer();
            let take = |_, value: &u64| {
                retire(&self.retired, *value);
                got.push(*value);
            };
            let mut turn = self.turn.lock().unwrap();
            pop_in_order(&self.lane, &mut queue, &mut turn, queued, most, take).unwrap();
        }
    }

    fn is_queued(&self) -> bool {
        !self.heap.queue.is_empty()
    }
}

/// Posts `count` values and completes them itself, has the next one completed by another thread, and
/// completes one more if that thread is done. Returns the last number.
fn post(shared: &Arc<Shared>, first: u64, count: u64) -> u64 {
    let next = first + count;
    for number in first..next {
        shared.complete(number);
    }
    shared.waiting.store(1, Ordering::Release);
    let carrier = {
        let shared = shared.clone();
        thread::spawn(move || {
            shared.past_the_lane(next);
            shared.waiting.fetch_sub(1, Ordering::AcqRel);
        })
    };
    // The producer must not complete a value while earlier ones are with another thread.
    let may_go = shared.waiting.load(Ordering::Acquire) == 0;
    if may_go {
        shared.complete(next + 1);
    }
    carrier.join().unwrap();
    next + u64::from(may_go)
}

/// `before` is whether a value is in the queue at the start; `most` is how many values a poll may take.
fn check(before: bool, most: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let shared = Arc::new(Shared {
            lane: Lane::new(2),
            heap: HeapQueue::new(4),
            lane_bypass: LaneBypass::new(),
            retired: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            turn: std::sync::Mutex::default(),
        });
        if before {
            shared.past_the_lane(1);
        }
        let poster = {
            let shared = shared.clone();
            thread::spawn(move || match before {
                true => post(&shared, 2, 1),
                false => post(&shared, 1, 2),
            })
        };
        let mut got = Vec::new();
        let queued = shared.is_queued();
        shared.poll(queued, most, &mut got);
        // This also models a poller that looked at the queue before the first poll ran.
        shared.poll(queued || shared.is_queued(), most, &mut got);
        let last = poster.join().unwrap();
        for _ in 0..last {
            shared.poll(shared.is_queued(), most, &mut got);
        }
        assert_eq!(got, (1..=last).collect::<Vec<_>>());
    });
}

#[test]
fn loom_the_queue_does_not_overtake_the_lane() {
    check(false, 4);
}

#[test]
fn loom_the_queue_does_not_overtake_the_lane_one_at_a_time() {
    check(false, 1);
}

#[test]
fn loom_neither_overtakes_the_other() {
    check(true, 4);
}

#[test]
fn loom_neither_overtakes_the_other_one_at_a_time() {
    check(true, 1);
}

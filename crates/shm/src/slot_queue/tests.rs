use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::*;

/// A queue on the heap, for tests and models.
pub(crate) struct HeapQueue<T: ShmSafe> {
    start: *mut u8,
    pub(crate) queue: SlotQueueRef<T>,
}

// SAFETY: the queue is Send and Sync; only the last owner frees the memory.
unsafe impl<T: ShmSafe> Send for HeapQueue<T> {}
// SAFETY: as above.
unsafe impl<T: ShmSafe> Sync for HeapQueue<T> {}

impl<T: ShmSafe> HeapQueue<T> {
    /// Pops as the only consumer; the tests make sure that there is no other.
    fn pop_alone(&self) -> Result<Option<(u64, T)>, SlotError> {
        // SAFETY: the consumer lives only within this call, during which nobody else pops.
        unsafe { self.queue.single_consumer() }.pop()
    }

    #[cfg(not(loom))]
    fn full(&self) -> Vec<(u64, T)> {
        let mut full = Vec::new();
        // SAFETY: as above.
        let mut consumer = unsafe { self.queue.single_consumer() };
        consumer.for_each_full(|position, value| full.push((position, value)));
        full
    }

    /// Recovers the slots of owners for which `dead` returns true. Returns the values that they were reading.
    fn recover(&self, dead: impl Fn(u16) -> bool) -> Vec<T> {
        let mut left = Vec::new();
        // SAFETY: the tests do not use claims of owners that they call dead.
        unsafe { self.queue.recover(dead, |_, value| left.push(value)) };
        left
    }
}

fn layout<T: ShmSafe>(capacity: usize) -> Layout {
    Layout::from_size_align(SlotQueue::<T>::bytes(capacity), 64).expect("layout")
}

impl<T: ShmSafe> HeapQueue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        // SAFETY: the layout is not empty; the memory is ours, aligned and large enough.
        unsafe {
            let start = alloc_zeroed(layout::<T>(capacity));
            let queue = SlotQueue::<T>::init(start, capacity);
            for index in 0..capacity {
                let value = (&raw const (*queue.slots().add(index)).value).cast_mut();
                value.write(RacyCell::new(core::mem::zeroed()));
            }
            Self { start, queue }
        }
    }
}

impl<T: ShmSafe> Drop for HeapQueue<T> {
    fn drop(&mut self) {
        let capacity = self.queue.capacity();
        // SAFETY: the memory was allocated in `new` with the same layout. The words (loom's own objects under
        // loom) are dropped in place before.
        unsafe {
            for index in 0..capacity {
                core::ptr::drop_in_place(self.queue.slots().add(index).cast_mut());
            }
            core::ptr::drop_in_place(self.queue.header.cast_mut());
            dealloc(self.start, layout::<T>(capacity));
        }
    }
}

#[cfg(not(loom))]
mod plain {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u64),
        Pop,
        PopExclusive,
        /// A producer dies between claim and commit and is recovered.
        DieWriting,
        /// A consumer dies while it holds a value and is recovered.
        DieReading,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            6 => any::<u64>().prop_map(Op::Push),
            3 => Just(Op::Pop),
            2 => Just(Op::PopExclusive),
            1 => Just(Op::DieWriting),
            1 => Just(Op::DieReading),
        ];
        proptest::collection::vec(op, 0..300)
    }

    proptest! {
        #[test]
        fn the_queue_is_a_bounded_fifo_despite_deaths(ops in ops(), bits in 1u32..5) {
            let capacity = 1usize << bits;
            let heap = HeapQueue::<u64>::new(capacity);
            let queue = heap.queue;
            let mut oracle = VecDeque::new();
            for op in ops {
                match op {
                    Op::Push(value) => {
                        if oracle.len() < capacity {
                            match queue.push(1, &value) {
                                Ok(_) => oracle.push_back(value),
                                // A skipped slot may block the push until the consumers have passed it.
                                Err(error) => prop_assert_eq!(error, SlotError::Full),
                            }
                        } else {
                            prop_assert_eq!(queue.push(1, &value), Err(SlotError::Full));
                        }
                    }
                    Op::Pop => {
                        let got = queue.try_pop(2).unwrap().map(|(_, value)| value);
                        prop_assert_eq!(got, oracle.pop_front());
                    }
                    Op::PopExclusive => {
                        let got = heap.pop_alone().unwrap().map(|(_, value)| value);
                        prop_assert_eq!(got, oracle.pop_front());
                    }
                    Op::DieWriting => {
                        if queue.claim_push(66).is_ok() {
                            prop_assert_eq!(heap.recover(|who| who == 66), vec![]);
                        }
                    }
                    Op::DieReading => {
                        if queue.claim_pop(66).unwrap().is_some() {
                            let left = heap.recover(|who| who == 66);
                            prop_assert_eq!(left, vec![oracle.pop_front().unwrap()]);
                        }
                    }
                }
            }
        }

        /// Any words in peer-written memory cause neither a panic nor an endless loop.
        #[test]
        fn any_slot_words_are_survived(
            words in proptest::collection::vec(any::<u64>(), 4),
            hints in any::<(u64, u64)>(),
        ) {
            let heap = HeapQueue::<u64>::new(4);
            let queue = heap.queue;
            queue.header().tail.0.store(hints.0, Ordering::Relaxed);
            queue.header().head.0.store(hints.1, Ordering::Relaxed);
            for (index, word) in words.iter().enumerate() {
                queue.slot(index as u64).word.store(*word, Ordering::Relaxed);
            }
            for _ in 0..12 {
                let _ = queue.try_pop(1);
                let _ = queue.push(2, &7);
                let _ = heap.pop_alone();
                heap.recover(|who| who % 2 == 0);
                heap.full();
            }
        }
    }

    #[test]
    fn lagging_hints_make_no_value_count_that_was_consumed() {
        let heap = HeapQueue::<u64>::new(8);
        let header = || heap.queue.header();
        for round in 0..20 {
            let (tail, head) = (header().tail.get(), header().head.get());
            for value in 0..3 {
                heap.queue.push(1, &value).unwrap();
            }
            assert_eq!(heap.queue.held(), 3, "{round}");
            (0..3).for_each(|_| assert!(heap.pop_alone().unwrap().is_some()));
            assert_eq!(heap.queue.held(), 0);
            // A consumer frees its slot before it moves the hint, and a producer fills its slot before.
            let new_head = header().head.get();
            header().head.0.store(head, Ordering::Relaxed);
            assert_eq!(heap.queue.held(), 0);
            header().head.0.store(new_head, Ordering::Relaxed);
            let new_tail = header().tail.get();
            header().tail.0.store(tail, Ordering::Relaxed);
            assert_eq!(heap.queue.held(), 0);
            assert_eq!(heap.queue.len_hint(), 0);
            header().tail.0.store(new_tail, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_slow_reader_is_passed_by_and_its_slot_waited_for() {
        let heap = HeapQueue::<u64>::new(2);
        let queue = &heap.queue;
        queue.push(1, &10).unwrap();
        queue.push(1, &11).unwrap();
        let slow = queue.claim_pop(2).unwrap().expect("full");
        assert_eq!(queue.try_pop(3), Ok(Some((1, 11))));
        assert_eq!(
            queue.try_pop(3),
            Ok(None),
            "the slot of position 2 is still being read"
        );
        assert_eq!(queue.push(1, &12), Err(SlotError::Full));
        assert_eq!(queue.value(&slow), 10);
        queue.finish(slow);
        assert_eq!(queue.push(1, &12), Ok(2));
        assert_eq!(heap.pop_alone(), Ok(Some((2, 12))));
    }

    #[test]
    fn hints_that_lag_by_laps_make_no_gap_and_lose_nothing() {
        for lag in 0..20u64 {
            for held in 0..=4u64 {
                let heap = HeapQueue::<u64>::new(4);
                let queue = heap.queue;
                for value in 0..22 {
                    assert_eq!(queue.push(1, &value), Ok(value));
                    assert_eq!(queue.try_pop(1), Ok(Some((value, value))));
                }
                for value in 22..22 + held {
                    assert_eq!(queue.push(1, &value), Ok(value));
                }
                queue.header().tail.0.store(22 - lag, Ordering::Relaxed);
                queue.header().head.0.store(22 - lag, Ordering::Relaxed);
                match queue.push(1, &(22 + held)) {
                    Ok(position) => assert_eq!(position, 22 + held, "lag {lag}"),
                    Err(error) => assert_eq!((error, held), (SlotError::Full, 4)),
                }
                for value in 22..22 + (held + 1).min(4) {
                    queue.header().head.0.store(22 - lag, Ordering::Relaxed);
                    assert_eq!(queue.try_pop(1), Ok(Some((value, value))), "lag {lag}");
                }
                assert_eq!(queue.try_pop(1), Ok(None));
            }
        }
    }

    #[test]
    fn a_hole_that_was_recovered_early_hides_nothing() {
        let heap = HeapQueue::<u64>::new(4);
        let queue = heap.queue;
        queue.push(1, &0).unwrap();
        let _dead = queue.claim_push(66).unwrap();
        queue.push(1, &2).unwrap();
        assert_eq!(queue.blocking_push(), None);
        assert_eq!(queue.try_pop(1), Ok(Some((0, 0))));
        assert_eq!(queue.blocking_push(), Some((1, 66)));
        assert_eq!(queue.try_pop(1), Ok(None));
        assert_eq!(heap.recover(|who| who == 66), []);
        assert_eq!(queue.blocking_push(), None);
        assert_eq!(queue.push(1, &3), Ok(3));
        assert_eq!(heap.full(), [(2, 2), (3, 3)]);
        assert_eq!(queue.try_pop(1), Ok(Some((2, 2))));
        assert_eq!(queue.try_pop(1), Ok(Some((3, 3))));
    }

    #[test]
    fn claims_of_another_queue_are_refused() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let (one, other) = (HeapQueue::<u64>::new(2), HeapQueue::<u64>::new(2));
        let refused = |f: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(f)).is_err();
        let mut push = one.queue.claim_push(1).ok();
        assert!(refused(&mut || {
            other.queue.commit(push.take().unwrap(), &1);
        }));
        // The other queue's first slot is still free, so the refused commit did not write it.
        assert_eq!(other.queue.push(1, &5), Ok(0));
        one.recover(|who| who == 1);
        one.queue.push(1, &6).unwrap();
        let mut pop = one.queue.claim_pop(1).unwrap();
        assert!(refused(&mut || {
            other.queue.value(pop.as_ref().unwrap());
        }));
        assert!(refused(&mut || other.queue.finish(pop.take().unwrap())));
        assert_eq!(other.queue.try_pop(1), Ok(Some((0, 5))));
    }

    #[test]
    fn many_threads_lose_and_double_nothing() {
        let heap = HeapQueue::<u64>::new(8);
        let queue = heap.queue;
        let each = 20_000u64;
        let mut seen = std::thread::scope(|scope| {
            for producer in 0..2u64 {
                scope.spawn(move || {
                    for n in 0..each {
                        while queue.push(producer as u16, &(producer * each + n)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let consumers: Vec<_> = (0..2)
                .map(|consumer| {
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        while got.len() < each as usize {
                            match queue.try_pop(9 + consumer).unwrap() {
                                Some((_, value)) => got.push(value),
                                None => std::thread::yield_now(),
                            }
                        }
                        got
                    })
                })
                .collect();
            consumers
                .into_iter()
                .flat_map(|c| c.join().unwrap())
                .collect::<Vec<_>>()
        });
        seen.sort_unstable();
        assert_eq!(seen, (0..2 * each).collect::<Vec<_>>());
    }
}

#[cfg(loom)]
mod models;

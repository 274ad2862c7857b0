//! Loom models of the queue: producers, consumers and deaths.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::slot_queue::ConditionalPop;

fn bounded(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_two_producers_one_consumer() {
    bounded(|| {
        let heap = Arc::new(HeapQueue::<u64>::new(2));
        let producers: Vec<_> = [10, 20]
            .into_iter()
            .map(|value| {
                let heap = heap.clone();
                thread::spawn(move || heap.queue.push(value as u16, &value).unwrap())
            })
            .collect();
        let mut got = Vec::new();
        for _ in 0..2 {
            if let Some((_, value)) = heap.queue.try_pop(1).unwrap() {
                got.push(value);
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
        while let Some((_, value)) = heap.pop_alone().unwrap() {
            got.push(value);
        }
        got.sort_unstable();
        assert_eq!(got, [10, 20]);
    });
}

#[test]
fn loom_slots_are_reused_only_when_read() {
    bounded(|| {
        let heap = Arc::new(HeapQueue::<u64>::new(1));
        let producer = {
            let heap = heap.clone();
            thread::spawn(move || {
                let mut pushed = 0;
                for value in [1, 2] {
                    if heap.queue.push(1, &value).is_ok() {
                        pushed += 1;
                    } else {
                        break;
                    }
                }
                pushed
            })
        };
        let first = heap.queue.try_pop(2).unwrap().map(|(_, value)| value);
        let pushed = producer.join().unwrap();
        let rest = heap.queue.try_pop(2).unwrap().map(|(_, value)| value);
        let got: Vec<_> = first.into_iter().chain(rest).collect();
        assert_eq!(got, (1..=pushed).collect::<Vec<u64>>());
    });
}

#[test]
fn loom_a_death_between_claim_and_commit() {
    bounded(|| {
        let heap = Arc::new(HeapQueue::<u64>::new(2));
        // The producer dies holding a reservation.
        let _ = heap.queue.claim_push(66).unwrap();
        let other = {
            let heap = heap.clone();
            thread::spawn(move || heap.queue.push(1, &5).unwrap())
        };
        assert_eq!(heap.recover(|who| who == 66), []);
        other.join().unwrap();
        assert_eq!(
            heap.queue.try_pop(2).unwrap().map(|(_, value)| value),
            Some(5)
        );
    });
}

/// Models the receives of a queue pair: one producer that needs no compare-and-swap, and consumers in other
/// processes, some of which take only a value that is long enough.
#[test]
fn loom_the_only_producer_and_consumers_of_two_kinds() {
    bounded(|| {
        let heap = Arc::new(HeapQueue::<[u64; 2]>::new(2));
        let producer = {
            let heap = heap.clone();
            thread::spawn(move || {
                // SAFETY: nobody else appends to the queue.
                let mut producer = unsafe { heap.queue.single_producer() };
                let pushed = (1..4).take_while(|value| producer.push(&[*value; 2]).is_ok());
                pushed.count() as u64
            })
        };
        let taker = {
            let heap = heap.clone();
            thread::spawn(move || heap.queue.try_pop(2).unwrap())
        };
        let even = |value: &[u64; 2]| value[0] % 2 == 0;
        let mut got = Vec::new();
        if let ConditionalPop::Taken(claim) = heap.queue.claim_pop_if(3, even).unwrap() {
            let value = heap.queue.value(&claim);
            heap.queue.finish(claim);
            assert_eq!(value, [2; 2], "the only one that fits");
            got.push(2);
        }
        let pushed = producer.join().unwrap();
        got.extend(taker.join().unwrap().map(|(_, value)| value[0]));
        let mut last = 0;
        while let Some((position, value)) = heap.queue.try_pop(4).unwrap() {
            assert_eq!([position + 1; 2], value);
            assert!(last < value[0], "in order");
            last = value[0];
            got.push(last);
        }
        got.sort_unstable();
        assert_eq!(got, (1..=pushed).collect::<Vec<_>>());
    });
}

/// A slot is reused while a consumer checks whether its value fits. A value that is taken fitted, and one
/// that is rejected did not fit and was whole.
#[test]
fn loom_taken_values_fitted_and_rejected_values_did_not() {
    bounded(|| {
        let heap = Arc::new(HeapQueue::<[u64; 2]>::new(1));
        // SAFETY: nobody else appends to the queue.
        let mut producer = unsafe { heap.queue.single_producer() };
        producer.push(&[1; 2]).unwrap();
        let other = {
            let heap = heap.clone();
            thread::spawn(move || {
                let first = heap.queue.try_pop(2).unwrap();
                let again = producer.push(&[2; 2]);
                (first.map(|(_, value)| value[0]), again)
            })
        };
        let looked = std::cell::Cell::new([0; 2]);
        let offer = heap.queue.claim_pop_if(3, |value| {
            looked.set(*value);
            // This also accepts a torn value whose second half is new.
            value[1] == 2
        });
        let taken = match offer.unwrap() {
            ConditionalPop::Taken(claim) => {
                assert_eq!(heap.queue.value(&claim), [2; 2]);
                heap.queue.finish(claim);
                Some(2)
            }
            ConditionalPop::Rejected => {
                assert_eq!(looked.get(), [1; 2], "what was left is whole");
                None
            }
            ConditionalPop::Empty => None,
        };
        let (first, again) = other.join().unwrap();
        assert_eq!((first, again), (Some(1), Ok(1)));
        let rest = heap.queue.try_pop(2).unwrap().map(|(_, value)| value[0]);
        assert_eq!(taken.or(rest), Some(2));
        assert!(taken.is_none() || rest.is_none());
    });
}

/// A consumer died with the oldest value in hand. The value is handed out once, whatever the producer and
/// another consumer do meanwhile.
#[test]
fn loom_the_only_producer_beside_a_recovery() {
    bounded(|| {
        let heap = Arc::new(HeapQueue::<u64>::new(2));
        // SAFETY: nobody else appends to the queue.
        let mut producer = unsafe { heap.queue.single_producer() };
        for value in [1, 2] {
            producer.push(&value).unwrap();
        }
        let _ = heap.queue.claim_pop(66).unwrap().unwrap();
        let poster = thread::spawn(move || producer.push(&3));
        let taker = {
            let heap = heap.clone();
            thread::spawn(move || heap.queue.try_pop(2).unwrap().map(|(_, value)| value))
        };
        assert_eq!(heap.recover(|who| who == 66), [1]);
        let posted = poster.join().unwrap();
        let mut got: Vec<_> = taker.join().unwrap().into_iter().collect();
        assert!(got.first() != Some(&1), "handed out already");
        while let Some((_, value)) = heap.pop_alone().unwrap() {
            got.push(value);
        }
        match posted {
            Ok(position) => assert_eq!((position, &got[..]), (2, &[2, 3][..])),
            Err(why) => assert_eq!((why, &got[..]), (SlotError::Full, &[2][..])),
        }
    });
}

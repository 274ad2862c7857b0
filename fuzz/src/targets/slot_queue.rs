//! A slot queue in memory that another process writes, between this process's calls and during them.
#![allow(
    unsafe_code,
    reason = "plays the owner of the memory that the queue lies in"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headworks_shm::{SlotQueue, SlotQueueRef};

use crate::input::Input;

/// Value of the queue. It is longer than a word, so it cannot be written with one store.
type Value = [u64; 3];

const CAPACITY_MAX: usize = 16;
/// Number of words of the longest queue: two hints on cache lines of their own, then the slots.
const WORDS: usize = SlotQueue::<Value>::bytes(CAPACITY_MAX) / 8;
/// Content of the words around the queue. They must not change.
const GUARD: u64 = 0x1bad_5eed_1bad_5eed;
const GUARDS: usize = 64;

/// The queue's memory, and guard words before and behind it.
#[repr(C, align(64))]
struct Memory {
    before: [AtomicU64; GUARDS],
    queue: [AtomicU64; WORDS],
    behind: [AtomicU64; GUARDS],
}

impl Memory {
    fn new(capacity: usize) -> Self {
        let guard = || std::array::from_fn(|_| AtomicU64::new(GUARD));
        let len = words(capacity);
        let queue = |at| AtomicU64::new(if at < len { 0 } else { GUARD });
        Self {
            before: guard(),
            queue: std::array::from_fn(queue),
            behind: guard(),
        }
    }

    fn check(&self, capacity: usize) {
        let outside = self.before.iter().chain(&self.behind);
        let mut outside = outside.chain(&self.queue[words(capacity)..]);
        let kept = outside.all(|word| word.load(Ordering::Relaxed) == GUARD);
        assert!(kept, "something outside of the queue was written");
    }
}

fn words(capacity: usize) -> usize {
    SlotQueue::<Value>::bytes(capacity) / 8
}

/// A store into one word of the queue.
#[derive(Clone, Copy)]
struct WordStore {
    at: usize,
    word: u64,
}

impl WordStore {
    fn next(input: &mut Input<'_>, memory: &Memory, capacity: usize) -> Self {
        let slot = 16 + input.below(capacity) * 4;
        // Mostly one of the words that the queue interprets: a hint or a slot's state. Values can be anything.
        let at = match input.byte() % 8 {
            0 => 0,
            1 => 8,
            2 => slot + 1 + input.below(3),
            _ => slot,
        };
        let now = memory.queue[at].load(Ordering::Relaxed);
        let word = match input.byte() % 4 {
            // A slot's state: lap, owner, tag.
            0 | 1 => {
                let (lap, who) = (u64::from(input.byte()), u64::from(input.byte() % 4));
                (lap.wrapping_sub(2) << 24) | who << 4 | u64::from(input.byte() % 5)
            }
            _ => input.word(now),
        };
        Self { at, word }
    }

    fn store(self, memory: &Memory) {
        memory.queue[self.at].store(self.word, Ordering::Release);
    }
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let capacity = 1 << (input.byte() % 5);
    let memory = Memory::new(capacity);
    let start = memory.queue.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: the memory is aligned to 64 (guards are whole cache lines), long enough, and dropped last.
    let queue: SlotQueueRef<Value> = unsafe { SlotQueue::init(start, capacity) };
    let hammers: Vec<_> = match input.byte() {
        0..200 => Vec::new(),
        count => (0..count % 4 + 1)
            .map(|_| WordStore::next(&mut input, &memory, capacity))
            .collect(),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if !hammers.is_empty() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for hammer in &hammers {
                        hammer.store(&memory);
                    }
                }
            });
        }
        exercise(&mut input, &memory, &queue, capacity);
        stop.store(true, Ordering::Relaxed);
    });
    memory.check(capacity);
    // After a new initialization, the queue must work again.
    // SAFETY: the memory is the same.
    let queue: SlotQueueRef<Value> = unsafe { SlotQueue::init(start, capacity) };
    for number in 0..3 * capacity as u64 {
        assert_eq!(queue.push(1, &[number; 3]), Ok(number));
        assert_eq!(queue.try_pop(2), Ok(Some((number, [number; 3]))));
    }
    memory.check(capacity);
}

fn exercise(input: &mut Input<'_>, memory: &Memory, queue: &SlotQueueRef<Value>, capacity: usize) {
    let (mut pushes, mut pops) = (Vec::new(), Vec::new());
    // The number of calls is bounded; it is a few times what a queue of this length can hold.
    for _ in 0..256 {
        if input.is_over() {
            break;
        }
        let who = u16::from(input.byte() % 4);
        match input.byte() % 16 {
            0..5 => WordStore::next(input, memory, capacity).store(memory),
            5 | 6 => drop(queue.push(who, &[input.u64(); 3])),
            7 => pushes.extend(queue.claim_push(who)),
            8 => drop(pushes.pop().map(|claim| queue.commit(claim, &[7; 3]))),
            9 | 10 => drop(queue.try_pop(who)),
            11 => pops.extend(queue.claim_pop(who).ok().flatten()),
            12 => {
                if let Some(claim) = pops.pop() {
                    let _ = queue.value(&claim);
                    queue.finish(claim);
                }
            }
            13 => {
                let mut handed = 0;
                // SAFETY: the owner's claims are dropped first.
                unsafe {
                    pushes.clear();
                    pops.clear();
                    queue.recover(|owner| owner == who, |_, _| handed += 1);
                }
                assert!(handed <= capacity, "more values than slots");
            }
            14 => {
                // SAFETY: no other consumer exists while this one lives.
                let mut only = unsafe { queue.single_consumer() };
                let mut shown = 0;
                only.for_each_full(|_, _| shown += 1);
                assert!(shown <= capacity, "more values than slots");
                let _ = only.pop();
            }
            _ => {
                let _ = (queue.is_empty(), queue.blocking_push());
                assert!(queue.len_hint() <= capacity);
            }
        }
    }
}

//! What callers do, whatever they do it by: what is asked for next, whether what came is right, and how much of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::stage::ActorError;
use headworks::verbs::{Duration, Instant};

use super::{Load, What};
use crate::latency::Histogram;
use crate::random::{Random, mix};

/// Bytes from which on not every word of an answer is looked at, and how far apart those are that are.
const ALL_WORDS: usize = 4096;
const APART: usize = 4096;
/// How far apart counters are: each has a line of its own.
const WORD_APART: u64 = 64;
/// All begin so long after the last is there.
const LEAD: Duration = Duration::from_micros(2);

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The word that memory that is read has there.
pub(super) fn content(at: u64) -> u64 {
    mix(at + 1)
}

/// What all parts of a play know of each other beside the network.
#[derive(Clone)]
pub(super) struct Scene(Arc<Mutex<State>>);

pub(super) struct State {
    load: Load,
    seed: u64,
    times: (Duration, Duration),
    ready: usize,
    /// When all begin.
    begin: Option<Instant>,
    done: usize,
    /// Requests asked for, ended, and ended while it was measured.
    pub(super) asked: u64,
    pub(super) ended: u64,
    pub(super) measured: u64,
    pub(super) latencies: Histogram,
    /// What all counters come to in the end, where there are some.
    pub(super) sum: Option<u64>,
    /// Queue pairs of the callers' host.
    pub(super) queue_pairs: usize,
}

impl Scene {
    pub(super) fn new(load: Load, seed: u64, times: (Duration, Duration)) -> Self {
        Self(Arc::new(Mutex::new(State {
            load,
            seed,
            times,
            ready: 0,
            begin: None,
            done: 0,
            asked: 0,
            ended: 0,
            measured: 0,
            latencies: Histogram::default(),
            sum: None,
            queue_pairs: 0,
        })))
    }

    pub(super) fn look(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    /// Whether all callers have done what they set out to do.
    pub(super) fn is_over(&self) -> bool {
        let state = self.look();
        state.done == state.load.callers
    }
}

impl State {
    /// From when until when it is measured, once that is known.
    pub(super) fn window(&self) -> Option<[Instant; 2]> {
        let from = self.begin? + self.times.0;
        Some([from, from + self.times.1])
    }
}

/// A request that is to be asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Which of those that a caller has under way.
    pub(super) slot: usize,
    /// From where in the other host's memory on.
    pub(super) at: u64,
}

/// One caller's work.
pub(super) struct Work {
    scene: Scene,
    load: Load,
    random: Random,
    is_ready: bool,
    window: (Instant, Instant),
    free: Vec<usize>,
    /// Of each slot: where it reads, and since when.
    asked: Vec<(u64, Instant)>,
    counts: [u64; 3],
    latencies: Histogram,
    bytes: Vec<u8>,
}

impl Work {
    pub(super) fn new(scene: &Scene, who: usize) -> Self {
        let state = scene.look();
        let (load, seed) = (state.load, state.seed);
        drop(state);
        let bytes = match load.what {
            What::Reads { bytes, .. } => bytes,
            What::Adds { .. } | What::Messages { .. } => 0,
        };
        Self {
            scene: scene.clone(),
            load,
            random: Random::new(mix(seed) ^ who as u64),
            is_ready: false,
            window: (Instant::FAR_FUTURE, Instant::FAR_FUTURE),
            free: (0..load.outstanding).rev().collect(),
            asked: vec![(0, Instant::ZERO); load.outstanding],
            counts: [0; 3],
            latencies: Histogram::default(),
            bytes: vec![0; bytes],
        }
    }

    /// The caller is ready: when all begin, once all are.
    pub(super) fn begins(&mut self, now: Instant) -> Option<Instant> {
        let mut state = self.scene.look();
        if !self.is_ready {
            self.is_ready = true;
            state.ready += 1;
            if state.ready == self.load.callers {
                state.begin = Some(now + LEAD);
            }
        }
        let [from, until] = state.window()?;
        self.window = (from, until);
        state.begin
    }

    /// Whether something may be asked for.
    pub(super) fn wants(&self, now: Instant) -> bool {
        !self.free.is_empty() && now < self.window.1
    }

    /// What is asked for now; it `began` when the caller set about it.
    pub(super) fn next(&mut self, began: Instant) -> Option<Request> {
        let slot = self.free.pop()?;
        let at = match self.load.what {
            What::Reads { bytes, region } => {
                self.random.below((region / bytes) as u64) * bytes as u64
            }
            What::Adds { words } => self.random.below(words as u64) * WORD_APART,
            What::Messages { .. } => 0,
        };
        self.asked[slot] = (at, began);
        self.counts[0] += 1;
        Some(Request { slot, at })
    }

    /// An answer came, whose bytes `read` reads.
    pub(super) fn came(
        &mut self,
        slot: usize,
        now: Instant,
        read: impl FnOnce(&mut [u8]),
    ) -> Result<(), ActorError> {
        let (at, began) = self.asked[slot];
        if !self.bytes.is_empty() {
            read(&mut self.bytes);
            let words = self.bytes.as_chunks::<8>().0;
            let step = if self.bytes.len() <= ALL_WORDS {
                1
            } else {
                APART / 8
            };
            let last = words.len() - 1;
            for word in (0..words.len()).step_by(step).chain([last]) {
                let (found, wanted) = (
                    u64::from_le_bytes(words[word]),
                    content(at + 8 * word as u64),
                );
                if found != wanted {
                    let why = format!("byte {at} + 8 × {word}: {found:#x} in place of {wanted:#x}");
                    return Err(ActorError::new(why));
                }
            }
        }
        self.counts[1] += 1;
        let (from, until) = self.window;
        if (from..until).contains(&now) {
            self.counts[2] += 1;
            self.latencies.record(now.since(began));
        }
        self.free.push(slot);
        Ok(())
    }

    /// Whether nothing is asked for any more, and everything has come.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.window.1 && self.free.len() == self.load.outstanding
    }

    /// Has it counted.
    pub(super) fn finish(&mut self) {
        let mut state = self.scene.look();
        let [asked, ended, measured] = self.counts;
        state.asked += asked;
        state.ended += ended;
        state.measured += measured;
        state.latencies.add(&self.latencies);
        state.done += 1;
    }
}

/// Memory that is read, or counted in, filled as it is to be.
pub(super) fn fill(what: What, mut write: impl FnMut(usize, &[u8])) {
    let What::Reads { region, .. } = what else {
        return;
    };
    let mut piece = Vec::new();
    for at in (0..region as u64).step_by(8) {
        piece.extend(content(at).to_le_bytes());
        if piece.len() == 4096 || at + 8 == region as u64 {
            write(at as usize + 8 - piece.len(), &piece);
            piece.clear();
        }
    }
}

/// Where each of the counters is.
pub(super) fn words(what: What) -> impl Iterator<Item = usize> {
    let words = match what {
        What::Adds { words } => words,
        What::Reads { .. } | What::Messages { .. } => 0,
    };
    (0..words).map(|word| word * WORD_APART as usize)
}

//! Rows of the shared table, given out and taken back.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headworks_verbs::ResourceError;

/// The free rows of one kind. A row is reused as late as possible, and under another generation.
pub(crate) struct Rows {
    state: Mutex<State>,
    limit: usize,
}

struct State {
    free: VecDeque<u32>,
    generations: Vec<u32>,
}

impl Rows {
    /// Rows `first..limit`.
    pub(crate) fn new(first: u32, limit: usize) -> Self {
        let free = (first..limit as u32).collect();
        Self {
            state: Mutex::new(State {
                free,
                generations: vec![0; limit],
            }),
            limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free row, in a new generation.
    pub(crate) fn take(&self, what: &'static str) -> Result<u32, ResourceError> {
        let mut state = self.lock();
        let exhausted = ResourceError::Exhausted {
            what,
            limit: self.limit as u64,
        };
        let row = state.free.pop_front().ok_or(exhausted)?;
        let generation = &mut state.generations[row as usize];
        // Never 0: that is "no object" in the table.
        *generation = generation.wrapping_add(1).max(1);
        Ok(row)
    }

    /// The generation of a row that is taken.
    pub(crate) fn generation(&self, row: u32) -> u32 {
        self.lock().generations[row as usize]
    }

    pub(crate) fn give_back(&self, row: u32) {
        self.lock().free.push_back(row);
    }
}

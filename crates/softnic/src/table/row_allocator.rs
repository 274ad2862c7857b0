//! Allocator of rows of the shared table.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headworks_verbs::ResourceError;

/// The free rows of one kind. A row is reused as late as possible, and under another generation. A row that
/// has used up its generations is retired.
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

    /// Takes a free row and begins a new generation of it.
    pub(crate) fn take(&self, what: &'static str) -> Result<u32, ResourceError> {
        let mut state = self.lock();
        let exhausted = ResourceError::Exhausted {
            what,
            limit: self.limit as u64,
        };
        let row = state.free.pop_front().ok_or(exhausted)?;
        let generation = &mut state.generations[row as usize];
        // Never 0, which means "no object" in the table.
        *generation += 1;
        Ok(row)
    }

    /// Returns the generation of a row that is taken.
    pub(crate) fn generation(&self, row: u32) -> u32 {
        self.lock().generations[row as usize]
    }

    /// Moves a row that is taken `by` generations on, and returns its generation. `None`, and nothing moves, if there are not as
    /// many left.
    pub(crate) fn advance(&self, row: u32, by: u32) -> Option<u32> {
        let mut state = self.lock();
        let generation = state.generations.get_mut(row as usize)?;
        *generation = generation.checked_add(by)?;
        Some(*generation)
    }

    pub(crate) fn give_back(&self, row: u32) {
        let mut state = self.lock();
        if state.generations[row as usize] < u32::MAX {
            state.free.push_back(row);
        }
    }

    /// Makes the free `row` the next in turn, as if it had been used up to `generation`.
    #[cfg(test)]
    pub(crate) fn age(&self, row: u32, generation: u32) {
        let mut state = self.lock();
        state.free.retain(|free| *free != row);
        state.free.push_front(row);
        state.generations[row as usize] = generation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_advances_only_as_far_as_it_has_generations() {
        let rows = Rows::new(0, 1);
        let row = rows.take("rows").unwrap();
        assert_eq!(rows.advance(row, 1 << 18), Some(1 + (1 << 18)));
        assert_eq!(rows.advance(row, u32::MAX), None);
        assert_eq!(rows.generation(row), 1 + (1 << 18));
        assert_eq!(
            rows.advance(row, u32::MAX - rows.generation(row)),
            Some(u32::MAX)
        );
        // A row without generations is not used again.
        rows.give_back(row);
        assert!(rows.take("rows").is_err());
    }

    #[test]
    fn a_row_never_has_a_generation_twice() {
        let rows = Rows::new(0, 2);
        rows.age(1, u32::MAX - 2);
        let mut seen = Vec::new();
        for _ in 0..4 {
            let row = rows.take("rows").unwrap();
            let used = (row, rows.generation(row));
            assert!(used.1 != 0 && !seen.contains(&used), "{used:?} again");
            seen.push(used);
            rows.give_back(row);
        }
        // The rows were 1, 0, 1, 0, and row 1 has had its last generation.
        assert_eq!(seen[2], (1, u32::MAX));
        assert_eq!(rows.take("rows").unwrap(), 0);
        assert!(rows.take("rows").is_err());
    }
}

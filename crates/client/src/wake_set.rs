//! Wake set: a dirty set in shared memory, and the event count of the one who reads it. Any number of processes insert
//! numbers. The reader takes them out, and sleeps while there are none.

use headworks_shm::{DirtySet, EventCount, View};

use crate::error::ContractError;

const BITS_OFFSET: usize = 64;

/// A dirty set with an event count.
#[derive(Clone, Debug)]
pub struct WakeSet {
    view: View,
    at: usize,
    count: usize,
}

impl WakeSet {
    /// Bytes of a set of numbers below `count`: a multiple of a cache line.
    pub const fn bytes(count: usize) -> usize {
        BITS_OFFSET + (DirtySet::word_count(count) * 8).next_multiple_of(64)
    }

    /// The set of numbers below `count` at offset `at` of a view.
    ///
    /// # Errors
    ///
    /// [`ContractError::ControlBlock`]: it does not lie within the view, or is not aligned.
    pub fn at(view: &View, at: usize, count: usize) -> Result<Self, ContractError> {
        let words = view.words(at + BITS_OFFSET, DirtySet::word_count(count));
        words.map_err(|_| ContractError::ControlBlock)?;
        view.event_count(at)
            .map_err(|_| ContractError::ControlBlock)?;
        Ok(Self {
            view: view.clone(),
            at,
            count,
        })
    }

    fn marks(&self) -> DirtySet<'_> {
        let words = DirtySet::word_count(self.count);
        let words = self.view.words(self.at + BITS_OFFSET, words);
        let marks = words
            .ok()
            .and_then(|words| DirtySet::from_words(words, self.count));
        marks.expect("checked by `at`")
    }

    /// Event count of the reader.
    pub fn event_count(&self) -> &EventCount {
        self.view.event_count(self.at).expect("checked by `at`")
    }

    /// Inserts a number, without a notification.
    #[inline]
    pub fn insert(&self, number: u32) {
        self.marks().insert(number as usize);
    }

    /// Inserts a number, and notifies the reader. Returns whether the reader sleeps and the caller must wake it.
    #[inline]
    #[must_use = "a reader that sleeps must be woken"]
    pub fn touch(&self, number: u32) -> bool {
        self.insert(number);
        self.event_count().notify(false)
    }

    /// For the reader: takes all numbers out. Others may have inserted any numbers.
    #[inline]
    pub fn drain(&self, mut each: impl FnMut(u32)) {
        self.marks().drain(|number| each(number as u32));
    }

    /// For the reader, after it armed the event count and before it sleeps: whether there is no number.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.marks().is_empty()
    }
}

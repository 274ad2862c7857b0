//! First-in-first-out queue, like [`VecDeque`](std::collections::VecDeque). Its growth is out of line, which
//! keeps the push and pop of every request short.

/// A queue of elements that are copied in and out.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    /// Ring of places; their number is a power of two, or zero.
    slots: Vec<T>,
    /// Index of the first element. It counts on without being reduced modulo the number of places.
    first: usize,
    len: usize,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            first: 0,
            len: 0,
        }
    }
}

impl<T: Copy> Fifo<T> {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn place(&self, at: usize) -> usize {
        self.first.wrapping_add(at) & self.slots.len().wrapping_sub(1)
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, one: T) {
        if self.len == self.slots.len() {
            return self.grow(one);
        }
        let last = self.place(self.len);
        self.slots[last] = one;
        self.len += 1;
    }

    /// Doubles the number of places, moves the elements to the beginning, and pushes `one`. Copies of `one`
    /// fill the unused places.
    #[cold]
    fn grow(&mut self, one: T) {
        let mut slots: Vec<T> = self.iter().copied().collect();
        slots.resize((2 * slots.len()).max(16), one);
        (self.slots, self.first) = (slots, 0);
        self.len += 1;
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> Option<&T> {
        match self.len {
            0 => None,
            _ => self.slots.get(self.place(0)),
        }
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = *self.first()?;
        self.first = self.first.wrapping_add(1);
        self.len -= 1;
        Some(first)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).map(|at| &self.slots[self.place(at)])
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_vec_deque(steps in proptest::collection::vec((0..4_u8, any::<u32>()), 0..400), begin in any::<usize>()) {
            let (mut fifo, mut oracle) = (Fifo::default(), VecDeque::new());
            // The index of the first element may also wrap around.
            fifo.first = begin;
            for (step, value) in steps {
                match step {
                    0 | 1 => {
                        fifo.push(value);
                        oracle.push_back(value);
                    }
                    2 => prop_assert_eq!(fifo.pop(), oracle.pop_front()),
                    _ if value % 64 == 0 => {
                        fifo.clear();
                        oracle.clear();
                    }
                    _ => prop_assert!(fifo.iter().eq(&oracle)),
                }
                prop_assert_eq!(fifo.first(), oracle.front());
                prop_assert_eq!((fifo.len(), fifo.is_empty()), (oracle.len(), oracle.is_empty()));
            }
        }
    }
}

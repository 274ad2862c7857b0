//! Failed queue-pair groups, kept until none of their completions is left to be polled: pure.

use std::collections::VecDeque;

/// Items kept until their completions were polled. Once as many completions were polled as the completion
/// queue holds, everything that was in it is out, even if it is never found empty.
#[derive(Debug)]
pub(super) struct DrainingQps<T> {
    /// Items, each with the value of `polled` from which it may be dropped.
    all: VecDeque<(u64, T)>,
    polled: u64,
    holds: u64,
}

impl<T> DrainingQps<T> {
    /// Creates an empty list for a completion queue of this capacity.
    pub(super) fn new(holds: u32) -> Self {
        Self {
            all: VecDeque::new(),
            polled: 0,
            holds: holds.into(),
        }
    }

    /// Adds an item that has failed just now.
    pub(super) fn push(&mut self, one: T) {
        self.all.push_back((self.polled + self.holds, one));
    }

    /// Returns whether there are no items.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns all items, although some of their completions may not have been polled.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> {
        self.all.drain(..).map(|(_, one)| one)
    }

    /// Returns the items that may go, after a poll that returned `count` completions. 0 means that the queue
    /// was empty.
    pub(super) fn polled(&mut self, count: usize) -> impl Iterator<Item = T> {
        self.polled += count as u64;
        let may_go = |one: &(u64, T)| count == 0 || one.0 <= self.polled;
        let count = self.all.iter().take_while(|one| may_go(one)).count();
        self.all.drain(..count).map(|(_, one)| one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn they_go_also_where_the_queue_is_never_found_empty() {
        let mut dying = DrainingQps::new(100);
        let one = Rc::new(());
        for _ in 0..1000 {
            dying.push(one.clone());
            dying.polled(10).for_each(drop);
            assert!(Rc::strong_count(&one) <= 1 + 10);
        }
        assert_eq!(
            Rc::strong_count(&one),
            10,
            "none goes before all its completions were polled"
        );
        dying.polled(0).for_each(drop);
        assert_eq!(Rc::strong_count(&one), 1);
    }
}

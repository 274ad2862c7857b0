//! Links that have failed, until nothing of them is left to be polled: pure.

use std::collections::VecDeque;

/// What is kept for its completions. Once as many were polled as a completion queue holds, whatever was in there is out,
/// also of a queue that is never found empty.
#[derive(Debug)]
pub(super) struct Dying<T> {
    /// When each may go, by completions polled.
    all: VecDeque<(u64, T)>,
    polled: u64,
    holds: u64,
}

impl<T> Dying<T> {
    /// None, of a completion queue that holds so many.
    pub(super) fn new(holds: u32) -> Self {
        Self {
            all: VecDeque::new(),
            polled: 0,
            holds: holds.into(),
        }
    }

    /// One more has failed.
    pub(super) fn push(&mut self, one: T) {
        self.all.push_back((self.polled + self.holds, one));
    }

    /// So many completions were polled, as many as were asked for or all that there were: lets go what may.
    pub(super) fn polled(&mut self, count: usize) {
        if count == 0 {
            self.all.clear();
            return;
        }
        self.polled += count as u64;
        let may_go = |one: &(u64, T)| one.0 <= self.polled;
        let count = self.all.iter().take_while(|one| may_go(one)).count();
        self.all.drain(..count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn they_go_also_where_the_queue_is_never_found_empty() {
        let mut dying = Dying::new(100);
        let one = Rc::new(());
        for _ in 0..1000 {
            dying.push(one.clone());
            dying.polled(10);
            assert!(Rc::strong_count(&one) <= 1 + 10);
        }
        assert_eq!(
            Rc::strong_count(&one),
            10,
            "none before all of its was polled"
        );
        dying.polled(0);
        assert_eq!(Rc::strong_count(&one), 1);
    }
}

//! When a CQ shows what is in it. Pure: it is told of polls and of what the rules say.

use super::Verdict;

/// Polls that completions are held back for at most, whatever the rules say.
const MOST: u32 = 64;

/// The state of a CQ that holds completions back.
#[derive(Clone, Debug, Default)]
pub(crate) struct DelayState {
    /// Polls that still find nothing.
    left: u32,
    /// It held back already: what is there is shown before it does so again.
    served: bool,
    /// Times that the rules were asked, ever.
    pub(crate) asked: u32,
}

impl DelayState {
    /// A poll that would find something and has room for `room` completions: how many it is shown.
    /// `judge` asks the rules.
    pub(crate) fn poll(&mut self, room: usize, judge: impl FnOnce(u32) -> Verdict) -> usize {
        if self.left > 0 {
            self.left -= 1;
            return 0;
        }
        let verdict = match std::mem::take(&mut self.served) {
            true => Verdict::Pass,
            false => {
                self.asked = self.asked.wrapping_add(1);
                judge(self.asked)
            }
        };
        match verdict {
            Verdict::Wait(polls) if polls > 0 => {
                self.left = polls.min(MOST) - 1;
                self.served = true;
                0
            }
            Verdict::AtMost(count) => room.min(count.max(1) as usize),
            _ => room,
        }
    }

    /// Nobody polls any more: what is held back is shown at once.
    pub(crate) fn end(&mut self) {
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_back_is_shown_after_so_many_polls_and_not_held_back_twice() {
        let mut hold = DelayState::default();
        let mut seen = Vec::new();
        for _ in 0..8 {
            seen.push(hold.poll(4, |_| Verdict::Wait(3)));
        }
        assert_eq!(seen, [0, 0, 0, 4, 0, 0, 0, 4]);
    }

    #[test]
    fn no_rule_holds_back_for_ever() {
        let mut hold = DelayState::default();
        let polls = (0..1000).find(|_| hold.poll(1, |_| Verdict::Wait(u32::MAX)) > 0);
        assert!(polls.is_some_and(|polls| polls <= MOST as usize));
        let mut hold = DelayState::default();
        assert_eq!(hold.poll(1, |_| Verdict::Wait(9)), 0);
        hold.end();
        assert_eq!(hold.poll(1, |_| Verdict::Wait(9)), 1);
        assert_eq!(hold.poll(5, |_| Verdict::AtMost(0)), 1);
    }
}

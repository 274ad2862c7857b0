//! Delay of a CQ's completions. Pure: its input is polls and the verdicts of the rules.

use super::Verdict;

/// Maximum number of polls for which completions are delayed, whatever the rules say.
const MOST: u32 = 64;

/// The state of a CQ that delays completions.
#[derive(Clone, Debug, Default)]
pub(crate) struct DelayState {
    /// Number of further polls that find nothing.
    left: u32,
    /// Set after a delay: the next poll is shown completions, before another delay can begin.
    served: bool,
    /// Number of times that the rules were asked in total.
    pub(crate) asked: u32,
}

impl DelayState {
    /// Returns how many completions a poll is shown that would find some and has room for `room`. `judge`
    /// asks the rules.
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

    /// Ends the delay: nobody polls any more, so completions are shown at once.
    pub(crate) fn end(&mut self) {
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_completions_appear_after_their_polls_and_only_once() {
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

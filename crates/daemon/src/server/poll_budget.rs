//! How long a thread of the daemon polls before it sleeps. Pure: the time is an argument.

use std::num::NonZeroU32;

use headworks_net::waiting::{PollHistory, SPIN_BUDGET};
use headworks_verbs::{Duration, Instant};

/// How long a thread polls while another host's daemon has to react to something: about as long as a short answer
/// takes if the other daemon and its application sleep. Otherwise this thread would fall asleep just before the
/// answer, and being woken takes longer than the rest of the wait.
const AWAITING: Duration = Duration::from_micros(200);
/// Polls for such an answer before the thread yields its core once: about 1 µs. Switching to an application that waits
/// for the same answer and back takes as long. An answer that comes meanwhile is noticed late.
const AWAITING_LOOKS: NonZeroU32 = NonZeroU32::new(4).unwrap();
/// Polls before a yield otherwise: the next request probably comes from an application on this core.
const LOOKS: NonZeroU32 = NonZeroU32::MIN;

/// Chooses how long each wait polls.
#[derive(Debug)]
pub(super) struct PollBudget {
    history: PollHistory,
    /// Whether an answer of another host is due, and whether waits for it poll for [`AWAITING`].
    is_awaiting: bool,
    polls_long: bool,
    /// When the wait began, and how long the last one took.
    began: Instant,
    took: Duration,
}

impl Default for PollBudget {
    fn default() -> Self {
        Self {
            history: PollHistory::of_budget(AWAITING),
            is_awaiting: false,
            polls_long: false,
            began: Instant::ZERO,
            took: Duration::ZERO,
        }
    }
}

impl PollBudget {
    /// Begins a wait, and returns how long it polls, and after how many polls it yields. `is_awaiting` tells whether
    /// an answer of another host is due. A thread whose answers keep coming later than [`AWAITING`] polls that long
    /// only now and then.
    pub(super) fn begin(&mut self, is_awaiting: bool, now: Instant) -> (Duration, NonZeroU32) {
        if self.is_awaiting && !is_awaiting {
            // The answer ended the last wait.
            self.history.ended(self.polls_long, self.took);
        }
        if is_awaiting && !self.is_awaiting {
            self.polls_long = self.history.polls();
        }
        self.is_awaiting = is_awaiting;
        self.began = now;
        match is_awaiting && self.polls_long {
            true => (AWAITING, AWAITING_LOOKS),
            false => (SPIN_BUDGET, LOOKS),
        }
    }

    /// Ends a wait. `has_slept` tells whether polling found nothing.
    pub(super) fn end(&mut self, has_slept: bool, now: Instant) {
        self.took = now.since(self.began);
        if self.is_awaiting && has_slept {
            self.history.ended(self.polls_long, self.took);
            self.polls_long = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request whose answer comes after `took`: a busy turn for the completion of its frame, a wait, and the answer.
    /// Returns how long the wait polled.
    fn request(budget: &mut PollBudget, now: &mut Instant, took: Duration) -> Duration {
        let turn = Duration::from_micros(1);
        budget.begin(true, *now);
        *now += turn;
        budget.end(false, *now);
        let (polls, _) = budget.begin(true, *now);
        *now += took;
        budget.end(took > polls, *now);
        budget.begin(false, *now);
        *now += turn;
        budget.end(false, *now);
        polls
    }

    #[test]
    fn answers_that_come_soon_are_polled_for_and_late_ones_only_now_and_then() {
        let mut budget = PollBudget::default();
        let mut now = Instant::ZERO;
        for _ in 0..100 {
            let polls = request(&mut budget, &mut now, Duration::from_micros(100));
            assert_eq!(polls, AWAITING);
        }
        let late: Vec<Duration> = (0..200)
            .map(|_| request(&mut budget, &mut now, Duration::from_millis(5)))
            .collect();
        let long = late.iter().filter(|polls| **polls == AWAITING).count();
        assert!((1..=10).contains(&long), "{long} of 200");
        // A short answer after all makes the thread poll again.
        request(&mut budget, &mut now, Duration::from_micros(100));
        let polls = request(&mut budget, &mut now, Duration::from_micros(100));
        assert_eq!(polls, AWAITING);
    }
}

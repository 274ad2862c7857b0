//! How long a thread of the daemon polls before it sleeps.

use headworks_net::waiting::{PollHistory, SPIN_BUDGET};
use headworks_net::{Waiter, clock};
use headworks_verbs::{Duration, Instant};

/// How long a thread polls while another host's daemon has to react to something: about as long as a short answer takes
/// if the other daemon and its application sleep. Otherwise this thread would fall asleep just before the answer, and
/// being woken takes longer than the rest of the wait.
const AWAITING: Duration = Duration::from_micros(200);

/// Chooses how long each wait polls.
#[derive(Debug)]
pub(super) struct PollBudget {
    history: PollHistory,
    /// When the wait began, and whether it polls for [`AWAITING`]; `None` if no answer is due.
    began: Option<(Instant, bool)>,
}

impl Default for PollBudget {
    fn default() -> Self {
        Self {
            history: PollHistory::of_budget(AWAITING),
            began: None,
        }
    }
}

impl PollBudget {
    /// Begins a wait. `is_awaiting` tells whether an answer of another host may come soon. A thread whose answers come
    /// later than that does not wait for them for long.
    pub(super) fn begin(&mut self, is_awaiting: bool, waiter: &mut Waiter) {
        let polls_long = is_awaiting && self.history.polls();
        self.began = is_awaiting.then(|| (clock::now(), polls_long));
        waiter.set_budget(if polls_long { AWAITING } else { SPIN_BUDGET });
    }

    /// Ends the wait.
    pub(super) fn end(&mut self) {
        if let Some((began, polled)) = self.began.take() {
            self.history.ended(polled, clock::now().since(began));
        }
    }
}

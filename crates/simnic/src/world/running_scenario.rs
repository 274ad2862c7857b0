//! The coordinator's operations on a scenario in virtual time.

use headworks_runtime::{ActorOutcome, ProcessExit, RunningScenario, ScenarioError, ScenarioEvent};
use headworks_runtime::{COORDINATOR, Mail, MailError};
use headworks_runtime::{MAIL_MAX, MAILBOX_BYTES_MAX, MESSAGE_OVERHEAD};
use headworks_verbs::{Duration, Instant};

use super::{POLL_BUDGET, SimScenario};
use crate::hardware_units::{NEVER, NS, later};

impl RunningScenario for SimScenario {
    fn roles(&self) -> &[String] {
        &self.roles
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now / NS)
    }

    fn poll(&mut self, timeout: Duration) -> Option<ScenarioEvent> {
        // Times from `NEVER` on mean "never", however long the timeout.
        let limit = later(self.now, timeout.nanos().saturating_mul(NS)).min(NEVER - 1);
        for _ in 0..POLL_BUDGET {
            if let Some(told) = self.unread_events.pop_front() {
                return Some(told);
            }
            if self.is_over() || !self.run_next(limit) {
                if !self.is_over() {
                    self.now = self.now.max(limit);
                }
                break;
            }
        }
        self.unread_events.pop_front()
    }

    fn send(&mut self, role: &str, bytes: &[u8]) -> Result<(), ScenarioError> {
        if bytes.len() > MAIL_MAX {
            return Err(MailError::TooLong(bytes.len()).into());
        }
        let index = self.index(role)?;
        if self.actors[index].waiting + bytes.len() + MESSAGE_OVERHEAD > MAILBOX_BYTES_MAX {
            return Err(MailError::Full(role.to_owned()).into());
        }
        let mail = Mail {
            from: COORDINATOR.to_owned(),
            bytes: bytes.to_vec(),
        };
        self.deliver(role, mail, self.current_time());
        Ok(())
    }

    fn interrupt(&mut self) {
        self.interrupted = true;
        for index in 0..self.actors.len() {
            if !self.actors[index].has_ended() {
                self.wake(index, self.current_time());
            }
        }
    }

    fn kill(&mut self, role: &str) -> Result<(), ScenarioError> {
        let index = self.index(role)?;
        self.end_actor(index, ActorOutcome::Died(ProcessExit::Signal(9)));
        Ok(())
    }

    fn stop(&mut self, role: &str) -> Result<(), ScenarioError> {
        let index = self.index(role)?;
        self.actors[index].stopped = true;
        Ok(())
    }

    fn cont(&mut self, role: &str) -> Result<(), ScenarioError> {
        let index = self.index(role)?;
        self.actors[index].stopped = false;
        self.wake(index, self.current_time());
        Ok(())
    }

    fn pid(&self, _: &str) -> Option<u32> {
        None
    }

    fn outcome(&self, role: &str) -> Option<ActorOutcome> {
        self.outcomes.get(role).cloned()
    }
}

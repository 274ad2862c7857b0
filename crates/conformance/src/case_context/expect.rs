//! Waits for required completions and events, and checks that there are no others.

use headworks_verbs::{QpState, Status};

use super::{CaseContext, Host, QpFixture, expect_completion};
use crate::Verdict;
use crate::call::{Call, Done, Event, Id, Reply};

impl CaseContext<'_> {
    /// Waits for the next completion of a CQ.
    pub fn next_completion(&mut self, host: Host, cq: Id) -> Result<Done, String> {
        self.wait("completion", |cx| {
            let done = cx.poll_up_to(host, cq, 1).map_err(super::error_line)?;
            Ok(done.first().copied())
        })
    }

    /// Waits for the next completion of the send CQ.
    pub fn next_send_completion(&mut self, side: QpFixture) -> Result<Done, String> {
        self.next_completion(side.host, side.send_cq)
    }

    /// Waits for the next completion of the receive CQ.
    pub fn next_recv_completion(&mut self, side: QpFixture) -> Result<Done, String> {
        self.next_completion(side.host, side.recv_cq)
    }

    /// Waits for the next send completion and checks that it has this `wr_id` and `status`.
    pub fn expect_sent(
        &mut self,
        side: QpFixture,
        wr_id: u64,
        status: Status,
    ) -> Result<Done, String> {
        let done = self.next_send_completion(side)?;
        self.expect_ended(done, wr_id, status)
    }

    /// Waits for the next receive completion and checks that it has this `wr_id` and `status`.
    pub fn expect_received(
        &mut self,
        side: QpFixture,
        wr_id: u64,
        status: Status,
    ) -> Result<Done, String> {
        let done = self.next_recv_completion(side)?;
        self.expect_ended(done, wr_id, status)
    }

    fn expect_ended(&mut self, done: Done, wr_id: u64, status: Status) -> Result<Done, String> {
        // A known deviation concerns only the expected request.
        let status = match done.wr_id == wr_id {
            true => self.expected_status(status, done.status),
            false => status,
        };
        expect_completion(done, wr_id, status)
    }

    /// Checks that a CQ is empty now.
    pub fn expect_none(&mut self, host: Host, cq: Id, what: &str) -> Verdict {
        let done = self.poll_past_empty(host, cq)?;
        match done.first() {
            None => Ok(()),
            Some(found) => Err(format!("{what}: {found:?}")),
        }
    }

    /// Checks that both CQs of a fixture are empty now.
    pub fn expect_nothing_more(&mut self, side: QpFixture) -> Verdict {
        self.expect_none(side.host, side.send_cq, "another send completed")?;
        self.expect_none(side.host, side.recv_cq, "another receive completed")
    }

    /// Checks the state of a queue pair.
    pub fn expect_state(&mut self, side: QpFixture, state: QpState, whose: &str) -> Verdict {
        let found = self.state(side)?;
        crate::ensure_eq!(found, state, format!("state of {whose}"));
        Ok(())
    }

    /// Returns the asynchronous events of a host that no check has consumed.
    pub fn events(&mut self, host: Host) -> Result<&mut Vec<Event>, String> {
        let device = host.device;
        match self.call_ok(host.id, Call::TakeEvents { device })? {
            Reply::Events(events) => {
                for event in &events {
                    if let Event::QpFatal(Some(qp)) = *event {
                        *self.told.entry((host.id, qp)).or_default() += 1;
                    }
                }
                let waiting = self.events.entry(host.id).or_default();
                waiting.extend(events);
                Ok(waiting)
            }
            other => Err(format!("instead of events: {other:?}")),
        }
    }

    /// Waits until the host's device reports `event`, and consumes it. Other events stay.
    pub fn expect_event(&mut self, host: Host, event: Event) -> Verdict {
        if self.deviations.keeps(&format!("{event:?}")) {
            self.kept.push((host, event));
            return Ok(());
        }
        let waited = self.wait(&format!("{event:?}"), |cx| {
            let events = cx.events(host)?;
            let found = events.iter().position(|found| *found == event);
            Ok(found.map(|at| events.remove(at)))
        });
        match waited {
            Ok(_) => Ok(()),
            Err(error) => {
                let others = self.events(host)?;
                Err(format!("{error}; other events: {others:?}"))
            }
        }
    }

    /// Waits until the device reports that the queue pair failed.
    pub fn expect_fatal(&mut self, side: QpFixture) -> Verdict {
        self.expect_event(side.host, Event::QpFatal(Some(side.qp)))
    }

    /// Checks the event of a queue pair whose failure a completion has reported. Depending on the device, an
    /// event must report the failure as well, or may.
    pub fn expect_failed(&mut self, side: QpFixture) -> Verdict {
        match self.behaviour().reports_failure_twice {
            true => self.expect_fatal(side),
            false => self.expect_one_failure_report(side),
        }
    }

    /// Checks that the device reported the failure of a queue pair at most once.
    pub fn expect_one_failure_report(&mut self, side: QpFixture) -> Verdict {
        self.events(side.host)?;
        let told = self.told.get(&(side.host.id, side.qp));
        crate::ensure!(
            told.is_none_or(|told| *told <= 1),
            "failure reported twice: {told:?}"
        );
        Ok(())
    }

    /// Checks that the device reported no failure of a queue pair.
    pub fn expect_no_fatal(&mut self, side: QpFixture) -> Verdict {
        let events = self.events(side.host)?;
        if events.contains(&Event::QpFatal(Some(side.qp))) {
            return Err("an event of a queue pair that did not fail".to_owned());
        }
        Ok(())
    }

    /// Checks that the fixture's channel has no event now.
    pub fn expect_no_completion_or_event(&mut self, side: QpFixture, what: &str) -> Verdict {
        let found = self.channel_event(side)?;
        crate::ensure_eq!(found, None, what);
        Ok(())
    }
}

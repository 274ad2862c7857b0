//! Waiting for what must come, and seeing that nothing else does.

use headworks_verbs::{QpState, Status};

use super::{CaseContext, Host, QpFixture, expect_completion};
use crate::Verdict;
use crate::call::{Call, Done, Event, Id, Reply};

impl CaseContext<'_> {
    /// The next completion of a CQ.
    pub fn next_completion(&mut self, host: Host, cq: Id) -> Result<Done, String> {
        self.wait("completion", |bench| {
            let done = bench.poll_up_to(host, cq, 1).map_err(super::error_line)?;
            Ok(done.first().copied())
        })
    }

    /// The next completion of a send.
    pub fn next_send_completion(&mut self, side: QpFixture) -> Result<Done, String> {
        self.next_completion(side.host, side.send_cq)
    }

    /// The next completion of a receive.
    pub fn next_recv_completion(&mut self, side: QpFixture) -> Result<Done, String> {
        self.next_completion(side.host, side.recv_cq)
    }

    /// The next send completes with `wr_id` and `status`.
    pub fn expect_sent(
        &mut self,
        side: QpFixture,
        wr_id: u64,
        status: Status,
    ) -> Result<Done, String> {
        let done = self.next_send_completion(side)?;
        self.expect_ended(done, wr_id, status)
    }

    /// The next receive completes with `wr_id` and `status`.
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
        // Of another request it says nothing.
        let status = match done.wr_id == wr_id {
            true => self.expected_status(status, done.status),
            false => status,
        };
        expect_completion(done, wr_id, status)
    }

    /// A CQ has nothing now.
    pub fn expect_none(&mut self, host: Host, cq: Id, what: &str) -> Verdict {
        let done = self.poll_past_empty(host, cq)?;
        match done.first() {
            None => Ok(()),
            Some(found) => Err(format!("{what}: {found:?}")),
        }
    }

    /// A side's CQs have nothing now.
    pub fn expect_nothing_more(&mut self, side: QpFixture) -> Verdict {
        self.expect_none(side.host, side.send_cq, "another send completed")?;
        self.expect_none(side.host, side.recv_cq, "another receive completed")
    }

    /// A side is in `state`.
    pub fn expect_state(&mut self, side: QpFixture, state: QpState, whose: &str) -> Verdict {
        let found = self.state(side)?;
        crate::ensure_eq!(found, state, format!("state of {whose}"));
        Ok(())
    }

    /// The asynchronous events of a host that nobody has taken.
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

    /// Waits until a host's device tells of `event`, whatever else it tells, and takes that event.
    pub fn expect_event(&mut self, host: Host, event: Event) -> Verdict {
        if self.deviations.keeps(&format!("{event:?}")) {
            self.kept.push((host, event));
            return Ok(());
        }
        let waited = self.wait(&format!("{event:?}"), |bench| {
            let events = bench.events(host)?;
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

    /// Waits until a side's device tells that its queue pair failed.
    pub fn expect_fatal(&mut self, side: QpFixture) -> Verdict {
        self.expect_event(side.host, Event::QpFatal(Some(side.qp)))
    }

    /// A side's queue pair failed, and a completion of its own has told so: an event does, too, or
    /// may, as its device has it.
    pub fn expect_failed(&mut self, side: QpFixture) -> Verdict {
        match self.behaviour().reports_failure_twice {
            true => self.expect_fatal(side),
            false => self.expect_one_failure_report(side),
        }
    }

    /// A host's device has told at most once that a queue pair failed.
    pub fn expect_one_failure_report(&mut self, side: QpFixture) -> Verdict {
        self.events(side.host)?;
        let told = self.told.get(&(side.host.id, side.qp));
        crate::ensure!(told.is_none_or(|told| *told <= 1), "told twice: {told:?}");
        Ok(())
    }

    /// A host's device has told nothing of a queue pair.
    pub fn expect_no_fatal(&mut self, side: QpFixture) -> Verdict {
        let events = self.events(side.host)?;
        if events.contains(&Event::QpFatal(Some(side.qp))) {
            return Err("an event of a queue pair that did not fail".to_owned());
        }
        Ok(())
    }

    /// A side's channel has no event now.
    pub fn expect_no_completion_or_event(&mut self, side: QpFixture, what: &str) -> Verdict {
        let found = self.channel_event(side)?;
        crate::ensure_eq!(found, None, what);
        Ok(())
    }
}

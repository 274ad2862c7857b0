//! Outstanding work of a queue pair, and which completion may come next.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use headworks_verbs::{QpState, Status};

/// Request that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentRequest {
    pub(super) wr_id: u64,
    /// It generates a completion.
    pub(super) is_signaled: bool,
    /// If it succeeds, a receive of the peer completes.
    pub(super) arrives: bool,
    /// Its bytes go into a receive of the peer; some of them may arrive even if it fails.
    pub(super) fills: bool,
    /// Immediate that the peer's receive reports.
    pub(super) imm: Option<u32>,
    /// It waits for earlier READs and atomics.
    pub(super) is_fenced: bool,
    /// It is a READ or an atomic.
    pub(super) is_fetch: bool,
    /// The local memory that it sends has a fault.
    pub(super) is_wrong_here: bool,
}

/// Immediates of the messages on a connection, in order. The two ends report them at different times.
#[derive(Debug, Default)]
pub(super) struct Immediates {
    /// Immediates that the sender has reported as sent.
    pub(super) expected: VecDeque<Option<u32>>,
    /// Immediates that the receiver has reported.
    pub(super) found: VecDeque<Option<u32>>,
}

impl Immediates {
    /// Compares the immediates that both ends have reported. Returns an error if two differ.
    pub(super) fn compare(&mut self) -> Result<(), String> {
        while let (Some(sent), Some(received)) = (self.expected.front(), self.found.front()) {
            let both = (*sent, *received);
            self.expected.pop_front();
            self.found.pop_front();
            if both.0 != both.1 {
                return Err(format!("immediate {:?} was sent as {:?}", both.1, both.0));
            }
        }
        Ok(())
    }
}

/// Outstanding work of a queue pair.
#[derive(Debug, Default)]
pub(super) struct OutstandingWork {
    pub(super) sends: VecDeque<SentRequest>,
    /// Receives of its own.
    pub(super) receives: VecDeque<u64>,
    /// Number of receives that must still complete because a request of the peer completed. Negative while
    /// receives have completed before the requests that took them.
    pub(super) due: i64,
    /// Immediates of those receives.
    pub(super) immediates: Immediates,
    /// A receive failed.
    pub(super) has_failed_receive: bool,
    /// A completion of the peer said that this queue pair failed.
    pub(super) must_fail: bool,
    /// A request failed, so all requests posted after it generate completions.
    failed: bool,
}

/// Requests that a completion retires.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Retired {
    /// Earlier requests, which ended without a completion.
    pub(super) silent: Vec<SentRequest>,
    /// The request that completed.
    pub(super) found: Option<SentRequest>,
}

impl OutstandingWork {
    /// Records the completion of a send request. The error describes behaviour that no device may show.
    pub(super) fn sent(&mut self, wr_id: u64, status: Status) -> Result<Retired, String> {
        let at = self.sends.iter().position(|sent| sent.wr_id == wr_id);
        let at = at.ok_or_else(|| format!("request {wr_id} completed and was not outstanding"))?;
        let silent: Vec<_> = self.sends.drain(..at).collect();
        let found = self.sends.pop_front();
        for skipped in &silent {
            if skipped.is_signaled || self.failed {
                let skipped = skipped.wr_id;
                return Err(format!(
                    "{wr_id} completed before {skipped}, posted before it"
                ));
            }
        }
        if status == Status::Success && found.is_some_and(|found| !found.is_signaled) {
            return Err(format!("{wr_id} completed, and was not signalled"));
        }
        if status != Status::Success {
            self.failed = true;
        } else if self.failed {
            return Err(format!("{wr_id} succeeded behind one that failed"));
        }
        Ok(Retired { silent, found })
    }

    /// Records the completion of a receive of its own. The error describes behaviour that no device may show.
    pub(super) fn received(&mut self, wr_id: u64) -> Result<(), String> {
        let next = self.receives.pop_front();
        if next == Some(wr_id) {
            return Ok(());
        }
        Err(format!("receive {wr_id} completed instead of {next:?}"))
    }

    /// Returns the outstanding requests from the first fence on, if a READ or an atomic is among them.
    pub(super) fn fetches_behind_a_fence(&self) -> Option<RangeInclusive<u64>> {
        let mut behind = self.sends.iter().skip_while(|sent| !sent.is_fenced);
        let first = behind.clone().next()?.wr_id;
        let last = self.sends.back()?.wr_id;
        behind.any(|sent| sent.is_fetch).then_some(first..=last)
    }

    /// Returns the outstanding requests before the first with a local fault.
    pub(super) fn before_a_failure_here(&self) -> Option<RangeInclusive<u64>> {
        let wrong = self.sends.iter().position(|sent| sent.is_wrong_here)?;
        let first = self.sends.front()?.wr_id;
        let last = self.sends.get(wrong.checked_sub(1)?)?.wr_id;
        Some(first..=last)
    }

    /// Forgets all outstanding work: the queue pair is in RESET.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Clears the failure: the queue pair is in RTS again.
    pub(super) fn revive(&mut self) {
        self.failed = false;
    }

    /// Returns a description of what must still complete in this state, if anything.
    pub(super) fn awaits(&self, state: QpState) -> Option<String> {
        let sends = self.sends.len();
        let receives = self.receives.len();
        match state {
            QpState::Error if sends + receives > 0 => Some(format!(
                "in ERROR, {sends} requests and {receives} receives not flushed"
            )),
            QpState::Error => None,
            _ if self.must_fail => Some(format!("in {state}, though the peer found it failed")),
            QpState::Sqe if sends > 0 => Some(format!("in SQE, {sends} requests not flushed")),
            _ if self.sends.iter().any(|sent| sent.is_signaled) => {
                Some(format!("in {state}, {sends} requests not completed"))
            }
            _ if self.due > 0 && state.can_receive() => {
                Some(format!("{} receives not completed", self.due))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outstanding(signals: &[bool]) -> OutstandingWork {
        let sent = |(wr_id, is_signaled): (usize, &bool)| SentRequest {
            wr_id: wr_id as u64,
            is_signaled: *is_signaled,
            arrives: false,
            fills: false,
            imm: None,
            is_fenced: false,
            is_fetch: false,
            is_wrong_here: false,
        };
        OutstandingWork {
            sends: signals.iter().enumerate().map(sent).collect(),
            ..OutstandingWork::default()
        }
    }

    #[test]
    fn a_completion_retires_the_silent_ones_before_it() {
        let mut account = outstanding(&[false, false, true, true]);
        let retired = account.sent(2, Status::Success).unwrap();
        assert_eq!(retired.silent.len(), 2);
        assert_eq!(retired.found.unwrap().wr_id, 2);
        assert!(account.awaits(QpState::Rts).is_some());
        account.sent(3, Status::Success).unwrap();
        assert_eq!(account.awaits(QpState::Rts), None);
    }

    #[test]
    fn a_fence_covers_fetches_at_or_behind_it() {
        for (fenced, fetched, among) in [
            (Some(0), Some(0), Some(0..=2)),
            (Some(0), Some(2), Some(0..=2)),
            (Some(1), Some(2), Some(1..=2)),
            (Some(1), Some(0), None),
            (Some(1), None, None),
            (None, Some(1), None),
        ] {
            let mut account = outstanding(&[true; 3]);
            for (at, sent) in account.sends.iter_mut().enumerate() {
                (sent.is_fenced, sent.is_fetch) = (fenced == Some(at), fetched == Some(at));
            }
            assert_eq!(
                account.fetches_behind_a_fence(),
                among,
                "{fenced:?} {fetched:?}"
            );
        }
    }

    #[test]
    fn only_behind_another_does_it_keep_something_waiting() {
        for (wrong, among) in [
            (None, None),
            (Some(0), None),
            (Some(1), Some(0..=0)),
            (Some(2), Some(0..=1)),
        ] {
            let mut account = outstanding(&[true; 3]);
            for (at, sent) in account.sends.iter_mut().enumerate() {
                sent.is_wrong_here = wrong == Some(at);
            }
            assert_eq!(account.before_a_failure_here(), among, "{wrong:?}");
        }
    }

    #[test]
    fn immediates_match_in_order_whichever_side_reports_first() {
        let mut immediates = Immediates::default();
        immediates.expected.extend([Some(1), None]);
        assert_eq!(immediates.compare(), Ok(()));
        immediates.found.extend([Some(1), None, Some(2)]);
        assert_eq!(immediates.compare(), Ok(()));
        immediates.expected.push_back(None);
        assert!(immediates.compare().is_err(), "made up");
        immediates.found.push_back(None);
        immediates.expected.push_back(Some(3));
        assert!(immediates.compare().is_err(), "lost");
    }

    #[test]
    fn none_is_overtaken_lost_or_doubled() {
        let mut skipped = outstanding(&[true, true]);
        assert!(skipped.sent(1, Status::Success).is_err());
        let mut doubled = outstanding(&[true]);
        doubled.sent(0, Status::Success).unwrap();
        assert!(doubled.sent(0, Status::Success).is_err());
        let mut lost = outstanding(&[true, false, true]);
        lost.sent(0, Status::RemoteAccess).unwrap();
        assert!(lost.sent(2, Status::Flushed).is_err(), "all are flushed");
        let mut revived = outstanding(&[true, true]);
        revived.sent(0, Status::RemoteAccess).unwrap();
        assert!(revived.sent(1, Status::Success).is_err());
        let mut told = outstanding(&[false]);
        assert!(told.sent(0, Status::Success).is_err(), "not signalled");
        let mut receives = OutstandingWork::default();
        receives.receives.extend([1, 2]);
        assert!(receives.received(2).is_err(), "out of order");
    }
}

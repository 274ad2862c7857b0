//! Divergences: places where the two devices part on a line, as a rule allows. A request or a receive failed
//! on one device only, and its queue pairs are in error there. A divergence excuses only that line, only the
//! results on the device that failed, and nothing before.

use headworks_verbs::{QpState, Status};

use super::{
    AllowedDivergence, CASE_FENCED_HANGS, CASE_NO_SQE, CASE_UNANSWERED_HANGS, DivergenceRule,
    demanded, is_lasting,
};
use crate::differential::observation::{
    KnownHang, PostedTo, QpSnapshot, StepObservation, WorkFate, is_of_the_peer,
};

/// Divergence of the two devices on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Divergence {
    pub(super) rule: DivergenceRule,
    line: usize,
    /// Ends whose queue pair may be in error on one device only.
    ends: [bool; 2],
    /// Index of the device that failed: 0 is the left one.
    failed: usize,
    /// The `wr_id` of the request or the receive at which the divergence begins.
    from: u64,
}

impl Divergence {
    /// Returns whether the divergence explains the two fates of a request or a receive.
    pub(super) fn allows(
        &self,
        wr_id: u64,
        about: &PostedTo,
        both: [Option<&WorkFate>; 2],
        allowed: &AllowedDivergence,
    ) -> bool {
        if about.line != self.line {
            return false;
        }
        let (whole, failed) = (both[1 - self.failed], both[self.failed]);
        let is_request = self.ends[about.end] && !about.is_receive;
        let hangs = matches!(
            self.rule,
            DivergenceRule::Known(CASE_FENCED_HANGS | CASE_UNANSWERED_HANGS)
        );
        if hangs && is_request && wr_id <= self.from {
            // On the device that hangs, nothing tells that earlier unsignalled requests were executed.
            let is_before = wr_id < self.from && failed == Some(&WorkFate::Silent);
            return whole.is_none() && (wr_id == self.from || is_before);
        }
        if let (None, Some(WorkFate::Failed(status))) = (whole, failed) {
            // The device that failed flushes outstanding work. The failed request may have taken a receive.
            let known = &allowed.known[self.failed];
            let is_taken = || {
                let mut meant = demanded(known, *status).into_iter();
                matches!(
                    self.rule,
                    DivergenceRule::OtherReason | DivergenceRule::TakenOrNot
                ) && about.is_receive
                    && meant.any(|(status, _)| status == Status::LocalAccess)
            };
            return self.ends[about.end] && (*status == Status::Flushed || is_taken());
        }
        match self.rule {
            DivergenceRule::RefusedOrFailed if wr_id == self.from => true,
            DivergenceRule::RefusedOrFailed => {
                // Only the device that failed got to this request, and may have refused it too.
                let is_lost = |failed: &WorkFate| match failed {
                    WorkFate::Refused(kind) => is_lasting(kind),
                    fate => *fate == WorkFate::Failed(Status::Flushed),
                };
                let is_behind = whole == Some(&WorkFate::NotPosted) && failed.is_some_and(is_lost);
                wr_id > self.from && is_behind
            }
            DivergenceRule::UnusedBytes => {
                let was_executed = whole
                    .is_some_and(|whole| matches!(whole, WorkFate::Failed(_)) || whole.is_good());
                let known = &allowed.known[self.failed];
                let may_end = |status| match status {
                    Status::Flushed => true,
                    // This arm is for the receive itself, the next one for the request that took it.
                    status if wr_id == self.from => demanded(known, status)
                        .iter()
                        .any(|(meant, _)| *meant == Status::LocalProtection),
                    status => !about.is_receive && is_of_the_peer(status),
                };
                let is_due = match failed {
                    None => true,
                    Some(WorkFate::Failed(status)) => may_end(*status),
                    Some(_) => false,
                };
                wr_id >= self.from && was_executed && is_due
            }
            _ => false,
        }
    }

    /// Returns whether the divergence explains the two states of a queue pair: the failed one is in error.
    pub(super) fn parts(&self, place: (usize, usize), both: [&QpSnapshot; 2]) -> bool {
        let (line, end) = place;
        let state = both[self.failed].state;
        let is_in_error = matches!(state, Some(QpState::Error | QpState::Sqe));
        self.line == line && self.ends[end] && is_in_error
    }
}

/// Returns all divergences of a step.
pub(super) fn find_divergences(
    both: [&StepObservation; 2],
    allowed: &AllowedDivergence,
) -> Vec<Divergence> {
    let mut splits = Vec::new();
    for failed in 0..2 {
        let sides = (both[1 - failed], both[failed]);
        let meant = |status| {
            let meant = demanded(&allowed.known[failed], status);
            meant.into_iter().map(|(status, _)| status)
        };
        for (wr_id, fate) in &sides.1.fates {
            let WorkFate::Failed(status) = fate else {
                continue;
            };
            let Some(about) = sides.1.about.get(wr_id) else {
                continue;
            };
            let Some(whole) = sides.0.fates.get(wr_id) else {
                // A receive of a shared queue: if it is not taken, nothing flushes it.
                let state =
                    |seen: &StepObservation| Some(seen.snapshots.get(about.line)?[about.end].state);
                let fail_both = state(sides.0) == state(sides.1);
                let is_taken = meant(*status).any(|status| status == Status::LocalAccess);
                if about.is_receive && fail_both && is_taken {
                    let mut ends = [false; 2];
                    ends[about.end] = true;
                    splits.push(Divergence {
                        rule: DivergenceRule::TakenOrNot,
                        line: about.line,
                        ends,
                        failed,
                        from: *wr_id,
                    });
                }
                continue;
            };
            let is_unused = || {
                let fits = |bytes: u32| {
                    let before = sides.0.faulty_receives.get(wr_id);
                    before.is_some_and(|before| bytes as usize <= *before)
                };
                let protects = || meant(*status).any(|status| status == Status::LocalProtection);
                matches!(whole, WorkFate::Success { bytes: Some(bytes), .. } if fits(*bytes))
                    && protects()
            };
            let mut ends = [false; 2];
            let rule = match whole {
                WorkFate::Refused(kind)
                    if is_lasting(kind)
                        && (!is_silence(*status) || sides.1.several_faults.contains(wr_id)) =>
                {
                    // A flushed request did not cause the error state.
                    ends[about.end] = *status != Status::Flushed;
                    ends[1 - about.end] = is_of_the_peer(*status);
                    DivergenceRule::RefusedOrFailed
                }
                // The responder found the fault, so the peer's queue pair failed.
                WorkFate::Failed(other)
                    if sides.1.several_faults.contains(wr_id)
                        && ![*other, *status].contains(&Status::Flushed)
                        && is_of_the_peer(*status)
                        && !is_of_the_peer(*other) =>
                {
                    ends[1 - about.end] = true;
                    DivergenceRule::OtherReason
                }
                _ if is_unused() => {
                    let sender = |(wr_id, fate): (&u64, &WorkFate)| {
                        let is_there = |there: &PostedTo| {
                            (there.line, there.end) == (about.line, 1 - about.end)
                        };
                        matches!(fate, WorkFate::Failed(_))
                            && sides.1.about.get(wr_id).is_some_and(is_there)
                    };
                    ends[about.end] = true;
                    ends[1 - about.end] = sides.1.fates.iter().any(sender);
                    DivergenceRule::UnusedBytes
                }
                _ => continue,
            };
            splits.push(Divergence {
                rule,
                line: about.line,
                ends,
                failed,
                from: *wr_id,
            });
        }
        splits.extend(without_sqe(sides, failed, allowed));
        splits.extend(stuck(sides, failed, allowed));
    }
    splits
}

/// Returns the queue pairs in SQE on one device and in error on the other, which is known not to enter SQE.
fn without_sqe(
    sides: (&StepObservation, &StepObservation),
    failed: usize,
    allowed: &AllowedDivergence,
) -> Vec<Divergence> {
    if !allowed.device_deviates(failed, CASE_NO_SQE) {
        return Vec::new();
    }
    let mut splits = Vec::new();
    let pairs = sides.0.snapshots.iter().zip(&sides.1.snapshots);
    for (line, (whole, bad)) in pairs.enumerate() {
        for end in 0..2 {
            let states = (whole[end].state, bad[end].state);
            if states == (Some(QpState::Sqe), Some(QpState::Error)) {
                let mut ends = [false; 2];
                ends[end] = true;
                splits.push(Divergence {
                    rule: DivergenceRule::Known(CASE_NO_SQE),
                    line,
                    ends,
                    failed,
                    from: u64::MAX,
                });
            }
        }
    }
    splits
}

/// Returns the queue pairs whose peer does not answer, that fail on one device and hang on the other.
fn stuck(
    sides: (&StepObservation, &StepObservation),
    failed: usize,
    allowed: &AllowedDivergence,
) -> Vec<Divergence> {
    let mut splits = Vec::new();
    for (wr_id, fate) in &sides.1.fates {
        let (Some(about), WorkFate::Failed(status)) = (sides.1.about.get(wr_id), fate) else {
            continue;
        };
        let why = sides.0.stuck.get(&(about.line, about.end));
        let why = why
            .into_iter()
            .flatten()
            .find(|why| allowed.device_deviates(1 - failed, why.case) && why.among.contains(wr_id));
        if let Some(KnownHang { case, .. }) = why.filter(|_| is_silence(*status)) {
            let mut ends = [false; 2];
            ends[about.end] = true;
            splits.push(Divergence {
                rule: DivergenceRule::Known(case),
                line: about.line,
                ends,
                failed,
                from: *wr_id,
            });
        }
    }
    splits
}

/// Returns whether the status means that the peer did not answer, or had no receive.
const fn is_silence(status: Status) -> bool {
    matches!(status, Status::RetryExceeded | Status::RnrRetryExceeded)
}

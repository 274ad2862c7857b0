//! Where the devices part on a line, as a rule allows: what one of them did failed on the other, whose queue
//! pairs are in error then. Only that line is excused, only what came of it on the one that failed, and
//! nothing before.

use headworks_verbs::{QpState, Status};

use super::{FENCED, Leeway, NO_SQE, Rule, WRONG_BEHIND, demanded, is_lasting};
use crate::differential::seen::{About, Fate, Seen, Standing, Stuck, is_of_the_peer};

/// One such place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) rule: Rule,
    line: usize,
    /// Whose queue pairs may be in error on one device alone.
    ends: [bool; 2],
    /// Which device that is: 0 for the left one.
    failed: usize,
    /// The request or the receive that it comes from.
    from: u64,
}

impl Split {
    /// Whether it explains that this came of a request or a receive.
    pub(super) fn allows(
        &self,
        wr_id: u64,
        about: &About,
        both: [Option<&Fate>; 2],
        leeway: &Leeway,
    ) -> bool {
        if about.line != self.line {
            return false;
        }
        let (whole, failed) = (both[1 - self.failed], both[self.failed]);
        let is_request = self.ends[about.end] && !about.is_receive;
        let hangs = matches!(self.rule, Rule::Known(FENCED | WRONG_BEHIND));
        if hangs && is_request && wr_id <= self.from {
            // Nothing tells that those before it were executed, either.
            let is_before = wr_id < self.from && failed == Some(&Fate::Silent);
            return whole.is_none() && (wr_id == self.from || is_before);
        }
        if let (None, Some(Fate::Failed(status))) = (whole, failed) {
            // What waits there is flushed, and a receive may have been taken by what failed.
            let known = &leeway.known[self.failed];
            let is_taken = || {
                let mut meant = demanded(known, *status).into_iter();
                matches!(self.rule, Rule::OtherReason | Rule::TakenOrNot)
                    && about.is_receive
                    && meant.any(|(status, _)| status == Status::LocalAccess)
            };
            return self.ends[about.end] && (*status == Status::Flushed || is_taken());
        }
        match self.rule {
            Rule::RefusedOrFailed if wr_id == self.from => true,
            Rule::RefusedOrFailed => {
                // What is refused there as well was looked at there alone.
                let is_lost = |failed: &Fate| match failed {
                    Fate::Refused(kind) => is_lasting(kind),
                    fate => *fate == Fate::Failed(Status::Flushed),
                };
                let is_behind = whole == Some(&Fate::NotPosted) && failed.is_some_and(is_lost);
                wr_id > self.from && is_behind
            }
            Rule::UnusedBytes => {
                let was_executed =
                    whole.is_some_and(|whole| matches!(whole, Fate::Failed(_)) || whole.is_good());
                let known = &leeway.known[self.failed];
                let may_end = |status| match status {
                    Status::Flushed => true,
                    // Of the receive itself, and of the request that took it.
                    status if wr_id == self.from => demanded(known, status)
                        .iter()
                        .any(|(meant, _)| *meant == Status::LocalProtection),
                    status => !about.is_receive && is_of_the_peer(status),
                };
                let is_due = match failed {
                    None => true,
                    Some(Fate::Failed(status)) => may_end(*status),
                    Some(_) => false,
                };
                wr_id >= self.from && was_executed && is_due
            }
            _ => false,
        }
    }

    /// Whether it explains that a queue pair is in these places: the one that failed is in error.
    pub(super) fn parts(&self, place: (usize, usize), both: [&Standing; 2]) -> bool {
        let (line, end) = place;
        let state = both[self.failed].state;
        let is_in_error = matches!(state, Some(QpState::Error | QpState::Sqe));
        self.line == line && self.ends[end] && is_in_error
    }
}

/// All of a step.
pub(super) fn of(both: [&Seen; 2], leeway: &Leeway) -> Vec<Split> {
    let mut splits = Vec::new();
    for failed in 0..2 {
        let sides = (both[1 - failed], both[failed]);
        let meant = |status| {
            let meant = demanded(&leeway.known[failed], status);
            meant.into_iter().map(|(status, _)| status)
        };
        for (wr_id, fate) in &sides.1.fates {
            let Fate::Failed(status) = fate else { continue };
            let Some(about) = sides.1.about.get(wr_id) else {
                continue;
            };
            let Some(whole) = sides.0.fates.get(wr_id) else {
                // Of a shared queue: nothing flushes the one that was not taken.
                let state = |seen: &Seen| Some(seen.standing.get(about.line)?[about.end].state);
                let fail_both = state(sides.0) == state(sides.1);
                let is_taken = meant(*status).any(|status| status == Status::LocalAccess);
                if about.is_receive && fail_both && is_taken {
                    let mut ends = [false; 2];
                    ends[about.end] = true;
                    splits.push(Split {
                        rule: Rule::TakenOrNot,
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
                    let before = sides.0.frail.get(wr_id);
                    before.is_some_and(|before| bytes as usize <= *before)
                };
                let protects = || meant(*status).any(|status| status == Status::LocalProtection);
                matches!(whole, Fate::Success { bytes: Some(bytes), .. } if fits(*bytes))
                    && protects()
            };
            let mut ends = [false; 2];
            let rule = match whole {
                Fate::Refused(kind)
                    if is_lasting(kind)
                        && (!is_silence(*status) || sides.1.manifold.contains(wr_id)) =>
                {
                    // One that was flushed has not put it in error.
                    ends[about.end] = *status != Status::Flushed;
                    ends[1 - about.end] = is_of_the_peer(*status);
                    Rule::RefusedOrFailed
                }
                // What was found over there, the peer hears of.
                Fate::Failed(other)
                    if sides.1.manifold.contains(wr_id)
                        && ![*other, *status].contains(&Status::Flushed)
                        && is_of_the_peer(*status)
                        && !is_of_the_peer(*other) =>
                {
                    ends[1 - about.end] = true;
                    Rule::OtherReason
                }
                _ if is_unused() => {
                    let sender = |(wr_id, fate): (&u64, &Fate)| {
                        let is_there =
                            |there: &About| (there.line, there.end) == (about.line, 1 - about.end);
                        matches!(fate, Fate::Failed(_))
                            && sides.1.about.get(wr_id).is_some_and(is_there)
                    };
                    ends[about.end] = true;
                    ends[1 - about.end] = sides.1.fates.iter().any(sender);
                    Rule::UnusedBytes
                }
                _ => continue,
            };
            splits.push(Split {
                rule,
                line: about.line,
                ends,
                failed,
                from: *wr_id,
            });
        }
        splits.extend(without_sqe(sides, failed, leeway));
        splits.extend(stuck(sides, failed, leeway));
    }
    splits
}

/// Queue pairs that are in SQE on one, and in error on another that knows no SQE.
fn without_sqe(sides: (&Seen, &Seen), failed: usize, leeway: &Leeway) -> Vec<Split> {
    if !leeway.known_to_end(failed, NO_SQE) {
        return Vec::new();
    }
    let mut splits = Vec::new();
    let pairs = sides.0.standing.iter().zip(&sides.1.standing);
    for (line, (whole, bad)) in pairs.enumerate() {
        for end in 0..2 {
            let states = (whole[end].state, bad[end].state);
            if states == (Some(QpState::Sqe), Some(QpState::Error)) {
                let mut ends = [false; 2];
                ends[end] = true;
                splits.push(Split {
                    rule: Rule::Known(NO_SQE),
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

/// Queue pairs that fail on one, since the peer does not answer, and on another wait without end.
fn stuck(sides: (&Seen, &Seen), failed: usize, leeway: &Leeway) -> Vec<Split> {
    let mut splits = Vec::new();
    for (wr_id, fate) in &sides.1.fates {
        let (Some(about), Fate::Failed(status)) = (sides.1.about.get(wr_id), fate) else {
            continue;
        };
        let why = sides.0.stuck.get(&(about.line, about.end));
        let why = why
            .into_iter()
            .flatten()
            .find(|why| leeway.known_to_end(1 - failed, why.case) && why.among.contains(wr_id));
        if let Some(Stuck { case, .. }) = why.filter(|_| is_silence(*status)) {
            let mut ends = [false; 2];
            ends[about.end] = true;
            splits.push(Split {
                rule: Rule::Known(case),
                line: about.line,
                ends,
                failed,
                from: *wr_id,
            });
        }
    }
    splits
}

/// The peer does not answer.
const fn is_silence(status: Status) -> bool {
    matches!(status, Status::RetryExceeded | Status::RnrRetryExceeded)
}

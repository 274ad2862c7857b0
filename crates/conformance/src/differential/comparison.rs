//! Decides whether two devices that got the same calls behaved the same.
//!
//! Everything is compared except what a [`DivergenceRule`] leaves out. Each rule states its reason. A run
//! counts the uses of each rule, so that a rule that hides too much is noticed. A *line* is a connected pair
//! of queue pairs, as in [`program`](super::program).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use headworks_verbs::{QpState, Status};

use super::observation::{CallOutcome, QpSnapshot, StepObservation, UnspecifiedBytes, WorkFate};
use crate::deviation::{DeviantBehaviour, Deviation};
use crate::world::DeviceBehaviour;

mod divergence;

use divergence::Divergence;

#[cfg(test)]
mod tests;

/// Reason why a difference is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DivergenceRule {
    /// The memory that a failed request was to write may hold any bytes: the specification guarantees them
    /// only after a successful completion (volume 1, section 9.5).
    BytesOfFailed,
    /// If entries of a scatter list overlap, the device writes them in any order: the specification does not say
    /// which entry writes a shared address last (section 10.8.2).
    PiecesOverlap,
    /// The GRH of a datagram describes its path, which differs between networks.
    Headers,
    /// A receive has a fault in memory beyond the bytes that arrive. The device may detect it or not. If it
    /// does, the line is in error from this receive on.
    UnusedBytes,
    /// A request that can never succeed may be refused when posted or complete with an error: the
    /// specification leaves it to the device (section 10.8.3). If it fails, the line is in error.
    RefusedOrFailed,
    /// Both devices refused the request for good, or it failed on both, but for different reasons. Of
    /// several faults, local or remote, a device reports the first that it finds, and each device has its
    /// own order. Nothing else may differ, except that the peer fails only for a fault found there.
    OtherReason,
    /// The responder refused a WRITE with immediate. It may have consumed a receive for it, which then fails,
    /// or not (section 9.7.5.1.4).
    TakenOrNot,
    /// A known deviation of a device. The name is that of the case in the suite that observes it.
    Known(&'static str),
    /// An asynchronous event may report a failure that a completion reports too
    /// ([`DeviceBehaviour::reports_failure_twice`]).
    ToldTwice,
}

impl DivergenceRule {
    /// Returns the reason as one line of text.
    pub const fn why(self) -> &'static str {
        match self {
            Self::BytesOfFailed => "memory that a failed request was to write may hold anything",
            Self::PiecesOverlap => "overlapping entries of a scatter list are written in any order",
            Self::Headers => "the GRH of a datagram depends on its path",
            Self::UnusedBytes => "a fault beyond the bytes that arrive may be detected or not",
            Self::RefusedOrFailed => "a request that cannot succeed is refused at once, or fails",
            Self::OtherReason => "a device may report any of several faults",
            Self::TakenOrNot => "a refused WRITE with immediate may have consumed a receive",
            Self::Known(case) => case,
            Self::ToldTwice => "an event may report the same failure as a completion",
        }
    }
}

impl fmt::Display for DivergenceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}: {}", self.why())
    }
}

/// Number of uses of each rule.
pub type RuleUses = BTreeMap<DivergenceRule, u64>;

/// Case that observes that receives posted to a queue pair in error are not flushed there.
pub(super) const CASE_RECEIVES_NOT_FLUSHED: &str = "states::error_flushes_in_order";
/// Case that observes that a datagram which cannot be sent moves its queue pair to the error state.
pub(super) const CASE_NO_SQE: &str = "datagrams::stops_at_a_bad_key";
/// Case that observes that a fenced request hangs if two things hold: the peer does not answer, and this
/// request or one posted after it is a READ or an atomic.
pub(super) const CASE_FENCED_HANGS: &str = "matrix::fenced_and_unanswered";
/// Case that observes that an unanswered request hangs if a request posted after it has a local fault.
pub(super) const CASE_UNANSWERED_HANGS: &str = "matrix::wrong_behind_what_is_unanswered";

/// Differences that are allowed between the left and the right device.
#[derive(Clone, Debug, Default)]
pub struct AllowedDivergence {
    /// Behaviour of each device.
    pub behaviour: [DeviceBehaviour; 2],
    /// Known deviations of each device.
    pub known: [Vec<Deviation>; 2],
}

impl AllowedDivergence {
    /// Returns whether the case is known to end early on one of the devices.
    pub(super) fn ends(&self, case: &str) -> bool {
        (0..2).any(|device| self.device_deviates(device, case))
    }

    /// Returns whether the case is known to end early on this device: 0 is the left one.
    pub(super) fn device_deviates(&self, device: usize, case: &str) -> bool {
        let ends = |known: &Deviation| {
            matches!(
                known.behaviour,
                DeviantBehaviour::Ends(_) | DeviantBehaviour::Hangs(_)
            ) && known.cases.contains(&case)
        };
        self.known[device].iter().any(ends)
    }

    /// Returns whether this device is known never to report the event: 0 is the left one.
    pub(super) fn keeps(&self, device: usize, event: &str) -> bool {
        let keeps = |known: &Deviation| matches!(known.behaviour, DeviantBehaviour::Keeps(name) if name == event);
        self.known[device].iter().any(keeps)
    }
}

/// Returns the statuses that the specification may demand where a device reports `found`. Each comes with the
/// case that observes the deviation, or `None` if the status is `found` itself.
fn demanded(known: &[Deviation], found: Status) -> Vec<(Status, Option<&'static str>)> {
    let mut all = vec![(found, None)];
    for known in known {
        match known.behaviour {
            DeviantBehaviour::Completes(demanded, instead)
            | DeviantBehaviour::MayComplete(demanded, instead)
                if instead == found =>
            {
                all.push((demanded, known.cases.first().copied()));
            }
            _ => {}
        }
    }
    all
}

/// Errors of requests that can never succeed. Devices may differ in which of several such faults they report,
/// and in whether they report it when the request is posted or executed. The remaining errors depend on the
/// moment, not on the request: a full queue, a wrong state, a fork, a broken device.
const LASTING: [&str; 4] = [
    "TooManySges",
    "InlineTooLong",
    "MessageTooLong",
    "Operation",
];

fn is_lasting(kind: &str) -> bool {
    LASTING.contains(&kind)
}

/// Result of comparing a step on two devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepComparison {
    /// Differences that no rule allows.
    pub differences: Vec<String>,
    /// Bytes that a rule allows to differ, because possibly only one device wrote them.
    pub unspecified: Vec<UnspecifiedBytes>,
    /// Whether a rule has allowed the devices to be in different states. Later steps cannot be compared.
    pub is_last: bool,
}

/// Compares the observations of a step.
pub fn compare(
    left: &StepObservation,
    right: &StepObservation,
    allowed: &AllowedDivergence,
    uses: &mut RuleUses,
) -> StepComparison {
    let mut verdict = StepComparison::default();
    let differences = &mut verdict.differences;
    for (seen, whose) in [(left, "left"), (right, "right")] {
        let broken = seen
            .violations
            .iter()
            .map(|line| format!("{whose}: {line}"));
        differences.extend(broken);
    }
    let splits = divergence::find_divergences([left, right], allowed);
    let mut needed: Vec<_> = splits.iter().map(|split| split.rule).collect();
    let all: BTreeSet<_> = left.fates.keys().chain(right.fates.keys()).collect();
    for wr_id in all {
        let both = [left, right].map(|seen| seen.fates.get(wr_id));
        if both[0] == both[1] {
            continue;
        }
        let about = left.about.get(wr_id).or_else(|| right.about.get(wr_id));
        let explains = |split: &&Divergence| {
            about.is_some_and(|about| split.allows(*wr_id, about, both, allowed))
        };
        if let Some(split) = splits.iter().find(explains) {
            // Possibly only one device executed the request.
            let was_executed = both.into_iter().flatten().any(WorkFate::is_good);
            let about = about.filter(|_| was_executed);
            let spans = about.map(|about| &about.spans).into_iter().flatten();
            verdict
                .unspecified
                .extend(spans.map(|span| UnspecifiedBytes {
                    span: *span,
                    rule: split.rule,
                }));
            continue;
        }
        let is_manifold =
            left.several_faults.contains(wr_id) && right.several_faults.contains(wr_id);
        let is_receive = about.is_some_and(|about| about.is_receive);
        match rule_for_fates(both, (is_manifold, is_receive), allowed) {
            Some(rule) => needed.push(rule),
            None => {
                let [left, right] = both.map(shown);
                differences.push(format!("request {wr_id}: {left} / {right}"));
            }
        }
    }
    if left.outcome != right.outcome {
        let is_refused = |split: &Divergence| split.rule == DivergenceRule::RefusedOrFailed;
        match rule_for_outcomes(&left.outcome, &right.outcome) {
            Some(rule) => needed.push(rule),
            // The fate of the request already accounts for this difference.
            None if splits.iter().any(is_refused) => {}
            None => differences.push(format!("answered {:?} / {:?}", left.outcome, right.outcome)),
        }
    }
    let standings = compare_snapshots([left, right], &splits);
    differences.extend(standings);
    let goes_on = |split: &Divergence| split.rule == DivergenceRule::RefusedOrFailed;
    verdict.is_last = left.snapshots != right.snapshots || !splits.iter().all(goes_on);
    for rule in needed {
        *uses.entry(rule).or_default() += 1;
    }
    verdict
}

/// Returns the rule that allows two different fates, independent of the divergences of the step.
fn rule_for_fates(
    both: [Option<&WorkFate>; 2],
    (is_manifold, is_receive): (bool, bool),
    allowed: &AllowedDivergence,
) -> Option<DivergenceRule> {
    match both {
        [Some(WorkFate::Refused(one)), Some(WorkFate::Refused(other))] => {
            (is_lasting(one) && is_lasting(other)).then_some(DivergenceRule::OtherReason)
        }
        [Some(WorkFate::Failed(left)), Some(WorkFate::Failed(right))] => {
            let own = ![left, right].contains(&&Status::Flushed);
            let other = || (is_manifold && own).then_some(DivergenceRule::OtherReason);
            rule_for_statuses(*left, *right, is_receive, allowed).or_else(other)
        }
        _ => None,
    }
}

/// Returns the rule that allows two different statuses.
fn rule_for_statuses(
    left: Status,
    right: Status,
    is_receive: bool,
    allowed: &AllowedDivergence,
) -> Option<DivergenceRule> {
    let [ours, theirs] = &allowed.known;
    for (left, of_left) in demanded(ours, left) {
        for (right, of_right) in demanded(theirs, right) {
            let known = of_left.or(of_right).map(DivergenceRule::Known);
            let both = [left, right];
            if left == right {
                return known;
            }
            let taken = both.contains(&Status::LocalAccess) && both.contains(&Status::Flushed);
            if is_receive && taken {
                return Some(DivergenceRule::TakenOrNot);
            }
        }
    }
    None
}

fn rule_for_outcomes(left: &CallOutcome, right: &CallOutcome) -> Option<DivergenceRule> {
    let refused = |outcome: &CallOutcome| match outcome {
        CallOutcome::Refused { kind, index } if is_lasting(kind) => *index,
        _ => None,
    };
    let both = refused(left).zip(refused(right));
    both.is_some_and(|(one, other)| one == other)
        .then_some(DivergenceRule::OtherReason)
}

fn shown(fate: Option<&WorkFate>) -> String {
    fate.map_or_else(|| "nothing".to_owned(), |fate| format!("{fate:?}"))
}

/// Returns the differences between queue pair states that no divergence explains.
fn compare_snapshots(both: [&StepObservation; 2], splits: &[Divergence]) -> Vec<String> {
    let mut differences = Vec::new();
    let [left, right] = both.map(|seen| &seen.snapshots);
    for (line, (left, right)) in left.iter().zip(right).enumerate() {
        for (end, (left, right)) in left.iter().zip(right).enumerate() {
            let excused = |split: &Divergence| split.parts((line, end), [left, right]);
            if left != right && !splits.iter().any(excused) {
                let (left, right) = (told(left), told(right));
                differences.push(format!("line {line} end {end} is {left} / {right}"));
            }
        }
    }
    differences
}

fn told(snapshot: &QpSnapshot) -> String {
    let state = snapshot.state.as_ref().map(QpState::to_string);
    let state = state.unwrap_or_else(|| "gone".to_owned());
    let QpSnapshot {
        sends, receives, ..
    } = snapshot;
    format!("in {state} with {sends} requests and {receives} receives")
}

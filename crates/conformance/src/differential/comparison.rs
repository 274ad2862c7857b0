//! When two devices that were asked the same did the same.
//!
//! Everything is compared but for what a [`DivergenceRule`] leaves out. Each says why, and a run says how often
//! it was needed, so that none hides anything unnoticed.

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

/// Why a difference is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DivergenceRule {
    /// What a failed request had named for writing may hold anything: the specification places bytes
    /// for certain only with a completion that is a success (volume 1, section 9.5).
    BytesOfFailed,
    /// Pieces of a list that name the same bytes are written in any order: where the last byte that
    /// arrives for an address comes from is not said (section 10.8.2).
    PiecesOverlap,
    /// What precedes a datagram describes the way it took, which is another on another network.
    Headers,
    /// What is wrong with a receive behind the bytes that arrive may be found, or not. Where it is, that
    /// line is in error from this receive on.
    UnusedBytes,
    /// What can never succeed may be refused when it is posted or complete in error: which, the
    /// specification leaves to the device (section 10.8.3). Where it fails, that line is in error.
    RefusedOrFailed,
    /// Both refused it for good, or it failed on both; the reason is the first one that the device found,
    /// here or over there: in which order they look at what is wrong is theirs. Everything else is the
    /// same, but that the peer hears of what was found over there, and of nothing else.
    OtherReason,
    /// A WRITE with immediate that is refused has taken a receive, which then fails, or has not
    /// (section 9.7.5.1.4).
    TakenOrNot,
    /// What is known of a device: this case of the suite sees it.
    Known(&'static str),
    /// A failure that a completion tells of may be told of by an event as well
    /// ([`DeviceBehaviour::reports_failure_twice`]).
    ToldTwice,
}

impl DivergenceRule {
    /// In one line.
    pub const fn why(self) -> &'static str {
        match self {
            Self::BytesOfFailed => "bytes that a failed request named for writing may be anything",
            Self::PiecesOverlap => "pieces of a list that overlap are written in any order",
            Self::Headers => "what precedes a datagram describes the network",
            Self::UnusedBytes => "what is wrong behind the bytes that arrive is found, or not",
            Self::RefusedOrFailed => "what cannot succeed is refused when posted, or fails",
            Self::OtherReason => "of several things that are wrong, either may be named",
            Self::TakenOrNot => {
                "a WRITE with immediate that is refused has taken a receive, or not"
            }
            Self::Known(case) => case,
            Self::ToldTwice => "what a completion tells, an event may tell as well",
        }
    }
}

impl fmt::Display for DivergenceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}: {}", self.why())
    }
}

/// How often each rule was needed.
pub type RuleUses = BTreeMap<DivergenceRule, u64>;

/// Receives posted to a queue pair in error are not flushed there: the case that sees it.
pub(super) const CASE_RECEIVES_NOT_FLUSHED: &str = "states::error_flushes_in_order";
/// A datagram that cannot be sent takes its queue pair to the error state: the case that sees it.
pub(super) const CASE_NO_SQE: &str = "datagrams::stops_at_a_bad_key";
/// What is fenced and not answered waits without end, if it or something behind it is a READ or an atomic: the
/// case that sees it.
pub(super) const CASE_FENCED_HANGS: &str = "matrix::fenced_and_unanswered";
/// What is not answered waits without end, if something behind it fails here: the case that sees it.
pub(super) const CASE_UNANSWERED_HANGS: &str = "matrix::wrong_behind_what_is_unanswered";

/// What both devices may differ in: the left one and the right one.
#[derive(Clone, Debug, Default)]
pub struct AllowedDivergence {
    /// How they behave.
    pub behaviour: [DeviceBehaviour; 2],
    /// What is known of them.
    pub known: [Vec<Deviation>; 2],
}

impl AllowedDivergence {
    /// Whether a case is known to get no further on one of them.
    pub(super) fn ends(&self, case: &str) -> bool {
        (0..2).any(|device| self.device_deviates(device, case))
    }

    /// Whether a case is known to get no further on that one, 0 for the left one.
    pub(super) fn device_deviates(&self, device: usize, case: &str) -> bool {
        let ends = |known: &Deviation| {
            matches!(
                known.behaviour,
                DeviantBehaviour::Ends(_) | DeviantBehaviour::Hangs(_)
            ) && known.cases.contains(&case)
        };
        self.known[device].iter().any(ends)
    }

    /// Whether an event is known not to come on that one, 0 for the left one.
    pub(super) fn keeps(&self, device: usize, event: &str) -> bool {
        let keeps = |known: &Deviation| matches!(known.behaviour, DeviantBehaviour::Keeps(name) if name == event);
        self.known[device].iter().any(keeps)
    }
}

/// What must have been the status where a device says `found`, and which case knows that.
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

/// The errors by which a request is refused for good: it has several of these faults, or some devices find
/// them only when they execute it. No room, the state, a fork or a broken device is another matter.
const LASTING: [&str; 4] = [
    "TooManySges",
    "InlineTooLong",
    "MessageTooLong",
    "Operation",
];

fn is_lasting(kind: &str) -> bool {
    LASTING.contains(&kind)
}

/// What two devices did in a step, compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepComparison {
    /// What no rule allows.
    pub differences: Vec<String>,
    /// Bytes that one wrote and the other did not, as a rule allows.
    pub unspecified: Vec<UnspecifiedBytes>,
    /// After this they are in different states, as a rule allows: nothing behind it can be compared.
    pub is_last: bool,
}

/// Compares a step.
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
            // What one of them alone executed.
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
            // What became of the request says it better.
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

/// The rule by which two different fates are alike, whatever else came of the step.
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

/// The rule by which two different statuses say the same.
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

/// Queue pairs that are in different places, though no split allows that.
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

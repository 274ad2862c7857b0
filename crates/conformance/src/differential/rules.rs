//! When two devices that were asked the same did the same.
//!
//! Everything is compared but for what a [`Rule`] leaves out. Each says why, and a run says how often
//! it was needed, so that none hides anything unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use headworks_verbs::{QpState, Status};

use super::seen::{Fate, Outcome, Seen, Standing};
use crate::deviation::{Deviation, Does};
use crate::world::Manners;

/// Why a difference is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// What a failed request had named for writing may hold anything: the specification places bytes
    /// for certain only with a completion that is a success (volume 1, section 9.5).
    BytesOfFailed,
    /// Pieces of a list that name the same bytes are written in any order: where the last byte that
    /// arrives for an address comes from is not said (section 10.8.2).
    PiecesOverlap,
    /// What precedes a datagram describes the way it took, which is another on another network.
    Headers,
    /// What is wrong with a receive behind the bytes that arrive may be found, or not.
    UnusedBytes,
    /// What can never succeed may be refused when it is posted or complete in error: which, the
    /// specification leaves to the device (section 10.8.3).
    RefusedOrFailed,
    /// Both refused it, or it failed on both; the reason is the first one that the device found, here or
    /// over there: in which order they look at what is wrong is theirs.
    OtherReason,
    /// A WRITE with immediate that is refused has taken a receive, which then fails, or has not
    /// (section 9.7.5.1.4).
    TakenOrNot,
    /// What is known of a device: this case of the suite sees it.
    Known(&'static str),
    /// A failure that a completion tells of may be told of by an event as well
    /// ([`Manners::tells_twice`]).
    ToldTwice,
}

impl Rule {
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

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}: {}", self.why())
    }
}

/// How often each rule was needed.
pub type Uses = BTreeMap<Rule, u64>;

/// Receives posted to a queue pair in error are not flushed there: the case that sees it.
pub(super) const LATE_RECEIVES: &str = "states::error_flushes_in_order";
/// A datagram that cannot be sent takes its queue pair to the error state: the case that sees it.
pub(super) const NO_SQE: &str = "datagrams::stops_at_a_bad_key";

/// What both devices may differ in: the left one and the right one.
#[derive(Clone, Debug, Default)]
pub struct Leeway {
    /// How they behave.
    pub manners: [Manners; 2],
    /// What is known of them.
    pub known: [Vec<Deviation>; 2],
}

impl Leeway {
    /// Whether a case is known to get no further on one of them.
    pub(super) fn ends(&self, case: &str) -> bool {
        let ends = |known: &Deviation| {
            matches!(known.does, Does::Ends(_) | Does::Hangs(_)) && known.cases.contains(&case)
        };
        self.known.iter().flatten().any(ends)
    }

    /// Whether an event is known not to come on one of them.
    pub(super) fn keeps(&self, event: &str) -> bool {
        let keeps = |known: &Deviation| matches!(known.does, Does::Keeps(name) if name == event);
        self.known.iter().flatten().any(keeps)
    }
}

/// What must have been the status where a device says `found`, and which case knows that.
fn demanded(known: &[Deviation], found: Status) -> Vec<(Status, Option<&'static str>)> {
    let mut all = vec![(found, None)];
    for known in known {
        match known.does {
            Does::Completes(demanded, instead) if instead == found => {
                all.push((demanded, known.cases.first().copied()));
            }
            _ => {}
        }
    }
    all
}

/// What two devices did in a step, compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What no rule allows.
    pub differences: Vec<String>,
    /// After this they are in different states, as a rule allows: nothing behind it can be compared.
    pub is_last: bool,
}

/// Compares a step.
pub fn compare(left: &Seen, right: &Seen, leeway: &Leeway, uses: &mut Uses) -> Verdict {
    let mut verdict = Verdict::default();
    let differences = &mut verdict.differences;
    for (seen, whose) in [(left, "left"), (right, "right")] {
        let broken = seen.broken.iter().map(|line| format!("{whose}: {line}"));
        differences.extend(broken);
    }
    let rule = root(left, right, leeway).or_else(|| root(right, left, leeway));
    if let Some(rule) = rule.or_else(|| no_sqe(left, right, leeway)) {
        *uses.entry(rule).or_default() += 1;
        verdict.is_last = true;
        return verdict;
    }
    let mut needed = Vec::new();
    let all: BTreeSet<_> = left.fates.keys().chain(right.fates.keys()).collect();
    let of = |wr_id: &u64| (left.fates.get(wr_id), right.fates.get(wr_id));
    let both = all.iter().map(|wr_id| {
        let (left, right) = of(wr_id);
        (**wr_id, fates(left, right, leeway))
    });
    let both: Vec<_> = both.collect();
    let is_refused = both
        .iter()
        .any(|(_, both)| *both == Some(Ok(Rule::RefusedOrFailed)));
    for (wr_id, both) in both {
        match (both, of(&wr_id)) {
            (Some(Ok(rule)), _) => needed.push(rule),
            // Where it failed, everything else was flushed with it.
            (Some(Err(_)), (None, Some(Fate::Failed(Status::Flushed)))) if is_refused => {}
            (Some(Err(_)), (Some(Fate::Failed(Status::Flushed)), None)) if is_refused => {}
            (Some(Err(line)), _) => differences.push(format!("request {wr_id}: {line}")),
            (None, _) => {}
        }
    }
    match outcomes(&left.outcome, &right.outcome) {
        Some(Ok(rule)) => needed.push(rule),
        // What became of the requests says it better.
        Some(Err(line)) if needed.is_empty() => differences.push(line),
        _ => {}
    }
    if left.standing != right.standing {
        verdict.is_last = !needed.is_empty();
        if needed.is_empty() {
            differences.push(standings(&left.standing, &right.standing));
        }
    }
    for rule in needed {
        *uses.entry(rule).or_default() += 1;
    }
    verdict
}

/// What explains everything else that is different: one executed what the other refused to.
fn root(good: &Seen, bad: &Seen, leeway: &Leeway) -> Option<Rule> {
    let is_protection = |fate: &Fate| {
        let Fate::Failed(status) = fate else {
            return false;
        };
        let known = leeway.known.concat();
        let mut demanded = demanded(&known, *status).into_iter();
        demanded.any(|(status, _)| status == Status::LocalProtection)
    };
    let unused = |(wr_id, fate): (&u64, &Fate)| {
        let Fate::Success {
            bytes: Some(bytes), ..
        } = fate
        else {
            return false;
        };
        let fits = |before: &usize| *bytes as usize <= *before;
        bad.fates.get(wr_id).is_some_and(is_protection) && good.frail.get(wr_id).is_some_and(fits)
    };
    if good.fates.iter().any(unused) {
        return Some(Rule::UnusedBytes);
    }
    let own = |seen: &Seen, wr_id: &u64| match seen.fates.get(wr_id) {
        Some(Fate::Failed(status)) => Some(*status).filter(|status| *status != Status::Flushed),
        _ => None,
    };
    let differs = |wr_id: &u64| {
        let both = own(good, wr_id).zip(own(bad, wr_id));
        both.is_some_and(|(one, other)| one != other)
    };
    good.manifold
        .iter()
        .any(differs)
        .then_some(Rule::OtherReason)
}

/// A queue pair is in SQE on one, and in error on another that knows no SQE.
fn no_sqe(left: &Seen, right: &Seen, leeway: &Leeway) -> Option<Rule> {
    let differs = |(one, other): (&Standing, &Standing)| {
        let states = [one.state, other.state];
        states.contains(&Some(QpState::Sqe)) && states.contains(&Some(QpState::Error))
    };
    let mut both = left
        .standing
        .iter()
        .flatten()
        .zip(right.standing.iter().flatten());
    (leeway.ends(NO_SQE) && both.any(differs)).then_some(Rule::Known(NO_SQE))
}

/// `None` if both are the same; else the rule that allows it, or what is different.
fn fates(
    left: Option<&Fate>,
    right: Option<&Fate>,
    leeway: &Leeway,
) -> Option<Result<Rule, String>> {
    if left == right {
        return None;
    }
    let line = || Some(Err(format!("{} / {}", shown(left), shown(right))));
    match (left, right) {
        (Some(Fate::Refused(_)), Some(Fate::Refused(_))) => Some(Ok(Rule::OtherReason)),
        (Some(Fate::Refused(_)), Some(Fate::Failed(status)))
        | (Some(Fate::Failed(status)), Some(Fate::Refused(_)))
            if !matches!(status, Status::Success) =>
        {
            Some(Ok(Rule::RefusedOrFailed))
        }
        // Behind one that was refused here and failed there.
        (Some(Fate::NotPosted), Some(Fate::Failed(Status::Flushed)))
        | (Some(Fate::Failed(Status::Flushed)), Some(Fate::NotPosted)) => {
            Some(Ok(Rule::RefusedOrFailed))
        }
        (Some(Fate::Failed(left)), Some(Fate::Failed(right))) => {
            statuses(*left, *right, leeway).map(Ok).or_else(line)
        }
        _ => line(),
    }
}

/// The rule by which two different statuses say the same.
fn statuses(left: Status, right: Status, leeway: &Leeway) -> Option<Rule> {
    let [ours, theirs] = &leeway.known;
    for (left, of_left) in demanded(ours, left) {
        for (right, of_right) in demanded(theirs, right) {
            let known = of_left.or(of_right).map(Rule::Known);
            let both = [left, right];
            if left == right {
                return known;
            }
            if both.contains(&Status::LocalAccess) && both.contains(&Status::Flushed) {
                return Some(Rule::TakenOrNot);
            }
        }
    }
    None
}

fn outcomes(left: &Outcome, right: &Outcome) -> Option<Result<Rule, String>> {
    match (left, right) {
        _ if left == right => None,
        (Outcome::Refused { index: a, .. }, Outcome::Refused { index: b, .. }) if a == b => {
            Some(Ok(Rule::OtherReason))
        }
        _ => Some(Err(format!("answered {left:?} / {right:?}"))),
    }
}

fn shown(fate: Option<&Fate>) -> String {
    fate.map_or_else(|| "nothing".to_owned(), |fate| format!("{fate:?}"))
}

fn standings(left: &[[Standing; 2]], right: &[[Standing; 2]]) -> String {
    for (line, (left, right)) in left.iter().zip(right).enumerate() {
        for (end, (left, right)) in left.iter().zip(right).enumerate() {
            if left != right {
                return format!("line {line} end {end} is {} / {}", told(left), told(right));
            }
        }
    }
    "other lines".to_owned()
}

fn told(standing: &Standing) -> String {
    let state = standing.state.as_ref().map(QpState::to_string);
    let state = state.unwrap_or_else(|| "gone".to_owned());
    let Standing {
        sends, receives, ..
    } = standing;
    format!("in {state} with {sends} requests and {receives} receives")
}

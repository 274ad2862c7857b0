//! When two devices that were asked the same did the same.
//!
//! Everything is compared but for what a [`Rule`] leaves out. Each says why, and a run says how often
//! it was needed, so that none hides anything unnoticed.

use std::collections::BTreeMap;
use std::fmt;

use headworks_verbs::{QpState, Status};

use super::seen::{Fate, Outcome, Seen, Standing};
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
    /// Both refused it; the reason is the first one that the device found.
    OtherReason,
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

/// What both devices may differ in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leeway {
    /// How the one behaves.
    pub left: Manners,
    /// How the other does.
    pub right: Manners,
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
    if let Some(rule) = root(left, right).or_else(|| root(right, left)) {
        *uses.entry(rule).or_default() += 1;
        verdict.is_last = true;
        return verdict;
    }
    let mut needed = Vec::new();
    let all: std::collections::BTreeSet<_> = left.fates.keys().chain(right.fates.keys()).collect();
    for wr_id in all {
        match fates(left.fates.get(wr_id), right.fates.get(wr_id), leeway) {
            Some(Ok(rule)) => needed.push(rule),
            Some(Err(line)) => differences.push(format!("request {wr_id}: {line}")),
            None => {}
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
fn root(good: &Seen, bad: &Seen) -> Option<Rule> {
    let unused = |(wr_id, fate): (&u64, &Fate)| {
        let Fate::Success {
            bytes: Some(bytes), ..
        } = fate
        else {
            return false;
        };
        let fits = |before: &usize| *bytes as usize <= *before;
        bad.fates.get(wr_id) == Some(&Fate::Failed(Status::LocalProtection))
            && good.frail.get(wr_id).is_some_and(fits)
    };
    good.fates.iter().any(unused).then_some(Rule::UnusedBytes)
}

/// `None` if both are the same; else the rule that allows it, or what is different.
fn fates(left: Option<&Fate>, right: Option<&Fate>, _: &Leeway) -> Option<Result<Rule, String>> {
    if left == right {
        return None;
    }
    let line = || Some(Err(format!("{} / {}", shown(left), shown(right))));
    match (left, right) {
        (Some(Fate::Refused(_)), Some(Fate::Refused(_))) => Some(Ok(Rule::OtherReason)),
        (Some(Fate::Refused(_)), Some(Fate::Failed(status)))
        | (Some(Fate::Failed(status)), Some(Fate::Refused(_)))
            if *status != Status::Flushed =>
        {
            Some(Ok(Rule::RefusedOrFailed))
        }
        // Behind one that was refused here and failed there.
        (Some(Fate::NotPosted), Some(Fate::Failed(Status::Flushed)))
        | (Some(Fate::Failed(Status::Flushed)), Some(Fate::NotPosted)) => {
            Some(Ok(Rule::RefusedOrFailed))
        }
        _ => line(),
    }
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

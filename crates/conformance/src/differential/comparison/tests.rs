use headworks_verbs::Opcode;

use super::*;
use crate::differential::observation::KnownHang;
use crate::differential::observation::{PostedTo, Span};

const LINES: usize = 2;

/// Returns a step without requests: two lines in RTS.
fn nothing() -> StepObservation {
    let standing = QpSnapshot {
        state: Some(QpState::Rts),
        sends: 0,
        receives: 1,
    };
    StepObservation {
        outcome: CallOutcome::Done,
        fates: BTreeMap::new(),
        about: BTreeMap::new(),
        snapshots: vec![[standing; 2]; LINES],
        faulty_receives: BTreeMap::new(),
        stuck: BTreeMap::new(),
        several_faults: BTreeSet::new(),
        unspecified: Vec::new(),
        violations: Vec::new(),
    }
}

/// Returns the bytes of request `wr_id`.
fn span(wr_id: u64) -> Span {
    Span {
        end: 0,
        memory: 0,
        from: wr_id as usize * 8,
        to: wr_id as usize * 8 + 8,
    }
}

/// Returns a step with these requests: number, line, end, fate.
fn step(fates: &[(u64, usize, usize, WorkFate)]) -> StepObservation {
    let mut seen = nothing();
    for (wr_id, line, end, fate) in fates {
        let (line, end, spans) = (*line, *end, vec![span(*wr_id)]);
        let about = PostedTo {
            line,
            end,
            is_receive: false,
            spans,
        };
        seen.about.insert(*wr_id, about);
        seen.fates.insert(*wr_id, fate.clone());
    }
    seen
}

/// Returns the step with this queue pair in error and its receives flushed.
fn in_error(mut seen: StepObservation, line: usize, end: usize) -> StepObservation {
    seen.snapshots[line][end] = QpSnapshot {
        state: Some(QpState::Error),
        sends: 0,
        receives: 0,
    };
    seen
}

fn refused(kind: &str) -> WorkFate {
    WorkFate::Refused(kind.to_owned())
}

fn executed(bytes: u32) -> WorkFate {
    WorkFate::Success {
        opcode: Opcode::Recv,
        bytes: Some(bytes),
        imm: None,
        source: None,
        by: None,
    }
}

/// Compares both ways round: the result must not depend on the order of the devices.
fn compared(
    one: &StepObservation,
    other: &StepObservation,
) -> (StepComparison, Vec<DivergenceRule>) {
    let allowed = AllowedDivergence::default();
    let (mut uses, mut turned) = (RuleUses::new(), RuleUses::new());
    let verdict = compare(one, other, &allowed, &mut uses);
    let back = compare(other, one, &allowed, &mut turned);
    assert_eq!(uses, turned);
    assert_eq!(verdict.differences.len(), back.differences.len());
    assert_eq!(verdict.is_last, back.is_last);
    (verdict, uses.into_keys().collect())
}

#[track_caller]
fn is_allowed(
    one: &StepObservation,
    other: &StepObservation,
    rules: &[DivergenceRule],
) -> StepComparison {
    let (verdict, uses) = compared(one, other);
    assert_eq!(verdict.differences, Vec::<String>::new());
    assert_eq!(uses, rules);
    verdict
}

#[track_caller]
fn is_found(one: &StepObservation, other: &StepObservation) {
    let (verdict, _) = compared(one, other);
    assert!(!verdict.differences.is_empty(), "not found");
}

#[test]
fn reasons_for_good_are_one_as_good_as_another_and_no_others_are() {
    let with = |kind: &str| StepObservation {
        outcome: CallOutcome::Refused {
            kind: kind.to_owned(),
            index: Some(0),
        },
        ..step(&[(1, 0, 0, refused(kind))])
    };
    let verdict = is_allowed(
        &with("TooManySges"),
        &with("Operation"),
        &[DivergenceRule::OtherReason],
    );
    assert!(!verdict.is_last, "nothing else is different");
    for kind in ["QueueFull", "State", "HasSrq", "Forked", "Device"] {
        is_found(&with(kind), &with("TooManySges"));
        is_found(&with(kind), &with("Transition"));
    }
    let elsewhere = in_error(with("Operation"), 0, 0);
    is_found(&with("TooManySges"), &elsewhere);
    let mut fewer = with("Operation");
    fewer.snapshots[0][1].receives = 0;
    is_found(&with("TooManySges"), &fewer);
}

#[test]
fn a_queue_pair_that_is_not_moved_is_refused_for_the_same_reason() {
    let with = |kind: &str, index| {
        let kind = kind.to_owned();
        StepObservation {
            outcome: CallOutcome::Refused { kind, index },
            ..nothing()
        }
    };
    is_found(&with("Transition", None), &with("Attributes", None));
    is_found(&with("Operation", Some(0)), &with("Operation", Some(1)));
}

#[test]
fn only_the_end_that_fails_a_refused_request_errors() {
    let posted = |kind| {
        let fates = [(2, 0, 0, refused(kind)), (3, 0, 0, WorkFate::NotPosted)];
        StepObservation {
            outcome: CallOutcome::Refused {
                kind: kind.to_owned(),
                index: Some(0),
            },
            ..step(&fates)
        }
    };
    let failing = |status| {
        let flushed = WorkFate::Failed(Status::Flushed);
        step(&[
            (1, 0, 0, flushed.clone()),
            (2, 0, 0, WorkFate::Failed(status)),
            (3, 0, 0, flushed),
        ])
    };
    let good = posted("Operation");
    let bad = in_error(failing(Status::LocalQpOperation), 0, 0);
    assert!(is_allowed(&good, &bad, &[DivergenceRule::RefusedOrFailed]).is_last);
    is_found(&posted("QueueFull"), &bad);
    is_found(&posted("State"), &bad);
    is_found(&good, &in_error(bad.clone(), 1, 0));
    is_found(&good, &in_error(bad.clone(), 0, 1));
    let mut reset = bad.clone();
    reset.snapshots[0][0].state = Some(QpState::Reset);
    is_found(&good, &reset);
    let both = in_error(in_error(failing(Status::RemoteInvalidRequest), 0, 0), 0, 1);
    is_allowed(&good, &both, &[DivergenceRule::RefusedOrFailed]);
    let mut of_another = bad.clone();
    let stranger = step(&[(9, 1, 0, WorkFate::Failed(Status::Flushed))]);
    of_another.fates.extend(stranger.fates);
    of_another.about.extend(stranger.about);
    is_found(&good, &of_another);
    let mut before = bad;
    before
        .fates
        .insert(1, WorkFate::Failed(Status::LocalLength));
    is_found(&good, &before);
}

#[test]
fn a_flushed_request_may_be_refused_without_state_change() {
    let good = step(&[(2, 0, 0, refused("Operation"))]);
    let bad = step(&[(2, 0, 0, WorkFate::Failed(Status::Flushed))]);
    let lost = |seen| StepObservation {
        outcome: CallOutcome::Refused {
            kind: "Operation".to_owned(),
            index: Some(0),
        },
        ..seen
    };
    let verdict = is_allowed(
        &lost(good.clone()),
        &bad,
        &[DivergenceRule::RefusedOrFailed],
    );
    assert!(!verdict.is_last);
    is_found(&lost(good), &in_error(bad, 0, 0));
}

#[test]
fn a_receive_that_is_wrong_behind_its_bytes_excuses_its_line_from_there_on() {
    let failed = |status| WorkFate::Failed(status);
    let mut good = step(&[
        (3, 0, 1, executed(8)),
        (4, 0, 1, executed(8)),
        (7, 0, 0, WorkFate::Silent),
        (8, 0, 0, WorkFate::Silent),
        (9, 0, 0, executed(0)),
    ]);
    good.faulty_receives.insert(4, 8);
    let bad = step(&[
        (3, 0, 1, executed(8)),
        (4, 0, 1, failed(Status::LocalProtection)),
        (5, 0, 1, failed(Status::Flushed)),
        (7, 0, 0, WorkFate::Silent),
        (8, 0, 0, failed(Status::RemoteOperation)),
        (9, 0, 0, failed(Status::Flushed)),
    ]);
    let bad = in_error(in_error(bad, 0, 0), 0, 1);
    let verdict = is_allowed(&good, &bad, &[DivergenceRule::UnusedBytes]);
    assert!(verdict.is_last);
    let spans: Vec<_> = verdict.unspecified.iter().map(|doubt| doubt.span).collect();
    assert_eq!(spans, [span(4), span(8), span(9)], "what it executed alone");
    let mut before = bad.clone();
    before.fates.insert(3, executed(7));
    is_found(&good, &before);
    for (wr_id, status) in [
        (4, Status::LocalLength),
        (8, Status::RetryExceeded),
        (9, Status::LocalProtection),
    ] {
        let mut otherwise = bad.clone();
        otherwise.fates.insert(wr_id, failed(status));
        is_found(&good, &otherwise);
    }
    let mut another = bad.clone();
    another.fates.insert(10, failed(Status::RemoteAccess));
    another.about.insert(
        10,
        PostedTo {
            line: 1,
            ..PostedTo::default()
        },
    );
    is_found(&good, &another);
    is_found(&good, &in_error(bad.clone(), 1, 1));
    let mut more = bad.clone();
    more.fates.insert(9, executed(1));
    is_found(&good, &more);
    let mut used = good.clone();
    used.faulty_receives.insert(4, 7);
    is_found(&used, &bad);
}

#[test]
fn with_several_faults_the_peer_reports_its_own() {
    let with = |status, line| {
        let mut seen = step(&[(5, line, 0, WorkFate::Failed(status))]);
        seen.several_faults.insert(5);
        in_error(seen, line, 0)
    };
    let here = with(Status::LocalProtection, 0);
    is_allowed(
        &here,
        &with(Status::LocalLength, 0),
        &[DivergenceRule::OtherReason],
    );
    let mut there = in_error(with(Status::RemoteAccess, 0), 0, 1);
    is_found(&with(Status::LocalLength, 0), &in_error(here.clone(), 0, 1));
    there.fates.insert(2, WorkFate::Failed(Status::Flushed));
    let receive = PostedTo {
        line: 0,
        end: 1,
        is_receive: true,
        spans: Vec::new(),
    };
    there.about.insert(2, receive);
    assert!(is_allowed(&here, &there, &[DivergenceRule::OtherReason]).is_last);
    is_found(&here, &in_error(there.clone(), 1, 0));
    there.several_faults.clear();
    is_found(&here, &there);
    is_found(&here, &with(Status::Flushed, 0));
}

#[test]
fn a_receive_that_a_refused_write_took_fails_or_is_flushed_and_a_request_is_not() {
    let with = |status, is_receive| {
        let mut seen = step(&[(5, 0, 1, WorkFate::Failed(status))]);
        let about = seen.about.get_mut(&5).unwrap();
        about.is_receive = is_receive;
        in_error(seen, 0, 1)
    };
    let (taken, flushed) = (Status::LocalAccess, Status::Flushed);
    is_allowed(
        &with(taken, true),
        &with(flushed, true),
        &[DivergenceRule::TakenOrNot],
    );
    is_found(&with(taken, false), &with(flushed, false));
    is_found(&with(Status::LocalLength, true), &with(flushed, true));
}

/// Returns the number of differences if this deviation of `other` is known. No later step is compared.
fn differences(
    one: &StepObservation,
    other: &StepObservation,
    cases: &'static [&'static str],
    behaviour: DeviantBehaviour,
) -> usize {
    let known = Deviation {
        cases,
        operations: &[],
        behaviour,
        verb_and_request: ("", ""),
        demanded: "",
        observed: "",
    };
    let allowed = AllowedDivergence {
        known: [vec![], vec![known]],
        ..AllowedDivergence::default()
    };
    let verdict = compare(one, other, &allowed, &mut RuleUses::new());
    assert!(verdict.is_last);
    verdict.differences.len()
}

#[test]
fn where_there_is_no_sqe_that_queue_pair_alone_is_in_error() {
    let fates = [(5, 0, 0, WorkFate::Failed(Status::LocalLength))];
    let mut sqe = step(&fates);
    sqe.snapshots[0][0].state = Some(QpState::Sqe);
    let bad = in_error(step(&fates), 0, 0);
    let differences = |one: &StepObservation, other: &StepObservation| {
        differences(
            one,
            other,
            &[CASE_NO_SQE],
            DeviantBehaviour::Ends("in error"),
        )
    };
    assert_eq!(differences(&sqe, &bad), 0);
    assert_eq!(differences(&bad, &sqe), 1, "known of the other one");
    assert_eq!(differences(&sqe, &in_error(bad, 1, 0)), 1);
}

#[test]
fn a_known_hang_excuses_failures_against_a_silent_peer() {
    let failed = |status| WorkFate::Failed(status);
    let mut whole = step(&[
        (1, 0, 0, failed(Status::Flushed)),
        (4, 0, 0, WorkFate::Silent),
        (5, 0, 0, failed(Status::RetryExceeded)),
        (6, 0, 0, failed(Status::Flushed)),
    ]);
    whole.about.get_mut(&1).unwrap().is_receive = true;
    let whole = in_error(whole, 0, 0);
    let mut hung = step(&[]);
    hung.snapshots[0][0].sends = 3;
    let waits = |case| vec![KnownHang { case, among: 5..=6 }];
    let mut stuck = hung.clone();
    stuck.stuck.insert((0, 0), waits(CASE_FENCED_HANGS));
    let differences = |one: &StepObservation, other: &StepObservation| {
        differences(
            one,
            other,
            &[CASE_FENCED_HANGS],
            DeviantBehaviour::Hangs("in vain"),
        )
    };
    assert_eq!(differences(&whole, &stuck), 0);
    assert_eq!(differences(&stuck, &whole), 5, "known of the other one");
    assert_eq!(differences(&whole, &hung), 5, "not stuck");
    let mut elsewhere = hung.clone();
    elsewhere.stuck.insert((1, 0), waits(CASE_FENCED_HANGS));
    assert_eq!(differences(&whole, &elsewhere), 5, "on another line");
    let mut unready = whole.clone();
    unready.fates.insert(5, failed(Status::RnrRetryExceeded));
    assert_eq!(differences(&unready, &stuck), 0);
    let mut unknown = hung.clone();
    unknown.stuck.insert((0, 0), waits(CASE_UNANSWERED_HANGS));
    assert_eq!(differences(&whole, &unknown), 5, "not known of it");
    let mut later = hung.clone();
    let among = 6..=6;
    later.stuck.insert(
        (0, 0),
        vec![KnownHang {
            case: CASE_FENCED_HANGS,
            among,
        }],
    );
    assert_eq!(differences(&whole, &later), 5, "before what waits");
    let mut refused = whole.clone();
    refused.fates.insert(5, failed(Status::RemoteAccess));
    assert_eq!(differences(&refused, &stuck), 5, "the peer answered");
    let mut silent = whole;
    silent.fates.insert(7, WorkFate::Silent);
    let about = silent.about[&6].clone();
    silent.about.insert(7, about);
    assert_eq!(differences(&silent, &stuck), 1, "behind what failed");
}

#[test]
fn a_receive_of_a_shared_queue_that_was_not_taken_is_still_there() {
    let with = |fates: &[_], state| {
        let mut seen = step(fates);
        for about in seen.about.values_mut() {
            about.is_receive = true;
        }
        seen.snapshots[0][1].state = Some(state);
        seen
    };
    let there = with(&[], QpState::Error);
    let taken = |status| {
        let mut seen = with(&[(5, 0, 1, WorkFate::Failed(status))], QpState::Error);
        seen.snapshots[0][1].receives -= 1;
        seen
    };
    let verdict = is_allowed(
        &there,
        &taken(Status::LocalAccess),
        &[DivergenceRule::TakenOrNot],
    );
    assert!(verdict.is_last);
    is_found(&there, &taken(Status::LocalProtection));
    is_found(&with(&[], QpState::Rts), &taken(Status::LocalAccess));
}

#[test]
fn a_refusal_behind_a_failure_matches_an_unposted_request() {
    let with = |first: WorkFate, second: WorkFate| step(&[(6, 0, 0, first), (7, 0, 0, second)]);
    let refused_at_once = with(refused("TooManySges"), WorkFate::NotPosted);
    let failed = WorkFate::Failed(Status::LocalProtection);
    let later = |kind| in_error(with(failed.clone(), refused(kind)), 0, 0);
    is_allowed(
        &refused_at_once,
        &later("Operation"),
        &[DivergenceRule::RefusedOrFailed],
    );
    is_found(&refused_at_once, &later("NoRoom"));
    let silent = in_error(
        with(
            WorkFate::Failed(Status::RetryExceeded),
            refused("Operation"),
        ),
        0,
        0,
    );
    is_found(&refused_at_once, &silent);
}

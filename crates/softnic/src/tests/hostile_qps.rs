//! A hostile device whose progress thread is held: only this thread takes steps.

use headworks_verbs::Duration;

use super::*;
use crate::datapath::context::{Context, ContextMode};
use crate::hostile::{FaultPoint, Rules, Verdict, rules};
use crate::table::clock;

/// Posts a WRITE for which the rule gives `verdict` when it begins. Returns how many polls the WRITE took,
/// and how long.
fn polls_of_a_write(verdict: Verdict) -> (u32, Duration) {
    let fabric = Fabric::new();
    let info = info(&"soft:h1,hostile".parse().unwrap());
    let begins = rules::by(move |event, _| (event.point == FaultPoint::Begin).then_some(verdict));
    let rules = Rules::new(1).with(begins);
    let mode = ContextMode {
        rules: Some(rules),
        ..ContextMode::default()
    };
    let context = Context::open_as(fabric.dir.clone(), info, mode).unwrap();
    let near = TestQp::new(SoftDevice::over(context.clone()), None, 16);
    let mut ends = [near, TestQp::new(fabric.open("soft:h2"), None, 16)];
    connect(&mut ends);
    let [near, far] = &mut ends;
    let alone = context.progress.service();
    let before = clock::now();
    near.post(SendOp::Write(far.region.remote(0)));
    let mut polls = 0;
    let mut out = [Completion::default()];
    until("the WRITE", || {
        polls += 1;
        near.cq.poll(&mut out) == Ok(1)
    });
    assert_eq!(out[0].status, Status::Success);
    drop(alone);
    (polls, clock::now().since(before))
}

#[test]
fn a_request_rests_as_long_as_the_rule_says() {
    // A poll makes four steps at most.
    assert!(polls_of_a_write(Verdict::Pass).0 < 4);
    assert!(polls_of_a_write(Verdict::Wait(60)).0 > 60 / 4 - 2);
    let wait = Duration::from_millis(8);
    assert!(polls_of_a_write(Verdict::WaitFor(wait)).1 >= wait);
}

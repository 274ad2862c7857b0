//! A hostile device whose progress thread is held: only this thread takes steps.

use headworks_verbs::Duration;

use super::*;
use crate::datapath::context::{Context, ContextMode};
use crate::hostile::{FaultPoint, Rules, Verdict, rules};
use crate::table::clock;

/// Two connected ends, of which the first one's device is hostile by these rules, and that device's context.
fn ends(fabric: &Fabric, rules: Rules) -> (Arc<Context>, [TestQp; 2]) {
    let info = info(&"soft:h1,hostile".parse().unwrap());
    let mode = ContextMode {
        rules: Some(rules),
        ..ContextMode::default()
    };
    let context = Context::open_as(fabric.dir.clone(), info, mode).unwrap();
    let near = TestQp::new(SoftDevice::over(context.clone()), None, 16);
    let mut ends = [near, TestQp::new(fabric.open("soft:h2"), None, 16)];
    connect(&mut ends);
    (context, ends)
}

/// Posts a WRITE for which the rule gives `verdict` when it begins. Returns how many polls the WRITE took,
/// and how long.
fn polls_of_a_write(verdict: Verdict) -> (u32, Duration) {
    let fabric = Fabric::new();
    let begins = rules::by(move |event, _| (event.point == FaultPoint::Begin).then_some(verdict));
    let (context, mut ends) = ends(&fabric, Rules::new(1).with(begins));
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

/// Posts WRITEs to two regions of a peer, registered with `accesses`, one after the other. Returns whether the second one's
/// bytes were seen while some of the first one's were missing, with any of many seeds.
fn overtakes(accesses: [Access; 2]) -> bool {
    const LEN: usize = 1024;
    (0..40).any(|seed| {
        let fabric = Fabric::new();
        let (context, mut ends) = ends(&fabric, Rules::new(seed).with(rules::scatter(8)));
        let [near, far] = &mut ends;
        let targets = accesses.map(|access| {
            let buffer: Arc<dyn Buffer> = far.device.alloc(&AllocRequest::of(LEN)).unwrap();
            far.device.register(PD, &buffer, access).unwrap()
        });
        let alone = context.progress.service();
        let mut out = [Completion::default(); 4];
        let mut has_overtaken = false;
        // The device knows the order of a region from the first request on.
        for byte in [1, 2] {
            fill(near.region.buffer(), byte);
            for target in &targets {
                near.post_bytes(SendOp::Write(target.remote(0)), LEN as u32);
            }
            let mut completed = 0;
            until("the WRITEs", || {
                let [first, second] = &targets;
                let word = u64::from_ne_bytes([byte; 8]);
                let has_begun = words_of(second.buffer()).any(|found| found == word);
                has_overtaken |= has_begun && !holds(first.buffer(), byte);
                completed += near.cq.poll(&mut out).unwrap();
                completed == targets.len()
            });
        }
        drop(alone);
        has_overtaken
    })
}

#[test]
fn a_write_to_a_region_with_relaxed_ordering_overtakes_others_and_is_not_overtaken_by_a_strict_one()
{
    let strict = Access::ALL;
    let relaxed = Access::ALL | Access::RELAXED_ORDERING;
    for before in [relaxed, strict] {
        assert!(overtakes([before, relaxed]), "{before:?}");
        assert!(!overtakes([before, strict]), "{before:?}");
    }
}

#[test]
fn a_request_rests_as_long_as_the_rule_says() {
    // A poll makes four steps at most.
    assert!(polls_of_a_write(Verdict::Pass).0 < 4);
    assert!(polls_of_a_write(Verdict::Wait(60)).0 > 60 / 4 - 2);
    let wait = Duration::from_millis(8);
    assert!(polls_of_a_write(Verdict::WaitFor(wait)).1 >= wait);
}

//! Tests of the soak itself: each run is corrupted on purpose in its own way, and the soak must notice.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use headworks::ring::{Framing, Mode, RingConfig};
use headworks::sim::faults::{NetworkFaults, Rule, Verdict, rules};
use headworks::verbs::interpose::{InterposedDevice, Interposer};
use headworks::verbs::{
    Access, AllocRequest, CqInit, Device, Duration, Instant, Payload, QpCaps, QpInit, QpType,
    ResourceError, SendOp, SendWr,
};

use crate::plan::{ExpectedFailure, Plan, RECEIVER, Unprinted, WrapDevice};
use crate::{EVENTS_MAX, SeedResult, Violation, guarded};

/// Number of the message that is corrupted.
const AFFECTED_MESSAGE: u64 = 20;

/// An extra object that a test makes on a device.
type Object = Result<Box<dyn Any + Send>, ResourceError>;

fn queue_pair(device: &dyn Device) -> Object {
    let cq = device.create_cq(&CqInit {
        depth: 1,
        channel: None,
        timestamps: false,
    })?;
    let pair = device.alloc_pd()?.create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        caps: QpCaps::default(),
        signal_all: false,
    })?;
    Ok(Box::new(pair))
}

fn region(device: &dyn Device) -> Object {
    let buffer = device.alloc(&AllocRequest::of(64))?;
    let region = device.alloc_pd()?.register(&buffer, Access::NONE)?;
    Ok(Box::new(region))
}

fn channel(device: &dyn Device) -> Object {
    Ok(Box::new(device.create_channel()?))
}

/// An object that lives as long as its device is used.
struct LeakedObject(#[expect(dead_code, reason = "it is dropped")] Mutex<Box<dyn Any + Send>>);

impl Interposer for LeakedObject {}

/// Drops WRITEs from slot WRITE [`AFFECTED_MESSAGE`] on: only that one, or all from then on, those of cursors
/// included.
struct SendFilter {
    all: bool,
    slots: AtomicU64,
}

impl Interposer for SendFilter {
    fn admits_send(&self, posted: &SendWr<'_>) -> bool {
        let SendOp::Write(_) = posted.op else {
            return true;
        };
        let before = match posted.payload {
            Payload::Gather([_]) => self.slots.fetch_add(1, Ordering::Relaxed),
            _ => self.slots.load(Ordering::Relaxed),
        };
        match self.all {
            true => before < AFFECTED_MESSAGE,
            false => before != AFFECTED_MESSAGE || !matches!(posted.payload, Payload::Gather([_])),
        }
    }
}

/// Returns the device of a role; that of a sender drops WRITEs.
fn dropping_sends(role: &str, device: Arc<dyn Device>, all: bool) -> Arc<dyn Device> {
    match role {
        RECEIVER => device,
        _ => {
            let slots = AtomicU64::new(0);
            Arc::new(InterposedDevice::new(
                device,
                Arc::new(SendFilter { all, slots }),
            ))
        }
    }
}

/// Returns the device of a role; that of a sender has one object more, which is never freed if it `leaks`.
fn with_extra_object(
    role: &str,
    device: Arc<dyn Device>,
    object: fn(&dyn Device) -> Object,
    leaks: bool,
) -> Arc<dyn Device> {
    if role == RECEIVER {
        return device;
    }
    let object = object(&*device).expect("one object more");
    if leaks {
        std::mem::forget(object);
        return device;
    }
    let kept = LeakedObject(Mutex::new(object));
    Arc::new(InterposedDevice::new(device, Arc::new(kept)))
}

/// Returns a plan of one ring on which nothing goes wrong.
pub(crate) fn plan_without_faults() -> Plan {
    with_config(RingConfig {
        transmit_every: Some(1),
        publish_every: Some(1),
        push_every: Some(1),
        mode: Mode::Poll,
        ..RingConfig::fixed(8, 64)
    })
}

fn with_config(config: RingConfig) -> Plan {
    Plan::without_faults(0, [config.clone(), config])
}

/// Returns a plan of two crossing rings on which nothing goes wrong.
fn crossing() -> Plan {
    Plan {
        rings: 2,
        crosses: true,
        ..plan_without_faults()
    }
}

/// Returns a plan with short packets of which many are lost: for each gap, hundreds are retransmitted.
pub(crate) fn plan_with_faults(messages: u64) -> Plan {
    let mut plan = with_config(RingConfig {
        slot_size: Some(5_120),
        framing: Framing::Variable(22_960),
        mode: Mode::Notify,
        ..RingConfig::default()
    });
    let micro = Duration::from_micros(1);
    (plan.sending.batch, plan.sending.cost) = (64, micro);
    plan.preset = "cx6-100g";
    plan.constants = vec![("link.mtu", "256"), ("nic.burst", "1")];
    plan.messages = messages;
    plan.gaps = 1_000 / 50 + 1_000 / 20;
    plan.add_rule("loss".to_owned(), rules::loss(50));
    plan.add_rule("reorder".to_owned(), rules::reorder(20, micro));
    plan
}

/// Returns the plan with its messages bounded, as in plans made from a seed.
pub(crate) fn bounded(mut plan: Plan) -> Plan {
    plan.bound_messages();
    plan
}

/// Returns the plan with one more rule.
fn with(mut plan: Plan, rule: impl Rule<NetworkFaults> + 'static) -> Plan {
    plan.add_rule("a rule".to_owned(), rule);
    plan
}

/// Returns the plan with a rule that is expected to end rings of the sender's host.
fn with_death(mut plan: Plan, rule: impl Rule<NetworkFaults> + 'static) -> Plan {
    let fatal = ExpectedFailure::Host("sender0".to_owned());
    plan.add_fatal_rule("a death".to_owned(), rule, fatal);
    plan
}

fn run(plan: Plan) -> Result<SeedResult, Box<Violation>> {
    guarded(0, || plan)
}

/// Returns the violations of a plan as one text.
fn violation_of(plan: Plan) -> String {
    let violation = run(plan).expect_err("unnoticed");
    assert_eq!(violation.replay(), "headworks sim soak --seeds 0..1");
    violation.what.join("; ")
}

#[test]
fn a_correct_run_has_no_violation() {
    for (plan, expected) in [
        (plan_without_faults(), (200, 1, 0)),
        (crossing(), (400, 2, 0)),
    ] {
        let ran = run(plan).expect("nothing is wrong");
        assert_eq!((ran.messages, ran.rings, ran.broken), expected);
    }
}

#[test]
fn whatever_happens_to_a_message_is_seen() {
    type Sends = fn(u64) -> u64;
    let what: [(Sends, &str); 6] = [
        // Lost, doubled, overtaken, changed.
        (
            |n| if n < AFFECTED_MESSAGE { n } else { n + 1 },
            "message 21 came in place of 20",
        ),
        (
            |n| if n == AFFECTED_MESSAGE { n - 1 } else { n },
            "message 19 came in place of 20",
        ),
        (
            |n| if n < AFFECTED_MESSAGE { n } else { n - 1 },
            "message 19 came in place of 20",
        ),
        (
            |n| {
                if n / 2 == AFFECTED_MESSAGE / 2 {
                    n ^ 1
                } else {
                    n
                }
            },
            "message 21 came in place of 20",
        ),
        (
            |n| if n == AFFECTED_MESSAGE { u64::MAX } else { n },
            "changed at byte 0",
        ),
        (
            |n| {
                if n == AFFECTED_MESSAGE {
                    panic!("spoilt on purpose")
                } else {
                    n
                }
            },
            "spoilt on purpose",
        ),
    ];
    for (sends, says) in what {
        for plan in [plan_without_faults(), crossing()] {
            let told = violation_of(Plan {
                sends: Unprinted(sends),
                ..plan
            });
            assert!(told.contains(says), "{says}: {told}");
        }
    }
}

#[test]
fn messages_dropped_by_a_device_are_detected() {
    let devices: [(WrapDevice, &str); 2] = [
        // A slot that was not written still has the message of the lap before.
        (
            |role, device| dropping_sends(role, device, false),
            "message 12 came in place of 20",
        ),
        (
            |role, device| dropping_sends(role, device, true),
            "nothing moves",
        ),
    ];
    for (around, says) in devices {
        for plan in [plan_without_faults(), crossing()] {
            let told = violation_of(Plan {
                wrap_device: Unprinted(around),
                ..plan
            });
            assert!(told.contains(says), "{says}: {told}");
        }
    }
}

#[test]
fn extra_device_objects_are_detected_before_and_after_exit() {
    let keeps: [WrapDevice; 2] = [
        |role, device| with_extra_object(role, device, queue_pair, false),
        |role, device| with_extra_object(role, device, region, false),
    ];
    for around in keeps {
        for plan in [plan_without_faults(), crossing()] {
            let told = violation_of(Plan {
                wrap_device: Unprinted(around),
                ..plan
            });
            assert!(told.contains("there are ObjectCounts"), "{told}");
            assert!(!told.contains("left behind"), "{told}");
        }
    }
    let leaks: [(WrapDevice, &str); 2] = [
        (
            |role, device| with_extra_object(role, device, region, true),
            "regions: 1",
        ),
        (
            |role, device| with_extra_object(role, device, channel, true),
            "completion_channels: 1",
        ),
    ];
    for (around, what) in leaks {
        // If actors do not stay to be inspected, what they leave behind is still noticed.
        for (plan, lingers) in [
            (plan_without_faults(), true),
            (crossing(), true),
            (plan_without_faults(), false),
        ] {
            let told = violation_of(Plan {
                wrap_device: Unprinted(around),
                lingers,
                ..plan
            });
            assert_eq!(told.contains("there are ObjectCounts"), lingers, "{told}");
            let left = told.split_once("left behind: ");
            assert!(left.is_some_and(|(_, left)| left.contains(what)), "{told}");
        }
    }
}

#[test]
fn a_host_that_stops_is_seen() {
    for host in ["sender0", RECEIVER] {
        for plan in [plan_without_faults(), crossing()] {
            let from = Instant::ZERO + Duration::from_micros(60);
            let told = violation_of(with(
                plan,
                rules::stall_actors(host, from, Duration::from_secs(3600)),
            ));
            assert!(told.starts_with("nothing moves"), "{host}: {told}");
        }
    }
}

#[test]
fn a_panic_is_reported_with_its_seed() {
    let early = guarded(7, || panic!("no plan")).expect_err("panicked");
    assert!(early.to_string().contains("no plan") && early.replay().ends_with("7..8"));
    // The panic is in a rule, which runs outside of any actor's step.
    let bad = rules::from_fn(|event, _| (event.number > 50).then(|| panic!("a rule")));
    assert!(violation_of(with(plan_without_faults(), bad)).contains("a rule"));
}

#[test]
fn a_ring_break_needs_a_fault_that_happened() {
    // A queue pair fails, once unplanned and once planned. If rings cross, the other one goes on.
    let kill = || rules::kill_queue_pair_at("sender0", 30);
    for (plan, least) in [(plan_without_faults as fn() -> Plan, 0), (crossing, 200)] {
        let told = violation_of(with(plan(), kill()));
        assert!(told.contains("without a cause"), "{told}");
        let ran = run(with_death(plan(), kill())).expect("planned");
        assert!(ran.broken == 1 && ran.messages >= least, "{ran:?}");
    }
    // The planned failure never comes; something else breaks the ring.
    let plan = with_death(
        plan_without_faults(),
        rules::kill_queue_pair_at("sender0", u64::MAX),
    );
    let other = rules::from_fn(|event, _| {
        (event.host == RECEIVER && event.number == 30).then_some(Verdict::Kill)
    });
    let told = violation_of(with(plan, other));
    assert!(told.contains("without a cause"), "{told}");
}

#[test]
fn retransmissions_per_gap_are_bounded() {
    // Nearly all events come from retransmitted packets, about four events each.
    let smooth = run(plan_without_faults()).expect("nothing is wrong");
    assert_eq!(smooth.sent_again, 0);
    let plan_with_faults = run(bounded(plan_with_faults(600))).expect("nothing is wrong");
    assert!(
        8 * plan_with_faults.sent_again > plan_with_faults.events,
        "{plan_with_faults:?}"
    );
    assert!(
        plan_with_faults.events < EVENTS_MAX / 3,
        "{plan_with_faults:?}"
    );
}

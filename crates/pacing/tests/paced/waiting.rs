//! Tests of the order among waiting requests, and of wake-ups.

use headworks_pacing::PacingConfig;
use headworks_verbs::{
    AhKey, Completion, Destination, Device, QpAttr, QpInit, QpState, QpType, Qpn, SendOp, Status,
};
use std::sync::Arc;

use crate::scripted_device::Script;
use crate::single_process::{request, slow, write};
use crate::world::{CAPS, START, World, completion_queue, device, ready, share};

/// When the program armed, no timer and no completion was pending that could wake it.
#[test]
fn a_sleeper_is_woken_by_requests_deferred_later() {
    let mut world = World::new(slow(), 0);
    world.post(0, vec![request(SendOp::Send, 100_000)]);
    world.complete(0, 1, Status::Success);
    assert_eq!(world.poll(0, 4), 1);
    world.arm(0);
    // Every step of the world checks that a sleeper would be woken.
    world.post(0, vec![write(8)]);
    world.complete(0, 1, Status::Success);
    assert_eq!(world.poll(0, 4), 1);
    world.arm(0);
    world.post(2, vec![write(8)]);
    world.modify_to_error(2);
    world.poll(0, 4);
    assert_eq!(world.outstanding(2), 0);
}

/// Small requests of another queue pair do not use up the credit that a long request waits for.
#[test]
fn a_long_request_is_not_overtaken_for_ever() {
    let window = PacingConfig {
        window: true,
        base_delay_ns: 1_000,
        ..slow()
    };
    for config in [slow(), window] {
        let mut world = World::new(config, 0);
        // From here on the base delay is known.
        world.post(2, vec![write(8)]);
        world.pass(1_000);
        world.complete(2, 1, Status::Success);
        world.poll(0, 4);
        world.post(2, vec![write(8); 2]);
        world.post(0, vec![request(SendOp::Send, 100_000)]);
        for _ in 0..1_000 {
            world.pass(1_000);
            world.complete(2, 1, Status::Success);
            world.poll(0, 4);
            if world.outstanding(2) < 2 {
                world.post(2, vec![write(8)]);
            }
        }
        world.complete(0, 1, Status::Success);
        world.poll(0, 4);
        assert_eq!(world.outstanding(0), 0);
        world.settle();
    }
}

/// A datagram queue pair that stopped at a failure may send again. Requests that waited then are flushed;
/// later ones are sent.
#[test]
fn datagrams_posted_after_a_failure_are_sent() {
    let script = Script::new(START);
    let paced = device(&script, &share(), &Arc::new(slow()));
    let cq = completion_queue(&paced);
    let domain = paced.alloc_pd().expect("a domain");
    let init = QpInit {
        qp_type: QpType::Ud,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        caps: CAPS,
        signal_all: true,
    };
    let mut qp = domain.create_qp(&init).expect("room");
    qp.modify(&ready()).expect("ready");
    let to = Destination {
        ah: AhKey(1),
        qpn: Qpn::new(2).expect("24 bits"),
        qkey: 3,
    };
    let datagram = request(SendOp::SendTo(to), 2_000);
    for number in 0..4 {
        qp.post_send(&[datagram.wr(number)]).expect("room");
    }
    script
        .state()
        .complete(qp.qpn().raw(), 1, Status::LocalProtection);
    qp.modify(&QpAttr::to_state(QpState::Rts)).expect("again");
    for number in 4..8 {
        qp.post_send(&[datagram.wr(number)]).expect("room");
    }
    let mut told = Vec::new();
    let mut out = [Completion::default(); 3];
    for _ in 0..100 {
        script.state().now += 100_000;
        let flying = script.state().flying(qp.qpn().raw());
        script
            .state()
            .complete(qp.qpn().raw(), flying, Status::Success);
        let count = cq.poll(&mut out).expect("polls");
        told.extend(out[..count].iter().map(|done| (done.wr_id, done.status)));
    }
    let fates = [
        Status::LocalProtection,
        Status::Flushed,
        Status::Flushed,
        Status::Flushed,
        Status::Success,
        Status::Success,
        Status::Success,
        Status::Success,
    ];
    assert_eq!(told, (0..).zip(fates).collect::<Vec<_>>());
}

//! The largest number of queue pairs that a device can have.

use std::sync::Weak;

use super::child::{PeerTestProcess, many_of, numbers, poll_many};
use super::*;
use crate::datapath::qp::QpCore;

#[test]
fn a_device_has_4096_queue_pairs_connected_to_as_many_of_another_process() {
    const ALL: usize = 4096;
    assert_eq!(crate::table::limits::LIMITS.max_qp as usize, ALL);
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let mut other = PeerTestProcess::start(&fabric, "h2");
    // Twice, to see that rows are reused.
    for _ in 0..2 {
        let (cq, mut ours) = many_of(&device, ALL);
        let refused = device.create_qp(PD, &qp_init(&cq, None)).err();
        assert!(matches!(refused, Some(ResourceError::Exhausted { .. })));
        other.tell(&format!("many {ALL}"));
        let (gid, theirs) = numbers(&other.hears("many"));
        let mut line = format!("join-many {}", u128::from_be_bytes(device.info().gid.0));
        for (qp, dest) in ours.iter_mut().zip(theirs) {
            assert!(qp.qpn().raw() > 1, "a special number");
            join(qp, gid, dest);
            line += &format!(" {}", qp.qpn().raw());
        }
        other.tell(&line);
        other.hears("up");
        // Idle queue pairs are not looked at. Wait until those that were just connected have been.
        let marks = &device.context.table.attention().qps;
        until("a look at all that were connected", || {
            let _nobody_looks = device.context.progress.service();
            marks.is_empty()
        });
        let looked = device.context.progress.looked();
        for _ in 0..100 {
            device.context.progress.kick();
        }
        for (wr_id, qp) in ours.iter_mut().enumerate() {
            // Waits until the other side has connected. The WRITE needs no receive.
            let wr = SendWr {
                wr_id: wr_id as u64,
                op: SendOp::Write(RemoteAddr { addr: 0, rkey: 0 }),
                payload: Payload::Inline(&[]),
                flags: SendFlags::default(),
            };
            qp.post_send(&[wr]).unwrap();
        }
        let mut got = poll_many(&*cq, ALL);
        got.sort_unstable_by_key(|completion| completion.wr_id);
        for (wr_id, (completion, qp)) in got.iter().zip(&ours).enumerate() {
            assert_eq!(completion.status, Status::Success);
            assert_eq!((completion.wr_id, completion.qpn), (wr_id as u64, qp.qpn()));
        }
        let looked = device.context.progress.looked() - looked;
        assert!(looked < ALL as u64, "{looked} looks at idle queue pairs");
        other.tell("drop-many");
        other.hears("dropped");
        drop(ours);
        until("all rows", || device.objects.queue_pairs.all().is_empty());
        assert_eq!(device.context.peers.held(), 0);
    }
}

#[test]
fn a_death_ends_all_queue_pairs_connected_to_it_and_no_other() {
    const MANY: usize = 500;
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let mut others = ["h2", "h3"].map(|host| PeerTestProcess::start(&fabric, host));
    let mut ours = [0, 1].map(|_| many_of(&device, MANY));
    for (other, (_, ours)) in others.iter_mut().zip(&mut ours) {
        other.tell(&format!("many {MANY}"));
        let (gid, theirs) = numbers(&other.hears("many"));
        for (qp, dest) in ours.iter_mut().zip(theirs) {
            join(qp, gid, dest);
        }
    }
    others[0].kill();
    until("the error state", || {
        let mut ended = ours[0].1.iter();
        ended.all(|qp| qp.state() == QpState::Error)
    });
    assert!(ours[1].1.iter().all(|qp| qp.state() == QpState::Rts));
    let mut told = Vec::new();
    until("the events", || {
        told.extend(std::iter::from_fn(|| device.next_async_event()));
        told.len() == MANY
    });
    for qp in &ours[0].1 {
        let event = AsyncEvent::QpFatal(qp.qpn());
        assert_eq!(told.iter().filter(|told| **told == event).count(), 1);
    }
}

/// Connected queue pairs promise to take at most 1 KiB each beyond their queues, because there are
/// thousands of them. The experiment `softnic` measures it.
#[test]
fn a_queue_pair_takes_at_most_a_kib_beyond_its_queues() {
    // Per allocation: the allocator's own word, and rounding.
    const OVERHEAD: usize = 16;
    let handle = size_of::<SoftQp>() + OVERHEAD;
    let counts = 2 * size_of::<usize>();
    let core = counts + size_of::<QpCore>() + OVERHEAD;
    let receives = size_of::<crate::datapath::srq::ReceiveQueue>() + OVERHEAD;
    let in_lists = size_of::<Weak<QpCore>>();
    let all = handle + core + receives + in_lists + crate::datapath::qp::SHARED_BYTES_PER_QP;
    assert!(
        all <= 1024,
        "{all} bytes: {handle} + {core} + {receives} + …"
    );
}

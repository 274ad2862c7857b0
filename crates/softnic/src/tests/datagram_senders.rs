//! How the receive that a killed datagram sender held is recovered, and how the sender is watched.

use super::datagrams::{DatagramQp, dead_process, hand_over, pair, srq_of};
use super::*;

/// Has the sender of datagrams to `b` take a receive, kills it, and has the owner undo that.
fn kill_with_a_receive_in_hand(fabric: &Fabric, b: &DatagramQp) {
    const WHO: u16 = 0x4000;
    let row = b.sender();
    row.executing.fetch_add(1, Ordering::Relaxed);
    row.completing.store(0, Ordering::Relaxed);
    let qpn = b.qp.qpn().raw();
    let remote_qp =
        crate::datapath::qp::RemoteQp::to_datagrams(&b.device.context.own, qpn).unwrap();
    let taken = remote_qp.receives.slots.claim_pop(WHO).unwrap();
    assert!(taken.is_some());
    hand_over(row, dead_process(fabric));
    b.clean_up();
}

#[test]
fn a_receive_that_came_back_takes_room_as_before() {
    let fabric = Fabric::new();
    let (mut a, mut b, to) = pair(&fabric);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    b.receive(0, 100);
    kill_with_a_receive_in_hand(&fabric, &b);
    let sges = [b.region.sge(0, 100)];
    let sges = &sges[..];
    let mut post = |wr_id| b.qp.post_recv(&[RecvWr { wr_id, sges }]).is_ok();
    let room = u64::from(QpCaps::default().max_recv_wr);
    let posted = (1..=2 * room).take_while(|wr_id| post(*wr_id)).count();
    // The slot it had before is also occupied, until a receive behind it has completed.
    assert_eq!(posted as u64, room - 2);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    assert_eq!(b.completed().wr_id, 0);
    let sges = [b.region.sge(0, 100)];
    let sges = &sges[..];
    let mut post = |wr_id| b.qp.post_recv(&[RecvWr { wr_id, sges }]).is_ok();
    assert_eq!([500, 501, 502].map(&mut post), [true, true, false]);
}

#[test]
fn a_receive_of_an_srq_comes_back_and_takes_no_more_room() {
    let fabric = Fabric::new();
    let mut a = DatagramQp::new(fabric.open("soft:h1"), None);
    let there = fabric.open("soft:h2");
    let srq = srq_of(&there);
    let b = DatagramQp::new(there, Some(srq.clone()));
    let to = a.aim_at(&b);
    assert_eq!(a.send(to, b"x").status, Status::Success);
    let post = |wr_id| {
        let sges = [b.region.sge(0, 100)];
        srq.post_recv(&[RecvWr { wr_id, sges: &sges }])
    };
    (1..=2).for_each(|wr_id| post(wr_id).unwrap());
    kill_with_a_receive_in_hand(&fabric, &b);
    // The SRQ has room for four.
    (3..=4).for_each(|wr_id| post(wr_id).unwrap());
    assert!(post(5).is_err());
    for wr_id in [2, 1, 3, 4] {
        assert_eq!(a.send(to, b"x").status, Status::Success);
        let got = b.completed();
        assert_eq!((got.wr_id, got.status), (wr_id, Status::Success));
    }
}

#[test]
fn the_process_of_a_sender_is_watched_from_its_first_datagram_on() {
    let fabric = Fabric::new();
    let (mut a, b, to) = pair(&fabric);
    assert!(b.device.context.senders.watches().is_empty());
    assert_eq!(a.send(to, b"x").status, Status::Success);
    until("the watch", || {
        !b.device.context.senders.watches().is_empty()
    });
}

//! The most harmful things that a broken peer can write. The fuzz target `softnic_peer` tries all others.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::table::descriptors::ContextDescriptors;
use crate::table::peer::Peer;
use crate::table::rows::{MAX_SEGMENT, RecvSlot, RegionRow};

/// Makes a region's row refer to another region's memory.
fn point_elsewhere(from: &RegionRow, to: &RegionRow) {
    for (from, to) in [
        (&from.segment, &to.segment),
        (&from.segment_generation, &to.segment_generation),
    ] {
        from.store(to.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    for (from, to) in [(&from.offset, &to.offset), (&from.len, &to.len)] {
        from.store(to.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Returns the context of `other`, as `end` has attached it.
fn peer_of(end: &TestQp, other: &TestQp) -> Arc<Peer> {
    let host = host_of(other.device.info().gid);
    let peer = end.device.context.peers.attach(host, other.qp.qpn().raw());
    peer.unwrap().unwrap()
}

#[test]
fn foreign_writes_to_our_region_rows_move_no_memory() {
    let fabric = Fabric::new();
    let [mut ours, theirs] = fabric.pair();
    fill(ours.region.buffer(), 0x11);
    let table = &ours.device.context.table;
    let buffer: Arc<dyn Buffer> = ours.device.alloc(&AllocRequest::of(512 << 10)).unwrap();
    fill(&buffer, 0x22);
    // Long enough for a segment of its own, which goes away with the region.
    let other = ours.device.register(PD, &buffer, Access::ALL).unwrap();
    let row = table.region(ours.region.lkey());
    point_elsewhere(row, table.region(other.lkey()));
    assert_eq!(ours.write_to(&theirs.region), Status::Success);
    let first = theirs.region.buffer().as_ptr().cast::<[u8; 8]>();
    // SAFETY: the region is longer than that, and nothing writes it now.
    let first = unsafe { first.read_volatile() };
    assert_eq!(first, [0x11; 8], "other bytes than ours were sent");
    // Nor does another generation in the row matter, which our process knows nothing of.
    let [mut third, theirs_too] = fabric.pair();
    let row = third.device.context.table.region(third.region.lkey());
    row.key.fetch_add(1 << 32, Ordering::Relaxed);
    assert_eq!(third.write_to(&theirs_too.region), Status::Success);
    // The memory that the row refers to is not mapped any more.
    drop((other, buffer));
    assert_eq!(ours.write_to(&theirs.region), Status::Success);
}

#[test]
fn a_segment_has_one_number() {
    let fabric = Fabric::new();
    let [mut ours, theirs] = fabric.pair();
    let table = &theirs.device.context.table;
    let segment = &table.region(theirs.region.rkey()).segment;
    segment.fetch_add(MAX_SEGMENT as u32, Ordering::Relaxed);
    assert_eq!(ours.write_to(&theirs.region), Status::RemoteAccess);
}

/// A dying process does not hand out the segments that its table shows, and is not dead yet.
#[test]
fn segments_that_a_dying_peer_does_not_hand_out_cause_no_refusal() {
    let fabric = Fabric::new();
    let [mut ours, mut theirs] = fabric.pair();
    let context = theirs.device.context.clone();
    let (member, incarnation) = (fabric.dir.join().unwrap(), context.own.incarnation);
    for op in [SendOp::Write, SendOp::Read, |_| SendOp::Send] {
        // Long enough for a segment of its own, which is not attached here.
        let buffer: Arc<dyn Buffer> = theirs.device.alloc(&AllocRequest::of(512 << 10)).unwrap();
        let there = theirs.device.register(PD, &buffer, Access::ALL).unwrap();
        let op = op(there.remote(0));
        if op == SendOp::Send {
            let sges = [there.sge(0, 8)];
            let sges = &sges[..];
            theirs.qp.post_recv(&[RecvWr { wr_id: 1, sges }]).unwrap();
        }
        let nothing: Weak<ContextDescriptors> = Weak::new();
        member.serve(incarnation, nothing).unwrap();
        ours.post(op);
        for _ in 0..100 {
            let polled = ours.cq.poll(&mut [Completion::default()]);
            assert_eq!(polled, Ok(0), "not waited for");
        }
        assert_eq!(theirs.qp.state(), QpState::Rts);
        // The process was not dying after all.
        let source: Weak<ContextDescriptors> = Arc::downgrade(context.descriptors());
        member.serve(incarnation, source).unwrap();
        assert_eq!(ours.completed().status, Status::Success);
    }
}

#[test]
fn a_cq_that_names_another_channel_each_time_holds_one_pipe() {
    let fabric = Fabric::new();
    let [ours, theirs] = fabric.pair();
    let peer = peer_of(&ours, &theirs);
    let row = theirs.cq.id().0;
    let life = peer.table.cq(row).life.load(Ordering::Relaxed);
    let channels: Vec<_> = (0..20)
        .map(|_| theirs.device.create_channel().unwrap())
        .collect();
    for number in 1..=channels.len() as u32 {
        let opened = peer.channel(number, (row, life));
        assert!(opened.is_some());
        assert_eq!(peer.channels_held(), 1, "after {number} channels");
    }
    assert!(peer.channel(1000, (row, life)).is_none(), "no such channel");
}

#[test]
fn receives_are_flushed_to_an_end_while_the_peer_posts_more() {
    let fabric = Fabric::new();
    let [ours, mut theirs] = fabric.pair();
    let peer = peer_of(&ours, &theirs);
    let row = theirs
        .device
        .context
        .table
        .qp(slot_of(theirs.qp.qpn().raw()));
    let queue = peer.queue::<RecvSlot>(&row.receive_queue).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let posters: Vec<_> = (0..2)
        .map(|_| {
            let (queue, stop) = (queue.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = queue.slots.push(OWNER, &RecvSlot::default());
                }
            })
        })
        .collect();
    until("a receive that was not ours", || !queue.slots.is_empty());
    let theirs = within_limit(move || {
        for state in [QpState::Error, QpState::Reset] {
            theirs.qp.modify(&QpAttr::to_state(state)).unwrap();
        }
        theirs
    });
    stop.store(true, Ordering::Relaxed);
    posters
        .into_iter()
        .for_each(|poster| poster.join().unwrap());
    drop((ours, theirs));
}

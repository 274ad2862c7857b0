//! A peer that dies and holds a receive of an SRQ.

use std::path::Path;
use std::sync::Arc;

use crate::direct::{DEADLINE, connect, line};
use crate::direct::{Options, Side};
use headworks_conformance::{ensure, ensure_eq};
use headworks_stage::Event;
use headworks_verbs::{AsyncEvent, Device, SendOp, SrqInit, Status};

use crate::peer::{LONG, Manner, connected, open};

const RECEIVES: u64 = 4;

/// Says whether the peer held a receive when it died.
fn round(device: &Arc<dyn Device>, path: &Path) -> Result<bool, String> {
    let pd = device.alloc_pd().map_err(line)?;
    let init = SrqInit {
        max_wr: RECEIVES as u32,
        max_sge: 1,
        limit: 0,
    };
    let srq = pd.create_srq(&init).map_err(line)?;
    let long = Options {
        len: LONG,
        ..Options::default()
    };
    let short = Options::default();
    let mut side = Side::within(device, &pd, Some(srq.clone()), &long)?;
    // Another queue pair of the same SRQ, with a peer that lives.
    let mut other = Side::within(device, &pd, Some(srq), &short)?;
    let mut friend = Side::new(device, &short)?;
    connect(&mut friend, &mut other)?;
    let into = side.region.sge(0, LONG as u32);
    for id in 0..RECEIVES {
        side.receive(id, &[into])?;
    }
    let mut running = connected(path, Manner::SendsOnce, &mut side)?;
    match running.poll(DEADLINE) {
        Some(Event::Report { bytes, .. }) if bytes == b"sending" => {}
        seen => return Err(format!("instead of sending: {seen:?}")),
    }
    running.kill("peer").map_err(line)?;
    // Nothing of this queue pair is in the SRQ any more once this is told.
    side.expect_event(AsyncEvent::QpLastWqe(side.qp.qpn()))?;
    let mut out = [Default::default()];
    let count = side.recv_cq.poll(&mut out).map_err(line)?;
    let held = count == 1 && out[0].status == Status::Flushed;
    let first = if count == 1 {
        ensure_eq!(out[0].wr_id, 0, "the receive that it took");
        ensure!(
            held || out[0].status == Status::Success,
            "{:?}",
            out[0].status
        );
        1
    } else {
        0
    };
    let again = side.recv_cq.poll(&mut out).map_err(line)?;
    ensure_eq!(again, 0, "completed twice");
    // The others are still there, for whoever shares them.
    for id in first..RECEIVES {
        friend.post(id, SendOp::Send, &[])?;
        friend.expect_sent(id, Status::Success)?;
        other.expect_received(id, Status::Success)?;
    }
    // And there is room for as many as before.
    for id in 0..RECEIVES {
        other.receive(10 + id, &[into])?;
    }
    ensure!(other.receive(20, &[into]).is_err(), "one more was taken");
    for id in 0..RECEIVES {
        friend.post(id, SendOp::Send, &[])?;
        friend.expect_sent(id, Status::Success)?;
        other.expect_received(10 + id, Status::Success)?;
    }
    Ok(held)
}

#[test]
fn a_shared_receive_that_a_killed_peer_held_is_flushed_and_its_place_is_free() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    let mut held = 0;
    for number in 0..50 {
        let seen = round(&device, &path).unwrap_or_else(|seen| panic!("round {number}: {seen}"));
        held += u32::from(seen);
        if held == 5 {
            break;
        }
    }
    println!("{held} rounds in which the peer held a receive");
    assert!(held > 0, "never killed while it held a receive");
}

//! Peers that die before a queue pair of ours is moved to RTR, or while it is in RTR and idle.

use std::path::Path;
use std::sync::Arc;

use crate::direct::{DEADLINE, line, to_rtr};
use crate::direct::{Options, Side};
use headworks_conformance::ensure_eq;
use headworks_stage::{Event, Running, clock};
use headworks_verbs::bringup::Hello;
use headworks_verbs::{AsyncEvent, Device, QpState, Status};

use crate::asleep;
use crate::peer::{Manner, open, start};

/// When the peer dies.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before anything here knows of it but its number.
    Unknown,
    /// While another queue pair of ours is connected to it, which is told first.
    Known,
    /// While the queue pair is in RTR and has nothing to do.
    InRtr,
}

/// What the peer says of itself, as a side of another device understands it.
fn hello(running: &mut dyn Running, reader: &mut Side) -> Result<Hello, String> {
    match running.poll(DEADLINE) {
        Some(Event::Report { bytes, .. }) => {
            let mut up = reader.start(Vec::new())?;
            up.input(reader.qp.as_mut(), &bytes).map_err(line)?;
            up.peer().cloned().ok_or_else(|| "no hello".to_owned())
        }
        other => Err(format!("instead of a hello: {other:?}")),
    }
}

fn kill(running: &mut dyn Running) -> Result<(), String> {
    running.kill("peer").map_err(line)?;
    match running.poll(DEADLINE) {
        Some(Event::Ended { .. }) => Ok(()),
        other => Err(format!("after the kill: {other:?}")),
    }
}

fn round(device: &Arc<dyn Device>, path: &Path, when: When) -> Result<u64, String> {
    let mut running = start(path, Manner::Idles)?;
    let other_device = open(path, "soft:h3");
    let options = Options::default();
    let reader_of = match when {
        When::Known => device,
        _ => &other_device,
    };
    let mut reader = Side::new(reader_of, &options)?;
    let hello = hello(running.as_mut(), &mut reader)?;
    let mut side = Side::new(device, &options)?;
    side.move_to_init()?;
    side.receive(7, &[])?;
    side.recv_cq.arm(false);
    let rtr = to_rtr(hello.gid, hello.qpn);
    let start;
    if matches!(when, When::InRtr) {
        side.qp.modify(&rtr).map_err(line)?;
        start = clock::now();
        kill(running.as_mut())?;
    } else {
        kill(running.as_mut())?;
        if matches!(when, When::Known) {
            reader.expect_event(AsyncEvent::QpFatal(reader.qp.qpn()))?;
        }
        start = clock::now();
        side.qp.modify(&rtr).map_err(line)?;
    }
    asleep::until_event(&side, clock::now() + DEADLINE)?;
    let took = clock::now().since(start).nanos() / 1000;
    side.expect_event(AsyncEvent::QpFatal(side.qp.qpn()))?;
    side.expect_received(7, Status::Flushed)?;
    ensure_eq!(side.qp.state(), QpState::Error, "state");
    Ok(took)
}

#[test]
fn a_peer_that_dies_before_anything_was_sent_is_noticed() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    for when in [When::Unknown, When::Known, When::InRtr] {
        for number in 0..5 {
            let took = round(&device, &path, when)
                .unwrap_or_else(|seen| panic!("{when:?}, round {number}: {seen}"));
            println!("{when:?}: told after {took} us");
        }
    }
}

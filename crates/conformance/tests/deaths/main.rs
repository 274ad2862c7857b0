//! Processes that die beside a device that lives on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::direct::{DEADLINE, line};
use crate::direct::{Options, Side};
use headworks_stage::{Cast, Event, Opener, Play, Processes, World, child_entry_in_test, clock};
use headworks_verbs::{
    AsyncEvent, Completion, Device, Duration, QpState, SendFlags, SendOp, Status,
};

use crate::peer::{Manner, Peer, connected, open, part};

mod asleep;
#[path = "../direct/mod.rs"]
mod direct;
mod early;
mod peer;
mod shared;

/// Runs only in the processes that the tests below start.
#[test]
fn plays_a_part() {
    let mut cast = Cast::new();
    cast.register("peer", |part| Ok(Box::new(Peer::new(part)?)));
    let none: Opener = headworks_stage::no_devices();
    child_entry_in_test(&cast, none);
}

/// Starts a peer, connects, lets it work `for_us`, kills it, and checks what is left.
fn round(
    device: &Arc<dyn Device>,
    path: &Path,
    manner: Manner,
    for_us: u64,
) -> Result<u64, String> {
    let options = Options {
        len: 1 << 20,
        ..Options::default()
    };
    let mut side = Side::new(device, &options)?;
    let mut running = connected(path, manner, &mut side)?;
    let mut posted = 0;
    let mut done: BTreeMap<u64, Completion> = BTreeMap::new();
    let collect = |side: &mut Side, done: &mut BTreeMap<u64, Completion>| -> Result<(), String> {
        let mut out = [Completion::default(); 16];
        let count = side.recv_cq.poll(&mut out).map_err(line)?;
        for got in &out[..count] {
            if done.insert(got.wr_id, *got).is_some() {
                return Err(format!("receive {} completed twice", got.wr_id));
            }
        }
        Ok(())
    };
    let kill_at = clock::now() + Duration::from_micros(for_us);
    while clock::now() < kill_at {
        let into = side.region.sge(0, 1 << 20);
        if side.receive(posted, &[into]).is_ok() {
            posted += 1;
        }
        collect(&mut side, &mut done)?;
        if side.qp.state() != QpState::Rts {
            return Err("in error before the kill".to_owned());
        }
    }
    let killed = clock::now();
    running.kill("peer").map_err(line)?;
    // The event, asleep or not, and every receive once.
    side.expect_event(AsyncEvent::QpFatal(side.qp.qpn()))?;
    let took = clock::now().since(killed).nanos() / 1000;
    let late = crate::direct::wait("end of all receives", || {
        collect(&mut side, &mut done)?;
        Ok((done.len() as u64 == posted).then_some(()))
    });
    late.map_err(|seen| format!("{seen}: {} of {posted}", done.len()))?;
    collect(&mut side, &mut done)?;
    if side.qp.state() != QpState::Error {
        return Err(format!("state {:?} at the end", side.qp.state()));
    }
    let flushed = |done: &&Completion| done.status == Status::Flushed;
    let count = done.values().filter(flushed).count();
    let bad = |done: &Completion| !matches!(done.status, Status::Flushed | Status::Success);
    if let Some(other) = done.values().find(|done| bad(done)) {
        return Err(format!(
            "receive {} ended with {:?}",
            other.wr_id, other.status
        ));
    }
    println!(
        "{} peer killed after {for_us} us: told in {took} us, {posted} receives, {count} flushed",
        if manner == Manner::Idles {
            "idle"
        } else {
            "busy"
        }
    );
    Ok(took)
}

#[test]
fn a_killed_peer_is_noticed_and_nothing_is_lost_or_doubled() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    let rounds = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 100,
        None => 30,
    };
    let mut worst = 0;
    for number in 0..rounds {
        let for_us = number * 7919 % 20_011;
        let manner = match number % 5 {
            4 => Manner::Idles,
            _ => Manner::Works,
        };
        let took = round(&device, &path, manner, for_us)
            .unwrap_or_else(|seen| panic!("round {number}: {seen}"));
        worst = worst.max(took);
    }
    println!("{rounds} rounds, the slowest notice {worst} us");
    // Far more than it takes anywhere: only what has to time out takes so long.
    assert!(worst < 10_000_000, "noticed after {worst} us");
    // What the dead left goes when the next one opens; the last to leave takes the directory.
    drop(open(&path, "soft:h3"));
    let left: Vec<_> = std::fs::read_dir(&path).expect("dir").flatten().collect();
    assert!(left.len() <= 2, "{left:?}");
    drop(device);
    assert!(!path.exists(), "something is left");
}

/// Whether a send that is under way and those behind it end when the peer dies, each once.
#[test]
fn what_was_sent_to_a_killed_peer_ends_in_order() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    for _ in 0..5 {
        let mut side = Side::new(&device, &Options::default()).expect("side");
        let mut running = connected(&path, Manner::Idles, &mut side).expect("connects");
        // The peer posts no receives: these wait.
        for id in 0..8 {
            let flags = [SendFlags::NONE, SendFlags::SIGNALED][(id % 2) as usize];
            side.post_flagged(id, SendOp::Send, &[], flags)
                .expect("posted");
        }
        running.kill("peer").expect("killed");
        side.expect_sent(0, Status::RetryExceeded).expect("first");
        for id in 1..8 {
            side.expect_sent(id, Status::Flushed).expect("flushed");
        }
        let mut out = [Completion::default()];
        assert_eq!(side.send_cq.poll(&mut out), Ok(0), "completed twice");
    }
}

#[test]
fn when_both_die_the_next_one_cleans_up() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let part = |role| part(role, &path, Manner::Idles);
    let world = Processes::of_this_test("plays_a_part");
    let mut running = world
        .start(&Play::of([part("a"), part("b")]))
        .expect("starts");
    let mut up = 0;
    while up < 2 {
        match running.poll(DEADLINE) {
            Some(Event::Report { .. }) => up += 1,
            other => panic!("{other:?}"),
        }
    }
    running.kill("a").expect("killed");
    running.kill("b").expect("killed");
    drop(running);
    let entries = || std::fs::read_dir(&path).map_or(0, Iterator::count);
    assert!(entries() >= 2, "the dead leave their entries");
    let device = open(&path, "soft:h1");
    assert!(entries() <= 2, "the lock and one entry");
    drop(device);
    assert!(!path.exists(), "something is left");
}

/// Two peers that work with each other are killed one after the other, at any moment: what they
/// leave hinders nobody who comes next.
#[test]
fn both_killed_at_any_moment_leave_nothing_behind() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let world = Processes::of_this_test("plays_a_part");
    for number in 0..20 {
        let parts = ["a", "b"].map(|role| part(role, &path, Manner::Works));
        let mut running = world.start(&Play::of(parts)).expect("starts");
        let mut connected = 0;
        while connected < 2 {
            match running.poll(DEADLINE) {
                Some(Event::Report { bytes, .. }) if bytes == b"connected" => connected += 1,
                Some(Event::Report { role, bytes }) => {
                    let other = if role == "a" { "b" } else { "a" };
                    running.send(other, &bytes).expect("relayed");
                }
                other => panic!("round {number}: {other:?}"),
            }
        }
        for (role, after_us) in [("a", number * 7919 % 5_003), ("b", number * 31 % 503)] {
            let kill_at = clock::now() + Duration::from_micros(after_us);
            while clock::now() < kill_at {
                std::thread::yield_now();
            }
            // It may have ended because the other one died.
            let _ = running.kill(role);
        }
        drop(running);
        let device = open(&path, "soft:h1");
        let side = Side::new(&device, &Options::default());
        assert!(side.is_ok(), "round {number}: {:?}", side.err());
        drop((side, device));
        assert!(!path.exists(), "round {number}: something is left");
    }
}

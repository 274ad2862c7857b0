//! Senders of a group that are killed, and tail array words overwritten by other peers.

#![allow(unsafe_code, reason = "acts as a peer: writes to memory lent to it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headworks_ring::{AfterStep, BrokenRing, Framing, Group, GroupConfig, Mode, RingError, RingId};
use headworks_runtime::RunningScenario;
use headworks_shm::CursorError;
use headworks_verbs::Device;
use proptest::prelude::*;

use crate::between_processes::{introduce, open, report};
use crate::group::{MODES, group, join_told, take, word};
use crate::kills::{self, LEN};
use crate::pair::{Hosts, config, fill, holds};
use crate::sleeping_ends::sleep;

const LIMIT: Duration = Duration::from_secs(10);

/// Stores a word of the tail array, as a WRITE of any of the group's senders would.
fn scribble(address: u64, value: u64) {
    // SAFETY: the caller passes the address of a word in the tail array of a live group.
    unsafe { &*(address as usize as *const AtomicU64) }.store(value, Ordering::Release);
}

fn start(greeting: &[u8]) -> u64 {
    u64::from_le_bytes(greeting[55..63].try_into().unwrap())
}

#[test]
fn any_word_in_the_tail_array_breaks_its_own_ring_only() {
    proptest!(ProptestConfig::with_cases(60), |(
        words in proptest::collection::vec((0usize..10, prop_oneof![any::<u64>(), 0u64..40]), 1..30),
        variable in any::<bool>(),
    )| {
        let hosts = Hosts::soft();
        let framing = if variable { Framing::Variable(200) } else { Framing::Fixed(48) };
        let config = config(16, framing, Mode::Poll);
        let mut group = group(&hosts, &config, 11);
        let mut rings = Vec::new();
        for _ in 0..11 {
            rings.push(join_told(&hosts.left, &config, &hosts.right, &mut group).unwrap());
        }
        let mut broken = [false; 11];
        for (number, (at, value)) in words.into_iter().enumerate() {
            scribble(word(&rings[at].2), value);
            // The last ring's word is never overwritten.
            let (tx, honest, _) = &mut rings[10];
            let mut message = [0; 48];
            fill(number as u64, &mut message);
            tx.try_send(&message).unwrap();
            tx.flush().unwrap();
            let mut came = false;
            for _ in 0..200 {
                match take(&mut group) {
                    Ok(None) if came => break,
                    Ok(None) => {
                        let _ = group.step(AfterStep::Wait).unwrap();
                    }
                    Ok(Some((ring, message))) if ring == *honest => {
                        prop_assert!(!came && holds(number as u64, &message));
                        came = true;
                    }
                    Ok(Some((ring, _))) => prop_assert!(!broken[ring.index()], "broken for good"),
                    Err(BrokenRing { ring, error }) => {
                        prop_assert!(ring.index() < 10 && !broken[ring.index()]);
                        prop_assert!(matches!(error, RingError::Cursor(_) | RingError::Header(_)));
                        broken[ring.index()] = true;
                    }
                }
            }
            prop_assert!(came, "the honest ring was disturbed");
        }
    });
}

/// A removed sender's tail WRITE may still arrive after its word was given to another ring. That ring must
/// report an error, even if it has not yet seen a tail of its own there. Otherwise it would hang.
#[test]
fn a_late_tail_of_the_ring_before_is_no_tail_of_this_one() {
    let hosts = Hosts::soft();
    let config = config(8, Framing::Fixed(48), Mode::Poll);
    for (consumed, looked) in [0, 1, 7, 30].map(|n| [(n, true), (n, false)]).concat() {
        // The latest tail that the old sender can have posted, and some earlier ones.
        for behind in [0, 1, 6] {
            let mut group = group(&hosts, &config, 1);
            let (mut tx, old, greeting) =
                join_told(&hosts.left, &config, &hosts.right, &mut group).unwrap();
            for _ in 0..consumed {
                tx.try_send(&[1; 48]).unwrap();
                tx.flush().unwrap();
                assert_eq!(group.try_recv().unwrap().unwrap().0, old);
            }
            let late = start(&greeting) + consumed + 7 - behind;
            let at = word(&greeting);
            assert!(group.remove(old));
            let (mut tx, ring, greeting) =
                join_told(&hosts.left, &config, &hosts.right, &mut group).unwrap();
            assert_eq!(word(&greeting), at, "the only word there is");
            tx.try_send(&[2; 48]).unwrap();
            tx.flush().unwrap();
            if looked {
                assert_eq!(&*group.try_recv().unwrap().unwrap().1, &[2; 48]);
            }
            scribble(at, late);
            let BrokenRing { ring: told, error } = group.try_recv().map(drop).unwrap_err();
            assert_eq!(told, ring);
            let refused = matches!(error, RingError::Cursor(CursorError::OutOfRange { .. }));
            assert!(refused, "{error}");
        }
    }
}

/// Starts a process that sends `count` messages on a ring of the group and then stays.
fn enlist(
    fabric: &std::path::Path,
    device: &Arc<dyn Device>,
    group: &mut Group,
    mode: Mode,
    count: u8,
) -> (Box<dyn RunningScenario>, RingId) {
    let mut seat = group.seat().unwrap();
    let mut args = vec![if mode == Mode::Poll { 2 } else { 1 }, count];
    args.extend(fabric.to_string_lossy().as_bytes());
    let (hello, tuning) = (seat.greeting(), seat.connection_params());
    let (running, peer) = introduce(
        "ring-peer",
        args,
        device,
        (seat.queue_pair(), tuning, hello),
    );
    let ring = group.admit(seat, &peer.payload).unwrap();
    (running, ring)
}

/// One of several processes that send to a group is killed. Its published messages are handed out, then its
/// ring's error is reported. The group keeps receiving from the others throughout.
#[test]
fn a_killed_sender_is_reported_and_the_others_continue() {
    // Without messages no head is pushed to the dead sender, so only a query of the queue pair reveals its
    // death.
    for (mode, count) in MODES.into_iter().flat_map(|mode| [(mode, 12), (mode, 0)]) {
        let dir = tempfile::tempdir().unwrap();
        let fabric = dir.path().join("fabric");
        let device = open(&fabric, "soft:h1");
        let config = kills::ring(mode);
        let mut group = Group::receiving(&device, &GroupConfig::new(config.clone(), 30)).unwrap();
        // This process's own sender goes on.
        let (mut alive, alive_ring, _) = join_told(&device, &config, &device, &mut group).unwrap();
        let mut idle: Vec<_> = (0..20)
            .map(|_| join_told(&device, &config, &device, &mut group).unwrap())
            .collect();
        let (mut victim, victim_ring) = enlist(&fabric, &device, &mut group, mode, count);
        let (mut other, other_ring) = enlist(&fabric, &device, &mut group, mode, 9);
        assert_eq!(report(victim.as_mut()), b"done");
        assert_eq!(report(other.as_mut()), b"done");
        victim.kill("peer").unwrap();
        let killed = Instant::now();
        let (mut sent, mut read, mut told) = (0u64, [0; 3], None);
        while told.is_none() || read[0] < sent {
            assert!(
                killed.elapsed() < LIMIT,
                "{mode:?}: {read:?} of {sent}, {told:?}"
            );
            if told.is_none() && sent == read[0] {
                let mut message = [0; LEN];
                fill(sent, &mut message);
                alive.try_send(&message).unwrap();
                alive.flush().unwrap();
                sent += 1;
            }
            match take(&mut group) {
                Ok(Some((ring, message))) => {
                    let which = [alive_ring, victim_ring, other_ring];
                    let which = which.iter().position(|one| *one == ring).unwrap();
                    assert!(holds(read[which], &message));
                    read[which] += 1;
                }
                Ok(None) => {
                    group.step(AfterStep::Poll).unwrap();
                }
                Err(BrokenRing { ring, error }) => {
                    assert_eq!(ring, victim_ring);
                    assert!(error.is_peer_gone(), "{error}");
                    assert!(told.replace(error).is_none());
                }
            }
        }
        assert_eq!(read, [sent, count.into(), 9], "{mode:?}");
        // The removed ring's word is given to another ring.
        assert!(group.remove(victim_ring));
        let (mut next, next_ring, _) = join_told(&device, &config, &device, &mut group).unwrap();
        let (mut quiet, quiet_ring, _) = idle.swap_remove(7);
        for (tx, ring) in [(&mut next, next_ring), (&mut quiet, quiet_ring)] {
            tx.try_send(&[3; LEN]).unwrap();
            tx.flush().unwrap();
            assert_eq!(group.try_recv().unwrap().unwrap().0, ring);
        }
        drop((victim, other));
    }
}

#[test]
fn a_group_asleep_learns_that_a_sender_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let fabric = dir.path().join("fabric");
    let device = open(&fabric, "soft:h1");
    let config = kills::ring(Mode::Notify);
    let mut group = Group::receiving(&device, &GroupConfig::new(config.clone(), 500)).unwrap();
    // So many rings that a step is unlikely to query the dead one's queue pair.
    let quiet: Vec<_> = (0..400)
        .map(|_| join_told(&device, &config, &device, &mut group).unwrap())
        .collect();
    let (mut victim, ring) = enlist(&fabric, &device, &mut group, Mode::Notify, 5);
    assert_eq!(report(victim.as_mut()), b"done");
    victim.kill("peer").unwrap();
    let mut read = 0;
    let error = loop {
        match take(&mut group) {
            Ok(Some((from, message))) => {
                assert_eq!(from, ring);
                assert!(holds(read, &message));
                read += 1;
            }
            Ok(None) => {
                group.arm();
                if !group.step(AfterStep::Wait).unwrap() {
                    sleep(group.fd().unwrap());
                }
                group.drain_events();
            }
            Err(BrokenRing { ring: from, error }) => {
                assert_eq!(from, ring);
                break error;
            }
        }
    };
    assert!(error.is_peer_gone(), "{error}");
    assert_eq!((read, quiet.len()), (5, 400));
}

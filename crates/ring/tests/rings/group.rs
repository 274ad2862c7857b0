//! One thread that receives from many rings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_ring::{
    AfterStep, BrokenRing, Framing, Group, GroupConfig, Mode, RingConfig, RingError, RingId,
    SendError, Sender, SenderSetup, SetupError,
};
use headworks_verbs::Device;

use crate::pair::{
    Counting, Hosts, config, fill, flush, holds, is_slow_device, message_count, poll_expr,
    poll_until, quiet, raise,
};
use crate::sleeping_ends::{is_readable, sleep};

/// Time limit: whatever takes longer has hung.
const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const MODES: [Mode; 2] = [Mode::Poll, Mode::Notify];

/// Joins a ring to the group. Returns its sender, its id and the group's greeting.
pub(crate) fn join_told(
    from: &Arc<dyn Device>,
    sending: &RingConfig,
    to: &Arc<dyn Device>,
    group: &mut Group,
) -> Result<(Sender, RingId, Vec<u8>), SetupError> {
    let mut tx = SenderSetup::new(from, sending)?;
    let mut seat = group.seat()?;
    let (from_tx, from_group) = (tx.greeting(), seat.greeting());
    raise(from, tx.queue_pair(), to, seat.queue_pair());
    let ring = group.admit(seat, &from_tx)?;
    Ok((tx.finish(&from_group)?, ring, from_group))
}

pub(crate) fn join(hosts: &Hosts, config: &RingConfig, group: &mut Group) -> (Sender, RingId) {
    let (tx, ring, _) = join_told(&hosts.left, config, &hosts.right, group).unwrap();
    (tx, ring)
}

pub(crate) fn group(hosts: &Hosts, config: &RingConfig, capacity: usize) -> Group {
    Group::receiving(&hosts.right, &GroupConfig::new(config.clone(), capacity)).unwrap()
}

/// Reads from a group's greeting the address of the ring's word in the tail array.
pub(crate) fn word(greeting: &[u8]) -> u64 {
    u64::from_le_bytes(greeting[43..51].try_into().unwrap())
}

/// Receives the next message and copies it.
pub(crate) fn take(group: &mut Group) -> Result<Option<(RingId, Vec<u8>)>, BrokenRing> {
    let came = group.try_recv()?;
    Ok(came.map(|(ring, message)| (ring, message.to_vec())))
}

fn send(tx: &mut Sender, number: u64) {
    let mut message = [0; 48];
    fill(number, &mut message);
    tx.try_send(&message).unwrap();
}

/// Sends a message as soon as there is room. On soft hosts there always is.
fn send_soon(tx: &mut Sender, number: u64) {
    let mut message = [0; 48];
    fill(number, &mut message);
    poll_until(|| match tx.try_send(&message) {
        Ok(()) => Some(()),
        Err(SendError::Full) => None,
        Err(error) => panic!("{error}"),
    });
}

#[test]
fn a_thousand_rings_are_distinguished_and_share_lines() {
    for mode in MODES {
        let hosts = Hosts::new();
        let config = config(8, Framing::Fixed(48), mode);
        let (count, rounds) = match is_slow_device() {
            true => (80, 10),
            false => (1000, 40),
        };
        let mut group = group(&hosts, &config, count);
        let mut rings = Vec::new();
        let mut lines = std::collections::BTreeSet::new();
        for _ in 0..count {
            let (tx, ring, greeting) =
                join_told(&hosts.left, &config, &hosts.right, &mut group).unwrap();
            lines.insert(word(&greeting) / 64);
            rings.push((tx, ring));
        }
        assert_eq!((lines.len(), group.len()), (count / 8, count));
        let full = group.seat().map(drop).unwrap_err();
        assert_eq!(
            full.to_string(),
            format!("the group has {count} rings, as many as it was made for")
        );
        assert!(!group.has_room());
        // Every ring wraps, each at another pace.
        let mut sent = vec![0u64; count];
        let mut read = vec![0u64; count];
        for round in 0..rounds {
            for (at, (tx, _)) in rings.iter_mut().enumerate() {
                for _ in 0..(at + round) % 7 {
                    send_soon(tx, (at as u64) << 32 | sent[at]);
                    sent[at] += 1;
                }
                flush(tx);
            }
            println!("{mode:?}: round {round}");
            poll_until(|| {
                while let Some((ring, message)) = group.try_recv().unwrap() {
                    let at = ring.index();
                    assert_eq!(ring, rings[at].1);
                    assert!(holds((at as u64) << 32 | read[at], &message));
                    read[at] += 1;
                }
                (read == sent).then_some(())
            });
        }
    }
}

/// One ring is always full; the others have a message now and then. Each of those messages must be handed
/// out within the round that begins after it arrived.
#[test]
fn a_flood_does_not_starve_a_trickle() {
    for mode in MODES {
        let hosts = Hosts::new();
        let config = config(64, Framing::Fixed(48), mode);
        let count = match is_slow_device() {
            true => 50,
            false => 1000,
        };
        let mut group_config = GroupConfig::new(config.clone(), count);
        group_config.quantum = 4;
        let mut group = Group::receiving(&hosts.right, &group_config).unwrap();
        let (mut flood, _) = join(&hosts, &config, &mut group);
        let mut trickle: Vec<_> = (1..count)
            .map(|_| join(&hosts, &config, &mut group).0)
            .collect();
        let fill_up = |tx: &mut Sender| while tx.try_send(&[7; 48]).is_ok() {};
        for round in 0..10u64 {
            for tx in &mut trickle {
                send_soon(tx, round);
                flush(tx);
            }
            // The rest of the flood's current turn, its turn in the round that begins then, and one message
            // of each other ring.
            let mut come = vec![0_u32; count];
            // On slow devices messages take longer to arrive, so more rounds are needed.
            let is_over = |come: &[u32]| !is_slow_device() || !come[1..].contains(&0);
            while come.iter().sum::<u32>() < count as u32 - 1 + 2 * 4 || !is_over(&come) {
                fill_up(&mut flood);
                let (ring, _) = poll_expr!(group.try_recv().unwrap());
                come[ring.index()] += 1;
            }
            assert_eq!(come[1..], vec![1; count - 1], "{mode:?}: round {round}");
            for _ in 0..round {
                fill_up(&mut flood);
                assert_eq!(poll_expr!(group.try_recv().unwrap()).0.index(), 0);
            }
        }
    }
}

#[test]
fn an_invalid_group_configuration_is_refused() {
    let hosts = Hosts::new();
    let base = config(8, Framing::Fixed(48), Mode::Poll);
    let refused = |ring: &RingConfig, capacity, quantum| {
        let mut config = GroupConfig::new(ring.clone(), capacity);
        config.quantum = quantum;
        let made = Group::receiving(&hosts.right, &config);
        made.map(drop).unwrap_err().to_string()
    };
    let most = match is_slow_device() {
        true => "",
        false => "4096 ",
    };
    let none = refused(&base, 0, 1);
    assert!(none.starts_with(&format!("capacity is 0: 1 to {most}")));
    assert!(none.ends_with(" with 8 slots on this device"));
    assert!(refused(&base, 5000, 1).starts_with(&format!("capacity is 5000: 1 to {most}")));
    assert_eq!(refused(&base, 1, 0), "quantum is 0: 1 to 4294967295");
    let latency = config(8, Framing::Fixed(48), Mode::Latency);
    assert!(refused(&latency, 1, 1).starts_with("rings in latency mode have no tail"));
    let error = Group::default().seat().map(drop).unwrap_err();
    assert!(matches!(error, SetupError::NoTailArray), "{error}");
    let mut polls = group(&hosts, &base, 3);
    let sleeper = config(8, Framing::Fixed(48), Mode::Notify);
    if hosts.can_poll() {
        let error = join_told(&hosts.left, &sleeper, &hosts.right, &mut polls);
        assert!(matches!(error.map(drop), Err(SetupError::GroupPolls)));
    }
    let seat = group(&hosts, &base, 1).seat().unwrap();
    let error = polls.admit(seat, &[]).unwrap_err();
    assert!(matches!(error, SetupError::OtherGroup), "{error}");
    // A failed admission has freed its word.
    let seats: Vec<_> = (0..3).map(|_| polls.seat().unwrap()).collect();
    assert!(polls.seat().is_err());
    drop(seats);
    assert!(polls.seat().is_ok());
}

#[test]
fn rings_of_every_mode_are_received_from_in_one_group() {
    let hosts = Hosts::new();
    for mode in MODES {
        let with_tail_array = config(8, Framing::Variable(100), mode);
        let mut group = group(&hosts, &with_tail_array, 4);
        let mut all: Vec<(Sender, RingId)> = (0..3)
            .map(|_| join(&hosts, &with_tail_array, &mut group))
            .collect();
        for mode in [Mode::Latency, Mode::Poll, Mode::Notify] {
            let (tx, rx) = hosts.ring(&config(8, Framing::Variable(100), mode));
            all.push((tx, group.add_receiver(rx)));
        }
        for round in 0..30u64 {
            for (at, (tx, _)) in all.iter_mut().enumerate() {
                if (round as usize).is_multiple_of(at + 1) {
                    send_soon(tx, round);
                    flush(tx);
                }
            }
            let mut due: Vec<RingId> = (0..all.len())
                .filter(|at| (round as usize).is_multiple_of(at + 1))
                .map(|at| all[at].1)
                .collect();
            due.sort();
            let mut come: Vec<RingId> = Vec::new();
            poll_until(|| {
                while let Some((ring, message)) = group.try_recv().unwrap() {
                    assert!(holds(round, &message));
                    come.push(ring);
                }
                (come.len() >= due.len()).then_some(())
            });
            come.sort();
            assert_eq!(come, due);
        }
    }
}

/// Sends `rounds` messages and sleeps while there is no room. Yields `pace` times after each.
fn send_asleep(tx: &mut Sender, serial: u64, rounds: u64, pace: u64) {
    let mut message = [0; 48];
    for number in 0..rounds {
        fill(serial << 32 | number, &mut message);
        while let Err(error) = tx.try_send(&message) {
            assert_eq!(error, SendError::Full);
            tx.arm();
            tx.step().unwrap();
            if tx.is_full() {
                sleep(tx.fd().unwrap());
                tx.drain_events();
            }
        }
        if number % (serial + 1) == 0 {
            tx.flush().unwrap();
        }
        for _ in 0..pace {
            std::thread::yield_now();
        }
    }
    while !tx.flush().unwrap() {
        tx.step().unwrap();
    }
}

/// One thread sleeps on one descriptor for all its rings. No message and no sender is forgotten.
#[test]
fn a_sleeping_group_wakes_for_any_of_its_rings() {
    let hosts = Hosts::new();
    for (slots, gamma) in [(2, 1), (16, 15), (16, 4)] {
        let config = RingConfig {
            push_every: Some(gamma),
            ..config(slots, Framing::Fixed(48), Mode::Notify)
        };
        let mut group = group(&hosts, &config, 20);
        const RINGS: u64 = 5;
        let rounds = message_count(1000, slots.into());
        let mut senders: Vec<Sender> = (0..RINGS)
            .map(|_| join(&hosts, &config, &mut group).0)
            .collect();
        let slept = std::thread::scope(|scope| {
            for (serial, tx) in senders.iter_mut().enumerate() {
                let serial = serial as u64;
                scope.spawn(move || send_asleep(tx, serial, rounds, serial * 3));
            }
            let (mut read, mut slept) = (vec![0; RINGS as usize], 0);
            while read.iter().sum::<u64>() < RINGS * rounds {
                if let Some((ring, message)) = group.try_recv().unwrap() {
                    let at = ring.index();
                    assert!(holds((at as u64) << 32 | read[at], &message));
                    read[at] += 1;
                    continue;
                }
                group.arm();
                if !group.step(AfterStep::Wait).unwrap() {
                    slept += u64::from(sleep(group.fd().unwrap()));
                }
                group.drain_events();
            }
            slept
        });
        println!("{slots} slots: slept {slept} times");
        assert!(slept > 0, "it never slept");
    }
}

/// A receiver created outside the group is slept on by its own descriptor.
#[test]
fn an_externally_made_ring_wakes_a_manual_sleeper() {
    const ROUNDS: u64 = 1000;
    let hosts = Hosts::new();
    let config = config(4, Framing::Fixed(48), Mode::Notify);
    let (mut tx, rx) = hosts.ring(&config);
    let mut group = group(&hosts, &config, 1);
    let ring = group.add_receiver(rx);
    std::thread::scope(|scope| {
        scope.spawn(|| send_asleep(&mut tx, 0, ROUNDS, 3));
        let (mut read, mut slept) = (0, 0);
        while read < ROUNDS {
            if let Some((from, message)) = group.try_recv().unwrap() {
                assert!(from == ring && holds(read, &message));
                read += 1;
                continue;
            }
            group.arm();
            group.receiver(ring).unwrap().arm();
            if !group.step(AfterStep::Wait).unwrap() {
                slept += u64::from(sleep(group.receiver(ring).unwrap().fd().unwrap()));
            }
            group.drain_events();
            group.receiver(ring).unwrap().drain_events();
        }
        assert!(slept > 0, "it never slept");
    });
    assert!(group.try_recv().unwrap().is_none());
    // Everything is drained: the descriptor is not readable until something else arrives.
    let mut receiver = group.receiver(ring).unwrap();
    receiver.arm();
    receiver.drain_events();
    assert!(!is_readable(receiver.fd().unwrap()));
    receiver.arm();
    while group.step(AfterStep::Wait).unwrap() {
        assert!(group.try_recv().unwrap().is_none());
    }
    send_soon(&mut tx, ROUNDS);
    flush(&mut tx);
    sleep(group.receiver(ring).unwrap().fd().unwrap());
}

/// Messages that arrive between the bring-up and the admission are not lost.
#[test]
fn messages_that_come_before_the_ring_is_admitted_wait() {
    for mode in MODES {
        let hosts = Hosts::new();
        let config = config(8, Framing::Fixed(48), mode);
        let mut group = group(&hosts, &config, 9);
        let (mut other, other_ring) = join(&hosts, &config, &mut group);
        let mut tx = SenderSetup::new(&hosts.left, &config).unwrap();
        let mut seat = group.seat().unwrap();
        raise(
            &hosts.left,
            tx.queue_pair(),
            &hosts.right,
            seat.queue_pair(),
        );
        let greeting = tx.greeting();
        let mut tx = tx.finish(&seat.greeting()).unwrap();
        for number in 0..3 {
            send(&mut tx, number);
            flush(&mut tx);
        }
        send(&mut other, 9);
        flush(&mut other);
        assert_eq!(poll_expr!(group.try_recv().unwrap()).0, other_ring);
        assert!(group.try_recv().unwrap().is_none());
        // Another seat is taken and given back meanwhile.
        drop(group.seat().unwrap());
        let ring = group.admit(seat, &greeting).unwrap();
        for number in 0..3 {
            let (from, message) = poll_expr!(group.try_recv().unwrap());
            assert_eq!(from, ring);
            assert!(holds(number, &message));
        }
    }
}

/// A sender is dropped, and later a ring is removed from the group. The other ring is not affected.
#[test]
fn a_leaving_peer_is_reported_once() {
    for mode in MODES {
        let hosts = Hosts::new();
        let config = config(16, Framing::Fixed(48), mode);
        let mut group = group(&hosts, &config, 3);
        let (mut stays, stays_ring) = join(&hosts, &config, &mut group);
        let (counted, counting) = Counting::around(&hosts.left);
        let (mut goes, goes_ring, _) =
            join_told(&counted, &config, &hosts.right, &mut group).unwrap();
        // Enough messages that a head is pushed to the dropped sender.
        for number in 0..15 {
            send(&mut goes, number);
        }
        flush(&mut goes);
        quiet(&mut goes, 0, &counting);
        drop(goes);
        let (mut read, mut told) = (0, None);
        let started = Instant::now();
        for round in 0.. {
            if round > 100 && told.is_some() {
                break;
            }
            assert!(started.elapsed() < LIMIT, "{mode:?}: no error reported");
            send_soon(&mut stays, round);
            flush(&mut stays);
            let mut came = false;
            while !came {
                match take(&mut group) {
                    Ok(Some((ring, message))) if ring == stays_ring => {
                        assert!(holds(round, &message));
                        came = true;
                    }
                    Ok(Some((ring, message))) => {
                        assert_eq!(ring, goes_ring);
                        assert!(told.is_none() && holds(read, &message));
                        read += 1;
                    }
                    Ok(None) => {
                        group.step(AfterStep::Poll).unwrap();
                    }
                    Err(BrokenRing { ring, error }) => {
                        assert_eq!((ring, read), (goes_ring, 15), "{mode:?}: {error}");
                        assert!(error.is_peer_gone(), "{error}");
                        assert!(told.replace(error).is_none(), "reported twice");
                    }
                }
            }
        }
        assert!(group.remove(goes_ring) && !group.remove(goes_ring));
        assert!(group.receiver(goes_ring).is_none());
        // The sender of a removed ring finds its peer gone.
        group.remove(stays_ring);
        let error: RingError = loop {
            if let Err(error) = stays.step() {
                break error;
            }
            let _ = stays.try_send(&[0; 48]);
        };
        assert!(error.is_peer_gone());
        let (mut tx, ring) = join(&hosts, &config, &mut group);
        send(&mut tx, 1);
        flush(&mut tx);
        assert_eq!(poll_expr!(group.try_recv().unwrap()).0, ring);
    }
}

/// Messages of a group's ring are taken by hand and released in another order. The step before waiting
/// announces their space to the sender, as for any ring.
#[test]
fn manually_released_space_is_announced_to_the_sender() {
    let hosts = Hosts::new();
    for mode in MODES {
        let config = config(64, Framing::Fixed(48), mode);
        let mut group = group(&hosts, &config, 4);
        let (mut tx, ring) = join(&hosts, &config, &mut group);
        for number in 0..3 {
            send(&mut tx, number);
        }
        flush(&mut tx);
        let since = Instant::now();
        let mut held = Vec::new();
        while held.len() < 3 {
            assert!(since.elapsed() < LIMIT, "{mode:?}: nothing comes");
            group.step(AfterStep::Poll).unwrap();
            held.extend(group.receiver(ring).unwrap().try_take().unwrap());
        }
        let mut receiver = group.receiver(ring).unwrap();
        for held in held.into_iter().rev() {
            receiver.release(held).unwrap();
        }
        // Three of 64 slots: neither γ nor an empty ring calls for a push.
        tx.step().unwrap();
        assert!(!tx.is_drained(), "{mode:?}: pushed too early to tell");
        group.step(AfterStep::Wait).unwrap();
        while !tx.is_drained() {
            assert!(since.elapsed() < LIMIT, "{mode:?}: no head pushed");
            tx.step().unwrap();
        }
    }
}

#[test]
fn an_id_of_a_ring_it_receives_from_is_none_of_a_ring_it_sends_on() {
    let hosts = Hosts::new();
    let config = config(8, Framing::Fixed(48), Mode::Poll);
    let mut group = Group::default();
    let (mut sending, mut receiving) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (tx, rx) = hosts.ring(&config);
        sending.push(group.add_sender(tx));
        receiving.push(group.add_receiver(rx));
    }
    for (tx, rx) in sending.iter().zip(&receiving) {
        assert_eq!(tx.index(), rx.index());
        assert_ne!(tx, rx);
        assert!(group.receiver(*tx).is_none() && group.sender(*rx).is_none());
        assert!(!group.remove(*tx) && group.remove_sender(*rx).is_none());
        assert!(group.receiver(*rx).is_some() && group.sender(*tx).is_some());
    }
}

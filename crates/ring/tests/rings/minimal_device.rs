//! A device with short send queues and late completions. Senders return `Full` as long as the send queue has
//! no room. The device also counts how often its queue pairs are queried for their state.
//!
//! On soft hosts a request keeps its place in the send queue until its completion is polled, as the
//! specification says. rxe frees the place as soon as it has executed the request. Tests of a full queue
//! therefore run on soft hosts only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headworks_ring::oracle::{Checked, Ring, op};
use headworks_ring::{
    AfterStep, BrokenRing, Framing, Group, GroupConfig, Mode, Receiver, RingConfig, RingError,
    SendError, Sender, SetupError,
};
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Device, PollError};
use proptest::prelude::*;

use crate::group::join_told;
use crate::oracle::rings;
use crate::pair::{Hosts, config, connect, fill, flush, holds, message_count, poll_until, stepped};

/// Controls and observes a device.
#[derive(Default)]
pub(crate) struct DeviceProbe {
    /// Holds completions back while set.
    late: AtomicBool,
    /// Makes every poll fail while set.
    overrun: AtomicBool,
    /// How often the state of a queue pair was queried.
    looks: AtomicUsize,
}

impl Interposer for DeviceProbe {
    fn on_state_queried(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }
    fn admits_poll(&self) -> bool {
        !self.late.load(Ordering::Relaxed)
    }
    fn poll_error(&self) -> Option<PollError> {
        self.overrun
            .load(Ordering::Relaxed)
            .then_some(PollError::Overrun)
    }
}

/// Wraps `inner` so that its send queues hold `depth` requests.
pub(crate) fn over(inner: &Arc<dyn Device>, depth: u32) -> (Arc<dyn Device>, Arc<DeviceProbe>) {
    let mut info = inner.info().clone();
    info.limits.max_qp_wr = info.limits.max_qp_wr.min(depth);
    let watching = Arc::new(DeviceProbe::default());
    let device = InterposedDevice::with_info(inner.clone(), info, watching.clone());
    (Arc::new(device), watching)
}

/// Connects a ring whose sender's queue holds `depth` requests. Returns the sender device's probe too.
fn narrow(hosts: &Hosts, depth: u32, config: &RingConfig) -> (Sender, Receiver, Arc<DeviceProbe>) {
    let (left, watching) = over(&hosts.left, depth);
    let (tx, rx) = connect(&left, config, &hosts.right, config).unwrap();
    (tx.unwrap(), rx.unwrap(), watching)
}

/// Creates a group with `count` senders. Returns them with the probe of the group's device.
fn narrow_group(
    hosts: &Hosts,
    config: &RingConfig,
    count: usize,
) -> (Group, Vec<Sender>, Arc<DeviceProbe>) {
    let (right, watching) = over(&hosts.right, u32::MAX);
    let mut group = Group::receiving(&right, &GroupConfig::new(config.clone(), count)).unwrap();
    let mut senders = Vec::new();
    for _ in 0..count {
        senders.push(
            join_told(&hosts.left, config, &right, &mut group)
                .unwrap()
                .0,
        );
    }
    (group, senders, watching)
}

const DEPTH: u32 = 16;

/// In every mode, sends and publishes until the send queue has no room although the ring has. Published
/// messages arrive, and the rest is sent once completions come.
#[test]
fn no_room_in_the_send_queue_is_full_until_completions_come() {
    let hosts = Hosts::soft();
    for mode in [Mode::Poll, Mode::Latency, Mode::Notify] {
        let (mut tx, mut rx, watching) =
            narrow(&hosts, DEPTH, &config(128, Framing::Fixed(40), mode));
        let (mut sent, mut read) = (0, 0);
        let mut message = [0; 40];
        for _ in 0..50 {
            watching.late.store(true, Ordering::Relaxed);
            let before = sent;
            loop {
                fill(sent, &mut message);
                match tx.try_send(&message) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
                if !tx.flush().unwrap() {
                    break;
                }
            }
            assert!(sent > before, "{mode:?}: no room for a single one");
            assert!(sent - before <= DEPTH.into(), "{mode:?}: more than fit");
            // A step without completions changes nothing and does no harm.
            assert!(tx.step().is_ok());
            let published = tx.published();
            // Exactly the published messages arrive.
            poll_until(|| {
                while let Some(got) = rx.try_recv().unwrap() {
                    assert!(holds(read, &got), "{mode:?}: message {read}");
                    read += 1;
                }
                (read >= published).then_some(())
            });
            assert_eq!(read, published, "{mode:?}: what was published");
            watching.late.store(false, Ordering::Relaxed);
            // Once completions come, everything is published.
            stepped(&mut tx, |tx| (tx.published() == sent).then_some(()));
        }
        poll_until(|| {
            while let Some(got) = rx.try_recv().unwrap() {
                assert!(holds(read, &got));
                read += 1;
            }
            (read == sent).then_some(())
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_message_arrives_though_completions_are_late(
        rings in proptest::collection::vec(
            (rings(), proptest::collection::vec((op(), any::<bool>()), 0..300)), 1..4),
    ) {
        let hosts = Hosts::soft();
        for (config, ops) in rings {
            let ring = config.settle().unwrap();
            // The smallest send queue that such a ring can be created with.
            let depth = ring.slots.div_ceil(ring.transmit_every) as u32 + 8;
            let (tx, rx, watching) = narrow(&hosts, depth, &config);
            let mut checked = Checked::<Ring>::new(tx, rx, config.framing);
            for (op, wait) in ops {
                watching.late.store(wait, Ordering::Relaxed);
                checked.run(op);
            }
            watching.late.store(false, Ordering::Relaxed);
            checked.finish();
        }
    }
}

/// An idle receive on a group queries no queue pair. A step queries a few, different ones each time.
#[test]
fn a_group_looks_at_few_queue_pairs_at_a_time() {
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Notify] {
        let config = config(8, Framing::Fixed(40), mode);
        let (mut group, mut senders, watching) = narrow_group(&hosts, &config, 80);
        watching.looks.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            assert!(group.try_recv().unwrap().is_none());
        }
        assert_eq!(watching.looks.load(Ordering::Relaxed), 0, "{mode:?}");
        for _ in 0..10 {
            assert!(!group.step(AfterStep::Wait).unwrap());
        }
        assert_eq!(watching.looks.load(Ordering::Relaxed), 80, "{mode:?}");
        // While messages keep arriving, some queries are made, at most one per round.
        watching.looks.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            senders[7].try_send(&[1; 40]).unwrap();
            senders[7].flush().unwrap();
            assert!(group.try_recv().unwrap().is_some());
        }
        let looks = watching.looks.load(Ordering::Relaxed);
        assert!((1..=100).contains(&looks), "{mode:?}: {looks}");
    }
}

/// Heads for which the send queue has no room are pushed once completions have made some, and the senders
/// waiting for them go on.
#[test]
fn heads_of_a_group_that_had_no_room_are_pushed_later() {
    let hosts = Hosts::soft();
    for mode in [Mode::Poll, Mode::Notify] {
        let config = RingConfig {
            push_every: Some(1),
            ..config(200, Framing::Fixed(40), mode)
        };
        let (mut group, mut senders, watching) = narrow_group(&hosts, &config, 30);
        for round in 0..5 {
            // In Notify mode late completions would delay tails too.
            let polls = senders[0].ring().mode == Mode::Poll;
            watching.late.store(polls, Ordering::Relaxed);
            for tx in &mut senders {
                while tx.try_send(&[round; 40]).is_ok() {}
            }
            let mut read = 0;
            println!("{mode:?}: round {round}");
            poll_until(|| {
                while group.try_recv().unwrap().is_some() {
                    read += 1;
                }
                (read >= 30 * 199).then_some(())
            });
            watching.late.store(false, Ordering::Relaxed);
            // Too few steps to query all queue pairs: the completions alone must trigger the pushes.
            poll_until(|| {
                group.step(AfterStep::Poll).unwrap();
                for tx in &mut senders {
                    tx.step().unwrap();
                }
                senders.iter().all(Sender::is_drained).then_some(())
            });
        }
    }
}

/// A group whose completion queue can no longer be polled reports an error for each ring and takes no more.
#[test]
fn a_group_whose_queue_failed_takes_no_more_rings() {
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Notify] {
        let config = config(8, Framing::Fixed(40), mode);
        let (right, watching) = over(&hosts.right, u32::MAX);
        let mut group = Group::receiving(&right, &GroupConfig::new(config.clone(), 4)).unwrap();
        let mut join = || join_told(&hosts.left, &config, &right, &mut group).unwrap();
        let joined = [join(), join()];
        let seat = group.seat().unwrap();
        watching.overrun.store(true, Ordering::Relaxed);
        let _ = group.step(AfterStep::Wait);
        watching.overrun.store(false, Ordering::Relaxed);
        for (_, ring, _) in joined {
            let BrokenRing { ring: told, error } = group.try_recv().map(drop).unwrap_err();
            assert_eq!((told, error), (ring, PollError::Overrun.into()));
        }
        for error in [
            group.seat().map(drop).unwrap_err(),
            group.admit(seat, &[]).unwrap_err(),
        ] {
            let is_told = matches!(error, SetupError::Ring(RingError::Poll(PollError::Overrun)));
            assert!(is_told, "{error}");
        }
    }
}

/// A step polls the completions that make room for a head before it pushes the head. A receiver that steps
/// once and then sleeps therefore withholds no space.
#[test]
fn one_step_makes_room_for_a_head_and_pushes_it() {
    let hosts = Hosts::soft();
    let config = RingConfig {
        push_every: Some(63),
        ..config(64, Framing::Fixed(40), Mode::Poll)
    };
    let mut group = Group::receiving(&hosts.right, &GroupConfig::new(config.clone(), 1)).unwrap();
    let (mut tx, ring, _) = join_told(&hosts.left, &config, &hosts.right, &mut group).unwrap();
    for _ in 0..40 {
        tx.try_send(&[7; 40]).unwrap();
    }
    tx.flush().unwrap();
    // Pushes as many heads as the send queue holds, without polling a completion.
    let (mut read, mut pushed) = (0, true);
    while pushed {
        assert!(read < 40, "no send queue is so long");
        let mut receiver = group.receiver(ring).unwrap();
        let held = receiver.try_take().unwrap().expect("published");
        receiver.release(held).unwrap();
        pushed = receiver.push_head().unwrap();
        read += 1;
    }
    tx.step().unwrap();
    assert_eq!(tx.consumed(), read - 1, "the last head was not pushed");
    group.step(AfterStep::Wait).unwrap();
    tx.step().unwrap();
    assert_eq!(tx.consumed(), read);
}

/// A sender that skipped the end of the array and then found no room for its message learns that the receiver has passed the skip.
/// It may wait until everything is consumed.
#[test]
fn a_group_pushes_the_head_behind_a_skip_without_a_message() {
    let hosts = Hosts::soft();
    let bytes_of = |slots: usize| vec![1; slots * 64 - 8];
    let config = RingConfig {
        push_every: Some(8),
        ..config(16, Framing::Variable(5 * 64 - 8), Mode::Notify)
    };
    let (left, watching) = over(&hosts.left, u32::MAX);
    let mut group = Group::receiving(&hosts.right, &GroupConfig::new(config.clone(), 1)).unwrap();
    let (mut tx, _, _) = join_told(&left, &config, &hosts.right, &mut group).unwrap();
    let mut pass = |tx: &mut Sender, slots| {
        tx.try_send(&bytes_of(slots)).unwrap();
        flush(tx);
        assert!(group.try_recv().unwrap().is_some());
        group.step(AfterStep::Wait).unwrap();
    };
    pass(&mut tx, 5);
    tx.step().unwrap();
    assert_eq!(tx.consumed(), 5);
    // From here on the sender sees no head: there is room for the skip, and none for the message behind it.
    watching.late.store(true, Ordering::Relaxed);
    pass(&mut tx, 5);
    pass(&mut tx, 4);
    assert!(matches!(tx.try_send(&bytes_of(5)), Err(SendError::Full)));
    assert_eq!((tx.published(), tx.consumed()), (16, 5));
    watching.late.store(false, Ordering::Relaxed);
    assert!(group.try_recv().unwrap().is_none());
    group.step(AfterStep::Wait).unwrap();
    tx.step().unwrap();
    assert!(tx.is_drained(), "consumed: {}", tx.consumed());
}

/// A head that had no room in the send queue is pushed by a receiver that only receives. Without it the sender would wait for room,
/// and the receiver for the message that has none.
#[test]
fn receiving_alone_pushes_a_head_that_had_no_room() {
    let hosts = Hosts::soft();
    for mode in [Mode::Poll, Mode::Latency] {
        let config = RingConfig {
            push_every: Some(1),
            ..config(100, Framing::Fixed(40), mode)
        };
        let (right, watching) = over(&hosts.right, u32::MAX);
        let (tx, rx) = connect(&hosts.left, &config, &right, &config).unwrap();
        let (mut tx, mut rx) = (tx.unwrap(), rx.unwrap());
        println!("{mode:?}");
        let mut sent = 0;
        while tx.try_send(&[7; 40]).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 99);
        watching.late.store(true, Ordering::Relaxed);
        for _ in 0..sent {
            rx.try_recv().unwrap().expect("published");
        }
        tx.step().unwrap();
        assert!(!tx.is_drained(), "{mode:?}");
        watching.late.store(false, Ordering::Relaxed);
        poll_until(|| {
            assert!(rx.try_recv().unwrap().is_none());
            tx.step().unwrap();
            tx.is_drained().then_some(())
        });
    }
}

/// Pushes a head for every message, for more messages than one poll takes completions of. No message is lost,
/// the completion queue holds all completions, and no space is withheld.
#[test]
fn a_head_for_each_of_thousands_of_messages() {
    let count = message_count(3000, 25);
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Notify] {
        let config = RingConfig {
            push_every: Some(1),
            ..config(4096, Framing::Fixed(40), mode)
        };
        let (mut group, mut senders, _) = narrow_group(&hosts, &config, 2);
        let mut message = [0; 40];
        for lap in 0..3 {
            for number in 0..count {
                for tx in &mut senders {
                    fill(lap * count + number, &mut message);
                    tx.try_send(&message).unwrap();
                    flush(tx);
                }
            }
            let mut read = [lap * count; 2];
            poll_until(|| {
                let mut waits = false;
                while !waits {
                    while let Some((ring, got)) = group.try_recv().unwrap() {
                        assert!(holds(read[ring.index()], &got), "{mode:?}");
                        read[ring.index()] += 1;
                    }
                    group.arm();
                    waits = !group.step(AfterStep::Wait).unwrap();
                }
                (read == [(lap + 1) * count; 2]).then_some(())
            });
            // The senders know that all space is free.
            for tx in &mut senders {
                stepped(tx, |tx| tx.is_drained().then_some(()));
            }
        }
    }
}

/// Tails are queued after more completions than one poll takes. A thread that has armed and then stepped
/// must not sleep, because no further event would wake it.
#[test]
fn a_tail_behind_many_completions_keeps_a_step_from_sleep() {
    let hosts = Hosts::soft();
    let ring = RingConfig {
        push_every: Some(1),
        ..config(4096, Framing::Fixed(40), Mode::Notify)
    };
    let mut config = GroupConfig::new(ring.clone(), 5);
    config.quantum = u32::MAX;
    let mut group = Group::receiving(&hosts.right, &config).unwrap();
    let mut join = || join_told(&hosts.left, &ring, &hosts.right, &mut group).unwrap();
    let mut senders: Vec<_> = (0..5).map(|_| join().0).collect();
    let mut sent = 0;
    for tx in &mut senders {
        while tx.try_send(&[7; 40]).is_ok() {
            sent += 1;
        }
    }
    // Every message's head is pushed, and none of their completions is polled.
    for _ in 0..sent {
        assert!(group.try_recv().unwrap().is_some());
    }
    // This call polls once.
    assert!(group.try_recv().unwrap().is_none());
    for tx in &mut senders {
        tx.step().unwrap();
        tx.try_send(&[8; 40]).unwrap();
        tx.flush().unwrap();
    }
    group.arm();
    assert!(
        group.step(AfterStep::Wait).unwrap(),
        "it would sleep, and messages are there"
    );
    let mut read = 0;
    for _ in 0..10 {
        while let Some((_, message)) = group.try_recv().unwrap() {
            assert_eq!(*message, [8; 40]);
            read += 1;
        }
    }
    assert_eq!(read, 5);
}

/// The completion that frees a slot may be the last event for a sender, after the receiver's head. A step
/// that polls it must return `true`, or a thread that armed before would sleep although there is room.
#[test]
fn a_completion_that_makes_room_keeps_a_step_from_sleep() {
    let hosts = Hosts::soft();
    let (mut tx, mut rx, watching) =
        narrow(&hosts, DEPTH, &config(2, Framing::Fixed(40), Mode::Poll));
    watching.late.store(true, Ordering::Relaxed);
    tx.try_send(&[7; 40]).unwrap();
    flush(&mut tx);
    poll_until(|| rx.try_recv().unwrap().map(drop));
    rx.push_head().unwrap();
    stepped(&mut tx, |tx| tx.is_drained().then_some(()));
    assert!(!tx.step().unwrap() && tx.is_full(), "nothing is new");
    watching.late.store(false, Ordering::Relaxed);
    assert!(tx.step().unwrap(), "it would sleep, and there is room");
    assert!(!tx.is_full() && !tx.step().unwrap());
}

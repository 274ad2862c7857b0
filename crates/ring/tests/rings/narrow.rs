//! A device with a short send queue, whose completions come late: no room there is `Full`, for as
//! long as it lasts. It also counts how often its queue pairs are looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headworks_ring::oracle::{Checked, Ring, op};
use headworks_ring::{Framing, Group, GroupConfig, Mode, Receiver, RingConfig, SendError, Sender};
use headworks_verbs::Device;
use headworks_verbs::around::{Around, Watch};
use proptest::prelude::*;

use crate::group::join_told;
use crate::oracle::rings;
use crate::pair::{Hosts, config, connect, fill, holds};

/// What is done to a device, and seen of it.
#[derive(Default)]
struct Watching {
    /// While it is set no completion comes.
    late: AtomicBool,
    /// How often a queue pair was asked for its state.
    looks: AtomicUsize,
}

impl Watch for Watching {
    fn asked(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }
    fn lets_poll(&self) -> bool {
        !self.late.load(Ordering::Relaxed)
    }
}

/// As `inner`, with send queues of `depth` requests.
fn over(inner: &Arc<dyn Device>, depth: u32) -> (Arc<dyn Device>, Arc<Watching>) {
    let mut info = inner.info().clone();
    info.limits.max_qp_wr = info.limits.max_qp_wr.min(depth);
    let watching = Arc::new(Watching::default());
    let device = Around::saying(inner.clone(), info, watching.clone());
    (Arc::new(device), watching)
}

/// A ring whose sender's queue holds `depth` requests, and what makes its completions late.
fn narrow(hosts: &Hosts, depth: u32, config: &RingConfig) -> (Sender, Receiver, Arc<Watching>) {
    let (left, watching) = over(&hosts.left, depth);
    let (tx, rx) = connect(&left, config, &hosts.right, config).unwrap();
    (tx.unwrap(), rx.unwrap(), watching)
}

/// A group on such a device with `count` senders; what makes completions late, and counts looks.
fn narrow_group(
    hosts: &Hosts,
    config: &RingConfig,
    count: usize,
) -> (Group, Vec<Sender>, Arc<Watching>) {
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

/// In every mode: sends and publishes until there is no room in the send queue, although there is in
/// the ring; what was published arrives; when completions come the rest goes.
#[test]
fn no_room_in_the_send_queue_is_full_until_completions_come() {
    let hosts = Hosts::new();
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
            // A second look changes nothing, and breaks nothing.
            assert!(tx.step().is_ok());
            let published = tx.published();
            while let Some(got) = rx.try_recv().unwrap() {
                assert!(holds(read, &got), "{mode:?}: message {read}");
                read += 1;
            }
            assert_eq!(read, published, "{mode:?}: what was published");
            watching.late.store(false, Ordering::Relaxed);
            assert!(tx.step().unwrap() || read == sent);
            assert_eq!(tx.published(), sent, "{mode:?}: held back");
        }
        while let Some(got) = rx.try_recv().unwrap() {
            assert!(holds(read, &got));
            read += 1;
        }
        assert_eq!(read, sent);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_message_arrives_though_completions_are_late(
        rings in proptest::collection::vec(
            (rings(), proptest::collection::vec((op(), any::<bool>()), 0..300)), 1..4),
    ) {
        let hosts = Hosts::new();
        for (config, ops) in rings {
            let ring = config.settle().unwrap();
            // The fewest requests that a ring is made with.
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

/// An idle look at a group asks no queue pair; a step asks a few, others each time.
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
            assert!(!group.step(true).unwrap());
        }
        assert_eq!(watching.looks.load(Ordering::Relaxed), 80, "{mode:?}");
        // At most one a round, and some, where it is never empty.
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

/// Heads for which there is no room in the send queue go once completions have made some, and the
/// senders that wait for them go on.
#[test]
fn heads_of_a_group_that_had_no_room_are_pushed_later() {
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Notify] {
        let config = RingConfig {
            push_every: Some(1),
            ..config(200, Framing::Fixed(40), mode)
        };
        let (mut group, mut senders, watching) = narrow_group(&hosts, &config, 30);
        for round in 0..5 {
            // In Notify mode late completions are late tails too.
            watching.late.store(mode == Mode::Poll, Ordering::Relaxed);
            for tx in &mut senders {
                while tx.try_send(&[round; 40]).is_ok() {}
            }
            let mut read = 0;
            while group.try_recv().unwrap().is_some() {
                read += 1;
            }
            assert!(read >= 30 * 199, "{mode:?}: {read}");
            watching.late.store(false, Ordering::Relaxed);
            // Too few to look at all queue pairs: what completes must do.
            group.step(false).unwrap();
            for tx in &mut senders {
                tx.step().unwrap();
                assert!(tx.is_drained(), "{mode:?}: round {round}");
            }
        }
    }
}

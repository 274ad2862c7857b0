//! Random rings of one group, which are added, removed and killed in random order, checked against queues.

use std::collections::VecDeque;

use headworks_ring::{
    AfterStep, BrokenRing, Framing, Group, GroupConfig, Mode, RingConfig, RingId, Sender,
};
use proptest::prelude::*;

use crate::group::join;
use crate::oracle::rings;
use crate::pair::{Hosts, case_count, fill, holds, is_slow_device, poll_until, poll_until_within};

#[derive(Clone, Copy, Debug)]
enum Op {
    Add,
    Remove(u8),
    /// Drops the sender after publishing all it sent.
    Kill(u8),
    /// Sends a message on one ring; the second value is the fraction (of 255) of the longest length.
    Send(u8, u8),
    Flush(u8),
    StepSender(u8),
    Receive(u8),
    Step(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::Add),
        1 => any::<u8>().prop_map(Op::Remove),
        1 => any::<u8>().prop_map(Op::Kill),
        16 => any::<(u8, u8)>().prop_map(|(ring, len)| Op::Send(ring, len)),
        3 => any::<u8>().prop_map(Op::Flush),
        1 => any::<u8>().prop_map(Op::StepSender),
        6 => (1u8..20).prop_map(Op::Receive),
        2 => any::<bool>().prop_map(Op::Step),
    ]
}

/// A ring and the messages that must still come out of it.
struct Ring {
    id: RingId,
    /// Distinguishes this ring's messages from those of all others.
    serial: u64,
    tx: Option<Sender>,
    lengths: VecDeque<usize>,
    sent: u64,
    received: u64,
    broken: bool,
}

struct Checked<'h> {
    hosts: &'h Hosts,
    config: RingConfig,
    capacity: usize,
    group: Group,
    rings: Vec<Ring>,
    serials: u64,
}

impl<'h> Checked<'h> {
    fn new(hosts: &'h Hosts, config: &GroupConfig) -> Self {
        Self {
            hosts,
            config: config.ring.clone(),
            capacity: config.capacity,
            group: Group::receiving(&hosts.right, config).unwrap(),
            rings: Vec::new(),
            serials: 0,
        }
    }

    fn pick(&mut self, which: u8) -> Option<&mut Ring> {
        let len = self.rings.len();
        (len > 0).then(|| &mut self.rings[usize::from(which) % len])
    }

    fn add(&mut self) {
        if self.rings.len() == self.capacity {
            assert!(self.group.seat().is_err());
            return;
        }
        let (tx, id) = join(self.hosts, &self.config, &mut self.group);
        assert!(self.rings.iter().all(|ring| ring.id != id));
        self.serials += 1;
        self.rings.push(Ring {
            id,
            serial: self.serials,
            tx: Some(tx),
            lengths: VecDeque::new(),
            sent: 0,
            received: 0,
            broken: false,
        });
    }

    fn receive(&mut self) -> bool {
        match self.group.try_recv() {
            Ok(None) => false,
            Ok(Some((id, message))) => {
                let ring = self.rings.iter_mut().find(|ring| ring.id == id);
                let ring = ring.expect("a ring that is there");
                assert!(!ring.broken, "a message after the end");
                let len = ring.lengths.pop_front().expect("a message that was sent");
                assert_eq!(message.len(), len);
                assert!(holds(ring.serial << 32 | ring.received, &message));
                ring.received += 1;
                true
            }
            Err(BrokenRing { ring: id, error }) => {
                let ring = self.rings.iter_mut().find(|ring| ring.id == id);
                let ring = ring.expect("a ring that is there");
                assert!(ring.tx.is_none(), "{error}");
                assert!(error.is_peer_gone(), "{error}");
                assert!(ring.lengths.is_empty(), "what was published was lost");
                assert!(!std::mem::replace(&mut ring.broken, true), "reported twice");
                true
            }
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Add => self.add(),
            Op::Remove(which) if !self.rings.is_empty() => {
                let at = usize::from(which) % self.rings.len();
                let ring = self.rings.swap_remove(at);
                assert!(self.group.remove(ring.id));
            }
            Op::Kill(which) => {
                if let Some(ring) = self.pick(which)
                    && let Some(mut tx) = ring.tx.take()
                {
                    while !tx.flush().unwrap() {
                        tx.step().unwrap();
                    }
                    // On a slow device messages in flight would be lost with the sender.
                    if is_slow_device() {
                        self.see_the_end_of(tx);
                    }
                }
            }
            Op::Send(which, part) => {
                if let Some(ring) = self.pick(which)
                    && let Some(tx) = &mut ring.tx
                {
                    let len = match tx.ring().framing {
                        Framing::Fixed(len) => len,
                        Framing::Variable(longest) => longest * usize::from(part) / 255,
                    };
                    ring.send(len);
                }
            }
            Op::Flush(which) => {
                if let Some(tx) = self.pick(which).and_then(|ring| ring.tx.as_mut()) {
                    tx.flush().unwrap();
                }
            }
            Op::StepSender(which) => {
                if let Some(tx) = self.pick(which).and_then(|ring| ring.tx.as_mut()) {
                    tx.step().unwrap();
                }
            }
            Op::Receive(count) => drop((0..count).find(|_| !self.receive())),
            Op::Step(wait) => drop(
                self.group
                    .step(if wait {
                        AfterStep::Wait
                    } else {
                        AfterStep::Poll
                    })
                    .unwrap(),
            ),
            Op::Remove(_) => {}
        }
        assert_eq!(self.group.len(), self.rings.len());
        assert_eq!(self.group.has_room(), self.rings.len() < self.capacity);
    }

    /// Receives until all messages of this sender have been consumed.
    fn see_the_end_of(&mut self, mut tx: Sender) {
        poll_until(|| {
            while self.receive() {}
            self.group.step(AfterStep::Wait).unwrap();
            tx.step().unwrap();
            tx.is_drained().then_some(())
        });
    }

    /// Checks that every ring's longest message gets through, and all messages sent before.
    fn finish(&mut self) {
        for at in 0..self.rings.len() {
            let Some(longest) = self.rings[at].tx.as_ref().map(Sender::max_message) else {
                continue;
            };
            // The longest message fits eventually.
            poll_until_within(300, || {
                if self.rings[at].send(longest) {
                    return Some(());
                }
                while self.receive() {}
                if is_slow_device() {
                    self.group.step(AfterStep::Wait).unwrap();
                }
                None
            });
        }
        for ring in &mut self.rings {
            if let Some(tx) = &mut ring.tx {
                tx.flush().unwrap();
            }
        }
        poll_until_within(10_000, || {
            if self.rings.iter().all(|ring| ring.lengths.is_empty()) {
                return Some(());
            }
            if !self.receive() {
                self.group.step(AfterStep::Wait).unwrap();
                for tx in self.rings.iter_mut().filter_map(|ring| ring.tx.as_mut()) {
                    tx.step().unwrap();
                }
            }
            None
        });
    }
}

impl Ring {
    /// Sends a message of `len` bytes. Returns whether there was room.
    fn send(&mut self, len: usize) -> bool {
        let mut message = vec![0; len];
        fill(self.serial << 32 | self.sent, &mut message);
        let tx = self.tx.as_mut().expect("alive");
        match tx.try_send(&message) {
            Ok(()) => {
                self.sent += 1;
                self.lengths.push_back(len);
                true
            }
            Err(headworks_ring::SendError::Full) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(case_count(150)))]

    #[test]
    fn every_message_of_every_ring_arrives_once_in_order(
        ring in rings(),
        capacity in 1usize..20,
        quantum in 1u32..9,
        ops in proptest::collection::vec(op(), 0..400),
    ) {
        let hosts = Hosts::new();
        let mode = match ring.mode {
            Mode::Notify => Mode::Notify,
            _ => Mode::Poll,
        };
        let ring = RingConfig { mode, ..ring };
        prop_assume!(ring.settle().is_ok());
        let mut checked = Checked::new(&hosts, &GroupConfig { ring, capacity, quantum });
        for op in ops {
            checked.run(op);
        }
        checked.finish();
    }
}

//! Random rings, messages and schedules against a queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use headworks_ring::{Framing, Mode, Receiver, RingConfig, SendError, Sender};
use proptest::prelude::*;

use crate::pair::{Hosts, config, fill, holds, longest};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Send a copy; the fraction (of 256) of the longest length.
    Send(u8),
    /// Send in place.
    Reserve(u8),
    /// Reserve and let go.
    Abandon(u8),
    Flush,
    StepSender,
    StepReceiver,
    PushHead,
    /// Receive up to this many.
    Receive(u8),
    /// Take one without releasing it.
    Take,
    /// Release one of those taken.
    Release(u8),
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => any::<u8>().prop_map(Op::Send),
        3 => any::<u8>().prop_map(Op::Reserve),
        1 => any::<u8>().prop_map(Op::Abandon),
        1 => Just(Op::Flush),
        1 => Just(Op::StepSender),
        1 => Just(Op::StepReceiver),
        1 => Just(Op::PushHead),
        6 => (1u8..20).prop_map(Op::Receive),
        3 => Just(Op::Take),
        3 => any::<u8>().prop_map(Op::Release),
    ]
}

/// Any legal ring of slots of 64 bytes.
pub(crate) fn rings() -> impl Strategy<Value = RingConfig> {
    let modes = prop_oneof![Just(Mode::Poll), Just(Mode::Latency), Just(Mode::Notify)];
    (2u32..40, modes, any::<[u32; 4]>(), any::<[bool; 3]>()).prop_map(
        |(slots, mode, [alpha, beta, gamma, len], [fixed, elastic, set])| {
            let highest = longest(slots, mode);
            let framing = if fixed {
                Framing::Fixed(1 + len as usize % 150)
            } else {
                Framing::Variable(len as usize % (highest + 1))
            };
            let alpha = 1 + alpha % (slots - 1);
            RingConfig {
                publish_every: set.then_some(alpha),
                transmit_every: (set && mode != Mode::Latency).then_some(1 + beta % alpha),
                push_every: set.then_some(1 + gamma % (slots - 1)),
                elastic: Some(elastic),
                ..config(slots, framing, mode)
            }
        },
    )
}

/// A ring and what must come out of it.
pub(crate) struct Checked {
    tx: Sender,
    rx: Receiver,
    lengths: VecDeque<usize>,
    sent: u64,
    received: u64,
    taken: Vec<(headworks_ring::receiver::Held, u64)>,
    /// Set where the device takes its time.
    slow_since: Option<Instant>,
}

/// Nothing takes so long but what never ends.
const LIMIT: Duration = Duration::from_secs(60);

impl Checked {
    pub(crate) fn new(tx: Sender, rx: Receiver) -> Self {
        Self {
            tx,
            rx,
            lengths: VecDeque::new(),
            sent: 0,
            received: 0,
            taken: Vec::new(),
            slow_since: None,
        }
    }

    /// On a device that takes its time.
    pub(crate) fn slow(tx: Sender, rx: Receiver) -> Self {
        Self {
            slow_since: Some(Instant::now()),
            ..Self::new(tx, rx)
        }
    }

    fn len(&self, part: u8) -> usize {
        match self.tx.ring().framing {
            Framing::Fixed(len) => len,
            Framing::Variable(longest) => longest * usize::from(part) / 255,
        }
    }

    /// Says whether there was room.
    fn send(&mut self, len: usize, in_place: bool) -> bool {
        let result = if in_place {
            self.tx.try_reserve(len).and_then(|mut place| {
                fill(self.sent, &mut place);
                place.commit()
            })
        } else {
            let mut message = vec![0; len];
            fill(self.sent, &mut message);
            self.tx.try_send(&message)
        };
        match result {
            Ok(()) => {
                self.sent += 1;
                self.lengths.push_back(len);
                true
            }
            Err(SendError::Full) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn expect(&mut self, number: u64, bytes: &[u8]) {
        let len = self.lengths.pop_front().expect("a message nobody sent");
        assert_eq!(bytes.len(), len, "length of message {number}");
        assert!(holds(number, bytes), "contents of message {number}");
    }

    fn receive(&mut self) -> bool {
        let Some(message) = self.rx.try_recv().unwrap() else {
            return false;
        };
        let copy = message.to_vec();
        drop(message);
        self.expect(self.received, &copy);
        self.received += 1;
        true
    }

    fn take(&mut self) {
        if let Some(held) = self.rx.try_take().unwrap() {
            let copy = self.rx.bytes(&held).to_vec();
            assert_eq!((held.len(), held.is_empty()), (copy.len(), copy.is_empty()));
            self.expect(self.received, &copy);
            self.taken.push((held, self.received));
            self.received += 1;
        }
    }

    /// What is held must not have been overwritten.
    fn release(&mut self, which: usize) {
        let (held, number) = self.taken.swap_remove(which);
        assert!(
            holds(number, self.rx.bytes(&held)),
            "message {number} was overwritten while held"
        );
        self.rx.release(held).unwrap();
    }

    pub(crate) fn run(&mut self, op: Op) {
        match op {
            Op::Send(part) => drop(self.send(self.len(part), false)),
            Op::Reserve(part) => drop(self.send(self.len(part), true)),
            Op::Abandon(part) => {
                let len = self.len(part);
                if let Ok(mut place) = self.tx.try_reserve(len) {
                    place.fill(0xee);
                }
            }
            Op::Flush => drop(self.tx.flush().unwrap()),
            Op::StepSender => drop(self.tx.step().unwrap()),
            Op::StepReceiver => drop(self.rx.step().unwrap()),
            Op::PushHead => drop(self.rx.push_head().unwrap()),
            Op::Receive(count) => drop((0..count).find(|_| !self.receive())),
            Op::Take => self.take(),
            Op::Release(which) if !self.taken.is_empty() => {
                self.release(usize::from(which) % self.taken.len());
            }
            Op::Release(_) => {}
        }
        assert!(self.tx.consumed() <= self.rx.consumed());
        assert!(self.rx.consumed() <= self.tx.published());
        assert!(self.tx.published() <= self.tx.sent());
    }

    /// The longest message must get through from any state, served by `try_*` alone.
    pub(crate) fn finish(&mut self) {
        while !self.taken.is_empty() {
            self.release(self.taken.len() - 1);
        }
        let len = self.tx.max_message();
        for _ in 0..3 {
            let mut tries = 0;
            while !self.send(len, false) {
                tries += 1;
                self.look_again(tries, 300, "the longest message never fits");
                while self.receive() {}
            }
        }
        self.tx.flush().unwrap();
        let mut tries = 0;
        while self.received < self.sent {
            tries += 1;
            self.look_again(tries, 1000, "a message never comes");
            self.receive();
            self.tx.step().unwrap();
        }
        assert!(!self.receive(), "a message nobody sent");
        assert_eq!(self.rx.consumed(), self.tx.published());
    }

    /// Once more, where that is not too often. A slow device needs time, and both ends' steps.
    fn look_again(&mut self, tries: u32, most: u32, what: &str) {
        match self.slow_since {
            None => assert!(tries < most, "stuck: {what}"),
            Some(since) => {
                assert!(since.elapsed() < LIMIT, "stuck: {what}");
                self.rx.step().unwrap();
                std::thread::yield_now();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn every_message_arrives_once_in_order(
        rings in proptest::collection::vec((rings(), proptest::collection::vec(op(), 0..400)), 1..5),
    ) {
        let hosts = Hosts::new();
        for (config, ops) in rings {
            let (tx, rx) = hosts.ring(&config);
            let mut checked = Checked::new(tx, rx);
            for op in ops {
                checked.run(op);
            }
            checked.finish();
        }
    }
}

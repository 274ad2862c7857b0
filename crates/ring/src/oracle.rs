//! Compares any channel of messages with a queue: runs random operations and checks their results.
//!
//! Feature `oracle`, for tests of the ring and of the designs that it is compared with. Whatever the
//! operations, every message arrives once, in order and intact; no space is used before it is free; and
//! from any state the longest message gets through, with each end driven by its own calls alone.

use std::collections::VecDeque;
use std::convert::Infallible;

use headworks_verbs::Device;
use proptest::prelude::*;

use crate::config::Framing;
use crate::error::{RingError, SendError};
use crate::message_channel::{EndSetup, MessageReceiver, MessageSender, meet};
use crate::receiver::HeldMessage;
use crate::{Receiver, Sender, SetupError};

/// An operation of either end.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Send a copy. Its length is this fraction (of 255) of the longest length.
    Send(u8),
    /// Send in place, with a length as for [`Op::Send`].
    Reserve(u8),
    /// Reserve a place of such a length, and drop the reservation.
    Abandon(u8),
    /// Send everything that is held back.
    Flush,
    /// Call the sender's `step`.
    StepSender,
    /// Call the receiver's `step`.
    StepReceiver,
    /// Tell the sender of all free space.
    PushHead,
    /// Receive up to this many messages.
    Receive(u8),
    /// Take a message without releasing it.
    Take,
    /// Release one of the messages taken.
    Release(u8),
}

/// Generates any operation; operations that move messages are more frequent.
pub fn op() -> impl Strategy<Value = Op> {
    // Many messages are short, because a channel may limit their number as well as their bytes.
    let part = || prop_oneof![2 => any::<u8>(), 1 => 0u8..3];
    prop_oneof![
        8 => part().prop_map(Op::Send),
        3 => part().prop_map(Op::Reserve),
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

/// Both ends after they were finished with each other's greeting.
pub type Ends<T, R> = (
    Result<<T as EndSetup>::End, SetupError>,
    Result<<R as EndSetup>::End, SetupError>,
);

/// Connects the sending end `tx`, made on `from`, with the receiving end `rx`, made on `to`.
///
/// # Panics
///
/// If the queue pairs cannot be brought up.
pub fn connect<T: EndSetup, R: EndSetup>(
    from: &dyn Device,
    mut tx: T,
    to: &dyn Device,
    mut rx: R,
) -> Ends<T, R> {
    let (from_tx, from_rx) = (tx.greeting(), rx.greeting());
    meet((from.info(), &mut tx), (to.info(), &mut rx), [1, 2]).unwrap();
    (tx.finish(&from_rx), rx.finish(&from_tx))
}

/// Fills `bytes` with the contents of message `number`.
pub fn fill(number: u64, bytes: &mut [u8]) {
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = pattern(number, at as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Whether `bytes` are the contents of message `number`.
pub fn holds(number: u64, bytes: &[u8]) -> bool {
    bytes.chunks(8).enumerate().all(|(at, chunk)| {
        let word = pattern(number, at as u64).to_le_bytes();
        chunk == &word[..chunk.len()]
    })
}

fn pattern(number: u64, at: u64) -> u64 {
    (number ^ at << 40)
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Operations that some channels have beyond the traits.
pub trait Channel {
    /// The sending end.
    type Sender: MessageSender;
    /// The receiving end.
    type Receiver: MessageReceiver;
    /// A message that was taken and not released.
    type Held;

    /// Reserves the place of a message of `len` bytes, overwrites it and drops the reservation.
    fn abandon(_: &mut Self::Sender, _len: usize) {}

    /// Takes a message without releasing it, if the design can and one is there.
    fn take(_: &mut Self::Receiver) -> Result<Option<Self::Held>, RingError> {
        Ok(None)
    }

    /// Returns the bytes of a message that was taken.
    fn bytes<'r>(_: &'r Self::Receiver, held: &'r Self::Held) -> &'r [u8];

    /// Releases a message that was taken.
    fn release(_: &mut Self::Receiver, held: Self::Held) -> Result<(), RingError>;
}

/// The ring itself.
#[derive(Debug)]
pub enum Ring {}

impl Channel for Ring {
    type Sender = Sender;
    type Receiver = Receiver;
    type Held = HeldMessage;

    fn abandon(tx: &mut Sender, len: usize) {
        if let Ok(mut place) = tx.try_reserve(len) {
            place.fill(0xee);
        }
    }

    fn take(rx: &mut Receiver) -> Result<Option<HeldMessage>, RingError> {
        rx.try_take()
    }

    fn bytes<'r>(rx: &'r Receiver, held: &'r HeldMessage) -> &'r [u8] {
        let bytes = rx.bytes(held);
        assert_eq!(
            (held.len(), held.is_empty()),
            (bytes.len(), bytes.is_empty())
        );
        bytes
    }

    fn release(rx: &mut Receiver, held: HeldMessage) -> Result<(), RingError> {
        rx.release(held)
    }
}

/// A channel that has nothing beyond the traits.
#[derive(Debug)]
pub struct Plain<S, R>(std::marker::PhantomData<(S, R)>);

impl<S: MessageSender, R: MessageReceiver> Channel for Plain<S, R> {
    type Sender = S;
    type Receiver = R;
    type Held = Infallible;

    fn bytes<'r>(_: &'r R, held: &'r Infallible) -> &'r [u8] {
        match *held {}
    }

    fn release(_: &mut R, held: Infallible) -> Result<(), RingError> {
        match held {}
    }
}

/// A channel, with the messages that it must deliver.
pub struct Checked<C: Channel> {
    tx: C::Sender,
    rx: C::Receiver,
    framing: Framing,
    lengths: VecDeque<usize>,
    sent: u64,
    received: u64,
    taken: Vec<(C::Held, u64)>,
    /// For a slow device: returns whether to go on waiting.
    patience: Option<Box<dyn FnMut() -> bool>>,
}

impl<C: Channel> Checked<C> {
    /// Checks two connected ends whose messages have this framing.
    pub fn new(tx: C::Sender, rx: C::Receiver, framing: Framing) -> Self {
        Self {
            tx,
            rx,
            framing,
            lengths: VecDeque::new(),
            sent: 0,
            received: 0,
            taken: Vec::new(),
            patience: None,
        }
    }

    /// As [`Checked::new`], on a slow device. Between two tries, `go_on` returns whether to try once
    /// more.
    pub fn slow(
        tx: C::Sender,
        rx: C::Receiver,
        framing: Framing,
        go_on: impl FnMut() -> bool + 'static,
    ) -> Self {
        Self {
            patience: Some(Box::new(go_on)),
            ..Self::new(tx, rx, framing)
        }
    }

    /// The two ends.
    pub fn ends(&mut self) -> (&mut C::Sender, &mut C::Receiver) {
        (&mut self.tx, &mut self.rx)
    }

    /// Number of messages received and found right.
    pub fn received(&self) -> u64 {
        self.received
    }

    fn len(&self, part: u8) -> usize {
        match self.framing {
            Framing::Fixed(len) => len,
            Framing::Variable(longest) => longest * usize::from(part) / 255,
        }
    }

    /// Sends the next message. Returns whether there was room.
    fn send(&mut self, len: usize, in_place: bool) -> bool {
        let number = self.sent;
        let result = if in_place {
            self.tx.try_send_with(len, |place| fill(number, place))
        } else {
            let mut message = vec![0; len];
            fill(number, &mut message);
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
        let Some(copy) = self.rx.try_recv_with(<[u8]>::to_vec).unwrap() else {
            return false;
        };
        self.expect(self.received, &copy);
        self.received += 1;
        true
    }

    fn take(&mut self) {
        if let Some(held) = C::take(&mut self.rx).unwrap() {
            let copy = C::bytes(&self.rx, &held).to_vec();
            self.expect(self.received, &copy);
            self.taken.push((held, self.received));
            self.received += 1;
        }
    }

    /// Releases a message that was taken, and checks that it was not overwritten.
    fn release(&mut self, which: usize) {
        let (held, number) = self.taken.swap_remove(which);
        assert!(
            holds(number, C::bytes(&self.rx, &held)),
            "message {number} was overwritten while held"
        );
        C::release(&mut self.rx, held).unwrap();
    }

    /// Runs one operation and checks its result.
    ///
    /// # Panics
    ///
    /// If the result is wrong.
    pub fn run(&mut self, op: Op) {
        match op {
            Op::Send(part) => drop(self.send(self.len(part), false)),
            Op::Reserve(part) => drop(self.send(self.len(part), true)),
            Op::Abandon(part) => {
                let len = self.len(part);
                C::abandon(&mut self.tx, len);
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

    /// Checks that the longest message gets through from any state by `try_*` alone, and that nothing is
    /// left then.
    ///
    /// # Panics
    ///
    /// If the message does not get through, or something is left.
    pub fn finish(&mut self) {
        while !self.taken.is_empty() {
            self.release(self.taken.len() - 1);
        }
        let len = match self.framing {
            Framing::Fixed(len) => len,
            Framing::Variable(_) => self.tx.max_message(),
        };
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

    /// Panics after too many tries. On a slow device it asks `patience` instead, and steps the receiver,
    /// because such a device needs time and steps.
    fn look_again(&mut self, tries: u32, most: u32, what: &str) {
        match &mut self.patience {
            None => assert!(tries < most, "stuck: {what}"),
            Some(go_on) => {
                assert!(go_on(), "stuck: {what}");
                self.rx.step().unwrap();
            }
        }
    }
}

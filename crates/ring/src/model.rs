//! The two policies under loom: the real [`SendPolicy`] and [`ReceivePolicy`] in two threads, with
//! tail and head on two cursor lines, and slots as cells that loom checks. A WRITE is a direct store
//! here, and complete when the sender polls next.

#![allow(unsafe_code, reason = "cells whose accesses loom checks")]

use headworks_shm::Cursor;
use headworks_shm::primitive::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::config::{CheckedConfig, Framing, RingConfig};
use crate::receive_policy::ReceivePolicy;
use crate::send_policy::{PostAction, ReserveOutcome, SendPolicy};

struct Shared {
    tail: Cursor,
    head: Cursor,
    /// The receiver's array.
    slots: Vec<UnsafeCell<u64>>,
}

// SAFETY: a thread touches a cell only while the policies give it the slot; loom checks every access.
unsafe impl Sync for Shared {}
// SAFETY: as for `Sync`.
unsafe impl Send for Shared {}

struct Sending {
    shared: Arc<Shared>,
    policy: SendPolicy,
    /// The sender's own array, from which groups are transmitted.
    local: Vec<u64>,
}

impl Sending {
    fn transmit(&mut self) {
        for (index, count) in self.policy.untransmitted() {
            for at in index as usize..(index + count) as usize {
                let value = self.local[at];
                // SAFETY: the policy reserved the slot, so the receiver's head has passed it.
                self.shared.slots[at].with_mut(|cell| unsafe { *cell = value });
            }
        }
        self.policy.transmitted();
    }

    fn publish(&mut self) {
        self.transmit();
        self.shared.tail.publish(self.policy.tail());
        self.policy.publish();
    }

    fn refresh(&mut self) {
        self.policy.complete(self.policy.published()).unwrap();
        let head = self.shared.head.observe();
        self.policy.observe_head(head).unwrap();
    }

    /// Sends one value in one slot, in the same steps as [`crate::Sender::try_send`].
    fn send(&mut self, value: u64) {
        if let Some(index) = self.policy.quiet_index() {
            self.local[index as usize] = value;
            return self.policy.take_quietly();
        }
        let index = loop {
            match self.policy.reserve(1) {
                ReserveOutcome::At(index) => break index,
                ReserveOutcome::Skip { .. } => unreachable!("one slot always fits"),
                ReserveOutcome::Full => {
                    self.refresh();
                    self.flush();
                    thread::yield_now();
                }
            }
        };
        self.local[index as usize] = value;
        match self.policy.advance(1) {
            PostAction::Nothing => {}
            PostAction::Transmit => self.transmit(),
            PostAction::Publish if self.policy.attempt() => self.publish(),
            PostAction::Publish => self.transmit(),
        }
        self.policy.settle();
    }

    fn flush(&mut self) {
        if !self.policy.is_flushed() {
            self.publish();
        }
    }
}

fn receive(shared: &Shared, receive_policy: &mut ReceivePolicy, expected: u64) {
    while receive_policy.available() == 0 {
        receive_policy.observe_tail(shared.tail.observe()).unwrap();
        if receive_policy.available() == 0 {
            thread::yield_now();
        }
    }
    let index = receive_policy.index() as usize;
    // SAFETY: the slot is published and not released yet.
    let value = shared.slots[index].with(|cell| unsafe { *cell });
    assert_eq!(value, expected);
    if !receive_policy.pass_quietly() {
        receive_policy.pass(1);
        if receive_policy.must_push() {
            shared.head.publish(receive_policy.head());
            receive_policy.pushed();
        }
    }
}

fn ring(slots: u32, alpha: u32, beta: u32, gamma: u32) -> CheckedConfig {
    let config = RingConfig {
        slots,
        publish_every: Some(alpha),
        transmit_every: Some(beta),
        push_every: Some(gamma),
        framing: Framing::Fixed(8),
        ..RingConfig::default()
    };
    config.settle().unwrap()
}

fn check(slots: u32, alpha: u32, beta: u32, gamma: u32, messages: u64) {
    let ring = ring(slots, alpha, beta, gamma);
    loom::model(move || {
        let shared = Arc::new(Shared {
            tail: Cursor::new(0),
            head: Cursor::new(0),
            slots: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
        });
        let mut sending = Sending {
            shared: shared.clone(),
            policy: SendPolicy::new(&ring),
            local: vec![0; slots as usize],
        };
        let sender = thread::spawn(move || {
            for value in 1..=messages {
                sending.send(value);
            }
            sending.flush();
        });
        let mut receive_policy = ReceivePolicy::new(&ring);
        for value in 1..=messages {
            receive(&shared, &mut receive_policy, value);
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_two_slots() {
    check(2, 1, 1, 1, 3);
}

#[test]
fn loom_three_slots_unbatched() {
    check(3, 1, 1, 1, 4);
}

#[test]
fn loom_three_slots_batched() {
    check(3, 2, 1, 2, 4);
    check(3, 2, 2, 2, 4);
}

//! The worked example of RB² (section IV-B, Figure 4) with N = 8, α = 4, β = 2, γ = 2. One message is
//! written, two are read, two are written. After each call all seven pointers must be as the paper says.
//!
//! The paper's text gives no absolute positions. From an empty ring, its thresholds leave only one state in
//! which the example can begin, apart from whole groups of α: five slots written and one read.
//!
//! Where the paper's Algorithm 1 and its text differ, the example decides:
//!
//! - Line 2 prints `(tail + 1) % N = local_tail` for a full ring. The sender has no local_tail, and section
//!   III-B defines full by the head, so it must be `local_head`.
//! - Line 13 prints `tail − esc_tail > β`, after line 5 has advanced the tail. The text counts
//!   `(tail − esc_tail + 1)` before that and transmits when it reaches β. Step (a) → (b) transmits two
//!   slots with β = 2, so it must be `>= β`.
//! - The text on pointer advancement prints `tail − synced_tail ≥ β`; line 6 has α.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_ring::config::CheckedConfig;
use headworks_ring::receive_policy::ReceivePolicy;
use headworks_ring::send_policy::{PostAction, ReserveOutcome, SendPolicy};
use headworks_ring::{Receiver, RingConfig, SendError, Sender};
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Device, Payload, SendWr};

use crate::pair::{Hosts, connect, fill, holds};

/// The sender's four pointers and the receiver's three, in slots since the ring was empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointers {
    tail: u64,
    synced_tail: u64,
    esc_tail: u64,
    local_head: u64,
    head: u64,
    synced_head: u64,
    local_tail: u64,
}

/// Both ends of a ring.
trait Ends {
    /// Runs WRITEMSG. Returns whether there was room.
    fn write(&mut self) -> bool;
    /// Runs READMSG. Returns whether there was a message.
    fn read(&mut self) -> bool;
    fn pointers(&self) -> Pointers;
}

fn ring() -> RingConfig {
    RingConfig {
        publish_every: Some(4),
        transmit_every: Some(2),
        push_every: Some(2),
        ..RingConfig::fixed(8, 64)
    }
}

/// The policies alone. A WRITE is executed, and completes, when it is posted.
struct Decisions {
    ring: CheckedConfig,
    start: u64,
    policy: SendPolicy,
    receive_policy: ReceivePolicy,
    /// The word that the receiver writes, and below it the one that the sender writes.
    local_head: u64,
    local_tail: u64,
}

impl Decisions {
    fn at(start: u64) -> Self {
        let ring = ring().settle().unwrap();
        Self {
            start,
            policy: SendPolicy::starting_at(&ring, start),
            receive_policy: ReceivePolicy::starting_at(&ring, start),
            local_head: start,
            local_tail: start,
            ring,
        }
    }
}

impl Ends for Decisions {
    fn write(&mut self) -> bool {
        if self.policy.reserve(1) == ReserveOutcome::Full {
            self.policy.complete(self.policy.published()).unwrap();
            self.policy.observe_head(self.local_head).unwrap();
        }
        let ReserveOutcome::At(index) = self.policy.reserve(1) else {
            return false;
        };
        let position = self.policy.tail().wrapping_sub(self.start);
        assert_eq!(index, position % self.ring.slots);
        match self.policy.advance(1) {
            PostAction::Nothing => {}
            PostAction::Transmit => self.policy.transmitted(),
            PostAction::Publish => {
                self.policy.complete(self.policy.published()).unwrap();
                assert!(self.policy.attempt(), "an earlier tail is in flight");
                self.policy.transmitted();
                self.local_tail = self.policy.tail();
                self.policy.publish();
            }
        }
        true
    }

    fn read(&mut self) -> bool {
        if self.receive_policy.available() == 0 {
            self.receive_policy.observe_tail(self.local_tail).unwrap();
        }
        if self.receive_policy.available() == 0 {
            return false;
        }
        self.receive_policy.pass(1);
        if self.receive_policy.must_push() {
            self.local_head = self.receive_policy.head();
            self.receive_policy.pushed();
        }
        true
    }

    fn pointers(&self) -> Pointers {
        let since = |position: u64| position.wrapping_sub(self.start);
        let unsent: u64 = self.policy.untransmitted().iter().map(|part| part.1).sum();
        let (tail, head) = (since(self.policy.tail()), since(self.receive_policy.head()));
        Pointers {
            tail,
            synced_tail: since(self.policy.published()),
            esc_tail: tail - unsent,
            local_head: since(self.local_head),
            head,
            synced_head: head - self.receive_policy.unsynced(),
            local_tail: since(self.local_tail),
        }
    }
}

/// Slots that an end has written so far, and the cursor in its last WRITE of a word. The software RNIC has
/// placed both when the call that posts them returns.
#[derive(Default)]
struct Written {
    slots: AtomicU64,
    cursor: AtomicU64,
}

impl Interposer for Written {
    fn on_send_posted(&self, chain: &[SendWr<'_>]) {
        for request in chain {
            match request.payload {
                Payload::Gather(slots) => {
                    let bytes: u32 = slots.iter().map(|sge| sge.len).sum();
                    self.slots.fetch_add(bytes.into(), Ordering::Relaxed);
                }
                Payload::Inline(word) => {
                    let word = u64::from_ne_bytes(word.try_into().expect("a cursor"));
                    self.cursor.store(word, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A ring on two soft hosts, and the WRITEs of both ends.
struct Pair {
    tx: Sender,
    rx: Receiver,
    sender: Arc<Written>,
    receiver: Arc<Written>,
    received: u64,
    _hosts: Hosts,
}

impl Pair {
    fn new() -> Self {
        let hosts = Hosts::soft();
        let watch = |device: &Arc<dyn Device>| -> (Arc<dyn Device>, Arc<Written>) {
            let written = Arc::new(Written::default());
            (
                Arc::new(InterposedDevice::new(device.clone(), written.clone())),
                written,
            )
        };
        let (left, sender) = watch(&hosts.left);
        let (right, receiver) = watch(&hosts.right);
        let (tx, rx) = connect(&left, &ring(), &right, &ring()).unwrap();
        Self {
            tx: tx.unwrap(),
            rx: rx.unwrap(),
            sender,
            receiver,
            received: 0,
            _hosts: hosts,
        }
    }
}

impl Ends for Pair {
    fn write(&mut self) -> bool {
        let mut message = [0; 64];
        fill(self.tx.sent(), &mut message);
        match self.tx.try_send(&message) {
            Ok(()) => true,
            Err(SendError::Full) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&mut self) -> bool {
        let Some(message) = self.rx.try_recv().unwrap() else {
            return false;
        };
        assert!(holds(self.received, &message), "message {}", self.received);
        self.received += 1;
        true
    }

    fn pointers(&self) -> Pointers {
        let pushed = self.receiver.cursor.load(Ordering::Relaxed);
        Pointers {
            tail: self.tx.sent(),
            synced_tail: self.tx.published(),
            esc_tail: self.sender.slots.load(Ordering::Relaxed) / 64,
            local_head: pushed,
            head: self.rx.consumed(),
            synced_head: pushed,
            local_tail: self.sender.cursor.load(Ordering::Relaxed),
        }
    }
}

/// Passes `groups` groups of four messages, then runs the example.
fn scenario(ends: &mut impl Ends, groups: u64) {
    let before = 4 * groups;
    for _ in 0..groups {
        assert!((0..4).all(|_| ends.write()), "{groups} groups");
        assert!((0..4).all(|_| ends.read()), "{groups} groups");
    }
    assert!(
        (0..5).all(|_| ends.write()) && ends.read(),
        "{groups} groups"
    );
    macro_rules! pointers {
        ($step:literal, $sender:expr, $receiver:expr) => {{
            let ([tail, synced_tail, esc_tail, local_head], [head, synced_head, local_tail]) = (
                $sender.map(|slot| before + slot),
                $receiver.map(|slot| before + slot),
            );
            let expected = Pointers {
                tail,
                synced_tail,
                esc_tail,
                local_head,
                head,
                synced_head,
                local_tail,
            };
            assert_eq!(ends.pointers(), expected, "{}, {groups} groups", $step);
        }};
    }
    //                  tail, synced, esc, local_head   head, synced, local_tail
    pointers!("(a)", [5, 4, 4, 0], [1, 0, 4]);

    // Slot transmission: two slots are transmitted ahead of the tail.
    assert!(ends.write());
    pointers!("(b)", [6, 4, 6, 0], [1, 0, 4]);

    // Lazy push: the first read pushes the head, the second only advances it.
    assert!(ends.read());
    pointers!("(b) to (c)", [6, 4, 6, 2], [2, 2, 4]);
    assert!(ends.read());
    pointers!("(c)", [6, 4, 6, 2], [3, 2, 4]);

    // Pointer advancement: two more slots, and the tail, which advances by four for the receiver.
    assert!(ends.write());
    pointers!("(c) to (d)", [7, 4, 6, 2], [3, 2, 4]);
    assert!(ends.write());
    pointers!("(d)", [8, 8, 8, 2], [3, 2, 8]);

    // Full according to local_head, although the receiver has read one more slot.
    assert!(ends.write());
    pointers!("after (d)", [9, 8, 8, 2], [3, 2, 8]);
    assert!(
        !ends.write(),
        "(tail + 1) % N = local_head: {groups} groups"
    );
}

#[test]
fn the_decisions_keep_the_pointers_of_figure_4() {
    // From the last start, all pointers wrap at 2⁶⁴ within the example.
    for start in [0, 8, 8 * 1000, u64::MAX - 7] {
        for groups in 0..4 {
            scenario(&mut Decisions::at(start), groups);
        }
    }
}

#[test]
fn a_pair_on_soft_hosts_keeps_the_pointers_of_figure_4() {
    for groups in 0..4 {
        scenario(&mut Pair::new(), groups);
    }
}

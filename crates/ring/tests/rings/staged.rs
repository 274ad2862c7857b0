//! Devices without inline data: such a device fetches a cursor's word from memory when it executes the WRITE.
//! Until then the word must not change, however often a later cursor finds no room in the send queue.
//!
//! The tests use simulated RNICs in virtual time, so they always run the same way. The simulated bus is so
//! slow that no word has been fetched yet when the queue is full and every later post has been tried.

use std::sync::Arc;

use headworks_ring::{Framing, Mode, RingConfig};
use headworks_simnic::{Preset, SimProvider};
use headworks_verbs::{Device, Duration, Provider};

use crate::minimal_device::over;
use crate::pair::{config, connect, fill, holds};

/// A network of two hosts that take nothing inline and need 100 µs to read a line of memory.
struct SlowNetwork {
    network: SimProvider,
    left: Arc<dyn Device>,
    right: Arc<dyn Device>,
}

impl SlowNetwork {
    fn new() -> Self {
        let mut machine = Preset::named("cx5-100g").expect("a preset");
        for (key, value) in [("nic.max_inline", "0"), ("pcie.read", "100000")] {
            machine.set(key, value).expect("a legal constant");
        }
        let network = SimProvider::of(machine);
        let open = |name: &str| network.open(&name.parse().unwrap()).unwrap();
        Self {
            left: open("sim:cx5-100g,host=left"),
            right: open("sim:cx5-100g,host=right"),
            network,
        }
    }

    /// Advances time until everything in flight has arrived.
    fn settle(&self) {
        self.network.advance(Duration::from_millis(10));
    }
}

/// Depth of the sender's queue: room for eight messages, each a WRITE of the slot and one of the tail.
const DEPTH: u32 = 16;
/// Number of messages: several times as many as the queue has room for.
const MESSAGES: u64 = 100;

#[test]
fn a_tail_keeps_its_word_while_later_ones_find_no_room() {
    let slow = SlowNetwork::new();
    let (left, _) = over(&slow.left, DEPTH);
    let config = RingConfig {
        elastic: Some(false),
        ..config(128, Framing::Fixed(40), Mode::Poll)
    };
    let (tx, rx) = connect(&left, &config, &slow.right, &config).unwrap();
    let (mut tx, mut rx) = (tx.unwrap(), rx.unwrap());
    let mut message = [0; 40];
    for number in 0..MESSAGES {
        fill(number, &mut message);
        tx.try_send(&message).unwrap();
        tx.flush().unwrap();
    }
    // Only as many as the queue had room for, although every message was flushed.
    assert_eq!(tx.published(), u64::from(DEPTH / 2));
    let mut read = 0;
    while read < MESSAGES {
        let published = tx.published();
        assert!(published > read, "nothing goes on behind message {read}");
        slow.settle();
        while let Some(got) = rx.try_recv().unwrap() {
            assert!(holds(read, &got), "message {read}");
            read += 1;
        }
        assert_eq!(read, published, "what was published, and no more");
        tx.step().unwrap();
    }
}

#[test]
fn a_head_keeps_its_word_while_later_ones_find_no_room() {
    let slow = SlowNetwork::new();
    let config = RingConfig {
        push_every: Some(1),
        ..config(128, Framing::Fixed(40), Mode::Poll)
    };
    let (tx, rx) = connect(&slow.left, &config, &slow.right, &config).unwrap();
    let (mut tx, mut rx) = (tx.unwrap(), rx.unwrap());
    for _ in 0..MESSAGES {
        tx.try_send(&[7; 40]).unwrap();
    }
    while !tx.flush().unwrap() {}
    slow.settle();
    for _ in 0..MESSAGES {
        assert!(rx.try_recv().unwrap().is_some());
    }
    // Only as many as the queue had room for, although every release called for a push.
    let pushed = rx.stats().head_writes;
    assert!((1..MESSAGES / 2).contains(&pushed), "{pushed} heads");
    slow.settle();
    tx.step().unwrap();
    assert_eq!(tx.consumed(), pushed, "what was pushed, and no more");
    rx.step().unwrap();
    slow.settle();
    tx.step().unwrap();
    assert!(tx.is_drained());
}

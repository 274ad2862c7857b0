//! A device that takes nothing inline fetches a cursor when it gets to it. Until then the cursor's word is its
//! own, however often the next one finds no room in the send queue.
//!
//! On simulated RNICs, in virtual time, so it is the same every time: their bus is so slow that nothing was
//! fetched yet when the queue is full and everything has been tried.

use std::sync::Arc;

use headworks_ring::{Framing, Mode, RingConfig};
use headworks_simnic::{Preset, SimProvider};
use headworks_verbs::{Device, Duration, Provider};

use crate::minimal_device::over;
use crate::pair::{config, connect, fill, holds};

/// A network of two hosts that take nothing inline, and 100 µs to read a line of memory.
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

    /// Lets everything arrive that is under way.
    fn settle(&self) {
        self.network.advance(Duration::from_millis(10));
    }
}

/// Requests that the sender's queue holds: of slots and a tail eight times.
const DEPTH: u32 = 16;
/// Several times as many messages as it has room for.
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
    // As far as there was room; a word was asked for as often as messages were sent.
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
    // As far as there was room; a word was asked for as often as messages were released.
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

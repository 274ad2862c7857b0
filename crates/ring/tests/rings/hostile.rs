//! A peer that writes anything into the ring's memory causes an error or garbage, and nothing worse.

#![allow(unsafe_code, reason = "acts as the peer: writes to memory lent to it")]

use std::sync::atomic::{AtomicU64, Ordering};

use headworks_ring::{Framing, Mode, Receiver, RingConfig, Sender};
use proptest::prelude::*;

use crate::pair::{Hosts, config, longest};

/// Reads bytes 31 to 39 of a greeting: the address of the end's memory.
fn address(greeting: &[u8]) -> u64 {
    u64::from_le_bytes(greeting[31..39].try_into().unwrap())
}

/// Stores a word into an end's memory, as a WRITE of the peer would.
fn scribble(base: u64, offset: usize, value: u64) {
    // SAFETY: the caller passes an aligned offset within the memory of a live end.
    unsafe { &*((base as usize + offset) as *const AtomicU64) }.store(value, Ordering::Release);
}

/// Connects a ring and returns the base addresses of the sender's and the receiver's memory too.
fn exposed(hosts: &Hosts, config: &RingConfig) -> (Sender, Receiver, u64, u64) {
    let mut tx = headworks_ring::SenderSetup::new(&hosts.left, config).unwrap();
    let mut rx = headworks_ring::ReceiverSetup::new(&hosts.right, config).unwrap();
    let bases = (address(&tx.greeting()), address(&rx.greeting()));
    let (tx_hello, rx_hello) = (tx.greeting(), rx.greeting());
    crate::pair::raise(&hosts.left, tx.queue_pair(), &hosts.right, rx.queue_pair());
    let (tx, rx) = (tx.finish(&rx_hello).unwrap(), rx.finish(&tx_hello).unwrap());
    (tx, rx, bases.0, bases.1)
}

#[derive(Clone, Copy, Debug)]
enum HostileAction {
    /// Stores a word into the receiver's array or cursor.
    Receiver(u16, u64),
    /// Stores a word into the sender's cursor.
    Sender(u64),
    Send(u8),
    Receive(u8),
    Take,
    Release,
    Steps,
}

/// Generates words, many of them nearly valid: those do more harm than random ones.
fn words() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..20,
        (0u64..4, 0u64..4, 0u64..1000).prop_map(|(lap, kind, len)| lap << 34 | kind << 32 | len),
    ]
}

fn actions() -> impl Strategy<Value = HostileAction> {
    prop_oneof![
        (any::<u16>(), words()).prop_map(|(at, word)| HostileAction::Receiver(at, word)),
        words().prop_map(HostileAction::Sender),
        any::<u8>().prop_map(HostileAction::Send),
        (1u8..30).prop_map(HostileAction::Receive),
        Just(HostileAction::Take),
        Just(HostileAction::Release),
        Just(HostileAction::Steps),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn garbage_in_the_rings_memory_is_an_error_or_garbage(
        slots in 2u32..12,
        mode in prop_oneof![Just(Mode::Poll), Just(Mode::Latency), Just(Mode::Notify)],
        fixed in any::<bool>(),
        actions in proptest::collection::vec(actions(), 1..120),
    ) {
        let hosts = Hosts::soft();
        let framing = if fixed { Framing::Fixed(40) } else { Framing::Variable(longest(slots, mode)) };
        let config = config(slots, framing, mode);
        let (mut tx, mut rx, tx_base, rx_base) = exposed(&hosts, &config);
        let size = rx.ring().slot_size;
        let array = 64 + slots as usize * size;
        let mut held = Vec::new();
        for action in actions {
            match action {
                // The words that the receiver reads: the cursor, and both ends of every slot.
                HostileAction::Receiver(at, word) => {
                    let slot = 64 + usize::from(at) / 4 % slots as usize * size;
                    let offset = [0, slot, slot + size - 8, usize::from(at) * 8 % array][usize::from(at) % 4];
                    scribble(rx_base, offset, word);
                }
                HostileAction::Sender(word) => scribble(tx_base, 0, word),
                HostileAction::Send(part) => {
                    let len = if fixed { 40 } else { tx.max_message() * usize::from(part) / 255 };
                    let _ = tx.try_reserve(len).map(headworks_ring::Reservation::commit);
                }
                HostileAction::Receive(count) => {
                    for _ in 0..count {
                        if let Ok(Some(message)) = rx.try_recv() {
                            prop_assert!(message.len() <= config.slots as usize * size);
                        }
                    }
                }
                HostileAction::Take => {
                    if let Ok(Some(one)) = rx.try_take() {
                        held.push(one);
                    }
                    prop_assert!(held.len() < slots as usize, "took more than the ring holds");
                }
                HostileAction::Release => {
                    if let Some(one) = held.pop() {
                        prop_assert_eq!(rx.bytes(&one).len(), one.len());
                        let _ = rx.release(one);
                    }
                }
                HostileAction::Steps => {
                    let _ = (tx.step(), rx.step());
                }
            }
        }
    }
}

#[test]
fn impossible_cursors_and_headers_break_the_ring_with_a_word() {
    let hosts = Hosts::soft();
    let config = config(8, Framing::Variable(100), Mode::Poll);
    let (mut tx, _rx, tx_base, _) = exposed(&hosts, &config);
    scribble(tx_base, 0, 9);
    let error = tx.step().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer breaks the ring's protocol: the peer's cursor is 9: 0 to 0 are possible"
    );
    assert!(!error.is_peer_gone());
    let (_tx, mut rx, _, rx_base) = exposed(&hosts, &config);
    scribble(rx_base, 64, 101);
    scribble(rx_base, 0, 2);
    let error = rx.try_recv().map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer breaks the ring's protocol: message header 0x0000000000000065"
    );
    assert_eq!(rx.step(), Err(error));
    scribble(rx_base, 64, 1);
    assert_eq!(rx.try_recv().map(drop), Err(error), "broken for good");
}

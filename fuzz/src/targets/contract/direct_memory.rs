//! Both ends of a direct connection. The other application overwrites the memory that both have mapped between their calls.

use std::sync::atomic::Ordering;

use headworks_client::Slabs;
use headworks_client::connection::Received;
use headworks_client::direct::HEADER_BYTES;
use headworks_client::one_sided::{Op, Operation};
use headworks_client::testing::{DIRECT_PLACE, DirectApplication, direct_pair};

use super::extent;
use crate::input::Input;

/// Bytes of a direction's memory behind the block, of which the ring takes a part.
const RING_BYTES: usize = 2048;
/// Free memory of a session.
const FREE: u64 = 1 << 19;

pub(in crate::targets) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut ends, memory) = direct_pair();
    while !input.is_over() {
        let choice = input.byte();
        let [near, far] = &mut ends;
        let (near, far) = match choice % 2 {
            0 => (near, far),
            _ => (far, near),
        };
        match choice / 2 % 16 {
            0 | 1 => {
                let bytes = vec![7; usize::from(input.u16()) % 5000];
                if let Ok((sent, _)) = near.connection.sending.send(&bytes) {
                    assert!(sent <= bytes.len());
                }
            }
            2 | 3 => receive(near, &mut input),
            4 => {
                let peeked = near.connection.receiving.peek_direct();
                if let Ok(Some(view)) = peeked {
                    let mut bytes = vec![0; view.len()];
                    view.read(0, &mut bytes).expect("within the view");
                    let len = view.len().min(input.u16().into());
                    let _ = near.connection.receiving.consume(len as u64);
                }
            }
            5 => {
                let lent = extent(0, FREE, 1 + u32::from(input.u16()) % 1000);
                let sending = &mut near.connection.sending;
                if let Ok((Some(ticket), _)) = sending.lend(lent) {
                    let _ = sending.is_returned(ticket);
                }
            }
            6 => {
                let _ = near.connection.sending.operate(&Operation {
                    op: Op::FetchAdd,
                    export_id: 1,
                    at: 0,
                    local: extent(0, FREE, 16),
                    operand: 1,
                    compare: 0,
                    result: extent(0, FREE, 16),
                });
            }
            // An application that gave up after an error may have left what its daemon refuses.
            7 => drop(near.carry_to(far)),
            8 => near.offer_ring(),
            9 => look(near, &mut input),
            10 => match input.byte() % 4 {
                0 => drop(near.connection.sending.end()),
                1 => near.connection.sending.divert(),
                2 => near.is_peer_gone.store(true, Ordering::Release),
                _ => {
                    let _ = near.connection.direct().map(|direct| direct.close());
                }
            },
            11 => arm(near, &mut input),
            _ => scribble(&memory[usize::from(choice % 2)], &mut input),
        }
    }
}

fn receive(end: &mut DirectApplication, input: &mut Input<'_>) {
    let mut bytes = vec![0; usize::from(input.u16()) % 5000];
    let receiving = &mut end.connection.receiving;
    let received = match receiving.recv_in_ring(&mut bytes) {
        Some((len, _)) => Ok((Received::Bytes(len), ())),
        None => receiving.recv(&mut bytes).map(|(got, _)| (got, ())),
    };
    if let Ok((Received::Bytes(len), ())) = received {
        assert!(len <= bytes.len());
    }
}

/// Makes the calls that change nothing, and keeps what came through the daemons.
fn look(end: &mut DirectApplication, input: &mut Input<'_>) {
    let connection = &mut end.connection;
    let _ = (connection.arrived(), connection.room_now());
    let _ = (connection.sending.status(), connection.receiving.status());
    let _ = (connection.sending.room(), connection.sending.is_withheld());
    let receiving = &mut connection.receiving;
    // Only the own daemon, which is honest here, may have the application wait for memory.
    assert!(!receiving.is_withheld());
    let _ = receiving.is_blocked();
    let _ = (receiving.needs_daemon(), connection.sending.needs_daemon());
    if input.byte().is_multiple_of(2)
        && let Ok((Some((_, kept)), _)) = receiving.keep()
    {
        let _ = kept.release();
    }
}

/// Sleeps as a thread, as a session, or in a poller, and finds what a poller is told.
fn arm(end: &DirectApplication, input: &mut Input<'_>) {
    let direct = end.connection.direct().expect("a direct connection");
    let (arrived, room) = (direct.arrived().0, direct.room().0);
    for (block, set) in [(direct.incoming(), arrived), (direct.outgoing(), room)] {
        for event_count in [block.event_count(), block.room_event_count()] {
            match input.byte() % 4 {
                0 => event_count.arm_to_sleep(),
                1 => event_count.arm(false),
                2 => event_count.arm_in_set(),
                _ => event_count.disarm(),
            }
        }
        set.drain(|_| {});
        set.event_count().arm(false);
        let _ = set.is_empty();
    }
}

/// The other application stores a word, mostly a small change of what is there.
fn scribble(memory: &Slabs, input: &mut Input<'_>) {
    let view = memory.slab(0).expect("the memory of a direction");
    let block = DIRECT_PLACE.block;
    let (start, words) = match input.byte() % 8 {
        0 => (0, HEADER_BYTES as usize / 8),
        1 => (DIRECT_PLACE.ring.offset as usize, RING_BYTES / 8),
        // Tail, status, rings, and the number of changes of path.
        2 | 3 => (block.offset as usize + 128, 8),
        // The head, and what was received through the daemons.
        4 => (block.offset as usize + 192, 2),
        // Entries of rings.
        5 => (block.offset as usize + 320, 16),
        _ => (block.offset as usize, block.len as usize / 8),
    };
    let word = view.atomic_u64(start + input.below(words) * 8);
    let word = word.expect("within the memory");
    word.store(input.word(word.load(Ordering::Relaxed)), Ordering::Relaxed);
}

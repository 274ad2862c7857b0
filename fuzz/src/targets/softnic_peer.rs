//! A hostile connected peer. It writes any words into its own table and memory, which the victim reads, and
//! into those words and queues of the victim that a connected peer maps. Meanwhile both sides use their queue
//! pairs.
//!
//! The target does not know which words matter. It finds them: they are the cache lines of a table or a
//! segment that become non-zero through honest use. It does not write to the lines of the victim's other
//! connection, which must work until the end.

mod endpoint;
mod guarded_buffer;
mod shared_segments;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_verbs::Device;

use super::fixtures::{LONG_TIMEOUT, SHORT_TIMEOUT, open};
use crate::input::Input;
use endpoint::{Endpoint, EndpointOptions, TestKind};
use shared_segments::{ExposedWords, SegmentSnapshot, WordStore};

/// Maximum number of actions in one input.
const ACTIONS_MAX: usize = 100;

pub(super) fn run(bytes: &[u8]) {
    attack(TestKind::Connected, bytes);
}

/// Attacks bounce buffers. All memory is private, so each request goes through the peer's bounce buffer. Both
/// the calls to the owner and the answers to the initiator may be forged.
pub(super) fn bounce(bytes: &[u8]) {
    guarded_buffer::forbid_cross_process_access();
    attack(TestKind::Bounce, bytes);
}

/// Attacks datagrams in both directions: the rows of senders, and the receives that senders take.
pub(super) fn datagrams(bytes: &[u8]) {
    attack(TestKind::Datagrams, bytes);
}

fn attack(kind: TestKind, bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let (victim, friend) = (open("soft:victim"), open("soft:friend"));
    let mut ours = Endpoint::new(&victim, EndpointOptions::honest(kind));
    let mut theirs = Endpoint::new(&friend, EndpointOptions::honest(kind));
    ours.connect(&mut theirs, LONG_TIMEOUT)
        .expect("two honest ends");
    // State that all senders of datagrams share is attacked only if it is made after the snapshot, so in some
    // inputs the honest ends have not sent yet.
    let begun = kind != TestKind::Datagrams || flags & 0x20 == 0;
    if begun {
        ours.exchange(&mut theirs);
    }
    let before = SegmentSnapshot::all();
    // A bounce call waits for another thread, so it needs a longer timeout.
    let short = if kind == TestKind::Bounce {
        12
    } else {
        SHORT_TIMEOUT
    };
    let peer = open("soft:peer");
    let mut attacked = Endpoint::new(&victim, EndpointOptions::from_bits(kind, flags));
    let mut broken = Endpoint::new(
        &peer,
        EndpointOptions::from_bits(kind, flags.rotate_left(4)),
    );
    attacked
        .connect(&mut broken, short)
        .expect("two honest ends");
    let connected = SegmentSnapshot::all();
    // In some inputs the two ends have exchanged nothing when the attack begins.
    if flags & 0x40 == 0 {
        let _ = attacked
            .try_exchange(&mut broken)
            .and_then(|()| broken.try_exchange(&mut attacked));
    }
    if kind != TestKind::Connected {
        // Posted receives are attacked as well.
        attacked.expect();
        broken.expect();
    }
    let exposed = match kind {
        TestKind::Connected => ExposedWords::since(&before),
        // The rows of senders appear with the first exchange.
        TestKind::Datagrams => ExposedWords::since(&before).mostly_since(&connected),
        TestKind::Bounce => {
            let asked = [attacked.asked(), broken.asked()].concat();
            ExposedWords::since(&before)
                .mostly_since(&connected)
                .with_calls(asked)
        }
    };
    let mut undo = Vec::new();
    let hammers: Vec<WordStore> = match input.byte() {
        0..220 => Vec::new(),
        count => (0..count % 4 + 1)
            .map(|_| exposed.scribble(&mut input))
            .collect(),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if !hammers.is_empty() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    hammers.iter().for_each(|hammer| drop(hammer.store()));
                    std::thread::yield_now();
                }
            });
        }
        for _ in 0..ACTIONS_MAX {
            if input.is_over() {
                break;
            }
            match input.byte() % 8 {
                0 if kind != TestKind::Connected => {
                    // A call is rewritten, mostly before the owner reads it. The rewritten call breaks the
                    // connection, so it is restored each time.
                    attacked.restore(&mut broken, short);
                    broken.post(&mut input, &attacked.memory);
                    undo.extend(exposed.rewrite(&mut input));
                }
                0..4 => undo.push(exposed.scribble(&mut input).store()),
                4..7 => attacked.act(&mut input, &broken),
                _ => broken.act(&mut input, &attacked),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    ours.exchange(&mut theirs);
    theirs.exchange(&mut ours);
    // An owner that finds a peer in the middle of a request waits a second for it. To save that time, most
    // inputs undo their writes.
    if input.byte() < 240 {
        undo.iter().rev().for_each(WordStore::undo);
    }
    [&ours, &theirs, &attacked, &broken]
        .into_iter()
        .for_each(Endpoint::check);
    part(input, attacked, broken, peer);
    ours.exchange(&mut theirs);
    [&ours, &theirs].into_iter().for_each(Endpoint::check);
}

/// Ends the connection. The input decides which side ends it first.
fn part(mut input: Input<'_>, attacked: Endpoint, broken: Endpoint, peer: Arc<dyn Device>) {
    if input.byte().is_multiple_of(2) {
        drop(attacked);
        drop(broken);
        drop(peer);
    } else {
        drop(broken);
        drop(peer);
        drop(attacked);
    }
}

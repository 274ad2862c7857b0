//! A peer that writes what it likes: into its own table and memory, which we read, and into those
//! words and queues of ours that a connected peer maps. Meanwhile both sides use their queue pairs.
//!
//! Which words matter is found out rather than known: the cache lines of a table or a segment that are
//! not zero after some honest use. What belongs to the victim's other connection is left alone, and
//! that one must work to the end.

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

/// What two ends do, in one input.
const ACTIONS_MAX: usize = 100;

pub(super) fn run(bytes: &[u8]) {
    attack(TestKind::Connected, bytes);
}

/// Memory of the processes' own, to which windows lead: who is asked through one may be asked anything,
/// who asks may be answered anything.
pub(super) fn bounce(bytes: &[u8]) {
    guarded_buffer::forbid_cross_process_access();
    attack(TestKind::Bounce, bytes);
}

/// Datagrams, both ways: the rows of those who send, the receives that they take.
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
    // What all senders of datagrams share is written to only if they have not begun before.
    let begun = kind != TestKind::Datagrams || flags & 0x20 == 0;
    if begun {
        ours.exchange(&mut theirs);
    }
    let before = SegmentSnapshot::all();
    // Somebody else answers where windows are needed.
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
    // Otherwise they know nothing of each other when it begins.
    if flags & 0x40 == 0 {
        let _ = attacked
            .try_exchange(&mut broken)
            .and_then(|()| broken.try_exchange(&mut attacked));
    }
    if kind != TestKind::Connected {
        // Receives that wait are to be written to as well.
        attacked.expect();
        broken.expect();
    }
    let exposed = match kind {
        TestKind::Connected => ExposedWords::since(&before),
        // Rows of senders.
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
                    // A call is rewritten before anybody can have looked at it, mostly. It ends what they
                    // were to each other.
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
    // Who finds a peer in the middle of a request waits for it for a second. Mostly that is not what
    // is looked for.
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

/// Ends the connection from either side, objects in either order.
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

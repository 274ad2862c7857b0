//! A peer that writes what it likes: into its own table and memory, which we read, and into those
//! words and queues of ours that a connected peer maps. Meanwhile both sides use their queue pairs.
//!
//! Which words matter is found out rather than known: the cache lines of a table or a segment that are
//! not zero after some honest use. What belongs to the victim's other connection is left alone, and
//! that one must work to the end.

mod end;
mod exposed;
mod private;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_verbs::Device;

use super::hosts::{LONG, SHORT, open};
use crate::input::Input;
use end::{End, Kind, Shape};
use exposed::{Exposed, Memories, Scribble};

/// What two ends do, in one input.
const DEEDS_MAX: usize = 100;

pub(super) fn run(bytes: &[u8]) {
    play(Kind::Connected, bytes);
}

/// Memory of the processes' own, to which windows lead: who is asked through one may be asked anything,
/// who asks may be answered anything.
pub(super) fn windows(bytes: &[u8]) {
    private::forbid_crossing();
    play(Kind::Windows, bytes);
}

/// Datagrams, both ways: the rows of those who send, the receives that they take.
pub(super) fn datagrams(bytes: &[u8]) {
    play(Kind::Datagrams, bytes);
}

fn play(kind: Kind, bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let (victim, friend) = (open("soft:victim"), open("soft:friend"));
    let mut ours = End::new(&victim, Shape::honest(kind));
    let mut theirs = End::new(&friend, Shape::honest(kind));
    ours.connect(&mut theirs, LONG).expect("two honest ends");
    // What all senders of datagrams share is written to only if they have not begun before.
    let begun = kind != Kind::Datagrams || flags & 0x20 == 0;
    if begun {
        ours.exchange(&mut theirs);
    }
    let before = Memories::all();
    // Somebody else answers where windows are needed.
    let short = if kind == Kind::Windows { 12 } else { SHORT };
    let peer = open("soft:peer");
    let mut attacked = End::new(&victim, Shape::from_bits(kind, flags));
    let mut broken = End::new(&peer, Shape::from_bits(kind, flags.rotate_left(4)));
    attacked
        .connect(&mut broken, short)
        .expect("two honest ends");
    let connected = Memories::all();
    // Otherwise they know nothing of each other when it begins.
    if flags & 0x40 == 0 {
        let _ = attacked
            .try_exchange(&mut broken)
            .and_then(|()| broken.try_exchange(&mut attacked));
    }
    if kind != Kind::Connected {
        // Receives that wait are to be written to as well.
        attacked.expect();
        broken.expect();
    }
    let exposed = match kind {
        Kind::Connected => Exposed::since(&before),
        // Rows of senders.
        Kind::Datagrams => Exposed::since(&before).mostly_since(&connected),
        Kind::Windows => {
            let asked = [attacked.asked(), broken.asked()].concat();
            Exposed::since(&before)
                .mostly_since(&connected)
                .with_calls(asked)
        }
    };
    let mut undo = Vec::new();
    let hammers: Vec<Scribble> = match input.byte() {
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
        for _ in 0..DEEDS_MAX {
            if input.is_over() {
                break;
            }
            match input.byte() % 8 {
                0 if kind != Kind::Connected => {
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
        undo.iter().rev().for_each(Scribble::undo);
    }
    [&ours, &theirs, &attacked, &broken]
        .into_iter()
        .for_each(End::check);
    part(input, attacked, broken, peer);
    ours.exchange(&mut theirs);
    [&ours, &theirs].into_iter().for_each(End::check);
}

/// Ends the connection from either side, objects in either order.
fn part(mut input: Input<'_>, attacked: End, broken: End, peer: Arc<dyn Device>) {
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

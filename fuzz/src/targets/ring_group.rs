//! A group whose senders are hostile and speak verbs only. They send greetings of their own, write into their
//! rings' arrays and over the whole tail array, with and without immediates, break their queue pairs, and
//! leave.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use headworks_ring::{AfterStep, Framing, Group, GroupConfig, Mode, RingConfig, RingId};
use headworks_verbs::Device;

use super::fixtures::open;
use super::ring_peer::Peer;
use crate::input::Input;

/// Maximum number of rings of the group.
const RINGS: usize = 10;

fn devices() -> &'static (Arc<dyn Device>, Arc<dyn Device>) {
    static DEVICES: OnceLock<(Arc<dyn Device>, Arc<dyn Device>)> = OnceLock::new();
    DEVICES.get_or_init(|| (open("soft:group"), open("soft:peers")))
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (device, theirs) = devices();
    let ring = config(&mut input);
    let mut config = GroupConfig::new(ring.clone(), RINGS);
    config.quantum = 1 + u32::from(input.byte() % 4);
    let Ok(mut group) = Group::receiving(device, &config) else {
        return;
    };
    let mut peers: Vec<(Peer, RingId)> = Vec::new();
    let mut told = BTreeSet::new();
    while !input.is_over() {
        match input.byte() % 8 {
            0 => peers.extend(join(&mut input, &mut group, device, theirs)),
            1 if !peers.is_empty() => {
                let (peer, ring) = peers.swap_remove(input.below(peers.len()));
                // A peer that stays after the removal writes to a ring that does not exist any more.
                let stays = input.byte().is_multiple_of(2);
                let was_there = group.receiver(ring).is_some();
                assert_eq!(group.remove(ring), was_there);
                if stays {
                    peers.push((peer, ring));
                }
            }
            2..=5 if !peers.is_empty() => {
                let which = input.below(peers.len());
                let peer = &mut peers[which].0;
                match input.byte() % 3 {
                    0 => peer.write_tail_array(&mut input, RINGS),
                    _ => peer.act(&mut input, 64),
                }
            }
            6 => {
                let next = match input.byte().is_multiple_of(2) {
                    true => AfterStep::Wait,
                    false => AfterStep::Poll,
                };
                let _ = group.step(next);
            }
            _ => receive(&mut group, &ring, &mut told),
        }
        peers
            .retain(|(_, ring)| group.receiver(*ring).is_some() || !input.byte().is_multiple_of(4));
    }
}

fn config(input: &mut Input<'_>) -> RingConfig {
    let framing = match input.byte() % 4 {
        0 => Framing::Fixed(40),
        _ => Framing::Variable(100),
    };
    RingConfig {
        slots: 3 + u32::from(input.byte() % 14),
        framing,
        mode: input.pick(&[Mode::Poll, Mode::Notify]),
        ..RingConfig::default()
    }
}

/// Adds another ring. Returns `None` if there is no room or the group rejects the greeting.
fn join(
    input: &mut Input<'_>,
    group: &mut Group,
    device: &Arc<dyn Device>,
    theirs: &Arc<dyn Device>,
) -> Option<(Peer, RingId)> {
    let mut seat = group.seat().ok()?;
    let mut peer = Peer::new(theirs);
    let greeting = seat.greeting();
    peer.meet(device, seat.queue_pair(), theirs, &greeting);
    if input.byte().is_multiple_of(4) {
        peer.act(input, 64);
    }
    let ring = group.admit(seat, &peer.greet(input, &greeting)).ok()?;
    Some((peer, ring))
}

fn receive(group: &mut Group, ring: &RingConfig, told: &mut BTreeSet<RingId>) {
    for _ in 0..40 {
        match group.try_recv() {
            Ok(None) => return,
            Ok(Some((_, message))) => {
                assert!(
                    message.len() <= ring.slots as usize * 64,
                    "longer than the ring"
                );
            }
            Err(broken) => assert!(told.insert(broken.ring), "a broken ring was reported twice"),
        }
    }
}

//! The hostile other end of a paper design's channel. It speaks verbs only. It sends a greeting that may be
//! wrong, then writes into the memory that it has the key of, with and without immediates, or breaks its queue
//! pair.

use std::sync::{Arc, OnceLock};

use headworks_baselines::paper_baselines::farm::Farm;
use headworks_baselines::paper_baselines::l5::L5;
use headworks_baselines::paper_baselines::socksdirect::SocksDirect;
use headworks_baselines::paper_baselines::{BaselineSetup, Design, Head, Plan, SyncVariant, Tail};
use headworks_ring::{EndSetup, Framing, MessageReceiver, MessageSender, RingConfig};
use headworks_verbs::{Device, RemoteAddr};

use super::fixtures::{connect, open};
use super::ring_peer::{Peer, RECEIVES, SENDS};
use crate::input::Input;

/// Length of a greeting in bytes: role, address, design, slots, slot size, longest message, key.
const GREETING: usize = 45;

fn devices() -> &'static (Arc<dyn Device>, Arc<dyn Device>) {
    static DEVICES: OnceLock<(Arc<dyn Device>, Arc<dyn Device>)> = OnceLock::new();
    DEVICES.get_or_init(|| (open("soft:rival"), open("soft:peer")))
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let plan = Plan {
        messages: 2 + u32::from(input.byte() % 14),
        longest: usize::from(input.byte()),
    };
    match input.byte() % 7 {
        0 => fuzz(&mut input, &Farm(plan)),
        1 => fuzz(&mut input, &L5(plan)),
        2 => fuzz(&mut input, &SocksDirect(plan)),
        which => {
            let framing = match input.byte() % 2 {
                0 => Framing::Fixed(40),
                _ => Framing::Variable(plan.messages as usize / 2 * 64 - 8),
            };
            let slots = plan.messages;
            let ring = RingConfig {
                slots,
                framing,
                ..RingConfig::default()
            };
            let head = if which % 2 == 0 {
                Head::Pull
            } else {
                Head::Push
            };
            let tail = if which > 4 {
                Tail::PollCq
            } else {
                Tail::WriteTwice
            };
            fuzz(&mut input, &SyncVariant { head, tail, ring });
        }
    }
}

fn fuzz<D: Design>(input: &mut Input<'_>, design: &D) {
    let (device, peer) = devices();
    let mut broken = Peer::new(peer);
    if input.byte().is_multiple_of(2) {
        let Ok(setup) = BaselineSetup::sender(device, design.clone()) else {
            return;
        };
        let Some(mut sender) = bring_up_end(input, &mut broken, setup) else {
            return;
        };
        while !input.is_over() {
            if !input.byte().is_multiple_of(3) {
                broken.act(input, 64);
                continue;
            }
            send(input, &mut sender);
        }
    } else {
        let Ok(setup) = BaselineSetup::receiver(device, design.clone()) else {
            return;
        };
        let Some(mut receiver) = bring_up_end(input, &mut broken, setup) else {
            return;
        };
        while !input.is_over() {
            if !input.byte().is_multiple_of(3) {
                broken.act(input, 64);
                continue;
            }
            match input.byte() % 4 {
                0 => drop(receiver.step()),
                1 => drop(receiver.push_head()),
                _ => {
                    let len = receiver.try_recv_with(<[u8]>::len);
                    assert!(len.ok().flatten().is_none_or(|len| len < 4096));
                }
            }
        }
    }
}

/// Connects `setup` to the hostile peer. The peer's greeting is valid except for a few bytes.
fn bring_up_end<S: EndSetup>(
    input: &mut Input<'_>,
    broken: &mut Peer,
    mut setup: S,
) -> Option<S::End> {
    let (device, peer) = devices();
    let mut greeting = setup.greeting();
    assert_eq!(greeting.len(), GREETING, "greeting length");
    let qp = setup.queue_pair();
    connect((&**device, qp), (&**peer, broken.queue_pair())).expect("two queue pairs");
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    broken.aim(RemoteAddr {
        addr: word(&greeting[1..9]),
        rkey: u32::from_le_bytes(greeting[41..].try_into().expect("4 bytes")),
    });
    let ours = broken.memory();
    greeting[0] = SENDS + RECEIVES - greeting[0];
    greeting[1..9].copy_from_slice(&ours.addr.to_le_bytes());
    greeting[41..].copy_from_slice(&ours.rkey.to_le_bytes());
    for _ in 0..input.byte() / 64 {
        greeting[input.below(GREETING)] = input.byte();
    }
    greeting.truncate(GREETING - usize::from(input.byte() / 250));
    setup.finish(&greeting).ok()
}

fn send(input: &mut Input<'_>, sender: &mut impl MessageSender) {
    match input.byte() % 4 {
        0 => drop(sender.step()),
        1 => drop(sender.flush()),
        _ => {
            let len = usize::from(input.byte()).min(sender.max_message());
            let _ = sender.try_send(&vec![7; len]);
        }
    }
    assert!(
        sender.consumed() <= sender.sent(),
        "the sender reports more consumed than sent"
    );
}

//! The hostile other end of a ring. It speaks verbs only. It sends a greeting that may be wrong, then writes
//! into the memory that it has the key of, with and without immediates, sends messages, or breaks its queue
//! pair.

use std::sync::{Arc, OnceLock};

use headworks_ring::{Framing, Mode, Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup};
use headworks_verbs::{
    Access, AllocRequest, Completion, CompletionQueue, CqInit, Device, Payload, QpAttr, QpCaps,
    QpInit, QpState, QpType, QueuePair, RecvWr, Region, RemoteAddr, SendFlags, SendOp, SendWr,
};

use super::fixtures::{connect, open};
use crate::input::Input;

pub(super) const GREETING: usize = 63;
/// Offset in a greeting of the address and key of the end's memory. `CURSOR` is the offset of the address and
/// key of the end's cursor.
const ADDRESS: usize = 31;
const CURSOR: usize = 43;
const ROLE: usize = 2;
/// Longest message that the hostile end sends, in bytes.
const LONGEST: usize = 184;
pub(super) const SENDS: u8 = 1;
pub(super) const RECEIVES: u8 = 2;

fn devices() -> &'static (Arc<dyn Device>, Arc<dyn Device>) {
    static DEVICES: OnceLock<(Arc<dyn Device>, Arc<dyn Device>)> = OnceLock::new();
    DEVICES.get_or_init(|| (open("soft:ring"), open("soft:peer")))
}

/// The ring end under test.
enum Ring {
    Sends(Sender),
    Receives(Receiver),
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (device, peer) = devices();
    let config = config(&mut input);
    let sends = input.byte().is_multiple_of(2);
    let mut broken = Peer::new(peer);
    let ring = if sends {
        let Ok(mut setup) = SenderSetup::new(device, &config) else {
            return;
        };
        let greeting = setup.greeting();
        broken.meet(device, setup.queue_pair(), peer, &greeting);
        setup
            .finish(&broken.greet(&mut input, &greeting))
            .map(Ring::Sends)
    } else {
        let Ok(mut setup) = ReceiverSetup::new(device, &config) else {
            return;
        };
        let greeting = setup.greeting();
        broken.meet(device, setup.queue_pair(), peer, &greeting);
        setup
            .finish(&broken.greet(&mut input, &greeting))
            .map(Ring::Receives)
    };
    let Ok(mut ring) = ring else { return };
    let mut held = Vec::new();
    while !input.is_over() {
        if !input.byte().is_multiple_of(3) {
            broken.act(&mut input, 64);
            continue;
        }
        match &mut ring {
            Ring::Sends(sender) => send(&mut input, sender),
            Ring::Receives(receiver) => receive(&mut input, receiver, &mut held, &config),
        }
    }
}

fn config(input: &mut Input<'_>) -> RingConfig {
    let mode = input.pick(&[Mode::Poll, Mode::Latency, Mode::Notify]);
    let slots = 2 + u32::from(input.byte() % 14);
    let longest = (slots as usize - 1) * 64 - 72 * usize::from(slots > 3);
    let framing = match input.byte() % 4 {
        0 => Framing::Fixed(40),
        _ => Framing::Variable(longest.max(8)),
    };
    RingConfig {
        slots,
        framing,
        mode,
        ..RingConfig::default()
    }
}

fn send(input: &mut Input<'_>, sender: &mut Sender) {
    match input.byte() % 4 {
        0 => drop(sender.step()),
        1 => drop(sender.flush()),
        2 => {
            let len = usize::from(input.byte()) * sender.max_message() / 255;
            if let Ok(place) = sender.try_reserve(len) {
                let _ = place.commit();
            }
        }
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

fn receive(
    input: &mut Input<'_>,
    receiver: &mut Receiver,
    held: &mut Vec<headworks_ring::HeldMessage>,
    config: &RingConfig,
) {
    match input.byte() % 5 {
        0 | 1 => {
            let longest = config.slots as usize * 64;
            if let Ok(Some(message)) = receiver.try_recv() {
                assert!(message.len() <= longest.max(receiver_longest(config)));
            }
        }
        2 => {
            held.extend(receiver.try_take().ok().flatten());
            assert!(
                held.len() < config.slots as usize,
                "the receiver holds more messages than slots"
            );
        }
        3 => {
            if let Some(one) = held.pop() {
                assert_eq!(receiver.bytes(&one).len(), one.len());
                let _ = receiver.release(one);
            }
        }
        _ => drop((receiver.step(), receiver.push_head())),
    }
}

const fn receiver_longest(config: &RingConfig) -> usize {
    match config.framing {
        Framing::Fixed(len) | Framing::Variable(len) => len,
    }
}

/// The hostile end: a queue pair and some memory, without a ring.
pub(super) struct Peer {
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    memory: Region,
    theirs: RemoteAddr,
    /// Address of the cursor in the memory of the end under test.
    cursor: RemoteAddr,
}

impl Peer {
    pub(super) fn new(device: &Arc<dyn Device>) -> Self {
        let init = CqInit {
            depth: 512,
            ..CqInit::default()
        };
        let cq = device.create_cq(&init).expect("a CQ");
        let pd = device.alloc_pd().expect("a domain");
        let buffer = device.alloc(&AllocRequest::of(32 << 10)).expect("memory");
        let memory = pd.register(&buffer, Access::ALL).expect("a region");
        let qp = pd.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_inline: LONGEST as u32,
                ..QpCaps::default()
            },
            signal_all: true,
        });
        Self {
            qp: qp.expect("a queue pair"),
            cq,
            memory,
            theirs: RemoteAddr::default(),
            cursor: RemoteAddr::default(),
        }
    }

    pub(super) fn meet(
        &mut self,
        device: &Arc<dyn Device>,
        qp: &mut dyn QueuePair,
        peer: &Arc<dyn Device>,
        greeting: &[u8],
    ) {
        assert_eq!(greeting.len(), GREETING, "greeting length");
        connect((&**device, qp), (&**peer, &mut *self.qp)).expect("two queue pairs");
        assert!(self.parse_greeting(greeting));
    }

    pub(super) fn queue_pair(&mut self) -> &mut dyn QueuePair {
        &mut *self.qp
    }

    /// Reads the addresses of the other end's memory and cursor from its greeting, and posts receives for its
    /// immediates. Returns false if the greeting is too short.
    pub(super) fn parse_greeting(&mut self, greeting: &[u8]) -> bool {
        let remote = |at: usize| {
            let (addr, key) = greeting.get(at..at + 12)?.split_at(8);
            Some(RemoteAddr {
                addr: u64::from_le_bytes(addr.try_into().expect("8 bytes")),
                rkey: u32::from_le_bytes(key.try_into().expect("4 bytes")),
            })
        };
        let (Some(memory), Some(cursor)) = (remote(ADDRESS), remote(CURSOR)) else {
            return false;
        };
        self.aim(memory);
        self.cursor = cursor;
        true
    }

    /// Makes `memory` the target of later writes, and posts receives for its owner's immediates. `memory` begins
    /// with a cursor.
    pub(super) fn aim(&mut self, memory: RemoteAddr) {
        (self.theirs, self.cursor) = (memory, memory);
        for _ in 0..16 {
            let wr = RecvWr {
                wr_id: 1,
                sges: &[],
            };
            let _ = self.qp.post_recv(&[wr]);
        }
    }

    /// Returns the address of the hostile end's own memory.
    pub(super) fn memory(&self) -> RemoteAddr {
        self.memory.remote(0)
    }

    /// Returns the greeting of an end with the configuration in the greeting `alike`, the role `role`, and this
    /// end's memory.
    pub(super) fn greeting(&self, alike: &[u8], role: u8) -> Vec<u8> {
        let mut greeting = alike.to_vec();
        greeting[ROLE] = role;
        let ours = self.memory.remote(0);
        greeting.truncate(ADDRESS);
        for _memory_and_cursor in 0..2 {
            greeting.extend_from_slice(&ours.addr.to_le_bytes());
            greeting.extend_from_slice(&ours.rkey.to_le_bytes());
        }
        greeting.extend_from_slice(&0u64.to_le_bytes());
        greeting
    }

    /// Returns the greeting that fits the other end's greeting `theirs`, with a few wrong bytes.
    pub(super) fn greet(&self, input: &mut Input<'_>, theirs: &[u8]) -> Vec<u8> {
        let mut greeting = self.greeting(theirs, SENDS + RECEIVES - theirs[ROLE]);
        for _ in 0..input.byte() / 64 {
            greeting[input.below(GREETING)] = input.byte();
        }
        greeting.truncate(GREETING - usize::from(input.byte() / 250));
        greeting
    }

    /// Attacks the other end, whose slots have `slot` bytes: a write, a message or a state transition.
    pub(super) fn act(&mut self, input: &mut Input<'_>, slot: usize) {
        let number = input.below(17);
        // Mostly a word that the other end polls: its cursor, or the first or last word of a slot.
        let at = |offset: usize| self.theirs.plus(offset as u64);
        let to = match input.byte() % 4 {
            0 => self.cursor,
            1 => at(64 + number * slot),
            2 => at(64 + (number + 1) * slot - 8),
            _ => at(8 * usize::from(input.byte())),
        };
        self.act_at(input, to, number);
    }

    /// Attacks a word of the tail array, which has `words` words, or a word near the array.
    pub(super) fn write_tail_array(&mut self, input: &mut Input<'_>, words: usize) {
        let offset = 8 * (input.below(2 * words) as i64 - words as i64);
        let to = self.cursor.plus(offset as u64);
        self.act_at(input, to, 0);
    }

    /// Sends 8 bytes to [`LONGEST`], mostly `len` or 64: the first words and the last byte are nearly valid numbers.
    pub(super) fn send_message(&mut self, input: &mut Input<'_>, len: usize) {
        let len = match input.byte() % 16 {
            0 => 8 * (1 + input.below(23)),
            1..6 => len,
            _ => 64,
        };
        let mut bytes = [0; LONGEST];
        for word in bytes[..16].chunks_exact_mut(8) {
            let number = u64::from(input.byte() % 8);
            word.copy_from_slice(&input.word(number).to_le_bytes());
        }
        bytes[len - 1] = input.byte() % 2;
        let op = match input.byte() % 4 {
            0 => SendOp::Write(self.theirs.plus(64 * input.below(8) as u64)),
            _ => SendOp::Send,
        };
        self.post(op, &bytes[..len]);
    }

    fn act_at(&mut self, input: &mut Input<'_>, to: RemoteAddr, number: usize) {
        let word = match input.byte() % 4 {
            // Numbers of slots, or a slot's header: lap, kind, length.
            0 => input.byte().into(),
            1 | 2 => {
                let (lap, kind) = (u64::from(input.byte() % 4), u64::from(input.byte() % 4));
                lap << 34 | kind << 32 | u64::from(input.byte())
            }
            _ => input.word(number as u64),
        };
        let op = match input.byte() % 16 {
            0..9 => SendOp::Write(to),
            9..13 => SendOp::WriteImm(to, word as u32),
            13 => SendOp::Send,
            14 => SendOp::SendImm(word as u32),
            _ => {
                let state = input.pick(&[QpState::Error, QpState::Sqd, QpState::Rts]);
                let _ = self.qp.modify(&QpAttr::to_state(state));
                return;
            }
        };
        let bytes = word.to_le_bytes();
        self.post(op, if word % 7 == 6 { &[] } else { &bytes });
    }

    fn post(&mut self, op: SendOp, bytes: &[u8]) {
        let wr = SendWr {
            wr_id: 1,
            op,
            payload: Payload::Inline(bytes),
            flags: SendFlags::SOLICITED,
        };
        let _ = self.qp.post_send(&[wr]);
        let mut some = [Completion::default(); 8];
        let _ = self.cq.poll(&mut some);
        let wr = RecvWr {
            wr_id: 1,
            sges: &[],
        };
        let _ = self.qp.post_recv(&[wr]);
    }
}

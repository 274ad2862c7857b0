//! Making an end of a ring and connecting it.
//!
//! Each end makes its memory, completion queue and queue pair, greets the other with what it needs
//! to know (as the payload of [`headworks_verbs::BringUp`]), and becomes a [`Sender`] or [`Receiver`]
//! once both queue pairs are up:
//!
//! ```text
//! let mut setup = SenderSetup::new(&device, &config)?;
//! let payload = setup.greeting();
//! let hello = line.bring_up(device.info(), setup.queue_pair(), setup.tuning(), payload, deadline)?;
//! let sender = setup.finish(&hello.payload)?;
//! ```

use std::sync::Arc;

use headworks_verbs::bringup::Tuning;
use headworks_verbs::{
    Access, AllocRequest, CompletionChannel, CompletionQueue, CqInit, Device, ModifyError,
    Promises, QpAttr, QpCaps, QpInit, QpState, QpType, QueuePair, Region, RemoteAddr,
    ResourceError,
};

use crate::config::{ConfigError, Framing, Mode, RingConfig, Settled};
use crate::error::RingError;
use crate::receiver::{Receiver, SIGNAL_EVERY};
use crate::sender::Sender;
use crate::slots::Slots;
use crate::wire::Wire;

/// Version of the ring's layout and of its greeting.
pub const VERSION: u16 = 1;

/// Why an end could not be made or connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The configuration is not legal.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device could not give what the ring needs.
    #[error("ring: {0}")]
    Resource(#[from] ResourceError),
    /// The queue pair could not be prepared.
    #[error("ring: {0}")]
    Modify(#[from] ModifyError),
    /// Receives could not be posted.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The other end's ring is of another version.
    #[error("the other end's ring has layout version {found}, this is version {VERSION}")]
    Version {
        /// Its version.
        found: u16,
    },
    /// The other end was made differently.
    #[error("the other end's {key} is {theirs}, ours is {ours}: they must be the same")]
    Mismatch {
        /// What.
        key: &'static str,
        /// Over there.
        theirs: u64,
        /// Here.
        ours: u64,
    },
    /// Both ends were made to do the same.
    #[error("both ends {does}: one must send and one must receive")]
    SameRole {
        /// What both do.
        does: &'static str,
    },
    /// The other end's greeting makes no sense.
    #[error("the other end's greeting is malformed: {0}")]
    Greeting(&'static str),
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Sender = 1,
    Receiver = 2,
}

/// What one end tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Greeting {
    role: Role,
    mode: Mode,
    /// Whether its device lets cursors be polled in memory.
    can_poll: bool,
    /// Whether its device lets a message's last word be polled.
    in_order: bool,
    slots: u64,
    slot_size: u64,
    framing: Framing,
    memory: RemoteAddr,
}

const GREETING: usize = 2 + 4 + 1 + 8 + 8 + 8 + 8 + 4;

impl Greeting {
    fn emit(&self) -> Vec<u8> {
        let (framing, len) = match self.framing {
            Framing::Fixed(len) => (0, len),
            Framing::Variable(len) => (1, len),
        };
        let mut bytes = Vec::with_capacity(GREETING);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[
            self.role as u8,
            self.mode as u8,
            self.can_poll.into(),
            self.in_order.into(),
            framing,
        ]);
        for word in [self.slots, self.slot_size, len as u64, self.memory.addr] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.memory.rkey.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Self, SetupError> {
        if let Some(&[a, b]) = bytes.get(..2)
            && u16::from_le_bytes([a, b]) != VERSION
        {
            return Err(SetupError::Version {
                found: u16::from_le_bytes([a, b]),
            });
        }
        let bytes: &[u8; GREETING] = bytes
            .try_into()
            .map_err(|_| SetupError::Greeting("its length"))?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let len = usize::try_from(word(23)).map_err(|_| SetupError::Greeting("framing"))?;
        let role = match bytes[2] {
            1 => Role::Sender,
            2 => Role::Receiver,
            _ => return Err(SetupError::Greeting("role")),
        };
        let mode = match bytes[3] {
            0 => Mode::Poll,
            1 => Mode::Latency,
            2 => Mode::Notify,
            _ => return Err(SetupError::Greeting("mode")),
        };
        let framing = match bytes[6] {
            0 => Framing::Fixed(len),
            1 => Framing::Variable(len),
            _ => return Err(SetupError::Greeting("framing")),
        };
        let rkey = u32::from_le_bytes([bytes[39], bytes[40], bytes[41], bytes[42]]);
        Ok(Self {
            role,
            mode,
            can_poll: bytes[4] != 0,
            in_order: bytes[5] != 0,
            slots: word(7),
            slot_size: word(15),
            framing,
            memory: RemoteAddr {
                addr: word(31),
                rkey,
            },
        })
    }
}

/// An end before it is connected.
struct End {
    ring: Settled,
    greeting: Greeting,
    slots: Slots,
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    channel: Option<Arc<dyn CompletionChannel>>,
    staging: Option<Region>,
    /// Receives that there was no room for.
    owed: u64,
}

/// Groups are not signalled: a send queue that is full of nothing else never empties.
fn check_groups(ring: &Settled, sends: u64) -> Result<(), ConfigError> {
    let groups = sends.saturating_sub(8).max(1);
    let lowest = ring.slots.div_ceil(groups);
    if ring.transmit_every >= lowest {
        return Ok(());
    }
    Err(ConfigError {
        key: "transmit_every",
        value: ring.transmit_every,
        legal: format!(
            "at least {lowest} with {} slots and {sends} send requests",
            ring.slots
        ),
    })
}

impl End {
    fn new(device: &Arc<dyn Device>, config: &RingConfig, role: Role) -> Result<Self, SetupError> {
        let ring = config.settle()?;
        let info = device.info();
        let Promises {
            ordered_between_writes,
            atomic_aligned_8,
            in_order_within_write,
        } = info.promises;
        let can_poll = ordered_between_writes && atomic_aligned_8;
        let sleeps = ring.mode == Mode::Notify || !can_poll;
        let channel = if sleeps {
            Some(device.create_channel()?)
        } else {
            None
        };
        let sends = match role {
            // A message may need its slots, a skip and a tail, until a completion is polled.
            Role::Sender => (2 * ring.slots + 8).min(info.limits.max_qp_wr.into()),
            Role::Receiver => (2 * SIGNAL_EVERY).max(if sleeps { ring.slots } else { 0 }),
        };
        let sends = sends.min(info.limits.max_qp_wr.into()) as u32;
        if role == Role::Sender && ring.mode != Mode::Latency {
            check_groups(&ring, sends.into())?;
        }
        // Every cursor of the peer takes one receive, and it has at most N on their way.
        let receives = ring.slots.min(info.limits.max_qp_wr.into()) as u32;
        let depth = (sends + receives).min(info.limits.max_cqe);
        let cq = device.create_cq(&CqInit {
            depth,
            channel: channel.clone(),
            timestamps: false,
        })?;
        let pd = device.alloc_pd()?;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 8.min(info.limits.max_inline),
        };
        let mut qp = pd.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps,
            signal_all: false,
        })?;
        let request = AllocRequest {
            len: config.misaligned_by + Slots::bytes(ring.array_len()),
            align: 64,
            pages: config.pages,
            numa_node: config.numa_node.or(info.numa_node),
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(&device.alloc(&request)?, access)?;
        let staging = if qp.caps().max_inline >= 8 {
            None
        } else {
            let words = device.alloc(&AllocRequest::of(sends as usize * 8))?;
            Some(pd.register(&words, Access::NONE)?)
        };
        qp.modify(&QpAttr {
            state: Some(QpState::Init),
            access: Some(Tuning::default().access),
            ..QpAttr::default()
        })?;
        let owed = match sleeps {
            true => Wire::post_receives(&mut *qp, receives.into())?,
            false => 0,
        };
        let slots = Slots::new(region, ring.slot_size, config.misaligned_by);
        let greeting = Greeting {
            role,
            mode: ring.mode,
            can_poll,
            in_order: in_order_within_write as usize >= ring.slot_size,
            slots: ring.slots,
            slot_size: ring.slot_size as u64,
            framing: ring.framing,
            memory: slots.remote(),
        };
        Ok(Self {
            ring,
            greeting,
            slots,
            qp,
            cq,
            channel,
            staging,
            owed,
        })
    }

    /// What the two greetings amount to.
    fn agree(&self, peer: &Greeting) -> Result<Mode, SetupError> {
        let ours = &self.greeting;
        let same = |key, theirs: u64, ours: u64| {
            if theirs == ours {
                return Ok(());
            }
            Err(SetupError::Mismatch { key, theirs, ours })
        };
        if ours.role == peer.role {
            let does = match ours.role {
                Role::Sender => "send",
                Role::Receiver => "receive",
            };
            return Err(SetupError::SameRole { does });
        }
        same("slots", peer.slots, ours.slots)?;
        same("slot_size", peer.slot_size, ours.slot_size)?;
        let framing = |framing| match framing {
            Framing::Fixed(len) => (len as u64, 0),
            Framing::Variable(len) => (len as u64, 1),
        };
        let (theirs, own) = (framing(peer.framing), framing(ours.framing));
        same("framing (0 fixed, 1 variable)", theirs.1, own.1)?;
        same("message length", theirs.0, own.0)?;
        let latency = |mode| u64::from(mode == Mode::Latency);
        let sleeps = |end: &Greeting| end.mode == Mode::Notify || !end.can_poll;
        if sleeps(ours) || sleeps(peer) {
            return Ok(Mode::Notify);
        }
        same("latency mode", latency(peer.mode), latency(ours.mode))?;
        Ok(match ours.mode {
            Mode::Latency if ours.in_order && peer.in_order => Mode::Latency,
            _ => Mode::Poll,
        })
    }

    fn finish(mut self, payload: &[u8]) -> Result<(Settled, Slots, Wire), SetupError> {
        let peer = Greeting::parse(payload)?;
        let mode = self.agree(&peer)?;
        let notify = mode == Mode::Notify;
        if notify && self.channel.is_none() {
            let receives = self.qp.caps().max_recv_wr;
            self.owed = Wire::post_receives(&mut *self.qp, receives.into())?;
        }
        let ring = self.ring.in_mode(mode);
        let wire = Wire::new(
            self.qp,
            self.cq,
            self.channel,
            peer.memory,
            notify,
            self.staging,
            self.owed,
        );
        Ok((ring, self.slots, wire))
    }
}

macro_rules! setup {
    ($name:ident, $end:ident, $role:expr, $what:literal) => {
        #[doc = concat!($what, " that is not connected yet.")]
        pub struct $name(End);

        impl $name {
            /// Makes the end on `device`.
            pub fn new(device: &Arc<dyn Device>, config: &RingConfig) -> Result<Self, SetupError> {
                End::new(device, config, $role).map(Self)
            }

            /// What the other end must be handed as the payload of the bring-up.
            pub fn greeting(&self) -> Vec<u8> {
                self.0.greeting.emit()
            }

            /// The queue pair to bring up.
            pub fn queue_pair(&mut self) -> &mut dyn QueuePair {
                &mut *self.0.qp
            }

            /// How it is to be brought up.
            pub fn tuning(&self) -> Tuning {
                Tuning::default()
            }

            /// The end of a connected ring; `payload` is the other end's greeting.
            pub fn finish(self, payload: &[u8]) -> Result<$end, SetupError> {
                let (ring, slots, wire) = self.0.finish(payload)?;
                Ok($end::new(ring, slots, wire))
            }
        }
    };
}

setup!(SenderSetup, Sender, Role::Sender, "A sending end");
setup!(ReceiverSetup, Receiver, Role::Receiver, "A receiving end");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_greeting_is_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Greeting::parse(&bytes);
            let mut versioned = bytes;
            if versioned.len() >= 2 {
                versioned[..2].copy_from_slice(&VERSION.to_le_bytes());
            }
            versioned.resize(GREETING, 0);
            if let Ok(greeting) = Greeting::parse(&versioned) {
                let again = Greeting::parse(&greeting.emit()).unwrap();
                prop_assert_eq!(again, greeting);
            }
        }
    }
}

//! Making an end of a ring and connecting it.
//!
//! Each end makes its memory, completion queue and queue pair. It sends the other end a greeting, as the
//! payload of [`headworks_verbs::BringUp`]. Once both queue pairs are up, it becomes a [`Sender`] or a
//! [`Receiver`]:
//!
//! ```text
//! let mut setup = SenderSetup::new(&device, &config)?;
//! let payload = setup.greeting();
//! let hello = control.bring_up(device.info(), setup.queue_pair(), setup.connection_params(), payload, deadline)?;
//! let sender = setup.finish(&hello.payload)?;
//! ```

mod greeting;

use std::sync::Arc;

use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    Access, AllocRequest, CompletionChannel, CompletionQueue, CqInit, Device, DeviceInfo,
    ModifyError, Pages, ProtectionDomain, QpAttr, QpCaps, QpInit, QpState, QpType, QueuePair,
    Region, ResourceError,
};
use headworks_wire::Malformed;

use crate::config::{CheckedConfig, ConfigError, Framing, LINE, Mode, RingConfig};
use crate::endpoint::{Endpoint, RingEndpoint, Target};
use crate::error::RingError;
use crate::group::TailWord;
use crate::receive_policy::SIGNAL_EVERY;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::slot_array::SlotArray;
pub(crate) use greeting::{EndRole, Greeting};

/// Version of the ring's layout and of its greeting.
pub const VERSION: u16 = 2;

/// Failure to make or connect an end.
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
    /// The other end's ring has another version.
    #[error("the other end's ring has layout version {found}, this is version {VERSION}")]
    Version {
        /// Version of the other end's ring.
        found: u16,
    },
    /// The two ends are configured differently.
    #[error("the other end's {key} is {theirs}, ours is {ours}: they must be the same")]
    Mismatch {
        /// Key of the setting in which the ends differ.
        key: &'static str,
        /// Value at the other end.
        theirs: u64,
        /// Value at this end.
        ours: u64,
    },
    /// Both ends have the same role.
    #[error("both ends {does}: one must send and one must receive")]
    SameRole {
        /// Role of both ends as a verb: `send` or `receive`.
        does: &'static str,
    },
    /// The other end needs cursors by WRITE with immediate, but this end's group polls memory.
    #[error(
        "the other end sleeps, or memory on its device cannot be polled, but this group polls: make the \
         group with Mode::Notify"
    )]
    GroupPolls,
    /// All words of the group's tail array are taken.
    #[error("the group has {capacity} rings, as many as it was made for")]
    GroupFull {
        /// Number of rings that the group was made for.
        capacity: usize,
    },
    /// The memory that the device gave for the group's tail array cannot hold the word.
    #[error(
        "the group's tail array has no word {index}: the device's memory cannot hold one there"
    )]
    TailArray {
        /// Index of the word.
        index: u32,
    },
    /// The group is configured for latency mode, but the rings of a tail array need a tail.
    #[error(
        "rings in latency mode have no tail, and none in a tail array: add their receivers to the group \
         one by one, with Group::add_receiver"
    )]
    NoTail,
    /// Another group made the end.
    #[error("this end was made by another group: the one that made it must admit it")]
    OtherGroup,
    /// The group was made without a tail array.
    #[error("this group has no tail array: make it with Group::receiving")]
    NoTailArray,
    /// The other end's greeting is malformed.
    #[error("the other end's greeting is malformed: {0}")]
    Greeting(&'static str),
}

impl From<Malformed> for SetupError {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Greeting(what)
    }
}

/// Makes a queue pair and prepares it for bring-up. Its sends complete in the first queue, its receives in
/// the second. For `repost_at` see [`Endpoint::new`].
pub fn create_endpoint(
    pd: &dyn ProtectionDomain,
    [send_cq, recv_cq]: [&Arc<dyn CompletionQueue>; 2],
    caps: QpCaps,
    repost_at: u64,
) -> Result<Endpoint, SetupError> {
    let mut qp = pd.create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: send_cq.clone(),
        recv_cq: recv_cq.clone(),
        srq: None,
        caps,
        signal_all: false,
    })?;
    qp.modify(&QpAttr {
        state: Some(QpState::Init),
        access: Some(ConnectionParams::default().access),
        ..QpAttr::default()
    })?;
    Ok(Endpoint::new(qp, repost_at))
}

/// An end before it is connected.
struct EndParts {
    ring: CheckedConfig,
    greeting: Greeting,
    // Dropped before the memory: a late WRITE of the peer then finds no queue pair, instead of a key
    // that is refused.
    endpoint: Endpoint,
    slots: SlotArray,
    /// `None` in a group: the group polls for all its rings.
    cq: Option<Arc<dyn CompletionQueue>>,
    channel: Option<Arc<dyn CompletionChannel>>,
    staging: Option<Region>,
    /// Length of the longest WRITE of slots that is posted inline.
    inline_up_to: usize,
}

/// Checks that the WRITEs of groups, which are not signalled, cannot fill the send queue alone: it would
/// never empty.
fn check_groups(ring: &CheckedConfig, sends: u64) -> Result<(), ConfigError> {
    let groups = sends.saturating_sub(8).max(1);
    let lowest = ring.slots.div_ceil(groups);
    if ring.write_slots < lowest {
        return Err(ConfigError {
            key: "slots",
            value: ring.slots,
            legal: format!(
                "at most {} with {sends} send requests of at most {} slots each",
                groups * ring.write_slots,
                ring.write_slots
            ),
        });
    }
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

/// Returns how many slots the device's longest message holds. Refuses a ring if something that must go by
/// one WRITE is longer.
fn slots_in_a_write(info: &DeviceInfo, ring: &CheckedConfig) -> Result<u64, ResourceError> {
    let (slot, highest) = (ring.slot_size as u64, info.limits.max_message.into());
    let is_latency = ring.mode == Mode::Latency && !sleeps(info, ring) && keeps_order(info, ring);
    let (what, asked) = match is_latency {
        // One WRITE carries all of a message of several slots; another announces it.
        true => ("a message in latency mode", ring.max_slots * slot),
        false => ("a slot", slot),
    };
    if asked > highest {
        return Err(ResourceError::Limit {
            what,
            asked,
            lowest: 0,
            highest,
        });
    }
    Ok(highest / slot)
}

/// Returns whether the bytes of a slot become visible in order.
fn keeps_order(info: &DeviceInfo, ring: &CheckedConfig) -> bool {
    info.promises.in_order_within_write as usize >= ring.slot_size
}

/// Returns whether a ring on this device must be able to sleep: because the configuration asks for it, or
/// because memory cannot be polled.
pub(crate) fn sleeps(info: &DeviceInfo, ring: &CheckedConfig) -> bool {
    ring.mode == Mode::Notify || !can_poll(info)
}

fn can_poll(info: &DeviceInfo) -> bool {
    info.promises.ordered_between_writes && info.promises.atomic_aligned_8
}

/// Returns the send and receive requests that an end needs room for.
fn requests(info: &DeviceInfo, ring: &CheckedConfig, role: EndRole) -> (u32, u32) {
    let most = info.limits.max_qp_wr.into();
    let sends = match role {
        // Until a completion is polled, a message may need requests for its slots, a skip and a tail.
        EndRole::Sender => 2 * ring.slots + 8,
        EndRole::Receiver if sleeps(info, ring) => ring.slots.max(2 * SIGNAL_EVERY),
        EndRole::Receiver => 2 * SIGNAL_EVERY,
    };
    // Every cursor of the peer takes one receive, and at most N cursors are in flight.
    (sends.min(most) as u32, ring.slots.min(most) as u32)
}

/// Objects that a group provides to one of its receiving ends.
pub(crate) struct GroupPlacement {
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    /// The word that the sender's tail goes to.
    pub(crate) word: TailWord,
}

/// Returns the send and receive requests that a receiving end of a group needs room for. Where tails are
/// polled, nothing is received.
pub(crate) fn requests_in_group(info: &DeviceInfo, ring: &CheckedConfig) -> (u32, u32) {
    let (sends, receives) = requests(info, ring, EndRole::Receiver);
    (sends, if sleeps(info, ring) { receives } else { 1 })
}

impl EndParts {
    fn new(
        device: &Arc<dyn Device>,
        config: &RingConfig,
        role: EndRole,
        place: Option<&GroupPlacement>,
    ) -> Result<Self, SetupError> {
        let mut ring = config.settle()?;
        let info = device.info();
        let sleeps = sleeps(info, &ring);
        if role == EndRole::Sender {
            ring.write_slots = slots_in_a_write(info, &ring)?;
        }
        let channel = match sleeps && place.is_none() {
            true => Some(device.create_channel()?),
            false => None,
        };
        let (sends, receives) = match place {
            None => requests(info, &ring, role),
            Some(_) => requests_in_group(info, &ring),
        };
        if role == EndRole::Sender && ring.mode != Mode::Latency {
            check_groups(&ring, sends.into())?;
        }
        let (pd, cq) = match place {
            Some(place) => (place.pd.clone(), place.cq.clone()),
            None => {
                let depth = (sends + receives).min(info.limits.max_cqe);
                let cq = device.create_cq(&CqInit {
                    depth,
                    channel: channel.clone(),
                    timestamps: false,
                })?;
                (device.alloc_pd()?, cq)
            }
        };
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: match role {
                EndRole::Sender => info.tuning.inline_up_to.max(8),
                EndRole::Receiver => 8,
            }
            .min(info.limits.max_inline),
        };
        let mut endpoint = create_endpoint(&*pd, [&cq, &cq], caps, 1)?;
        let request = AllocRequest {
            len: config.misaligned_by + SlotArray::bytes(ring.array_len()),
            align: 64,
            pages: config.pages,
            numa_node: config.numa_node.or(info.numa_node),
            is_sealed: false,
            has_own_file: false,
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // The slots of a receiver may become visible in any order before the word that announces them does. In latency mode no
        // word announces them.
        let is_relaxed =
            info.tuning.relaxed_ordering && role == EndRole::Receiver && ring.mode != Mode::Latency;
        let region = match is_relaxed {
            true => pd.register(&device.alloc(&request)?, access | Access::RELAXED_ORDERING)?,
            false => pd.register(&device.alloc(&request)?, access)?,
        };
        // The device may grant less than it was asked for.
        let granted = endpoint.qp().caps().max_inline;
        let inline_up_to = info.tuning.inline_up_to.min(granted) as usize;
        let staging = if endpoint.qp().caps().max_inline >= 8 {
            None
        } else {
            // One word more than there are requests: see `endpoint::ring::stage`.
            let words = endpoint.depth() as usize + 1;
            let words = device.alloc(&AllocRequest::of(words * 8))?;
            Some(pd.register(&words, Access::NONE)?)
        };
        if sleeps {
            endpoint.owe(receives.into())?;
        }
        let (slots, tail_word) = match place {
            None => {
                let mut slots = SlotArray::new(region, ring.slot_size, config.misaligned_by);
                if is_relaxed {
                    let line = device.alloc(&AllocRequest {
                        len: LINE,
                        pages: Pages::Ordinary,
                        ..request
                    })?;
                    let cursor = slots.with_cursor_in(pd.register(&line, access)?);
                    slots = cursor.ok_or(SetupError::TailArray { index: 0 })?;
                }
                (slots, None)
            }
            Some(GroupPlacement { word, .. }) => {
                let slots = SlotArray::new(region, ring.slot_size, config.misaligned_by);
                (slots.with_cursor(word.at.clone(), word.start), Some(word))
            }
        };
        let in_order = keeps_order(info, &ring);
        let greeting = Greeting {
            role,
            mode: ring.mode,
            can_poll: can_poll(info),
            in_order,
            slots: ring.slots,
            slot_size: ring.slot_size as u64,
            framing: ring.framing,
            memory: slots.remote(),
            cursor: match tail_word {
                Some(word) => word.remote,
                None => slots.cursor_apart().unwrap_or_else(|| slots.remote()),
            },
            cursor_start: tail_word.map_or(0, |word| word.start),
        };
        Ok(Self {
            ring,
            greeting,
            endpoint,
            slots,
            cq: place.is_none().then_some(cq),
            channel,
            staging,
            inline_up_to,
        })
    }

    /// Returns the mode that follows from the two greetings.
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
                EndRole::Sender => "send",
                EndRole::Receiver => "receive",
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

    fn finish(
        mut self,
        payload: &[u8],
    ) -> Result<(CheckedConfig, SlotArray, RingEndpoint), SetupError> {
        let peer = Greeting::parse(payload)?;
        let mode = self.agree(&peer)?;
        let notify = mode == Mode::Notify;
        let in_group = self.cq.is_none();
        // An end that knew before that it sleeps has posted its receives.
        let ours = self.greeting.mode == Mode::Notify || !self.greeting.can_poll;
        if notify && !ours {
            if in_group {
                return Err(SetupError::GroupPolls);
            }
            let receives = self.endpoint.qp().caps().max_recv_wr;
            self.endpoint.owe(receives.into())?;
        }
        let ring = self.ring.in_mode(mode);
        let target = Target {
            memory: peer.memory,
            cursor: peer.cursor,
            cursor_start: peer.cursor_start,
        };
        let endpoint = RingEndpoint::new(
            self.endpoint,
            self.cq,
            self.channel,
            target,
            notify,
            self.staging,
            self.inline_up_to,
        );
        Ok((ring, self.slots, endpoint))
    }
}

macro_rules! setup {
    ($name:ident, $end:ident, $role:expr, $what:literal) => {
        #[doc = concat!($what, " that is not connected yet.")]
        pub struct $name(EndParts);

        impl $name {
            /// Makes the end on `device`.
            pub fn new(device: &Arc<dyn Device>, config: &RingConfig) -> Result<Self, SetupError> {
                EndParts::new(device, config, $role, None).map(Self)
            }

            /// Returns the payload that the bring-up must hand to the other end.
            pub fn greeting(&self) -> Vec<u8> {
                self.0.greeting.emit()
            }

            /// The queue pair to bring up.
            pub fn queue_pair(&mut self) -> &mut dyn QueuePair {
                self.0.endpoint.queue_pair()
            }

            /// Connection parameters for the bring-up.
            pub fn connection_params(&self) -> ConnectionParams {
                ConnectionParams::default()
            }

            /// Makes the end of a connected ring. `payload` is the other end's greeting.
            pub fn finish(self, payload: &[u8]) -> Result<$end, SetupError> {
                let (ring, slots, endpoint) = self.0.finish(payload)?;
                Ok($end::new(ring, slots, endpoint))
            }
        }
    };
}

setup!(SenderSetup, Sender, EndRole::Sender, "A sending end");
setup!(
    ReceiverSetup,
    Receiver,
    EndRole::Receiver,
    "A receiving end"
);

/// A receiving end that has a word of a group's tail array.
pub(crate) struct GroupReceiverSetup(EndParts);

impl GroupReceiverSetup {
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        config: &RingConfig,
        place: &GroupPlacement,
    ) -> Result<Self, SetupError> {
        EndParts::new(device, config, EndRole::Receiver, Some(place)).map(Self)
    }

    pub(crate) fn greeting(&self) -> Vec<u8> {
        self.0.greeting.emit()
    }

    pub(crate) fn queue_pair(&mut self) -> &mut dyn QueuePair {
        self.0.endpoint.queue_pair()
    }

    pub(crate) fn finish(self, payload: &[u8]) -> Result<Receiver, SetupError> {
        let (ring, slots, endpoint) = self.0.finish(payload)?;
        Ok(Receiver::new(ring, slots, endpoint))
    }
}

//! Creates and connects the ends of a paper design, in the same way as ring ends.

use std::marker::PhantomData;
use std::sync::Arc;

use headworks_ring::config::{
    CheckedConfig, ConfigError, Framing, LINE, Mode, SLOT_MAX, SLOTS_MAX,
};
use headworks_ring::endpoint::Endpoint;
use headworks_ring::setup::create_endpoint;
use headworks_ring::{EndSetup, MessageReceiver, MessageSender, SetupError, Unconnected};
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    AllocRequest, Device, Pages, Promises, QpCaps, QueuePair, RemoteAddr, ResourceError,
};

use super::connected_end::{ConnectedEnd, RECEIVES};
use crate::{End, EndError, EndSizes, WordMemory};

/// Bytes in front of an end's array: one cache line for the cursor that the peer writes, and one for the
/// cursor that the peer READs.
pub const ARRAY: usize = 2 * LINE;

/// Slot size of designs that pack messages, in bytes.
const UNIT: usize = 8;

/// Number and maximum length of the messages that a channel is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// N: messages of the longest length for which the array has room.
    pub messages: u32,
    /// Longest message, in bytes.
    pub longest: usize,
}

impl Plan {
    /// Returns the array's configuration for a design that packs messages after a header of 8 bytes. The
    /// head is pushed when a quarter of the array is free: γ = N/4, as in the ring.
    pub fn packed(&self) -> Result<CheckedConfig, ConfigError> {
        for (key, value, lowest, highest) in [
            ("messages", u64::from(self.messages), 2, SLOTS_MAX.into()),
            ("longest message", self.longest as u64, 0, SLOT_MAX as u64),
        ] {
            if !(lowest..=highest).contains(&value) {
                let legal = format!("{lowest} to {highest}");
                return Err(ConfigError { key, value, legal });
            }
        }
        let max_slots = (self.longest + 8).div_ceil(UNIT) as u64;
        let units = max_slots * u64::from(self.messages);
        Ok(CheckedConfig {
            slots: units,
            slot_size: UNIT,
            transmit_every: 1,
            publish_every: 1,
            push_every: (units / 4).max(1),
            framing: Framing::Variable(self.longest),
            mode: Mode::Poll,
            elastic: false,
            max_slots,
            max_message: self.longest,
            write_slots: u64::MAX,
        })
    }
}

/// A design: two ends that understand each other.
pub trait Design: Sized + Clone + Send + 'static {
    /// The sending end.
    type Sender: MessageSender + Send;
    /// The receiving end.
    type Receiver: MessageReceiver + Send;

    /// Identifies the design. Both ends must have the same tag.
    fn tag(&self) -> u8;

    /// Whether a device with these promises has all that the design needs beyond the specification.
    fn needs(&self, promises: &Promises) -> bool {
        needs(promises)
    }

    /// Page size that the design's arrays prefer.
    fn pages(&self) -> Pages {
        Pages::Ordinary
    }

    /// Returns the array's configuration.
    fn settle(&self) -> Result<CheckedConfig, SetupError>;

    /// Returns the queue sizes of both ends.
    fn depths(&self, ring: &CheckedConfig) -> Depths;

    /// Creates the sending end over its connection.
    fn sender(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Sender;

    /// Creates the receiving end over its connection.
    fn receiver(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Receiver;
}

/// Queue sizes of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Send requests of the sending end.
    pub sends: u64,
    /// Send requests of the receiving end.
    pub pushes: u64,
    /// Receives of the receiving end, posted before it is connected.
    pub receives: u64,
}

/// Whether a device with these promises can run the designs. A newer head or tail in memory must not be
/// overwritten by an older one, and must not be seen torn.
pub fn needs(promises: &Promises) -> bool {
    promises.ordered_between_writes && promises.atomic_aligned_8
}

/// The end that a setup creates. The peer receives this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Sender = 1,
    Receiver = 2,
}

/// Marks a setup whose end will send.
#[derive(Debug)]
pub enum Sends {}

/// Marks a setup whose end will receive.
#[derive(Debug)]
pub enum Receives {}

/// An end that is not connected yet. `E` is [`Sends`] or [`Receives`].
pub struct BaselineSetup<D: Design, E> {
    design: D,
    ring: CheckedConfig,
    role: Role,
    // Dropped before the memory; see `ConnectedEnd`.
    endpoint: Endpoint,
    end: End,
    memory: WordMemory,
    becomes: PhantomData<fn() -> E>,
}

fn resource(error: EndError) -> SetupError {
    SetupError::Resource(error.source)
}

impl<D: Design> BaselineSetup<D, Sends> {
    /// Creates the sending end on `device`.
    pub fn sender(device: &Arc<dyn Device>, design: D) -> Result<Self, SetupError> {
        Self::new(device, design, Role::Sender)
    }
}

impl<D: Design> BaselineSetup<D, Receives> {
    /// Creates the receiving end on `device`.
    pub fn receiver(device: &Arc<dyn Device>, design: D) -> Result<Self, SetupError> {
        Self::new(device, design, Role::Receiver)
    }
}

impl<D: Design, E> BaselineSetup<D, E> {
    fn new(device: &Arc<dyn Device>, design: D, role: Role) -> Result<Self, SetupError> {
        let info = device.info();
        if !design.needs(&info.promises) {
            let what = "ordered_between_writes or no atomic_aligned_8; this design needs both";
            return Err(ResourceError::Unsupported { what }.into());
        }
        let ring = design.settle()?;
        let depths = design.depths(&ring);
        let most = u64::from(info.limits.max_qp_wr);
        let sends = match role {
            Role::Sender => depths.sends,
            Role::Receiver => depths.pushes,
        };
        let caps = QpCaps {
            max_send_wr: sends.clamp(1, most) as u32,
            max_recv_wr: depths.receives.clamp(1, most) as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 8,
        };
        let shape = EndSizes {
            queue_pairs: 1,
            caps,
            cq_depth: (caps.max_send_wr + caps.max_recv_wr).min(info.limits.max_cqe),
            shared_receives: 0,
            channel: false,
        };
        let end = End::open(device.clone(), &shape).map_err(resource)?;
        let mut endpoint = create_endpoint(&*end.pd, [&end.send_cq, &end.recv_cq], caps, RECEIVES)?;
        let request = AllocRequest {
            numa_node: info.numa_node,
            pages: design.pages(),
            ..AllocRequest::of(ARRAY + ring.array_len())
        };
        let memory = end.memory_as(&request).map_err(resource)?;
        if role == Role::Receiver {
            endpoint.owe(depths.receives)?;
        }
        Ok(Self {
            design,
            ring,
            role,
            endpoint,
            end,
            memory,
            becomes: PhantomData,
        })
    }

    /// Names and values of the settings that both ends must have in common.
    fn common(&self) -> [(&'static str, u64); 4] {
        [
            ("design", self.design.tag().into()),
            ("slots", self.ring.slots),
            ("slot_size", self.ring.slot_size as u64),
            ("longest message", self.ring.max_message as u64),
        ]
    }

    fn hello(&self) -> Vec<u8> {
        let here = self.memory.region().remote(0);
        let mut bytes = vec![self.role as u8];
        bytes.extend(here.addr.to_le_bytes());
        for (_, word) in self.common() {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(here.rkey.to_le_bytes());
        bytes
    }

    fn connected_end(self, payload: &[u8]) -> Result<(D, CheckedConfig, ConnectedEnd), SetupError> {
        let malformed = || SetupError::Greeting("its length");
        let (&[role], rest) = payload.split_first_chunk::<1>().ok_or_else(malformed)?;
        let (words, key) = rest.split_at_checked(40).ok_or_else(malformed)?;
        let (words, _) = words.as_chunks::<8>();
        let addr = u64::from_le_bytes(words[0]);
        let rkey = u32::from_le_bytes(key.try_into().map_err(|_| malformed())?);
        let does = match self.role {
            Role::Sender => "send",
            Role::Receiver => "receive",
        };
        if role == self.role as u8 {
            return Err(SetupError::SameRole { does });
        }
        for ((key, ours), theirs) in self.common().into_iter().zip(&words[1..]) {
            let theirs = u64::from_le_bytes(*theirs);
            if theirs != ours {
                return Err(SetupError::Mismatch { key, theirs, ours });
            }
        }
        let peer = RemoteAddr { addr, rkey };
        let connected_end = ConnectedEnd::new(self.endpoint, self.end, self.memory, peer);
        Ok((self.design, self.ring, connected_end))
    }
}

impl<D: Design, E> Unconnected for BaselineSetup<D, E> {
    fn greeting(&self) -> Vec<u8> {
        self.hello()
    }

    fn queue_pair(&mut self) -> &mut dyn QueuePair {
        self.endpoint.queue_pair()
    }

    fn connection_params(&self) -> ConnectionParams {
        ConnectionParams::default()
    }
}

impl<D: Design> EndSetup for BaselineSetup<D, Sends> {
    type End = D::Sender;

    fn finish(self, payload: &[u8]) -> Result<Self::End, SetupError> {
        let (design, ring, connected_end) = self.connected_end(payload)?;
        Ok(design.sender(ring, connected_end))
    }
}

impl<D: Design> EndSetup for BaselineSetup<D, Receives> {
    type End = D::Receiver;

    fn finish(self, payload: &[u8]) -> Result<Self::End, SetupError> {
        let (design, ring, connected_end) = self.connected_end(payload)?;
        Ok(design.receiver(ring, connected_end))
    }
}

//! What a case can ask of a host, and what it is answered: plain data that names objects by small
//! numbers, so that it can be shipped to another process, drawn at random, and compared.
//!
//! An object's number is the caller's choice and unique within its host; it is never used again.
//! Memory is named by region and offset, queue pairs of other hosts by host and number: what they
//! are in numbers on a wire is filled in on the way ([`HandleTable`](crate::handles::HandleTable)), so that the same
//! calls mean the same on every provider.

use headworks_verbs::{Access, Opcode, QpAttr, QpCaps, QpType};
use serde::{Deserialize, Serialize};

use crate::world::{HostId, HostRole};

mod codec;
mod reply;

pub use reply::{DeviceFacts, Done, Event, Refusal, Reply};

/// An object's number within its host.
pub type Id = u32;

/// One thing to do on a host.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// Opens the device that the world has at `end`. Answered with [`Reply::Device`].
    Open { device: Id, end: HostRole },
    /// Takes all asynchronous events that wait.
    TakeEvents { device: Id },
    /// The clock of completion timestamps.
    DeviceTime { device: Id },

    /// A protection domain.
    AllocPd { pd: Id, device: Id },
    /// Memory from the device.
    Alloc {
        buffer: Id,
        device: Id,
        len: usize,
        align: usize,
    },
    /// Ordinary memory of the process, that no device gave.
    Heap { buffer: Id, len: usize },
    /// Registers a buffer. Answered with [`Reply::Keys`].
    Register {
        region: Id,
        pd: Id,
        buffer: Id,
        #[serde(with = "codec::access")]
        access: Access,
    },
    /// A completion channel.
    CreateChannel { channel: Id, device: Id },
    /// A completion queue. Answered with its depth.
    CreateCq {
        cq: Id,
        device: Id,
        depth: u32,
        channel: Option<Id>,
        timestamps: bool,
    },
    /// A shared receive queue.
    CreateSrq {
        srq: Id,
        pd: Id,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
    },
    /// A queue pair. Answered with [`Reply::Queue`].
    CreateQp(QpCreateCall),
    /// An address handle for datagrams to the port of another host.
    CreateAh { ah: Id, pd: Id, to: Port },
    /// Drops an object of any kind.
    Destroy { object: Id },

    /// Changes state and attributes; `peer` fills in the destination.
    Modify {
        qp: Id,
        #[serde(with = "codec::attr")]
        attr: QpAttr,
        peer: Option<Peer>,
    },
    /// The state of a queue pair.
    State { qp: Id },
    /// Posts a chain of send requests.
    PostSend { qp: Id, chain: Vec<Send> },
    /// Posts a chain of receives to a queue pair or a shared receive queue.
    PostRecv { queue: Id, chain: Vec<Receive> },
    /// Arms the limit event of a shared receive queue.
    SetLimit { srq: Id, limit: u32 },

    /// Takes up to `most` completions.
    Poll { cq: Id, most: usize },
    /// Asks for an event.
    Arm { cq: Id, solicited_only: bool },
    /// The next CQ with an event.
    ChannelEvent { channel: Id },
    /// Sleeps until the channel is readable, `at_most_ms` long. Answered with whether it is.
    Sleep { channel: Id, at_most_ms: u32 },

    /// Puts bytes into memory.
    Put {
        buffer: Id,
        offset: usize,
        bytes: Vec<u8>,
    },
    /// Gets bytes of memory.
    Get {
        buffer: Id,
        offset: usize,
        len: usize,
    },
    /// Fills memory with the pattern of `seed`.
    Fill {
        buffer: Id,
        offset: usize,
        len: usize,
        seed: u64,
    },
    /// Whether memory holds the pattern of `seed`.
    Check {
        buffer: Id,
        offset: usize,
        len: usize,
        seed: u64,
    },

    /// Begins to connect by the byte state machine. Answered with [`Reply::Greeting`].
    GreetFirst {
        qp: Id,
        device: Id,
        seed: u32,
        payload: Vec<u8>,
    },
    /// Feeds it what the other side said.
    Greet { qp: Id, bytes: Vec<u8> },

    /// One after the other, up to the first that is refused.
    Each(Vec<Self>),
    /// The same again, up to `times` times, or until one of them is refused for another reason than
    /// that a queue is full, a completion is not a success, or there is a sign. Answered with the
    /// completions, of very many the last.
    Repeat {
        times: u64,
        until: Option<ByteCondition>,
        calls: Vec<Self>,
    },
}

/// A byte of memory that is about to become this.
#[expect(missing_docs, reason = "fields say where it is, and what it will be")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteCondition {
    pub buffer: Id,
    pub offset: usize,
    pub byte: u8,
}

/// What a queue pair is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QpCreateCall {
    /// Its number.
    pub qp: Id,
    /// Its domain.
    pub pd: Id,
    /// Transport.
    #[serde(with = "codec::qp_type")]
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: Id,
    /// Where receives complete.
    pub recv_cq: Id,
    /// Where its receives come from.
    pub srq: Option<Id>,
    /// Sizes.
    #[serde(with = "codec::caps")]
    pub caps: QpCaps,
    /// Every send completes.
    pub signal_all: bool,
}

/// The other end of a connection, or whom a datagram is for.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Peer {
    /// A queue pair of a host.
    Of { host: HostId, qp: Id },
    /// A port and a number.
    At { port: PortAddress, qpn: u32 },
}

/// A port.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Port {
    /// That of a host's device.
    Of { host: HostId },
    /// An address.
    At { port: PortAddress },
}

/// A port's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAddress {
    /// Its GID.
    pub gid: [u8; 16],
    /// Its LID, on an InfiniBand network; 0 for none.
    pub lid: u16,
}

/// InProcessWorld bytes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The region.
    pub region: Id,
    /// From here; may lie outside.
    pub offset: i64,
    /// Bytes.
    pub len: u32,
    /// What is wrong with it.
    pub address_fault: AddressFault,
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Remote {
    /// Some of a host's region.
    Of {
        /// The host.
        host: HostId,
        /// The region.
        region: Id,
        /// From here; may lie outside.
        offset: i64,
        /// What is wrong with it.
        address_fault: AddressFault,
    },
    /// An address and a key.
    At {
        /// The address.
        addr: u64,
        /// The key.
        rkey: u32,
    },
}

/// What is wrong with an address: nothing, by default.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct AddressFault {
    /// Exclusive-ored to the key.
    pub key_xor: u32,
    /// Stands instead of the address.
    pub absolute: Option<u64>,
}

impl AddressFault {
    /// Another key.
    pub const fn key(key_xor: u32) -> Self {
        Self {
            key_xor,
            absolute: None,
        }
    }

    /// Another address.
    pub const fn absolute(addr: u64) -> Self {
        Self {
            key_xor: 0,
            absolute: Some(addr),
        }
    }

    /// The address and the key that come of it.
    pub fn apply(self, base: u64, offset: i64, key: u32) -> (u64, u32) {
        let inside = || base.wrapping_add_signed(offset);
        (self.absolute.unwrap_or_else(inside), key ^ self.key_xor)
    }
}

impl Piece {
    /// The same, with something wrong.
    pub const fn with_address_fault(self, address_fault: AddressFault) -> Self {
        Self {
            address_fault,
            ..self
        }
    }
}

impl Remote {
    /// The same, with something wrong; an address and a key stay what they are.
    pub const fn with_address_fault(self, address_fault: AddressFault) -> Self {
        match self {
            Self::Of {
                host,
                region,
                offset,
                ..
            } => Self::Of {
                host,
                region,
                offset,
                address_fault,
            },
            at => at,
        }
    }
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm(u32),
    /// WRITE.
    Write(Remote),
    /// WRITE with immediate.
    WriteImm(Remote, u32),
    /// READ.
    Read(Remote),
    /// Compare-and-swap.
    CompareSwap {
        /// The word.
        remote: Remote,
        /// What it must be.
        expect: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Fetch-and-add.
    FetchAdd {
        /// The word.
        remote: Remote,
        /// What is added.
        add: u64,
    },
    /// A datagram, with immediate where there is one.
    SendTo {
        /// The address handle.
        ah: Id,
        /// Whom it is for.
        peer: Peer,
        /// What the receiver demands to see.
        qkey: u32,
        /// Immediate.
        imm: Option<u32>,
    },
}

/// The local bytes of a send request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Data {
    /// Registered memory.
    Gather(Vec<Piece>),
    /// Bytes in the request.
    Inline(Vec<u8>),
}

/// A send request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Send {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: Op,
    /// The local bytes.
    pub data: Data,
    /// Completes into the CQ.
    pub signaled: bool,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
    /// The peer's completion is a solicited event.
    pub solicited: bool,
}

impl Send {
    /// A signalled request.
    pub fn new(wr_id: u64, op: Op, pieces: &[Piece]) -> Self {
        Self {
            wr_id,
            op,
            data: Data::Gather(pieces.to_vec()),
            signaled: true,
            fence: false,
            solicited: false,
        }
    }

    /// A signalled request whose bytes are in it.
    pub fn inline(wr_id: u64, op: Op, bytes: &[u8]) -> Self {
        Self {
            data: Data::Inline(bytes.to_vec()),
            ..Self::new(wr_id, op, &[])
        }
    }

    /// The same request, without a completion of its own.
    pub fn quiet(self) -> Self {
        Self {
            signaled: false,
            ..self
        }
    }

    /// The same, behind a fence.
    pub fn fenced(self) -> Self {
        Self {
            fence: true,
            ..self
        }
    }

    /// The same request, which raises an event at the receiver.
    pub fn solicited(self) -> Self {
        Self {
            solicited: true,
            ..self
        }
    }
}

/// A receive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receive {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub pieces: Vec<Piece>,
}

impl Receive {
    /// A receive into `pieces`.
    pub fn new(wr_id: u64, pieces: &[Piece]) -> Self {
        Self {
            wr_id,
            pieces: pieces.to_vec(),
        }
    }
}

impl Op {
    /// What completes.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendTo { .. } => Opcode::Send,
            Self::Write(_) | Self::WriteImm(..) => Opcode::Write,
            Self::Read(_) => Opcode::Read,
            Self::CompareSwap { .. } => Opcode::CompareSwap,
            Self::FetchAdd { .. } => Opcode::FetchAdd,
        }
    }
}

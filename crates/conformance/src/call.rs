//! Calls to a host. They are plain data that names objects by small numbers, so that a call can be sent to
//! another process, generated at random, and compared.
//!
//! The caller chooses the number of an object. A number is unique within its host and is never reused.
//! A call names memory by region and offset, and a queue pair of another host by host and number.
//! [`HandleTable`](crate::handles::HandleTable) fills in addresses, keys and queue pair numbers on the wire
//! before the call is executed, so that a call means the same on every provider.

use headworks_verbs::{Access, Opcode, QpAttr, QpCaps, QpType};
use serde::{Deserialize, Serialize};

use crate::world::{HostId, HostRole};

mod codec;
mod reply;

pub use reply::{DeviceFacts, Done, Event, Refusal, Reply};

/// Number of an object within its host.
pub type Id = u32;

/// Action to execute on a host.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// Opens the device that the world assigns to the role `end`. Answered with [`Reply::Device`].
    Open { device: Id, end: HostRole },
    /// Takes all pending asynchronous events.
    TakeEvents { device: Id },
    /// Returns the clock of completion timestamps.
    DeviceTime { device: Id },

    /// Allocates a protection domain.
    AllocPd { pd: Id, device: Id },
    /// Allocates memory from the device.
    Alloc {
        buffer: Id,
        device: Id,
        len: usize,
        align: usize,
    },
    /// Allocates ordinary process memory, not from a device.
    Heap { buffer: Id, len: usize },
    /// Registers a buffer. Answered with [`Reply::Keys`].
    Register {
        region: Id,
        pd: Id,
        buffer: Id,
        #[serde(with = "codec::access")]
        access: Access,
    },
    /// Creates a completion channel.
    CreateChannel { channel: Id, device: Id },
    /// Creates a completion queue. Answered with its depth.
    CreateCq {
        cq: Id,
        device: Id,
        depth: u32,
        channel: Option<Id>,
        timestamps: bool,
    },
    /// Creates a shared receive queue.
    CreateSrq {
        srq: Id,
        pd: Id,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
    },
    /// Creates a queue pair. Answered with [`Reply::Queue`].
    CreateQp(QpCreateCall),
    /// Creates an address handle for datagrams to the port of another host.
    CreateAh { ah: Id, pd: Id, to: Port },
    /// Drops an object of any kind.
    Destroy { object: Id },

    /// Changes the state and attributes of a queue pair; `peer` fills in the destination.
    Modify {
        qp: Id,
        #[serde(with = "codec::attr")]
        attr: QpAttr,
        peer: Option<Peer>,
    },
    /// Returns the state of a queue pair.
    State { qp: Id },
    /// Posts a chain of send requests.
    PostSend { qp: Id, chain: Vec<Send> },
    /// Posts a chain of receives to a queue pair or a shared receive queue.
    PostRecv { queue: Id, chain: Vec<Receive> },
    /// Arms the limit event of a shared receive queue.
    SetLimit { srq: Id, limit: u32 },

    /// Polls up to `most` completions.
    Poll { cq: Id, most: usize },
    /// Requests a completion event.
    Arm { cq: Id, solicited_only: bool },
    /// Returns the next CQ with an event.
    ChannelEvent { channel: Id },
    /// Sleeps until the channel is readable, `at_most_ms` at most. Answered with whether it is readable.
    Sleep { channel: Id, at_most_ms: u32 },

    /// Writes bytes to memory.
    Put {
        buffer: Id,
        offset: usize,
        bytes: Vec<u8>,
    },
    /// Reads bytes of memory.
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
    /// Returns whether memory holds the pattern of `seed`.
    Check {
        buffer: Id,
        offset: usize,
        len: usize,
        seed: u64,
    },

    /// Starts the byte state machine that connects a queue pair. Answered with [`Reply::Greeting`].
    GreetFirst {
        qp: Id,
        device: Id,
        seed: u32,
        payload: Vec<u8>,
    },
    /// Feeds the state machine with bytes from the other side.
    Greet { qp: Id, bytes: Vec<u8> },

    /// Executes calls in order, up to the first that is refused.
    Each(Vec<Self>),
    /// Repeats calls in order, up to `times` times. Stops early if the byte `until` is set, if a completion
    /// is not a success, or if a call is refused for another reason than a full queue. Answered with the
    /// completions; of very many, only the last.
    Repeat {
        times: u64,
        until: Option<ByteCondition>,
        calls: Vec<Self>,
    },
}

/// Byte of memory whose expected value ends a [`Call::Repeat`].
#[expect(missing_docs, reason = "fields say where it is, and what it will be")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteCondition {
    pub buffer: Id,
    pub offset: usize,
    pub byte: u8,
}

/// Parameters of a new queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QpCreateCall {
    /// Number of the queue pair.
    pub qp: Id,
    /// Protection domain.
    pub pd: Id,
    /// Transport.
    #[serde(with = "codec::qp_type")]
    pub qp_type: QpType,
    /// CQ of its sends.
    pub send_cq: Id,
    /// CQ of its receives.
    pub recv_cq: Id,
    /// Shared receive queue, if it has one.
    pub srq: Option<Id>,
    /// Requested sizes.
    #[serde(with = "codec::caps")]
    pub caps: QpCaps,
    /// Every send request generates a completion.
    pub signal_all: bool,
}

/// Remote end of a connection, or destination of a datagram.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Peer {
    /// Queue pair of a host.
    Of { host: HostId, qp: Id },
    /// Port address and queue pair number.
    At { port: PortAddress, qpn: u32 },
}

/// Port of a device.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Port {
    /// Port of a host's device.
    Of { host: HostId },
    /// Port with this address.
    At { port: PortAddress },
}

/// Address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAddress {
    /// GID.
    pub gid: [u8; 16],
    /// LID on an InfiniBand network; 0 if there is none.
    pub lid: u16,
}

/// Local memory that a request names: one scatter/gather element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Region.
    pub region: Id,
    /// Offset from the start of the region; may lie outside it.
    pub offset: i64,
    /// Length in bytes.
    pub len: u32,
    /// Fault to apply to the address or the key.
    pub address_fault: AddressFault,
}

/// Remote memory that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Remote {
    /// Memory of a host's region.
    Of {
        /// Host that owns the region.
        host: HostId,
        /// Region.
        region: Id,
        /// Offset from the start of the region; may lie outside it.
        offset: i64,
        /// Fault to apply to the address or the key.
        address_fault: AddressFault,
    },
    /// Memory at an address, with a key.
    At {
        /// Address.
        addr: u64,
        /// Remote key.
        rkey: u32,
    },
}

/// Fault to apply to an address or a key; none by default.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct AddressFault {
    /// Bits to flip in the key.
    pub key_xor: u32,
    /// Address that replaces the correct one, if any.
    pub absolute: Option<u64>,
}

impl AddressFault {
    /// Returns a fault that flips these bits of the key.
    pub const fn key(key_xor: u32) -> Self {
        Self {
            key_xor,
            absolute: None,
        }
    }

    /// Returns a fault that replaces the address.
    pub const fn absolute(addr: u64) -> Self {
        Self {
            key_xor: 0,
            absolute: Some(addr),
        }
    }

    /// Applies the fault to a base address, an offset and a key. Returns the address and the key.
    pub fn apply(self, base: u64, offset: i64, key: u32) -> (u64, u32) {
        let inside = || base.wrapping_add_signed(offset);
        (self.absolute.unwrap_or_else(inside), key ^ self.key_xor)
    }
}

impl Piece {
    /// Returns the piece with a fault.
    pub const fn with_address_fault(self, address_fault: AddressFault) -> Self {
        Self {
            address_fault,
            ..self
        }
    }
}

impl Remote {
    /// Returns the memory with a fault. A [`Remote::At`] is returned unchanged.
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

/// Operation of a send request.
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
        /// Remote word.
        remote: Remote,
        /// Expected value.
        expect: u64,
        /// New value.
        swap: u64,
    },
    /// Fetch-and-add.
    FetchAdd {
        /// Remote word.
        remote: Remote,
        /// Value to add.
        add: u64,
    },
    /// SEND of a datagram, with an immediate if `imm` is set.
    SendTo {
        /// Address handle.
        ah: Id,
        /// Destination.
        peer: Peer,
        /// Q_Key, which the receiver checks.
        qkey: u32,
        /// Immediate.
        imm: Option<u32>,
    },
}

impl Op {
    /// Returns whether it is an atomic.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// Local data of a send request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Data {
    /// Pieces of registered memory.
    Gather(Vec<Piece>),
    /// Inline bytes.
    Inline(Vec<u8>),
}

/// A send request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Send {
    /// Identifier returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub op: Op,
    /// Local data.
    pub data: Data,
    /// The request generates a completion even if it succeeds.
    pub signaled: bool,
    /// The request waits for earlier READs and atomics.
    pub fence: bool,
    /// The peer's completion is a solicited event.
    pub solicited: bool,
}

impl Send {
    /// Returns a signalled request.
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

    /// Returns a signalled request with an inline payload.
    pub fn inline(wr_id: u64, op: Op, bytes: &[u8]) -> Self {
        Self {
            data: Data::Inline(bytes.to_vec()),
            ..Self::new(wr_id, op, &[])
        }
    }

    /// Returns the request unsignalled.
    pub fn quiet(self) -> Self {
        Self {
            signaled: false,
            ..self
        }
    }

    /// Returns the request with a fence.
    pub fn fenced(self) -> Self {
        Self {
            fence: true,
            ..self
        }
    }

    /// Returns the request with the solicited-event flag.
    pub fn solicited(self) -> Self {
        Self {
            solicited: true,
            ..self
        }
    }
}

/// Receive request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receive {
    /// Identifier returned in the completion.
    pub wr_id: u64,
    /// Memory for the incoming bytes.
    pub pieces: Vec<Piece>,
}

impl Receive {
    /// Returns a receive into `pieces`.
    pub fn new(wr_id: u64, pieces: &[Piece]) -> Self {
        Self {
            wr_id,
            pieces: pieces.to_vec(),
        }
    }
}

impl Op {
    /// Returns the opcode of the operation's completion.
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

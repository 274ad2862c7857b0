//! Replies to calls.

use headworks_verbs::{
    Abilities, Atomics, DeviceLimits, Instant, Mtu, Opcode, PollError, PostError, Promises,
    QpState, Status,
};
use serde::{Deserialize, Serialize};

use super::{Id, PortAddress, codec};

/// Reply to a call.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The call succeeded and has no result.
    Done,
    /// The call was refused.
    No(Refusal),
    /// The host no longer exists.
    Gone,
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Properties of the opened device.
    Device(DeviceFacts),
    /// Address and keys of a region, for the [`HandleTable`](crate::handles::HandleTable).
    /// Not for comparison.
    Keys {
        addr: u64,
        lkey: u32,
        rkey: u32,
        whole_words: bool,
    },
    /// Number and sizes of a queue pair. The number is not for comparison.
    Queue {
        qpn: u32,
        #[serde(with = "codec::caps")]
        caps: headworks_verbs::QpCaps,
    },
    /// A queue pair's state.
    State(#[serde(with = "codec::state")] QpState),
    /// Completions.
    Completions(Vec<Done>),
    /// CQ that had an event, if any.
    CqEvent(Option<Id>),
    /// Asynchronous events.
    Events(Vec<Event>),
    /// Bytes for the other side, whether the queue pair is connected, and the other side's payload.
    Greeting {
        out: Vec<u8>,
        connected: bool,
        payload: Option<Vec<u8>>,
    },
    /// Replies to the calls, up to the first that was refused.
    Each(Vec<Self>),
}

/// Properties that a device reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// KIND part of the device name.
    pub kind: String,
    /// Address of the port.
    pub port: PortAddress,
    /// MTU of the port.
    #[serde(with = "codec::mtu")]
    pub mtu: Mtu,
    /// Limits of the device.
    #[serde(with = "codec::limits")]
    pub limits: DeviceLimits,
    /// Promises of the device.
    #[serde(with = "codec::promises")]
    pub promises: Promises,
    /// Optional parts of verbs that the device has.
    #[serde(with = "codec::abilities")]
    pub abilities: Abilities,
}

impl DeviceFacts {
    /// Returns what the device lacks of that which not every device has, as the messages of its refusals end.
    pub fn lacks(&self) -> Vec<&'static str> {
        let all = [
            (self.abilities.uc, "unreliable connections (UC)"),
            (self.abilities.ud, "datagrams (UD)"),
            (self.abilities.atomics != Atomics::None, "atomics"),
            (self.limits.has_srqs(), "shared receive queues"),
        ];
        let lacks = all.into_iter().filter(|(is_there, _)| !is_there);
        lacks.map(|(_, name)| name).collect()
    }
}

/// Reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Variant name of the error.
    pub kind: String,
    /// Message of the error, one line.
    pub text: String,
    /// Index of the refused request in its chain.
    pub index: Option<usize>,
}

impl Refusal {
    /// Returns the refusal for an error.
    pub fn of(error: &(impl std::fmt::Debug + std::fmt::Display)) -> Self {
        let debug = format!("{error:?}");
        let end = debug.find(|c: char| !c.is_alphanumeric());
        Self {
            kind: debug[..end.unwrap_or(debug.len())].to_owned(),
            text: error.to_string(),
            index: None,
        }
    }

    /// Returns the refusal of an invalid call, which is a mistake of the case.
    pub fn mistake(text: impl Into<String>) -> Self {
        Self {
            kind: "Mistake".to_owned(),
            text: text.into(),
            index: None,
        }
    }
}

impl From<PostError> for Refusal {
    fn from(error: PostError) -> Self {
        Self {
            index: Some(error.index),
            ..Self::of(&error.kind)
        }
    }
}

impl From<PollError> for Refusal {
    fn from(error: PollError) -> Self {
        Self::of(&error)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.index {
            Some(index) => write!(f, "request {index}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// Completion. Queue pairs have the numbers that the caller chose. In a failed completion only `wr_id`,
/// `status`, `qp` and `timestamp` come from the device; the other fields are blank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Identifier of the request.
    pub wr_id: u64,
    /// Status.
    #[serde(with = "codec::status")]
    pub status: Status,
    /// Opcode.
    #[serde(with = "codec::opcode")]
    pub opcode: Opcode,
    /// Queue pair.
    pub qp: Option<Id>,
    /// Length in bytes.
    pub byte_len: u32,
    /// Immediate, if there is one.
    pub imm: Option<u32>,
    /// UD: the sender's queue pair number on the wire.
    pub src_qpn: u32,
    /// UD: the receive begins with a GRH.
    pub grh: bool,
    /// Time of the completion on the device's clock.
    #[serde(with = "codec::instant")]
    pub timestamp: Instant,
}

/// Asynchronous event: something that no completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A queue pair entered the error state by itself.
    QpFatal(Option<Id>),
    /// A queue pair in the error state has consumed its last receive of an SRQ.
    QpLastWqe(Option<Id>),
    /// A completion queue overran.
    CqError(Option<Id>),
    /// A shared receive queue fell below its limit.
    SrqLimit(Option<Id>),
    /// Any other event.
    Other,
}

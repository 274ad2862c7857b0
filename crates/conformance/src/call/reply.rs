//! Answers.

use headworks_verbs::{
    DeviceLimits, Instant, Mtu, Opcode, PollError, PostError, Promises, QpState, Status,
};
use serde::{Deserialize, Serialize};

use super::{Id, PortAddress, codec};

/// What a call is answered with.
#[expect(
    missing_docs,
    reason = "fields are numbers of objects, or what verbs call them"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// Refused.
    No(Refusal),
    /// The host is not there any more.
    Gone,
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A device as it presents itself.
    Device(DeviceFacts),
    /// A region's keys: for the [`HandleTable`](crate::handles::HandleTable), not for comparison.
    Keys {
        addr: u64,
        lkey: u32,
        rkey: u32,
        whole_words: bool,
    },
    /// A queue pair's number, which is not for comparison, and sizes.
    Queue {
        qpn: u32,
        #[serde(with = "codec::caps")]
        caps: headworks_verbs::QpCaps,
    },
    /// A queue pair's state.
    State(#[serde(with = "codec::state")] QpState),
    /// Completions.
    Completions(Vec<Done>),
    /// The CQ that had an event.
    CqEvent(Option<Id>),
    /// Asynchronous events.
    Events(Vec<Event>),
    /// What the other side is to be told, whether both are connected, and what it said.
    Greeting {
        out: Vec<u8>,
        connected: bool,
        payload: Option<Vec<u8>>,
    },
    /// One for each, up to the first that was refused.
    Each(Vec<Self>),
}

/// A device as it presents itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// The KIND of its name.
    pub kind: String,
    /// Its port's address.
    pub port: PortAddress,
    /// Its port's MTU.
    #[serde(with = "codec::mtu")]
    pub mtu: Mtu,
    /// Limits.
    #[serde(with = "codec::limits")]
    pub limits: DeviceLimits,
    /// What it promises.
    #[serde(with = "codec::promises")]
    pub promises: Promises,
}

/// Why something was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The error's variant.
    pub kind: String,
    /// Its one line.
    pub text: String,
    /// Which request of a chain.
    pub index: Option<usize>,
}

impl Refusal {
    /// What an error says.
    pub fn of(error: &(impl std::fmt::Debug + std::fmt::Display)) -> Self {
        let debug = format!("{error:?}");
        let end = debug.find(|c: char| !c.is_alphanumeric());
        Self {
            kind: debug[..end.unwrap_or(debug.len())].to_owned(),
            text: error.to_string(),
            index: None,
        }
    }

    /// A case asked for what cannot be asked.
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

/// A completion. Queue pairs have the numbers that the caller gave them. Of one that failed, the
/// number of the request, status, queue pair and time are the device's; the rest is blank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The request's.
    pub wr_id: u64,
    /// How it ended.
    #[serde(with = "codec::status")]
    pub status: Status,
    /// What it was.
    #[serde(with = "codec::opcode")]
    pub opcode: Opcode,
    /// The queue pair.
    pub qp: Option<Id>,
    /// Bytes.
    pub byte_len: u32,
    /// Immediate.
    pub imm: Option<u32>,
    /// UD: the sender's queue pair number on the wire.
    pub src_qpn: u32,
    /// UD: the receive begins with a GRH.
    pub grh: bool,
    /// Time of the completion, on the device's clock.
    #[serde(with = "codec::instant")]
    pub timestamp: Instant,
}

/// Something that happened without a completion to tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A queue pair went to the error state by itself.
    QpFatal(Option<Id>),
    /// The last receive of a queue pair in error over an SRQ was consumed.
    QpLastWqe(Option<Id>),
    /// A completion queue overran.
    CqError(Option<Id>),
    /// A shared receive queue fell below its limit.
    SrqLimit(Option<Id>),
    /// Another.
    Other,
}

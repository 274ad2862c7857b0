//! What an application and its daemon say to each other on the socket between them. Each message is a packet of
//! its own; a slab's memory file comes with the message that names it.

use std::net::SocketAddr;

use crate::error::ContractError;
use crate::memory::Extent;
use crate::one_sided::Rights;

pub mod codec;

use codec::{Decoder, Encoder};

/// The version of the contract, and the oldest that is still understood: a daemon and an application agree on
/// the older one's.
pub const VERSION: u16 = 1;
/// See [`VERSION`].
pub const VERSION_OLDEST: u16 = 1;
/// Longest message in bytes.
pub const MESSAGE_MAX: usize = 512;
/// Longest name of an application in bytes.
pub const NAME_MAX: usize = 64;

/// What an application asks for. Requests that are answered carry a number of the application's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first: which versions it speaks, and what it is called in logs.
    Attach {
        /// The latest it speaks.
        version: u16,
        /// The oldest it speaks.
        oldest: u16,
        /// What it is called.
        name: String,
    },
    /// A connection to whoever listens there.
    Connect {
        /// Answered under this number.
        request: u32,
        /// The host and port.
        to: SocketAddr,
        /// Whether a descriptor comes along, as with [`Request::Watch`].
        is_watched: bool,
    },
    /// A descriptor comes along, one end of a pair of stream sockets, by which the daemon tells of the connection
    /// whoever polls the other: readable once its bell has rung, writable once its bell for room has, hung up
    /// once it is reset or gone. It is readable at first.
    Watch {
        /// Answered under this number.
        request: u32,
        /// Which connection.
        handle: u32,
    },
    /// The same of a listener: readable while somebody who connected was not taken, from the next [`Request::Arm`] on.
    WatchListener {
        /// Answered under this number.
        request: u32,
        /// Number of the listener, as the daemon gave it.
        listener: u32,
    },
    /// The application found nobody who has connected, and has made its descriptor unreadable.
    Arm {
        /// Number of the listener, as the daemon gave it.
        listener: u32,
    },
    /// Connections that others make to a port, 0 for any that is free.
    Listen {
        /// Answered under this number.
        request: u32,
        /// The port.
        port: u16,
        /// How many may wait to be taken.
        backlog: u32,
    },
    /// No more connections from there. Those that came before are still the application's.
    Unlisten {
        /// As answered.
        listener: u32,
    },
    /// The application took a connection that had come.
    Took {
        /// From there.
        listener: u32,
    },
    /// The application has no more use for a connection, and touches its memory no more. What was written is still
    /// sent.
    Close {
        /// Handle of the connection.
        handle: u32,
    },
    /// The same, and what was written may be lost: the peer sees a reset.
    Abort {
        /// Handle of the connection.
        handle: u32,
    },
    /// Memory that can be lent.
    Alloc {
        /// Answered under this number.
        request: u32,
        /// Bytes.
        len: u32,
    },
    /// Such memory back, which nothing that was not returned lies in.
    Free {
        /// As answered.
        extent: Extent,
    },
    /// The other end of a connection may use memory that was [asked for](Request::Alloc).
    Export {
        /// Answered under this number.
        request: u32,
        /// Which connection.
        handle: u32,
        /// The memory, as answered.
        extent: Extent,
        /// What it may do.
        rights: Rights,
    },
    /// It may not any more.
    Revoke {
        /// Answered under this number, once nothing touches the memory for the other end.
        request: u32,
        /// Which connection.
        handle: u32,
        /// As answered.
        window: u32,
    },
    /// The daemon's bell rang: it is to look at the board.
    Wake,
}

/// What a daemon says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Request::Attach`].
    Attached {
        /// Of the contract from here on.
        version: u16,
        /// Where the session's board is.
        board: Extent,
        /// Handles are below this.
        handles: u32,
    },
    /// A slab, whose memory file comes along.
    Slab {
        /// Its number.
        number: u32,
    },
    /// To [`Request::Connect`].
    Connected {
        /// That request's.
        request: u32,
        /// The connection.
        end: End,
    },
    /// To [`Request::Listen`].
    Listening {
        /// That request's.
        request: u32,
        /// What it is called from now on.
        listener: u32,
        /// The port.
        port: u16,
    },
    /// Somebody connected to a listener.
    Incoming {
        /// Number of the listener.
        listener: u32,
        /// The connection.
        end: End,
    },
    /// To [`Request::Alloc`].
    Allocated {
        /// That request's.
        request: u32,
        /// The memory.
        extent: Extent,
    },
    /// To [`Request::Export`]: what is sent from now on can name it.
    Exported {
        /// That request's.
        request: u32,
        /// What both ends call it.
        window: u32,
    },
    /// To [`Request::Revoke`].
    Revoked {
        /// That request's.
        request: u32,
    },
    /// To a watch: it is there.
    Watched {
        /// That request's.
        request: u32,
    },
    /// To any of them: it cannot be.
    Refused {
        /// That request's.
        request: u32,
        /// Reason of the refusal.
        why: Refusal,
    },
    /// A connection's bell rang: the application is to look at it.
    Rang {
        /// Handle of the connection.
        handle: u32,
    },
    /// The session is over.
    Over {
        /// Reason of the refusal.
        why: Refusal,
    },
}

/// An end of a connection, as its application has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// What it is called in the session.
    pub handle: u32,
    /// Where its words are.
    pub block: Extent,
    /// This end's address and port.
    pub local: SocketAddr,
    /// Address and port of the other end.
    pub peer: SocketAddr,
}

/// Why something cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// Nobody listens at that port, or too many wait to be taken there.
    Refused = 1,
    /// There is no way to that host, or no daemon on it.
    Unreachable = 2,
    /// That host did not answer.
    TimedOut = 3,
    /// The port is taken.
    PortTaken = 4,
    /// The daemon's limit, or the application's quota, is reached.
    Limit = 5,
    /// There is not enough memory.
    Memory = 6,
    /// The other host's daemon has another secret, or this application may not.
    Denied = 7,
    /// No version that both speak.
    Version = 8,
    /// The application broke the contract.
    Misuse = 9,
    /// The daemon is stopping.
    Stopping = 10,
}

impl Refusal {
    const ALL: [Self; 10] = [
        Self::Refused,
        Self::Unreachable,
        Self::TimedOut,
        Self::PortTaken,
        Self::Limit,
        Self::Memory,
        Self::Denied,
        Self::Version,
        Self::Misuse,
        Self::Stopping,
    ];

    /// The reason numbered `code`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: there is none such.
    pub fn from_code(code: u8) -> Result<Self, ContractError> {
        let known = Self::ALL.into_iter().find(|why| *why as u8 == code);
        known.ok_or(ContractError::Message("no such reason"))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::Unreachable => "no way to that host, or no daemon on it",
            Self::TimedOut => "that host did not answer",
            Self::PortTaken => "the port is taken",
            Self::Limit => "a limit of the daemon, or a quota, is reached",
            Self::Memory => "not enough memory",
            Self::Denied => {
                "not allowed: the other host's daemon has another secret, or this user may not"
            }
            Self::Version => "the daemon speaks another version",
            Self::Misuse => "the application broke the contract with the daemon",
            Self::Stopping => "the daemon is stopping",
        })
    }
}

impl Request {
    /// The message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Attach {
                version,
                oldest,
                name,
            } => Encoder::of(1)
                .u16(*version)
                .u16(*oldest)
                .bytes(cut(name).as_bytes()),
            Self::Connect {
                request,
                to,
                is_watched,
            } => Encoder::of(2)
                .u32(*request)
                .address(*to)
                .u8(u8::from(*is_watched)),
            Self::Watch { request, handle } => Encoder::of(11).u32(*request).u32(*handle),
            Self::WatchListener { request, listener } => {
                Encoder::of(12).u32(*request).u32(*listener)
            }
            Self::Arm { listener } => Encoder::of(13).u32(*listener),
            Self::Export {
                request,
                handle,
                extent,
                rights,
            } => Encoder::of(14)
                .u32(*request)
                .u32(*handle)
                .extent(*extent)
                .u8(rights.bits()),
            Self::Revoke {
                request,
                handle,
                window,
            } => Encoder::of(15).u32(*request).u32(*handle).u32(*window),
            Self::Listen {
                request,
                port,
                backlog,
            } => Encoder::of(3).u32(*request).u16(*port).u32(*backlog),
            Self::Unlisten { listener } => Encoder::of(4).u32(*listener),
            Self::Took { listener } => Encoder::of(5).u32(*listener),
            Self::Close { handle } => Encoder::of(6).u32(*handle),
            Self::Abort { handle } => Encoder::of(7).u32(*handle),
            Self::Alloc { request, len } => Encoder::of(8).u32(*request).u32(*len),
            Self::Free { extent } => Encoder::of(9).extent(*extent),
            Self::Wake => Encoder::of(10),
        }
        .finish()
    }

    /// Reads what an application wrote.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`].
    pub fn decode(message: &[u8]) -> Result<Self, ContractError> {
        let (kind, mut of) = Decoder::of(message)?;
        let request = match kind {
            1 => Self::Attach {
                version: of.u16()?,
                oldest: of.u16()?,
                name: of.text(NAME_MAX)?,
            },
            2 => Self::Connect {
                request: of.u32()?,
                to: of.address()?,
                is_watched: of.u8()? != 0,
            },
            11 => Self::Watch {
                request: of.u32()?,
                handle: of.u32()?,
            },
            12 => Self::WatchListener {
                request: of.u32()?,
                listener: of.u32()?,
            },
            13 => Self::Arm {
                listener: of.u32()?,
            },
            14 => Self::Export {
                request: of.u32()?,
                handle: of.u32()?,
                extent: of.extent()?,
                rights: Rights::from_bits(of.u8()?),
            },
            15 => Self::Revoke {
                request: of.u32()?,
                handle: of.u32()?,
                window: of.u32()?,
            },
            3 => Self::Listen {
                request: of.u32()?,
                port: of.u16()?,
                backlog: of.u32()?,
            },
            4 => Self::Unlisten {
                listener: of.u32()?,
            },
            5 => Self::Took {
                listener: of.u32()?,
            },
            6 => Self::Close { handle: of.u32()? },
            7 => Self::Abort { handle: of.u32()? },
            8 => Self::Alloc {
                request: of.u32()?,
                len: of.u32()?,
            },
            9 => Self::Free {
                extent: of.extent()?,
            },
            10 => Self::Wake,
            _ => return Err(ContractError::Message("no such request")),
        };
        of.end()?;
        Ok(request)
    }
}

impl Reply {
    /// The message.
    pub fn encode(&self) -> Vec<u8> {
        let end = |to: Encoder, end: &End| {
            to.u32(end.handle)
                .extent(end.block)
                .address(end.local)
                .address(end.peer)
        };
        match self {
            Self::Attached {
                version,
                board,
                handles,
            } => Encoder::of(1).u16(*version).extent(*board).u32(*handles),
            Self::Slab { number } => Encoder::of(2).u32(*number),
            Self::Connected { request, end: of } => end(Encoder::of(3).u32(*request), of),
            Self::Listening {
                request,
                listener,
                port,
            } => Encoder::of(4).u32(*request).u32(*listener).u16(*port),
            Self::Incoming { listener, end: of } => end(Encoder::of(5).u32(*listener), of),
            Self::Allocated { request, extent } => Encoder::of(6).u32(*request).extent(*extent),
            Self::Refused { request, why } => Encoder::of(7).u32(*request).u8(*why as u8),
            Self::Over { why } => Encoder::of(8).u8(*why as u8),
            Self::Rang { handle } => Encoder::of(9).u32(*handle),
            Self::Watched { request } => Encoder::of(10).u32(*request),
            Self::Exported { request, window } => Encoder::of(11).u32(*request).u32(*window),
            Self::Revoked { request } => Encoder::of(12).u32(*request),
        }
        .finish()
    }

    /// Reads what a daemon wrote.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`].
    pub fn decode(message: &[u8]) -> Result<Self, ContractError> {
        let end = |of: &mut Decoder<'_>| -> Result<End, ContractError> {
            Ok(End {
                handle: of.u32()?,
                block: of.extent()?,
                local: of.address()?,
                peer: of.address()?,
            })
        };
        let (kind, mut of) = Decoder::of(message)?;
        let reply = match kind {
            1 => Self::Attached {
                version: of.u16()?,
                board: of.extent()?,
                handles: of.u32()?,
            },
            2 => Self::Slab { number: of.u32()? },
            3 => Self::Connected {
                request: of.u32()?,
                end: end(&mut of)?,
            },
            4 => Self::Listening {
                request: of.u32()?,
                listener: of.u32()?,
                port: of.u16()?,
            },
            5 => Self::Incoming {
                listener: of.u32()?,
                end: end(&mut of)?,
            },
            6 => Self::Allocated {
                request: of.u32()?,
                extent: of.extent()?,
            },
            7 => Self::Refused {
                request: of.u32()?,
                why: Refusal::from_code(of.u8()?)?,
            },
            8 => Self::Over {
                why: Refusal::from_code(of.u8()?)?,
            },
            9 => Self::Rang { handle: of.u32()? },
            10 => Self::Watched { request: of.u32()? },
            11 => Self::Exported {
                request: of.u32()?,
                window: of.u32()?,
            },
            12 => Self::Revoked { request: of.u32()? },
            _ => return Err(ContractError::Message("no such reply")),
        };
        of.end()?;
        Ok(reply)
    }
}

/// As much of a name as there is room for, in whole characters.
fn cut(name: &str) -> &str {
    let fits = (0..=name.len().min(NAME_MAX)).rfind(|at| name.is_char_boundary(*at));
    &name[..fits.unwrap_or(0)]
}

#[cfg(test)]
mod tests;

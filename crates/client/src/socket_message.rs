//! Messages between an application and its daemon on the socket between them. Each message is one packet. The
//! memory file of a slab travels with the message that names the slab.

use std::net::{IpAddr, SocketAddr};

use headworks_wire::{Decoder, Encoder, Malformed};

use crate::direct::DirectEnd;
use crate::error::ContractError;
use crate::one_sided::Rights;
use crate::slabs::Extent;

/// Latest version of the contract. A daemon and an application use the older of their latest versions.
///
/// | version | what it added |
/// |---|---|
/// | 1 | everything else |
/// | 2 | the daemon's address, in [`Reply::Attached`] |
/// | 3 | threads that sleep on a connection's event counts: the daemon wakes them by futex(2) |
/// | 4 | connections whose doorbell is not the session's: a daemon with several workers has one for each |
/// | 5 | bytes that lie in the receive pool, behind [descriptors](crate::descriptors). Older versions are refused |
/// | 6 | sets of connections that have news for a poller: [`Doorbell::ready`](crate::Doorbell::ready); features, and the [direct path](crate::direct), which is one |
pub const VERSION: u16 = 6;
/// Oldest version of the contract that is still understood; see [`VERSION`].
pub const VERSION_OLDEST: u16 = 5;
/// Longest message in bytes.
pub const MESSAGE_MAX: usize = 512;
/// Longest name of an application in bytes.
pub const NAME_MAX: usize = 64;

/// Request of an application. Requests that are answered carry a number that the application chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// First request: the versions that the application speaks, and its name.
    Attach {
        /// Latest version that it speaks.
        version: u16,
        /// Oldest version that it speaks.
        oldest: u16,
        /// Name of the application in logs.
        name: String,
    },
    /// Connects to a listener.
    Connect {
        /// Number of the request, repeated in the reply.
        request: u32,
        /// Host and port of the listener.
        to: SocketAddr,
        /// Whether a descriptor comes with the message, as with [`Request::Watch`].
        is_watched: bool,
    },
    /// Watches a connection. One end of a pair of stream sockets comes with the message; the application
    /// polls the other. The daemon makes that one readable when it notifies the connection's event count,
    /// writable when it notifies the event count for room, and hangs it up when the connection is reset or
    /// gone. At first it is readable.
    Watch {
        /// Number of the request, repeated in the reply.
        request: u32,
        /// Handle of the connection.
        handle: u32,
    },
    /// Watches a listener, as [`Request::Watch`] does a connection. The descriptor becomes readable when a
    /// connection waits to be taken. The daemon makes it readable again only after [`Request::Arm`].
    WatchListener {
        /// Number of the request, repeated in the reply.
        request: u32,
        /// Number of the listener, as the daemon gave it.
        listener: u32,
    },
    /// Re-arms the descriptor of a listener: the application found no connection, and made the descriptor
    /// unreadable.
    Arm {
        /// Number of the listener, as the daemon gave it.
        listener: u32,
    },
    /// Listens at a port.
    Listen {
        /// Number of the request, repeated in the reply.
        request: u32,
        /// The port; 0 for any free one.
        port: u16,
        /// Maximum number of connections that wait to be taken.
        backlog: u32,
    },
    /// Stops listening. Connections that came before stay with the application.
    Unlisten {
        /// Number of the listener, as the daemon gave it.
        listener: u32,
    },
    /// Takes an incoming connection, so that another may wait in its place.
    Took {
        /// Number of the listener, as the daemon gave it.
        listener: u32,
    },
    /// Closes a connection: the application does not touch its memory any more. The daemon still sends what
    /// was written.
    Close {
        /// Handle of the connection.
        handle: u32,
    },
    /// Aborts a connection: as [`Request::Close`], but what was written may be lost, and the peer sees a
    /// reset.
    Abort {
        /// Handle of the connection.
        handle: u32,
    },
    /// Allocates memory that can be lent.
    Alloc {
        /// Number of the request, repeated in the reply.
        request: u32,
        /// Length in bytes.
        len: u32,
    },
    /// Frees allocated memory. No loan or export from it may be outstanding.
    Free {
        /// The memory, as [`Reply::Allocated`] gave it.
        extent: Extent,
    },
    /// Exports memory that was [allocated](Request::Alloc) to the peer of a connection.
    Export {
        /// Number of the request, repeated in the reply.
        request: u32,
        /// Handle of the connection.
        handle: u32,
        /// The memory, as [`Reply::Allocated`] gave it.
        extent: Extent,
        /// Access rights of the peer.
        rights: Rights,
    },
    /// Revokes an export.
    Revoke {
        /// Number of the request. The reply comes once nothing touches the memory for the peer.
        request: u32,
        /// Handle of the connection.
        handle: u32,
        /// Number of the export, as [`Reply::Exported`] gave it.
        export_id: u32,
    },
    /// Wakes the daemon: its event count was armed. It looks at the doorbell.
    Wake,
    /// What the application can do, with [version 6](VERSION): the features among [`FEATURE_DIRECT`] and later ones.
    Features {
        /// A bit for each feature. Unknown ones are ignored.
        bits: u32,
    },
}

/// Feature of an application: it takes connections on the [direct path](crate::direct). Bit 0 was this
/// feature without a third ring.
pub const FEATURE_DIRECT: u32 = 2;

/// Message of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers [`Request::Attach`].
    Attached {
        /// Version of the contract from here on.
        version: u16,
        /// Memory of the session's doorbell.
        doorbell: Extent,
        /// Upper bound of handles, exclusive.
        handles: u32,
        /// Address that the daemon serves.
        address: IpAddr,
    },
    /// A slab; its memory file comes with the message.
    Slab {
        /// Number of the slab.
        number: u32,
        /// Whether the application may only read it. It can then map the file only for reading.
        is_read_only: bool,
    },
    /// Answers [`Request::Connect`].
    Connected {
        /// Number of that request.
        request: u32,
        /// The connection.
        end: End,
    },
    /// Answers [`Request::Listen`].
    Listening {
        /// Number of that request.
        request: u32,
        /// Number of the listener from now on.
        listener: u32,
        /// The port that was bound.
        port: u16,
    },
    /// A peer connected to a listener.
    Incoming {
        /// Number of the listener.
        listener: u32,
        /// The connection.
        end: End,
    },
    /// Answers [`Request::Alloc`].
    Allocated {
        /// Number of that request.
        request: u32,
        /// The memory.
        extent: Extent,
    },
    /// Answers [`Request::Export`]. Data that is sent from now on may mention the export.
    Exported {
        /// Number of that request.
        request: u32,
        /// Number of the export, at both ends.
        export_id: u32,
    },
    /// Answers [`Request::Revoke`].
    Revoked {
        /// Number of that request.
        request: u32,
    },
    /// Answers [`Request::Watch`] and [`Request::WatchListener`]: the descriptor is in use.
    Watched {
        /// Number of that request.
        request: u32,
    },
    /// Memory of one direction of a [pair](crate::direct); its file comes with the message.
    PairMemory {
        /// Number of the pair in the session.
        pair: u32,
        /// Whether it is the direction to the peer.
        is_outgoing: bool,
    },
    /// This session's end of the socket of a [pair](crate::direct), which comes with the message.
    PairSocket {
        /// Number of the pair in the session.
        pair: u32,
    },
    /// Refuses any request that has a number.
    Refused {
        /// Number of that request.
        request: u32,
        /// Reason of the refusal.
        why: Refusal,
    },
    /// The daemon notified a connection's event count: the application must look at the connection.
    Rang {
        /// Handle of the connection.
        handle: u32,
    },
    /// The session is over.
    Over {
        /// Reason of the end.
        why: Refusal,
    },
}

/// An end of a connection, as given to its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Handle of the connection in the session.
    pub handle: u32,
    /// Memory of its control block.
    pub block: Extent,
    /// Memory of its doorbell, if that is not the session's.
    pub doorbell: Option<Extent>,
    /// Where its bytes lie on the direct path, if it has one.
    pub direct: Option<DirectEnd>,
    /// This end's address and port.
    pub local: SocketAddr,
    /// Address and port of the other end.
    pub peer: SocketAddr,
}

/// Reason for which a daemon refuses a request or ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// Nobody listens at that port, or too many wait for a place in its backlog.
    Refused = 1,
    /// There is no route to that host, or no daemon on it.
    Unreachable = 2,
    /// That host did not answer in time, the link to it did not come up, or the listener's backlog stayed full.
    TimedOut = 3,
    /// The port is in use.
    PortTaken = 4,
    /// The daemon's limit, or the application's quota, is reached.
    Limit = 5,
    /// There is not enough memory.
    Memory = 6,
    /// The other host's daemon has another secret, or this user is not allowed.
    Denied = 7,
    /// Application and daemon have no version in common.
    Version = 8,
    /// The application broke the contract.
    Misuse = 9,
    /// The daemon is stopping.
    Stopping = 10,
    /// This process has too few descriptors, or too little address space, for the memory that it would share with the peer of a
    /// direct connection. The next connection to that peer goes through the daemons.
    Descriptors = 11,
}

impl Refusal {
    const ALL: [Self; 11] = [
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
        Self::Descriptors,
    ];

    /// The reason with number `code`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: no reason has that number.
    pub fn from_code(code: u8) -> Result<Self, ContractError> {
        let known = Self::ALL.into_iter().find(|why| *why as u8 == code);
        known.ok_or(ContractError::Message("unknown reason"))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::Unreachable => "no way to that host, or no daemon on it",
            Self::TimedOut => {
                "that host did not answer in time, or its application accepted nobody"
            }
            Self::PortTaken => "the port is taken",
            Self::Limit => "a limit of the daemon, or a quota, is reached",
            Self::Memory => "not enough memory",
            Self::Denied => {
                "not allowed: the other host's daemon has another secret, or this user may not"
            }
            Self::Version => "the daemon speaks another version",
            Self::Misuse => "the application broke the contract with the daemon",
            Self::Stopping => "the daemon is stopping",
            Self::Descriptors => {
                "too few file descriptors, or too little address space, for a direct connection: raise `ulimit -n` or `ulimit -v`, \
                 or connect again to go through the daemons"
            }
        })
    }
}

impl Request {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Attach {
                version,
                oldest,
                name,
            } => Encoder::message(1)
                .u16(*version)
                .u16(*oldest)
                .bytes(cut(name).as_bytes()),
            Self::Connect {
                request,
                to,
                is_watched,
            } => Encoder::message(2)
                .u32(*request)
                .address(*to)
                .u8(u8::from(*is_watched)),
            Self::Watch { request, handle } => Encoder::message(11).u32(*request).u32(*handle),
            Self::WatchListener { request, listener } => {
                Encoder::message(12).u32(*request).u32(*listener)
            }
            Self::Arm { listener } => Encoder::message(13).u32(*listener),
            Self::Export {
                request,
                handle,
                extent,
                rights,
            } => Encoder::message(14)
                .u32(*request)
                .u32(*handle)
                .field(extent)
                .u8(rights.bits()),
            Self::Revoke {
                request,
                handle,
                export_id,
            } => Encoder::message(15)
                .u32(*request)
                .u32(*handle)
                .u32(*export_id),
            Self::Listen {
                request,
                port,
                backlog,
            } => Encoder::message(3).u32(*request).u16(*port).u32(*backlog),
            Self::Unlisten { listener } => Encoder::message(4).u32(*listener),
            Self::Took { listener } => Encoder::message(5).u32(*listener),
            Self::Close { handle } => Encoder::message(6).u32(*handle),
            Self::Abort { handle } => Encoder::message(7).u32(*handle),
            Self::Alloc { request, len } => Encoder::message(8).u32(*request).u32(*len),
            Self::Free { extent } => Encoder::message(9).field(extent),
            Self::Wake => Encoder::message(10),
            Self::Features { bits } => Encoder::message(16).u32(*bits),
        }
        .finish()
    }

    /// Decodes a message of an application.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: it is malformed.
    pub fn decode(message: &[u8]) -> Result<Self, ContractError> {
        let (kind, mut of) = Decoder::message(message)?;
        let request = match kind {
            1 => Self::Attach {
                version: of.u16()?,
                oldest: of.u16()?,
                name: of.text(NAME_MAX)?.to_owned(),
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
                extent: of.field()?,
                rights: Rights::from_bits_truncate(of.u8()?),
            },
            15 => Self::Revoke {
                request: of.u32()?,
                handle: of.u32()?,
                export_id: of.u32()?,
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
                extent: of.field()?,
            },
            10 => Self::Wake,
            16 => Self::Features { bits: of.u32()? },
            _ => return Err(ContractError::Message("unknown kind of request")),
        };
        of.end()?;
        Ok(request)
    }
}

impl Reply {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        // A connection with a doorbell of its own, or on the direct path, has a message of its own.
        let end = |kinds: [u8; 4], number: u32, end: &End| {
            let kind = usize::from(end.doorbell.is_some()) + 2 * usize::from(end.direct.is_some());
            let kind = kinds[kind];
            let message = Encoder::message(kind)
                .u32(number)
                .u32(end.handle)
                .field(&end.block)
                .address(end.local)
                .address(end.peer);
            let message = match end.doorbell {
                Some(doorbell) => message.field(&doorbell),
                None => message,
            };
            match end.direct {
                Some(direct) => message.field(&direct),
                None => message,
            }
        };
        match self {
            Self::Attached {
                version,
                doorbell,
                handles,
                address,
            } => Encoder::message(1)
                .u16(*version)
                .field(doorbell)
                .u32(*handles)
                .address(SocketAddr::new(*address, 0)),
            Self::Slab {
                number,
                is_read_only,
            } => Encoder::message(2).u32(*number).u8(u8::from(*is_read_only)),
            Self::Connected { request, end: of } => end([3, 13, 15, 16], *request, of),
            Self::Listening {
                request,
                listener,
                port,
            } => Encoder::message(4).u32(*request).u32(*listener).u16(*port),
            Self::Incoming { listener, end: of } => end([5, 14, 17, 18], *listener, of),
            Self::Allocated { request, extent } => Encoder::message(6).u32(*request).field(extent),
            Self::Refused { request, why } => Encoder::message(7).u32(*request).u8(*why as u8),
            Self::Over { why } => Encoder::message(8).u8(*why as u8),
            Self::Rang { handle } => Encoder::message(9).u32(*handle),
            Self::Watched { request } => Encoder::message(10).u32(*request),
            Self::Exported { request, export_id } => {
                Encoder::message(11).u32(*request).u32(*export_id)
            }
            Self::Revoked { request } => Encoder::message(12).u32(*request),
            Self::PairMemory { pair, is_outgoing } => {
                Encoder::message(19).u32(*pair).u8(u8::from(*is_outgoing))
            }
            Self::PairSocket { pair } => Encoder::message(20).u32(*pair),
        }
        .finish()
    }

    /// Decodes a message of a daemon.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: it is malformed.
    pub fn decode(message: &[u8]) -> Result<Self, ContractError> {
        let (kind, mut of) = Decoder::message(message)?;
        let end = |of: &mut Decoder<'_>| -> Result<End, Malformed> {
            Ok(End {
                handle: of.u32()?,
                block: of.field()?,
                local: of.address()?,
                peer: of.address()?,
                doorbell: match kind {
                    13 | 14 | 16 | 18 => Some(of.field()?),
                    _ => None,
                },
                direct: match kind {
                    15..=18 => Some(of.field()?),
                    _ => None,
                },
            })
        };
        let reply = match kind {
            1 => Self::Attached {
                version: of.u16()?,
                doorbell: of.field()?,
                handles: of.u32()?,
                address: of.address_without_port()?,
            },
            2 => Self::Slab {
                number: of.u32()?,
                is_read_only: of.u8()? != 0,
            },
            3 | 13 | 15 | 16 => Self::Connected {
                request: of.u32()?,
                end: end(&mut of)?,
            },
            4 => Self::Listening {
                request: of.u32()?,
                listener: of.u32()?,
                port: of.u16()?,
            },
            5 | 14 | 17 | 18 => Self::Incoming {
                listener: of.u32()?,
                end: end(&mut of)?,
            },
            6 => Self::Allocated {
                request: of.u32()?,
                extent: of.field()?,
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
                export_id: of.u32()?,
            },
            12 => Self::Revoked { request: of.u32()? },
            19 => Self::PairMemory {
                pair: of.u32()?,
                is_outgoing: of.u8()? != 0,
            },
            20 => Self::PairSocket { pair: of.u32()? },
            _ => return Err(ContractError::Message("unknown kind of reply")),
        };
        of.end()?;
        Ok(reply)
    }
}

/// Truncates a name to [`NAME_MAX`] bytes, at a character boundary.
fn cut(name: &str) -> &str {
    let fits = (0..=name.len().min(NAME_MAX)).rfind(|at| name.is_char_boundary(*at));
    &name[..fits.unwrap_or(0)]
}

#[cfg(test)]
mod tests;

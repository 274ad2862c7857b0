//! An application's session with its daemon: connections by handle, and messages about them. It does no I/O:
//! packets from the socket go in by [`Session::input`], and packets for it come out by [`Session::output`].

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use headworks_shm::View;

use crate::connection::Connection;
use crate::control_block::ControlBlock;
use crate::direct::{self, Pair};
use crate::doorbell::Doorbell;
use crate::error::ContractError;
use crate::one_sided::Rights;
use crate::slabs::{Extent, Slabs};
use crate::socket_message::{
    End, FEATURE_DIRECT, Refusal, Reply, Request, VERSION, VERSION_OLDEST,
};

/// Number of pairs whose peer has ended that a session keeps.
const GONE_PAIRS: usize = 16;

/// A session, at the application's side.
///
/// - Requests, each answered by an [`Event`] with the number that the method returned:
///   [`connect`](Self::connect), [`connect_watched`](Self::connect_watched), [`listen`](Self::listen),
///   [`watch`](Self::watch), [`watch_listener`](Self::watch_listener), [`alloc`](Self::alloc),
///   [`export`](Self::export), [`revoke`](Self::revoke).
/// - Messages without an answer: [`took`](Self::took), [`arm`](Self::arm), [`unlisten`](Self::unlisten),
///   [`close`](Self::close), [`abort`](Self::abort), [`free`](Self::free), [`wake`](Self::wake).
/// - Driving: call [`input`](Self::input) for each packet that arrived, then [`output`](Self::output) and
///   [`event`](Self::event) until each returns `None`.
/// - Sending and receiving: by the [`Connection`] that an event brought.
///
/// A connection's methods report changes to the daemon by the connection's doorbell: the session's, or that of the
/// daemon's worker that carries the connection. If a method returns that
/// the daemon sleeps, the caller must wake it.
#[derive(Debug)]
pub struct Session {
    slabs: Slabs,
    doorbell: Option<Doorbell>,
    /// Upper bound of handles, exclusive; 0 until the session is attached.
    handles: usize,
    address: Option<IpAddr>,
    over: Option<Refusal>,
    /// What the application tells the daemon that it can do.
    features: u32,
    pairs: BTreeMap<u32, Pair>,
    /// Pairs whose peer has ended, the latest last.
    gone_pairs: VecDeque<u32>,
    /// Highest number of a pair that was forgotten.
    forgotten: u32,
    requests: u32,
    out: VecDeque<Request>,
    events: VecDeque<Event>,
}

/// A packet for the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// The number of the request that needs a descriptor with this packet, if any: the daemon's end of a pair
    /// of stream sockets.
    pub file_of: Option<u32>,
}

/// An event for the application.
#[derive(Debug)]
pub enum Event {
    /// The daemon accepted the application.
    Attached,
    /// A connection was made.
    Connected {
        /// Number of the request.
        request: u32,
        /// The connection.
        connection: Box<Connection>,
    },
    /// The daemon listens at a port.
    Listening {
        /// Number of the request.
        request: u32,
        /// Number of the listener.
        listener: u32,
        /// The port that was bound.
        port: u16,
    },
    /// A peer connected. Call [`Session::took`] so that another connection may wait in its place.
    Incoming {
        /// Number of the listener.
        listener: u32,
        /// The connection.
        connection: Box<Connection>,
    },
    /// Memory was allocated.
    Allocated {
        /// Number of the request.
        request: u32,
        /// The memory.
        extent: Extent,
    },
    /// Memory was exported to the peer.
    Exported {
        /// Number of the request.
        request: u32,
        /// Number of the export, at both ends.
        export_id: u32,
    },
    /// An export was revoked: nothing touches the memory for the peer any more.
    Revoked {
        /// Number of the request.
        request: u32,
    },
    /// The daemon uses a descriptor that was handed over.
    Watched {
        /// Number of the request.
        request: u32,
    },
    /// The daemon refused a request.
    Refused {
        /// Number of the request.
        request: u32,
        /// Reason of the refusal.
        why: Refusal,
    },
    /// The event count of a connection, which was armed, was notified: look at the connection.
    Rang {
        /// Handle of the connection.
        handle: u32,
    },
    /// The session is over: nothing of it may be used any more.
    Over(Refusal),
}

impl Session {
    /// The session of an application whose name in logs is `name`. The first output attaches it.
    pub fn new(name: &str) -> Self {
        let attach = Request::Attach {
            version: VERSION,
            oldest: VERSION_OLDEST,
            name: name.to_owned(),
        };
        Self {
            slabs: Slabs::default(),
            doorbell: None,
            handles: 0,
            address: None,
            over: None,
            features: 0,
            pairs: BTreeMap::new(),
            gone_pairs: VecDeque::new(),
            forgotten: 0,
            requests: 0,
            out: VecDeque::from([attach]),
            events: VecDeque::new(),
        }
    }

    /// Has the daemon put connections on the [direct path](crate::direct), where that is possible. Call it before the session
    /// is attached. The caller must then handle the file that comes with a [`Reply::PairSocket`].
    #[must_use]
    pub fn with_direct_path(mut self) -> Self {
        self.features |= FEATURE_DIRECT;
        self
    }

    /// A pair of this session.
    pub fn pair(&self, pair: u32) -> Option<&Pair> {
        self.pairs.get(&pair)
    }

    /// Notes that a file of a pair could not be received or used: this process has too few descriptors, or too little address
    /// space. Connections of the pair are refused from now on, and the daemon is asked to carry all later ones itself.
    pub fn lose_pair(&mut self, pair: u32) {
        self.pairs.entry(pair).or_default().is_lost = true;
        if self.features & FEATURE_DIRECT != 0 {
            self.features &= !FEATURE_DIRECT;
            let bits = self.features;
            self.out.push_back(Request::Features { bits });
        }
    }

    /// Notes that the peer of a pair has ended. The daemon may still announce connections that this peer asked for before, and
    /// the peer may have sent on them, so the session keeps the memory of the last `GONE_PAIRS` such pairs.
    pub fn forget_pair(&mut self, pair: u32) {
        self.gone_pairs.push_back(pair);
        if self.gone_pairs.len() > GONE_PAIRS
            && let Some(oldest) = self.gone_pairs.pop_front()
        {
            self.pairs.remove(&oldest);
            self.forgotten = self.forgotten.max(oldest);
        }
    }

    /// The slabs that the session shares with its daemon.
    pub fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// The session's doorbell, once it is attached.
    pub fn doorbell(&self) -> Option<&Doorbell> {
        self.doorbell.as_ref()
    }

    /// Address that the daemon serves. `None` before the session is attached.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Reason of the session's end; `None` while it lasts.
    pub fn over(&self) -> Option<Refusal> {
        self.over
    }

    /// Asks for a connection to the listener at `to`.
    pub fn connect(&mut self, to: SocketAddr) -> u32 {
        self.ask(|request| Request::Connect {
            request,
            to,
            is_watched: false,
        })
    }

    /// Like [`connect`](Self::connect), with a descriptor for the new connection: see [`Packet::file_of`].
    pub fn connect_watched(&mut self, to: SocketAddr) -> u32 {
        self.ask(|request| Request::Connect {
            request,
            to,
            is_watched: true,
        })
    }

    /// Has the daemon watch a connection by a descriptor: see [`Request::Watch`] and [`Packet::file_of`].
    pub fn watch(&mut self, handle: u32) -> u32 {
        self.ask(|request| Request::Watch { request, handle })
    }

    /// Has the daemon watch a listener by a descriptor: see [`Request::WatchListener`] and
    /// [`Packet::file_of`].
    pub fn watch_listener(&mut self, listener: u32) -> u32 {
        self.ask(|request| Request::WatchListener { request, listener })
    }

    /// Re-arms a listener's descriptor: no connection was found, and the descriptor was made unreadable.
    pub fn arm(&mut self, listener: u32) {
        self.out.push_back(Request::Arm { listener });
    }

    /// Asks to listen at `port`, 0 for any free one. At most `backlog` connections may wait to be taken.
    pub fn listen(&mut self, port: u16, backlog: u32) -> u32 {
        self.ask(|request| Request::Listen {
            request,
            port,
            backlog,
        })
    }

    /// Asks for `len` bytes of memory that can be lent and exported.
    pub fn alloc(&mut self, len: u32) -> u32 {
        self.ask(|request| Request::Alloc { request, len })
    }

    /// Exports memory that was [allocated](Self::alloc) to the peer of a connection.
    pub fn export(&mut self, handle: u32, extent: Extent, rights: Rights) -> u32 {
        self.ask(|request| Request::Export {
            request,
            handle,
            extent,
            rights,
        })
    }

    /// Revokes an export.
    pub fn revoke(&mut self, handle: u32, export_id: u32) -> u32 {
        self.ask(|request| Request::Revoke {
            request,
            handle,
            export_id,
        })
    }

    fn ask(&mut self, of: impl FnOnce(u32) -> Request) -> u32 {
        self.requests = self.requests.wrapping_add(1);
        self.out.push_back(of(self.requests));
        self.requests
    }

    /// Wakes the daemon, after a method said that it sleeps.
    pub fn wake(&mut self) {
        self.out.push_back(Request::Wake);
    }

    /// Tells the daemon that the application took the connection of an [`Event::Incoming`].
    pub fn took(&mut self, listener: u32) {
        self.out.push_back(Request::Took { listener });
    }

    /// Stops listening.
    pub fn unlisten(&mut self, listener: u32) {
        self.out.push_back(Request::Unlisten { listener });
    }

    /// Closes a connection. The daemon still sends what was written, then ends the stream. Later bytes from
    /// the peer are refused.
    pub fn close(&mut self, handle: u32) {
        self.out.push_back(Request::Close { handle });
    }

    /// Aborts a connection; the peer sees a reset.
    pub fn abort(&mut self, handle: u32) {
        self.out.push_back(Request::Abort { handle });
    }

    /// Frees allocated memory. No loan or export from it may be outstanding.
    pub fn free(&mut self, extent: Extent) {
        self.out.push_back(Request::Free { extent });
    }

    /// The next packet for the daemon.
    pub fn output(&mut self) -> Option<Packet> {
        let request = self.out.pop_front()?;
        let file_of = match request {
            Request::Connect {
                request,
                is_watched: true,
                ..
            }
            | Request::Watch { request, .. }
            | Request::WatchListener { request, .. } => Some(request),
            _ => None,
        };
        let bytes = request.encode();
        Some(Packet { bytes, file_of })
    }

    /// The next event for the application.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes a packet from the daemon, and the memory of the slab or of the pair that came with it, if any.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn input(&mut self, packet: &[u8], slab: Option<View>) -> Result<(), ContractError> {
        let event = match Reply::decode(packet)? {
            Reply::Slab { number, .. } => {
                let view = slab.ok_or(ContractError::Slab(number))?;
                return self.slabs.add(number, view);
            }
            Reply::PairMemory { pair, is_outgoing } => {
                let Some(view) = slab else {
                    self.lose_pair(pair);
                    return Ok(());
                };
                let pair = self.pairs.entry(pair).or_default();
                let memory = match is_outgoing {
                    true => &mut pair.outgoing,
                    false => &mut pair.incoming,
                };
                memory.add(view)?;
                return Ok(());
            }
            Reply::PairSocket { .. } => return Ok(()),
            Reply::Attached {
                version,
                doorbell,
                handles,
                address,
            } => {
                if version >= 6 && self.features != 0 {
                    let bits = self.features;
                    self.out.push_back(Request::Features { bits });
                }
                self.address = Some(address);
                self.handles = handles as usize;
                self.doorbell = Some(Doorbell::at(&self.slabs, doorbell, self.handles)?);
                Event::Attached
            }
            Reply::Connected { request, end } if self.is_forgotten(&end) => {
                self.close(end.handle);
                let why = Refusal::Refused;
                Event::Refused { request, why }
            }
            Reply::Incoming { listener, end } if self.is_forgotten(&end) => {
                self.took(listener);
                self.close(end.handle);
                return Ok(());
            }
            Reply::Connected { request, end } => {
                let handle = end.handle;
                match self.connection(end)? {
                    Some(connection) => Event::Connected {
                        request,
                        connection,
                    },
                    None => {
                        self.abort(handle);
                        let why = Refusal::Descriptors;
                        Event::Refused { request, why }
                    }
                }
            }
            Reply::Incoming { listener, end } => {
                let handle = end.handle;
                let Some(connection) = self.connection(end)? else {
                    self.took(listener);
                    self.abort(handle);
                    return Ok(());
                };
                Event::Incoming {
                    listener,
                    connection,
                }
            }
            Reply::Listening {
                request,
                listener,
                port,
            } => Event::Listening {
                request,
                listener,
                port,
            },
            Reply::Allocated { request, extent } => {
                self.slabs.view(extent)?;
                Event::Allocated { request, extent }
            }
            Reply::Watched { request } => Event::Watched { request },
            Reply::Exported { request, export_id } => Event::Exported { request, export_id },
            Reply::Revoked { request } => Event::Revoked { request },
            Reply::Refused { request, why } => Event::Refused { request, why },
            Reply::Rang { handle } => Event::Rang { handle },
            Reply::Over { why } => {
                self.over = Some(why);
                Event::Over(why)
            }
        };
        self.events.push_back(event);
        Ok(())
    }

    /// Whether a connection is of a pair whose peer ended so long ago that its memory is not kept any more.
    fn is_forgotten(&self, end: &End) -> bool {
        let pair = end.direct.as_ref().map(|direct| direct.pair);
        pair.is_some_and(|pair| pair <= self.forgotten && !self.pairs.contains_key(&pair))
    }

    /// Makes a connection. Returns `None` if its pair cannot be used, or if the peer has spoiled its memory.
    fn connection(&self, end: End) -> Result<Option<Box<Connection>>, ContractError> {
        let block = ControlBlock::at(&self.slabs, end.block)?;
        let doorbell = self.doorbell.clone();
        let mut doorbell =
            doorbell.ok_or(ContractError::Message("a connection before attaching"))?;
        if end.handle as usize >= self.handles {
            return Err(ContractError::Message("a handle beyond the upper bound"));
        }
        if let Some(own) = end.doorbell {
            doorbell = Doorbell::at(&self.slabs, own, self.handles)?;
        }
        let direct = match &end.direct {
            None => None,
            Some(direct) => {
                let unknown = ContractError::Message("a connection of an unknown pair");
                let pair = self.pairs.get(&direct.pair).ok_or(unknown)?;
                let halves = direct::connect(direct, pair, &block).ok();
                match halves.filter(|_| !pair.is_lost) {
                    None => return Ok(None),
                    halves => halves,
                }
            }
        };
        let connection = Connection::new(end, self.slabs.clone(), doorbell, &block, direct)?;
        Ok(Some(Box::new(connection)))
    }
}

#[cfg(test)]
mod tests;

//! An application's session with its daemon: connections by handle, and what is said about them. No I/O: packets
//! of the socket go in by [`Session::input`] and come out by [`Session::output`].

use std::collections::VecDeque;
use std::net::SocketAddr;

use headworks_shm::View;

use crate::connection::Connection;
use crate::control_block::ControlBlock;
use crate::doorbell::Doorbell;
use crate::error::ContractError;
use crate::memory::{Extent, Slabs};
use crate::one_sided::Rights;
use crate::socket_message::{End, Refusal, Reply, Request, VERSION, VERSION_OLDEST};

/// An application's side.
///
/// Asking (answered by an [`Event`] under the number returned): [`connect`](Self::connect),
/// [`connect_watched`](Self::connect_watched), [`listen`](Self::listen), [`watch`](Self::watch),
/// [`watch_listener`](Self::watch_listener), [`alloc`](Self::alloc), [`export`](Self::export), [`revoke`](Self::revoke). Telling: [`took`](Self::took), [`arm`](Self::arm),
/// [`unlisten`](Self::unlisten), [`close`](Self::close), [`abort`](Self::abort), [`free`](Self::free). Driving: [`input`](Self::input) for each
/// packet that came; then [`output`](Self::output) until there is none, [`event`](Self::event) until there is
/// none. Sending and receiving: on the [`Connection`] that an event brought.
///
/// What a connection's methods change the daemon learns from the session's board; where they say that it sleeps,
/// it is to be woken.
#[derive(Debug)]
pub struct Session {
    slabs: Slabs,
    board: Option<Doorbell>,
    over: Option<Refusal>,
    requests: u32,
    out: VecDeque<Request>,
    events: VecDeque<Event>,
}

/// A packet for the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What it says.
    pub bytes: Vec<u8>,
    /// The request whose descriptor goes along, if one does: the daemon's end of a pair of stream sockets.
    pub file_of: Option<u32>,
}

/// Something that an application learns.
#[derive(Debug)]
pub enum Event {
    /// The daemon has taken the application.
    Attached,
    /// A connection that was asked for.
    Connected {
        /// Under this number.
        request: u32,
        /// The connection.
        connection: Box<Connection>,
    },
    /// A port that was asked for.
    Listening {
        /// Under this number.
        request: u32,
        /// What it is called.
        listener: u32,
        /// The port.
        port: u16,
    },
    /// Somebody connected. [`Session::took`] says that another may wait in its place.
    Incoming {
        /// There.
        listener: u32,
        /// The connection.
        connection: Box<Connection>,
    },
    /// Memory that was asked for.
    Allocated {
        /// Under this number.
        request: u32,
        /// The memory.
        extent: Extent,
    },
    /// The other end may use memory.
    Exported {
        /// Under this number.
        request: u32,
        /// What both ends call it.
        window: u32,
    },
    /// It may not any more, and nothing touches it for that end.
    Revoked {
        /// Under this number.
        request: u32,
    },
    /// A descriptor is watched by the daemon.
    Watched {
        /// Under this number.
        request: u32,
    },
    /// What was asked for cannot be.
    Refused {
        /// Under this number.
        request: u32,
        /// Reason of the refusal.
        why: Refusal,
    },
    /// A connection whose bell was armed is to be looked at.
    Rang {
        /// What it is called.
        handle: u32,
    },
    /// The session is over: nothing of it can be used any more.
    Over(Refusal),
}

impl Session {
    /// The session of an application that is called so in logs. The first output attaches it.
    pub fn new(name: &str) -> Self {
        let attach = Request::Attach {
            version: VERSION,
            oldest: VERSION_OLDEST,
            name: name.to_owned(),
        };
        Self {
            slabs: Slabs::default(),
            board: None,
            over: None,
            requests: 0,
            out: VecDeque::from([attach]),
            events: VecDeque::new(),
        }
    }

    /// The memory it shares with its daemon.
    pub fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// Its board, once it is attached.
    pub fn board(&self) -> Option<&Doorbell> {
        self.board.as_ref()
    }

    /// Why it is over, where it is.
    pub fn over(&self) -> Option<Refusal> {
        self.over
    }

    /// A connection to whoever listens there.
    pub fn connect(&mut self, to: SocketAddr) -> u32 {
        self.ask(|request| Request::Connect {
            request,
            to,
            is_watched: false,
        })
    }

    /// The same, with a descriptor: see [`Packet::file_of`].
    pub fn connect_watched(&mut self, to: SocketAddr) -> u32 {
        self.ask(|request| Request::Connect {
            request,
            to,
            is_watched: true,
        })
    }

    /// A descriptor for a connection: see [`Request::Watch`] and [`Packet::file_of`].
    pub fn watch(&mut self, handle: u32) -> u32 {
        self.ask(|request| Request::Watch { request, handle })
    }

    /// A descriptor for a listener: see [`Request::WatchListener`] and [`Packet::file_of`].
    pub fn watch_listener(&mut self, listener: u32) -> u32 {
        self.ask(|request| Request::WatchListener { request, listener })
    }

    /// Nobody was found who has connected, and the listener's descriptor is not readable any more.
    pub fn arm(&mut self, listener: u32) {
        self.out.push_back(Request::Arm { listener });
    }

    /// Connections that others make to `port`, 0 for any that is free; `backlog` may wait to be taken.
    pub fn listen(&mut self, port: u16, backlog: u32) -> u32 {
        self.ask(|request| Request::Listen {
            request,
            port,
            backlog,
        })
    }

    /// Memory that can be lent.
    pub fn alloc(&mut self, len: u32) -> u32 {
        self.ask(|request| Request::Alloc { request, len })
    }

    /// The other end of a connection may use memory that was [asked for](Self::alloc).
    pub fn export(&mut self, handle: u32, extent: Extent, rights: Rights) -> u32 {
        self.ask(|request| Request::Export {
            request,
            handle,
            extent,
            rights,
        })
    }

    /// It may not any more.
    pub fn revoke(&mut self, handle: u32, window: u32) -> u32 {
        self.ask(|request| Request::Revoke {
            request,
            handle,
            window,
        })
    }

    fn ask(&mut self, of: impl FnOnce(u32) -> Request) -> u32 {
        self.requests = self.requests.wrapping_add(1);
        self.out.push_back(of(self.requests));
        self.requests
    }

    /// The daemon sleeps and is to be woken.
    pub fn wake(&mut self) {
        self.out.push_back(Request::Wake);
    }

    /// A connection of an [`Event::Incoming`] was taken.
    pub fn took(&mut self, listener: u32) {
        self.out.push_back(Request::Took { listener });
    }

    /// No more connections from there.
    pub fn unlisten(&mut self, listener: u32) {
        self.out.push_back(Request::Unlisten { listener });
    }

    /// Gives a connection up. What was written is still sent, then the stream ends; what comes is refused.
    pub fn close(&mut self, handle: u32) {
        self.out.push_back(Request::Close { handle });
    }

    /// Gives a connection up; the peer sees a reset.
    pub fn abort(&mut self, handle: u32) {
        self.out.push_back(Request::Abort { handle });
    }

    /// Gives memory back. Nothing that was not returned lies in it.
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

    /// What the application is to know next.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A packet from the daemon, and the memory that came with it.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn input(&mut self, packet: &[u8], slab: Option<View>) -> Result<(), ContractError> {
        let event = match Reply::decode(packet)? {
            Reply::Slab { number } => {
                let view = slab.ok_or(ContractError::Slab(number))?;
                return self.slabs.add(number, view);
            }
            Reply::Attached { board, handles, .. } => {
                self.board = Some(Doorbell::at(&self.slabs, board, handles as usize)?);
                Event::Attached
            }
            Reply::Connected { request, end } => Event::Connected {
                request,
                connection: self.connection(end)?,
            },
            Reply::Incoming { listener, end } => Event::Incoming {
                listener,
                connection: self.connection(end)?,
            },
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
            Reply::Exported { request, window } => Event::Exported { request, window },
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

    fn connection(&self, end: End) -> Result<Box<Connection>, ContractError> {
        let block = ControlBlock::at(&self.slabs, end.block)?;
        let board = self.board.clone();
        let board = board.ok_or(ContractError::Message("a connection before a board"))?;
        let connection = Connection::new(end, self.slabs.clone(), board, &block)?;
        Ok(Box::new(connection))
    }
}

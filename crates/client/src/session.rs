//! An application's session with its daemon: connections by handle, and what is said about them. No I/O: packets
//! of the socket go in by [`Session::input`] and come out by [`Session::output`].

use std::collections::VecDeque;
use std::net::SocketAddr;

use headworks_shm::View;

use crate::block::{Block, Status};
use crate::board::Board;
use crate::egress::{EgressWriter, Lent};
use crate::error::ContractError;
use crate::ingress::IngressReader;
use crate::memory::{Extent, Slabs};
use crate::message::{End, Refusal, Reply, Request, VERSION, VERSION_OLDEST};

/// An application's side.
///
/// Asking (answered by an [`Event`] under the number returned): [`connect`](Self::connect),
/// [`listen`](Self::listen), [`alloc`](Self::alloc). Telling: [`took`](Self::took), [`unlisten`](Self::unlisten),
/// [`close`](Self::close), [`abort`](Self::abort), [`free`](Self::free). Driving: [`input`](Self::input) for each
/// packet that came; then [`output`](Self::output) until there is none, [`event`](Self::event) until there is
/// none. Sending and receiving: on the [`Connection`] that an event brought.
///
/// What a connection's methods change the daemon learns from the session's board; where they say that it sleeps,
/// it is to be woken.
#[derive(Debug)]
pub struct Session {
    slabs: Slabs,
    board: Option<Board>,
    over: Option<Refusal>,
    requests: u32,
    out: VecDeque<Request>,
    events: VecDeque<Event>,
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
    /// What was asked for cannot be.
    Refused {
        /// Under this number.
        request: u32,
        /// Why.
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
    pub fn board(&self) -> Option<&Board> {
        self.board.as_ref()
    }

    /// Why it is over, where it is.
    pub fn over(&self) -> Option<Refusal> {
        self.over
    }

    /// A connection to whoever listens there.
    pub fn connect(&mut self, to: SocketAddr) -> u32 {
        self.ask(|request| Request::Connect { request, to })
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
    pub fn close(&mut self, connection: Box<Connection>) {
        let handle = connection.handle;
        self.out.push_back(Request::Close { handle });
    }

    /// Gives a connection up; the peer sees a reset.
    pub fn abort(&mut self, connection: Box<Connection>) {
        let handle = connection.handle;
        self.out.push_back(Request::Abort { handle });
    }

    /// Gives memory back. Nothing that was not returned lies in it.
    pub fn free(&mut self, extent: Extent) {
        self.out.push_back(Request::Free { extent });
    }

    /// The next packet for the daemon.
    pub fn output(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front().map(|request| request.encode())
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
                self.board = Some(Board::at(&self.slabs, board, handles as usize)?);
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
        let block = Block::at(&self.slabs, end.block)?;
        let board = self.board.clone();
        Ok(Box::new(Connection {
            handle: end.handle,
            local: end.local,
            peer: end.peer,
            slabs: self.slabs.clone(),
            board: board.ok_or(ContractError::Message("a connection before a board"))?,
            egress: EgressWriter::new(&self.slabs, &block)?,
            ingress: IngressReader::new(&self.slabs, &block)?,
            block,
        }))
    }
}

/// An application's end of a connection: any thread's, without the session. Methods that change something say whether
/// the daemon sleeps and is to be woken, [`Wake`].
#[derive(Debug)]
pub struct Connection {
    handle: u32,
    local: SocketAddr,
    peer: SocketAddr,
    slabs: Slabs,
    board: Board,
    block: Block,
    egress: EgressWriter,
    ingress: IngressReader,
}

/// Whether the daemon sleeps and is to be woken.
pub type Wake = bool;

/// What [`Connection::recv`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, at least one, or none where none were wanted.
    Bytes(usize),
    /// Nothing yet; or nothing before the next packet from the daemon, see [`Connection::awaits_slab`].
    Nothing,
    /// The stream has ended.
    Ended,
}

impl Connection {
    /// What it is called in the session.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// This end's address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The other's.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Its words, of which a sleeper arms the bell.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// What the daemon says of it as a whole.
    pub fn status(&self) -> Status {
        self.block.status()
    }

    /// The memory that it knows of.
    pub fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// Learns of the memory that the session has got since: before waiting, and where [`Connection::awaits_slab`].
    pub fn refresh(&mut self, session: &Session) {
        self.slabs = session.slabs.clone();
    }

    fn touch(&self) -> Wake {
        self.board.touch(self.handle)
    }

    /// Copies as many bytes as there is room for; says how many.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(usize, Wake), ContractError> {
        let written = self.egress.write(&self.slabs, bytes)?;
        Ok((written, written > 0 && self.touch()))
    }

    /// Has memory of the session sent from where it is; see [`EgressWriter::lend`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn lend(&mut self, extent: Extent) -> Result<(Option<Lent>, Wake), ContractError> {
        let lent = self.egress.lend(&self.slabs, extent)?;
        Ok((lent, lent.is_some() && self.touch()))
    }

    /// Whether memory that was lent is the application's again.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn is_returned(&mut self, lent: Lent) -> Result<bool, ContractError> {
        self.egress.is_returned(lent)
    }

    /// Ends the stream to the peer; says whether there was room to say so.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn end(&mut self) -> Result<(bool, Wake), ContractError> {
        let was_ended = self.egress.is_ended();
        let is_ended = self.egress.end(&self.slabs)?;
        Ok((is_ended, is_ended && !was_ended && self.touch()))
    }

    /// Whether this side has ended its stream.
    pub fn is_ended(&self) -> bool {
        self.egress.is_ended()
    }

    /// Copies as many bytes as have come and fit. What came before a reset can still be received.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn recv(&mut self, into: &mut [u8]) -> Result<(Received, Wake), ContractError> {
        // Before it is looked what there is: the end is said after the last byte.
        let is_empty = self.ingress.available(&self.slabs)? == 0 && !self.ingress.awaits_slab();
        let is_ended = is_empty && self.status().is_ended;
        let read = self.ingress.read(&self.slabs, into)?;
        let wake = read > 0 && self.ingress.is_to_tell() && self.touch();
        let received = match read {
            0 if into.is_empty() => Received::Bytes(0),
            0 if is_ended => Received::Ended,
            0 => Received::Nothing,
            read => Received::Bytes(read),
        };
        Ok((received, wake))
    }

    /// Whether what has come can be read only once a packet from the daemon has, which is on its way.
    pub fn awaits_slab(&self) -> bool {
        self.ingress.awaits_slab()
    }

    /// Where the next bytes are, as many as there are without a break.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn peek(&mut self) -> Result<Extent, ContractError> {
        self.ingress.peek(&self.slabs)
    }

    /// Gives bytes back that were peeked at.
    pub fn consume(&mut self, bytes: u64) -> Wake {
        self.ingress.consume(bytes);
        self.ingress.is_to_tell() && self.touch()
    }
}

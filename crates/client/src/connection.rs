//! An application's end of a connection: any thread's, without the session. Each direction can be another's.
//!
//! Methods that change something say whether the daemon sleeps and is to be woken, [`Wake`].

use std::net::SocketAddr;
use std::ops::Deref;

use crate::control_block::{ControlBlock, Status, Transfer};
use crate::doorbell::Doorbell;
use crate::egress::{EgressWriter, Lent};
use crate::error::ContractError;
use crate::ingress::IngressReader;
use crate::memory::{Extent, Slabs};
use crate::one_sided::Operation;
use crate::socket_message::End;

/// Both directions.
#[derive(Debug)]
pub struct Connection {
    /// What goes to the peer.
    pub sending: Sending,
    /// What comes from it.
    pub receiving: Receiving,
}

impl Connection {
    /// The connection that a daemon has told of.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub(crate) fn new(
        end: End,
        slabs: Slabs,
        board: Doorbell,
        block: &ControlBlock,
    ) -> Result<Self, ContractError> {
        let egress = EgressWriter::new(&slabs, block)?;
        let ingress = IngressReader::new(&slabs, block)?;
        let known = Known {
            handle: end.handle,
            local: end.local,
            peer: end.peer,
            slabs,
            board,
            block: block.clone(),
        };
        Ok(Self {
            sending: Sending {
                known: known.clone(),
                egress,
            },
            receiving: Receiving { known, ingress },
        })
    }

    /// Learns of the memory that the session has got since, for both directions.
    pub fn refresh(&mut self, slabs: &Slabs) {
        self.sending.refresh(slabs);
        self.receiving.refresh(slabs);
    }
}

impl Deref for Connection {
    type Target = Known;

    fn deref(&self) -> &Known {
        &self.sending
    }
}

/// What either direction knows of the connection.
#[derive(Clone, Debug)]
pub struct Known {
    handle: u32,
    local: SocketAddr,
    peer: SocketAddr,
    slabs: Slabs,
    board: Doorbell,
    block: ControlBlock,
}

impl Known {
    /// What it is called in the session.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// This end's address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Address and port of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Its words, of which a sleeper arms the bell.
    pub fn block(&self) -> &ControlBlock {
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

    /// Has the daemon look at it once more: whether there is room, for whoever polls.
    pub fn nudge(&self) -> Wake {
        self.board.touch(self.handle)
    }
}

/// Whether the daemon sleeps and is to be woken.
pub type Wake = bool;

/// What both directions are alike in.
macro_rules! direction {
    ($name:ident) => {
        impl Deref for $name {
            type Target = Known;

            fn deref(&self) -> &Known {
                &self.known
            }
        }

        impl $name {
            /// Learns of the memory that the session has got since: before waiting, and where what has come cannot be
            /// read before.
            pub fn refresh(&mut self, slabs: &Slabs) {
                self.known.slabs = slabs.clone();
            }
        }
    };
}

direction!(Sending);
direction!(Receiving);

/// What goes to the peer.
#[derive(Debug)]
pub struct Sending {
    known: Known,
    egress: EgressWriter,
}

impl Sending {
    /// Copies as many bytes as there is room for; says how many.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(usize, Wake), ContractError> {
        let written = self.egress.write(&self.known.slabs, bytes)?;
        Ok((written, written > 0 && self.nudge()))
    }

    /// Has memory of the session sent from where it is; see [`EgressWriter::lend`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn lend(&mut self, extent: Extent) -> Result<(Option<Lent>, Wake), ContractError> {
        let lent = self.egress.lend(&self.known.slabs, extent)?;
        Ok((lent, lent.is_some() && self.nudge()))
    }

    /// How its bytes are to be carried, from now on.
    pub fn set_transfer(&self, transfer: Transfer) {
        self.known.block.set_transfer(transfer);
    }

    /// Whether memory that was lent is the application's again.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn is_returned(&mut self, lent: Lent) -> Result<bool, ContractError> {
        self.egress.is_returned(lent)
    }

    /// Hints that something will be sent soon. What belongs to one of thousands of connections is in no cache any more;
    /// asked for all at once it is there after the time of one line.
    #[inline]
    pub fn expect(&self) {
        self.egress.expect();
    }

    /// Asks for a one-sided operation on memory that the other end has exported; see [`EgressWriter::operate`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn operate(
        &mut self,
        operation: &Operation,
    ) -> Result<(Option<Lent>, Wake), ContractError> {
        let asked = self.egress.operate(&self.known.slabs, operation)?;
        Ok((asked, asked.is_some() && self.nudge()))
    }

    /// Ends the stream to the peer; says whether there was room to say so.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn end(&mut self) -> Result<(bool, Wake), ContractError> {
        let was_ended = self.egress.is_ended();
        let is_ended = self.egress.end(&self.known.slabs)?;
        Ok((is_ended, is_ended && !was_ended && self.nudge()))
    }

    /// Whether this side has ended its stream.
    pub fn is_ended(&self) -> bool {
        self.egress.is_ended()
    }
}

/// What [`Receiving::recv`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, at least one, or none where none were wanted.
    Bytes(usize),
    /// Nothing yet; or nothing before the next packet from the daemon, see [`Receiving::awaits_slab`].
    Nothing,
    /// The stream has ended.
    Ended,
}

/// What comes from the peer.
#[derive(Debug)]
pub struct Receiving {
    known: Known,
    ingress: IngressReader,
}

impl Receiving {
    /// Copies as many bytes as have come and fit. What came before a reset can still be received.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn recv(&mut self, into: &mut [u8]) -> Result<(Received, Wake), ContractError> {
        // Before it is looked what there is: the end is said after the last byte.
        let is_empty =
            self.ingress.available(&self.known.slabs)? == 0 && !self.ingress.awaits_slab();
        let is_ended = is_empty && self.status().is_ended;
        let read = self.ingress.read(&self.known.slabs, into)?;
        let wake = read > 0 && self.ingress.is_to_tell() && self.nudge();
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
        self.ingress.peek(&self.known.slabs)
    }

    /// Gives bytes back that were peeked at.
    pub fn consume(&mut self, bytes: u64) -> Wake {
        self.ingress.consume(bytes);
        self.ingress.is_to_tell() && self.nudge()
    }
}

//! A peer that messages are sent to or come from, with the messages of one stream.

use std::net::SocketAddr;

use super::super::{PendingConnection, ServiceError, Stream};
use super::Message;

/// Limit on a message, in bytes.
pub const MESSAGE_MAX: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"hwdgram1";
/// Bytes of the magic and the port at the beginning of a stream.
const HELLO_BYTES: usize = MAGIC.len() + 2;
/// Bytes of the length prefix of a message.
pub(super) const LENGTH: usize = 4;
/// Messages up to this length are sent together with their length prefix.
const SHORT: usize = 4096;

/// A peer that messages are sent to or come from.
pub(super) struct Peer {
    pub(super) connection: PeerConnection,
    /// Address at which it receives, by its own claim; `None` until its hello has arrived.
    pub(super) address: Option<SocketAddr>,
    /// Whether this side connected to it, in order to send: then nothing comes back but the end of the
    /// stream.
    is_called: bool,
    /// Whether it is gone, and is kept only for the message that was lent.
    pub(super) is_over: bool,
    /// Whether it is in the queue of ready peers.
    pub(super) is_ready: bool,
    /// Whether the descriptor for room watches it.
    pub(super) wants_room: bool,
    /// Accepted bytes for which there was no room yet.
    pub(super) rest: Vec<u8>,
    /// Bytes of a message that arrives in pieces, so far.
    got: Vec<u8>,
}

pub(super) enum PeerConnection {
    Connecting(PendingConnection),
    Up(Box<Stream>),
}

/// Result of polling a peer.
#[derive(Clone, Copy)]
pub(super) enum PeerStatus {
    /// A message of this many bytes, in place.
    MessageInPlace(usize),
    /// A message that was copied together.
    MessageCopied,
    Nothing,
    /// The peer is gone, or does not speak this protocol.
    Gone,
}

impl Peer {
    /// Makes a peer. `address` is where this side connected to it; `None` if the peer connected, and has not
    /// said where it receives.
    pub(super) fn new(connection: PeerConnection, address: Option<SocketAddr>) -> Self {
        Self {
            connection,
            address,
            is_called: address.is_some(),
            is_over: false,
            is_ready: false,
            wants_room: false,
            rest: Vec::new(),
            got: Vec::new(),
        }
    }

    /// Queues the hello of the stream, which says where this end receives.
    pub(super) fn send_hello(&mut self, port: u16) {
        self.rest = [&MAGIC[..], &port.to_le_bytes()].concat();
    }

    /// Sends the accepted bytes for which there was no room. Returns whether all of them were sent.
    pub(super) fn flush(&mut self) -> Result<bool, ServiceError> {
        let PeerConnection::Up(stream) = &mut self.connection else {
            return Ok(false);
        };
        let sent = send_some(stream, &self.rest)?;
        self.rest.drain(..sent);
        Ok(self.rest.is_empty())
    }

    /// Sends a message, as much of it as there is room for, and keeps the rest. `false`: nothing was
    /// accepted, because earlier bytes must be sent first or there is no room at all.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<bool, ServiceError> {
        let length = (bytes.len() as u32).to_le_bytes();
        let is_greeting = self.rest.len() == HELLO_BYTES && bytes.len() <= SHORT;
        if is_greeting {
            // The first message is sent together with the hello.
            self.rest.extend_from_slice(&length);
            self.rest.extend_from_slice(bytes);
            self.flush()?;
            return Ok(true);
        }
        if !self.flush()? {
            return Ok(false);
        }
        let PeerConnection::Up(stream) = &mut self.connection else {
            return Ok(false);
        };
        if bytes.len() <= SHORT {
            let whole = [&length[..], bytes].concat();
            let sent = send_some(stream, &whole)?;
            if sent == 0 {
                return Ok(false);
            }
            self.rest.extend_from_slice(&whole[sent..]);
            return Ok(true);
        }
        let sent = send_some(stream, &length)?;
        if sent == 0 {
            return Ok(false);
        }
        self.rest.extend_from_slice(&length[sent..]);
        let sent = match sent == LENGTH {
            true => send_some(stream, bytes)?,
            false => 0,
        };
        self.rest.extend_from_slice(&bytes[sent..]);
        Ok(true)
    }

    /// Looks for a message. Copies together what has arrived of a message in pieces.
    pub(super) fn poll(&mut self) -> Result<PeerStatus, ServiceError> {
        let PeerConnection::Up(stream) = &mut self.connection else {
            return Ok(PeerStatus::Nothing);
        };
        loop {
            let peeked = match stream.peek() {
                // A peer that this side connected to must not send: it could claim to be any port.
                Ok(peeked) if peeked.is_empty() || self.is_called => return Ok(PeerStatus::Gone),
                Ok(peeked) => peeked,
                Err(ServiceError::WouldBlock) => return Ok(PeerStatus::Nothing),
                Err(ServiceError::Reset(_)) => return Ok(PeerStatus::Gone),
                Err(error) => return Err(error),
            };
            let is_greeted = self.address.is_some();
            if is_greeted && self.got.is_empty() {
                match length(&peeked) {
                    Some(Err(())) => return Ok(PeerStatus::Gone),
                    Some(Ok(len)) if peeked.len() - LENGTH >= len => {
                        return Ok(PeerStatus::MessageInPlace(len));
                    }
                    _ => {}
                }
            }
            // Takes one piece at a time, and no more than the hello or message needs.
            let want = match (is_greeted, length(&self.got)) {
                (false, _) => HELLO_BYTES,
                (true, None) => LENGTH,
                (true, Some(Ok(len))) => LENGTH + len,
                (true, Some(Err(()))) => return Ok(PeerStatus::Gone),
            };
            let piece = peeked.len().min(want - self.got.len());
            self.got.extend_from_slice(&peeked[..piece]);
            peeked.consume(piece)?;
            if self.got.len() < want {
                continue;
            }
            match is_greeted {
                false => {
                    let (magic, port) = self.got.split_at(MAGIC.len());
                    if magic != MAGIC {
                        return Ok(PeerStatus::Gone);
                    }
                    let port = u16::from_le_bytes([port[0], port[1]]);
                    self.address = Some(SocketAddr::new(stream.peer_addr().ip(), port));
                    self.got.clear();
                }
                true if length(&self.got) == Some(Ok(want - LENGTH)) => {
                    return Ok(PeerStatus::MessageCopied);
                }
                true => {}
            }
        }
    }

    /// Lends the message that was found.
    pub(super) fn show(&mut self, found: PeerStatus) -> Result<Message<'_>, ServiceError> {
        Ok(match (found, &mut self.connection) {
            (PeerStatus::MessageInPlace(len), PeerConnection::Up(stream)) => {
                Message::InPlace(stream.peek()?, len)
            }
            _ => Message::Copied(self.got.get(LENGTH..).unwrap_or_default()),
        })
    }

    /// Consumes the message that was found.
    pub(super) fn consume(&mut self, found: PeerStatus) -> Result<(), ServiceError> {
        match (found, &mut self.connection) {
            (PeerStatus::MessageInPlace(len), PeerConnection::Up(stream)) => {
                stream.peek()?.consume(LENGTH + len)
            }
            _ => {
                self.got.clear();
                // One long message must not keep its memory for ever.
                self.got.shrink_to(SHORT);
                Ok(())
            }
        }
    }
}

/// Returns the length of the message that begins there, once it is known; an error if it is above the limit.
fn length(bytes: &[u8]) -> Option<Result<usize, ()>> {
    let length = bytes.first_chunk::<LENGTH>()?;
    let len = u32::from_le_bytes(*length) as usize;
    Some(if len <= MESSAGE_MAX { Ok(len) } else { Err(()) })
}

/// Sends as much as there is room for.
fn send_some(stream: &mut Stream, bytes: &[u8]) -> Result<usize, ServiceError> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.send(&bytes[sent..]) {
            Ok(more) => sent += more,
            Err(ServiceError::WouldBlock) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

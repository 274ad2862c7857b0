//! One of those that messages are sent to, or come from: the messages of one stream.

use std::net::SocketAddr;

use super::super::{PendingConnection, ServiceError, Stream};
use super::Message;

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"hwdgram1";
/// Bytes that a stream begins with.
const HELLO_BYTES: usize = MAGIC.len() + 2;
/// Bytes in front of a message.
pub(super) const LENGTH: usize = 4;
/// Messages up to this length go together with their length.
const SHORT: usize = 4096;

/// Somebody that messages are sent to, or come from.
pub(super) struct Peer {
    pub(super) connection: PeerConnection,
    /// Where it receives, as it says; `None` until it has said so.
    pub(super) address: Option<SocketAddr>,
    /// This side has called it, for what is sent: nothing comes from there but the end.
    is_called: bool,
    /// It is gone, but for what was shown of it.
    pub(super) is_over: bool,
    /// It is among the ready ones.
    pub(super) is_ready: bool,
    /// It is waited for until there is room.
    pub(super) wants_room: bool,
    /// What there was no room for.
    pub(super) rest: Vec<u8>,
    /// What has come of a message that lay in pieces.
    got: Vec<u8>,
}

pub(super) enum PeerConnection {
    Connecting(PendingConnection),
    Up(Box<Stream>),
}

/// What was found of a peer.
#[derive(Clone, Copy)]
pub(super) enum PeerStatus {
    /// A message: so many bytes, where they came, or put together.
    MessageInPlace(usize),
    MessageCopied,
    Nothing,
    /// It is gone, or is none of ours.
    Gone,
}

impl Peer {
    /// One that is called there; of one that has called it is not known where it receives.
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

    /// The stream begins with where this end receives.
    pub(super) fn send_hello(&mut self, port: u16) {
        self.rest = [&MAGIC[..], &port.to_le_bytes()].concat();
    }

    /// Sends what there was no room for; says whether all of it went.
    pub(super) fn flush(&mut self) -> Result<bool, ServiceError> {
        let PeerConnection::Up(stream) = &mut self.connection else {
            return Ok(false);
        };
        let sent = send_some(stream, &self.rest)?;
        self.rest.drain(..sent);
        Ok(self.rest.is_empty())
    }

    /// Sends a message, or as much of it as there is room for, and keeps the rest. `false`: something before it is still to be sent.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<bool, ServiceError> {
        let length = (bytes.len() as u32).to_le_bytes();
        let is_greeting = self.rest.len() == HELLO_BYTES && bytes.len() <= SHORT;
        if is_greeting {
            // The first message goes with it.
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

    /// Looks for a message. What it needs that has come so far is put together.
    pub(super) fn poll(&mut self) -> Result<PeerStatus, ServiceError> {
        let PeerConnection::Up(stream) = &mut self.connection else {
            return Ok(PeerStatus::Nothing);
        };
        loop {
            let peeked = match stream.peek() {
                // Who answers where it was called may say that it is anybody: it is none of ours.
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
            // Piece by piece, no further than what is looked for.
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
                    self.address = Some(SocketAddr::new(stream.peer().ip(), port));
                    self.got.clear();
                }
                true if length(&self.got) == Some(Ok(want - LENGTH)) => {
                    return Ok(PeerStatus::MessageCopied);
                }
                true => {}
            }
        }
    }

    /// Shows the message that was found.
    pub(super) fn show(&mut self, found: PeerStatus) -> Result<Message<'_>, ServiceError> {
        Ok(match (found, &mut self.connection) {
            (PeerStatus::MessageInPlace(len), PeerConnection::Up(stream)) => {
                Message::InPlace(stream.peek()?, len)
            }
            _ => Message::Copied(self.got.get(LENGTH..).unwrap_or_default()),
        })
    }

    /// The message that was found is not needed any more.
    pub(super) fn consume(&mut self, found: PeerStatus) -> Result<(), ServiceError> {
        match (found, &mut self.connection) {
            (PeerStatus::MessageInPlace(len), PeerConnection::Up(stream)) => {
                stream.peek()?.consume(LENGTH + len)
            }
            _ => {
                self.got.clear();
                // One long message is no reason to keep as much for ever.
                self.got.shrink_to(SHORT);
                Ok(())
            }
        }
    }
}

/// How long the message is that begins there, where that is known; one that is too long is none.
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

//! L5's ring ("Low-Latency Communication for Fast DBMS Using RDMA and Shared Memory", ICDE 2020). The sender
//! sends every message at once, with two WRITEs: one of the bytes, one of the tail.
//!
//! The sender has an array that mirrors the receiver's. It copies the message's length and then the message
//! into this array, and posts both WRITEs as one chain. The receiver polls the tail, copies the message out,
//! and WRITEs its head back lazily.

use headworks_ring::config::CheckedConfig;
use headworks_ring::endpoint::{ChainPosted, write, write_word};
use headworks_ring::header::{Header, Kind};
use headworks_ring::{RingError, SendError, SetupError};

use super::connected_end::ConnectedEnd;
use super::receiver::{BaselineReceiver, PUSHES, ReceiveEnd, ReceiveProtocol};
use super::sender::{BaselineSender, MessageLocation, SendEnd, SendProtocol};
use super::setup::{Depths, Design, Plan};

/// L5's design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L5(pub Plan);

/// L5's sender.
#[derive(Debug, Default)]
pub struct L5Send(());

/// L5's receiver.
#[derive(Debug, Default)]
pub struct L5Receive(());

impl Design for L5 {
    type Sender = BaselineSender<L5Send>;
    type Receiver = BaselineReceiver<L5Receive>;

    fn tag(&self) -> u8 {
        2
    }

    fn settle(&self) -> Result<CheckedConfig, SetupError> {
        Ok(self.0.packed()?)
    }

    fn depths(&self, _: &CheckedConfig) -> Depths {
        Depths {
            sends: 8 * u64::from(self.0.messages) + 16,
            pushes: PUSHES,
            receives: 0,
        }
    }

    fn sender(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Sender {
        BaselineSender::new(L5Send(()), ring, connected_end)
    }

    fn receiver(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Receiver {
        BaselineReceiver::new(L5Receive(()), ring, connected_end)
    }
}

impl L5Send {
    #[inline(always)]
    fn send(
        &self,
        end: &mut SendEnd,
        at: MessageLocation,
        header: Header,
    ) -> Result<(), SendError> {
        let offset = end.offset_of(at.index);
        end.set_word(offset, header.word());
        let (sge, remote) = end.piece(offset, 8 + at.len);
        let tail = end.policy.tail().wrapping_add(at.count);
        let signaled = end.policy.must_signal(tail);
        let word = tail.to_ne_bytes();
        let chain = [
            write(&sge, remote),
            write_word(&word, end.connected_end.peer, tail, signaled),
        ];
        if end.connected_end.post(&chain)? != ChainPosted::All {
            end.poll()?;
            // The receiver does not look at bytes that no tail covers, so the next message may overwrite them.
            if end.connected_end.post(&chain)? != ChainPosted::All {
                return Err(SendError::Full);
            }
        }
        end.policy.advance(at.count);
        end.policy.transmitted();
        end.policy.publish();
        if signaled {
            end.policy.signal(tail);
        }
        Ok(())
    }
}

impl SendProtocol for L5Send {
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn commit(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError> {
        let header = Header {
            lap: 0,
            kind: Kind::Message,
            len: at.len as u32,
        };
        self.send(end, at, header)
    }

    fn skip(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError> {
        let header = Header {
            lap: 0,
            kind: Kind::Skip,
            len: 0,
        };
        self.send(end, at, header)
    }

    fn flush(&mut self, _: &mut SendEnd) -> Result<bool, RingError> {
        Ok(true)
    }
}

impl ReceiveProtocol for L5Receive {
    const COPIES_OUT: bool = true;

    #[inline(always)]
    fn look(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError> {
        end.observe_tail()
    }
}

//! WRITEs without any protocol, as the usual benchmarks post them, to show what the verbs themselves cost
//! (RB² paper, section V-A, "raw WRITE").
//!
//! The sender WRITEs one message after the other into the receiver's array, round and round, with one
//! request and one doorbell each. It waits only for room in its send queue, so it overwrites unread
//! messages. There is no head.
//!
//! In a ping-pong the receiver answers each message before the next one arrives. It finds a message by the
//! number in the message's last word, and nothing is overwritten. For other traffic this is not a channel.
//! If the device does not place bytes in order, the last word says nothing about the bytes before it. The
//! receiver then shows only the message's number; the usual benchmarks do not check more.

use headworks_ring::config::{CheckedConfig, Framing, RingConfig};
use headworks_ring::endpoint::{ChainPosted, flags};
use headworks_ring::{
    LengthError, MessageReceiver, MessageSender, RingError, SendError, SetupError,
};
use headworks_verbs::{Payload, SendOp, SendWr};

use super::connected_end::ConnectedEnd;
use super::setup::{ARRAY, Depths, Design, Plan};

/// WRITEs of messages of [`Plan::longest`] bytes, at least 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw {
    /// Number and length of the messages.
    pub plan: Plan,
}

/// State that both ends have: the connection and where the next message goes.
struct RawRing {
    connected_end: ConnectedEnd,
    slots: u64,
    slot_size: usize,
    len: usize,
    /// Messages so far; never reset.
    count: u64,
    index: u64,
}

/// The end that posts the WRITEs.
pub struct RawSender(RawRing);

/// The end whose memory is written to.
pub struct RawReceiver {
    round: RawRing,
    /// Whether all bytes of a message have arrived when its last word has.
    whole: bool,
}

impl Design for Raw {
    type Sender = RawSender;
    type Receiver = RawReceiver;

    fn tag(&self) -> u8 {
        4
    }

    fn settle(&self) -> Result<CheckedConfig, SetupError> {
        Ok(RingConfig::fixed(self.plan.messages, self.plan.longest.max(8)).settle()?)
    }

    fn depths(&self, ring: &CheckedConfig) -> Depths {
        Depths {
            sends: ring.slots,
            pushes: 1,
            receives: 0,
        }
    }

    fn sender(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> RawSender {
        RawSender(RawRing::new(&ring, connected_end))
    }

    fn receiver(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> RawReceiver {
        let in_order = connected_end.promises().in_order_within_write;
        RawReceiver {
            whole: in_order as usize >= self.plan.longest,
            round: RawRing::new(&ring, connected_end),
        }
    }
}

impl RawRing {
    fn new(ring: &CheckedConfig, connected_end: ConnectedEnd) -> Self {
        let len = match ring.framing {
            Framing::Fixed(len) | Framing::Variable(len) => len,
        };
        Self {
            connected_end,
            slots: ring.slots,
            slot_size: ring.slot_size,
            len,
            count: 0,
            index: 0,
        }
    }

    #[inline(always)]
    fn offset(&self) -> usize {
        ARRAY + self.index as usize * self.slot_size
    }

    /// Returns the offset of the last whole word of the next message.
    #[inline(always)]
    fn last(&self) -> usize {
        self.offset() + self.len / 8 * 8 - 8
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.count += 1;
        self.index += 1;
        if self.index == self.slots {
            self.index = 0;
        }
    }
}

impl MessageSender for RawSender {
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.try_send_with(message.len(), |place| place.copy_from_slice(message))
    }

    /// Replaces the message's last whole word with the message's number.
    #[inline]
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        let round = &mut self.0;
        if len != round.len {
            return Err(SendError::Length(LengthError {
                len,
                lowest: round.len,
                highest: round.len,
            }));
        }
        let (offset, last) = (round.offset(), round.last());
        fill(round.connected_end.memory.lent_mut(offset, len));
        let number = round.count + 1;
        round.connected_end.memory.cursor(last).publish(number);
        // One signalled request per quarter of the queue frees room before the queue is full.
        let signaled = round.count.is_multiple_of((round.slots / 4).max(1));
        let sge = round.connected_end.memory.sge(offset, len);
        let request = SendWr {
            wr_id: number,
            op: SendOp::Write(round.connected_end.peer.plus(offset as u64)),
            payload: Payload::Gather(std::slice::from_ref(&sge)),
            flags: flags(signaled),
        };
        if round.connected_end.post(&[request])? != ChainPosted::All {
            round.connected_end.poll_sends(|_| {})?;
            if round.connected_end.post(&[request])? != ChainPosted::All {
                return Err(SendError::Full);
            }
        }
        round.advance();
        Ok(())
    }

    fn flush(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.0.connected_end.poll_sends(|_| {})?;
        self.0.connected_end.check()?;
        Ok(false)
    }

    fn max_message(&self) -> usize {
        self.0.len
    }

    fn sent(&self) -> u64 {
        self.0.count
    }

    fn published(&self) -> u64 {
        self.0.count
    }

    fn consumed(&self) -> u64 {
        0
    }
}

impl MessageReceiver for RawReceiver {
    #[inline]
    fn try_recv_with<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError> {
        let round = &mut self.round;
        let number = round.connected_end.memory.cursor(round.last()).observe();
        if number != round.count + 1 {
            // Prefetches the message's first line, so that it arrives together with the last.
            round.connected_end.memory.expect(round.offset());
            return Ok(None);
        }
        let shown = match self.whole {
            true => look(round.connected_end.memory.lent(round.offset(), round.len)),
            false => look(&round.count.to_ne_bytes()),
        };
        round.advance();
        Ok(Some(shown))
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.round.connected_end.check()?;
        Ok(false)
    }

    fn push_head(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }

    fn consumed(&self) -> u64 {
        self.round.count
    }
}

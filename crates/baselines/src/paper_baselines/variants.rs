//! The combinations of RB²'s Figure 3 (section IV-A): the head pushed or pulled, the tail announced by a
//! completion or by a second WRITE. They use the ring's slots and batches of a fixed number of slots.
//!
//! The ring is built on push with write twice, and adds early transmission and the elastic threshold.
//! The others differ as follows:
//!
//! - *Poll CQ*: the last WRITE of a batch carries the number of its slots as immediate. The receiver
//!   polls its CQ and posts a receive for each one used.
//! - *Pull*: the receiver keeps its head in its own memory. The sender READs the head after every γ slots
//!   and when it has no room, one READ at a time.

use headworks_ring::config::{CheckedConfig, Framing, LINE, Mode, RingConfig};
use headworks_ring::endpoint::{ChainPosted, flags, write, write_word};
use headworks_ring::header::{Header, Kind};
use headworks_ring::send_policy::PostAction;
use headworks_ring::{RingError, SendError, SetupError};
use headworks_verbs::{Payload, SendFlags, SendOp, SendWr};

use super::connected_end::{ConnectedEnd, RECEIVES};
use super::receiver::{BaselineReceiver, PUSHES, ReceiveEnd, ReceiveProtocol};
use super::sender::{BaselineSender, MessageLocation, SendEnd, SendProtocol};
use super::setup::{Depths, Design};

/// How the sender learns of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Head {
    /// The receiver WRITEs it.
    Push,
    /// The sender READs it.
    Pull,
}

/// How the receiver learns of the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tail {
    /// From the completion of a WRITE with immediate.
    PollCq,
    /// From a second WRITE.
    WriteTwice,
}

/// One of the four combinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncVariant {
    /// How the sender learns of the head.
    pub head: Head,
    /// How the receiver learns of the tail.
    pub tail: Tail,
    /// N and the message layout, as for the ring. α is the batch size, and γ how far the head may lag.
    /// β and the mode are ignored.
    pub ring: RingConfig,
}

/// A combination's sender.
#[derive(Debug)]
pub struct VariantSend {
    head: Head,
    tail: Tail,
    /// Whether a READ of the head is in flight.
    pulling: bool,
    /// The tail when the last READ of the head was posted.
    pulled_at: u64,
}

/// A combination's receiver.
#[derive(Debug)]
pub struct VariantReceive {
    head: Head,
    tail: Tail,
}

/// Offset of the word that the peer READs.
const PULLED: usize = LINE;
/// `wr_id` of a READ of the head. No tail reaches this value in a machine's lifetime, whatever N is.
const PULL: u64 = u64::MAX;

impl Design for SyncVariant {
    type Sender = BaselineSender<VariantSend>;
    type Receiver = BaselineReceiver<VariantReceive>;

    fn tag(&self) -> u8 {
        16 + 2 * u8::from(self.head == Head::Pull) + u8::from(self.tail == Tail::PollCq)
    }

    fn settle(&self) -> Result<CheckedConfig, SetupError> {
        let mut ring = RingConfig {
            mode: Mode::Poll,
            ..self.ring.clone()
        }
        .settle()?;
        ring.transmit_every = ring.publish_every;
        ring.elastic = false;
        Ok(ring)
    }

    fn depths(&self, ring: &CheckedConfig) -> Depths {
        let receives = match self.tail {
            Tail::PollCq => ring.slots + RECEIVES,
            Tail::WriteTwice => 0,
        };
        Depths {
            sends: 2 * ring.slots + 8,
            pushes: PUSHES,
            receives,
        }
    }

    fn sender(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Sender {
        BaselineSender::new(
            VariantSend {
                head: self.head,
                tail: self.tail,
                pulling: false,
                pulled_at: 0,
            },
            ring,
            connected_end,
        )
    }

    fn receiver(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Receiver {
        BaselineReceiver::new(
            VariantReceive {
                head: self.head,
                tail: self.tail,
            },
            ring,
            connected_end,
        )
    }
}

impl VariantSend {
    /// Sends the batch and announces it.
    #[inline(always)]
    fn publish(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        let tail = end.policy.tail();
        let signaled = end.policy.must_signal(tail);
        let [first, second] = end.policy.untransmitted();
        let posted = match self.tail {
            Tail::WriteTwice => write_twice(end, first, second, tail, signaled)?,
            Tail::PollCq => with_immediate(end, first, second, tail, signaled)?,
        };
        if let ChainPosted::Part(posted) = posted {
            // Posted requests of the batch are not posted again. Completions make room for the rest.
            end.policy.transmitted_pieces(posted);
            if self.tail == Tail::PollCq {
                end.policy.publish_sent();
            }
            return self.poll(end);
        }
        end.policy.transmitted();
        end.policy.publish();
        if signaled {
            end.policy.signal(tail);
        }
        if self.head == Head::Pull && tail.wrapping_sub(self.pulled_at) >= end.ring.push_every {
            self.pull(end)?;
        }
        Ok(())
    }

    /// READs the head, unless a READ is already in flight.
    fn pull(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        if self.pulling {
            self.poll(end)?;
        }
        if self.pulling {
            return Ok(());
        }
        let sge = end.connected_end.memory.sge(0, 8);
        let request = SendWr {
            wr_id: PULL,
            op: SendOp::Read(end.connected_end.peer.plus(PULLED as u64)),
            payload: Payload::Gather(std::slice::from_ref(&sge)),
            flags: SendFlags::SIGNALED,
        };
        self.pulling = end.connected_end.post(&[request])? == ChainPosted::All;
        self.pulled_at = end.policy.tail();
        Ok(())
    }

    fn poll(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        let (mut last, mut pulled) = (None, false);
        end.connected_end.poll_sends(|wr_id| match wr_id {
            PULL => pulled = true,
            tail => last = Some(tail),
        })?;
        if let Some(tail) = last {
            end.policy.complete(tail)?;
        }
        if pulled {
            self.pulling = false;
            end.observe_head()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn add(&mut self, end: &mut SendEnd, at: MessageLocation, kind: Kind) -> Result<(), SendError> {
        if let Framing::Variable(_) = end.ring.framing {
            let len = match kind {
                Kind::Skip => at.count as u32,
                _ => at.len as u32,
            };
            let header = Header { lap: 0, kind, len };
            end.set_word(end.offset_of(at.index), header.word());
        }
        match end.policy.advance(at.count) {
            PostAction::Publish => Ok(self.publish(end)?),
            _ => Ok(()),
        }
    }
}

/// Posts the WRITEs of a batch and the WRITE of the tail after them.
#[inline(always)]
fn write_twice(
    end: &mut SendEnd,
    first: (u64, u64),
    second: (u64, u64),
    tail: u64,
    signaled: bool,
) -> Result<ChainPosted, RingError> {
    let (one, two) = (end.slots(first), end.slots(second));
    let word = tail.to_ne_bytes();
    let tail = write_word(&word, end.connected_end.peer, tail, signaled);
    match (first.1, second.1) {
        (0, _) => end.connected_end.post(&[tail]),
        (_, 0) => end.connected_end.post(&[write(&one.0, one.1), tail]),
        _ => {
            let chain = [write(&one.0, one.1), write(&two.0, two.1), tail];
            end.connected_end.post(&chain)
        }
    }
}

/// Posts the WRITEs of a batch, each with the number of its slots as immediate.
#[inline(always)]
fn with_immediate(
    end: &mut SendEnd,
    first: (u64, u64),
    second: (u64, u64),
    tail: u64,
    signaled: bool,
) -> Result<ChainPosted, RingError> {
    let (one, two) = (end.slots(first), end.slots(second));
    let [one, two] = [(&one, first.1, second.1 == 0), (&two, second.1, true)].map(
        |((sge, remote), count, is_last)| SendWr {
            wr_id: if is_last { tail } else { 0 },
            op: SendOp::WriteImm(*remote, count as u32),
            payload: Payload::Gather(std::slice::from_ref(sge)),
            flags: flags(signaled && is_last),
        },
    );
    match second.1 {
        0 => end.connected_end.post(&[one]),
        _ => end.connected_end.post(&[one, two]),
    }
}

impl SendProtocol for VariantSend {
    const IN_PLACE: bool = true;

    #[inline(always)]
    fn commit(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError> {
        self.add(end, at, Kind::Message)
    }

    fn skip(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError> {
        self.add(end, at, Kind::Skip)
    }

    #[inline(always)]
    fn flush(&mut self, end: &mut SendEnd) -> Result<bool, RingError> {
        if !end.policy.is_flushed() {
            self.publish(end)?;
        }
        Ok(end.policy.is_flushed())
    }

    fn refresh(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        if self.head == Head::Push {
            end.poll()?;
            return end.observe_head();
        }
        self.pull(end)?;
        self.poll(end)
    }
}

impl ReceiveProtocol for VariantReceive {
    const COPIES_OUT: bool = false;

    fn is_quiet(&self) -> bool {
        true
    }

    /// Publishes a head to be pulled after every message: the sender decides how lazily to READ it.
    #[inline(always)]
    fn passed_quietly(&mut self, end: &mut ReceiveEnd) {
        if self.head == Head::Pull {
            let head = end.receive_policy.head();
            end.connected_end.memory.cursor(PULLED).publish(head);
        }
    }

    #[inline(always)]
    fn look(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError> {
        match self.tail {
            Tail::WriteTwice => end.observe_tail(),
            Tail::PollCq => end.take_announced(),
        }
    }

    #[inline(always)]
    fn push(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError> {
        if self.head == Head::Push {
            return end.push_head();
        }
        let head = end.receive_policy.head();
        end.connected_end.memory.cursor(PULLED).publish(head);
        end.receive_policy.pushed();
        Ok(true)
    }

    #[inline(always)]
    fn passed(&mut self, end: &mut ReceiveEnd) -> Result<(), RingError> {
        if self.head == Head::Pull || end.receive_policy.must_push() {
            self.push(end)?;
        }
        Ok(())
    }
}

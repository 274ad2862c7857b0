//! What the two ends of any one-way channel of messages have in common, as traits: the ring has
//! them, and so have the designs that it is compared with. Code that is to run over any of them (a
//! workload, an oracle) is generic over these; who uses a ring calls it directly.

use headworks_verbs::bringup::{BringUp, BringUpError, ConnectionParams};
use headworks_verbs::{DeviceInfo, QueuePair};

use crate::error::{RingError, SendError};
use crate::setup::{ReceiverSetup, SenderSetup, SetupError};
use crate::{Membership, Receiver, Sender};

/// An end whose queue pair is to be brought up.
pub trait Unconnected {
    /// What the other end must be handed as the payload of the bring-up.
    fn greeting(&self) -> Vec<u8>;

    /// The queue pair to bring up.
    fn queue_pair(&mut self) -> &mut dyn QueuePair;

    /// How it is to be brought up.
    fn connection_params(&self) -> ConnectionParams;
}

/// An end that is not connected yet, and can be by itself.
pub trait EndSetup: Unconnected + Sized {
    /// What it becomes.
    type End;

    /// The connected end; `payload` is the other end's greeting.
    fn finish(self, payload: &[u8]) -> Result<Self::End, SetupError>;
}

/// Brings up both ends where both are in one hand, each made on the device that `from` and `to` are of.
/// They are then finished with each other's greeting. `seeds` should be random.
pub fn meet(
    (from, sending): (&DeviceInfo, &mut impl Unconnected),
    (to, receiving): (&DeviceInfo, &mut impl Unconnected),
    seeds: [u32; 2],
) -> Result<(), BringUpError> {
    let (tuning, greeting) = (sending.connection_params(), sending.greeting());
    let mut here = BringUp::start(from, sending.queue_pair(), tuning, seeds[0], greeting)?;
    let (tuning, greeting) = (receiving.connection_params(), receiving.greeting());
    let mut there = BringUp::start(to, receiving.queue_pair(), tuning, seeds[1], greeting)?;
    here.connect_both(sending.queue_pair(), &mut there, receiving.queue_pair())
}

/// The sending end of a channel. Nothing blocks.
pub trait MessageSender {
    /// Sends a copy of `message`, as far as the design's batching lets it go now.
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError>;

    /// Sends a message of `len` bytes that `fill` writes. Where the design spares a copy `fill`
    /// writes to the place that is sent from, elsewhere to memory of the application, to be copied.
    /// Not called if there is no room in the channel. Where the device then has none, nothing is sent
    /// for all that was written: [`SendError::Full`], and whoever tries again writes it again.
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError>;

    /// Puts everything that was sent on its way. Says whether nothing is held back any more.
    fn flush(&mut self) -> Result<bool, RingError>;

    /// What a thread with nothing to send must call: flushes, takes completions, looks at errors.
    /// Says whether something changed.
    fn step(&mut self) -> Result<bool, RingError>;

    /// Longest message, in bytes.
    fn max_message(&self) -> usize;

    /// Units of the channel's memory (slots, bytes) that messages and what pads them took, ever.
    fn sent(&self) -> u64;

    /// Those that were announced to the receiver, ever.
    fn published(&self) -> u64;

    /// Those that the receiver is known to have consumed, ever.
    fn consumed(&self) -> u64;
}

/// The receiving end of a channel. Nothing blocks.
pub trait MessageReceiver {
    /// Shows the next message to `look`, if one is there: where it lies, or in memory of the
    /// application where the design copies it there. Its space is then free.
    fn try_recv_with<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError>;

    /// What a thread with nothing to receive must call: takes completions, looks at errors. Says
    /// whether messages may be waiting.
    fn step(&mut self) -> Result<bool, RingError>;

    /// Lets the sender know of all free space. Says whether it does.
    fn push_head(&mut self) -> Result<bool, RingError>;

    /// Units of the channel's memory consumed, ever.
    fn consumed(&self) -> u64;
}

macro_rules! unconnected {
    ($($setup:ty),*) => {$(
        impl Unconnected for $setup {
            fn greeting(&self) -> Vec<u8> {
                self.greeting()
            }

            fn queue_pair(&mut self) -> &mut dyn QueuePair {
                self.queue_pair()
            }

            fn connection_params(&self) -> ConnectionParams {
                self.connection_params()
            }
        }
    )*};
}

unconnected!(SenderSetup, ReceiverSetup, Membership);

impl EndSetup for SenderSetup {
    type End = Sender;

    fn finish(self, payload: &[u8]) -> Result<Sender, SetupError> {
        self.finish(payload)
    }
}

impl EndSetup for ReceiverSetup {
    type End = Receiver;

    fn finish(self, payload: &[u8]) -> Result<Receiver, SetupError> {
        self.finish(payload)
    }
}

impl MessageSender for Sender {
    #[inline(always)]
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.try_send(message)
    }

    #[inline(always)]
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        let mut place = self.try_reserve(len)?;
        fill(&mut place);
        place.commit()
    }

    fn flush(&mut self) -> Result<bool, RingError> {
        self.flush()
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.step()
    }

    fn max_message(&self) -> usize {
        self.max_message()
    }

    fn sent(&self) -> u64 {
        self.sent()
    }

    fn published(&self) -> u64 {
        self.published()
    }

    fn consumed(&self) -> u64 {
        self.consumed()
    }
}

impl MessageReceiver for Receiver {
    #[inline(always)]
    fn try_recv_with<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError> {
        Ok(self.try_recv()?.map(|message| look(&message)))
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.step()
    }

    fn push_head(&mut self) -> Result<bool, RingError> {
        self.push_head()
    }

    fn consumed(&self) -> u64 {
        self.consumed()
    }
}

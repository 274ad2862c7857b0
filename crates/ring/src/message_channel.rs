//! Traits of the two ends of any one-way channel of messages. The ring implements them, and so do the
//! designs that it is compared with. Code that must run over any of them (a workload, an oracle) is generic
//! over these traits. An application that uses a ring calls it directly.

use headworks_verbs::bringup::{BringUp, BringUpError, ConnectionParams};
use headworks_verbs::{DeviceInfo, QueuePair};

use crate::error::{RingError, SendError};
use crate::setup::{ReceiverSetup, SenderSetup, SetupError};
use crate::{Membership, Receiver, Sender};

/// An end whose queue pair must be brought up.
pub trait Unconnected {
    /// Returns the payload that the bring-up must hand to the other end.
    fn greeting(&self) -> Vec<u8>;

    /// The queue pair to bring up.
    fn queue_pair(&mut self) -> &mut dyn QueuePair;

    /// Connection parameters for the bring-up.
    fn connection_params(&self) -> ConnectionParams;
}

/// An end that is not connected yet, and that becomes a connected end without a group.
pub trait EndSetup: Unconnected + Sized {
    /// The connected end.
    type End;

    /// Makes the connected end. `payload` is the other end's greeting.
    fn finish(self, payload: &[u8]) -> Result<Self::End, SetupError>;
}

/// Brings up both ends where one caller has both. `from` and `to` describe the devices on which they were
/// made. The caller then finishes each with the other's greeting. `seeds` should be random.
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

/// The sending end of a channel. No call blocks.
pub trait MessageSender {
    /// Sends a copy of `message`. The design's batching decides when it leaves.
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError>;

    /// Sends a message of `len` bytes that `fill` writes. If the design saves a copy, `fill` writes to the
    /// memory that is sent from; otherwise it writes to memory of the application, which is then copied.
    /// `fill` is not called if the channel has no room. If only the device has none, the call returns
    /// [`SendError::Full`] and sends nothing, although `fill` was called; a retry calls it again.
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError>;

    /// Sends everything that is held back. Returns whether nothing is held back any more.
    fn flush(&mut self) -> Result<bool, RingError>;

    /// Flushes, takes completions and checks for errors. A thread with nothing to send must call it.
    /// Returns whether something changed.
    fn step(&mut self) -> Result<bool, RingError>;

    /// Longest message, in bytes.
    fn max_message(&self) -> usize;

    /// Units of the channel's memory (slots, bytes) that messages and their padding took in all.
    fn sent(&self) -> u64;

    /// Units that were announced to the receiver in all.
    fn published(&self) -> u64;

    /// Units that the receiver is known to have consumed in all.
    fn consumed(&self) -> u64;
}

/// The receiving end of a channel. No call blocks.
pub trait MessageReceiver {
    /// Calls `look` with the next message, if there is one: where it lies or, if the design copies it, in
    /// memory of the application. Its space is then free.
    fn try_recv_with<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError>;

    /// Takes completions and checks for errors. A thread with nothing to receive must call it. Returns
    /// whether messages may be waiting.
    fn step(&mut self) -> Result<bool, RingError>;

    /// Tells the sender of all free space. Returns whether the sender has been told of all of it.
    fn push_head(&mut self) -> Result<bool, RingError>;

    /// Units of the channel's memory consumed in all.
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

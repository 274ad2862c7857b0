//! A transport of one actor made of two message channels, one out and one in: rings on verbs, bare rings, or
//! baseline designs. Messages are copied in from the application's memory or written in place
//! ([`Channel::in_place`](super::job::Channel::in_place)).

use std::hint::spin_loop;

use headworks::ring::{MessageReceiver, MessageSender, RingError, SendError};
use headworks_net::PollInterval;

use super::buffer::Buffer;
use super::cpu_cost::MessageCost;
use super::job::Job;
use super::{MessageSink, MessageSource, MessageTransport, TakeResult};
use crate::error::{Result, WorkloadError};

/// Approximate bytes of the application's messages that wait to be sent.
const OUTBOX: usize = 4096;
/// Maximum number of messages in the outbox.
const OUTBOX_MESSAGES: usize = 16;
/// Polls of a full or an empty ring in one call.
const TRIES: u32 = 64;
/// Number of calls that find the ring full or empty between two checks for errors and the peer's death.
const LOOK_EVERY: u32 = 16;
/// Number of calls of `flush` between two such checks.
const LOOK_FLUSHES: u32 = 256;

/// The ends of one actor. Workloads that send nothing back have only one.
pub struct ChannelEnds<S, R> {
    /// The actor sends on this one.
    pub sender: Option<S>,
    /// The actor receives from this one.
    pub receiver: Option<R>,
    /// Work other than sending and receiving; most channels have none.
    pub extra: Option<PerMessageWork<S, R>>,
}

/// Work for each message other than sending and receiving it.
pub enum PerMessageWork<S, R> {
    /// Messages are copied to this memory of the application before they are read.
    Copy(Vec<u8>),
    /// Functions called with the sending or receiving end after each message.
    After(fn(&S), fn(&R)),
}

#[cold]
fn one_way() -> WorkloadError {
    WorkloadError("ring: this actor has no channel in that direction".into())
}

#[cold]
fn receiving(why: RingError) -> WorkloadError {
    WorkloadError::at("receiving", why)
}

#[cold]
fn sending(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("sending", why)
}

/// Returns whether there was room.
#[inline(always)]
fn room(sent: Result<(), SendError>) -> Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(why) => Err(sending(why)),
    }
}

impl<S, R> ChannelEnds<S, R> {
    /// Makes ends without work other than sending and receiving.
    pub fn new(sender: Option<S>, receiver: Option<R>) -> Self {
        Self {
            sender,
            receiver,
            extra: None,
        }
    }
}

impl<S: MessageSender, R: MessageReceiver> ChannelEnds<S, R> {
    /// Sends a message by calling `send`. Returns whether there was room.
    #[inline]
    fn send(&mut self, send: impl FnOnce(&mut S) -> Result<(), SendError>) -> Result<bool> {
        let sender = self.sender.as_mut().ok_or_else(one_way)?;
        let sent = room(send(sender))?;
        if let Some(PerMessageWork::After(after, _)) = &self.extra {
            after(sender);
        }
        Ok(sent)
    }

    /// Sends a message of `len` bytes, filled in place. Returns whether there was room.
    #[inline(always)]
    fn put_in_place<F: MessageSource>(&mut self, len: usize, fill: &mut F) -> Result<bool> {
        let mut is_written = false;
        let sent = self.send(|sender| {
            sender.try_send_with(len, |place| {
                fill.fill(place);
                is_written = true;
            })
        })?;
        // There was room in the channel, but none in the device's queue.
        if is_written && !sent {
            fill.again();
        }
        Ok(sent)
    }

    /// Takes a message. Returns whether there was one.
    #[inline(always)]
    fn get<T: MessageSink>(&mut self, sink: &mut T) -> Result<bool> {
        let receiver = self.receiver.as_mut().ok_or_else(one_way)?;
        let extra = &mut self.extra;
        let got = receiver.try_recv_with(|message| match extra {
            Some(PerMessageWork::Copy(copy)) => {
                let copy = &mut copy[..message.len()];
                copy.copy_from_slice(message);
                sink.take(copy);
            }
            _ => sink.take(message),
        });
        if let Some(PerMessageWork::After(_, after)) = extra {
            after(receiver);
        }
        Ok(got.map_err(receiving)?.is_some())
    }

    /// Publishes what was sent. Returns whether all of it is published.
    #[inline]
    fn publish(&mut self) -> Result<bool> {
        match &mut self.sender {
            Some(sender) => sender.flush().map_err(sending),
            None => Ok(true),
        }
    }

    /// Checks what the hot calls do not: errors and the peer's death.
    fn look(&mut self) -> Result<()> {
        if let Some(sender) = &mut self.sender {
            sender.step().map_err(sending)?;
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.step().map_err(receiving)?;
            receiver.push_head().map_err(receiving)?;
        }
        Ok(())
    }
}

/// A transport made of two channels.
pub struct ChannelPair<S, R> {
    ends: ChannelEnds<S, R>,
    price: Option<MessageCost>,
    size: usize,
    in_place: bool,
    yields: bool,
    /// Polls of a full or an empty ring in one call.
    looks: u32,
    /// The application's messages on their way into the ring.
    outbox: Buffer,
    spacing: PollInterval,
    /// Number of calls that found nothing to do.
    idle: u32,
    flushes: u32,
    finished: bool,
}

impl<S: MessageSender, R: MessageReceiver> ChannelPair<S, R> {
    /// Makes a transport for the messages of `job`, which cost `price` where time is virtual.
    pub fn new(job: &Job, ends: ChannelEnds<S, R>, price: Option<MessageCost>) -> Self {
        let in_place = job.channel.in_place(job.size);
        // Several messages, so that the stores that wrote a message have left the store buffer before it is
        // copied.
        let outbox = match in_place {
            true => 0,
            false => (OUTBOX / job.size).clamp(1, OUTBOX_MESSAGES) * job.size,
        };
        Self {
            ends,
            price,
            size: job.size,
            in_place,
            yields: job.yields,
            // In virtual time, time must pass between two polls.
            looks: if price.is_some() { 1 } else { TRIES },
            outbox: Buffer::new(outbox),
            spacing: PollInterval::default(),
            idle: 0,
            flushes: 0,
            finished: false,
        }
    }

    #[cold]
    fn found_nothing(&mut self) -> Result<()> {
        self.idle += 1;
        if self.idle.is_multiple_of(LOOK_EVERY) {
            self.ends.look()?;
        }
        if self.yields {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Tries `put` a bounded number of times. Returns whether it succeeded.
    #[inline]
    fn patiently(
        &mut self,
        mut put: impl FnMut(&mut ChannelEnds<S, R>, &Buffer) -> Result<bool>,
    ) -> Result<bool> {
        for _ in 0..self.looks {
            if put(&mut self.ends, &self.outbox)? {
                return Ok(true);
            }
            spin_loop();
        }
        self.found_nothing()?;
        Ok(false)
    }

    /// Sends what is in the outbox. Returns whether nothing is left.
    #[inline]
    fn empty_outbox(&mut self) -> Result<bool> {
        let size = self.size;
        while !self.outbox.pending().is_empty() {
            if !self.patiently(|ends, outbox| {
                ends.send(|sender| sender.try_send(outbox.oldest(size)))
            })? {
                return Ok(false);
            }
            self.outbox.used(size);
        }
        self.outbox.rewind();
        Ok(true)
    }

    fn flush_now(&mut self) -> Result<bool> {
        if !self.empty_outbox()? || !self.ends.publish()? {
            return Ok(false);
        }
        self.flushes += 1;
        if self.finished || self.flushes.is_multiple_of(LOOK_FLUSHES) {
            self.ends.look()?;
        }
        Ok(true)
    }
}

impl<S: MessageSender, R: MessageReceiver> MessageTransport for ChannelPair<S, R> {
    #[inline]
    fn price(&self) -> Option<MessageCost> {
        self.price
    }

    #[inline]
    fn offer<F: MessageSource>(&mut self, n: usize, fill: &mut F) -> Result<usize> {
        let mut accepted = 0;
        if self.in_place {
            let len = self.size;
            while accepted < n && self.patiently(|ends, _| ends.put_in_place(len, fill))? {
                accepted += 1;
            }
            return Ok(accepted);
        }
        while self.empty_outbox()? && accepted < n {
            let size = self.size;
            let places = self.outbox.room().chunks_exact_mut(size);
            let filled = places
                .take(n - accepted)
                .map(|place| fill.fill(place))
                .count();
            self.outbox.filled(filled * size);
            accepted += filled;
        }
        Ok(accepted)
    }

    #[inline]
    fn take<T: MessageSink>(&mut self, max: usize, sink: &mut T) -> Result<TakeResult> {
        let (mut taken, mut tries) = (0, 0);
        while taken < max {
            if self.ends.get(sink)? {
                self.spacing.on_message();
                taken += 1;
                continue;
            }
            for _ in 0..self.spacing.on_empty() {
                spin_loop();
            }
            // Messages that were taken are handled before anything waits.
            tries += 1;
            if taken > 0 || tries > self.looks {
                break;
            }
        }
        if taken == 0 {
            self.found_nothing()?;
        }
        Ok(TakeResult::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool> {
        match self.flush_now() {
            // Everything was delivered, and the peer may exit before its mail arrives.
            Err(_) if self.finished => Ok(true),
            flushed => flushed,
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.finished = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::transports::job::{Channel, IN_PLACE, Workload};
    use crate::transports::message_contents::{MessageChecker, MessageWriter};
    use crate::transports::mock_channel::MockChannel;

    /// Makes a transport of both ends of a queue with room for `room` messages.
    fn arm(size: usize, room: usize) -> ChannelPair<MockChannel, MockChannel> {
        let run = std::time::Duration::ZERO;
        let job = Job::new(
            Channel::Bare,
            Workload::Rate,
            size as u64,
            run,
            Path::new("/"),
        );
        let queue = MockChannel::of(room);
        ChannelPair::new(
            &job,
            ChannelEnds::new(Some(queue.clone()), Some(queue)),
            None,
        )
    }

    #[test]
    fn every_message_accepted_arrives_once_in_order_however_full_the_ring_is() {
        for (size, room) in [(8, 1), (64, 5), (100, 40), (4096, 3), (IN_PLACE, 2)] {
            let mut arm = arm(size, room);
            let (mut paint, mut sums) = (MessageWriter::new(true), MessageChecker::new(true));
            let (mut accepted, mut taken) = (0, 0);
            for round in 0..300 {
                accepted += arm.offer(round % 23, &mut paint).unwrap();
                if let TakeResult::Messages(n) = arm.take(round % 7, &mut sums).unwrap() {
                    taken += n;
                }
            }
            while !arm.flush().unwrap() || taken < accepted {
                if let TakeResult::Messages(n) = arm.take(9, &mut sums).unwrap() {
                    taken += n;
                }
            }
            let queue = arm.ends.sender.unwrap();
            assert!(queue.state().is_published && accepted > 100 && taken == accepted);
            sums.check().unwrap();
        }
    }

    #[test]
    fn an_end_that_waits_looks_and_one_that_has_finished_bears_a_peer_that_left() {
        let mut arm = arm(64, 2);
        for _ in 0..2 * LOOK_EVERY {
            arm.take(1, &mut MessageChecker::default()).unwrap();
        }
        let queue = arm.ends.receiver.clone().unwrap();
        assert_eq!(queue.state().looks, 2);
        queue.state().is_broken = true;
        assert!(arm.flush().is_err());
        arm.finish().unwrap();
        assert!(arm.flush().unwrap());
    }
}

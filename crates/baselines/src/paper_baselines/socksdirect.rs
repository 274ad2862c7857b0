//! SocksDirect's ring between hosts ("SocksDirect: Datacenter Sockets can be Fast and Compatible",
//! SIGCOMM 2019, section 4.2), as the RB² paper describes and rebuilds it (Table I, sections IV-A,
//! IV-B and V-A). Data is sent by WRITE with immediate, which completes at both ends.
//!
//! The sender copies messages into its own array. While fewer than [`IN_FLIGHT_MAX`] requests are in
//! flight, it sends them at once. Otherwise messages gather until a completion arrives, and are then sent
//! together. The receiver learns from its CQ how much arrived, posts a receive for every one used, copies
//! messages out, and WRITEs its head back lazily.
//!
//! The batch size depends on the network. A device that completes a WRITE while it is posted never has
//! ten requests in flight, so it sends messages one by one.

use std::collections::VecDeque;

use headworks_ring::config::CheckedConfig;
use headworks_ring::endpoint::ChainPosted;
use headworks_ring::header::{Header, Kind};
use headworks_ring::{RingError, SendError, SetupError};
use headworks_verbs::{Payload, SendFlags, SendOp, SendWr};

use super::connected_end::{ConnectedEnd, RECEIVES};
use super::receiver::{BaselineReceiver, PUSHES, ReceiveEnd, ReceiveProtocol};
use super::sender::{BaselineSender, MessageLocation, SendEnd, SendProtocol};
use super::setup::{Depths, Design, Plan};

/// Maximum number of requests in flight (RB² paper, section V-A).
pub const IN_FLIGHT_MAX: u64 = 10;

/// SocksDirect's design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocksDirect(pub Plan);

/// SocksDirect's sender.
#[derive(Debug)]
pub struct SocksDirectSend {
    in_flight: u64,
    /// Maximum number of requests that the receiver has not passed: it has a receive for each.
    unread_max: usize,
    /// Tail after each request that the receiver has not passed yet.
    unread: VecDeque<u64>,
}

/// SocksDirect's receiver.
#[derive(Debug)]
pub struct SocksDirectReceive {
    /// Number of messages after which the head is pushed, however few units they take. The sender limits
    /// its unread requests, not only the units.
    push_every: u64,
    /// Messages passed since the last push.
    passed: u64,
}

impl SocksDirect {
    /// Returns the maximum number of requests that the receiver has not passed.
    fn unread(self) -> u64 {
        2 * u64::from(self.0.messages)
    }
}

impl Design for SocksDirect {
    type Sender = BaselineSender<SocksDirectSend>;
    type Receiver = BaselineReceiver<SocksDirectReceive>;

    fn tag(&self) -> u8 {
        3
    }

    fn settle(&self) -> Result<CheckedConfig, SetupError> {
        Ok(self.0.packed()?)
    }

    fn depths(&self, _: &CheckedConfig) -> Depths {
        Depths {
            sends: IN_FLIGHT_MAX + 2,
            pushes: PUSHES,
            // Some receives of requests that the receiver has passed are not posted again yet.
            receives: self.unread() + RECEIVES,
        }
    }

    fn sender(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Sender {
        BaselineSender::new(
            SocksDirectSend {
                in_flight: 0,
                unread_max: self.unread() as usize,
                unread: VecDeque::with_capacity(self.unread() as usize),
            },
            ring,
            connected_end,
        )
    }

    fn receiver(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Receiver {
        let every = u64::from(self.0.messages / 4).max(1);
        let protocol = SocksDirectReceive {
            push_every: every,
            passed: 0,
        };
        BaselineReceiver::new(protocol, ring, connected_end)
    }
}

impl SocksDirectSend {
    /// Sends all gathered messages, if fewer than ten requests are in flight.
    #[inline(always)]
    fn pump(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        if self.in_flight >= IN_FLIGHT_MAX {
            self.poll(end)?;
        }
        if self.unread.len() == self.unread_max {
            end.observe_head()?;
            self.forget(end);
        }
        let [first, second] = end.policy.untransmitted();
        for ((index, count), is_last) in [(first, second.1 == 0), (second, true)] {
            if count == 0 {
                break;
            }
            if self.in_flight >= IN_FLIGHT_MAX || self.unread.len() == self.unread_max {
                return Ok(());
            }
            let (sge, remote) = end.slots((index, count));
            let tail = end.policy.published().wrapping_add(count);
            let request = SendWr {
                wr_id: tail,
                op: SendOp::WriteImm(remote, count as u32),
                payload: Payload::Gather(std::slice::from_ref(&sge)),
                flags: SendFlags::SIGNALED,
            };
            if end.connected_end.post(&[request])? != ChainPosted::All {
                return Ok(());
            }
            self.in_flight += 1;
            self.unread.push_back(tail);
            match is_last {
                true => end.policy.transmitted(),
                false => end.policy.transmitted_pieces(1),
            }
            end.policy.publish_sent();
        }
        Ok(())
    }

    fn poll(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        let (mut last, in_flight) = (None, &mut self.in_flight);
        end.connected_end.poll_sends(|tail| {
            last = Some(tail);
            *in_flight = in_flight.saturating_sub(1);
        })?;
        match last {
            Some(tail) => Ok(end.policy.complete(tail)?),
            None => Ok(()),
        }
    }

    /// Drops the requests that the receiver has passed: their receives can be used again.
    fn forget(&mut self, end: &SendEnd) {
        let (published, head) = (end.policy.published(), end.policy.head());
        let unread = published.wrapping_sub(head);
        while let Some(&tail) = self.unread.front()
            && published.wrapping_sub(tail) >= unread
        {
            self.unread.pop_front();
        }
    }

    #[inline(always)]
    fn add(&mut self, end: &mut SendEnd, at: MessageLocation, kind: Kind) -> Result<(), SendError> {
        let header = Header {
            lap: 0,
            kind,
            len: at.len as u32,
        };
        end.set_word(end.offset_of(at.index), header.word());
        end.policy.advance(at.count);
        Ok(self.pump(end)?)
    }
}

impl SendProtocol for SocksDirectSend {
    const IN_PLACE: bool = false;

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
            self.pump(end)?;
        }
        Ok(end.policy.is_flushed())
    }

    fn refresh(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        self.poll(end)?;
        end.observe_head()?;
        self.forget(end);
        Ok(())
    }
}

impl ReceiveProtocol for SocksDirectReceive {
    const COPIES_OUT: bool = true;

    #[inline(always)]
    fn look(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError> {
        end.take_announced()
    }

    #[inline(always)]
    fn passed(&mut self, end: &mut ReceiveEnd) -> Result<(), RingError> {
        self.passed += 1;
        if end.receive_policy.must_push() || self.passed >= self.push_every {
            self.push(end)?;
            self.passed = 0;
        }
        Ok(())
    }
}

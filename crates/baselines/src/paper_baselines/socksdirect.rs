//! SocksDirect's ring between hosts ("SocksDirect: Datacenter Sockets can be Fast and Compatible",
//! SIGCOMM 2019, section 4.2), as the RB² paper describes and rebuilds it (Table I, sections IV-A,
//! IV-B and V-A): data travels by WRITE with immediate, every one of which completes at both ends.
//!
//! The sender copies messages into its own array. While fewer than [`IN_FLIGHT_MAX`] requests are in
//! flight it sends what is there at once; otherwise messages gather until a completion comes, and then
//! go together. The receiver learns from its CQ how much arrived, posts a receive for every one that
//! it used, copies messages out and WRITEs its head back now and then.
//!
//! The batch is what the network makes it: a device that completes a WRITE while it is posted never
//! has ten in flight, and messages travel one by one.

use std::collections::VecDeque;

use headworks_ring::config::CheckedConfig;
use headworks_ring::endpoint::ChainPosted;
use headworks_ring::header::{Header, Kind};
use headworks_ring::{RingError, SendError, SetupError};
use headworks_verbs::{Payload, SendFlags, SendOp, SendWr};

use super::link::{ConnectedEnd, RECEIVES};
use super::receiver::{BaselineReceiver, PUSHES, ReceiveEnd, ReceiveProtocol};
use super::sender::{BaselineSender, MessageLocation, SendEnd, SendProtocol};
use super::setup::{Depths, Design, Plan};

/// Requests in flight at most (RB² paper, section V-A).
pub const IN_FLIGHT_MAX: u64 = 10;

/// The design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocksDirect(pub Plan);

/// What the sender does.
#[derive(Debug)]
pub struct SocksDirectSend {
    in_flight: u64,
    /// Requests that it has not read behind, at most: it has a receive for each.
    unread_max: usize,
    /// The tail behind each request that the receiver has not passed yet.
    unread: VecDeque<u64>,
}

/// What the receiver does.
#[derive(Debug)]
pub struct SocksDirectReceive {
    /// Messages after which the head is pushed however few units they take: the sender counts its
    /// requests as well.
    push_every: u64,
    /// Messages since.
    passed: u64,
}

impl SocksDirect {
    /// Requests that the receiver has not read behind, at most.
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
            // Of those that it has read behind some are not posted again yet.
            receives: self.unread() + RECEIVES,
        }
    }

    fn sender(&self, ring: CheckedConfig, link: ConnectedEnd) -> Self::Sender {
        BaselineSender::new(
            SocksDirectSend {
                in_flight: 0,
                unread_max: self.unread() as usize,
                unread: VecDeque::with_capacity(self.unread() as usize),
            },
            ring,
            link,
        )
    }

    fn receiver(&self, ring: CheckedConfig, link: ConnectedEnd) -> Self::Receiver {
        let every = u64::from(self.0.messages / 4).max(1);
        let protocol = SocksDirectReceive {
            push_every: every,
            passed: 0,
        };
        BaselineReceiver::new(protocol, ring, link)
    }
}

impl SocksDirectSend {
    /// Sends everything that is there, if fewer than ten requests are in flight.
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
            if end.link.post(&[request])? != ChainPosted::All {
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
        end.link.poll_sends(|tail| {
            last = Some(tail);
            *in_flight = in_flight.saturating_sub(1);
        })?;
        match last {
            Some(tail) => Ok(end.policy.complete(tail)?),
            None => Ok(()),
        }
    }

    /// Requests that the receiver has read behind have given their receive back.
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
        if end.drain.must_push() || self.passed >= self.push_every {
            self.push(end)?;
            self.passed = 0;
        }
        Ok(())
    }
}

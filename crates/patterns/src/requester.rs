//! The requester: keeps a fixed number of requests outstanding and takes their responses.

use std::sync::Arc;

use headworks_baselines::WordMemory;
use headworks_verbs::{Device, Payload};

use crate::bring_up::Area;
use crate::config::{OUTSTANDING_MAX, PatternConfig};
use crate::error::PatternError;
use crate::message::{REQUEST, request_bytes, write_request};
use crate::ports::{PortSizes, Ports};
use crate::topology::Topology;
use crate::verb::{Inbox, Places, Polled, Verb, send_from_memory};

/// Decides when requests begin, and sees each request that goes out and each response that comes in. Load generators
/// and checkers implement it.
pub trait RequestLoad {
    /// Returns whether another request is to begin now.
    fn begin(&mut self) -> bool;

    /// The request of slot `slot`, which began last, was sent.
    fn sent(&mut self, slot: usize);

    /// The response to the request of slot `slot` arrived. It is `item`, and lies at `at` in `memory`.
    ///
    /// # Errors
    ///
    /// The response is refused; the run ends with this error.
    fn received(
        &mut self,
        slot: usize,
        item: u64,
        memory: &WordMemory,
        at: usize,
    ) -> Result<(), PatternError>;
}

/// A requester by `Request`, answered by `Response`, of responders that `T` chooses. With `INLINE`, requests travel
/// inline.
pub struct Requester<Request: Verb, Response: Verb, T: Topology, const INLINE: bool = true> {
    ports: Ports,
    inbox: Response::Inbox,
    config: PatternConfig,
    topology: T,
    /// Slots without an outstanding request, as bits; and the bits of all slots.
    free: u64,
    all: u64,
    /// A request that found no room: its slot, which is free, and its responder.
    waiting: Option<(u32, usize)>,
    /// The item that each slot asked for last.
    items: [u64; OUTSTANDING_MAX as usize],
    answered: u64,
    request: std::marker::PhantomData<Request>,
}

impl<Request: Verb, Response: Verb, T: Topology, const INLINE: bool>
    Requester<Request, Response, T, INLINE>
{
    /// Opens a requester of `responders` responders.
    pub fn open(
        device: Arc<dyn Device>,
        config: PatternConfig,
        responders: usize,
        topology: T,
    ) -> Result<Self, PatternError> {
        const { assert!(Response::FOR_RESPONSES) }
        config.check::<Request, Response>(device.info())?;
        let outstanding = config.outstanding as usize;
        let (area, bytes) = config.response_area::<Response>(responders);
        let (shared_receives, own_receives) = Response::receives(outstanding, responders);
        let ports = Ports::open(
            device,
            &PortSizes {
                peers: responders,
                memory: area + bytes,
                send_depth: config.send_depth,
                signal_every: config.signal_every,
                shared_receives,
                own_receives,
                inline: if INLINE { REQUEST } else { 0 },
                huge_pages: config.huge_pages,
            },
        )?;
        // Mailboxes are shared by all responders; receives are posted for each.
        let peers = if Response::IN_MAILBOX { 1 } else { responders };
        let places = Places {
            per_peer: outstanding,
            peers,
            idle: 0,
        };
        let inbox = Response::Inbox::open(&ports, area, places, config.response)?;
        Ok(Self {
            ports,
            inbox,
            config,
            topology,
            free: u64::MAX >> (u64::BITS - config.outstanding),
            all: u64::MAX >> (u64::BITS - config.outstanding),
            waiting: None,
            items: std::array::from_fn(|slot| slot as u64),
            answered: 0,
            request: std::marker::PhantomData,
        })
    }

    /// The device objects, for bring-up.
    pub fn ports(&mut self) -> &mut Ports {
        &mut self.ports
    }

    /// The area for responses, the same for all responders.
    pub fn response_area(&self) -> Area {
        let (at, _) = self.config.response_area::<Response>(self.ports.peers());
        self.ports.area(at, at)
    }

    /// Number of requests without a response.
    pub fn outstanding(&self) -> usize {
        (self.config.outstanding - self.free.count_ones()) as usize
    }

    /// Responses received.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Counts of polls for responses.
    pub fn polled(&self) -> Polled {
        self.inbox.polled()
    }

    /// Takes the responses that are there, and then sends a request for each free slot, as long as `load` begins one.
    /// Returns the number of responses.
    ///
    /// # Errors
    ///
    /// A peer is gone or broke the protocol, or the device failed, or the load refused a response.
    #[inline(always)]
    pub fn step(&mut self, load: &mut impl RequestLoad) -> Result<u32, PatternError> {
        let mut received = 0;
        let (config, items, free) = (&self.config, &self.items, &mut self.free);
        while *free != self.all
            && let Some(slot) = self.inbox.take(&mut self.ports, |memory, arrival| {
                let first = memory.word(arrival.at);
                let item = first.load(std::sync::atomic::Ordering::Relaxed);
                let slot = slot_of::<Response>(config, item, arrival.place);
                let is_expected = items[slot % items.len()] == item && *free >> slot & 1 == 0;
                if !is_expected {
                    return Err(unexpected_item(item));
                }
                load.received(slot, item, memory, arrival.at)?;
                Ok(slot)
            })?
        {
            *free |= 1 << slot;
            received += 1;
        }
        self.answered += u64::from(received);
        self.ports.flush()?;
        self.inbox.prepare(&mut self.ports)?;
        self.send(load)?;
        Ok(received)
    }

    #[inline(always)]
    fn send(&mut self, load: &mut impl RequestLoad) -> Result<(), PatternError> {
        if let Some((slot, peer)) = self.waiting {
            if !self.post(slot, peer)? {
                return Ok(());
            }
            self.waiting = None;
            self.free &= !(1 << slot);
            load.sent(slot as usize);
        }
        while self.free != 0 && load.begin() {
            let slot = self.free.trailing_zeros();
            self.free &= self.free - 1;
            let item = &mut self.items[slot as usize];
            *item = self.config.next_item(*item);
            let peer = self.topology.next();
            if !self.post(slot, peer)? {
                // Not outstanding before it was sent: a response would be one that nobody asked for.
                self.free |= 1 << slot;
                self.waiting = Some((slot, peer));
                return Ok(());
            }
            load.sent(slot as usize);
        }
        Ok(())
    }

    /// Posts the request of slot `slot` to `peer`. Returns whether the send queue had room.
    #[inline(always)]
    fn post(&mut self, slot: u32, peer: usize) -> Result<bool, PatternError> {
        if self.post_once(slot, peer)? {
            return Ok(true);
        }
        self.ports.poll_sends()?;
        self.post_once(slot, peer)
    }

    #[inline(always)]
    fn post_once(&mut self, slot: u32, peer: usize) -> Result<bool, PatternError> {
        let (item, place) = (self.items[slot as usize % self.items.len()], slot as usize);
        if INLINE {
            let bytes = request_bytes(item, slot);
            let mut queue = self.ports.send_queue(peer)?;
            return Request::send(&mut queue, place, REQUEST, Payload::Inline(&bytes));
        }
        let at = PatternConfig::request_at(place);
        write_request(&self.ports.memory, at, item, slot);
        send_from_memory::<Request, false, 0>(&mut self.ports, peer, place, at, REQUEST)
    }

    /// Takes completions of sends, and fails unless all queue pairs work. Call it now and then while no response comes.
    pub fn check(&mut self) -> Result<(), PatternError> {
        self.ports.poll_sends()?;
        self.ports.check()
    }
}

/// The slot whose response has place `place` and is `item`.
#[inline(always)]
fn slot_of<Response: Verb>(config: &PatternConfig, item: u64, place: usize) -> usize {
    // Mailboxes belong to slots; a receive takes the response of any slot.
    match Response::IN_MAILBOX {
        true => place % OUTSTANDING_MAX as usize,
        false => config.slot_of(item),
    }
}

/// The error of a response that no request asked for.
#[cold]
pub(crate) fn unexpected_item(item: u64) -> PatternError {
    PatternError::Unexpected {
        what: "the item of a response",
        value: item,
    }
}

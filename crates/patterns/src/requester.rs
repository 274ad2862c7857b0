//! The requester: keeps a fixed number of requests outstanding and takes their responses.

use std::sync::Arc;

use headworks_baselines::WordMemory;
use headworks_verbs::Device;

use crate::bring_up::Area;
use crate::config::PatternConfig;
use crate::error::PatternError;
use crate::message::{REQUEST, write_request};
use crate::ports::{PortSizes, Ports};
use crate::topology::Topology;
use crate::verb::{Inbox, Places, Polled, Verb};

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
    /// Slots without an outstanding request.
    free: Vec<u32>,
    /// A request that is written and found no room: its slot and responder.
    waiting: Option<(u32, usize)>,
    /// The item that each slot asked for last.
    items: Vec<u64>,
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
            free: (0..config.outstanding).rev().collect(),
            waiting: None,
            items: (0..config.outstanding.into()).collect(),
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
        self.config.outstanding as usize - self.free.len()
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
        while !self.is_idle()
            && let Some(arrival) = self.inbox.next(&mut self.ports)?
        {
            let first = self.ports.memory.word(arrival.at);
            let item = first.load(std::sync::atomic::Ordering::Relaxed);
            let slot = self.slot_of(item)?;
            load.received(slot, item, &self.ports.memory, arrival.at)?;
            self.inbox.release(&mut self.ports, arrival)?;
            self.free.push(slot as u32);
            received += 1;
        }
        self.answered += u64::from(received);
        self.ports.flush()?;
        self.inbox.prepare(&mut self.ports)?;
        self.send(load)?;
        Ok(received)
    }

    /// Whether no request is outstanding.
    #[inline(always)]
    fn is_idle(&self) -> bool {
        self.free.len() == self.config.outstanding as usize
    }

    /// The slot whose request asks for `item`. Fails if none does.
    #[inline(always)]
    fn slot_of(&self, item: u64) -> Result<usize, PatternError> {
        let slot = self.config.slot_of(item);
        match self.items.get(slot) == Some(&item) {
            true => Ok(slot),
            false => Err(PatternError::Protocol {
                what: "the item of a response",
                value: item,
                most: self.config.items - 1,
            }),
        }
    }

    #[inline(always)]
    fn send(&mut self, load: &mut impl RequestLoad) -> Result<(), PatternError> {
        loop {
            let (slot, peer) = match self.waiting.take() {
                Some(waiting) => waiting,
                None if self.free.is_empty() || !load.begin() => return Ok(()),
                None => {
                    let slot = self.free.pop().unwrap_or_default();
                    let item = self.config.next_item(self.items[slot as usize]);
                    self.items[slot as usize] = item;
                    let at = PatternConfig::request_at(slot as usize);
                    write_request(&self.ports.memory, at, item, slot);
                    (slot, self.topology.next())
                }
            };
            let at = PatternConfig::request_at(slot as usize);
            let place = slot as usize;
            if !Request::send::<INLINE>(&mut self.ports, peer, place, at, REQUEST)? {
                self.ports.poll_sends()?;
                if !Request::send::<INLINE>(&mut self.ports, peer, place, at, REQUEST)? {
                    self.waiting = Some((slot, peer));
                    return Ok(());
                }
            }
            load.sent(slot as usize);
        }
    }

    /// Takes completions of sends, and fails unless all queue pairs work. Call it now and then while no response comes.
    pub fn check(&mut self) -> Result<(), PatternError> {
        self.ports.poll_sends()?;
        self.ports.check()
    }
}

//! The dispatcher: one connection per responder for all workers of a server (section 4.1, design 2).
//!
//! A worker prepares its request in the dispatcher's registered memory and hands it over through a local mailbox:
//! a word on a cache line of its own that says which responder is meant. The dispatcher polls the local mailboxes
//! and sends the requests. A response by WRITE goes into the worker's own mailbox, which the worker polls. A
//! response by SEND completes at the dispatcher, which hands its place over through the local mailbox.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use headworks_baselines::WordMemory;
use headworks_verbs::Device;

use crate::bring_up::Area;
use crate::config::PatternConfig;
use crate::error::PatternError;
use crate::message::{REQUEST, WORD, write_request};
use crate::ports::{PortSizes, Ports};
use crate::requester::{RequestLoad, unexpected_item};
use crate::topology::Topology;
use crate::verb::{Arrival, Inbox, Places, Verb, send_from_memory};

/// A dispatcher for requests by `Request`, answered by `Response`. With `INLINE`, requests travel inline. It has as
/// many workers as the configuration has outstanding requests.
pub struct Dispatcher<Request: Verb, Response: Verb, const INLINE: bool = true> {
    ports: Ports,
    inbox: Response::Inbox,
    config: PatternConfig,
    /// The response that each worker reads now.
    lent: Vec<Option<Arrival>>,
    request: std::marker::PhantomData<Request>,
}

/// A worker of a dispatcher: one requester, with one request outstanding.
pub struct Worker<Response: Verb, T: Topology> {
    memory: WordMemory,
    config: PatternConfig,
    topology: T,
    slot: u32,
    /// The item that was asked for last.
    item: u64,
    is_outstanding: bool,
    answered: u64,
    /// Offsets of the worker's mailbox for responses by WRITE, and of its flag.
    mailbox: [usize; 2],
    /// Offset of the first receive buffer, the distance to the next, and their number.
    receives: [usize; 3],
    response: std::marker::PhantomData<Response>,
}

impl<Request: Verb, Response: Verb, const INLINE: bool> Dispatcher<Request, Response, INLINE> {
    /// Opens a dispatcher for requests to `responders` responders, with `config.outstanding` workers.
    pub fn open(
        device: Arc<dyn Device>,
        config: PatternConfig,
        responders: usize,
    ) -> Result<Self, PatternError> {
        const { assert!(Response::FOR_RESPONSES) }
        config.check::<Request, Response>(device.info())?;
        let workers = config.outstanding as usize;
        let (area, bytes) = config.response_area::<Response>(responders);
        let (shared_receives, own_receives) = Response::receives(workers, responders);
        let sizes = PortSizes {
            peers: responders,
            memory: area + bytes,
            send_depth: config.send_depth,
            signal_every: config.signal_every,
            shared_receives,
            own_receives,
            inline: if INLINE { REQUEST } else { 0 },
            huge_pages: config.huge_pages,
        };
        let ports = Ports::open(device, &sizes)?;
        let peers = if Response::IN_MAILBOX { 1 } else { responders };
        let places = Places {
            per_peer: workers,
            peers,
            idle: 0,
        };
        let inbox = Response::Inbox::open(&ports, area, places, config.response)?;
        Ok(Self {
            ports,
            inbox,
            config,
            lent: vec![None; workers],
            request: std::marker::PhantomData,
        })
    }

    /// Returns worker `slot`, which chooses responders by `topology`. Make each worker once.
    ///
    /// # Panics
    ///
    /// If `slot` is not below the number of workers.
    pub fn worker<T: Topology>(&self, slot: u32, topology: T) -> Worker<Response, T> {
        assert!(
            slot < self.config.outstanding,
            "worker {slot} of {}",
            self.config.outstanding
        );
        let place = slot as usize;
        Worker {
            memory: self.ports.memory.clone(),
            config: self.config,
            topology,
            slot,
            item: slot.into(),
            is_outstanding: false,
            answered: 0,
            mailbox: [self.inbox.at(place), self.inbox.flag_at(place)],
            receives: [
                self.inbox.at(0),
                self.inbox.at(1) - self.inbox.at(0),
                Response::places(self.lent.len(), self.ports.peers()),
            ],
            response: std::marker::PhantomData,
        }
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

    /// Polls each local mailbox once, sends the requests found there, and hands over responses. Returns the number of
    /// requests sent.
    ///
    /// # Errors
    ///
    /// A peer is gone or broke the protocol, or the device failed.
    #[inline(always)]
    pub fn step(&mut self) -> Result<u32, PatternError> {
        self.ports.flush()?;
        if !Response::IN_MAILBOX {
            self.hand_over()?;
        }
        let mut sent = 0;
        for slot in 0..self.lent.len() {
            let local = self.config.local_mailbox(slot);
            // Acquire: the request is read after the word.
            let word = self.ports.memory.word(local).load(Acquire);
            if word == 0 {
                continue;
            }
            let (peer, at) = (word as usize - 1, PatternConfig::request_at(slot));
            // Cleared before the request goes out: once the worker has the response, it hands over its next request.
            self.ports.memory.word(local).store(0, Relaxed);
            if !self.post(peer, slot, at)? {
                self.ports.poll_sends()?;
                if !self.post(peer, slot, at)? {
                    self.ports.memory.word(local).store(word, Relaxed);
                    continue;
                }
            }
            sent += 1;
        }
        Ok(sent)
    }

    /// Sends the request at `at`. Returns whether the send queue had room.
    #[inline(always)]
    fn post(&mut self, peer: usize, slot: usize, at: usize) -> Result<bool, PatternError> {
        send_from_memory::<Request, INLINE, REQUEST>(&mut self.ports, peer, slot, at, REQUEST)
    }

    /// Hands responses by SEND over to their workers, and frees the places of those that were read.
    #[inline(always)]
    fn hand_over(&mut self) -> Result<(), PatternError> {
        for slot in 0..self.lent.len() {
            let word = self.config.local_mailbox(slot) + WORD;
            // Acquire: the worker has read the response before its place is free.
            if let Some(arrival) = self.lent[slot]
                && self.ports.memory.word(word).load(Acquire) == 0
            {
                self.lent[slot] = None;
                self.inbox.release(&mut self.ports, arrival)?;
            }
        }
        for _ in 0..self.lent.len() {
            let Some(arrival) = self.inbox.next(&mut self.ports)? else {
                break;
            };
            let item = self.ports.memory.word(arrival.at).load(Relaxed);
            let slot = self.config.slot_of(item);
            if self.lent[slot].replace(arrival).is_some() {
                return Err(unexpected_item(item));
            }
            let word = self.config.local_mailbox(slot) + WORD;
            // Release: the response is read after the word.
            self.ports
                .memory
                .word(word)
                .store(arrival.place as u64 + 1, Release);
        }
        Ok(())
    }

    /// Takes completions of sends, and fails unless all queue pairs work. Call it now and then.
    pub fn check(&mut self) -> Result<(), PatternError> {
        self.ports.poll_sends()?;
        self.ports.check()
    }
}

impl<Response: Verb, T: Topology> Worker<Response, T> {
    /// Whether the worker waits for a response.
    pub fn is_outstanding(&self) -> bool {
        self.is_outstanding
    }

    /// Responses received.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Takes the response if it is there, and hands over the next request if `load` begins one. Returns whether a
    /// response was taken.
    ///
    /// # Errors
    ///
    /// The responder broke the protocol, or the load refused the response.
    #[inline(always)]
    pub fn step(&mut self, load: &mut impl RequestLoad) -> Result<bool, PatternError> {
        let taken = self.is_outstanding && self.take(load)?;
        if !self.is_outstanding && load.begin() {
            self.item = self.config.next_item(self.item);
            let slot = self.slot as usize;
            let at = PatternConfig::request_at(slot);
            write_request(&self.memory, at, self.item, self.slot);
            let word = self.memory.word(self.config.local_mailbox(slot));
            self.is_outstanding = true;
            load.sent(slot);
            // Release: the dispatcher reads the request after the word.
            word.store(self.topology.next() as u64 + 1, Release);
        }
        Ok(taken)
    }

    #[inline(always)]
    fn take(&mut self, load: &mut impl RequestLoad) -> Result<bool, PatternError> {
        let slot = self.slot as usize;
        let (at, free) = if Response::IN_MAILBOX {
            let [at, flag] = self.mailbox;
            // Acquire: the response is read after its flag.
            if self.memory.word(flag).load(Acquire) >> 56 == 0 {
                return Ok(false);
            }
            (at, flag)
        } else {
            let word = self.config.local_mailbox(slot) + WORD;
            let [first, stride, places] = self.receives;
            match self.memory.word(word).load(Acquire) as usize {
                0 => return Ok(false),
                place if place <= places => (first + (place - 1) * stride, word),
                // A peer has overwritten the word.
                place => {
                    return Err(PatternError::Protocol {
                        what: "the place of a response",
                        value: place as u64,
                        most: places as u64,
                    });
                }
            }
        };
        let item = self.memory.word(at).load(Relaxed);
        if item != self.item {
            return Err(unexpected_item(item));
        }
        load.received(slot, item, &self.memory, at)?;
        // Release: the response was read before its place is free.
        self.memory.word(free).store(0, Release);
        self.answered += 1;
        self.is_outstanding = false;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::OneResponder;
    use crate::verb::{InMessage, OwnReceives, Send, Write};

    /// A load of requests whose responses nobody looks at.
    struct AnyLoad;

    impl RequestLoad for AnyLoad {
        fn begin(&mut self) -> bool {
            true
        }

        fn sent(&mut self, _: usize) {}

        fn received(
            &mut self,
            _: usize,
            _: u64,
            _: &WordMemory,
            _: usize,
        ) -> Result<(), PatternError> {
            Ok(())
        }
    }

    fn with_worker<Response: Verb>() -> (
        Dispatcher<Write<InMessage>, Response>,
        Worker<Response, OneResponder>,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let registry = headworks_shm::Registry::open_at(folder.path().join("fabric")).unwrap();
        let provider = headworks_softnic::SoftProvider::on(registry);
        let device = headworks_verbs::Provider::open(&provider, &"soft:h1".parse().unwrap());
        let opened = Dispatcher::open(device.unwrap(), PatternConfig::paper(64), 1);
        let dispatcher: Dispatcher<_, Response> = opened.unwrap();
        let mut worker = dispatcher.worker(0, OneResponder);
        assert!(!worker.step(&mut AnyLoad).unwrap());
        (dispatcher, worker)
    }

    #[test]
    fn words_that_a_peer_has_overwritten_are_refused() {
        let local = PatternConfig::paper(64).local_mailbox(0);
        let (mut dispatcher, worker) = with_worker::<Write<InMessage>>();
        worker.memory.word(local).store(3, Relaxed);
        let refused = dispatcher.step().unwrap_err().to_string();
        let says = "the peer of a message is 2, at most 0";
        assert!(refused.contains(says), "{refused}");

        let (_dispatcher, mut worker) = with_worker::<Send<OwnReceives>>();
        worker.memory.word(local + WORD).store(u64::MAX, Relaxed);
        let refused = worker.step(&mut AnyLoad).unwrap_err().to_string();
        let says = "the place of a response is 18446744073709551615, at most 1";
        assert!(refused.contains(says), "{refused}");
    }
}

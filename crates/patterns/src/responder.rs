//! The responder: takes requests and answers each with an item of its region.

use std::sync::Arc;

use headworks_baselines::WordMemory;
use headworks_verbs::Device;

use crate::bring_up::Area;
use crate::config::PatternConfig;
use crate::error::PatternError;
use crate::message::{REQUEST, read_request, write_item};
use crate::ports::{INLINE_MAX, PortSizes, Ports};
use crate::verb::{Arrival, Inbox, Polled, PolledFlags, Verb, send_from_memory};

/// A responder of requests by `RequestVerb`, which answers by `ResponseVerb`. With `INLINE`, responses travel inline.
pub struct Responder<RequestVerb: Verb, ResponseVerb: Verb, const INLINE: bool = false> {
    ports: Ports,
    inbox: RequestVerb::Inbox,
    config: PatternConfig,
    /// Offset of the first item.
    items: usize,
    stride: usize,
    /// A request whose response found no room.
    waiting: Option<Request>,
    answered: u64,
    response: std::marker::PhantomData<ResponseVerb>,
}

/// A request to be answered.
#[derive(Clone, Copy, Debug)]
struct Request {
    peer: usize,
    slot: usize,
    item: u64,
}

impl<RequestVerb: Verb, ResponseVerb: Verb, const INLINE: bool>
    Responder<RequestVerb, ResponseVerb, INLINE>
{
    /// Opens a responder for `requesters` requesters and fills its items.
    pub fn open(
        device: Arc<dyn Device>,
        config: PatternConfig,
        requesters: usize,
    ) -> Result<Self, PatternError> {
        const { assert!(ResponseVerb::FOR_RESPONSES) }
        config.check::<RequestVerb, ResponseVerb>(device.info())?;
        let (stride, items) = (
            config.item_stride(),
            config.request_area::<RequestVerb>(requesters),
        );
        let (shared_receives, own_receives) =
            RequestVerb::receives(config.outstanding as usize, requesters);
        let ports = Ports::open(
            device,
            &PortSizes {
                peers: requesters,
                memory: items + stride * config.items as usize,
                send_depth: config.send_depth,
                signal_every: config.signal_every,
                shared_receives,
                own_receives,
                inline: if INLINE { config.response } else { 0 },
                huge_pages: config.huge_pages,
            },
        )?;
        for item in 0..config.items {
            let at = items + stride * item as usize;
            write_item(&ports.memory, at, item, config.response);
        }
        let places = config.request_places(requesters);
        let inbox = RequestVerb::Inbox::open(&ports, 0, places, REQUEST)?;
        Ok(Self {
            ports,
            inbox,
            config,
            items,
            stride,
            waiting: None,
            answered: 0,
            response: std::marker::PhantomData,
        })
    }

    /// The device objects, for bring-up.
    pub fn ports(&mut self) -> &mut Ports {
        &mut self.ports
    }

    /// The area for the requests of `requester`.
    pub fn request_area(&self, requester: usize) -> Area {
        let places = self.config.request_places(self.ports.peers());
        let first = requester * places.per_peer;
        let flags = RequestVerb::flag(places.total(), first, REQUEST);
        self.ports.area(first * RequestVerb::stride(REQUEST), flags)
    }

    /// Requests answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Counts of polls for requests.
    pub fn polled(&self) -> Polled {
        self.inbox.polled()
    }

    /// Returns which memory the next polls for requests read; `None` if they poll a completion queue.
    pub fn polled_flags(&self) -> Option<PolledFlags> {
        self.inbox.polled_flags()
    }

    /// Returns the begin of this side's memory, from which the offsets of flags count.
    pub fn memory_begin(&self) -> *const u8 {
        self.ports.memory.region().buffer().as_ptr().cast_const()
    }

    /// Answers at most `most` requests. Returns how many.
    ///
    /// # Errors
    ///
    /// A peer is gone or broke the protocol, or the device failed.
    #[inline(always)]
    pub fn step(&mut self, most: u32) -> Result<u32, PatternError> {
        let mut answered = 0;
        while answered < most && self.answer_next(|_, _| {})? {
            answered += 1;
        }
        Ok(answered)
    }

    /// Answers a request, if there is one. Calls `polled` in between, with the loads that it took to look for the
    /// request, and whether there was one: a caller in virtual time charges its time then. Returns whether a
    /// response was sent.
    ///
    /// # Errors
    ///
    /// As [`Responder::step`].
    #[inline(always)]
    pub fn answer_next(&mut self, polled: impl FnOnce(u64, bool)) -> Result<bool, PatternError> {
        self.ports.flush()?;
        if let Some(request) = self.waiting {
            let is_answered = self.answer(request)?;
            if is_answered {
                self.waiting = None;
            }
            return Ok(is_answered);
        }
        let before = self.inbox.polled().loads;
        let config = &self.config;
        let request = self.inbox.take(&mut self.ports, |memory, arrival| {
            Request::read(memory, arrival, config)
        })?;
        polled(self.inbox.polled().loads - before, request.is_some());
        let Some(request) = request else {
            return Ok(false);
        };
        let is_answered = self.answer(request)?;
        if !is_answered {
            self.waiting = Some(request);
        }
        Ok(is_answered)
    }

    /// Sends the response to `request`. Returns whether the send queue had room.
    #[inline(always)]
    fn answer(&mut self, request: Request) -> Result<bool, PatternError> {
        if !self.post(request)? {
            self.ports.poll_sends()?;
            if !self.post(request)? {
                return Ok(false);
            }
        }
        self.answered += 1;
        Ok(true)
    }

    #[inline(always)]
    fn post(&mut self, request: Request) -> Result<bool, PatternError> {
        let at = self.items + self.stride * request.item as usize;
        let (peer, slot, len) = (request.peer, request.slot, self.config.response);
        send_from_memory::<ResponseVerb, INLINE, INLINE_MAX>(&mut self.ports, peer, slot, at, len)
    }

    /// Takes completions of sends, and fails unless all queue pairs work. Call it now and then while no request comes.
    pub fn check(&mut self) -> Result<(), PatternError> {
        self.ports.poll_sends()?;
        self.ports.check()
    }
}

impl Request {
    /// Reads the request that arrived, and checks its fields.
    #[inline(always)]
    fn read(
        memory: &WordMemory,
        arrival: Arrival,
        config: &PatternConfig,
    ) -> Result<Self, PatternError> {
        let (item, slot) = read_request(memory, arrival.at);
        let below = |what, value, count| match value < count {
            true => Ok(()),
            false => Err(PatternError::Protocol {
                what,
                value,
                most: count - 1,
            }),
        };
        below("the item of a request", item, config.items)?;
        below("the slot of a request", slot, config.outstanding.into())?;
        Ok(Self {
            peer: arrival.peer,
            slot: slot as usize,
            item,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::message::{FLAG, WORD};
    use crate::verb::{DenseWrite, InMessage, SecondWrite, Write};

    /// Opens a responder of one requester and returns it with the offset of the flag of place `place`.
    fn responder<V: Verb>(
        config: PatternConfig,
        place: usize,
    ) -> (Responder<V, Write<SecondWrite>>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let registry = headworks_shm::Registry::open_at(folder.path().join("fabric")).unwrap();
        let provider = headworks_softnic::SoftProvider::on(registry);
        let device =
            headworks_verbs::Provider::open(&provider, &"soft:h1".parse().unwrap()).unwrap();
        let responder = Responder::<V, _>::open(device, config, 1).unwrap();
        let flag = responder.inbox.flag_at(place);
        (responder, flag)
    }

    #[test]
    fn a_mailbox_that_no_peer_has_is_refused() {
        let one = PatternConfig::paper(64);
        let idle = PatternConfig {
            idle_mailboxes: 3,
            ..one
        };
        let (mut plain, flag) = responder::<Write<InMessage>>(idle, 2);
        plain.ports.memory.word(flag).store(FLAG, Relaxed);
        // The flags of eight mailboxes are a word, which peers can write to.
        let few = PatternConfig { items: 1, ..one };
        let (mut dense, flag) = responder::<DenseWrite>(few, 7);
        dense
            .ports
            .memory
            .word(flag / WORD * WORD)
            .store(1 << 56, Relaxed);
        for (refused, says) in [
            (plain.step(1), "the peer of a message is 2, at most 0"),
            (dense.step(1), "the mailbox of a message is 7, at most 0"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_flags_of_the_next_polls_are_those_that_are_polled() {
        let idle = PatternConfig {
            idle_mailboxes: 9,
            ..PatternConfig::paper(64)
        };
        let (mut responder, flag) = responder::<Write<InMessage>>(idle, 3);
        responder.ports.memory.word(flag).store(FLAG, Relaxed);
        let flags = responder.polled_flags().unwrap();
        assert_eq!((flags.next, flags.count), (0, 10));
        assert!(flags.is_cleared);
        assert_eq!(flags.offset(3), flag);
        let found = responder
            .inbox
            .take(&mut responder.ports, |_, arrival| Ok(arrival.place));
        assert_eq!(found.unwrap(), Some(3));
        let flags = responder.polled_flags().unwrap();
        assert_eq!(flags.next, 4);
        // Round the end.
        assert_eq!(flags.offset(9), flag);
    }

    #[test]
    fn polls_are_counted_up_to_the_message_that_they_find() {
        let idle = PatternConfig {
            idle_mailboxes: 9,
            ..PatternConfig::paper(64)
        };
        let (mut responder, _) = responder::<Write<InMessage>>(idle, 0);
        let mut poll = |full: usize| {
            let flag = responder.inbox.flag_at(full);
            responder.ports.memory.word(flag).store(FLAG, Relaxed);
            let before = responder.polled();
            let found = responder
                .inbox
                .take(&mut responder.ports, |_, arrival| Ok(arrival.place));
            assert_eq!(found.unwrap(), Some(full));
            let polled = responder.polled();
            assert_eq!(polled.found, before.found + 1);
            polled.places - before.places
        };
        // From mailbox 0 on; from 4 on, and round the end; from 2 on, which is full.
        assert_eq!([poll(3), poll(1), poll(2), poll(2)], [4, 8, 1, 10]);
        assert_eq!(responder.inbox.next(&mut responder.ports).unwrap(), None);
        assert_eq!(responder.polled().places, 33);
    }
}

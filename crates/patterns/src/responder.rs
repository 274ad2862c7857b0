//! The responder: takes requests and answers each with an item of its region.

use std::sync::Arc;

use headworks_verbs::Device;

use crate::bring_up::Area;
use crate::config::PatternConfig;
use crate::error::PatternError;
use crate::message::{REQUEST, read_request, write_item};
use crate::ports::{PortSizes, Ports};
use crate::verb::{Arrival, Inbox, Polled, Verb};

/// A responder of requests by `Request`, which answers by `Response`. With `INLINE`, responses travel inline.
pub struct Responder<Request: Verb, Response: Verb, const INLINE: bool = false> {
    ports: Ports,
    inbox: Request::Inbox,
    config: PatternConfig,
    /// Offset of the first item.
    items: usize,
    stride: usize,
    /// A request that was taken and whose response found no room.
    waiting: Option<Waiting>,
    answered: u64,
    response: std::marker::PhantomData<Response>,
}

/// A request to be answered.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    peer: usize,
    slot: usize,
    item: u64,
}

impl<Request: Verb, Response: Verb, const INLINE: bool> Responder<Request, Response, INLINE> {
    /// Opens a responder for `requesters` requesters and fills its items.
    pub fn open(
        device: Arc<dyn Device>,
        config: PatternConfig,
        requesters: usize,
    ) -> Result<Self, PatternError> {
        config.check::<Request, Response>(device.info())?;
        let (stride, items) = (
            config.item_stride(),
            config.request_area::<Request>(requesters),
        );
        let (shared_receives, own_receives) =
            Request::receives(config.outstanding as usize, requesters);
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
        let inbox = Request::Inbox::open(&ports, 0, places, REQUEST)?;
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
        let flags = Request::flag(places.total(), first, REQUEST);
        self.ports.area(first * Request::stride(REQUEST), flags)
    }

    /// Requests answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Counts of polls for requests.
    pub fn polled(&self) -> Polled {
        self.inbox.polled()
    }

    /// Answers at most `most` requests. Returns how many.
    ///
    /// # Errors
    ///
    /// A peer is gone or broke the protocol, or the device failed.
    #[inline(always)]
    pub fn step(&mut self, most: u32) -> Result<u32, PatternError> {
        let mut answered = 0;
        while answered < most {
            if !self.take_request()? || !self.respond()? {
                break;
            }
            answered += 1;
        }
        Ok(answered)
    }

    /// Takes the next request, if no request waits for its response. Returns whether a request waits now.
    ///
    /// # Errors
    ///
    /// As [`Responder::step`].
    #[inline(always)]
    pub fn take_request(&mut self) -> Result<bool, PatternError> {
        self.ports.flush()?;
        if self.waiting.is_none()
            && let Some(arrival) = self.inbox.next(&mut self.ports)?
        {
            self.waiting = Some(self.take(arrival)?);
        }
        Ok(self.waiting.is_some())
    }

    /// Answers the request that was taken. Returns whether the response was sent; if not, the send queue is full.
    ///
    /// # Errors
    ///
    /// As [`Responder::step`].
    #[inline(always)]
    pub fn respond(&mut self) -> Result<bool, PatternError> {
        let Some(request) = self.waiting else {
            return Ok(false);
        };
        let at = self.items + self.stride * request.item as usize;
        let (peer, slot, len) = (request.peer, request.slot, self.config.response);
        if !Response::send::<INLINE>(&mut self.ports, peer, slot, at, len)? {
            self.ports.poll_sends()?;
            if !Response::send::<INLINE>(&mut self.ports, peer, slot, at, len)? {
                return Ok(false);
            }
        }
        self.waiting = None;
        self.answered += 1;
        Ok(true)
    }

    /// Reads a request, checks its fields, and frees its place.
    #[inline(always)]
    fn take(&mut self, arrival: Arrival) -> Result<Waiting, PatternError> {
        let (item, slot) = read_request(&self.ports.memory, arrival.at);
        self.inbox.release(&mut self.ports, arrival)?;
        let least = |what, value, most| match value <= most {
            true => Ok(()),
            false => Err(PatternError::Protocol { what, value, most }),
        };
        least("the item of a request", item, self.config.items - 1)?;
        least(
            "the slot of a request",
            slot,
            u64::from(self.config.outstanding) - 1,
        )?;
        Ok(Waiting {
            peer: arrival.peer,
            slot: slot as usize,
            item,
        })
    }

    /// Takes completions of sends, and fails unless all queue pairs work. Call it now and then while no request comes.
    pub fn check(&mut self) -> Result<(), PatternError> {
        self.ports.poll_sends()?;
        self.ports.check()
    }
}

//! Sizes of a run, their checks, and the layout of registered memory.

use headworks_verbs::DeviceInfo;

use crate::error::PatternError;
use crate::message::{REQUEST, WORD};
use crate::verb::{Places, Verb};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Most requests that one requester may have outstanding.
pub const OUTSTANDING_MAX: u32 = 64;
/// Most peers of a requester or a responder.
pub const PEERS_MAX: usize = 1 << 14;
/// Most idle mailboxes of a responder.
pub const IDLE_MAILBOXES_MAX: usize = 1 << 20;

/// Sizes of a run. Requesters and responders must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternConfig {
    /// Bytes of a response, a multiple of 8 from 64 on.
    pub response: usize,
    /// Requests that a requester has outstanding. The paper has 1 in all experiments.
    pub outstanding: u32,
    /// Items in a responder's region, at least one per outstanding request.
    pub items: u64,
    /// One send request in this many is signalled (section 8, selective signalling). 1 signals each.
    pub signal_every: u32,
    /// Depth of each send queue, at least twice `signal_every` and 4.
    pub send_depth: u32,
    /// Mailboxes of a responder that no requester uses. It polls them like the others. The paper has none.
    pub idle_mailboxes: usize,
    /// Whether memory is on huge pages, if the machine has some (section 8).
    pub huge_pages: bool,
}

impl PatternConfig {
    /// The paper's workload with responses of `response` bytes: one request outstanding, selective signalling.
    pub const fn paper(response: usize) -> Self {
        Self {
            response,
            outstanding: 1,
            items: 64,
            signal_every: 16,
            send_depth: 64,
            idle_mailboxes: 0,
            huge_pages: false,
        }
    }

    /// Checks the sizes, and that the device promises what the two verbs rely on.
    pub fn check<Request: Verb, Response: Verb>(
        &self,
        device: &DeviceInfo,
    ) -> Result<(), PatternError> {
        let outside =
            |what, value: u64, legal: String| Err(PatternError::Config { what, value, legal });
        let longest = device.limits.max_message as usize;
        if self.response < REQUEST || self.response > longest || !self.response.is_multiple_of(WORD)
        {
            let legal = format!("a multiple of {WORD} from {REQUEST} to {longest}");
            return outside("response", self.response as u64, legal);
        }
        if self.outstanding == 0 || self.outstanding > OUTSTANDING_MAX {
            let legal = format!("1 to {OUTSTANDING_MAX}");
            return outside("outstanding", self.outstanding.into(), legal);
        }
        if self.items < self.outstanding.into() || self.items > 1 << 32 {
            let legal = format!("{} to {}", self.outstanding, 1u64 << 32);
            return outside("items", self.items, legal);
        }
        let deepest = device.limits.max_qp_wr;
        if self.send_depth < 4 || self.send_depth > deepest {
            return outside(
                "send_depth",
                self.send_depth.into(),
                format!("4 to {deepest}"),
            );
        }
        if self.signal_every == 0 || self.signal_every > self.send_depth / 2 {
            let legal = format!("1 to {}", self.send_depth / 2);
            return outside("signal_every", self.signal_every.into(), legal);
        }
        if self.idle_mailboxes > IDLE_MAILBOXES_MAX {
            let legal = format!("at most {IDLE_MAILBOXES_MAX}");
            return outside("idle_mailboxes", self.idle_mailboxes as u64, legal);
        }
        Request::check(device, REQUEST)?;
        Response::check(device, self.response)
    }

    /// Offset of slot `slot` among requests that wait to be sent, in a requester's memory.
    pub(crate) const fn request_at(slot: usize) -> usize {
        slot * REQUEST
    }

    /// Offset of the local mailbox of slot `slot`, in a dispatcher's memory.
    pub(crate) const fn local_mailbox(&self, slot: usize) -> usize {
        Self::request_at(self.outstanding as usize) + slot * LINE
    }

    /// Offset and number of bytes of a requester's or dispatcher's area for responses.
    pub(crate) fn response_area<Response: Verb>(&self, peers: usize) -> (usize, usize) {
        let places = Response::places(self.outstanding as usize, peers);
        let start = self.local_mailbox(self.outstanding as usize);
        (start, Response::area(places, self.response))
    }

    /// The item that a slot asks for after `item`. Items of different slots differ, so that a response names its request.
    #[inline(always)]
    pub(crate) fn next_item(&self, item: u64) -> u64 {
        let next = item + u64::from(self.outstanding);
        match next < self.items {
            true => next,
            false => self.slot_of(item) as u64,
        }
    }

    /// The slot that asks for `item`.
    #[inline(always)]
    pub(crate) fn slot_of(&self, item: u64) -> usize {
        match self.outstanding {
            1 => 0,
            outstanding => (item % u64::from(outstanding)) as usize,
        }
    }

    /// Offset of an item in a responder's memory, and the distance to the next item.
    pub(crate) fn item_stride(&self) -> usize {
        self.response.next_multiple_of(LINE)
    }

    /// Places of a responder for the requests of `peers` requesters.
    pub(crate) const fn request_places(&self, peers: usize) -> Places {
        Places {
            per_peer: self.outstanding as usize,
            peers,
            idle: self.idle_mailboxes,
        }
    }

    /// Number of bytes of a responder's area for requests, which is at the start of its memory.
    pub(crate) fn request_area<Request: Verb>(&self, peers: usize) -> usize {
        let places = self.request_places(peers).total();
        Request::area(places, REQUEST).next_multiple_of(LINE)
    }
}

/// Returns the distance between places for messages of `len` bytes, on cache lines of their own.
pub(crate) const fn stride(len: usize) -> usize {
    len.next_multiple_of(LINE)
}

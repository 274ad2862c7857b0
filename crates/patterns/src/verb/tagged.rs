//! SEND into a tagged receive: the completion of a receive carries the number of its buffer. The order of
//! completions says nothing of the order in which buffers were posted (section 4.1).

use std::marker::PhantomData;

use headworks_verbs::{
    Completion, DeviceInfo, Payload, PostError, PostErrorKind, RecvWr, SendOp, Status,
};

use super::{Arrival, Inbox, Places, Polled, Verb};
use crate::config::stride;
use crate::error::PatternError;
use crate::ports::{Ports, SendQueue};

/// Completions taken per poll of the device.
const BATCH: usize = 16;

/// The queue to which a receiver posts its receives.
pub trait ReceiveQueue: std::marker::Send + 'static {
    /// Receives of the shared receive queue, and of each own queue, for `places` messages from each of `peers`.
    fn receives(places: usize, peers: usize) -> (u32, u32);

    /// Posts one receive for `peer`.
    fn post(ports: &mut Ports, peer: usize, receive: &RecvWr<'_>) -> Result<(), PostError>;
}

/// One queue for all peers: the responder's (section 4.1: always, for requests by SEND).
#[derive(Clone, Copy, Debug)]
pub struct SharedReceives;

impl ReceiveQueue for SharedReceives {
    fn receives(places: usize, peers: usize) -> (u32, u32) {
        ((places * peers) as u32, 0)
    }

    #[inline(always)]
    fn post(ports: &mut Ports, _: usize, receive: &RecvWr<'_>) -> Result<(), PostError> {
        let srq = ports.end.srq.as_ref().expect("opened with shared receives");
        srq.post_recv(std::slice::from_ref(receive))
    }
}

/// A queue for each peer: the requester's.
#[derive(Clone, Copy, Debug)]
pub struct OwnReceives;

impl ReceiveQueue for OwnReceives {
    fn receives(places: usize, _: usize) -> (u32, u32) {
        (0, places as u32)
    }

    #[inline(always)]
    fn post(ports: &mut Ports, peer: usize, receive: &RecvWr<'_>) -> Result<(), PostError> {
        ports
            .queue_pair(peer)
            .post_recv(std::slice::from_ref(receive))
    }
}

/// SEND into a receive that the receiver posted to the queue `Q`.
#[derive(Clone, Copy, Debug)]
pub struct Send<Q>(PhantomData<Q>);

impl<Q: ReceiveQueue> Verb for Send<Q> {
    const NAME: &'static str = "Send";
    const IN_MAILBOX: bool = false;

    type Inbox = TaggedReceives<Q>;

    fn check(_: &DeviceInfo, _: usize) -> Result<(), PatternError> {
        Ok(())
    }

    fn stride(len: usize) -> usize {
        stride(len)
    }

    /// A buffer for each request that may be outstanding at each responder.
    fn places(outstanding: usize, peers: usize) -> usize {
        outstanding * peers
    }

    fn receives(places: usize, peers: usize) -> (u32, u32) {
        Q::receives(places, peers)
    }

    #[inline(always)]
    fn send(
        queue: &mut SendQueue<'_>,
        _: usize,
        _: usize,
        payload: Payload<'_>,
    ) -> Result<bool, PatternError> {
        queue.post(SendOp::Send, payload)
    }
}

/// A receiver's tagged receives: buffer `i` belongs to peer `i / places`.
pub struct TaggedReceives<Q> {
    base: usize,
    len: usize,
    per_peer: usize,
    /// Peer of each queue pair: its number masked, then its index.
    peers: Vec<u32>,
    mask: u32,
    completions: [Completion; BATCH],
    /// Completions polled and not returned yet: from `taken` to `count`.
    taken: usize,
    count: usize,
    /// Buffers whose receive the device had no room for.
    owed: Vec<usize>,
    polled: Polled,
    queue: PhantomData<Q>,
}

impl<Q: ReceiveQueue> TaggedReceives<Q> {
    /// Posts the receive of buffer `place`, which belongs to `peer`.
    #[inline(always)]
    fn post(&mut self, ports: &mut Ports, peer: usize, place: usize) -> Result<(), PatternError> {
        let sges = [ports.memory.sge(self.at(place), self.len)];
        let receive = RecvWr {
            wr_id: place as u64,
            sges: &sges,
        };
        match Q::post(ports, peer, &receive) {
            Ok(()) => Ok(()),
            Err(error) if error.kind == PostErrorKind::QueueFull => {
                self.owed.push(place);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    #[cold]
    fn post_owed(&mut self, ports: &mut Ports) -> Result<(), PatternError> {
        for place in std::mem::take(&mut self.owed) {
            self.post(ports, place / self.per_peer, place)?;
        }
        Ok(())
    }
}

impl<Q: ReceiveQueue> Inbox for TaggedReceives<Q> {
    fn open(ports: &Ports, base: usize, places: Places, len: usize) -> Result<Self, PatternError> {
        let numbers: Vec<u32> = ports.qp_numbers().collect();
        // The smallest mask under which no two queue pairs share an entry: a look-up needs no search.
        let distinct = |mask: u32| {
            let mut seen = std::collections::HashSet::new();
            numbers.iter().all(|number| seen.insert(number & mask))
        };
        let masks = (0..=24).map(|bits| (1u32 << bits) - 1);
        let mask = masks
            .into_iter()
            .find(|mask| distinct(*mask))
            .unwrap_or(0xff_ffff);
        let mut table = vec![0; mask as usize + 1];
        for (peer, number) in numbers.iter().enumerate() {
            table[(number & mask) as usize] = peer as u32;
        }
        Ok(Self {
            base,
            len,
            per_peer: places.per_peer,
            peers: table,
            mask,
            completions: [Completion::default(); BATCH],
            taken: 0,
            count: 0,
            // All receives are owed until the first call, when the queue pairs can take them.
            owed: (0..places.per_peer * places.peers).collect(),
            polled: Polled::default(),
            queue: PhantomData,
        })
    }

    #[inline(always)]
    fn at(&self, place: usize) -> usize {
        self.base + place * stride(self.len)
    }

    fn flag_at(&self, place: usize) -> usize {
        self.at(place)
    }

    #[inline(always)]
    fn prepare(&mut self, ports: &mut Ports) -> Result<(), PatternError> {
        match self.owed.is_empty() {
            true => Ok(()),
            false => self.post_owed(ports),
        }
    }

    #[inline(always)]
    fn next(&mut self, ports: &mut Ports) -> Result<Option<Arrival>, PatternError> {
        self.prepare(ports)?;
        if self.taken == self.count {
            self.polled.places += 1;
            self.polled.loads += 1;
            self.taken = 0;
            self.count = ports.end.recv_cq.poll(&mut self.completions)?;
            if self.count == 0 {
                return Ok(None);
            }
        }
        let completion = &self.completions[self.taken];
        self.taken += 1;
        if completion.status != Status::Success {
            return Err(PatternError::Completion(completion.status));
        }
        if completion.byte_len as usize != self.len {
            return Err(PatternError::Unexpected {
                what: "the length of a message",
                value: completion.byte_len.into(),
            });
        }
        self.polled.found += 1;
        let place = completion.wr_id as usize;
        Ok(Some(Arrival {
            peer: self.peers[(completion.qpn.raw() & self.mask) as usize] as usize,
            place,
            at: self.at(place),
        }))
    }

    #[inline(always)]
    fn release(&mut self, ports: &mut Ports, arrival: Arrival) -> Result<(), PatternError> {
        self.post(ports, arrival.peer, arrival.place)
    }

    fn polled(&self) -> Polled {
        self.polled
    }
}

//! The device objects of a requester or a responder: one queue pair per peer, registered memory, and the room in
//! each send queue.

use std::sync::Arc;

use headworks_baselines::{End, EndSizes, WordMemory};
use headworks_verbs::{
    AllocRequest, Completion, Device, Pages, Payload, PostError, PostErrorKind, QpCaps, QpState,
    RemoteAddr, SendFlags, SendOp, SendWr, Status,
};

use crate::bring_up::Area;
use crate::config::PEERS_MAX;
use crate::error::PatternError;
use crate::message::REQUEST;

/// Completions taken per poll of the device.
const BATCH: usize = 16;
/// Number of low bits of a send request's `wr_id` that hold the index of its peer. The bits above count requests.
const PEER_BITS: u32 = PEERS_MAX.trailing_zeros();
/// Longest payload that is posted inline (section 8).
pub const INLINE_MAX: usize = 220;

/// Sizes of a side's objects.
#[derive(Clone, Copy, Debug)]
pub struct PortSizes {
    /// Number of peers.
    pub peers: usize,
    /// Bytes of registered memory.
    pub memory: usize,
    /// Depth of each send queue.
    pub send_depth: u32,
    /// One send request in this many is signalled.
    pub signal_every: u32,
    /// Receives of the shared receive queue; 0 gives each queue pair its own queue.
    pub shared_receives: u32,
    /// Receives of each queue pair's own queue.
    pub own_receives: u32,
    /// Longest payload that is posted inline, at most [`INLINE_MAX`]; 0 if none is.
    pub inline: usize,
    /// Whether memory is on huge pages, if the machine has some.
    pub huge_pages: bool,
}

/// One side of a run: its device objects and its peers.
pub struct Ports {
    pub(crate) end: End,
    pub(crate) memory: Arc<WordMemory>,
    peers: Vec<Peer>,
    depth: u64,
    signal_every: u64,
    /// Peers whose send queue owes a flag.
    owing: usize,
    completions: [Completion; BATCH],
}

/// A flag that follows a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    /// Where it goes.
    pub(crate) to: RemoteAddr,
    /// Its value: the lowest `len` bytes.
    pub(crate) word: u64,
    /// Bytes written: 1 or 8.
    pub(crate) len: usize,
}

/// A peer, and the send queue towards it.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Where this side's messages go: the area that the peer gave it.
    area: Area,
    /// The value of the next dense flag of each place, as a bit.
    toggles: u64,
    /// Send requests posted, and of those completed.
    posted: u64,
    completed: u64,
    /// Requests posted since the last one that is signalled.
    unsignalled: u64,
    /// A flag that is still to be written behind a message: the send queue had no room for it.
    owed: Option<Flag>,
}

impl Ports {
    /// Opens the objects on `device`.
    pub fn open(device: Arc<dyn Device>, sizes: &PortSizes) -> Result<Self, PatternError> {
        if sizes.peers == 0 || sizes.peers > PEERS_MAX {
            return Err(PatternError::Config {
                what: "peers",
                value: sizes.peers as u64,
                legal: format!("1 to {PEERS_MAX}"),
            });
        }
        let signalled = u64::from(sizes.send_depth) * sizes.peers as u64;
        let receives =
            sizes.shared_receives as u64 + sizes.own_receives as u64 * sizes.peers as u64;
        let most = (device.info().limits.max_inline as usize).min(INLINE_MAX);
        if sizes.inline > most {
            return Err(PatternError::Config {
                what: "the length of an inline payload",
                value: sizes.inline as u64,
                legal: format!("at most {most} on {}", device.info().name),
            });
        }
        let objects = EndSizes {
            queue_pairs: sizes.peers,
            caps: QpCaps {
                max_send_wr: sizes.send_depth,
                max_recv_wr: sizes.own_receives.max(1),
                max_inline: sizes.inline.max(8) as u32,
                ..QpCaps::default()
            },
            cq_depth: u32::try_from(signalled.max(receives)).unwrap_or(u32::MAX),
            shared_receives: sizes.shared_receives,
            channel: false,
        };
        let mut end = End::open(device, &objects)?;
        end.populate(&objects)?;
        let request = AllocRequest {
            pages: match sizes.huge_pages {
                true => Pages::PreferHuge,
                false => Pages::Ordinary,
            },
            ..AllocRequest::of(sizes.memory)
        };
        let memory = Arc::new(end.memory_as(&request)?);
        Ok(Self {
            end,
            memory,
            peers: vec![Peer::default(); sizes.peers],
            depth: sizes.send_depth.into(),
            signal_every: sizes.signal_every.into(),
            owing: 0,
            completions: [Completion::default(); BATCH],
        })
    }

    /// Number of peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// The area for a peer whose messages go to offset `messages` and whose flags to offset `flags` of this side's
    /// memory.
    pub fn area(&self, messages: usize, flags: usize) -> Area {
        let region = self.memory.region();
        Area {
            messages: region.remote(messages),
            flags: region.remote(flags),
        }
    }

    /// Sets where messages to `peer` go: the area that the peer gave to this side.
    pub fn set_peer_area(&mut self, peer: usize, area: Area) {
        self.peers[peer].area = area;
    }

    /// Sends the `len` bytes at `at` by `op`. Returns whether the send queue had room.
    #[inline(always)]
    pub(crate) fn post<const INLINE: bool>(
        &mut self,
        peer: usize,
        op: SendOp,
        at: usize,
        len: usize,
    ) -> Result<bool, PatternError> {
        if INLINE {
            // A request's length is known when this is compiled, so that its copy is a few instructions.
            if len == REQUEST {
                let mut copy = [0; REQUEST];
                self.memory.read(at, &mut copy);
                return self.post_one(peer, op, Payload::Inline(&copy));
            }
            let mut copy = [0; INLINE_MAX];
            self.memory.read(at, &mut copy[..len]);
            return self.post_one(peer, op, Payload::Inline(&copy[..len]));
        }
        let sges = [self.memory.region().sge(at, len as u32)];
        self.post_one(peer, op, Payload::Gather(&sges))
    }

    /// Sends the `len` bytes at `at` by `op`, and then `flag` by WRITE. Returns whether the send queue had
    /// room for the message. If it had none for the flag, the flag is owed: [`Ports::flush`] posts it.
    #[inline(always)]
    pub(crate) fn post_with_flag<const INLINE: bool>(
        &mut self,
        peer: usize,
        op: SendOp,
        flag: Flag,
        at: usize,
        len: usize,
    ) -> Result<bool, PatternError> {
        if self.peers[peer].owed.is_some() && !self.post_owed(peer)? {
            return Ok(false);
        }
        if !self.post::<INLINE>(peer, op, at, len)? {
            return Ok(false);
        }
        self.peers[peer].owed = Some(flag);
        self.owing += 1;
        self.post_owed(peer)?;
        Ok(true)
    }

    /// Posts flags that are owed, as far as there is room.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), PatternError> {
        match self.owing {
            0 => Ok(()),
            _ => self.flush_owed(),
        }
    }

    #[cold]
    fn flush_owed(&mut self) -> Result<(), PatternError> {
        for peer in 0..self.peers.len() {
            if self.peers[peer].owed.is_some() {
                self.post_owed(peer)?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn post_owed(&mut self, peer: usize) -> Result<bool, PatternError> {
        let Some(flag) = self.peers[peer].owed else {
            return Ok(false);
        };
        let word = flag.word.to_le_bytes();
        let payload = Payload::Inline(&word[..flag.len]);
        let posted = self.post_one(peer, SendOp::Write(flag.to), payload)?;
        if posted {
            self.peers[peer].owed = None;
            self.owing -= 1;
        }
        Ok(posted)
    }

    /// Posts a request to `peer`. Returns whether the send queue had room.
    #[inline(always)]
    fn post_one(
        &mut self,
        peer: usize,
        op: SendOp,
        payload: Payload<'_>,
    ) -> Result<bool, PatternError> {
        let state = &mut self.peers[peer];
        if state.posted - state.completed == self.depth {
            return Ok(false);
        }
        let is_signalled = state.unsignalled + 1 == self.signal_every;
        let number = state.posted + 1;
        let request = SendWr {
            wr_id: number << PEER_BITS | peer as u64,
            op,
            payload,
            flags: match is_signalled {
                true => SendFlags::SIGNALED,
                false => SendFlags::NONE,
            },
        };
        match self.end.queue_pairs[peer].post_send(&[request]) {
            Ok(()) => {
                state.posted = number;
                state.unsignalled = match is_signalled {
                    true => 0,
                    false => state.unsignalled + 1,
                };
                Ok(true)
            }
            Err(error) => refused(error),
        }
    }

    /// Takes completions of send requests, which make room in the send queues. Fails if a request failed.
    #[inline]
    pub fn poll_sends(&mut self) -> Result<(), PatternError> {
        loop {
            let count = self.end.send_cq.poll(&mut self.completions)?;
            for completion in &self.completions[..count] {
                if completion.status != Status::Success {
                    return Err(PatternError::Completion(completion.status));
                }
                let peer = (completion.wr_id & (PEERS_MAX as u64 - 1)) as usize;
                self.peers[peer].completed = completion.wr_id >> PEER_BITS;
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Fails unless all queue pairs still work: a queue pair can stop without a completion.
    pub fn check(&self) -> Result<(), PatternError> {
        let states = self.end.queue_pairs.iter().map(|qp| qp.state());
        match states.into_iter().find(|state| *state != QpState::Rts) {
            Some(state) => Err(PatternError::QueuePair(state)),
            None => Ok(()),
        }
    }

    /// The area that `peer` gave to this side.
    #[inline(always)]
    pub(crate) fn peer_area(&self, peer: usize) -> &Area {
        &self.peers[peer].area
    }

    /// The value of the next dense flag of place `place` at `peer`: 1 and 0 in turn.
    #[inline(always)]
    pub(crate) fn next_toggle(&self, peer: usize, place: usize) -> u64 {
        !self.peers[peer].toggles >> place & 1
    }

    /// Records that the next dense flag was sent.
    #[inline(always)]
    pub(crate) fn toggle(&mut self, peer: usize, place: usize) {
        self.peers[peer].toggles ^= 1 << place;
    }
}

/// The outcome of a post that the device refused: no room, or an error.
#[cold]
fn refused(error: PostError) -> Result<bool, PatternError> {
    match error.kind {
        PostErrorKind::QueueFull => Ok(false),
        _ => Err(error.into()),
    }
}

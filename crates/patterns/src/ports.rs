//! The device objects of a requester or a responder: one queue pair per peer, registered memory, and the room in
//! each send queue.

use std::sync::Arc;

use headworks_baselines::{End, EndSizes, WordMemory};
use headworks_verbs::{
    AllocRequest, Completion, Device, Pages, Payload, PostError, PostErrorKind, QpCaps, QpState,
    QueuePair, RemoteAddr, SendFlags, SendOp, SendWr, Status,
};

use crate::bring_up::Area;
use crate::config::PEERS_MAX;
use crate::error::PatternError;

/// Completions taken per poll of the device.
const BATCH: usize = 16;
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

/// One side of a run: its device objects and its peers. Fields are dropped in declaration order.
pub struct Ports {
    peers: Vec<Peer>,
    /// The other objects. The queue pairs are in `peers`.
    pub(crate) end: End,
    pub(crate) memory: WordMemory,
    depth: u32,
    signal_every: u32,
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
struct Peer {
    qp: Box<dyn QueuePair>,
    /// Where this side's messages go: the area that the peer gave it.
    area: Area,
    /// Send requests for which the queue has room.
    room: u32,
    /// Send requests up to and including the next that is signalled.
    until_signalled: u32,
    /// The value of the next dense flag of each place, as a bit.
    toggles: u64,
    /// A flag that is still to be written behind a message: the send queue had no room for it.
    owed: Option<Flag>,
}

/// The send queue towards one peer, borrowed for a message.
pub struct SendQueue<'a> {
    peer: &'a mut Peer,
    index: usize,
    signal_every: u32,
    owing: &'a mut usize,
}

impl SendQueue<'_> {
    /// The area that the peer gave to this side.
    #[inline(always)]
    pub(crate) fn area(&self) -> &Area {
        &self.peer.area
    }

    /// Posts a request. Returns whether the send queue had room.
    #[inline(always)]
    pub(crate) fn post(&mut self, op: SendOp, payload: Payload<'_>) -> Result<bool, PatternError> {
        let peer = &mut *self.peer;
        if peer.room == 0 {
            return Ok(false);
        }
        let is_signalled = peer.until_signalled == 1;
        let request = SendWr {
            wr_id: self.index as u64,
            op,
            payload,
            flags: match is_signalled {
                true => SendFlags::SIGNALED,
                false => SendFlags::NONE,
            },
        };
        match peer.qp.post_send(&[request]) {
            Ok(()) => {
                peer.room -= 1;
                peer.until_signalled = match is_signalled {
                    true => self.signal_every,
                    false => peer.until_signalled - 1,
                };
                Ok(true)
            }
            Err(error) => refused(error),
        }
    }

    /// Sends a message by `op`, and then `flag` by WRITE. Returns whether the send queue had room for the message.
    /// If it had none for the flag, the flag is owed: [`Ports::flush`] posts it.
    #[inline(always)]
    pub(crate) fn post_with_flag(
        &mut self,
        op: SendOp,
        payload: Payload<'_>,
        flag: Flag,
    ) -> Result<bool, PatternError> {
        if self.peer.owed.is_some() && !self.post_owed()? {
            return Ok(false);
        }
        if !self.post(op, payload)? {
            return Ok(false);
        }
        if !self.post_flag(flag)? {
            self.peer.owed = Some(flag);
            *self.owing += 1;
        }
        Ok(true)
    }

    /// As [`post_with_flag`](Self::post_with_flag), with the dense flag of place `place`: 1 and 0 in turn.
    #[inline(always)]
    pub(crate) fn post_with_toggle(
        &mut self,
        op: SendOp,
        payload: Payload<'_>,
        place: usize,
    ) -> Result<bool, PatternError> {
        let flag = Flag {
            to: self.peer.area.flags.plus(place as u64),
            word: !self.peer.toggles >> place & 1,
            len: 1,
        };
        let sent = self.post_with_flag(op, payload, flag)?;
        if sent {
            self.peer.toggles ^= 1 << place;
        }
        Ok(sent)
    }

    #[inline(always)]
    fn post_flag(&mut self, flag: Flag) -> Result<bool, PatternError> {
        let word = flag.word.to_le_bytes();
        self.post(SendOp::Write(flag.to), Payload::Inline(&word[..flag.len]))
    }

    /// Posts the flag that is owed. Returns whether there was one, and room for it.
    #[cold]
    fn post_owed(&mut self) -> Result<bool, PatternError> {
        let Some(flag) = self.peer.owed else {
            return Ok(false);
        };
        let posted = self.post_flag(flag)?;
        if posted {
            self.peer.owed = None;
            *self.owing -= 1;
        }
        Ok(posted)
    }
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
        let memory = end.memory_as(&request)?;
        let peers = std::mem::take(&mut end.queue_pairs).into_iter();
        let peers = peers.map(|qp| Peer {
            qp,
            area: Area::default(),
            room: sizes.send_depth,
            until_signalled: sizes.signal_every,
            toggles: 0,
            owed: None,
        });
        Ok(Self {
            peers: peers.collect(),
            end,
            memory,
            depth: sizes.send_depth,
            signal_every: sizes.signal_every,
            owing: 0,
            completions: [Completion::default(); BATCH],
        })
    }

    /// Number of peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// The queue pairs, in the order of the peers.
    pub(crate) fn queue_pairs(&mut self) -> impl Iterator<Item = &mut Box<dyn QueuePair>> {
        self.peers.iter_mut().map(|peer| &mut peer.qp)
    }

    /// The numbers of the queue pairs, in the order of the peers.
    pub(crate) fn qp_numbers(&self) -> impl Iterator<Item = u32> {
        self.peers.iter().map(|peer| peer.qp.qpn().raw())
    }

    /// The queue pair of `peer`.
    #[inline(always)]
    pub(crate) fn queue_pair(&mut self, peer: usize) -> &mut dyn QueuePair {
        &mut *self.peers[peer].qp
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

    /// The send queue towards peer number `index`. Fails if there is none: the number may come from a mailbox that no
    /// peer has, or from memory that a peer can write to.
    #[inline(always)]
    pub(crate) fn send_queue(&mut self, index: usize) -> Result<SendQueue<'_>, PatternError> {
        let most = self.peers.len() as u64 - 1;
        let Some(peer) = self.peers.get_mut(index) else {
            return Err(PatternError::Protocol {
                what: "the peer of a message",
                value: index as u64,
                most,
            });
        };
        Ok(SendQueue {
            peer,
            index,
            signal_every: self.signal_every,
            owing: &mut self.owing,
        })
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
        // Nothing else makes room: no further message goes out before the flag.
        self.poll_sends()?;
        for peer in 0..self.peers.len() {
            self.send_queue(peer)?.post_owed()?;
        }
        Ok(())
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
                // A completion stands for itself and the unsignalled requests before it.
                if let Some(peer) = self.peers.get_mut(completion.wr_id as usize) {
                    peer.room = self.depth.min(peer.room + self.signal_every);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Fails unless all queue pairs still work: a queue pair can stop without a completion.
    pub fn check(&self) -> Result<(), PatternError> {
        let states = self.peers.iter().map(|peer| peer.qp.state());
        match states.into_iter().find(|state| *state != QpState::Rts) {
            Some(state) => Err(PatternError::QueuePair(state)),
            None => Ok(()),
        }
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

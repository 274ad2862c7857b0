//! The endpoint of a ring: WRITEs slots and cursors to the peer's memory, and learns of completions
//! and of the cursors that the peer sends by immediate.

use std::sync::Arc;

use headworks_verbs::{
    Completion, CompletionChannel, CompletionQueue, Payload, Region, RemoteAddr, SendOp, SendWr,
    Sge,
};

use super::{Endpoint, Posted, flags, write, write_word};
use crate::error::RingError;
use crate::slot_array::ARRAY;

/// One end of a ring on its device, and where the peer's memory is.
pub(crate) struct RingEndpoint {
    endpoint: Endpoint,
    /// `None` where a group polls, and hands over this ring's completions.
    cq: Option<Arc<dyn CompletionQueue>>,
    channel: Option<Arc<dyn CompletionChannel>>,
    peer: Target,
    /// Cursors travel by WRITE with immediate.
    notify: bool,
    /// Words that cursors are sent from where the device takes nothing inline.
    staging: Option<Region>,
    staged: usize,
    noticed: Noticed,
    /// What a group handed over since the last poll.
    handed: Polled,
}

/// Where the peer's memory is.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Its array, behind a line.
    pub(crate) memory: RemoteAddr,
    /// Its word for our cursor.
    pub(crate) cursor: RemoteAddr,
    /// What that word holds for a cursor of 0.
    pub(crate) cursor_start: u64,
}

impl Target {
    /// Where byte `offset` of the array is.
    #[inline(always)]
    fn array(&self, offset: usize) -> RemoteAddr {
        self.memory.plus((ARRAY + offset) as u64)
    }
}

/// What a poll found.
#[derive(Default, Clone, Copy)]
pub(crate) struct Polled {
    /// The `wr_id` of the last send request that completed.
    pub(crate) sent: Option<u64>,
    /// A newer cursor of the peer, by immediate.
    pub(crate) cursor: Option<u64>,
}

/// The last cursor that came by immediate, extended to 64 bits.
#[derive(Default, Clone, Copy)]
struct Noticed(u64);

impl Noticed {
    /// The cursor that an immediate stands for; `None` if a later one came before it.
    #[inline(always)]
    fn extend(&mut self, imm: u32) -> Option<u64> {
        let ahead = imm.wrapping_sub(self.0 as u32);
        if ahead >= 1 << 31 {
            return None;
        }
        self.0 = self.0.wrapping_add(ahead.into());
        Some(self.0)
    }
}

/// A word that is written behind the pieces of a chain.
#[derive(Clone, Copy)]
pub(crate) enum Announcement {
    /// Our cursor, to the peer's word for it.
    Cursor(u64),
    /// A word of the peer's array, at this offset.
    Word(usize, u64),
}

/// How the last request of a chain completes.
#[derive(Clone, Copy)]
pub(crate) struct Signal {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
}

impl Signal {
    /// Without a completion.
    pub(crate) const NONE: Self = Self {
        wr_id: 0,
        signaled: false,
    };

    #[inline(always)]
    fn on(self, request: SendWr<'_>) -> SendWr<'_> {
        SendWr {
            wr_id: self.wr_id,
            flags: flags(self.signaled),
            ..request
        }
    }
}

impl RingEndpoint {
    pub(crate) fn new(
        endpoint: Endpoint,
        cq: Option<Arc<dyn CompletionQueue>>,
        channel: Option<Arc<dyn CompletionChannel>>,
        peer: Target,
        notify: bool,
        staging: Option<Region>,
    ) -> Self {
        Self {
            endpoint,
            cq,
            channel,
            peer,
            notify,
            staging,
            staged: 0,
            noticed: Noticed::default(),
            handed: Polled::default(),
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Posts as one chain: the WRITE of each of up to two pieces of the array to the same place in
    /// the peer's, then the announcement. The last request has the signal. The caller may post the
    /// same chain again when there was no room: the peer reads nothing that was not announced.
    pub(crate) fn post(
        &mut self,
        pieces: &[(usize, Sge)],
        announcement: Option<Announcement>,
        signal: Signal,
    ) -> Result<Posted, RingError> {
        let word = match announcement {
            Some(Announcement::Cursor(cursor)) if !self.notify => {
                cursor.wrapping_add(self.peer.cursor_start)
            }
            Some(Announcement::Cursor(word) | Announcement::Word(_, word)) => word,
            None => 0,
        };
        let staged = match (&announcement, &self.staging) {
            (Some(_), Some(staging)) => Some(stage(staging, self.staged, word)),
            _ => None,
        };
        let bytes = word.to_ne_bytes();
        let piece = |at: usize| {
            let (offset, sge) = &pieces[at];
            write(sge, self.peer.array(*offset))
        };
        let announce = |announcement: Announcement| {
            let op = match announcement {
                Announcement::Cursor(_) if self.notify => {
                    SendOp::WriteImm(self.peer.cursor, word as u32)
                }
                Announcement::Cursor(_) => SendOp::Write(self.peer.cursor),
                Announcement::Word(offset, _) => SendOp::Write(self.peer.array(offset)),
            };
            let payload = match &staged {
                _ if matches!(op, SendOp::WriteImm(..)) => Payload::Gather(&[]),
                Some(sge) => Payload::Gather(std::slice::from_ref(sge)),
                None => Payload::Inline(&bytes),
            };
            signal.on(SendWr {
                wr_id: 0,
                op,
                payload,
                flags: flags(false),
            })
        };
        let qp = &mut self.endpoint;
        let posted = match (pieces.len(), announcement) {
            (0, None) => Ok(Posted::All),
            (0, Some(last)) => qp.post(&[announce(last)]),
            (1, None) => qp.post(&[signal.on(piece(0))]),
            (1, Some(last)) => qp.post(&[piece(0), announce(last)]),
            (_, None) => qp.post(&[piece(0), signal.on(piece(1))]),
            (_, Some(last)) => qp.post(&[piece(0), piece(1), announce(last)]),
        };
        if posted == Ok(Posted::All) && staged.is_some() {
            self.staged = self.staged.wrapping_add(1);
        }
        posted
    }

    /// [`RingEndpoint::post`] of one piece and the cursor behind it, where the cursor travels inline
    /// by WRITE: the shape of most publications, for which less is written down. `None` where the
    /// cursor travels otherwise.
    #[inline(always)]
    pub(crate) fn post_plainly(
        &mut self,
        (offset, sge): (usize, Sge),
        cursor: u64,
        signaled: bool,
    ) -> Option<Result<Posted, RingError>> {
        if self.notify || self.staging.is_some() {
            return None;
        }
        let word = cursor.wrapping_add(self.peer.cursor_start).to_ne_bytes();
        let slots = write(&sge, self.peer.array(offset));
        let tail = write_word(&word, self.peer.cursor, cursor, signaled);
        Some(self.endpoint.post(&[slots, tail]))
    }

    /// Takes what has completed. Completions before a failure are found first, the failure by the
    /// next poll.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Polled, RingError> {
        let Some(cq) = &self.cq else {
            return self.poll_handed();
        };
        let mut found = Polled::default();
        let noticed = &mut self.noticed;
        self.endpoint.poll(
            &**cq,
            |wr_id| found.sent = Some(wr_id),
            |imm| found.cursor = noticed.extend(imm).or(found.cursor),
        )?;
        Ok(found)
    }

    /// What a group has handed over.
    fn poll_handed(&mut self) -> Result<Polled, RingError> {
        self.endpoint.owe(0)?;
        let found = std::mem::take(&mut self.handed);
        if found.sent.is_none() && found.cursor.is_none() {
            self.endpoint.failure()?;
        }
        Ok(found)
    }

    /// A completion that the group's poll found.
    pub(crate) fn hand_over(&mut self, completion: &Completion) -> Result<(), RingError> {
        if !self.endpoint.hand_over(completion)? {
            return Ok(());
        }
        if completion.opcode.is_recv() {
            let cursor = self.noticed.extend(completion.imm.unwrap_or_default());
            self.handed.cursor = cursor.or(self.handed.cursor);
        } else {
            self.handed.sent = Some(completion.wr_id);
        }
        Ok(())
    }

    pub(crate) fn is_notify(&self) -> bool {
        self.notify
    }

    pub(crate) fn channel(&self) -> Option<&Arc<dyn CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Asks for an event. A group arms for all its rings.
    pub(crate) fn arm(&self) {
        if let Some(cq) = &self.cq {
            cq.arm(false);
        }
    }
}

/// Puts a word where the device can fetch it: a place that no request in flight still needs, because
/// there is one place more than requests. The next word takes the same place until a request with it
/// is posted: where there was no room for that, all other places are in flight.
#[cold]
fn stage(staging: &Region, staged: usize, value: u64) -> Sge {
    let words = staging.len() / 8;
    let offset = staged % words.max(1) * 8;
    crate::slot_array::store_staged(staging, offset, value);
    staging.sge(offset, 8)
}

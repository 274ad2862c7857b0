//! The endpoint of a ring: WRITEs slots and cursors to the peer's memory, and takes completions and the
//! cursors that the peer sends by immediate.

use std::sync::Arc;

use headworks_verbs::{
    Completion, CompletionChannel, CompletionQueue, Payload, Region, RemoteAddr, SendOp, SendWr,
    Sge,
};

use super::{ChainPosted, Endpoint, flags, write, write_word};
use crate::error::RingError;
use crate::slot_array::ARRAY;

/// One end of a ring on its device, with the addresses of the peer's memory.
pub(crate) struct RingEndpoint {
    endpoint: Endpoint,
    /// `None` in a group: the group polls, and hands over this ring's completions.
    cq: Option<Arc<dyn CompletionQueue>>,
    channel: Option<Arc<dyn CompletionChannel>>,
    peer: Target,
    /// Whether cursors travel by WRITE with immediate.
    notify: bool,
    /// Words that cursors are sent from. `None` if the device can send a word inline.
    staging: Option<Region>,
    staged: usize,
    /// Whether [`RingEndpoint::post_plainly`] applies.
    is_plain: bool,
    /// Length of the longest piece of the array that is posted inline.
    inline_up_to: usize,
    noticed: ImmCursor,
    /// Completions that the group handed over since the last poll.
    handed: PollResult,
}

/// Addresses of the peer's memory.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The peer's memory: one cache line, then its array.
    pub(crate) memory: RemoteAddr,
    /// The peer's word for our cursor.
    pub(crate) cursor: RemoteAddr,
    /// Value that the word holds for a cursor of 0.
    pub(crate) cursor_start: u64,
}

impl Target {
    /// Returns the address of byte `offset` of the array.
    #[inline(always)]
    fn array(&self, offset: usize) -> RemoteAddr {
        self.memory.plus((ARRAY + offset) as u64)
    }
}

/// Result of a poll.
#[derive(Default, Clone, Copy)]
pub(crate) struct PollResult {
    /// The `wr_id` of the last send request that completed.
    pub(crate) sent: Option<u64>,
    /// A newer cursor of the peer that came by immediate.
    pub(crate) cursor: Option<u64>,
}

/// The last cursor that came by immediate, extended to 64 bits.
#[derive(Default, Clone, Copy)]
struct ImmCursor(u64);

impl ImmCursor {
    /// Extends an immediate to the cursor that it stands for. Returns `None` if a later cursor came
    /// before it.
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

/// A word that is written after the pieces of a chain.
#[derive(Clone, Copy)]
pub(crate) enum TrailingWrite {
    /// Our cursor, written to the peer's word for it.
    Cursor(u64),
    /// A word of the peer's array: its offset in bytes, and its value.
    Word(usize, u64),
}

/// How the last request of a chain completes.
#[derive(Clone, Copy)]
pub(crate) struct Signal {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
}

impl Signal {
    /// No completion.
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
        inline_up_to: usize,
    ) -> Self {
        Self {
            is_plain: !notify && staging.is_none() && inline_up_to == 0,
            inline_up_to,
            endpoint,
            cq,
            channel,
            peer,
            notify,
            staging,
            staged: 0,
            noticed: ImmCursor::default(),
            handed: PollResult::default(),
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Posts one chain: a WRITE of each of up to two pieces of the array to the same place in the peer's
    /// array, then the announcement. `signal` applies to the last request. If there was no room, the
    /// caller may post the same chain again, because the peer reads nothing that is not announced.
    pub(crate) fn post(
        &mut self,
        pieces: &[(usize, Sge)],
        announcement: Option<TrailingWrite>,
        signal: Signal,
    ) -> Result<ChainPosted, RingError> {
        fn gathered<'p>((offset, sge): &'p (usize, Sge), peer: &Target) -> SendWr<'p> {
            write(sge, peer.array(*offset))
        }
        self.post_pieces(pieces, gathered, announcement, signal)
    }

    /// Does what [`RingEndpoint::post`] does for pieces of which `request` makes the WRITEs.
    #[inline(always)]
    fn post_pieces<'p, P>(
        &mut self,
        pieces: &'p [P],
        request: impl Fn(&'p P, &Target) -> SendWr<'p>,
        announcement: Option<TrailingWrite>,
        signal: Signal,
    ) -> Result<ChainPosted, RingError> {
        let word = match announcement {
            Some(TrailingWrite::Cursor(cursor)) if !self.notify => {
                cursor.wrapping_add(self.peer.cursor_start)
            }
            Some(TrailingWrite::Cursor(word) | TrailingWrite::Word(_, word)) => word,
            None => 0,
        };
        let staged = match (&announcement, &self.staging) {
            (Some(_), Some(staging)) => Some(stage(staging, self.staged, word)),
            _ => None,
        };
        let bytes = word.to_ne_bytes();
        let piece = |at: usize| request(&pieces[at], &self.peer);
        let announce = |announcement: TrailingWrite| {
            let op = match announcement {
                TrailingWrite::Cursor(_) if self.notify => {
                    SendOp::WriteImm(self.peer.cursor, word as u32)
                }
                TrailingWrite::Cursor(_) => SendOp::Write(self.peer.cursor),
                TrailingWrite::Word(offset, _) => SendOp::Write(self.peer.array(offset)),
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
            (0, None) => Ok(ChainPosted::All),
            (0, Some(last)) => qp.post(&[announce(last)]),
            (1, None) => qp.post(&[signal.on(piece(0))]),
            (1, Some(last)) => qp.post(&[piece(0), announce(last)]),
            (_, None) => qp.post(&[piece(0), signal.on(piece(1))]),
            (_, Some(last)) => qp.post(&[piece(0), piece(1), announce(last)]),
        };
        if posted == Ok(ChainPosted::All) && staged.is_some() {
            self.staged = self.staged.wrapping_add(1);
        }
        posted
    }

    /// Length of the longest piece of the array that is to be posted [inline](Self::post_inline).
    #[inline(always)]
    pub(crate) fn inline_up_to(&self) -> usize {
        self.inline_up_to
    }

    /// Does what [`RingEndpoint::post`] does for one piece, whose bytes travel inline. Apart, so that the usual way does not pay for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn post_inline(
        &mut self,
        piece: (usize, &[u8]),
        announcement: Option<TrailingWrite>,
        signal: Signal,
    ) -> Result<ChainPosted, RingError> {
        fn inline<'p>((offset, bytes): &'p (usize, &[u8]), peer: &Target) -> SendWr<'p> {
            SendWr {
                wr_id: 0,
                op: SendOp::Write(peer.array(*offset)),
                payload: Payload::Inline(bytes),
                flags: flags(false),
            }
        }
        self.post_pieces(&[piece], inline, announcement, signal)
    }

    /// Does what [`RingEndpoint::post`] does for one piece and a cursor that travels inline by WRITE. Most
    /// publications have this shape, and this path does less work. Returns `None` if the cursor travels
    /// otherwise, or if pieces may travel inline.
    #[inline(always)]
    pub(crate) fn post_plainly(
        &mut self,
        (offset, sge): (usize, Sge),
        cursor: u64,
        signaled: bool,
    ) -> Option<Result<ChainPosted, RingError>> {
        if !self.is_plain {
            return None;
        }
        let word = cursor.wrapping_add(self.peer.cursor_start).to_ne_bytes();
        let slots = write(&sge, self.peer.array(offset));
        let tail = write_word(&word, self.peer.cursor, cursor, signaled);
        Some(self.endpoint.post(&[slots, tail]))
    }

    /// Takes completions. Those before a failure are returned first, and the next poll reports the
    /// failure.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<PollResult, RingError> {
        let Some(cq) = &self.cq else {
            return self.poll_handed();
        };
        let mut found = PollResult::default();
        let noticed = &mut self.noticed;
        self.endpoint.poll(
            &**cq,
            |wr_id| found.sent = Some(wr_id),
            |imm| found.cursor = noticed.extend(imm).or(found.cursor),
        )?;
        Ok(found)
    }

    /// Takes what the group has handed over.
    fn poll_handed(&mut self) -> Result<PollResult, RingError> {
        self.endpoint.owe(0)?;
        let found = std::mem::take(&mut self.handed);
        if found.sent.is_none() && found.cursor.is_none() {
            self.endpoint.failure()?;
        }
        Ok(found)
    }

    /// Takes a completion that the group polled.
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

    /// Asks for an event. In a group it does nothing: the group arms for all its rings.
    pub(crate) fn arm(&self) {
        if let Some(cq) = &self.cq {
            cq.arm(false);
        }
    }
}

/// Stores a word where the device can fetch it. No request in flight still needs that place, because
/// there is one more place than requests. The next word takes the same place until a request with it is
/// posted: if there was no room to post it, requests in flight use all other places.
#[cold]
fn stage(staging: &Region, staged: usize, value: u64) -> Sge {
    let words = staging.len() / 8;
    let offset = staged % words.max(1) * 8;
    crate::slot_array::store_staged(staging, offset, value);
    staging.sge(offset, 8)
}

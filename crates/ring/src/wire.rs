//! One end's queue pair and completions: posts WRITEs and cursors, polls, keeps receives posted.

use std::sync::Arc;

use headworks_verbs::{
    Completion, CompletionChannel, CompletionQueue, Payload, PostErrorKind, QpState, QueuePair,
    RecvWr, Region, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Status,
};

use crate::error::RingError;
use crate::slots::ARRAY;

/// Completions taken in one poll.
const BATCH: usize = 16;

/// What an end needs of its device, and where the peer's memory is.
pub(crate) struct Wire {
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    channel: Option<Arc<dyn CompletionChannel>>,
    peer: RemoteAddr,
    /// Cursors travel by WRITE with immediate.
    notify: bool,
    /// Words that cursors are sent from where the device takes nothing inline.
    staging: Option<Region>,
    staged: usize,
    /// The last cursor that came by immediate, extended to 64 bits.
    noticed: u64,
}

/// What a poll found.
#[derive(Default, Clone, Copy)]
pub(crate) struct Polled {
    /// The `wr_id` of the last send request that completed.
    pub(crate) sent: Option<u64>,
    /// A newer cursor of the peer, by immediate.
    pub(crate) cursor: Option<u64>,
}

/// A request was posted, or there was no room for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posted {
    Yes,
    NoRoom,
}

impl Wire {
    pub(crate) fn new(
        qp: Box<dyn QueuePair>,
        cq: Arc<dyn CompletionQueue>,
        channel: Option<Arc<dyn CompletionChannel>>,
        peer: RemoteAddr,
        notify: bool,
        staging: Option<Region>,
    ) -> Self {
        Self { qp, cq, channel, peer, notify, staging, staged: 0, noticed: 0 }
    }

    /// The peer's array, from byte `offset`.
    #[inline(always)]
    fn array(&self, offset: usize) -> RemoteAddr {
        self.peer.plus((ARRAY + offset) as u64)
    }

    /// Posts as one chain: the WRITE of each piece of the array to the same place in the peer's,
    /// then `last`. The caller may post the same again when there was no room: nothing that was
    /// not announced is read.
    #[inline]
    pub(crate) fn post(
        &mut self,
        pieces: &[(usize, Sge)],
        last: Option<Last>,
    ) -> Result<Posted, RingError> {
        let idle = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            payload: Payload::Inline(&[]),
            flags: SendFlags::NONE,
        };
        let mut wrs = [idle; 3];
        let mut count = 0;
        for (offset, sge) in pieces {
            wrs[count] = SendWr {
                op: SendOp::Write(self.array(*offset)),
                payload: Payload::Gather(std::slice::from_ref(sge)),
                ..idle
            };
            count += 1;
        }
        let word = last.map_or(0, |last| last.value).to_ne_bytes();
        let staged = match (&last, &self.staging) {
            (Some(last), Some(staging)) => Some(stage(staging, &mut self.staged, last.value)),
            _ => None,
        };
        if let Some(last) = last {
            let flags = if last.signaled { SendFlags::SIGNALED } else { SendFlags::NONE };
            let (op, payload) = match last.to {
                To::Cursor if self.notify => {
                    let payload = Payload::Gather(&[]);
                    (SendOp::WriteImm(self.peer, last.value as u32), payload)
                }
                To::Cursor => (SendOp::Write(self.peer), word_payload(&word, staged.as_ref())),
                To::Word(offset) => {
                    (SendOp::Write(self.array(offset)), word_payload(&word, staged.as_ref()))
                }
                To::Nothing => {
                    // The last piece itself carries the signal.
                    if let Some(piece) = wrs[..count].last_mut() {
                        piece.flags = flags;
                        piece.wr_id = last.wr_id;
                    }
                    return post(&mut *self.qp, &wrs[..count]);
                }
            };
            wrs[count] = SendWr { wr_id: last.wr_id, op, payload, flags };
            count += 1;
        }
        post(&mut *self.qp, &wrs[..count])
    }

    /// Takes what has completed.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Polled, RingError> {
        let mut found = Polled::default();
        let mut completions = [Completion::default(); BATCH];
        loop {
            let count = self.cq.poll(&mut completions)?;
            for completion in &completions[..count] {
                if completion.status != Status::Success {
                    return Err(RingError::Completion(completion.status));
                }
                if completion.opcode.is_recv() {
                    self.notice(completion, &mut found)?;
                } else {
                    found.sent = Some(completion.wr_id);
                }
            }
            if count < BATCH {
                return Ok(found);
            }
        }
    }

    /// A cursor came by immediate: its receive is posted again before anything else happens.
    fn notice(&mut self, completion: &Completion, found: &mut Polled) -> Result<(), RingError> {
        self.qp.post_recv(&[RecvWr { wr_id: 0, sges: &[] }])?;
        let ahead = completion.imm.unwrap_or_default().wrapping_sub(self.noticed as u32);
        // An older value has been overtaken.
        if ahead < 1 << 31 {
            self.noticed = self.noticed.wrapping_add(ahead.into());
            found.cursor = Some(self.noticed);
        }
        Ok(())
    }

    /// Posts `count` receives for cursors by immediate.
    pub(crate) fn post_receives(qp: &mut dyn QueuePair, count: u64) -> Result<(), RingError> {
        for _ in 0..count {
            qp.post_recv(&[RecvWr { wr_id: 0, sges: &[] }])?;
        }
        Ok(())
    }

    /// Whether the queue pair still works.
    pub(crate) fn check(&self) -> Result<(), RingError> {
        match self.qp.state() {
            QpState::Rts => Ok(()),
            state => Err(RingError::QueuePair(state)),
        }
    }

    pub(crate) fn is_notify(&self) -> bool {
        self.notify
    }

    pub(crate) fn channel(&self) -> Option<&Arc<dyn CompletionChannel>> {
        self.channel.as_ref()
    }

    pub(crate) fn arm(&self) {
        self.cq.arm(false);
    }
}

/// The last request of a chain.
#[derive(Clone, Copy)]
pub(crate) struct Last {
    pub(crate) to: To,
    pub(crate) value: u64,
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
}

/// Where it goes.
#[derive(Clone, Copy)]
pub(crate) enum To {
    /// The peer's cursor.
    Cursor,
    /// A word of the peer's array.
    Word(usize),
    /// There is none: the last piece is signalled instead.
    Nothing,
}

#[inline(always)]
fn word_payload<'a>(word: &'a [u8; 8], staged: Option<&'a Sge>) -> Payload<'a> {
    match staged {
        Some(sge) => Payload::Gather(std::slice::from_ref(sge)),
        None => Payload::Inline(word),
    }
}

/// Puts a cursor where the device can fetch it: a word that no request in flight still needs,
/// because there are as many words as requests.
#[cold]
fn stage(staging: &Region, staged: &mut usize, value: u64) -> Sge {
    let words = staging.len() / 8;
    let offset = *staged % words.max(1) * 8;
    *staged = staged.wrapping_add(1);
    crate::slots::store_staged(staging, offset, value);
    staging.sge(offset, 8)
}

#[inline(always)]
fn post(qp: &mut dyn QueuePair, wrs: &[SendWr<'_>]) -> Result<Posted, RingError> {
    match qp.post_send(wrs) {
        Ok(()) => Ok(Posted::Yes),
        Err(error) if error.kind == PostErrorKind::QueueFull => Ok(Posted::NoRoom),
        Err(error) => Err(error.into()),
    }
}

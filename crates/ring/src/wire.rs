//! One end's queue pair and completions: posts WRITEs and cursors, polls, keeps receives posted.

use std::sync::Arc;

use headworks_verbs::{
    Completion, CompletionChannel, CompletionQueue, Payload, PostErrorKind, QpState, Qpn,
    QueuePair, RecvWr, Region, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Status,
};

use crate::error::RingError;
use crate::slots::ARRAY;

/// Completions taken in one poll.
const BATCH: usize = 16;

/// What an end needs of its device, and where the peer's memory is.
pub(crate) struct Wire {
    qp: Box<dyn QueuePair>,
    /// `None` where a group polls, and hands over what is ours.
    cq: Option<Arc<dyn CompletionQueue>>,
    channel: Option<Arc<dyn CompletionChannel>>,
    peer: Target,
    /// Cursors travel by WRITE with immediate.
    notify: bool,
    /// Words that cursors are sent from where the device takes nothing inline.
    staging: Option<Region>,
    staged: usize,
    completions: [Completion; BATCH],
    /// The last cursor that came by immediate, extended to 64 bits.
    noticed: u64,
    /// Receives that the device had no room for when they were due.
    owed: u64,
    /// What a group handed over since the last poll.
    handed: Polled,
    /// A request failed: said by every poll that finds nothing else.
    failed: Option<Status>,
}

/// Where the peer's memory is.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Its array, behind a line.
    pub(crate) memory: RemoteAddr,
    /// Its word for our cursor.
    pub(crate) cursor: RemoteAddr,
    /// What that holds for a cursor of 0.
    pub(crate) cursor_start: u64,
}

/// What a poll found.
#[derive(Default, Clone, Copy)]
pub(crate) struct Polled {
    /// The `wr_id` of the last send request that completed.
    pub(crate) sent: Option<u64>,
    /// A newer cursor of the peer, by immediate.
    pub(crate) cursor: Option<u64>,
}

/// A chain was posted, or there was no room for all of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posted {
    Yes,
    /// This many of its requests were posted.
    NoRoom(usize),
}

impl Wire {
    pub(crate) fn new(
        qp: Box<dyn QueuePair>,
        cq: Option<Arc<dyn CompletionQueue>>,
        channel: Option<Arc<dyn CompletionChannel>>,
        peer: Target,
        notify: bool,
        staging: Option<Region>,
        owed: u64,
    ) -> Self {
        Self {
            qp,
            cq,
            channel,
            peer,
            notify,
            staging,
            staged: 0,
            completions: [Completion::default(); BATCH],
            noticed: 0,
            owed,
            handed: Polled::default(),
            failed: None,
        }
    }

    /// Posts as one chain: the WRITE of each piece of the array to the same place in the peer's,
    /// then `last`. The caller may post the same again when there was no room: nothing that was
    /// not announced is read.
    pub(crate) fn post(
        &mut self,
        pieces: &[(usize, Sge)],
        last: Option<Last>,
    ) -> Result<Posted, RingError> {
        let word = match last {
            Some(Last {
                to: To::Cursor,
                value,
                ..
            }) if !self.notify => value.wrapping_add(self.peer.cursor_start),
            Some(last) => last.value,
            None => 0,
        };
        let staged = match (&last, &self.staging) {
            (Some(_), Some(staging)) => Some(stage(staging, self.staged, word)),
            _ => None,
        };
        let word = word.to_ne_bytes();
        let memory = self.peer.memory;
        let write = |at: usize, signal: Option<Last>| {
            let (offset, sge) = &pieces[at];
            SendWr {
                wr_id: signal.map_or(0, |last| last.wr_id),
                op: SendOp::Write(memory.plus((ARRAY + offset) as u64)),
                payload: Payload::Gather(std::slice::from_ref(sge)),
                flags: signal.map_or(SendFlags::NONE, Last::flags),
            }
        };
        let announce = |last: Last| {
            let op = match last.to {
                To::Cursor if self.notify => SendOp::WriteImm(self.peer.cursor, last.value as u32),
                To::Cursor => SendOp::Write(self.peer.cursor),
                To::Word(offset) => SendOp::Write(memory.plus((ARRAY + offset) as u64)),
                // Not announced: the last piece carries the signal.
                To::Nothing => SendOp::Write(self.peer.cursor),
            };
            let payload = match &staged {
                _ if matches!(op, SendOp::WriteImm(..)) => Payload::Gather(&[]),
                Some(sge) => Payload::Gather(std::slice::from_ref(sge)),
                None => Payload::Inline(&word),
            };
            SendWr {
                wr_id: last.wr_id,
                op,
                payload,
                flags: last.flags(),
            }
        };
        let qp = &mut *self.qp;
        let posted = match (pieces.len(), last) {
            (0, None) => Ok(Posted::Yes),
            (0, Some(last)) => post(qp, &[announce(last)]),
            (1, None) => post(qp, &[write(0, None)]),
            (1, Some(last)) if matches!(last.to, To::Nothing) => post(qp, &[write(0, Some(last))]),
            (1, Some(last)) => post(qp, &[write(0, None), announce(last)]),
            (_, None) => post(qp, &[write(0, None), write(1, None)]),
            (_, Some(last)) => post(qp, &[write(0, None), write(1, None), announce(last)]),
        };
        if posted == Ok(Posted::Yes) && staged.is_some() {
            self.staged = self.staged.wrapping_add(1);
        }
        posted
    }

    /// What [`Wire::post`] does with one piece and the peer's cursor behind it, where the cursor
    /// travels inline by WRITE: the shape of most publications, for which less is written down.
    /// `None` where it travels otherwise.
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
        let memory = self.peer.memory;
        let flags = match signaled {
            true => SendFlags::SIGNALED,
            false => SendFlags::NONE,
        };
        let slots = SendWr {
            wr_id: 0,
            op: SendOp::Write(memory.plus((ARRAY + offset) as u64)),
            payload: Payload::Gather(std::slice::from_ref(&sge)),
            flags: SendFlags::NONE,
        };
        let tail = SendWr {
            wr_id: cursor,
            op: SendOp::Write(self.peer.cursor),
            payload: Payload::Inline(&word),
            flags,
        };
        Some(post(&mut *self.qp, &[slots, tail]))
    }

    /// Takes what has completed. What a failure follows counts: it is found first, the failure by
    /// the next poll.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Polled, RingError> {
        let mut found = Polled::default();
        if self.owed > 0 {
            self.repay()?;
        }
        loop {
            let Some(cq) = &self.cq else {
                found = std::mem::take(&mut self.handed);
                return self.outcome(found);
            };
            let count = cq.poll(&mut self.completions)?;
            for at in 0..count {
                let completion = self.completions[at];
                self.sort(&completion, &mut found)?;
            }
            if count < BATCH {
                return self.outcome(found);
            }
        }
    }

    #[inline(always)]
    fn sort(&mut self, completion: &Completion, found: &mut Polled) -> Result<(), RingError> {
        if completion.status != Status::Success {
            self.failed.get_or_insert(completion.status);
        } else if completion.opcode.is_recv() {
            self.notice(completion.imm, found)?;
        } else {
            found.sent = Some(completion.wr_id);
        }
        Ok(())
    }

    /// A completion that the group's poll found.
    pub(crate) fn hand_over(&mut self, completion: &Completion) -> Result<(), RingError> {
        let mut handed = self.handed;
        let sorted = self.sort(completion, &mut handed);
        self.handed = handed;
        sorted
    }

    #[inline(always)]
    fn outcome(&self, found: Polled) -> Result<Polled, RingError> {
        match self.failed {
            Some(status) if found.sent.is_none() && found.cursor.is_none() => {
                Err(RingError::Completion(status))
            }
            _ => Ok(found),
        }
    }

    /// A cursor came by immediate: its receive is posted again before anything else happens.
    fn notice(&mut self, imm: Option<u32>, found: &mut Polled) -> Result<(), RingError> {
        self.owed += 1;
        self.repay()?;
        let ahead = imm.unwrap_or_default().wrapping_sub(self.noticed as u32);
        // An older value has been overtaken.
        if ahead < 1 << 31 {
            self.noticed = self.noticed.wrapping_add(ahead.into());
            found.cursor = Some(self.noticed);
        }
        Ok(())
    }

    /// Posts the receives that are due, as far as there is room. A cursor that comes before the rest
    /// are posted waits at the peer for them.
    fn repay(&mut self) -> Result<(), RingError> {
        self.owed = Self::post_receives(&mut *self.qp, self.owed)?;
        Ok(())
    }

    /// Posts `count` receives for cursors by immediate. Says for how many there was no room.
    pub(crate) fn post_receives(qp: &mut dyn QueuePair, count: u64) -> Result<u64, RingError> {
        for left in (1..=count).rev() {
            match qp.post_recv(&[RecvWr {
                wr_id: 0,
                sges: &[],
            }]) {
                Ok(()) => {}
                Err(error) if error.kind == PostErrorKind::QueueFull => return Ok(left),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(0)
    }

    /// Whether the queue pair still works.
    pub(crate) fn check(&self) -> Result<(), RingError> {
        match self.qp.state() {
            QpState::Rts => Ok(()),
            state => Err(RingError::QueuePair(state)),
        }
    }

    /// Requests that may be outstanding.
    pub(crate) fn depth(&self) -> u64 {
        self.qp.caps().max_send_wr.into()
    }

    pub(crate) fn is_notify(&self) -> bool {
        self.notify
    }

    pub(crate) fn channel(&self) -> Option<&Arc<dyn CompletionChannel>> {
        self.channel.as_ref()
    }

    /// A group arms for all its rings.
    pub(crate) fn arm(&self) {
        if let Some(cq) = &self.cq {
            cq.arm(false);
        }
    }

    /// What its completions name.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qp.qpn()
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

impl Last {
    #[inline(always)]
    fn flags(self) -> SendFlags {
        if self.signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::NONE
        }
    }
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

/// Puts a cursor where the device can fetch it: a word that no request in flight still needs, because there
/// is one more than requests. It is the next one's too until a request with it is posted: where there
/// was no room for that, all others are in flight.
#[cold]
fn stage(staging: &Region, staged: usize, value: u64) -> Sge {
    let words = staging.len() / 8;
    let offset = staged % words.max(1) * 8;
    crate::slots::store_staged(staging, offset, value);
    staging.sge(offset, 8)
}

#[inline(always)]
fn post(qp: &mut dyn QueuePair, wrs: &[SendWr<'_>]) -> Result<Posted, RingError> {
    match qp.post_send(wrs) {
        Ok(()) => Ok(Posted::Yes),
        Err(error) if error.kind == PostErrorKind::QueueFull => Ok(Posted::NoRoom(error.index)),
        Err(error) => Err(error.into()),
    }
}

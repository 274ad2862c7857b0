//! One end's queue pair, its completions and its memory.

use headworks_ring::RingError;
use headworks_verbs::{
    Completion, CompletionQueue, PostErrorKind, Promises, QpState, QueuePair, RecvWr, RemoteAddr,
    SendWr, Status,
};

use crate::{End, Memory};

/// Completions taken in one poll.
const BATCH: usize = 16;
/// Receives that were used are posted again in chains of so many: a sender has to leave that many and
/// one unused.
pub(super) const RECEIVES: u64 = 32;

/// What an end works with once it is connected.
pub struct Link {
    // The queue pair goes before the memory: a peer then finds nobody, not a key that is refused.
    end: End,
    pub(super) memory: Memory,
    /// The peer's memory.
    pub(super) peer: RemoteAddr,
    completions: [Completion; BATCH],
    failed: Option<Status>,
    /// Receives that the device had no room for when they were due.
    owed: u64,
}

impl Link {
    pub(super) fn new(end: End, memory: Memory, peer: RemoteAddr, owed: u64) -> Self {
        Self {
            end,
            memory,
            peer,
            completions: [Completion::default(); BATCH],
            failed: None,
            owed,
        }
    }

    /// Posts a chain. Says how many of its requests were posted: all, or those that there was room
    /// for.
    #[inline(always)]
    pub(super) fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<usize, RingError> {
        match self.end.queue_pairs[0].post_send(wrs) {
            Ok(()) => Ok(wrs.len()),
            Err(error) if error.kind == PostErrorKind::QueueFull => Ok(error.index),
            Err(error) => Err(error.into()),
        }
    }

    /// Shows the `wr_id` of every send request that completed to `each`. A failed one is an error,
    /// after those that completed before it.
    #[inline]
    pub(super) fn poll_sends(&mut self, each: impl FnMut(u64)) -> Result<(), RingError> {
        let mut each = each;
        let (cq, failed) = (&*self.end.send_cq, &mut self.failed);
        poll(cq, &mut self.completions, failed, |completion| {
            each(completion.wr_id);
        })
    }

    /// Shows the immediate of every receive that completed to `each`, and posts those that were used
    /// again, [`RECEIVES`] at a time.
    #[inline]
    pub(super) fn poll_receives(&mut self, each: impl FnMut(u32)) -> Result<(), RingError> {
        let (mut each, mut used) = (each, 0);
        let (cq, failed) = (&*self.end.recv_cq, &mut self.failed);
        let polled = poll(cq, &mut self.completions, failed, |completion| {
            each(completion.imm.unwrap_or_default());
            used += 1;
        });
        self.owed += used;
        if self.owed >= RECEIVES {
            let qp = &mut *self.end.queue_pairs[0];
            self.owed = post_receives(qp, self.owed)?;
        }
        polled
    }

    /// Whether the queue pair still works.
    pub(super) fn check(&self) -> Result<(), RingError> {
        match self.end.queue_pairs[0].state() {
            QpState::Rts => Ok(()),
            state => Err(RingError::QueuePair(state)),
        }
    }

    /// What the device promises.
    pub(super) fn promises(&self) -> &Promises {
        &self.end.device.info().promises
    }

    /// Requests that may be outstanding.
    pub(super) fn depth(&self) -> u64 {
        self.end.queue_pairs[0].caps().max_send_wr.into()
    }
}

/// Posts `count` receives without memory. Says for how many there was no room: they are owed, and
/// what takes them waits at the peer.
pub(super) fn post_receives(qp: &mut dyn QueuePair, count: u64) -> Result<u64, RingError> {
    let receive = RecvWr {
        wr_id: 0,
        sges: &[],
    };
    let chain = [receive; RECEIVES as usize];
    let mut left = count;
    while left > 0 {
        let next = left.min(RECEIVES);
        match qp.post_recv(&chain[..next as usize]) {
            Ok(()) => left -= next,
            Err(error) if error.kind == PostErrorKind::QueueFull => {
                return Ok(left - error.index as u64);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(0)
}

#[inline(always)]
fn poll(
    cq: &dyn CompletionQueue,
    completions: &mut [Completion; BATCH],
    failed: &mut Option<Status>,
    mut each: impl FnMut(&Completion),
) -> Result<(), RingError> {
    loop {
        let count = cq.poll(completions)?;
        for completion in &completions[..count] {
            match completion.status {
                Status::Success => each(completion),
                status => drop(failed.get_or_insert(status)),
            }
        }
        if count < BATCH {
            return match *failed {
                None => Ok(()),
                Some(status) => Err(RingError::Completion(status)),
            };
        }
    }
}

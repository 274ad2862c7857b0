//! One end's queue pair. An [`Endpoint`] posts chains of send requests, takes completions, posts the
//! receives that the peer's immediates use up, and keeps the first failure. The ring and the designs that
//! it is compared with are built on it.
//!
//! The caller keeps the completion queues: an end of a ring has one, a group one for all its rings, other
//! designs one for sends and one for receives.

mod ring;

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{
    Completion, CompletionQueue, Payload, PostErrorKind, QpState, QueuePair, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr, Sge, Status,
};

use crate::error::RingError;
pub(crate) use ring::{RingEndpoint, Signal, Target, TrailingWrite};

/// Completions taken per poll of the device.
const BATCH: usize = 16;

/// Longest chain in which receives are posted.
pub const RECEIVE_CHAIN: u64 = 32;

/// One end's queue pair, with the receives that it owes and its first failure.
pub struct Endpoint {
    qp: Box<dyn QueuePair>,
    completions: [Completion; BATCH],
    /// Receives still to be posted: immediates used them up, or the device had no room.
    owed: u64,
    /// Receives are posted as soon as this many are owed.
    repost_at: u64,
    /// The status of the first request that failed.
    failed: Option<Status>,
}

/// Result of posting a chain of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainPosted {
    /// All of it was posted.
    All,
    /// The send queue had room for this many requests only; the others were not posted.
    Part(usize),
}

impl Endpoint {
    /// Wraps a queue pair. As soon as `repost_at` receives are owed, they are posted. No receive is posted
    /// yet: see [`Endpoint::owe`].
    pub fn new(qp: Box<dyn QueuePair>, repost_at: u64) -> Self {
        Self {
            qp,
            completions: [Completion::default(); BATCH],
            owed: 0,
            repost_at,
            failed: None,
        }
    }

    /// The queue pair, for bring-up.
    pub fn queue_pair(&mut self) -> &mut dyn QueuePair {
        &mut *self.qp
    }

    /// The queue pair, for queries.
    pub fn qp(&self) -> &dyn QueuePair {
        &*self.qp
    }

    /// Largest number of send requests that may be outstanding.
    pub fn depth(&self) -> u64 {
        self.qp.caps().max_send_wr.into()
    }

    /// Posts a chain of send requests with one doorbell.
    #[inline(always)]
    pub fn post(&mut self, chain: &[SendWr<'_>]) -> Result<ChainPosted, RingError> {
        match self.qp.post_send(chain) {
            Ok(()) => Ok(ChainPosted::All),
            Err(error) if error.kind == PostErrorKind::QueueFull => {
                Ok(ChainPosted::Part(error.index))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes completions from `cq`, where sends and receives of this endpoint complete. Calls `sent` with
    /// the `wr_id` of each send request, and `received` with the immediate of each receive.
    ///
    /// Completions before a failure are returned first: a poll that finds any succeeds, and each later
    /// poll that finds none reports the failure.
    #[inline(always)]
    pub fn poll(
        &mut self,
        cq: &dyn CompletionQueue,
        mut sent: impl FnMut(u64),
        mut received: impl FnMut(u32),
    ) -> Result<(), RingError> {
        let mut used = 0;
        let polled = self.drain(cq, |completion| {
            if completion.opcode.is_recv() {
                used += 1;
                received(completion.imm.unwrap_or_default());
            } else {
                sent(completion.wr_id);
            }
        });
        self.owe(used)?;
        polled
    }

    /// [`Endpoint::poll`] for a queue where only sends complete.
    #[inline(always)]
    pub fn poll_sends(
        &mut self,
        cq: &dyn CompletionQueue,
        mut sent: impl FnMut(u64),
    ) -> Result<(), RingError> {
        self.drain(cq, |completion| sent(completion.wr_id))
    }

    /// [`Endpoint::poll`] for a queue where only receives complete.
    #[inline(always)]
    pub fn poll_receives(
        &mut self,
        cq: &dyn CompletionQueue,
        mut received: impl FnMut(u32),
    ) -> Result<(), RingError> {
        let mut used = 0;
        let polled = self.drain(cq, |completion| {
            used += 1;
            received(completion.imm.unwrap_or_default());
        });
        self.owe(used)?;
        polled
    }

    #[inline(always)]
    fn drain(
        &mut self,
        cq: &dyn CompletionQueue,
        mut each: impl FnMut(&Completion),
    ) -> Result<(), RingError> {
        let mut any = false;
        loop {
            let count = cq.poll(&mut self.completions)?;
            for completion in &self.completions[..count] {
                match completion.status {
                    Status::Success => {
                        any = true;
                        each(completion);
                    }
                    status => drop(self.failed.get_or_insert(status)),
                }
            }
            if count < BATCH {
                return if any { Ok(()) } else { self.failure() };
            }
        }
    }

    /// Takes a completion of this endpoint that another caller polled. Returns false for a failure, which
    /// [`Endpoint::failure`] reports from now on.
    pub fn hand_over(&mut self, completion: &Completion) -> Result<bool, RingError> {
        if completion.status != Status::Success {
            self.failed.get_or_insert(completion.status);
            return Ok(false);
        }
        if completion.opcode.is_recv() {
            self.owe(1)?;
        }
        Ok(true)
    }

    /// Returns an error if a request has failed.
    #[inline(always)]
    pub fn failure(&self) -> Result<(), RingError> {
        match self.failed {
            None => Ok(()),
            Some(status) => Err(RingError::Completion(status)),
        }
    }

    /// Adds `count` receives to those owed, and posts all of them if `repost_at` is reached. If the device
    /// has no room the rest stays owed, and the peer's requests that need it wait at the peer.
    #[inline(always)]
    pub fn owe(&mut self, count: u64) -> Result<(), RingError> {
        self.owed += count;
        match self.owed >= self.repost_at {
            true => self.post_receives(),
            false => Ok(()),
        }
    }

    #[inline(never)]
    fn post_receives(&mut self) -> Result<(), RingError> {
        const RECEIVE: RecvWr<'static> = RecvWr {
            wr_id: 0,
            sges: &[],
        };
        const CHAIN: &[RecvWr<'static>] = &[RECEIVE; RECEIVE_CHAIN as usize];
        while self.owed > 0 {
            let next = self.owed.min(RECEIVE_CHAIN);
            match self.qp.post_recv(&CHAIN[..next as usize]) {
                Ok(()) => self.owed -= next,
                Err(error) if error.kind == PostErrorKind::QueueFull => {
                    self.owed -= error.index as u64;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns an error unless the queue pair still works: it can also stop without a completion.
    pub fn check(&self) -> Result<(), RingError> {
        match self.qp.state() {
            QpState::Rts => Ok(()),
            state => Err(RingError::QueuePair(state)),
        }
    }
}

/// Whether an end of a channel may be used. It may not after its first failure, nor in a forked child of
/// the process that made it.
#[derive(Clone, Copy, Debug)]
pub struct Usability {
    broken: Option<RingError>,
    made: ForkGeneration,
}

impl Usability {
    /// For an end that the calling process makes now.
    pub fn new() -> Self {
        Self {
            broken: None,
            made: ForkGeneration::current(),
        }
    }

    /// Returns whether the end may be used.
    #[inline(always)]
    pub fn is_usable(&self) -> bool {
        self.broken.is_none() && !self.is_foreign()
    }

    /// Returns an error unless the end may be used.
    #[inline(always)]
    pub fn check(&self) -> Result<(), RingError> {
        match self.broken {
            // In a forked child the end's memory is the parent's.
            _ if self.is_foreign() => Err(RingError::Forked),
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Returns whether the calling process is a forked child of the one that made the end.
    #[inline(always)]
    pub fn is_foreign(&self) -> bool {
        self.made.is_foreign()
    }

    /// The first failure, if there was one.
    #[inline(always)]
    pub fn broken(&self) -> Option<RingError> {
        self.broken
    }

    /// Returns whether the end failed because its peer is gone.
    #[inline(always)]
    pub fn is_deserted(&self) -> bool {
        self.broken.is_some_and(|error| error.is_peer_gone())
    }

    /// Records a failure. Returns the first one, which is kept.
    #[cold]
    pub fn fail(&mut self, error: RingError) -> RingError {
        *self.broken.get_or_insert(error)
    }
}

impl Default for Usability {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns an unsignalled WRITE of registered memory.
#[inline(always)]
pub fn write(sge: &Sge, to: RemoteAddr) -> SendWr<'_> {
    SendWr {
        wr_id: 0,
        op: SendOp::Write(to),
        payload: Payload::Gather(std::slice::from_ref(sge)),
        flags: SendFlags::NONE,
    }
}

/// Returns a WRITE of a word that travels inline.
#[inline(always)]
pub fn write_word(word: &[u8; 8], to: RemoteAddr, wr_id: u64, signaled: bool) -> SendWr<'_> {
    SendWr {
        wr_id,
        op: SendOp::Write(to),
        payload: Payload::Inline(word),
        flags: flags(signaled),
    }
}

/// Returns the flags of a signalled or an unsignalled request.
#[inline(always)]
pub const fn flags(signaled: bool) -> SendFlags {
    match signaled {
        true => SendFlags::SIGNALED,
        false => SendFlags::NONE,
    }
}

//! One end of queue pairs that posts requests of one verb, or the receives that they consume, and polls
//! completions.

use headworks::verbs::{
    Completion, CompletionQueue, Payload, QpCaps, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, Status,
};
use headworks_baselines::{End, EndSizes, WordMemory};

use super::{Verb, VerbLoad};
use crate::error::{Result, WorkloadError};

/// Returns the sizes of an end of `queue_pairs` queue pairs that receive nothing.
pub(super) fn shape(queue_pairs: usize, cq_depth: u32) -> EndSizes {
    EndSizes {
        queue_pairs,
        caps: QpCaps {
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth,
        shared_receives: 0,
        channel: false,
    }
}

/// An end that posts requests.
pub(super) struct Requester {
    /// The load. Verb, size, and whether the payload is inline determine each request.
    pub(super) load: VerbLoad,
    pub(super) end: End,
    /// Source of what is sent, or destination of what is read.
    pub(super) memory: WordMemory,
    /// The other end's memory.
    pub(super) target: RemoteAddr,
    /// Payload of inline requests.
    pub(super) bytes: Vec<u8>,
}

impl Requester {
    /// Makes an end that is not connected.
    pub(super) fn new(load: VerbLoad, end: End, memory: WordMemory) -> Self {
        Self {
            load,
            end,
            memory,
            target: RemoteAddr { addr: 0, rkey: 0 },
            bytes: vec![7; load.size],
        }
    }

    /// Posts `N` requests on queue pair `at` with one doorbell. They are numbered from `first`. A request's
    /// number determines its place in both ends' memory, and whether it is signalled.
    #[inline(always)]
    pub(super) fn post<const N: usize>(
        &mut self,
        at: usize,
        first: u64,
        place: impl Fn(u64) -> usize,
        is_signalled: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let verb = self.load.verb;
        // The most common request is distinguished once per call, not once per request.
        if verb == Verb::Write && !self.load.inline {
            return self.write::<N>(at, first, place, is_signalled);
        }
        let op = |number, remote| match verb {
            Verb::Send => SendOp::Send,
            Verb::Write => SendOp::Write(remote),
            Verb::WriteImm => SendOp::WriteImm(remote, number as u32),
            Verb::Read => SendOp::Read(remote),
            Verb::CompareSwap => SendOp::CompareSwap {
                remote,
                expect: 0,
                swap: 0,
            },
            Verb::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
        };
        let is_inline = self.load.inline;
        self.post_as::<N>(at, first, place, is_signalled, op, is_inline)
    }

    /// [`post`](Self::post) for WRITEs from registered memory.
    #[inline(always)]
    pub(super) fn write<const N: usize>(
        &mut self,
        at: usize,
        first: u64,
        place: impl Fn(u64) -> usize,
        is_signalled: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let op = |_, remote| SendOp::Write(remote);
        self.post_as::<N>(at, first, place, is_signalled, op, false)
    }

    /// [`post`](Self::post) for the operation that `op` makes of a number and a place in the other end's
    /// memory.
    #[inline(always)]
    fn post_as<const N: usize>(
        &mut self,
        at: usize,
        first: u64,
        place: impl Fn(u64) -> usize,
        is_signalled: impl Fn(u64) -> bool,
        op: impl Fn(u64, RemoteAddr) -> SendOp,
        is_inline: bool,
    ) -> Result<()> {
        let places: [usize; N] = std::array::from_fn(|index| place(first + index as u64));
        let sges = places.map(|place| [self.sge(place)]);
        let wrs: [SendWr<'_>; N] = std::array::from_fn(|index| {
            let number = first + index as u64;
            SendWr {
                wr_id: number,
                op: op(number, self.target.plus(places[index] as u64)),
                payload: match is_inline {
                    true => Payload::Inline(&self.bytes),
                    false => Payload::Gather(&sges[index]),
                },
                flags: match is_signalled(number) {
                    true => SendFlags::SIGNALED,
                    false => SendFlags::NONE,
                },
            }
        });
        let posted = self.end.queue_pairs[at].post_send(&wrs);
        posted.map_err(|e| WorkloadError::at("posting", e))
    }

    /// Takes completions of requests. A failed completion is an error.
    #[inline]
    pub(super) fn poll<'f>(&self, found: &'f mut [Completion]) -> Result<&'f [Completion]> {
        polled(&*self.end.send_cq, found)
    }

    /// Takes completions of requests, and returns how many there were.
    #[inline]
    pub(super) fn completed(&self) -> Result<usize> {
        let mut found = [Completion::default(); 16];
        Ok(self.poll(&mut found)?.len())
    }

    /// Polls until at least one request has completed.
    pub(super) fn wait(&self) -> Result<()> {
        while self.completed()? == 0 {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Posts receives, at most `N`, to the SRQ, if there is one. Their identifiers determine their places in
    /// memory.
    #[inline(always)]
    pub(super) fn receive<const N: usize>(
        &self,
        ids: &[u64],
        place: impl Fn(u64) -> usize,
    ) -> Result<()> {
        let Some(srq) = &self.end.srq else {
            return Ok(());
        };
        let id = |index| ids.get(index).copied().unwrap_or_default();
        let sges: [_; N] = std::array::from_fn(|index| [self.sge(place(id(index)))]);
        let wrs: [_; N] = std::array::from_fn(|index| RecvWr {
            wr_id: id(index),
            sges: &sges[index],
        });
        let posted = srq.post_recv(&wrs[..ids.len()]);
        posted.map_err(|e| WorkloadError::at("posting receives", e))
    }

    /// Returns the scatter/gather element of a message at `place` in memory.
    #[inline(always)]
    fn sge(&self, place: usize) -> Sge {
        let region = self.memory.region();
        region.sge(place, self.load.size as u32)
    }
}

/// Takes completions. A failed completion is an error.
#[inline]
pub(crate) fn polled<'f>(
    cq: &dyn CompletionQueue,
    found: &'f mut [Completion],
) -> Result<&'f [Completion]> {
    let count = cq
        .poll(found)
        .map_err(|e| WorkloadError::at("polling", e))?;
    let found = &found[..count];
    match found.iter().find(|done| done.status != Status::Success) {
        Some(Completion { wr_id, status, .. }) => {
            Err(WorkloadError(format!("request {wr_id} ended: {status}")))
        }
        None => Ok(found),
    }
}

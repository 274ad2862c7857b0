//! The requests of one queue pair that wait or are in flight, and the completions that its program gets:
//! pure.
//!
//! Waiting requests are encoded in a queue of words, with copies of their gather lists and inline bytes, so
//! that posting them later needs nothing of the program. Posted requests leave a short record, in the order
//! in which they complete. A request that was cut completes once, with its last slice or with the first slice
//! that failed.

use std::collections::VecDeque;

use headworks_verbs::{
    AhKey, Completion, Destination, Opcode, Payload, Qpn, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, Status,
};

use crate::fifo::Fifo;
use crate::monitor::Kind;
use crate::slices::{self, SliceRule};

/// A request, or a slice of one, that the device has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) wr_id: u64,
    /// Time of its doorbell in nanoseconds; 0 if it is not measured.
    pub(crate) doorbell: u64,
    /// Length of the request or slice in bytes.
    pub(crate) bytes: u32,
    /// Bytes of the whole request.
    pub(crate) total: u32,
    pub(crate) opcode: Opcode,
    pub(crate) kind: Kind,
    /// Whether no slice of the same request follows.
    pub(crate) is_last: bool,
    /// Whether the program requested its completion.
    pub(crate) is_signaled: bool,
}

/// A completion for the program, and how many of the program's requests it retires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramCompletion {
    pub(crate) completion: Completion,
    pub(crate) retires: u32,
}

/// The requests of one queue pair. An idle queue pair has no such queue.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    /// Requests that wait, encoded by [`encode`], oldest first.
    waiting: VecDeque<u64>,
    waiting_requests: u32,
    /// Bytes of the first waiting request that are posted as slices.
    cut: u64,
    flying: Fifo<InFlight>,
    /// READs in `flying`.
    reads: u32,
    /// Requests that the program posted and that no completion it took has retired.
    outstanding: u32,
    /// Unsignaled requests that are over since the last signaled one. The next completion retires them.
    quiet: u32,
    /// Whether a slice failed and the program got its completion. The remaining slices of that request yield
    /// none.
    has_told: bool,
}

/// A slice of the first waiting request. `sges` or `bytes` is where its gather entries or its inline bytes
/// lie in the scratch buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedSlice {
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) flying: InFlight,
    pub(crate) sges: (usize, usize),
    pub(crate) bytes: Option<(usize, usize)>,
}

impl RequestQueue {
    /// Number of requests and slices that the device has.
    pub(crate) fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Cost in bytes of what the device has.
    pub(crate) fn cost(&self, overhead: u64) -> u64 {
        let costs = self.flying.iter();
        costs.map(|flying| u64::from(flying.bytes) + overhead).sum()
    }

    pub(crate) fn reads(&self) -> u32 {
        self.reads
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting_requests > 0
    }

    /// Whether nothing waits and nothing is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flying.is_empty() && self.waiting_requests == 0
    }

    /// Empties the queue for the next queue pair that needs one.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.flying.clear();
        (self.waiting_requests, self.cut, self.reads) = (0, 0, 0);
        (self.outstanding, self.quiet, self.has_told) = (0, 0, false);
    }

    /// Records that a request was posted at once and whole.
    #[inline]
    pub(crate) fn fly(&mut self, flying: InFlight) {
        self.outstanding += 1;
        self.take_off(flying);
    }

    /// Records that a planned slice of the first waiting request was posted.
    pub(crate) fn fly_first(&mut self, flying: InFlight) {
        match flying.is_last {
            true => self.pop_first(),
            false => self.cut += u64::from(flying.bytes),
        }
        self.take_off(flying);
    }

    #[inline]
    fn take_off(&mut self, flying: InFlight) {
        self.reads += u32::from(flying.opcode == Opcode::Read);
        self.flying.push(flying);
    }

    /// Queues a request after those that wait.
    pub(crate) fn wait(&mut self, wr: &SendWr<'_>, is_signaled: bool) {
        self.outstanding += 1;
        self.waiting_requests += 1;
        let len = encoded_words(wr);
        if self.waiting.capacity() - self.waiting.len() < len {
            // Reserves for many requests at once; otherwise a few more waiting requests than ever before
            // would reallocate again.
            self.waiting.reserve(AHEAD * len);
        }
        encode(&mut self.waiting, wr, is_signaled);
    }

    /// Bytes of the next slice of the first waiting request. `None` if none waits.
    pub(crate) fn next_len(&self, cut: SliceRule) -> Option<u64> {
        if self.waiting.is_empty() {
            return None;
        }
        let first = decode(&self.waiting, 0);
        let slice = slices::next(&first.op, first.len, !first.is_inline, self.cut, cut);
        Some(slice.len)
    }

    /// Plans the next slice of a waiting request, no longer than `cut` allows, and advances `from` after it.
    /// `from` is after what is planned but not posted. `None` if there is no more.
    pub(crate) fn plan(
        &self,
        from: &mut PlanPosition,
        cut: SliceRule,
        kind: impl Fn(&SendOp) -> Kind,
        scratch: &mut (Vec<Sge>, Vec<u8>),
    ) -> Option<PlannedSlice> {
        if from.word >= self.waiting.len() {
            return None;
        }
        let done = if from.word == 0 && from.cut == 0 {
            self.cut
        } else {
            from.cut
        };
        let request = decode(&self.waiting, from.word);
        let slice = slices::next(&request.op, request.len, !request.is_inline, done, cut);
        let (sges, bytes) = (scratch.0.len(), scratch.1.len());
        let inline = match request.is_inline {
            true => {
                request.read_bytes(&self.waiting, &mut scratch.1);
                Some((bytes, scratch.1.len()))
            }
            false => {
                let all = request.sges(&self.waiting);
                slices::gather(all, done, slice.len, slice.is_whole, &mut scratch.0);
                None
            }
        };
        (from.word, from.cut) = match slice.is_last {
            true => (from.word + request.words, 0),
            false => (from.word, done + slice.len),
        };
        let mut flags = SendFlags::SIGNALED;
        if request.flags.contains(SendFlags::FENCE) && done == 0 {
            flags |= SendFlags::FENCE;
        }
        if request.flags.contains(SendFlags::SOLICITED) && slice.is_last {
            flags |= SendFlags::SOLICITED;
        }
        let flying = InFlight {
            wr_id: request.wr_id,
            doorbell: 0,
            bytes: slice.len as u32,
            total: request.len as u32,
            opcode: opcode(&request.op),
            kind: kind(&request.op),
            is_last: slice.is_last,
            is_signaled: request.is_signaled,
        };
        Some(PlannedSlice {
            op: slice.op,
            flags,
            flying,
            sges: (sges, scratch.0.len()),
            bytes: inline,
        })
    }

    fn pop_first(&mut self) {
        let words = decode(&self.waiting, 0).words;
        self.waiting.drain(..words);
        self.waiting_requests -= 1;
        self.cut = 0;
    }

    /// Records the completion of the oldest request that the device has, for the usual case: a success, of a
    /// whole request. Returns the request and whether it completes for the program, which then counts as
    /// retired. In other cases it returns `None` and does nothing.
    #[inline]
    pub(crate) fn land_plainly(&mut self) -> Option<(InFlight, bool)> {
        let flying = *self.flying.first()?;
        if flying.bytes != flying.total || self.has_told {
            return None;
        }
        self.flying.pop();
        self.reads -= u32::from(flying.opcode == Opcode::Read);
        self.quiet += 1;
        if flying.is_signaled {
            self.outstanding -= std::mem::take(&mut self.quiet);
        }
        Some((flying, flying.is_signaled))
    }

    /// Records the completion of the oldest request or slice that the device has. Returns it, and the
    /// completion for the program if there is one.
    #[inline]
    pub(crate) fn land(
        &mut self,
        inner: &Completion,
    ) -> Option<(InFlight, Option<ProgramCompletion>)> {
        let flying = self.flying.pop()?;
        self.reads -= u32::from(flying.opcode == Opcode::Read);
        let has_failed = inner.status != Status::Success;
        if self.has_told {
            self.has_told = !flying.is_last;
            return Some((flying, None));
        }
        if !has_failed && !flying.is_last {
            return Some((flying, None));
        }
        self.has_told = !flying.is_last;
        if !has_failed && !flying.is_signaled {
            self.quiet += 1;
            return Some((flying, None));
        }
        let completion = Completion {
            wr_id: flying.wr_id,
            opcode: flying.opcode,
            byte_len: match flying.opcode {
                Opcode::Read if !has_failed => flying.total,
                _ => inner.byte_len,
            },
            ..*inner
        };
        Some((flying, Some(self.tell(completion))))
    }

    /// Flushes the first waiting request after a failure, once the device has nothing left. `None` if none
    /// waits.
    pub(crate) fn flush(&mut self, qpn: Qpn) -> Option<ProgramCompletion> {
        loop {
            if self.waiting_requests == 0 || !self.flying.is_empty() {
                return None;
            }
            let request = decode(&self.waiting, 0);
            let was_told = std::mem::take(&mut self.has_told);
            self.pop_first();
            if was_told {
                continue;
            }
            let completion = Completion {
                wr_id: request.wr_id,
                status: Status::Flushed,
                opcode: opcode(&request.op),
                qpn,
                ..Completion::default()
            };
            return Some(self.tell(completion));
        }
    }

    fn tell(&mut self, completion: Completion) -> ProgramCompletion {
        let retires = std::mem::take(&mut self.quiet) + 1;
        ProgramCompletion {
            completion,
            retires,
        }
    }

    /// Records that the program took a completion that retires `count` requests.
    #[inline]
    pub(crate) fn retire(&mut self, count: u32) {
        self.outstanding = self.outstanding.saturating_sub(count);
    }

    /// Requests outstanding, waiting and in flight.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (u32, u32, usize) {
        (self.outstanding, self.waiting_requests, self.flying.len())
    }
}

/// Position of the planning, which runs ahead of the posts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlanPosition {
    word: usize,
    cut: u64,
}

/// Opcode of a request's completion.
pub(crate) fn opcode(op: &SendOp) -> Opcode {
    match op {
        SendOp::Write(_) | SendOp::WriteImm(..) => Opcode::Write,
        SendOp::Read(_) => Opcode::Read,
        SendOp::CompareSwap { .. } => Opcode::CompareSwap,
        SendOp::FetchAdd { .. } => Opcode::FetchAdd,
        _ => Opcode::Send,
    }
}

/// A waiting request without its payload.
struct WaitingRequest {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    is_signaled: bool,
    is_inline: bool,
    len: u64,
    /// Words of the whole encoded request; `payload` is the index of the first word of its payload.
    words: usize,
    payload: usize,
}

impl WaitingRequest {
    fn sges<'a>(&self, words: &'a VecDeque<u64>) -> impl Iterator<Item = Sge> + use<'a> {
        let (first, count) = (self.payload, (self.words - HEAD) / 2);
        (0..count).map(move |at| {
            let second = words[first + 2 * at + 1];
            Sge {
                addr: words[first + 2 * at],
                len: second as u32,
                lkey: (second >> 32) as u32,
            }
        })
    }

    fn read_bytes(&self, words: &VecDeque<u64>, into: &mut Vec<u8>) {
        let end = into.len() + self.len as usize;
        for at in 0..(self.len as usize).div_ceil(8) {
            into.extend(words[self.payload + at].to_le_bytes());
        }
        into.truncate(end);
    }
}

/// Words before the payload: the `wr_id`, flags and code, length, and three words of the operation.
const HEAD: usize = 6;

const SIGNALED: u64 = 1 << 16;
const INLINE: u64 = 1 << 17;

/// Number of requests to reserve room for when the queue must grow.
const AHEAD: usize = 128;

/// Number of words that a request takes.
fn encoded_words(wr: &SendWr<'_>) -> usize {
    let payload = match wr.payload {
        Payload::Gather(sges) => 2 * sges.len(),
        Payload::Inline(bytes) => bytes.len().div_ceil(8),
    };
    HEAD + payload
}

fn encode(words: &mut VecDeque<u64>, wr: &SendWr<'_>, is_signaled: bool) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let to = |d: Destination| (pair(d.ah.0, d.qpn.raw()), u64::from(d.qkey));
    let (code, [a, b, c]) = match wr.op {
        SendOp::Send => (0, [0; 3]),
        SendOp::SendImm(imm) => (1, [imm.into(), 0, 0]),
        SendOp::SendTo(d) => (2, [to(d).0, to(d).1, 0]),
        SendOp::SendToImm(d, imm) => (3, [to(d).0, to(d).1, imm.into()]),
        SendOp::Write(r) => (4, [r.addr, r.rkey.into(), 0]),
        SendOp::WriteImm(r, imm) => (5, [r.addr, pair(r.rkey, imm), 0]),
        SendOp::Read(r) => (6, [r.addr, r.rkey.into(), 0]),
        SendOp::CompareSwap {
            remote,
            expect,
            swap,
        } => {
            // The rkey is in the upper half of the word of flags and code.
            (
                7 | u64::from(remote.rkey) << 32,
                [remote.addr, expect, swap],
            )
        }
        SendOp::FetchAdd { remote, add } => {
            (8 | u64::from(remote.rkey) << 32, [remote.addr, add, 0])
        }
        // Unknown operations are refused before this.
        _ => (0, [0; 3]),
    };
    let mut small = code | u64::from(wr.flags.bits()) << 8;
    if is_signaled {
        small |= SIGNALED;
    }
    if matches!(wr.payload, Payload::Inline(_)) {
        small |= INLINE;
    }
    let all = encoded_words(wr) as u64;
    words.extend([wr.wr_id, small, wr.payload.len() | all << 40, a, b, c]);
    match wr.payload {
        Payload::Gather(sges) => {
            for sge in sges {
                words.extend([sge.addr, pair(sge.len, sge.lkey)]);
            }
        }
        Payload::Inline(bytes) => {
            for chunk in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                words.push_back(u64::from_le_bytes(word));
            }
        }
    }
}

fn decode(words: &VecDeque<u64>, at: usize) -> WaitingRequest {
    let word = |offset: usize| words[at + offset];
    let (small, lengths, [a, b, c]) = (word(1), word(2), [word(3), word(4), word(5)]);
    let high = |word: u64| (word >> 32) as u32;
    let to = || Destination {
        ah: AhKey(a as u32),
        qpn: Qpn::new(high(a)).unwrap_or_default(),
        qkey: b as u32,
    };
    let remote = |rkey| RemoteAddr { addr: a, rkey };
    let op = match small & 0xff {
        1 => SendOp::SendImm(a as u32),
        2 => SendOp::SendTo(to()),
        3 => SendOp::SendToImm(to(), c as u32),
        4 => SendOp::Write(remote(b as u32)),
        5 => SendOp::WriteImm(remote(b as u32), high(b)),
        6 => SendOp::Read(remote(b as u32)),
        7 => SendOp::CompareSwap {
            remote: remote(high(small)),
            expect: b,
            swap: c,
        },
        8 => SendOp::FetchAdd {
            remote: remote(high(small)),
            add: b,
        },
        _ => SendOp::Send,
    };
    WaitingRequest {
        wr_id: word(0),
        op,
        flags: SendFlags::from_bits_truncate((small >> 8) as u8),
        is_signaled: small & SIGNALED != 0,
        is_inline: small & INLINE != 0,
        len: lengths & ((1 << 40) - 1),
        words: (lengths >> 40) as usize,
        payload: at + HEAD,
    }
}

#[cfg(test)]
mod tests;

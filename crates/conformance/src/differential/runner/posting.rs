//! Steps that post receives and requests.

use headworks_verbs::{GRH_BYTES, QpState, QpType};

use super::expected_failure::ExpectedFailure;
use super::slices::{ResolvedSlice, SliceUse};
use super::{ProgramRunner, QKEY};
use crate::buffer_access;
use crate::call::{Call, Data, Op, Peer, Piece, Receive, Send};
use crate::differential::observation::{CallOutcome, Span, StepObservation, WorkFate};
use crate::differential::outstanding::SentRequest;
use crate::differential::program::{self, LocalData, Request, Slice, SliceFault};

/// Request that is ready to be posted.
struct PreparedRequest {
    send: Send,
    /// Memory that it writes: local for READs and atomics, remote for the others.
    spans: Vec<Span>,
    /// Bytes that it fetches. Without a fence, later requests may start before the fetched bytes arrive.
    brought: Option<FetchedBytes>,
    /// It is an unreliable message that takes a receive.
    is_received: bool,
    len: usize,
    /// Number of its possible faults.
    wrongs: usize,
    /// Failure that its faults lead to.
    cause: ExpectedFailure,
}

/// Bytes that a READ or an atomic fetches.
#[derive(Clone, Copy)]
struct FetchedBytes {
    from: Span,
    /// The request fails, and later requests may have been executed by then.
    fails: bool,
}

impl ProgramRunner<'_, '_> {
    pub(super) fn receive(
        &mut self,
        (line, end): (usize, usize),
        chain: &[Vec<Slice>],
        astray: bool,
        seen: &mut StepObservation,
    ) -> Result<CallOutcome, String> {
        let side = self.lines[line][end].side;
        let is_gone = self.lines[line][end].is_gone;
        let queue = match side.srq {
            Some(srq) if !astray => srq,
            _ if is_gone => return Ok(CallOutcome::Nothing),
            _ => side.qp,
        };
        let outstanding = &self.lines[line][end];
        if outstanding.state == QpState::Error && !self.receives_in_error && side.srq.is_none() {
            return Ok(CallOutcome::Nothing);
        }
        let room = super::DEPTH as usize - outstanding.outstanding.receives.len();
        let room = room.saturating_sub(outstanding.shared.len());
        let chain = &chain[..chain.len().min(room)];
        let mut receives = Vec::new();
        for slices in chain {
            let wr_id = self.number();
            let target =
                |slice: &Slice| self.target(end, slice, usize::from(slice.len), SliceUse::Sink);
            let targets: Vec<_> = slices.iter().map(target).collect();
            let pieces: Vec<_> = targets.iter().map(|target| self.piece(target)).collect();
            let spans = targets.iter().map(ResolvedSlice::span).collect();
            // An entry of length 0 is not accessed, so its fault does not limit the receive.
            let bars = |target: &ResolvedSlice| target.is_bad && target.len > 0;
            let barred = targets.iter().position(bars);
            let before = |at: usize| {
                let before = targets[..at].iter().map(|target| target.len).sum::<usize>();
                before + targets[at].good
            };
            if let Some(at) = barred {
                self.reach.insert(wr_id, before(at));
            }
            let is_bad = |target: &ResolvedSlice| target.is_bad;
            if let Some(at) = barred.or_else(|| targets.iter().position(is_bad)) {
                self.faulty_receives.insert(wr_id, before(at));
            }
            self.scattered.insert(wr_id, spans);
            self.places.insert(wr_id, (line, end));
            receives.push(Receive::new(wr_id, &pieces));
        }
        let numbers: Vec<_> = receives.iter().map(|receive| receive.wr_id).collect();
        let chain = receives;
        let outcome = self.try_call(end, Call::PostRecv { queue, chain });
        let posted = posted(&outcome, &numbers, seen);
        let tail = &mut self.lines[line][end];
        match tail.side.srq {
            Some(_) => tail.shared.extend(&numbers[..posted]),
            None => tail.outstanding.receives.extend(&numbers[..posted]),
        }
        Ok(outcome)
    }

    pub(super) fn send(
        &mut self,
        (line, end): (usize, usize),
        chain: &[Request],
        seen: &mut StepObservation,
    ) -> Result<CallOutcome, String> {
        if self.lines[line][end].is_gone {
            return Ok(CallOutcome::Nothing);
        }
        let mut ready: Vec<PreparedRequest> = Vec::new();
        let peer = &self.lines[line][1 - end];
        let mut receives = peer.outstanding.receives.len() + peer.shared.len();
        for request in chain {
            let mut next = self.request(line, end, request);
            if request.op.takes_receive() {
                // A device looks for a receive before it checks the memory, or after.
                next.wrongs += usize::from(receives == 0 && next.cause.refuses);
                receives = receives.saturating_sub(1);
            }
            if next.wrongs > 1 {
                seen.several_faults.insert(next.send.wr_id);
            }
            ready.push(next);
        }
        let qp_type = self.lines[line][end].options.qp_type;
        let is_reliable = qp_type.is_reliable();
        if !is_reliable {
            ready.truncate(self.messages_that_fit(line, end, &ready));
            if qp_type == QpType::Uc {
                ready.truncate(writes_that_are_awaited(&ready, chain));
            }
            if ready.is_empty() {
                return Ok(CallOutcome::Nothing);
            }
        }
        fence(&mut ready);
        // Requests posted after the last signalled one could still be in flight in the next step. So the last
        // request is signalled. On UC and UD, and in a chain that may be refused in the middle, all requests are.
        let all = !is_reliable || chain.iter().any(Request::is_refusable);
        for request in &mut ready {
            request.send.signaled |= all;
        }
        if let Some(last) = ready.last_mut() {
            last.send.signaled = true;
        }
        let numbers: Vec<_> = ready.iter().map(|request| request.send.wr_id).collect();
        let receiver = &self.lines[line][1 - end];
        let sent = |request: &PreparedRequest| SentRequest {
            wr_id: request.send.wr_id,
            is_signaled: request.send.signaled || self.lines[line][end].options.signal_all,
            arrives: match is_reliable {
                true => matches!(
                    request.send.op,
                    Op::Send | Op::SendImm(_) | Op::WriteImm(..)
                ),
                false => request.is_received && receiver.state.can_receive(),
            },
            imm: match request.send.op {
                Op::SendImm(imm) | Op::WriteImm(_, imm) => Some(imm),
                _ => None,
            },
            // An unreliable message that fails was not sent.
            fills: is_reliable && matches!(request.send.op, Op::Send | Op::SendImm(_)),
            is_fenced: request.send.fence,
            is_fetch: request.brought.is_some(),
            is_wrong_here: request.cause.here && request.brought.is_none(),
        };
        let sent: Vec<_> = ready.iter().map(sent).collect();
        for request in &ready {
            self.named.insert(request.send.wr_id, request.spans.clone());
            self.places.insert(request.send.wr_id, (line, end));
            self.causes.insert(request.send.wr_id, request.cause);
            if let Some(brought) = request.brought {
                self.fetched.insert(request.send.wr_id, brought.from);
            }
        }
        let qp = self.lines[line][end].side.qp;
        let chain = ready.into_iter().map(|request| request.send).collect();
        let outcome = self.try_call(end, Call::PostSend { qp, chain });
        let posted = posted(&outcome, &numbers, seen);
        let account = &mut self.lines[line][end].outstanding;
        account.sends.extend(&sent[..posted]);
        Ok(outcome)
    }

    /// Returns how many of these unreliable messages can be sent without a race. A message that finds no receive, or
    /// one that is too short, is lost now, but would not be lost in the next step.
    fn messages_that_fit(&self, line: usize, end: usize, ready: &[PreparedRequest]) -> usize {
        let receiver = &self.lines[line][1 - end];
        if receiver.is_gone {
            return ready.len();
        }
        if !receiver.state.can_receive() {
            return 0;
        }
        let waiting = match receiver.side.srq {
            Some(_) => receiver.shared.clone(),
            None => receiver.outstanding.receives.iter().copied().collect(),
        };
        let len = |wr_id: &u64| -> usize {
            let spans = &self.scattered[wr_id];
            spans.iter().map(|span| span.to - span.from).sum()
        };
        let mut rooms = waiting.iter().map(len);
        let fits = |request: &&PreparedRequest| {
            !request.is_received
                || rooms
                    .next()
                    .is_some_and(|room| room >= request.room_needed())
        };
        ready.iter().take_while(fits).count()
    }

    fn request(&mut self, line: usize, end: usize, request: &Request) -> PreparedRequest {
        let wr_id = self.number();
        let tail = &self.lines[line][end];
        let use_ = match request.op.brings() {
            true => SliceUse::Sink,
            false => SliceUse::Source,
        };
        let target = |slice: &Slice| self.target(end, slice, usize::from(slice.len), use_);
        let mut here = Vec::new();
        let (data, len) = match &request.local {
            LocalData::Gather(slices) => {
                here.extend(slices.iter().map(target));
                let pieces: Vec<Piece> = here.iter().map(|target| self.piece(target)).collect();
                let len = slices.iter().map(|slice| usize::from(slice.len)).sum();
                (Data::Gather(pieces), len)
            }
            LocalData::TooMany(slice) => {
                here.push(target(slice));
                let many = tail.side.caps.max_send_sge as usize + 1;
                let pieces = vec![self.piece(&here[0]); many];
                (Data::Gather(pieces), usize::from(slice.len))
            }
            LocalData::Inline(len) => {
                let len = usize::from(*len);
                (Data::Inline(buffer_access::pattern(wr_id, len)), len)
            }
            LocalData::InlineTooLong => {
                let len = tail.side.caps.max_inline as usize + 1;
                (Data::Inline(buffer_access::pattern(wr_id, len)), len)
            }
        };
        let word = request.op.is_atomic();
        let (peer_len, peer_use) = if word {
            (8, SliceUse::Word)
        } else {
            (len, SliceUse::Peer)
        };
        let there = self.target(1 - end, &request.remote, peer_len, peer_use);
        let op = self.op(line, end, request, &there);
        let need = request.op.needs();
        let is_barred = !self.lines[line][1 - end].options.access.contains(need);
        let there_fails =
            is_barred || request.remote.wrong != SliceFault::Not || !self.lets(&there, need);
        let here_fails = here.iter().any(|target| target.is_bad);
        let has_bytes = |target: &ResolvedSlice| target.is_bad && target.len > 0;
        let misshaped = word && request.remote.wrong != SliceFault::Not;
        let remotely = request.op.names_memory();
        let there_is_bad = remotely && (there.is_bad || !self.lets(&there, need));
        let aside = word && request.remote.wrong == SliceFault::Aside;
        let refuses = there_is_bad || remotely && is_barred || aside;
        let is_unreliable = tail.options.qp_type == QpType::Uc;
        let cause = match is_unreliable {
            // A message that the responder refuses is lost.
            true => ExpectedFailure {
                here: here_fails,
                must_fail: here.iter().any(has_bytes),
                ..ExpectedFailure::default()
            },
            false => ExpectedFailure {
                here: here_fails,
                there: there_is_bad,
                form: request.op.takes_receive() && !remotely || misshaped || remotely && is_barred,
                refuses,
                must_fail: here.iter().any(has_bytes) || refuses && peer_len > 0,
            },
        };
        // A refused WRITE with immediate may have taken a receive or not.
        let op = match op {
            Op::WriteImm(_, imm) if is_unreliable && refuses => Op::SendImm(imm),
            op => op,
        };
        let peer = &self.lines[line][1 - end];
        let is_reliable = tail.options.qp_type.is_reliable();
        let is_silent = is_reliable && (peer.is_gone || !peer.state.can_receive());
        let mut wrongs = usize::from(here_fails) + usize::from(is_silent);
        if request.op.names_memory() && there_fails && !is_unreliable {
            wrongs += 1 + usize::from(is_barred);
        }
        let mut spans = Vec::new();
        if request.op.brings() {
            spans.extend(here.iter().map(ResolvedSlice::span));
        }
        if request.op.names_memory() && request.op != program::Op::Read {
            spans.push(there.span());
        }
        PreparedRequest {
            send: Send {
                wr_id,
                op,
                data,
                signaled: request.signaled,
                fence: request.fence,
                solicited: false,
            },
            spans,
            brought: request.op.brings().then(|| FetchedBytes {
                from: there.span(),
                fails: here_fails || there_fails,
            }),
            is_received: match request.op {
                program::Op::SendTo { good_qkey, .. } => good_qkey,
                op => is_unreliable && op.takes_receive(),
            },
            len,
            wrongs,
            cause,
        }
    }

    fn op(&self, line: usize, end: usize, request: &Request, there: &ResolvedSlice) -> Op {
        let remote = self.remote(there);
        match request.op {
            program::Op::Send => Op::Send,
            program::Op::SendImm(imm) => Op::SendImm(imm),
            program::Op::Write => Op::Write(remote),
            program::Op::WriteImm(imm) => Op::WriteImm(remote, imm),
            program::Op::Read => Op::Read(remote),
            program::Op::CompareSwap { expect, swap } => Op::CompareSwap {
                remote,
                expect,
                swap,
            },
            program::Op::FetchAdd { add } => Op::FetchAdd { remote, add },
            program::Op::SendTo { imm, good_qkey } => {
                let peer = self.lines[line][1 - end].side;
                match self.lines[line][end].ah {
                    Some(ah) => Op::SendTo {
                        ah,
                        peer: Peer::Of {
                            host: peer.host.id,
                            qp: peer.qp,
                        },
                        qkey: if good_qkey { QKEY } else { QKEY ^ 1 },
                        imm,
                    },
                    // A connection has no datagrams.
                    None => Op::Send,
                }
            }
        }
    }
}

impl PreparedRequest {
    /// Returns how many bytes a receive must have for it.
    fn room_needed(&self) -> usize {
        match self.send.op {
            Op::SendTo { .. } => self.len + GRH_BYTES,
            Op::WriteImm(..) => 0,
            _ => self.len,
        }
    }
}

/// Returns how many of these unreliable messages can be sent without a race. Nothing tells when a WRITE was placed, except a
/// message behind it that completes a receive.
fn writes_that_are_awaited(ready: &[PreparedRequest], chain: &[Request]) -> usize {
    let mut awaited = 0;
    for (at, (request, asked)) in ready.iter().zip(chain).enumerate() {
        match request.send.op {
            // One that may be refused, or fail here: what is behind it may not be sent.
            _ if request.cause.here || asked.is_refusable() || asked.op.is_atomic() => {
                return if awaited == at { at + 1 } else { awaited };
            }
            Op::Write(_) => {}
            _ if request.is_received => awaited = at + 1,
            _ if awaited == at => awaited = at + 1,
            _ => {}
        }
    }
    awaited
}

/// Fences requests that the specification allows to overtake an earlier READ or atomic, where that would
/// show: such a request may write what the READ reads, or may have been executed when the READ fails.
fn fence(ready: &mut [PreparedRequest]) {
    let mut open: Vec<FetchedBytes> = Vec::new();
    for request in ready {
        let writes = |brought: &FetchedBytes| match request.send.op {
            Op::Read(_) => false,
            // It writes into a receive, whose memory is not known here.
            Op::Send | Op::SendImm(_) | Op::SendTo { .. } => true,
            _ => request
                .spans
                .iter()
                .any(|span| span.overlaps(&brought.from)),
        };
        if open.iter().any(|brought| brought.fails || writes(brought)) {
            request.send.fence = true;
        }
        if request.send.fence {
            open.clear();
        }
        open.extend(request.brought);
    }
}

/// Returns how many requests of a chain were posted, given the outcome of the post. Records the fates of the
/// others.
fn posted(outcome: &CallOutcome, numbers: &[u64], seen: &mut StepObservation) -> usize {
    let CallOutcome::Refused { kind, index } = outcome else {
        return numbers.len();
    };
    let posted = index.unwrap_or(0).min(numbers.len());
    for (at, wr_id) in numbers.iter().enumerate().skip(posted) {
        let fate = match at == posted {
            true => WorkFate::Refused(kind.clone()),
            false => WorkFate::NotPosted,
        };
        seen.fates.insert(*wr_id, fate);
    }
    posted
}

//! Executes one request: look up, check, copy. Runs in the posting thread, or in the thread that
//! executes waiting requests.

use headworks_verbs::{
    Access, Opcode, Payload, PostErrorKind, QpCaps, QpType, RnrTimer, SendFlags, SendOp, SendWr,
    Sge, Status,
};

use headworks_shm::asymmetric_fence;

use super::datagram::Datagrams;
use super::deliver::ReceiveClaim;
use super::write_path::PeerLink;
use super::{INLINE_MAX, QpCore, RemoteQp, is_inline, opcode_of};
use crate::crash_points;
use crate::datapath::bounce::{BounceBuffer, BounceCall, CallKind};
use crate::datapath::copy::{Span, copy_span};
use crate::datapath::mr_key_check::MrKeyCheck;
use crate::datapath::remote_memory::RemoteSpan;
use crate::hostile::Scatter;
use crate::table::limits::MAX_MESSAGE;
use crate::table::rows::{MAX_SGE, QpLife, count};

mod bounce_call;
mod operations;

use operations::{Operation, refused};

/// Executes the requests of one queue pair. Its only state is cached look-ups and the bounce buffer.
#[derive(Default)]
pub(crate) struct Engine {
    pub(super) remote_qp: PeerLink,
    pub(super) local: MrKeyCheck,
    pub(super) remote: MrKeyCheck,
    extra: Option<Box<Extra>>,
}

/// State that few queue pairs need. The engine makes it at first use.
enum Extra {
    /// The bounce buffer for requests that only the peer can execute.
    BounceBuffer(BounceBuffer),
    /// The datagram paths of a UD queue pair.
    Datagrams(Datagrams),
}

/// How an execution step ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request is done.
    Done,
    /// The budget ran out; execute again.
    More,
    /// RNR: the peer has no receive posted. Holds how long it asks us to wait.
    NoReceive(RnrTimer),
    /// The peer's queue pair does not answer.
    NotReady,
    /// Only the peer can do this: [ask](Engine::ask) it.
    Ask(BounceCall),
    /// The peer was asked and has not answered yet.
    Called,
    /// The request ended with this error.
    Failed(Status),
}

impl Outcome {
    /// Returns what the initiator of an unreliable connection (UC) sees: a message that the responder does not take is lost, and
    /// its request is done.
    fn of_unreliable(self) -> Self {
        match self {
            Self::NoReceive(_) | Self::NotReady => Self::Done,
            Self::Failed(
                Status::RemoteInvalidRequest
                | Status::RemoteAccess
                | Status::RemoteOperation
                | Status::RetryExceeded,
            ) => Self::Done,
            other => other,
        }
    }
}

/// How far a request has been executed.
#[derive(Default)]
pub(crate) struct RequestProgress {
    pub(crate) done: u64,
    pub(crate) claim: Option<ReceiveClaim>,
    /// The call to the peer that is not answered yet.
    pub(crate) called: Option<BounceCall>,
    /// The generation of the connection on which the request was begun.
    connection: u64,
    /// The order in which bytes are placed, if not from first to last.
    pub(crate) scatter: Option<Box<Scatter>>,
    /// The bytes are written with non-temporal stores, past the caches.
    streams: bool,
    /// Requests before this one have not ended, so it must not fail yet.
    pub(crate) ahead: bool,
    /// The request is a datagram, or a message of an unreliable connection, that is to be lost.
    pub(crate) lost: bool,
}

/// Where a short request takes its bytes from.
#[derive(Clone, Copy)]
pub(crate) enum WriteSource {
    /// The bytes themselves.
    Inline(Span),
    /// One piece of registered memory.
    Registered(Sge),
}

impl WriteSource {
    /// Returns the source of a request that is short, of one piece, and legal to post.
    #[inline(always)]
    pub(crate) fn short(wr: &SendWr<'_>, caps: &QpCaps) -> Option<Self> {
        match wr.payload {
            Payload::Inline(bytes) if bytes.len() <= caps.max_inline as usize => {
                Some(Self::Inline(Span::of_inline(bytes)))
            }
            Payload::Gather(&[sge]) if sge.len as usize <= INLINE_MAX && caps.max_send_sge > 0 => {
                Some(Self::Registered(sge))
            }
            _ => None,
        }
    }
}

/// A request that passed the checks of posting.
pub(crate) struct Request<'a> {
    pub(crate) op: SendOp,
    pub(crate) payload: Payload<'a>,
    pub(crate) solicited: bool,
    pub(crate) len: u64,
}

impl<'a> Request<'a> {
    /// Checks what a NIC's driver checks at posting.
    #[inline(always)]
    pub(crate) fn check(
        wr: &SendWr<'a>,
        caps: &QpCaps,
        qp_type: QpType,
        may_read: bool,
    ) -> Result<Self, PostErrorKind> {
        let len = match wr.payload {
            Payload::Inline(bytes) => {
                if bytes.len() > caps.max_inline as usize {
                    return Err(PostErrorKind::InlineTooLong(caps.max_inline));
                }
                bytes.len() as u64
            }
            Payload::Gather([sge]) if caps.max_send_sge > 0 => u64::from(sge.len),
            Payload::Gather(sges) => {
                if sges.len() > caps.max_send_sge as usize {
                    return Err(PostErrorKind::TooManySges(caps.max_send_sge));
                }
                wr.payload.len()
            }
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(PostErrorKind::MessageTooLong(MAX_MESSAGE));
        }
        let is_datagrams = qp_type == QpType::Ud;
        let legal = match wr.op {
            SendOp::SendTo(_) | SendOp::SendToImm(..) => is_datagrams,
            // UD queue pairs send datagrams only, and every datagram needs a destination.
            _ if is_datagrams => false,
            SendOp::Read(_) => may_read && !is_inline(&wr.payload),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                may_read && !is_inline(&wr.payload) && len == 8
            }
            _ => true,
        };
        if !legal {
            return Err(PostErrorKind::Operation);
        }
        let solicited = wr.flags.contains(headworks_verbs::SendFlags::SOLICITED);
        Ok(Self {
            op: wr.op,
            payload: wr.payload,
            solicited,
            len,
        })
    }

    pub(crate) fn opcode(&self) -> Opcode {
        opcode_of(&self.op)
    }

    /// Returns the completion's `byte_len`: the bytes read, 0 for requests that do not read.
    pub(crate) fn byte_len(&self) -> u32 {
        match self.op {
            SendOp::Read(_) => self.len as u32,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 8,
            _ => 0,
        }
    }
}

/// Chooses the `wr_id` of each completion: its own, or one for the whole chain.
pub(crate) trait WrIds: Copy {
    /// Returns the `wr_id` of the completion of `wr`.
    fn of(self, wr: &SendWr<'_>) -> u64;

    /// Returns a work request with that `wr_id`: `wr` itself, or a modified copy stored in `copy`.
    fn write<'a, 'b>(self, wr: &'a SendWr<'b>, copy: &'a mut Option<SendWr<'b>>) -> &'a SendWr<'b>;
}

/// Each completion has the `wr_id` of its own work request.
#[derive(Clone, Copy)]
pub(crate) struct OwnWrIds;

impl WrIds for OwnWrIds {
    #[inline(always)]
    fn of(self, wr: &SendWr<'_>) -> u64 {
        wr.wr_id
    }

    #[inline(always)]
    fn write<'a, 'b>(self, wr: &'a SendWr<'b>, _: &'a mut Option<SendWr<'b>>) -> &'a SendWr<'b> {
        wr
    }
}

/// All completions have this `wr_id`.
#[derive(Clone, Copy)]
pub(crate) struct SameWrId(pub(crate) u64);

impl WrIds for SameWrId {
    #[inline(always)]
    fn of(self, _: &SendWr<'_>) -> u64 {
        self.0
    }

    #[inline(always)]
    fn write<'a, 'b>(self, wr: &'a SendWr<'b>, copy: &'a mut Option<SendWr<'b>>) -> &'a SendWr<'b> {
        copy.insert(SendWr {
            wr_id: self.0,
            ..*wr
        })
    }
}

impl Engine {
    /// Returns whether this process's kernel or the peer's refuses asymmetric fences. `false` until the peer's queue pair is
    /// cached: use [`asymmetric_fence::light`] then.
    #[inline(always)]
    pub(crate) fn full_fences(&self) -> bool {
        self.remote_qp.get().is_some_and(|peer| peer.full_fences)
    }

    /// The peer's queue pair, if it is cached. Then [`Engine::full_fences`] is right.
    #[inline(always)]
    pub(crate) fn peer(&self) -> Option<&RemoteQp> {
        self.remote_qp.get()
    }

    /// Executes a short WRITE, if `wr` is one and can be executed at once, after `posted` requests. Returns whether it did.
    /// If not, nothing was done; [`Engine::execute`] executes the request, or finds out why not. This is the one path that must
    /// be fast.
    #[inline(always)]
    pub(crate) fn write_one(
        &self,
        (core, remote_qp): (&QpCore, &RemoteQp),
        caps: &QpCaps,
        rts: QpLife,
        posted: u64,
        wr: &SendWr<'_>,
    ) -> bool {
        let SendOp::Write(remote) = wr.op else {
            return false;
        };
        let Some(from) = WriteSource::short(wr, caps) else {
            return false;
        };
        let row = core.row();
        if QpCore::is_full(row, posted, caps)
            || !core.is_ready(row, rts)
            || !remote_qp.takes_writes()
        {
            return false;
        }
        let from = match from {
            WriteSource::Inline(bytes) => Some(bytes),
            WriteSource::Registered(Sge { addr, len, lkey }) => {
                self.local.cached(lkey, addr, len as usize, Access::NONE)
            }
        };
        let Some(from) = from else { return false };
        let (addr, len) = (remote.addr, from.len());
        let to = self
            .remote
            .cached(remote.rkey, addr, len, Access::REMOTE_WRITE);
        let Some(to) = to else { return false };
        crash_points::at("write");
        copy_span(to, from);
        to.expect_next();
        // Count at once: a later request of the chain may be executed, and counted, by another thread.
        count(&row.executing.sent_bytes, len as u64);
        true
    }

    /// Executes the short WRITEs that `wrs` begins with, up to the first request that is not one or cannot
    /// be executed at once, and returns how many it executed. `posted` counts the requests ever posted.
    #[inline(always)]
    pub(crate) fn write_short(
        &self,
        core: &QpCore,
        caps: &QpCaps,
        rts: QpLife,
        posted: &mut u64,
        wrs: &[SendWr<'_>],
        numbers: impl WrIds,
    ) -> usize {
        let Some(remote_qp) = self.remote_qp.get() else {
            return 0;
        };
        let mut number = *posted;
        let mut done = 0;
        for wr in wrs {
            if !self.write_one((core, remote_qp), caps, rts, number, wr) {
                break;
            }
            number += 1;
            done += 1;
            if core.signal_all || wr.flags.contains(SendFlags::SIGNALED) {
                core.complete_posted(numbers.of(wr), number, Opcode::Write, Status::Success, 0);
            }
        }
        *posted = number;
        done
    }

    /// Executes up to `budget` bytes of `request`. A datagram is sent whole.
    pub(crate) fn execute(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut RequestProgress,
        budget: usize,
    ) -> Outcome {
        if core.is_datagrams() {
            let fresh = || Box::new(Extra::Datagrams(Datagrams::default()));
            if let Extra::Datagrams(datagrams) = &mut **self.extra.get_or_insert_with(fresh) {
                return datagrams.send(core, request, progress.lost, &mut self.local);
            }
        }
        if progress.lost && self.has_source(core, request) {
            return Outcome::Done;
        }
        self.look_up(core);
        let is_ahead = progress.ahead;
        if self.remote_qp.get().is_some_and(|peer| !peer.is_up()) && !core.is_reliable() {
            // A request that has begun is lost. Another goes to the connection that the peer has now.
            let is_begun = progress.done > 0 || progress.claim.is_some();
            self.reconnect(progress);
            progress.ahead = is_ahead;
            if is_begun {
                return Outcome::Done;
            }
            self.look_up(core);
        }
        let outcome = match self.remote_qp.get() {
            // A NIC reads the memory of what it sends, whoever receives it.
            None if !core.is_reliable() => match self.has_source(core, request) {
                true => Outcome::NotReady,
                false => Outcome::Failed(Status::LocalProtection),
            },
            None => Outcome::NotReady,
            Some(remote_qp) if remote_qp.is_up() => {
                if progress.connection != remote_qp.generation() {
                    // Begun on another connection, if at all: the peer has taken back what it held there.
                    *progress = RequestProgress {
                        connection: remote_qp.generation(),
                        scatter: progress.scatter.take().filter(|_| progress.done == 0),
                        ahead: progress.ahead,
                        ..RequestProgress::default()
                    };
                }
                self.execute_any(core, request, progress, budget)
            }
            Some(_) => self.reconnect(progress),
        };
        match core.is_reliable() || is_ahead {
            true => outcome,
            false => outcome.of_unreliable(),
        }
    }

    /// Executes a SEND from one piece of cached memory into one of the peer's, for a request that may be
    /// executed now. `None` if the SEND or its receive is of another shape, or cannot be executed at
    /// once. Then nothing was done, except that `progress` may hold a receive.
    #[inline(always)]
    pub(crate) fn send_short(
        &self,
        from: WriteSource,
        (imm, solicited): (Option<u32>, bool),
        progress: &mut RequestProgress,
    ) -> Option<Outcome> {
        let remote_qp = self.remote_qp.get().filter(|remote_qp| remote_qp.is_up())?;
        let from = match from {
            WriteSource::Inline(bytes) => bytes,
            WriteSource::Registered(Sge { addr, len, lkey }) => {
                self.local.cached(lkey, addr, len as usize, Access::NONE)?
            }
        };
        let claim = ReceiveClaim::take(remote_qp).ok()?;
        let Some(to) = claim.short(remote_qp, &self.remote, from.len()) else {
            progress.claim = Some(claim);
            progress.connection = remote_qp.generation();
            return None;
        };
        crash_points::at("claimed");
        copy_span(to, from);
        Some(claim.complete_send(remote_qp, imm, from.len() as u64, solicited))
    }

    /// Finds the peer's queue pair, if it is not cached yet.
    fn look_up(&mut self, core: &QpCore) {
        if self.remote_qp.get().is_none() {
            self.remote_qp = RemoteQp::find(core).map_or(PeerLink::None, PeerLink::Known);
            // The peer may need a full fence between our mark of executing and the accesses that follow.
            asymmetric_fence::full();
        }
    }

    /// The peer's queue pair has changed: drops the look-ups, so that the next call makes them anew.
    #[cold]
    fn reconnect(&mut self, progress: &mut RequestProgress) -> Outcome {
        // The peer has taken back what the request held: it begins again.
        if let Some(remote_qp) = self.remote_qp.get() {
            self.retract(progress, remote_qp);
        }
        *progress = RequestProgress::default();
        self.remote_qp = PeerLink::None;
        self.remote = MrKeyCheck::default();
        Outcome::NotReady
    }

    /// Returns whether the local memory of a SEND or a WRITE may be read.
    #[cold]
    fn has_source(&mut self, core: &QpCore, request: &Request<'_>) -> bool {
        let Payload::Gather(sges) = request.payload else {
            return true;
        };
        let mut spans = [Span::EMPTY; MAX_SGE];
        let own = &core.context.own;
        self.local
            .list(own, core.pd, sges, Access::NONE, &mut spans)
            .is_ok()
    }

    /// Executes any operation, in any number of steps.
    #[inline(never)]
    fn execute_any(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut RequestProgress,
        budget: usize,
    ) -> Outcome {
        let Self {
            remote_qp,
            local,
            remote: remote_keys,
            ..
        } = self;
        let Some(remote_qp) = remote_qp.get() else {
            return Outcome::NotReady;
        };
        let need_here = if writes_here(&request.op) {
            Access::LOCAL_WRITE
        } else {
            Access::NONE
        };
        let mut spans = [Span::EMPTY; MAX_SGE];
        let here = match request.payload {
            Payload::Inline(bytes) => {
                spans[0] = Span::of_inline(bytes);
                &spans[..1]
            }
            Payload::Gather(sges) => {
                let listed = local.list(&core.context.own, core.pd, sges, need_here, &mut spans);
                if listed.is_err() {
                    progress.abandon(remote_qp);
                    return Outcome::Failed(Status::LocalProtection);
                }
                &spans[..sges.len()]
            }
        };
        let mut operation = Operation {
            remote_qp,
            remote_keys,
            here,
            request,
            progress,
            budget,
        };
        let imm = match request.op {
            SendOp::WriteImm(_, imm) | SendOp::SendImm(imm) => Some(imm),
            _ => None,
        };
        match request.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) => {
                operation.write(core, remote, imm)
            }
            // Class C of the responder's errors (9.9.3): a NAK, invalid request.
            SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                if !remote_qp.answers_reads =>
            {
                remote_qp.fail_peer();
                Outcome::Failed(Status::RemoteInvalidRequest)
            }
            SendOp::Read(remote) => operation.read(remote),
            SendOp::CompareSwap {
                remote,
                expect,
                swap,
            } => {
                let what = CallKind::CompareSwap { expect, swap };
                operation.atomic(remote, what, |word| word.compare_swap(expect, swap))
            }
            SendOp::FetchAdd { remote, add } => {
                let what = CallKind::FetchAdd { add };
                operation.atomic(remote, what, |word| word.fetch_add(add))
            }
            SendOp::Send | SendOp::SendImm(_) => operation.send(imm),
            _ => Outcome::Failed(Status::LocalQpOperation),
        }
    }

    /// Forgets all datagram paths.
    pub(crate) fn forget_ways(&mut self) {
        self.extra = None;
    }

    #[cfg(test)]
    pub(crate) fn datagrams(&self) -> Option<&Datagrams> {
        match self.extra.as_deref()? {
            Extra::Datagrams(datagrams) => Some(datagrams),
            Extra::BounceBuffer(_) => None,
        }
    }

    /// Executes up to `budget` bytes of a waiting request, or has the peer do so.
    pub(crate) fn go_on(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut RequestProgress,
        budget: usize,
    ) -> Outcome {
        match progress.called {
            Some(call) if core.is_reliable() => self.receive(core, request, progress, call),
            Some(call) => self.receive(core, request, progress, call).of_unreliable(),
            None => match self.execute(core, request, progress, budget) {
                Outcome::Ask(call) => self.ask(core, request, progress, call),
                other => other,
            },
        }
    }

    /// Returns how long the peer asks to be waited for when it has no receive posted; `None` until the
    /// peer is found.
    pub(crate) fn rnr_timer(&mut self, core: &QpCore) -> Option<RnrTimer> {
        self.look_up(core);
        self.remote_qp.get().map(RemoteQp::rnr_timer)
    }

    /// Has an injected fault refuse a request: moves the peer's queue pair to the error state, if it is there and reliable.
    #[cold]
    pub(crate) fn fail_peer(&mut self, core: &QpCore) {
        self.look_up(core);
        if let Some(remote_qp) = self.remote_qp.get() {
            remote_qp.refuse();
        }
    }

    /// Returns whether a WRITE or READ would find its memory now. A refusal has no effect.
    pub(crate) fn reaches(&mut self, core: &QpCore, request: &Request<'_>) -> bool {
        self.look_up(core);
        let Self {
            remote_qp,
            local,
            remote: remote_keys,
            ..
        } = self;
        let Some(remote_qp) = remote_qp.get() else {
            return false;
        };
        let (remote, need, need_here) = match request.op {
            SendOp::Write(remote) => (remote, Access::REMOTE_WRITE, Access::NONE),
            SendOp::Read(remote) => (remote, Access::REMOTE_READ, Access::LOCAL_WRITE),
            _ => return false,
        };
        let mut spans = [Span::EMPTY; MAX_SGE];
        let here = match request.payload {
            Payload::Inline(_) => true,
            Payload::Gather(sges) => local
                .list(&core.context.own, core.pd, sges, need_here, &mut spans)
                .is_ok(),
        };
        let key = (remote.rkey, remote_qp.pd);
        let len = request.len as usize;
        let there = match len {
            0 => Ok(RemoteSpan::EMPTY),
            _ => remote_keys.far(&remote_qp.peer, key, remote.addr, len, need),
        };
        here && remote_qp.is_up()
            && remote_qp.allows(need)
            && matches!(there, Ok(RemoteSpan::Mapped(_)))
    }

    /// Gives back what a request that will not continue holds of the peer's.
    pub(crate) fn abandon(&self, progress: &mut RequestProgress) {
        match self.remote_qp.get() {
            // If the owner may still be writing to the receive, the owner takes it back afterwards.
            Some(remote_qp) if self.retract(progress, remote_qp) && remote_qp.is_up() => {
                progress.abandon(remote_qp)
            }
            // The peer has taken it back.
            _ => progress.claim = None,
        }
    }
}

impl RequestProgress {
    fn abandon(&mut self, remote_qp: &RemoteQp) {
        if let Some(claim) = self.claim.take() {
            claim.fail(remote_qp, Status::Flushed);
        }
    }
}

/// Returns whether an operation stores its result in the initiator's memory.
const fn writes_here(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
    )
}

//! Executing one request: look up, check, copy. Runs in the posting thread, or in whoever carries
//! pending work on.

use headworks_verbs::{
    Access, Opcode, Payload, PostErrorKind, QpCaps, RemoteAddr, RnrTimer, SendFlags, SendOp,
    SendWr, Sge, Status,
};

use headworks_shm::asymmetric_fence;

use super::datagram::Datagrams;
use super::deliver::Claim;
use super::{INLINE_MAX, QpCore, RemoteQp, is_inline, opcode_of};
use crate::bounce::{BounceBuffer, Call, What};
use crate::copy::{Span, copy_span, copy_spans, copy_torn, stream_spans};
use crate::crash_points;
use crate::cross_process_copy::Direction;
use crate::device::MAX_MESSAGE;
use crate::hostile::Scatter;
use crate::mr_lookup::{MrLookup, Refused};
use crate::non_temporal;
use crate::remote_memory::{Far, Unmoved, transfer};
use crate::table::{Life, MAX_SGE, count};

mod bounce_call;

/// Executes requests of one queue pair; holds nothing but what it looked up before.
#[derive(Default)]
pub(crate) struct Engine {
    link: Option<RemoteQp>,
    full_fences: bool,
    local: MrLookup,
    remote: MrLookup,
    /// Where the peer is asked for what cannot be done from here; made when first needed.
    window: Option<Box<BounceBuffer>>,
    /// Of a queue pair of datagrams.
    datagrams: Option<Box<Datagrams>>,
}

/// How an execution ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it is done.
    Done,
    /// The budget ran out; call again.
    More,
    /// The peer has no receive posted and asks us to wait so long.
    NoReceive(RnrTimer),
    /// The peer's queue pair does not answer.
    NotReady,
    /// The peer is to be [asked](Engine::ask) for this.
    Ask(Call),
    /// The peer was asked and has not answered yet.
    Called,
    /// It ended with this status.
    Failed(Status),
}

/// How far a request has got.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) claim: Option<Claim>,
    /// What the peer was asked for last, until it answers.
    pub(crate) called: Option<Call>,
    /// The connection on which it was begun.
    connection: u64,
    /// How the bytes are placed, where not from the first to the last.
    pub(crate) scatter: Option<Box<Scatter>>,
    /// Its bytes go past the caches.
    streams: bool,
    /// Others before it have not ended: it may not fail yet.
    pub(crate) ahead: bool,
    /// It is a datagram that does not arrive.
    pub(crate) lost: bool,
}

/// Where a short WRITE takes its bytes from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// The bytes themselves.
    Inline(Span),
    /// One piece of registered memory.
    Registered(Sge),
}

impl Source {
    /// The bytes of a request short enough, from one piece, and legal to post.
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
    /// The checks a NIC's driver makes at posting.
    #[inline(always)]
    pub(crate) fn check(
        wr: &SendWr<'a>,
        caps: &QpCaps,
        is_datagrams: bool,
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
        let legal = match wr.op {
            SendOp::SendTo(_) | SendOp::SendToImm(..) => is_datagrams,
            // A datagram needs a destination, and there is nothing but datagrams.
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

    /// What the completion says was read.
    pub(crate) fn byte_len(&self) -> u32 {
        match self.op {
            SendOp::Read(_) => self.len as u32,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 8,
            _ => 0,
        }
    }
}

/// Chooses the `wr_id` of each completion: its own, or one for the whole chain.
pub(crate) trait Numbers: Copy {
    /// The `wr_id` that the completion of `wr` has.
    fn of(self, wr: &SendWr<'_>) -> u64;

    /// One that says so itself: the same, or a copy.
    fn write<'a, 'b>(self, wr: &'a SendWr<'b>, copy: &'a mut Option<SendWr<'b>>) -> &'a SendWr<'b>;
}

/// What they say themselves.
#[derive(Clone, Copy)]
pub(crate) struct TheirOwn;

impl Numbers for TheirOwn {
    #[inline(always)]
    fn of(self, wr: &SendWr<'_>) -> u64 {
        wr.wr_id
    }

    #[inline(always)]
    fn write<'a, 'b>(self, wr: &'a SendWr<'b>, _: &'a mut Option<SendWr<'b>>) -> &'a SendWr<'b> {
        wr
    }
}

/// All with the same.
#[derive(Clone, Copy)]
pub(crate) struct All(pub(crate) u64);

impl Numbers for All {
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
    /// Whether the peer's kernel refuses asymmetric fences.
    #[inline(always)]
    pub(crate) fn full_fences(&self) -> bool {
        self.full_fences
    }

    /// Executes the short WRITEs that `wrs` begins with, as long as nothing is in their way, and
    /// says how many: the one shape that must be fast. With the next one nothing has been done;
    /// [`Engine::execute`] does it, or finds out why not. `posted` counts requests ever posted.
    #[inline(always)]
    pub(crate) fn write_short(
        &mut self,
        core: &QpCore,
        caps: &QpCaps,
        rts: Life,
        posted: &mut u64,
        wrs: &[SendWr<'_>],
        numbers: impl Numbers,
    ) -> usize {
        let Some(link) = &self.link else { return 0 };
        let row = core.row();
        let mut number = *posted;
        let mut done = 0;
        for wr in wrs {
            let SendOp::Write(remote) = wr.op else { break };
            let Some(from) = Source::short(wr, caps) else {
                break;
            };
            if QpCore::is_full(row, number, caps)
                || !core.is_ready(row, rts)
                || !link.takes_writes()
            {
                break;
            }
            let from = match from {
                Source::Inline(bytes) => Some(bytes),
                Source::Registered(Sge { addr, len, lkey }) => {
                    self.local.cached(lkey, addr, len as usize, Access::NONE)
                }
            };
            let Some(from) = from else { break };
            let (addr, len) = (remote.addr, from.len());
            let to = self
                .remote
                .cached(remote.rkey, addr, len, Access::REMOTE_WRITE);
            let Some(to) = to else { break };
            crash_points::at("write");
            copy_span(to, from);
            to.expect_next();
            number += 1;
            done += 1;
            // At once: what is put behind this one is counted by who executes it.
            count(&row.executing.sent_bytes, len as u64);
            if core.signal_all || wr.flags.contains(SendFlags::SIGNALED) {
                core.complete_posted(numbers.of(wr), number, Opcode::Write, Status::Success, 0);
            }
        }
        *posted = number;
        done
    }

    /// Executes up to `budget` bytes of `request`.
    pub(crate) fn execute(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut Progress,
        budget: usize,
    ) -> Outcome {
        if core.is_datagrams() {
            let datagrams = self.datagrams.get_or_insert_default();
            return datagrams.send(core, request, progress.lost, &mut self.local);
        }
        self.look_up(core);
        match &self.link {
            None => Outcome::NotReady,
            Some(link) if link.is_up() => {
                if progress.connection != link.generation() {
                    // Begun on another, if at all: what it took there has been taken back.
                    *progress = Progress {
                        connection: link.generation(),
                        scatter: progress.scatter.take().filter(|_| progress.done == 0),
                        ahead: progress.ahead,
                        ..Progress::default()
                    };
                }
                self.execute_any(core, request, progress, budget)
            }
            Some(_) => self.reconnect(progress),
        }
    }

    /// Executes a SEND from one piece of known memory into one of the peer's, for a request that may
    /// be executed now. `None` if it is of another shape, or not to be had: then nothing was done,
    /// but that `progress` may hold a receive.
    #[inline(always)]
    pub(crate) fn send_short(
        &self,
        from: Source,
        (imm, solicited): (Option<u32>, bool),
        progress: &mut Progress,
    ) -> Option<Outcome> {
        let link = self.link.as_ref().filter(|link| link.is_up())?;
        let from = match from {
            Source::Inline(bytes) => bytes,
            Source::Registered(Sge { addr, len, lkey }) => {
                self.local.cached(lkey, addr, len as usize, Access::NONE)?
            }
        };
        let claim = Claim::take(link).ok()?;
        let Some(to) = claim.short(link, &self.remote, from.len()) else {
            progress.claim = Some(claim);
            progress.connection = link.generation();
            return None;
        };
        crash_points::at("claimed");
        copy_span(to, from);
        Some(claim.complete_send(link, imm, from.len() as u64, solicited))
    }

    /// Finds the peer's queue pair, if it is not known yet.
    fn look_up(&mut self, core: &QpCore) {
        if self.link.is_none() {
            self.link = RemoteQp::find(core);
            self.full_fences = self.link.as_ref().is_some_and(|link| link.full_fences);
            // The peer may need a full fence between our mark of executing and what follows.
            asymmetric_fence::full();
        }
    }

    /// The peer's queue pair is not what it was: look it up anew next time.
    #[cold]
    fn reconnect(&mut self, progress: &mut Progress) -> Outcome {
        // What it took of the peer's is not there any more: it begins again.
        if let Some(link) = &self.link {
            self.retract(progress, link);
        }
        *progress = Progress::default();
        self.link = None;
        self.remote = MrLookup::default();
        Outcome::NotReady
    }

    /// Every operation, in any number of pieces.
    #[inline(never)]
    fn execute_any(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut Progress,
        budget: usize,
    ) -> Outcome {
        let Self {
            link: Some(link),
            local,
            remote: theirs,
            ..
        } = self
        else {
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
                    progress.abandon(link);
                    return Outcome::Failed(Status::LocalProtection);
                }
                &spans[..sges.len()]
            }
        };
        let mut there = |remote: RemoteAddr, len: u64, need: Access| {
            if !link.allows(need) {
                return Err(Refused);
            }
            if len == 0 {
                return Ok(Far::EMPTY);
            }
            theirs.far(
                &link.peer,
                (remote.rkey, link.pd),
                remote.addr,
                len as usize,
                need,
            )
        };
        match request.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) => {
                let Ok(to) = there(remote, request.len, Access::REMOTE_WRITE) else {
                    if progress.ahead {
                        return Outcome::NotReady;
                    }
                    progress.abandon(link);
                    return refused(link, Access::REMOTE_WRITE);
                };
                let imm = match request.op {
                    SendOp::WriteImm(_, imm) => Some(imm),
                    _ => None,
                };
                // A WRITE with immediate needs its receive before anything is placed.
                if imm.is_some() && progress.claim.is_none() {
                    match Claim::take(link) {
                        Ok(claim) => progress.claim = Some(claim),
                        Err(outcome) => return outcome,
                    }
                }
                crash_points::at("write");
                let way = Direction::Place;
                progress.streams =
                    non_temporal::passed_by(request.len, || theirs.region_len(remote.rkey));
                let moved = progress.transfer(way, link, here, &[to], (request.len, budget));
                if let Err(why) = moved {
                    return unmoved(link, why, What::Place, progress);
                }
                if progress.done < request.len {
                    return Outcome::More;
                }
                match (imm, progress.claim.take()) {
                    (Some(imm), Some(claim)) => {
                        claim.complete_write(link, imm, request.len, request.solicited)
                    }
                    _ => Outcome::Done,
                }
            }
            // Class C of the errors of responders (9.9.3): a NAK, invalid request.
            SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                if !link.answers_reads =>
            {
                link.fail_peer();
                Outcome::Failed(Status::RemoteInvalidRequest)
            }
            SendOp::Read(remote) => {
                let Ok(from) = there(remote, request.len, Access::REMOTE_READ) else {
                    if progress.ahead {
                        return Outcome::NotReady;
                    }
                    return refused(link, Access::REMOTE_READ);
                };
                let way = Direction::Fetch;
                let moved = progress.transfer(way, link, here, &[from], (request.len, budget));
                if let Err(why) = moved {
                    return unmoved(link, why, What::Fetch, progress);
                }
                if progress.done < request.len {
                    Outcome::More
                } else {
                    Outcome::Done
                }
            }
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                if !remote.addr.is_multiple_of(8) {
                    link.fail_peer();
                    return Outcome::Failed(Status::RemoteInvalidRequest);
                }
                let word = match there(remote, 8, Access::REMOTE_ATOMIC) {
                    Ok(Far::Mapped(word)) if word.is_aligned_word() => word,
                    Ok(Far::Across { key, stretch }) => {
                        let what = match request.op {
                            SendOp::CompareSwap { expect, swap, .. } => {
                                What::CompareSwap { expect, swap }
                            }
                            SendOp::FetchAdd { add, .. } => What::FetchAdd { add },
                            _ => return Outcome::Failed(Status::LocalQpOperation),
                        };
                        // Only its owner's processor can do it.
                        return unmoved(link, Unmoved::Refused { key, stretch }, what, progress);
                    }
                    _ => return refused(link, Access::REMOTE_ATOMIC),
                };
                let old = match request.op {
                    SendOp::CompareSwap { expect, swap, .. } => word.compare_swap(expect, swap),
                    SendOp::FetchAdd { add, .. } => word.fetch_add(add),
                    _ => return Outcome::Failed(Status::LocalQpOperation),
                };
                copy_spans(here, &[Span::of_inline(&old.to_ne_bytes())], 0, 8);
                Outcome::Done
            }
            SendOp::Send | SendOp::SendImm(_) => {
                let imm = match request.op {
                    SendOp::SendImm(imm) => Some(imm),
                    _ => None,
                };
                if progress.claim.is_none() {
                    match Claim::take(link) {
                        Ok(claim) => progress.claim = Some(claim),
                        Err(outcome) => return outcome,
                    }
                }
                let Some(claim) = &progress.claim else {
                    return Outcome::NotReady;
                };
                let mut receive = [Far::EMPTY; MAX_SGE];
                match claim.spans(link, theirs, request.len, &mut receive) {
                    Ok(count) => {
                        let way = Direction::Place;
                        let moved = progress.transfer(
                            way,
                            link,
                            here,
                            &receive[..count],
                            (request.len, budget),
                        );
                        if let Err(why) = moved {
                            return unmoved(link, why, What::Receive, progress);
                        }
                    }
                    Err(_) if link.peer.is_going() => return Outcome::NotReady,
                    Err((ours, status)) => {
                        if let Some(claim) = progress.claim.take() {
                            claim.fail(link, status);
                        }
                        link.fail_peer();
                        return Outcome::Failed(ours);
                    }
                }
                if progress.done < request.len {
                    return Outcome::More;
                }
                match progress.claim.take() {
                    Some(claim) => claim.complete_send(link, imm, request.len, request.solicited),
                    None => Outcome::Done,
                }
            }
            _ => Outcome::Failed(Status::LocalQpOperation),
        }
    }

    /// Forgets every way that datagrams have taken.
    pub(crate) fn forget_ways(&mut self) {
        self.datagrams = None;
    }

    #[cfg(test)]
    pub(crate) fn datagrams(&self) -> Option<&Datagrams> {
        self.datagrams.as_deref()
    }

    /// Executes up to `budget` bytes of a request that waits, or asks the peer to.
    pub(crate) fn go_on(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut Progress,
        budget: usize,
    ) -> Outcome {
        match progress.called {
            Some(call) => self.hear(core, request, progress, call),
            None => match self.execute(core, request, progress, budget) {
                Outcome::Ask(call) => self.ask(core, request, progress, call),
                other => other,
            },
        }
    }

    /// What the peer asks to be waited for where it has no receive posted; `None` as long as it is
    /// not known.
    pub(crate) fn rnr_timer(&self) -> Option<RnrTimer> {
        self.link.as_ref().map(RemoteQp::rnr_timer)
    }

    /// Moves the peer's queue pair to the error state, if it is there.
    #[cold]
    pub(crate) fn fail_peer(&mut self, core: &QpCore) {
        self.look_up(core);
        if let Some(link) = &self.link {
            link.fail_peer();
        }
    }

    /// Whether a WRITE or READ would find its memory now. Changes nothing, whatever it finds.
    pub(crate) fn reaches(&mut self, core: &QpCore, request: &Request<'_>) -> bool {
        self.look_up(core);
        let Self {
            link: Some(link),
            local,
            remote: theirs,
            ..
        } = self
        else {
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
        let key = (remote.rkey, link.pd);
        let len = request.len as usize;
        let there = match len {
            0 => Ok(Far::EMPTY),
            _ => theirs.far(&link.peer, key, remote.addr, len, need),
        };
        here && link.is_up() && link.allows(need) && matches!(there, Ok(Far::Mapped(_)))
    }

    /// Gives back what a request that will not go on holds of the peer's.
    pub(crate) fn abandon(&self, progress: &mut Progress) {
        match &self.link {
            // If somebody may be writing to the receive yet, the peer takes it back when nobody is.
            Some(link) if self.retract(progress, link) && link.is_up() => progress.abandon(link),
            // The peer has taken it back.
            _ => progress.claim = None,
        }
    }
}

impl Progress {
    /// Moves up to `budget` of the `len` bytes.
    #[inline]
    fn transfer(
        &mut self,
        way: Direction,
        link: &RemoteQp,
        here: &[Span],
        there: &[Far],
        (len, budget): (u64, usize),
    ) -> Result<(), Unmoved> {
        let mapped = || there.iter().map(Far::mapped).collect::<Option<Vec<_>>>();
        if let Some(scatter) = &mut self.scatter
            && let Some(there) = mapped()
        {
            self.done += transfer_scattered(way, here, &there, len, scatter);
            return Ok(());
        }
        if self.streams
            && way == Direction::Place
            && let Some(there) = mapped()
        {
            self.done += stream_spans(&there, here, self.done, budget) as u64;
            return Ok(());
        }
        // What is not mapped is copied by the kernel or by its owner.
        transfer(way, &link.peer, here, there, &mut self.done, budget)
    }

    fn abandon(&mut self, link: &RemoteQp) {
        if let Some(claim) = self.claim.take() {
            claim.fail(link, Status::Flushed);
        }
    }
}

/// Whether an operation stores its result in the memory of whoever asks for it.
const fn writes_here(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
    )
}

/// Bytes could not be moved to or from memory of the peer that was checked.
#[cold]
fn unmoved(link: &RemoteQp, why: Unmoved, what: What, progress: &mut Progress) -> Outcome {
    let status = match why {
        Unmoved::Dead => Status::RetryExceeded,
        Unmoved::Fault => Status::RemoteOperation,
        Unmoved::Refused { key, stretch } => {
            let (addr, len) = (stretch.addr, stretch.len);
            let call = Call {
                what,
                key,
                addr,
                len,
            };
            return Outcome::Ask(call);
        }
    };
    if let Some(claim) = progress.claim.take() {
        claim.fail(link, Status::LocalProtection);
    }
    link.fail_peer();
    Outcome::Failed(status)
}

/// Moves what is due of a message whose bytes come in any order, and says how many those are.
#[cold]
fn transfer_scattered(
    way: Direction,
    here: &[Span],
    there: &[Span],
    len: u64,
    scatter: &mut Scatter,
) -> u64 {
    let (to, from) = match way {
        Direction::Place => (there, here),
        Direction::Fetch => (here, there),
    };
    let copy = match scatter.keeps_words() {
        true => copy_spans,
        false => copy_torn,
    };
    let target: Vec<_> = to.iter().map(Span::extent).collect();
    let mut moved = 0;
    for piece in scatter.step(&target, len as usize) {
        copy(to, from, piece.start as u64, piece.len());
        moved += piece.len() as u64;
    }
    moved
}

/// The peer's key, bounds or access rights did not fit; or its queue pair was not set up for what `need`
/// says, and then it is the request that is invalid (table of 9.9.3, unsupported opcodes).
#[cold]
fn refused(link: &RemoteQp, need: Access) -> Outcome {
    if link.peer.is_going() {
        return Outcome::NotReady;
    }
    let status = match link.allows(need) {
        true => Status::RemoteAccess,
        false => Status::RemoteInvalidRequest,
    };
    link.fail_peer();
    Outcome::Failed(status)
}

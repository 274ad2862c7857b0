//! The queue pair of a hostile device. No request is executed whole in the posting call; waiting
//! requests are executed as the [rules](crate::hostile) say, within what the device declares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use headworks_faults::Random;
use headworks_verbs::{Access, Duration, Instant, Opcode, QpState, Qpn, SendFlags, SendOp, Status};

use super::QpCore;
use super::engine::{Outcome, Request};
use super::opcode_of;
use super::pending::{Backlog, CHUNK, NextStep, Pending, PendingRequest};
use crate::hostile::{
    FaultEvent, FaultPoint, HostileMode, HostileObject, Rules, Scatter, Verdict, may_pass,
};

/// Maximum number of requests that a queue pair executes at a time if requests may overtake each other.
const LOOKAHEAD: usize = 8;
/// Maximum number of steps that a request rests, whatever the rules say.
const REST_MAX: u32 = 64;
/// Longest time that a request rests.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// Maximum number of times that the same request is refused.
const REFUSALS: u32 = 3;

/// The rules by which a queue pair misbehaves, and what it has refused.
pub(crate) struct HostileQp {
    rules: Arc<Rules>,
    object: HostileObject,
    ordered: bool,
    whole_words: bool,
    /// The number of the last signalled request that was posted.
    signalled: AtomicU64,
    sends: RefusedPost,
    receives: RefusedPost,
}

/// The request that was refused last, and how often.
#[derive(Default)]
struct RefusedPost {
    number: AtomicU64,
    times: AtomicU32,
}

impl RefusedPost {
    /// Returns how often `number` was refused.
    fn times(&self, number: u64) -> u32 {
        match self.number.load(Ordering::Relaxed) == number {
            true => self.times.load(Ordering::Relaxed),
            false => 0,
        }
    }

    fn note(&self, number: u64) {
        self.times.store(self.times(number) + 1, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
    }
}

/// Decisions of the rules for a request, and the request's progress.
#[derive(Default)]
pub(crate) struct RequestFaults {
    begun: bool,
    /// Steps that the request still rests. It rests until `until` as well.
    rest: u32,
    until: Instant,
    kill: Option<Status>,
    /// The number of turns at which the rules were asked about placing. They are asked once at each.
    asked: Option<u32>,
    /// Whether the message is to be lost.
    lost: bool,
    /// How often the request was denied a receive.
    denials: u32,
    /// How often a part of the request was executed.
    turns: u32,
    /// The order in which the bytes are placed.
    plan: Option<Scatter>,
    /// The request is over with this status, and waits for those before it.
    ended: Option<Status>,
}

/// The result of a step of one request.
enum StepOutcome {
    On,
    Ended(Status),
    /// Nothing to do before this time.
    Rests(Instant),
    /// Nothing to do before an earlier request has ended.
    Blocked,
    Stalled(NextStep),
}

impl HostileQp {
    pub(crate) fn new(hostility: &HostileMode) -> Self {
        Self {
            rules: hostility.rules.clone(),
            object: hostility.next_qp(),
            ordered: hostility.ordered_between_writes,
            whole_words: hostility.atomic_aligned_8,
            signalled: AtomicU64::new(0),
            sends: RefusedPost::default(),
            receives: RefusedPost::default(),
        }
    }

    /// Returns whether to refuse send request `number` as if the queue were full. Notes a refusal.
    pub(crate) fn refuses_send(
        &self,
        core: &QpCore,
        (number, wr_id): (u64, u64),
        request: &Request<'_>,
        signalled: bool,
    ) -> bool {
        let retired = core.row().sq_retired.load(Ordering::Relaxed);
        // A caller that is refused may wait for a completion: one must be on its way.
        if self.signalled.load(Ordering::Relaxed) > retired {
            let event = FaultEvent {
                point: FaultPoint::Post,
                stream: self.object.stream,
                ordinal: self.object.ordinal,
                qpn: core.number(),
                op: request.opcode(),
                wr_id,
                len: request.len,
                number,
                turn: self.sends.times(number),
            };
            if self.refuses(&event, &self.sends) {
                return true;
            }
        }
        if signalled {
            self.signalled.store(number, Ordering::Relaxed);
        }
        false
    }

    /// Returns whether to refuse receive `number` as if the queue were full; `outstanding` are posted.
    pub(crate) fn refuses_receive(
        &self,
        core: &QpCore,
        (number, wr_id): (u64, u64),
        outstanding: u64,
    ) -> bool {
        let event = FaultEvent {
            point: FaultPoint::PostReceive,
            stream: self.object.stream,
            ordinal: self.object.ordinal,
            qpn: core.number(),
            op: Opcode::Recv,
            wr_id,
            len: 0,
            number,
            turn: self.receives.times(number),
        };
        outstanding > 0 && self.refuses(&event, &self.receives)
    }

    fn refuses(&self, event: &FaultEvent, refused: &RefusedPost) -> bool {
        let refuses = event.turn < REFUSALS && self.rules.judge(event) == Verdict::Refuse;
        if refuses {
            refused.note(event.number);
        }
        refuses
    }

    fn event(
        &self,
        core: &QpCore,
        waiting: &PendingRequest,
        point: FaultPoint,
        turn: u32,
    ) -> FaultEvent {
        FaultEvent {
            point,
            stream: self.object.stream,
            ordinal: self.object.ordinal,
            qpn: core.number(),
            op: opcode_of(&waiting.op),
            wr_id: waiting.wr_id,
            len: waiting.payload().len(),
            number: waiting.position,
            turn,
        }
    }

    /// Returns the randomness for what no rule decides: which request is executed at step `tick`.
    fn tick(&self, tick: u64) -> Random {
        Random::of(self.rules.seed(), &[self.object.stream, tick])
    }
}

impl QpCore {
    fn number(&self) -> Qpn {
        Qpn::new(self.qpn).unwrap_or_default()
    }

    /// Executes a few steps on a hostile queue pair.
    pub(super) fn resume_unconditionally(
        &self,
        hostile: &HostileQp,
        pending: &mut Pending,
        now: Instant,
    ) -> NextStep {
        for _ in 0..hostile.tick(pending.backlog().ticks).within(1, 4) {
            match pending.step_any(self, hostile, now) {
                Ok(Some(status)) => {
                    self.end(pending, status);
                    if status != Status::Success {
                        break;
                    }
                }
                Ok(None) => {}
                Err(when) => return when,
            }
            if pending.is_empty() || self.is_drained(pending) {
                return NextStep::Never;
            }
        }
        NextStep::Now
    }
}

impl Pending {
    /// Executes a step of one of the requests that may be executed now. `Some` when the oldest ended.
    fn step_any(
        &mut self,
        core: &QpCore,
        hostile: &HostileQp,
        now: Instant,
    ) -> Result<Option<Status>, NextStep> {
        let backlog = self.backlog();
        backlog.ticks += 1;
        if let Some(status) = backlog.list.front().and_then(PendingRequest::ended) {
            return Ok(Some(status));
        }
        let drains = core.state() == QpState::Sqd;
        let open = backlog.open(hostile.ordered, drains);
        let first = hostile.tick(backlog.ticks).below(open.len() as u64) as usize;
        let mut soonest = Instant::FAR_FUTURE;
        for turn in 0..open.len() {
            let at = open[(first + turn) % open.len()];
            match self.step_one(core, hostile, at, now) {
                StepOutcome::On => return Ok(None),
                StepOutcome::Ended(status) if at == 0 => return Ok(Some(status)),
                StepOutcome::Ended(status) => {
                    if let Some(faults) = &mut self.backlog().list[at].faults {
                        faults.ended = Some(status);
                    }
                    return Ok(None);
                }
                StepOutcome::Rests(until) => soonest = soonest.min(until),
                StepOutcome::Blocked => {}
                StepOutcome::Stalled(NextStep::At(until)) => soonest = soonest.min(until),
                StepOutcome::Stalled(next) => return Err(next),
            }
        }
        match open.is_empty() {
            true => Err(NextStep::Never),
            false => Err(NextStep::At(soonest)),
        }
    }

    /// Executes a step of the request at index `at` of the list.
    fn step_one(
        &mut self,
        core: &QpCore,
        hostile: &HostileQp,
        at: usize,
        now: Instant,
    ) -> StepOutcome {
        let rnr_retry = self.rnr_retry;
        let Backlog { list, engine, .. } = self.backlog();
        let waiting = &mut list[at];
        let mut faults = waiting.faults.take().unwrap_or_default();
        let judge = |waiting: &PendingRequest, point, turn| {
            hostile
                .rules
                .judge(&hostile.event(core, waiting, point, turn))
        };
        if !faults.begun {
            faults.begun = true;
            if let Some(mode) = &core.context.hostility {
                let event = hostile.event(core, waiting, FaultPoint::Begin, 0);
                hostile.rules.port(&event, |fault| {
                    let event = mode.port_fails(fault);
                    event
                        .map(|event| core.context.events.raise(event))
                        .is_some()
                });
                if mode.is_port_down() && core.is_reliable() {
                    faults.kill = Some(Status::RetryExceeded);
                }
            }
            match judge(waiting, FaultPoint::Begin, 0) {
                Verdict::Wait(steps) => faults.rest = steps.min(REST_MAX),
                Verdict::WaitFor(time) => faults.until = now + time.min(WAIT_MAX),
                Verdict::Kill(status) => faults.kill = Some(status),
                _ => {}
            }
        }
        let moved = 'moved: {
            if faults.rest > 0 {
                faults.rest -= 1;
                break 'moved StepOutcome::On;
            }
            if faults.until > now {
                break 'moved StepOutcome::Rests(faults.until);
            }
            let needs_receive = matches!(
                waiting.op,
                SendOp::Send | SendOp::SendImm(_) | SendOp::WriteImm(..)
            );
            // A denial does not count as one of the queue pair's `rnr_retry` tries.
            if needs_receive
                && waiting.progress.claim.is_none()
                && faults.denials < REFUSALS.min(rnr_retry.into())
                && let Some(timer) = engine.rnr_timer(core)
                && judge(waiting, FaultPoint::Receive, faults.denials) == Verdict::Refuse
            {
                faults.denials += 1;
                faults.until = now + timer.duration();
                break 'moved StepOutcome::Rests(faults.until);
            }
            if faults.kill.is_none() && faults.asked != Some(faults.turns) {
                faults.asked = Some(faults.turns);
                if !core.is_reliable() && faults.turns == 0 {
                    faults.lost = judge(waiting, FaultPoint::Datagram, 0) == Verdict::Refuse;
                }
                match judge(waiting, FaultPoint::Place, faults.turns) {
                    Verdict::Kill(status) => faults.kill = Some(status),
                    Verdict::Scatter(steps) if faults.turns == 0 => {
                        let event = hostile.event(core, waiting, FaultPoint::Place, 0);
                        let steps = u64::from(steps).max(event.len.div_ceil(CHUNK as u64));
                        let (random, steps) = (hostile.rules.order_of(&event), steps as u32);
                        let scatter = Scatter::new(random, hostile.whole_words, steps);
                        faults.plan = Some(scatter);
                    }
                    _ => {}
                }
            }
            if let Some(status) = faults.kill {
                if at > 0 {
                    break 'moved StepOutcome::Blocked;
                }
                engine.fail_peer(core);
                break 'moved StepOutcome::Ended(match status {
                    Status::Success => Status::Fatal,
                    other => other,
                });
            }
            waiting.progress.lost = faults.lost && faults.turns == 0;
            // A failure fails the peer's queue pair too, so a request that would fail waits until those
            // before it have ended.
            if at > 0 && !engine.reaches(core, &waiting.request().0) {
                break 'moved StepOutcome::Blocked;
            }
            if waiting.progress.done == 0 && waiting.progress.scatter.is_none() {
                waiting.progress.scatter = faults.plan.clone().map(Box::new);
            }
            faults.turns = faults.turns.saturating_add(1);
            let (request, progress) = waiting.request();
            let what = (request.opcode(), request.len);
            progress.ahead = at > 0;
            let outcome = engine.go_on(core, &request, progress, CHUNK);
            // Its memory was deregistered a moment ago, or the peer is gone: the oldest request finds out.
            if at > 0 && matches!(outcome, Outcome::NotReady) {
                break 'moved StepOutcome::Blocked;
            }
            match self.came_of(core, outcome, what, now) {
                Ok(Some(status)) => StepOutcome::Ended(status),
                Ok(None) => StepOutcome::On,
                Err(next) => StepOutcome::Stalled(next),
            }
        };
        self.backlog().list[at].faults = Some(faults);
        moved
    }
}

impl Backlog {
    /// Returns the indices of the requests that may be executed: the oldest, and those that may pass every
    /// earlier one that is not over. While the send queue drains, none after the last request that has
    /// begun: that one's completion waits for those before it.
    fn open(&self, ordered: bool, drains: bool) -> Vec<usize> {
        let mut open = Vec::with_capacity(LOOKAHEAD);
        let until = match drains {
            true => self
                .list
                .iter()
                .rposition(PendingRequest::has_begun)
                .map_or(0, |at| at + 1),
            false => LOOKAHEAD,
        };
        // A region that no request was executed on yet counts as one that keeps the order.
        let relaxes = |op: &SendOp| match op {
            SendOp::Write(to) => self.engine.remote.allows(to.rkey, Access::RELAXED_ORDERING),
            _ => false,
        };
        for (at, later) in self.list.iter().enumerate().take(until.min(LOOKAHEAD)) {
            if later.ended().is_some() {
                continue;
            }
            let fenced = later.flags.contains(SendFlags::FENCE);
            let mut before = self.list.iter().take(at).filter(|w| w.ended().is_none());
            // The later one decides, as on PCIe: one with relaxed ordering may pass any other.
            let ordered = ordered && !relaxes(&later.op);
            if before.all(|earlier| may_pass(&later.op, fenced, &earlier.op, ordered)) {
                open.push(at);
            }
        }
        open
    }
}

impl PendingRequest {
    /// Returns how the request ended, if it is over and waits for those before it.
    pub(super) fn ended(&self) -> Option<Status> {
        self.faults.as_ref().and_then(|faults| faults.ended)
    }
}

//! The queue pair of a hostile device: nothing is executed whole in the call, and what waits is
//! carried on as the [rules](crate::hostile) say, within what the device declares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use headworks_verbs::{Duration, Instant, Opcode, QpState, Qpn, SendFlags, SendOp, Status};

use super::QpCore;
use super::engine::{Outcome, Request};
use super::opcode_of;
use super::pending::{Backlog, CHUNK, Next, Pending, Waiting};
use crate::hostile::{Chance, Event, Hostility, Point, Rules, Scatter, Verdict, may_pass};

/// Requests under way at a time, where they may mix.
const WINDOW: usize = 8;
/// Steps that a request rests for at most, whatever the rules say.
const REST_MAX: u32 = 64;
/// Time that a request rests for at most.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// Times that the same request is refused at most.
const REFUSALS: u32 = 3;

/// How a queue pair misbehaves.
pub(crate) struct Unruly {
    rules: Arc<Rules>,
    stream: u64,
    ordered: bool,
    whole_words: bool,
    /// Requests posted when a signalled one was posted last.
    signalled: AtomicU64,
    sends: Refused,
    receives: Refused,
}

/// Which request was refused last, and how often.
#[derive(Default)]
struct Refused {
    number: AtomicU64,
    times: AtomicU32,
}

impl Refused {
    /// How often `number` was refused.
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

/// What a request goes through.
#[derive(Default)]
pub(crate) struct Ordeal {
    begun: bool,
    /// Steps that it still rests for, and the time that it does.
    rest: u32,
    until: Instant,
    kill: Option<Status>,
    /// Receives that were denied.
    denials: u32,
    /// Times that a part of it was placed.
    turns: u32,
    /// How its bytes are placed.
    plan: Option<Scatter>,
    /// It is over, and waits for those before it.
    ended: Option<Status>,
}

/// What came of a step.
enum Moved {
    On,
    Ended(Status),
    /// Not before then.
    Rests(Instant),
    /// Not before another request.
    Blocked,
    Stalled(Next),
}

impl Unruly {
    pub(crate) fn new(hostility: &Hostility) -> Self {
        Self {
            rules: hostility.rules.clone(),
            stream: hostility.stream(),
            ordered: hostility.ordered_between_writes,
            whole_words: hostility.atomic_aligned_8,
            signalled: AtomicU64::new(0),
            sends: Refused::default(),
            receives: Refused::default(),
        }
    }

    /// Whether there is to be no room for send request `number`. Notes it if so.
    pub(crate) fn refuses_send(
        &self,
        core: &QpCore,
        (number, wr_id): (u64, u64),
        request: &Request<'_>,
        signalled: bool,
    ) -> bool {
        let retired = core.row().sq_retired.load(Ordering::Relaxed);
        // Who is refused may wait for a completion: one must be on its way.
        if self.signalled.load(Ordering::Relaxed) > retired {
            let event = Event {
                point: Point::Post,
                stream: self.stream,
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

    /// Whether there is to be no room for receive `number`; `outstanding` are posted.
    pub(crate) fn refuses_receive(
        &self,
        core: &QpCore,
        (number, wr_id): (u64, u64),
        outstanding: u64,
    ) -> bool {
        let event = Event {
            point: Point::PostReceive,
            stream: self.stream,
            qpn: core.number(),
            op: Opcode::Recv,
            wr_id,
            len: 0,
            number,
            turn: self.receives.times(number),
        };
        outstanding > 0 && self.refuses(&event, &self.receives)
    }

    fn refuses(&self, event: &Event, refused: &Refused) -> bool {
        let refuses = event.turn < REFUSALS && self.rules.judge(event) == Verdict::Refuse;
        if refuses {
            refused.note(event.number);
        }
        refuses
    }

    fn event(&self, core: &QpCore, waiting: &Waiting, point: Point, turn: u32) -> Event {
        Event {
            point,
            stream: self.stream,
            qpn: core.number(),
            op: opcode_of(&waiting.op),
            wr_id: waiting.wr_id,
            len: waiting.payload().len(),
            number: waiting.position,
            turn,
        }
    }

    /// The chance of what no rule decides: which request goes on at step `tick`.
    fn tick(&self, tick: u64) -> Chance {
        Chance::of(self.rules.seed(), &[self.stream, tick])
    }
}

impl QpCore {
    fn number(&self) -> Qpn {
        Qpn::new(self.qpn).unwrap_or_default()
    }

    /// A few steps of a hostile queue pair.
    pub(super) fn carry_on_anyhow(
        &self,
        unruly: &Unruly,
        pending: &mut Pending,
        now: Instant,
    ) -> Next {
        for _ in 0..unruly.tick(pending.backlog().ticks).within(1, 4) {
            match pending.step_any(self, unruly, now) {
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
                return Next::Never;
            }
        }
        Next::Now
    }
}

impl Pending {
    /// A step of one of the requests that may go on now. `Some` when the oldest ended.
    fn step_any(
        &mut self,
        core: &QpCore,
        unruly: &Unruly,
        now: Instant,
    ) -> Result<Option<Status>, Next> {
        let backlog = self.backlog();
        backlog.ticks += 1;
        if let Some(status) = backlog.list.front().and_then(Waiting::ended) {
            return Ok(Some(status));
        }
        let drains = core.state() == QpState::Sqd;
        let open = backlog.open(unruly.ordered, drains);
        let first = unruly.tick(backlog.ticks).below(open.len() as u64) as usize;
        let mut soonest = Instant::FAR_FUTURE;
        for turn in 0..open.len() {
            let at = open[(first + turn) % open.len()];
            match self.step_one(core, unruly, at, now) {
                Moved::On => return Ok(None),
                Moved::Ended(status) if at == 0 => return Ok(Some(status)),
                Moved::Ended(status) => {
                    if let Some(ordeal) = &mut self.backlog().list[at].ordeal {
                        ordeal.ended = Some(status);
                    }
                    return Ok(None);
                }
                Moved::Rests(until) => soonest = soonest.min(until),
                Moved::Blocked => {}
                Moved::Stalled(Next::At(until)) => soonest = soonest.min(until),
                Moved::Stalled(next) => return Err(next),
            }
        }
        match open.is_empty() {
            true => Err(Next::Never),
            false => Err(Next::At(soonest)),
        }
    }

    /// A step of request `at` of the list.
    fn step_one(&mut self, core: &QpCore, unruly: &Unruly, at: usize, now: Instant) -> Moved {
        let rnr_retry = self.rnr_retry;
        let Backlog { list, engine, .. } = self.backlog();
        let waiting = &mut list[at];
        let mut ordeal = waiting.ordeal.take().unwrap_or_default();
        let judge = |waiting: &Waiting, point, turn| {
            unruly
                .rules
                .judge(&unruly.event(core, waiting, point, turn))
        };
        if !ordeal.begun {
            ordeal.begun = true;
            match judge(waiting, Point::Begin, 0) {
                Verdict::Wait(steps) => ordeal.rest = steps.min(REST_MAX),
                Verdict::WaitFor(time) => ordeal.until = now + time.min(WAIT_MAX),
                Verdict::Kill(status) => ordeal.kill = Some(status),
                _ => {}
            }
        }
        let moved = 'moved: {
            if ordeal.rest > 0 {
                ordeal.rest -= 1;
                break 'moved Moved::On;
            }
            if ordeal.until > now {
                break 'moved Moved::Rests(ordeal.until);
            }
            let needs_receive = matches!(
                waiting.op,
                SendOp::Send | SendOp::SendImm(_) | SendOp::WriteImm(..)
            );
            // A denial takes no try of those that the queue pair has.
            if needs_receive
                && waiting.progress.claim.is_none()
                && ordeal.denials < REFUSALS.min(rnr_retry.into())
                && judge(waiting, Point::Receive, ordeal.denials) == Verdict::Refuse
                && let Some(timer) = engine.rnr_timer()
            {
                ordeal.denials += 1;
                ordeal.until = now + timer.duration();
                break 'moved Moved::Rests(ordeal.until);
            }
            if ordeal.kill.is_none() {
                match judge(waiting, Point::Place, ordeal.turns) {
                    Verdict::Kill(status) => ordeal.kill = Some(status),
                    Verdict::Scatter(steps) if ordeal.turns == 0 => {
                        let event = unruly.event(core, waiting, Point::Place, 0);
                        let steps = u64::from(steps).max(event.len.div_ceil(CHUNK as u64));
                        let (chance, steps) = (unruly.rules.chance(&event, 0), steps as u32);
                        let scatter = Scatter::new(chance, unruly.whole_words, steps);
                        ordeal.plan = Some(scatter);
                    }
                    _ => {}
                }
            }
            if let Some(status) = ordeal.kill {
                if at > 0 {
                    break 'moved Moved::Blocked;
                }
                engine.fail_peer(core);
                break 'moved Moved::Ended(match status {
                    Status::Success => Status::Fatal,
                    other => other,
                });
            }
            if matches!(waiting.op, SendOp::SendTo(_) | SendOp::SendToImm(..)) {
                waiting.progress.lost = judge(waiting, Point::Datagram, 0) == Verdict::Refuse;
            }
            // What would fail waits until those before it have ended: its failure is the peer's, too.
            if at > 0 && !engine.reaches(core, &waiting.request().0) {
                break 'moved Moved::Blocked;
            }
            if waiting.progress.done == 0 && waiting.progress.scatter.is_none() {
                waiting.progress.scatter = ordeal.plan.clone().map(Box::new);
            }
            ordeal.turns = ordeal.turns.saturating_add(1);
            let (request, progress) = waiting.request();
            let what = (request.opcode(), request.len);
            progress.ahead = at > 0;
            let outcome = engine.go_on(core, &request, progress, CHUNK);
            // Its memory was taken away a moment ago, or the peer is not there: the oldest finds out.
            if at > 0 && matches!(outcome, Outcome::NotReady) {
                break 'moved Moved::Blocked;
            }
            match self.came_of(core, outcome, what, now) {
                Ok(Some(status)) => Moved::Ended(status),
                Ok(None) => Moved::On,
                Err(next) => Moved::Stalled(next),
            }
        };
        self.backlog().list[at].ordeal = Some(ordeal);
        moved
    }
}

impl Backlog {
    /// The requests that may go on: the oldest, and such as may pass all that are not over; where the
    /// send queue drains, only up to the last that has begun, whose completion waits for those before.
    fn open(&self, ordered: bool, drains: bool) -> Vec<usize> {
        let mut open = Vec::with_capacity(WINDOW);
        let until = match drains {
            true => self
                .list
                .iter()
                .rposition(Waiting::has_begun)
                .map_or(0, |at| at + 1),
            false => WINDOW,
        };
        for (at, later) in self.list.iter().enumerate().take(until.min(WINDOW)) {
            if later.ended().is_some() {
                continue;
            }
            let fenced = later.flags.contains(SendFlags::FENCE);
            let mut before = self.list.iter().take(at).filter(|w| w.ended().is_none());
            if before.all(|earlier| may_pass(&later.op, fenced, &earlier.op, ordered)) {
                open.push(at);
            }
        }
        open
    }
}

impl Waiting {
    /// How it ended, if it is over and waits for those before it.
    pub(super) fn ended(&self) -> Option<Status> {
        self.ordeal.as_ref().and_then(|ordeal| ordeal.ended)
    }
}

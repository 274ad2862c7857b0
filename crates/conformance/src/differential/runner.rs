//! Runs a program on one pair of devices, step by step.
//!
//! A step ends when everything that must complete has completed: signalled requests, receives that a
//! completed request took, and all work of a queue pair in error. Races therefore happen only inside one
//! chain of requests, whose order the specification defines, and the next step starts from the same state on
//! every device.

use std::collections::{BTreeMap, BTreeSet};

use headworks_verbs::{Instant, QpState};

use super::comparison::{
    AllowedDivergence, CASE_FENCED_HANGS, CASE_RECEIVES_NOT_FLUSHED, CASE_UNANSWERED_HANGS,
};
use super::observation::{CallOutcome, PostedTo, QpSnapshot, Span, StepObservation};
use super::outstanding::OutstandingWork;
use super::program::{DEPTH, LEN, ProgramStep, RegionSpec};
use crate::call::{Call, Event, Id, Reply};
use crate::case_context::{Host, QpFixture, QpOptions};
use crate::{CaseContext, Verdict};

mod expected_failure;
mod posting;
mod quiesce;
mod setup;
mod slices;
mod transitions;

use expected_failure::ExpectedFailure;

/// Q_Key of the queue pairs.
const QKEY: u32 = 0x1234;

/// Objects of a program on one pair of devices.
pub(super) struct ProgramRunner<'b, 'w> {
    cx: &'b mut CaseContext<'w>,
    /// Index of this pair: 0 is the left one, 1 the right one.
    device: usize,
    hosts: [Host; 2],
    /// Per end: the protection domain of the queue pairs, and another one.
    pds: [[Id; 2]; 2],
    regions: [Vec<Region>; 2],
    lines: Vec<[RunningQp; 2]>,
    next_wr: u64,
    /// Memory into which each receive scatters.
    scattered: BTreeMap<u64, Vec<Span>>,
    /// Faulty receives, each with the number of bytes before its fault.
    faulty_receives: BTreeMap<u64, usize>,
    /// Maximum number of bytes that a faulty receive can take on any device.
    reach: BTreeMap<u64, usize>,
    /// Memory that each request names for writing: local for READs and atomics, remote for the others.
    named: BTreeMap<u64, Vec<Span>>,
    /// Remote source of each READ and atomic.
    fetched: BTreeMap<u64, Span>,
    /// Faults of each request.
    causes: BTreeMap<u64, ExpectedFailure>,
    /// Line and end to which each request and receive was posted.
    places: BTreeMap<u64, (usize, usize)>,
    objects: Vec<(Host, Id)>,
    /// No event reports that a queue pair with a shared receive queue has taken its last receive.
    keeps_last: bool,
    /// Receives posted to a queue pair in error are flushed.
    receives_in_error: bool,
    /// Cases that know why work may hang on this pair.
    hangs: Vec<&'static str>,
    /// Queue pairs whose failure a completion has reported.
    told: Vec<(usize, usize)>,
}

/// Memory and its region.
struct Region {
    id: Id,
    buffer: Id,
    memory: RegionSpec,
    is_live: bool,
}

/// Queue pair of a line.
struct RunningQp {
    side: QpFixture,
    options: QpOptions,
    is_gone: bool,
    state: QpState,
    outstanding: OutstandingWork,
    /// Outstanding receives of its shared receive queue.
    shared: Vec<u64>,
    /// Address handle for datagrams to the other end.
    ah: Option<Id>,
    /// Number of times that it failed by itself.
    failures: usize,
    /// Number of times that it entered the error state, by itself or by a `modify`.
    errors: usize,
}

impl ProgramRunner<'_, '_> {
    fn call_ok(&mut self, end: usize, call: Call) -> Result<Reply, String> {
        self.cx.call_ok(self.hosts[end].id, call)
    }

    fn try_call(&mut self, end: usize, call: Call) -> CallOutcome {
        match self.cx.try_call(self.hosts[end].id, call) {
            Ok(_) => CallOutcome::Done,
            Err(refusal) => refusal.into(),
        }
    }

    /// Executes a step and waits until everything has come to rest.
    pub(super) fn step(
        &mut self,
        step: &ProgramStep,
        allowed: &AllowedDivergence,
    ) -> Result<StepObservation, String> {
        self.keeps_last = allowed.keeps(self.device, "QpLastWqe");
        self.receives_in_error = !allowed.ends(CASE_RECEIVES_NOT_FLUSHED);
        self.hangs = vec![CASE_FENCED_HANGS, CASE_UNANSWERED_HANGS];
        let known = |case: &&str| allowed.device_deviates(self.device, case);
        self.hangs.retain(known);
        let mut seen = StepObservation {
            outcome: CallOutcome::Nothing,
            fates: BTreeMap::new(),
            about: BTreeMap::new(),
            snapshots: Vec::new(),
            faulty_receives: BTreeMap::new(),
            stuck: BTreeMap::new(),
            several_faults: BTreeSet::new(),
            unspecified: Vec::new(),
            violations: Vec::new(),
        };
        let outcome = match step {
            ProgramStep::Receive {
                line,
                end,
                chain,
                astray,
            } => self.receive(self.place(*line, *end), chain, *astray, &mut seen)?,
            ProgramStep::Send {
                line,
                end,
                anew,
                receives,
                chain,
            } => {
                let place = self.place(*line, *end);
                if *anew
                    && self.lines[place.0]
                        .iter()
                        .any(|tail| tail.state != QpState::Rts)
                {
                    self.reconnect(place.0)?;
                }
                let (line, end) = place;
                if !receives.is_empty() {
                    self.receive((line, 1 - end), receives, false, &mut seen)?;
                }
                self.send(place, chain, &mut seen)?
            }
            ProgramStep::Modify { line, end, to } => self.modify(self.place(*line, *end), *to),
            ProgramStep::Reconnect { line } => self.reconnect(self.place(*line, 0).0)?,
            ProgramStep::Destroy { line, end } => self.destroy(self.place(*line, *end))?,
            ProgramStep::Register { end, memory } => {
                self.register(usize::from(*end) % 2, *memory)?
            }
            ProgramStep::Deregister { end, which } => {
                self.deregister(usize::from(*end) % 2, usize::from(*which))?
            }
        };
        seen.outcome = outcome;
        self.quiesce(&mut seen)?;
        let lost = self.perhaps_lost(&seen);
        seen.unspecified.extend(lost);
        let unspecified = self.fetched_in_doubt(&seen);
        seen.unspecified.extend(unspecified);
        let standing = |tail: &RunningQp| QpSnapshot {
            state: (!tail.is_gone).then_some(tail.state),
            sends: tail.outstanding.sends.len(),
            receives: tail.outstanding.receives.len() + tail.shared.len(),
        };
        let pair = |pair: &[RunningQp; 2]| [standing(&pair[0]), standing(&pair[1])];
        let all = seen.fates.keys().filter_map(|wr_id| self.about(*wr_id));
        seen.about = all.collect();
        seen.faulty_receives.clone_from(&self.faulty_receives);
        seen.snapshots = self.lines.iter().map(pair).collect();
        Ok(seen)
    }

    /// Returns the line and the end for the numbers of a step.
    fn place(&self, line: u8, end: u8) -> (usize, usize) {
        (usize::from(line) % self.lines.len(), usize::from(end) % 2)
    }

    /// Returns where a request or a receive was posted.
    fn about(&self, wr_id: u64) -> Option<(u64, PostedTo)> {
        let (line, end) = *self.places.get(&wr_id)?;
        let spans = self
            .scattered
            .get(&wr_id)
            .or_else(|| self.named.get(&wr_id));
        let about = PostedTo {
            line,
            end,
            is_receive: self.scattered.contains_key(&wr_id),
            spans: spans.cloned().unwrap_or_default(),
        };
        Some((wr_id, about))
    }

    fn number(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// Returns the contents of all memory, including memory that is no longer registered.
    pub(super) fn memory(&mut self) -> Result<[Vec<Vec<u8>>; 2], String> {
        let mut all = [Vec::new(), Vec::new()];
        for (end, found) in all.iter_mut().enumerate() {
            for number in 0..self.regions[end].len() {
                let call = Call::Get {
                    buffer: self.regions[end][number].buffer,
                    offset: 0,
                    len: LEN,
                };
                match self.call_ok(end, call)? {
                    Reply::Bytes(bytes) => found.push(bytes),
                    other => return Err(format!("instead of bytes: {other:?}")),
                }
            }
        }
        Ok(all)
    }

    /// Sets unspecified bytes to known values.
    pub(super) fn equalise(&mut self, span: Span) -> Verdict {
        let call = Call::Fill {
            buffer: self.regions[span.end][span.memory].buffer,
            offset: span.from,
            len: span.to - span.from,
            seed: span.from as u64,
        };
        self.call_ok(span.end, call).map(drop)
    }

    /// Returns the asynchronous events so far. For each it notes whether a completion of the queue pair had
    /// already reported the failure.
    pub(super) fn events(&mut self) -> Result<Vec<ReportedEvent>, String> {
        let mut told = Vec::new();
        for end in 0..2 {
            let events = self.cx.events(self.hosts[end])?.clone();
            for (line, pair) in self.lines.iter().enumerate() {
                let qp = Some(pair[end].side.qp);
                let mut push = |event, what| {
                    if events.contains(&event) {
                        told.push(ReportedEvent {
                            line,
                            end,
                            what,
                            was_reported: self.told.contains(&(line, end)),
                        });
                    }
                };
                push(Event::QpFatal(qp), "QpFatal");
                push(Event::QpLastWqe(qp), "QpLastWqe");
            }
        }
        Ok(told)
    }

    /// Returns the time of its world.
    pub(super) fn now(&self) -> Instant {
        self.cx.now()
    }

    /// Lets a little time pass.
    pub(super) fn advance(&mut self) {
        self.cx.advance();
    }

    /// Destroys all objects, in an order that `teardown_seed` determines.
    pub(super) fn destroy_all(self, teardown_seed: u64) -> Verdict {
        let mut objects = self.objects;
        let mut draw = crate::buffer_access::random_bytes(teardown_seed);
        while !objects.is_empty() {
            let at = usize::from(draw()) % objects.len();
            let (host, object) = objects.remove(at);
            self.cx.destroy(host, object)?;
        }
        for host in self.hosts {
            self.cx.events(host)?.clear();
        }
        Ok(())
    }
}

/// Asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportedEvent {
    pub(super) line: usize,
    pub(super) end: usize,
    pub(super) what: &'static str,
    pub(super) was_reported: bool,
}

//! Waits until a step has come to rest, and checks the completions that come.

use std::collections::BTreeMap;

use headworks_verbs::{Duration, Opcode, QpState, QpType, Status};

use super::{ProgramRunner, RunningQp};
use crate::Verdict;
use crate::call::{Done, Event, Id};
use crate::case_context::{DEADLINE, QpFixture};
use crate::deviation::DeviantBehaviour;
use crate::differential::comparison::{CASE_FENCED_HANGS, CASE_UNANSWERED_HANGS, DivergenceRule};
use crate::differential::observation::{
    KnownHang, Span, StepObservation, UnspecifiedBytes, WorkFate, is_of_the_peer,
};

/// Time after which work that may be known to hang counts as stuck. A device gives up a missing peer sooner.
const STUCK_AFTER: Duration = Duration::from_nanos(2 * DeviantBehaviour::HANG_TIMEOUT.nanos());

impl ProgramRunner<'_, '_> {
    /// Polls until everything that must come has come, and then whether more comes.
    pub(super) fn quiesce(&mut self, seen: &mut StepObservation) -> Verdict {
        let now = self.cx.now();
        let (until, stuck_from) = (now + DEADLINE, now + STUCK_AFTER);
        let (mut quiet, late) = (0, self.cx.behaviour().empty_polls_max);
        while quiet <= late {
            let found = self.poll_all(seen)?;
            self.query_states()?;
            if self.cx.now() > stuck_from {
                seen.stuck = self.known_hangs();
            }
            let awaited = match self.awaited(&seen.stuck) {
                None => self.missing_event()?,
                awaited => awaited,
            };
            quiet = if found || awaited.is_some() {
                0
            } else {
                quiet + 1
            };
            if let Some(what) = awaited.filter(|_| self.cx.now() > until) {
                seen.violations.push(format!("after 10 s: {what}"));
                return Ok(());
            }
            if quiet == 0 {
                self.cx.advance();
            }
        }
        Ok(())
    }

    fn query_states(&mut self) -> Verdict {
        for tail in self.lines.iter_mut().flatten() {
            if !tail.is_gone {
                let state = self.cx.state(tail.side)?;
                if state == QpState::Error && tail.state != state {
                    tail.failures += 1;
                    tail.errors += 1;
                }
                tail.state = state;
            }
        }
        Ok(())
    }

    /// Returns the queue pairs that may be known to hang, with the cases that observe it.
    fn known_hangs(&self) -> BTreeMap<(usize, usize), Vec<KnownHang>> {
        let lines = self.lines.iter().enumerate();
        let all = lines.flat_map(|(line, pair)| {
            let ends = pair.iter().enumerate();
            ends.map(move |(end, tail)| ((line, end), tail))
        });
        let by = |tail: &RunningQp| {
            let account = &tail.outstanding;
            let all = [
                (CASE_FENCED_HANGS, account.fetches_behind_a_fence()),
                (CASE_UNANSWERED_HANGS, account.before_a_failure_here()),
            ];
            let is_there = !tail.is_gone && tail.state == QpState::Rts;
            let known = |(case, among): (&'static str, Option<_>)| {
                let is_known = is_there && self.hangs.contains(&case);
                let among = among.filter(|_| is_known)?;
                Some(KnownHang { case, among })
            };
            all.into_iter().filter_map(known).collect::<Vec<_>>()
        };
        all.map(|(place, tail)| (place, by(tail)))
            .filter(|(_, why)| !why.is_empty())
            .collect()
    }

    fn awaited(&self, stuck: &BTreeMap<(usize, usize), Vec<KnownHang>>) -> Option<String> {
        for (line, pair) in self.lines.iter().enumerate() {
            for (end, tail) in pair.iter().enumerate() {
                let is_over = tail.is_gone || stuck.contains_key(&(line, end));
                let awaits = || tail.outstanding.awaits(tail.state);
                if let Some(what) = (!is_over).then(awaits).flatten() {
                    return Some(format!("line {line} end {end}: {what}"));
                }
            }
        }
        None
    }

    /// Returns a required event that has not come. It is awaited now because it might not come after a RESET.
    fn missing_event(&mut self) -> Result<Option<String>, String> {
        let twice = self.cx.behaviour().reports_failure_twice;
        for end in 0..2 {
            let events = self.cx.events(self.hosts[end])?.clone();
            for (line, pair) in self.lines.iter().enumerate() {
                let tail = &pair[end];
                let qp = Some(tail.side.qp);
                let came = |event| events.iter().filter(|found| **found == event).count();
                let is_told = !twice && self.told.contains(&(line, end));
                if !is_told && came(Event::QpFatal(qp)) < tail.failures {
                    return Ok(Some(format!(
                        "line {line} end {end}: no event that it failed"
                    )));
                }
                let last = tail.side.srq.is_some() && !self.keeps_last;
                if last && came(Event::QpLastWqe(qp)) < tail.errors {
                    return Ok(Some(format!(
                        "line {line} end {end}: no event of its last receive"
                    )));
                }
            }
        }
        Ok(None)
    }

    /// Takes all available completions and returns whether there were any.
    fn poll_all(&mut self, seen: &mut StepObservation) -> Result<bool, String> {
        let of = |(end, tail): (usize, &RunningQp)| {
            let QpFixture {
                send_cq, recv_cq, ..
            } = tail.side;
            [(end, send_cq), (end, recv_cq)]
        };
        let both = |pair: &[RunningQp; 2]| [of((0, &pair[0])), of((1, &pair[1]))].concat();
        let mut cqs: Vec<_> = self.lines.iter().flat_map(both).collect();
        cqs.dedup();
        let mut any = false;
        for (end, cq) in cqs {
            loop {
                let found = self.cx.poll(self.hosts[end], cq)?;
                if found.is_empty() {
                    break;
                }
                any = true;
                for done in found {
                    self.record_completion(end, &done, seen);
                }
            }
        }
        Ok(any)
    }

    fn whose(&self, end: usize, qp: Option<Id>) -> Option<usize> {
        let is_it = |pair: &[RunningQp; 2]| Some(pair[end].side.qp) == qp && !pair[end].is_gone;
        self.lines.iter().position(is_it)
    }

    fn record_completion(&mut self, end: usize, done: &Done, seen: &mut StepObservation) {
        let Some(line) = self.whose(end, done.qp) else {
            let line = format!("{} completed for no queue pair: {done:?}", done.wr_id);
            return seen.violations.push(line);
        };
        let accounted = match self.scattered.contains_key(&done.wr_id) {
            true => self.received(line, end, done, seen),
            false => self.sent(line, end, done, seen),
        };
        if let Err(what) = accounted {
            seen.violations
                .push(format!("line {line} end {end}: {what}"));
        }
        if done.status != Status::Success && !self.told.contains(&(line, end)) {
            self.told.push((line, end));
        }
    }

    fn sent(
        &mut self,
        line: usize,
        end: usize,
        done: &Done,
        seen: &mut StepObservation,
    ) -> Verdict {
        let account = &mut self.lines[line][end].outstanding;
        let retired = account.sent(done.wr_id, done.status)?;
        let ends = retired
            .silent
            .iter()
            .map(|sent| (sent.wr_id, Status::Success));
        for (wr_id, status) in ends.chain([(done.wr_id, done.status)]) {
            let cause = self.causes.get(&wr_id);
            if let Some(why) = cause.and_then(|cause| cause.contradicts(status)) {
                seen.violations
                    .push(format!("{wr_id} ended with {status:?}: it {why}"));
            }
        }
        let mut arrived = retired.silent.iter().filter(|sent| sent.arrives).count() as i64;
        for silent in &retired.silent {
            seen.fates.insert(silent.wr_id, WorkFate::Silent);
        }
        let brings = !matches!(done.opcode, Opcode::Send | Opcode::Write);
        let fate = match done.status {
            Status::Success => WorkFate::Success {
                opcode: done.opcode,
                bytes: brings.then_some(done.byte_len),
                imm: None,
                source: None,
                by: None,
            },
            status => WorkFate::Failed(status),
        };
        let good = retired.silent.iter().chain(&retired.found);
        for sent in good.filter(|sent| sent.wr_id != done.wr_id || fate.is_good()) {
            let named = self.named.get(&sent.wr_id);
            seen.unspecified
                .extend(named.into_iter().flat_map(|spans| twice(spans)));
        }
        let is_good = fate.is_good();
        if is_good && retired.found.is_some_and(|sent| sent.arrives) {
            arrived += 1;
        }
        seen.fates.insert(done.wr_id, fate);
        let is_connected = self.lines[line][end].ah.is_none();
        let came = retired.silent.iter().chain(&retired.found);
        let came = came.filter(|sent| sent.arrives && (sent.wr_id != done.wr_id || is_good));
        let peer = &mut self.lines[line][1 - end];
        peer.outstanding.due += arrived;
        if is_connected {
            let expected = came.map(|sent| sent.imm);
            peer.outstanding.immediates.expected.extend(expected);
            peer.outstanding.immediates.compare()?;
        }
        if is_of_the_peer(done.status) {
            peer.outstanding.must_fail = true;
        }
        if ![Status::Success, Status::Flushed].contains(&done.status) {
            let front = peer.outstanding.receives.front();
            let first = front.or_else(|| peer.shared.first());
            let filled = first.filter(|_| retired.found.is_some_and(|sent| sent.fills));
            let filled = filled.and_then(|wr_id| self.scattered.get(wr_id));
            let named = self.named.get(&done.wr_id).into_iter().flatten();
            let named = named.filter(|span| span.end == end || !is_refused_there(done.status));
            let spans = named.chain(filled.into_iter().flatten());
            seen.unspecified.extend(spans.map(|span| UnspecifiedBytes {
                span: *span,
                rule: DivergenceRule::BytesOfFailed,
            }));
        }
        Ok(())
    }

    fn received(
        &mut self,
        line: usize,
        end: usize,
        done: &Done,
        seen: &mut StepObservation,
    ) -> Verdict {
        let source = match done.grh {
            true => self.source(1 - end, done.src_qpn),
            false => None,
        };
        let tail = &mut self.lines[line][end];
        let mut by = None;
        if tail.side.srq.is_some() {
            let at = tail.shared.iter().position(|wr_id| *wr_id == done.wr_id);
            let at = at.ok_or_else(|| format!("receive {} completed twice", done.wr_id))?;
            tail.shared.remove(at);
            by = Some((line, end));
        } else {
            tail.outstanding.received(done.wr_id)?;
        }
        let spans = &self.scattered[&done.wr_id];
        let fate = match done.status {
            Status::Success => {
                tail.outstanding.due -= 1;
                let reach = self.reach.get(&done.wr_id);
                let is_placed = done.opcode == Opcode::Recv;
                if reach.is_some_and(|reach| is_placed && done.byte_len as usize > *reach) {
                    let wr_id = done.wr_id;
                    return Err(format!("{wr_id} received into faulty memory"));
                }
                if tail.ah.is_none() {
                    tail.outstanding.immediates.found.push_back(done.imm);
                    tail.outstanding.immediates.compare()?;
                }
                if done.grh {
                    seen.unspecified.extend(header(spans));
                }
                seen.unspecified.extend(twice(spans));
                WorkFate::Success {
                    opcode: done.opcode,
                    bytes: Some(done.byte_len),
                    imm: done.imm,
                    source,
                    by,
                }
            }
            status => {
                // The first receive that fails may hold a part of the message.
                if !tail.outstanding.has_failed_receive {
                    seen.unspecified
                        .extend(spans.iter().map(|span| UnspecifiedBytes {
                            span: *span,
                            rule: DivergenceRule::BytesOfFailed,
                        }));
                }
                tail.outstanding.has_failed_receive = true;
                WorkFate::Failed(status)
            }
        };
        seen.fates.insert(done.wr_id, fate);
        Ok(())
    }

    /// Returns the bytes that requests of an unreliable connection name, whose responder is in the error state: no status tells
    /// which of them it took before.
    pub(super) fn perhaps_lost(&self, seen: &StepObservation) -> Vec<UnspecifiedBytes> {
        let is_lost = |wr_id: &&u64| {
            let place = self.places.get(wr_id);
            place.is_some_and(|(line, end)| {
                let pair = &self.lines[*line];
                pair[*end].options.qp_type == QpType::Uc && pair[1 - end].state == QpState::Error
            })
        };
        let lost = seen.fates.keys().filter(is_lost);
        let named = lost.filter_map(|wr_id| self.named.get(wr_id)).flatten();
        let doubt = |span: &Span| UnspecifiedBytes {
            span: *span,
            rule: DivergenceRule::BytesOfFailed,
        };
        named.map(doubt).collect()
    }

    /// Returns the bytes that were fetched from unspecified bytes, and so are unspecified as well.
    pub(super) fn fetched_in_doubt(&self, seen: &StepObservation) -> Vec<UnspecifiedBytes> {
        let mut doubts = Vec::new();
        let good = seen.fates.iter().filter(|(_, fate)| fate.is_good());
        for (wr_id, _) in good {
            let Some(from) = self.fetched.get(wr_id) else {
                continue;
            };
            let source = seen
                .unspecified
                .iter()
                .find(|doubt| doubt.span.overlaps(from));
            let named = self.named.get(wr_id).into_iter().flatten();
            doubts.extend(named.filter_map(|span| {
                source.map(|doubt| UnspecifiedBytes {
                    span: *span,
                    rule: doubt.rule,
                })
            }));
        }
        doubts
    }

    /// Returns the line and end of the queue pair of `end` with this number.
    fn source(&self, end: usize, qpn: u32) -> Option<(usize, usize)> {
        let host = self.hosts[end].id;
        let mut known = self.cx.handles().find_qpn(qpn);
        let (_, qp) = known.find(|(whose, qp)| {
            *whose == host && self.lines.iter().any(|pair| pair[end].side.qp == *qp)
        })?;
        let line = self.lines.iter().position(|pair| pair[end].side.qp == qp)?;
        Some((line, end))
    }
}

/// Returns whether the status means that the peer refused a request before it placed any byte: it checks key,
/// bounds, access and the form of the request first (section 9.7.4.1).
const fn is_refused_there(status: Status) -> bool {
    matches!(status, Status::RemoteAccess | Status::RemoteInvalidRequest)
}

/// Returns the bytes that several pieces of one request name.
fn twice(spans: &[Span]) -> Vec<UnspecifiedBytes> {
    let mut doubts = Vec::new();
    for (at, span) in spans.iter().enumerate() {
        for other in spans[..at].iter().filter(|other| other.overlaps(span)) {
            doubts.push(UnspecifiedBytes {
                span: Span {
                    from: span.from.max(other.from),
                    to: span.to.min(other.to),
                    ..*span
                },
                rule: DivergenceRule::PiecesOverlap,
            });
        }
    }
    doubts
}

/// Returns the first 40 bytes of a receive, which hold the GRH.
fn header(spans: &[Span]) -> Vec<UnspecifiedBytes> {
    let mut left = headworks_verbs::GRH_BYTES;
    let mut doubts = Vec::new();
    for span in spans {
        let len = left.min(span.to - span.from);
        left -= len;
        let span = Span {
            to: span.from + len,
            ..*span
        };
        doubts.push(UnspecifiedBytes {
            span,
            rule: DivergenceRule::Headers,
        });
    }
    doubts
}

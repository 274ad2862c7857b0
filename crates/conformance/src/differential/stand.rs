//! A program on one pair of devices: step by step, each until everything has come to rest.
//!
//! A step is over when whatever must complete has: signalled requests, receives that a completed
//! request took, everything of a queue pair in error. So what races is inside of one chain of
//! requests, whose order the specification defines, and the next step finds the same on every device.

use std::collections::{BTreeMap, BTreeSet};

use headworks_verbs::{Instant, QpState};

use super::account::Account;
use super::program::{DEPTH, LEN, Memory, Step};
use super::rules::{FENCED, LATE_RECEIVES, Leeway, WRONG_BEHIND};
use super::seen::{About, Outcome, Seen, Span, Standing};
use crate::bench::{Host, Options, Side};
use crate::call::{Call, Event, Id, Reply};
use crate::{Bench, Verdict};

mod cause;
mod make;
mod moves;
mod posts;
mod resolve;
mod rest;

use cause::Cause;

/// What datagrams must name.
const QKEY: u32 = 0x1234;

/// A program's objects on one pair of devices.
pub(super) struct Stand<'b, 'w> {
    bench: &'b mut Bench<'w>,
    /// Which of both this is: 0 for the left one.
    device: usize,
    hosts: [Host; 2],
    /// The domain of the queue pairs, and another one.
    pds: [[Id; 2]; 2],
    regions: [Vec<Region>; 2],
    lines: Vec<[Tail; 2]>,
    next_wr: u64,
    /// Where receives put what arrives.
    scattered: BTreeMap<u64, Vec<Span>>,
    /// Receives with something wrong, and how many bytes of them come before that.
    frail: BTreeMap<u64, usize>,
    /// The most bytes that such can take on any device.
    reach: BTreeMap<u64, usize>,
    /// What requests name: here if they bring something, and over there.
    named: BTreeMap<u64, Vec<Span>>,
    /// Where READs and atomics fetch from.
    fetched: BTreeMap<u64, Span>,
    /// What is wrong with requests.
    causes: BTreeMap<u64, Cause>,
    /// The line and the end that requests and receives were posted to.
    places: BTreeMap<u64, (usize, usize)>,
    objects: Vec<(Host, Id)>,
    /// No event tells that a queue pair over a shared receive queue has taken its last receive.
    keeps_last: bool,
    /// What is posted to a queue pair in error is flushed, receives too.
    receives_in_error: bool,
    /// The cases that know why something may wait without end.
    hangs: Vec<&'static str>,
    /// Queue pairs whose failure a completion of their own told.
    told: Vec<(usize, usize)>,
}

/// Registered memory.
struct Region {
    id: Id,
    buffer: Id,
    memory: Memory,
    is_live: bool,
}

/// A queue pair of a line.
struct Tail {
    side: Side,
    options: Options,
    is_gone: bool,
    state: QpState,
    account: Account,
    /// Receives of its shared queue.
    shared: Vec<u64>,
    /// For datagrams to the other end.
    ah: Option<Id>,
    /// How often it failed by itself.
    failures: usize,
    /// How often it went to the error state, whoever had it do so.
    errors: usize,
}

impl Stand<'_, '_> {
    fn done(&mut self, end: usize, call: Call) -> Result<Reply, String> {
        self.bench.done(self.hosts[end].id, call)
    }

    fn try_call(&mut self, end: usize, call: Call) -> Outcome {
        match self.bench.tried(self.hosts[end].id, call) {
            Ok(_) => Outcome::Done,
            Err(refusal) => refusal.into(),
        }
    }

    /// Does a step, and waits until everything has come to rest.
    pub(super) fn step(&mut self, step: &Step, leeway: &Leeway) -> Result<Seen, String> {
        self.keeps_last = leeway.keeps(self.device, "QpLastWqe");
        self.receives_in_error = !leeway.ends(LATE_RECEIVES);
        self.hangs = vec![FENCED, WRONG_BEHIND];
        let known = |case: &&str| leeway.known_to_end(self.device, case);
        self.hangs.retain(known);
        let mut seen = Seen {
            outcome: Outcome::Nothing,
            fates: BTreeMap::new(),
            about: BTreeMap::new(),
            standing: Vec::new(),
            frail: BTreeMap::new(),
            stuck: BTreeMap::new(),
            manifold: BTreeSet::new(),
            doubtful: Vec::new(),
            broken: Vec::new(),
        };
        let outcome = match step {
            Step::Receive {
                line,
                end,
                chain,
                astray,
            } => self.receive(self.place(*line, *end), chain, *astray, &mut seen)?,
            Step::Send {
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
            Step::Modify { line, end, to } => self.modify(self.place(*line, *end), *to),
            Step::Reconnect { line } => self.reconnect(self.place(*line, 0).0)?,
            Step::Destroy { line, end } => self.destroy(self.place(*line, *end))?,
            Step::Register { end, memory } => self.register(usize::from(*end) % 2, *memory)?,
            Step::Deregister { end, which } => {
                self.deregister(usize::from(*end) % 2, usize::from(*which))?
            }
        };
        seen.outcome = outcome;
        self.settle(&mut seen)?;
        let doubtful = self.fetched_in_doubt(&seen);
        seen.doubtful.extend(doubtful);
        let standing = |tail: &Tail| Standing {
            state: (!tail.is_gone).then_some(tail.state),
            sends: tail.account.sends.len(),
            receives: tail.account.receives.len() + tail.shared.len(),
        };
        let pair = |pair: &[Tail; 2]| [standing(&pair[0]), standing(&pair[1])];
        let all = seen.fates.keys().filter_map(|wr_id| self.about(*wr_id));
        seen.about = all.collect();
        seen.frail.clone_from(&self.frail);
        seen.standing = self.lines.iter().map(pair).collect();
        Ok(seen)
    }

    /// The line and the end that these numbers mean.
    fn place(&self, line: u8, end: u8) -> (usize, usize) {
        (usize::from(line) % self.lines.len(), usize::from(end) % 2)
    }

    /// Where a request or a receive was posted.
    fn about(&self, wr_id: u64) -> Option<(u64, About)> {
        let (line, end) = *self.places.get(&wr_id)?;
        let spans = self
            .scattered
            .get(&wr_id)
            .or_else(|| self.named.get(&wr_id));
        let about = About {
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

    /// All memory, also what is not registered any more.
    pub(super) fn memory(&mut self) -> Result<[Vec<Vec<u8>>; 2], String> {
        let mut all = [Vec::new(), Vec::new()];
        for (end, found) in all.iter_mut().enumerate() {
            for number in 0..self.regions[end].len() {
                let call = Call::Get {
                    buffer: self.regions[end][number].buffer,
                    offset: 0,
                    len: LEN,
                };
                match self.done(end, call)? {
                    Reply::Bytes(bytes) => found.push(bytes),
                    other => return Err(format!("instead of bytes: {other:?}")),
                }
            }
        }
        Ok(all)
    }

    /// Gives bytes in doubt a value that is known.
    pub(super) fn heal(&mut self, span: Span) -> Verdict {
        let call = Call::Fill {
            buffer: self.regions[span.end][span.memory].buffer,
            offset: span.from,
            len: span.to - span.from,
            seed: span.from as u64,
        };
        self.done(span.end, call).map(drop)
    }

    /// Asynchronous events so far: of which line and host, and whether a completion of that queue
    /// pair had told of the failure already.
    pub(super) fn events(&mut self) -> Result<Vec<Told>, String> {
        let mut told = Vec::new();
        for end in 0..2 {
            let events = self.bench.events(self.hosts[end])?.clone();
            for (line, pair) in self.lines.iter().enumerate() {
                let qp = Some(pair[end].side.qp);
                let mut push = |event, what| {
                    if events.contains(&event) {
                        told.push(Told {
                            line,
                            end,
                            what,
                            was_told: self.told.contains(&(line, end)),
                        });
                    }
                };
                push(Event::QpFatal(qp), "QpFatal");
                push(Event::QpLastWqe(qp), "QpLastWqe");
            }
        }
        Ok(told)
    }

    /// The time of its world.
    pub(super) fn now(&self) -> Instant {
        self.bench.now()
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self) {
        self.bench.advance();
    }

    /// Destroys everything, in an order that `parting` chooses.
    pub(super) fn leave(self, parting: u64) -> Verdict {
        let mut objects = self.objects;
        let mut draw = crate::bytes::endless(parting);
        while !objects.is_empty() {
            let at = usize::from(draw()) % objects.len();
            let (host, object) = objects.remove(at);
            self.bench.destroy(host, object)?;
        }
        for host in self.hosts {
            self.bench.events(host)?.clear();
        }
        Ok(())
    }
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) line: usize,
    pub(super) end: usize,
    pub(super) what: &'static str,
    pub(super) was_told: bool,
}

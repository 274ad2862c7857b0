//! A message there and back, one at a time: half the round trip is the latency, unless round trips were asked for.

use headworks::verbs::Instant;
use headworks_stage::{ActorError, Cx, Step};

use super::cpu_cost;
use super::job::{Job, Workload};
use super::message::{Checked, Marked, Written};
use super::{Arm, Taken};
use crate::driven::Drive;
use crate::error::WorkloadError;
use crate::latency::Histogram;
use crate::pair::{PairCx, wait};
use crate::report::Report;

/// Looks for a message in one step.
const TRIES: u32 = 64;
/// Steps without a message after which the echoing end looks whether the other has finished.
const LOOK_EVERY: u32 = 64;

/// The end that measures.
pub struct Ping {
    job: Job,
    began: Option<Instant>,
    sent_at: Instant,
    state: Pinging,
    written: Written<Marked>,
    checked: Checked<Marked>,
    histogram: Histogram,
    /// Round trips, ever.
    rounds: u64,
}

enum Pinging {
    Send,
    Flush,
    Take,
    Finish,
    Wait,
}

impl Ping {
    /// For `job`.
    pub fn new(job: Job) -> Self {
        Self {
            job,
            began: None,
            sent_at: Instant::ZERO,
            state: Pinging::Send,
            written: Written::default(),
            checked: Checked::default(),
            histogram: Histogram::default(),
            rounds: 0,
        }
    }

    fn came_back(&mut self, now: Instant) {
        let since = now.since(*self.began.get_or_insert(now));
        self.rounds += 1;
        let (before, most) = match self.job.workload {
            Workload::Rounds { warm, measured } => (warm, measured),
            _ => (u64::MAX, u64::MAX),
        };
        if since >= self.job.warm() || self.rounds > before {
            self.histogram.record(now.since(self.sent_at));
        }
        let is_over = since >= self.job.warm() + self.job.run() || self.histogram.len() >= most;
        // The time of arrival is the time of the next departure: one clock read per round trip.
        self.sent_at = now;
        self.state = match is_over {
            true => Pinging::Finish,
            false => Pinging::Send,
        };
    }
}

impl<A: Arm> Drive<A> for Ping {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let is_virtual = arm.price().is_some();
        for _ in 0..TRIES {
            let moved = match self.state {
                Pinging::Send => {
                    if self.began.is_none() {
                        self.sent_at = cx.now();
                    }
                    let sent = cpu_cost::offer(arm, 1, &mut self.written, cx)? == 1;
                    if sent {
                        self.state = Pinging::Flush;
                    }
                    sent
                }
                Pinging::Flush => {
                    let flushed = arm.flush()?;
                    if flushed {
                        self.state = Pinging::Take;
                    }
                    flushed
                }
                Pinging::Take => match cpu_cost::take(arm, 1, &mut self.checked, cx)? {
                    Taken::Messages(0) => {
                        std::hint::spin_loop();
                        false
                    }
                    Taken::Messages(_) => {
                        self.came_back(cx.now());
                        true
                    }
                    Taken::Ended => return Err(ActorError::new("the other end closed")),
                },
                Pinging::Finish => {
                    arm.finish()?;
                    cx.mail(b"finished")?;
                    self.state = Pinging::Wait;
                    true
                }
                Pinging::Wait => {
                    arm.flush()?;
                    if cx.mailed().is_none() {
                        return Ok(wait());
                    }
                    self.checked.check()?;
                    return Ok(Step::Done);
                }
            };
            // Where time is virtual it must pass between two looks.
            if is_virtual && !moved {
                break;
            }
        }
        Ok(Step::Again)
    }

    fn report(&mut self) -> Result<Report, WorkloadError> {
        let scale = match self.job.workload {
            Workload::Rounds { .. } => 1.0,
            _ => 0.5,
        };
        Ok(Report::Latency(self.histogram.quantiles(scale)))
    }

    fn moved(&self) -> u64 {
        self.rounds
    }
}

/// The end that sends everything back.
#[derive(Default)]
pub struct Pong {
    written: Written<Marked>,
    checked: Checked<Marked>,
    owed: usize,
    flushed: bool,
    idle: u32,
    /// Messages sent back, ever.
    rounds: u64,
}

impl<A: Arm> Drive<A> for Pong {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let is_virtual = arm.price().is_some();
        let mut ended = false;
        for _ in 0..TRIES {
            let moved = if self.owed > 0 {
                let sent = cpu_cost::offer(arm, self.owed, &mut self.written, cx)?;
                self.owed -= sent;
                self.flushed = false;
                sent > 0
            } else if !self.flushed {
                self.flushed = arm.flush()?;
                self.flushed
            } else {
                match cpu_cost::take(arm, 1, &mut self.checked, cx)? {
                    Taken::Messages(0) => {
                        std::hint::spin_loop();
                        false
                    }
                    Taken::Messages(n) => {
                        self.owed = n;
                        self.rounds += n as u64;
                        self.idle = 0;
                        true
                    }
                    Taken::Ended => {
                        ended = true;
                        break;
                    }
                }
            };
            if is_virtual && !moved {
                break;
            }
        }
        self.idle += 1;
        if self.idle.is_multiple_of(LOOK_EVERY) {
            ended |= cx.mailed().is_some();
        }
        if ended {
            self.checked.check()?;
            arm.finish()?;
            cx.mail(b"finished")?;
            return Ok(Step::Done);
        }
        Ok(Step::Again)
    }

    fn moved(&self) -> u64 {
        self.rounds
    }
}

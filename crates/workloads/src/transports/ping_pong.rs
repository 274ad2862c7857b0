//! Round trips, one message at a time. Reports half the round trip as the latency, unless the job asks for
//! round trips.

use headworks::verbs::Instant;
use headworks_runtime::{ActorContext, ActorError, Step};

use super::job::{Job, Workload};
use super::message_contents::{MessageChecker, MessageWriter};
use super::{MessageTransport, TakeResult, cpu_cost};
use crate::actor_pair::{PairMail, wait};
use crate::connecting_actor::WorkloadDriver;
use crate::error::Result;
use crate::latency::Histogram;
use crate::report::Report;

/// Polls for a message in one step.
const TRIES: u32 = 64;
/// Steps without a message after which the echoing end checks whether the other has finished.
const LOOK_EVERY: u32 = 64;

/// One of the two ends: the one that measures, or the one that echoes everything.
pub struct PingPong {
    state: State,
    written: MessageWriter,
    checked: MessageChecker,
    /// Number of messages received.
    rounds: u64,
    /// Steps since the last message.
    idle: u32,
    /// Unset at the echoing end.
    measure: Option<Measure>,
}

#[derive(Clone, Copy)]
enum State {
    Send,
    Flush,
    Take,
    Finish,
    Wait,
}

struct Measure {
    job: Job,
    began: Option<Instant>,
    sent_at: Instant,
    histogram: Histogram,
}

impl PingPong {
    /// Makes the end that measures `job`.
    pub fn new(job: Job) -> Self {
        let measure = Measure {
            job,
            began: None,
            sent_at: Instant::ZERO,
            histogram: Histogram::default(),
        };
        Self {
            state: State::Send,
            measure: Some(measure),
            ..Self::echo()
        }
    }

    /// Makes the end that echoes everything.
    pub fn echo() -> Self {
        Self {
            state: State::Flush,
            written: MessageWriter::default(),
            checked: MessageChecker::default(),
            rounds: 0,
            idle: 0,
            measure: None,
        }
    }
}

impl Measure {
    /// Records round trip number `rounds`, which ended at `now`. Returns whether it was the last.
    fn came_back(&mut self, rounds: u64, now: Instant) -> bool {
        let since = now.since(*self.began.get_or_insert(now));
        let (before, most) = match self.job.workload {
            Workload::Rounds { warm, measured } => (warm, measured),
            _ => (u64::MAX, u64::MAX),
        };
        if since >= self.job.warm() || rounds > before {
            self.histogram.record(now.since(self.sent_at));
        }
        // The time of arrival is the time of the next departure: one clock read per round trip.
        self.sent_at = now;
        since >= self.job.warm() + self.job.run() || self.histogram.len() >= most
    }
}

impl<A: MessageTransport> WorkloadDriver<A> for PingPong {
    fn step(&mut self, arm: &mut A, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let is_virtual = arm.price().is_some();
        for _ in 0..TRIES {
            let (moved, next) = match self.state {
                State::Send => {
                    if let Some(measure) = &mut self.measure
                        && measure.began.is_none()
                    {
                        measure.sent_at = cx.now();
                    }
                    let sent = cpu_cost::offer(arm, 1, &mut self.written, cx)?;
                    (sent == 1, State::Flush)
                }
                State::Flush => (arm.flush()?, State::Take),
                State::Take => match cpu_cost::take(arm, 1, &mut self.checked, cx)? {
                    TakeResult::Messages(0) => {
                        std::hint::spin_loop();
                        (false, State::Take)
                    }
                    TakeResult::Messages(_) => {
                        (self.rounds, self.idle) = (self.rounds + 1, 0);
                        let (measure, rounds) = (self.measure.as_mut(), self.rounds);
                        match measure.is_some_and(|measure| measure.came_back(rounds, cx.now())) {
                            true => (true, State::Finish),
                            false => (true, State::Send),
                        }
                    }
                    TakeResult::Ended if self.measure.is_none() => (true, State::Finish),
                    TakeResult::Ended => return Err(ActorError::new("the other end closed")),
                },
                State::Finish => {
                    self.checked.check()?;
                    arm.finish()?;
                    cx.send_mail(b"finished")?;
                    if self.measure.is_none() {
                        return Ok(Step::Done);
                    }
                    (true, State::Wait)
                }
                State::Wait => {
                    arm.flush()?;
                    return Ok(match cx.receive_mail() {
                        Some(_) => Step::Done,
                        None => wait(),
                    });
                }
            };
            if moved {
                self.state = next;
            } else if is_virtual {
                // In virtual time, time must pass between two polls.
                break;
            }
        }
        self.idle += 1;
        let is_due = self.measure.is_none() && self.idle.is_multiple_of(LOOK_EVERY);
        if is_due && cx.receive_mail().is_some() {
            self.state = State::Finish;
        }
        Ok(Step::Again)
    }

    fn report(&mut self) -> Result<Report> {
        let Some(Measure { job, histogram, .. }) = &self.measure else {
            return Ok(Report::None);
        };
        let scale = match job.workload {
            Workload::Rounds { .. } => 1.0,
            _ => 0.5,
        };
        Ok(Report::Latency(histogram.quantiles(scale)))
    }

    fn messages_moved(&self) -> u64 {
        self.rounds
    }
}

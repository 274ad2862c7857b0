//! The thread that receives from all rings.

use std::sync::Arc;

use headworks::verbs::{Device, Instant};

use super::ends::{Counts, Receivers, Rising};
use super::{Load, Phase, Task};
use crate::error::WorkloadError;
use crate::pair::PairContext;
use crate::pair::{PairCx, wait};
use crate::report::Report;
use crate::stats::Shares;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Messages between two clock reads, at least, unless so many looks were in vain.
const CLOCK_EVERY: u64 = 256;
const LOOKS: u64 = 64;

enum State {
    Rising(Box<Rising>),
    Up(Receivers),
    Gone,
}

/// Where in a phase it is.
#[derive(Clone)]
enum Stage {
    /// The sender is to be told.
    Begin,
    Warming(Instant),
    /// Since then, from these counts on.
    Measuring(Instant, Vec<u64>),
    /// The sender was told to stop, and may have said how much it sent.
    Ending(Option<u64>),
}

/// The receiving part.
pub(super) struct Receiving {
    task: Task,
    state: State,
    stage: Stage,
    found: Vec<Phase>,
    counts: Counts,
    /// Looks at all rings in vain.
    vain: u64,
    _device: Arc<dyn Device>,
}

impl Receiving {
    pub(super) fn new(task: &Task, pair: &PairContext) -> Result<Self, WorkloadError> {
        let device = pair.open_device()?;
        Ok(Self {
            task: task.clone(),
            state: State::Rising(Rising::new(task, &device)?.into()),
            stage: Stage::Begin,
            found: Vec::new(),
            counts: Counts(vec![0; task.rings]),
            vain: 0,
            _device: device,
        })
    }

    /// Receives for a while.
    fn receive(&mut self, ends: &mut Receivers, load: Load) -> Result<(), WorkloadError> {
        let (mut taken, mut vain) = (0, 0);
        while taken < CLOCK_EVERY && vain < LOOKS {
            match ends.take(&mut self.counts)? {
                0 => vain += 1,
                some => taken += some,
            }
        }
        self.vain += vain;
        // Looks in vain are what is measured there.
        if load != Load::Idle && vain == LOOKS {
            ends.look()?;
        }
        Ok(())
    }

    /// What is counted under `load`: looks, then how many of each ring.
    fn counted(&self) -> Vec<u64> {
        let mut counted = vec![self.vain];
        counted.extend(&self.counts.0);
        counted
    }

    fn phase(&self, load: Load, nanos: u64, before: &[u64]) -> Phase {
        let grown: Vec<u64> = self
            .counted()
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        let (vain, rings) = (grown[0], &grown[1..]);
        let count = match load {
            Load::Idle => vain,
            _ => rings.iter().sum(),
        };
        let shares = match load {
            Load::All => Shares::of(rings),
            Load::Flood => Shares::of(&rings[1..]),
            Load::Idle | Load::One => None,
        };
        Phase {
            count,
            nanos,
            shares,
        }
    }

    /// One bounded piece of a phase.
    fn step_up(&mut self, ends: &mut Receivers, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let Some(&load) = Load::ALL.get(self.found.len()) else {
            cx.mail(&[u8::MAX])?;
            return cx.done(&Report::Phases(std::mem::take(&mut self.found)));
        };
        if let Stage::Begin = self.stage {
            cx.mail(&[self.found.len() as u8])?;
            self.stage = Stage::Warming(cx.now());
        }
        self.receive(ends, load)?;
        match &mut self.stage {
            Stage::Begin => {}
            Stage::Warming(since) => {
                let now = cx.now();
                if now.since(*since) >= self.task.warm() {
                    self.stage = Stage::Measuring(now, self.counted());
                }
            }
            Stage::Measuring(since, before) => {
                let time = cx.now().since(*since);
                if time >= self.task.run() {
                    let before = std::mem::take(before);
                    let phase = self.phase(load, time.nanos(), &before);
                    self.found.push(phase);
                    cx.mail(b"stop")?;
                    self.stage = Stage::Ending(None);
                }
            }
            Stage::Ending(_) => {}
        }
        Ok(Step::Again)
    }

    /// Receives what is left of a phase; says whether that is all.
    fn end(&mut self, ends: &mut Receivers, cx: &mut Cx<'_>) -> Result<bool, WorkloadError> {
        let Stage::Ending(sent) = &mut self.stage else {
            return Ok(true);
        };
        if let (None, Some(mail)) = (&sent, cx.mailed()) {
            let number = <[u8; 8]>::try_from(&*mail);
            let number = number.map_err(|_| WorkloadError("no count in the mail".into()))?;
            *sent = Some(u64::from_le_bytes(number));
        }
        let sent = *sent;
        self.receive(ends, Load::All)?;
        if sent == Some(self.counts.0.iter().sum()) {
            self.stage = Stage::Begin;
            return Ok(true);
        }
        Ok(false)
    }
}

impl Actor for Receiving {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Rising(mut rising) => {
                if !rising.step(cx)? {
                    self.state = State::Rising(rising);
                    return Ok(wait());
                }
                self.state = State::Up(rising.finish()?);
                Ok(Step::Again)
            }
            State::Up(mut ends) => {
                let turn = if self.end(&mut ends, cx)? {
                    self.step_up(&mut ends, cx)?
                } else {
                    Step::Again
                };
                self.state = State::Up(ends);
                Ok(turn)
            }
            State::Gone => Err(ActorError::new("it failed before")),
        }
    }
}

//! An end that does a piece of work again and again, and measures how often.

use super::meter::Meter;
use crate::error::WorkloadError;
use crate::pair::{PairCx, wait};
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Pieces of work in one step.
const BATCH: usize = 64;

/// A piece of work.
pub(super) trait Work: Send {
    /// Does it; says how many requests or calls that was.
    fn once(&mut self) -> Result<u64, WorkloadError>;

    /// Sees the last one done.
    fn finish(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }
}

impl Work for Box<dyn Work> {
    fn once(&mut self) -> Result<u64, WorkloadError> {
        (**self).once()
    }
    fn finish(&mut self) -> Result<(), WorkloadError> {
        (**self).finish()
    }
}

/// Works until it has measured enough. Says how often it worked, and is finished when the other end has read that.
pub(super) struct Worker<W> {
    work: W,
    meter: Meter,
    count: u64,
    is_over: bool,
}

impl<W: Work> Worker<W> {
    pub(super) fn new(work: W, meter: Meter) -> Self {
        Self {
            work,
            meter,
            count: 0,
            is_over: false,
        }
    }
}

impl<W: Work> Actor for Worker<W> {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if self.is_over {
            return match cx.mailed() {
                Some(_) => cx.done(&self.meter.report()),
                None => Ok(wait()),
            };
        }
        for _ in 0..BATCH {
            self.count += self.work.once()?;
        }
        self.is_over = self.meter.count(self.count, cx);
        if self.is_over {
            self.work.finish()?;
            cx.mail(&self.count.to_le_bytes())?;
        }
        Ok(Step::Again)
    }
}

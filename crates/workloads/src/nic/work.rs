//! An end that does a piece of work again and again, and measures how often.

use super::meter::Meter;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};

/// Pieces of work in one step.
const BATCH: usize = 64;

/// A piece of work.
pub(super) trait Work: Send {
    /// Does it; says how many requests or calls that was.
    fn once(&mut self) -> Result<u64, ArmError>;

    /// Sees the last one done.
    fn finish(&mut self) -> Result<(), ArmError> {
        Ok(())
    }
}

impl Work for Box<dyn Work> {
    fn once(&mut self) -> Result<u64, ArmError> {
        (**self).once()
    }
    fn finish(&mut self) -> Result<(), ArmError> {
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

impl<W: Work> Part for Worker<W> {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if self.is_over {
            return Ok(match env.mailed() {
                Some(_) => Turn::Done(self.meter.report()),
                None => Turn::Wait,
            });
        }
        for _ in 0..BATCH {
            self.count += self.work.once()?;
        }
        self.is_over = self.meter.count(self.count, env);
        if self.is_over {
            self.work.finish()?;
            env.mail(&self.count.to_le_bytes())?;
        }
        Ok(Turn::Again)
    }
}

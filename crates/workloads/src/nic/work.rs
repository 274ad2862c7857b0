//! An end that does a piece of work again and again, and measures how often.

use super::Made;
use super::end::acting;
use super::meter::Meter;
use crate::error::Result;
use crate::pair::{PairCx, wait};
use headworks_runtime::Step;

/// Pieces of work in one step: so many that what a step itself costs is less than a hundredth, also of small WRITEs.
const BATCH: usize = 256;

/// A piece of work.
pub(super) trait Work: Send {
    /// Does it; says how many requests or calls that was.
    fn once(&mut self) -> Result<u64>;

    /// Sees the last one done.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The part that works until it has measured enough. It says how often it worked, and is finished when the other end
/// has read that.
pub(super) fn working(mut work: impl Work + 'static, mut meter: Meter) -> Made {
    let (mut count, mut is_over) = (0, false);
    acting(move |cx| {
        if is_over {
            return match cx.mailed() {
                Some(_) => cx.done(&meter.report()),
                None => Ok(wait()),
            };
        }
        for _ in 0..BATCH {
            count += work.once()?;
        }
        is_over = meter.count(count, cx);
        if is_over {
            work.finish()?;
            cx.mail(&count.to_le_bytes())?;
        }
        Ok(Step::Again)
    })
}

//! An end that does a piece of work again and again, and measures how often.

use super::Made;
use super::endpoint::acting;
use super::rate_meter::RateMeter;
use crate::actor_pair::{PairMail, wait};
use crate::error::Result;
use headworks_runtime::Step;

/// Pieces of work in one step: so many that what a step itself costs is less than a hundredth, also of small WRITEs.
const BATCH: usize = 256;

/// A piece of work.
pub(super) trait RepeatedWork: Send {
    /// Does it; says how many requests or calls that was.
    fn once(&mut self) -> Result<u64>;

    /// Sees the last one done.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The part that works until it has measured enough. It says how often it worked, and is finished when the other end
/// has read that.
pub(super) fn repeating(mut work: impl RepeatedWork + 'static, mut meter: RateMeter) -> Made {
    let (mut count, mut is_over) = (0, false);
    acting(move |cx| {
        if is_over {
            return match cx.receive_mail() {
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
            cx.send_mail(&count.to_le_bytes())?;
        }
        Ok(Step::Again)
    })
}

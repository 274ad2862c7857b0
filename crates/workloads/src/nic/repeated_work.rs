//! An end that repeats a piece of work, and measures how often per time.

use super::Made;
use super::endpoint::acting;
use super::rate_meter::RateMeter;
use crate::actor_pair::{PairMail, wait};
use crate::error::Result;
use headworks_runtime::Step;

/// Pieces of work per step: enough that the step itself costs less than a hundredth of them, even for small
/// WRITEs.
const BATCH: usize = 256;

/// A piece of work.
pub(super) trait RepeatedWork: Send {
    /// Does it once. Returns how many requests or calls that was.
    fn once(&mut self) -> Result<u64>;

    /// Waits until all of it has completed.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Makes the actor that repeats `work` until it has measured enough. It mails the count to the other end, and
/// is done when the other end answers.
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

//! What an application does where a channel is full or empty.
//!
//! Two channels that cross each other (requests one way, responses the other) can stop each other:
//! each side waits for what the other would send or free if it were not itself waiting. So whoever
//! finds a channel full or empty sees to both, as [`Group`](headworks::ring::Group) does for rings.

use std::hint::spin_loop;

use headworks::ring::{MessageReceiver, MessageSender, RingError};
use headworks_stage::Spacing;

/// Looks in vain between two at what the hot calls do not see: errors, the peer's death, space that
/// was not told of.
const EVERY: u32 = 256;

/// How a side that polls looks at its channels.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    spacing: Spacing,
    vain: u32,
}

impl Looks {
    /// A message was there.
    #[inline]
    pub fn found(&mut self) {
        self.spacing.found();
    }

    /// None was. Passes the moment that a stream which ran dry is left alone for.
    #[inline]
    fn pass(&mut self) -> bool {
        for _ in 0..self.spacing.empty() {
            spin_loop();
        }
        self.vain = self.vain.wrapping_add(1);
        self.vain.is_multiple_of(EVERY)
    }

    /// Nothing came on `inward`, the only channel there is.
    #[inline]
    pub fn empty_alone(&mut self, inward: &mut impl MessageReceiver) -> Result<(), RingError> {
        if self.pass() {
            inward.push_head()?;
            inward.step()?;
        }
        Ok(())
    }

    /// `out`, the only channel there is, has no room.
    #[inline]
    pub fn full_alone(&mut self, out: &mut impl MessageSender) -> Result<(), RingError> {
        self.vain = self.vain.wrapping_add(1);
        if self.vain.is_multiple_of(EVERY) {
            out.step()?;
        }
        Ok(())
    }

    /// Nothing came on `inward`: what was sent on `out` must not be held back while it is waited for.
    #[inline]
    pub fn empty(
        &mut self,
        out: &mut impl MessageSender,
        inward: &mut impl MessageReceiver,
    ) -> Result<(), RingError> {
        out.flush()?;
        if self.pass() {
            self.see_to(out, inward)?;
        }
        Ok(())
    }

    /// `out` has no room: the peer may be waiting for space on `inward`.
    #[inline]
    pub fn full(
        &mut self,
        out: &mut impl MessageSender,
        inward: &mut impl MessageReceiver,
    ) -> Result<(), RingError> {
        self.see_to(out, inward)
    }

    fn see_to(
        &mut self,
        out: &mut impl MessageSender,
        inward: &mut impl MessageReceiver,
    ) -> Result<(), RingError> {
        out.step()?;
        inward.push_head()?;
        inward.step()?;
        Ok(())
    }
}

//! Reassembly of a stream: which positions have arrived, in any order. Pure. Pieces arrive out of order
//! because queue pairs are not ordered among each other, and because READs complete at any time.

use std::collections::BTreeMap;

/// Maximum number of pieces after gaps. No more transfers than that are ever in flight at once.
pub const AHEAD_MAX: usize = 64;

/// The positions of a stream that have arrived.
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    /// Everything before this position has arrived.
    come: u64,
    /// Pieces after the first gap: start and end of each.
    ahead: BTreeMap<u64, u64>,
}

/// Error: a piece arrived twice, overlaps another, lies too far ahead, or lies after too many gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes cannot arrive at position {at} of a stream of which {come} bytes had arrived")]
pub struct InvalidSegment {
    /// Position of the piece.
    pub at: u64,
    /// Length of the piece, in bytes.
    pub len: u64,
    /// Number of bytes that had arrived without a gap.
    pub come: u64,
}

impl Reassembly {
    /// Checks whether a piece may arrive here: it must not overlap another, and must end at `limit` or
    /// before.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: it must not.
    pub fn check(&self, at: u64, len: u64, limit: u64) -> Result<(), InvalidSegment> {
        let come = self.come;
        let misplaced = InvalidSegment { at, len, come };
        let end = at.checked_add(len).filter(|end| *end <= limit);
        let end = end.ok_or(misplaced)?;
        let before = self.ahead.range(..=at).next_back();
        let overlaps = at < come
            || before.is_some_and(|(_, ends)| *ends > at)
            || self.ahead.range(at..end).next().is_some();
        let is_new = at != come && before.is_none_or(|(_, ends)| *ends != at);
        if len == 0 || overlaps || (is_new && self.ahead.len() >= AHEAD_MAX) {
            return Err(misplaced);
        }
        Ok(())
    }

    /// Adds a piece that was checked. Returns whether more has arrived without a gap than before.
    pub fn add(&mut self, at: u64, len: u64) -> bool {
        let end = at + len;
        if at != self.come {
            // Join the piece with the one that it follows, if there is one.
            let before = self.ahead.range_mut(..at).next_back();
            let before = before.filter(|(_, ends)| **ends == at).map(|(at, _)| *at);
            // Join it with the one after it too, so that there are no more pieces than gaps.
            let end = self.ahead.remove(&end).unwrap_or(end);
            self.ahead.insert(before.unwrap_or(at), end);
            return false;
        }
        self.come = end;
        while let Some(first) = self.ahead.first_entry() {
            if *first.key() != self.come {
                break;
            }
            self.come = first.remove();
        }
        true
    }

    /// Position before which everything has arrived.
    pub fn come(&self) -> u64 {
        self.come
    }

    /// End of the last piece that has arrived.
    pub fn highest(&self) -> u64 {
        self.ahead
            .last_key_value()
            .map_or(self.come, |(_, end)| *end)
    }

    /// Whether something has arrived after a gap.
    pub fn has_gaps(&self) -> bool {
        !self.ahead.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_set_of_positions(
            pieces in proptest::collection::vec((0u64..300, 0u64..40), 0..100),
        ) {
            let mut order = Reassembly::default();
            let mut oracle = vec![false; 400];
            for (at, len) in pieces {
                let range = at as usize..(at + len) as usize;
                let is_free = len > 0 && range.end <= 330 && !oracle[range.clone()].contains(&true);
                prop_assert_eq!(order.check(at, len, 330).is_ok(), is_free);
                if is_free {
                    let before = order.come();
                    let came = order.add(at, len);
                    oracle[range].fill(true);
                    prop_assert_eq!(came, order.come() > before);
                }
                let come = oracle.iter().position(|there| !there).unwrap_or(400);
                prop_assert_eq!(order.come(), come as u64);
                prop_assert_eq!(order.has_gaps(), oracle[come..].contains(&true));
            }
        }
    }

    #[test]
    fn gaps_are_bounded_and_positions_do_not_wrap() {
        let mut order = Reassembly::default();
        for gap in 1..=AHEAD_MAX as u64 {
            order.check(gap * 2, 1, 1000).unwrap();
            order.add(gap * 2, 1);
        }
        let far = AHEAD_MAX as u64 * 2;
        assert!(order.check(far + 2, 1, 1000).is_err());
        assert!(order.check(far + 1, 1, 1000).is_ok(), "joins another");
        assert!(order.check(0, 2, 1000).is_ok(), "fills a gap");
        assert!(order.check(u64::MAX, 2, u64::MAX).is_err());
    }
}

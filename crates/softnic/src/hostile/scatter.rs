//! Places a message's bytes in any order, in pieces and over several steps. Pure: its input is how the target
//! lies in memory, its output which bytes are placed in this step.

use std::ops::Range;

use headworks_faults::Random;

/// About the most pieces of a message. A longer message has longer pieces.
const PIECES: usize = 192;
/// Bytes of a word that is never torn, if the device places words whole.
const WORD: usize = 8;

/// The plan by which the bytes of one message are placed.
#[derive(Clone, Debug)]
pub struct Scatter {
    random: Random,
    whole_words: bool,
    steps: usize,
    planned: bool,
    /// Pieces still to be placed. The next is at the end.
    pieces: Vec<Range<usize>>,
}

/// A contiguous part of a target: its address and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its address. Only its value modulo 8 matters.
    pub addr: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl Scatter {
    /// Plans a message that is placed in at most `steps` steps. With `whole_words`, no aligned word of 8
    /// bytes is placed in parts, except a word that an extent of the target covers only partly.
    pub fn new(random: Random, whole_words: bool, steps: u32) -> Self {
        Self {
            random,
            whole_words,
            steps: steps.max(1) as usize,
            planned: false,
            pieces: Vec::new(),
        }
    }

    /// Returns whether aligned words of the target are placed whole.
    pub fn keeps_words(&self) -> bool {
        self.whole_words
    }

    /// Returns the bytes of the message that are placed in this step, in the order in which they are placed,
    /// as ranges of offsets. `target` is where the message goes, the same at every step; `len` is its length.
    pub fn step(&mut self, target: &[Extent], len: usize) -> Vec<Range<usize>> {
        if !self.planned {
            self.planned = true;
            self.pieces = self.cut(target, len);
            self.random.shuffle(&mut self.pieces);
        }
        let now = self.pieces.len().div_ceil(self.steps);
        self.steps = self.steps.max(2) - 1;
        let rest = self.pieces.len() - now;
        self.pieces.split_off(rest)
    }

    /// Cuts a message into pieces that may be placed in any order.
    fn cut(&mut self, target: &[Extent], len: usize) -> Vec<Range<usize>> {
        let mean = len.div_ceil(PIECES).max(1);
        let mut pieces = Vec::new();
        let mut base = 0;
        for extent in target {
            let end = (base + extent.len).min(len);
            let mut at = base;
            while at < end {
                let addr = extent.addr.wrapping_add(at - base);
                let size = match self.whole_words {
                    // Up to the next word boundary after about `mean` bytes.
                    true => mean.next_multiple_of(WORD) - addr % WORD,
                    false if mean == 1 => 1,
                    false => 1 + self.random.below(2 * mean as u64) as usize,
                };
                let next = (at + size).min(end);
                pieces.push(at..next);
                at = next;
            }
            base += extent.len;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let extent = (0usize..64, 0usize..700).prop_map(|(addr, len)| Extent { addr, len });
        proptest::collection::vec(extent, 0..4)
    }

    proptest! {
        #[test]
        fn every_byte_is_placed_once_and_words_whole(
            seed in any::<u64>(),
            target in extents(),
            less in 0usize..50,
            whole in any::<bool>(),
            steps in 0u32..9,
        ) {
            let room: usize = target.iter().map(|extent| extent.len).sum();
            let len = room.saturating_sub(less);
            let mut scatter = Scatter::new(Random::new(seed), whole, steps);
            let mut placed = vec![0u8; len];
            let mut taken = 0;
            while placed.contains(&0) {
                for piece in scatter.step(&target, len) {
                    for byte in &mut placed[piece.clone()] {
                        *byte += 1;
                    }
                    if whole {
                        // A cut within an extent must lie between words.
                        let mut base = 0;
                        for extent in &target {
                            let inside = base + 1..(base + extent.len).min(len);
                            for cut in [piece.start, piece.end] {
                                let addr = extent.addr.wrapping_add(cut.wrapping_sub(base));
                                prop_assert!(!inside.contains(&cut) || addr.is_multiple_of(WORD));
                            }
                            base += extent.len;
                        }
                    }
                }
                taken += 1;
                prop_assert!(taken <= steps.max(1), "more steps than asked for");
            }
            prop_assert!(placed.iter().all(|times| *times == 1));
            prop_assert!(scatter.step(&target, len).is_empty());
        }
    }

    #[test]
    fn orders_differ_and_are_no_order_of_addresses() {
        let target = [Extent { addr: 0, len: 64 }];
        let order = |seed| Scatter::new(Random::new(seed), true, 1).step(&target, 64);
        let seen: Vec<_> = (0..20).map(order).collect();
        assert!(seen.iter().any(|one| one != &seen[0]));
        assert!(seen.iter().all(|one| one.len() == 8));
        assert!(seen.iter().any(|one| !one.is_sorted_by_key(|r| r.start)));
    }

    #[test]
    fn a_long_message_has_few_pieces() {
        let len = 1 << 30;
        let target = [Extent { addr: 3, len }];
        for whole in [true, false] {
            let mut scatter = Scatter::new(Random::new(1), whole, 4);
            let mut bytes = 0;
            for _ in 0..4 {
                let pieces = scatter.step(&target, len);
                assert!(pieces.len() < 2 * PIECES);
                bytes += pieces.iter().map(Range::len).sum::<usize>();
            }
            assert_eq!(bytes, len);
        }
    }
}

//! Digest of a run.

/// A number that is equal in two runs that noted the same words in the same order: FNV-1a, a word at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Returns the digest of these words.
    pub fn of(words: &[u64]) -> u64 {
        let mut digest = Self::default();
        digest.note(words);
        digest.value()
    }

    /// Adds words.
    pub fn note(&mut self, words: &[u64]) {
        for word in words {
            let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            // Multiplication only carries upwards, so fold the high bits back into the low ones.
            self.0 = mixed ^ (mixed >> 32);
        }
    }

    /// Returns the digest so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_their_order_count() {
        assert_eq!(Digest::of(&[1, 2]), Digest::of(&[1, 2]));
        assert_ne!(Digest::of(&[1, 2]), Digest::of(&[2, 1]));
        assert_ne!(Digest::of(&[1, 2]), Digest::of(&[1, 2, 0]));
        let mut digest = Digest::default();
        digest.note(&[1]);
        digest.note(&[2]);
        assert_eq!(digest.value(), Digest::of(&[1, 2]));
    }
}

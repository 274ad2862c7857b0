//! The 8-byte word that frames a message.
//!
//! With write twice it stands in front of a message and says how long it is, or that slots up to
//! the end of the array are skipped. In latency mode it is the last word of a message's first slot
//! and also says in which lap it was written: a reader that polls it sees by that whether it is new.
//!
//! ```text
//!  63            34 33 32 31             0
//! +----------------+-----+----------------+
//! |      lap       | kind|      len       |
//! +----------------+-----+----------------+
//! ```

/// Longest message that a header can tell of, in bytes.
pub const LEN_MAX: usize = u32::MAX as usize;

const LAP_BITS: u32 = 30;

/// What a header says follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message of `len` bytes beside the header.
    Message,
    /// Latency mode: a message of `len` bytes in the slots after this one.
    Long,
    /// `len` slots of nothing, this one included.
    Skip,
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The lap, 1 to 2³⁰−1; 0 where it is not used.
    pub lap: u64,
    /// What follows.
    pub kind: Kind,
    /// Bytes, or slots of a skip.
    pub len: u32,
}

impl Header {
    /// The word.
    pub const fn word(self) -> u64 {
        self.lap << 34 | (self.kind as u64) << 32 | self.len as u64
    }

    /// Reads a word. `None` if its kind is none of ours.
    pub const fn parse(word: u64) -> Option<Self> {
        let kind = match word >> 32 & 3 {
            0 => Kind::Message,
            1 => Kind::Long,
            2 => Kind::Skip,
            _ => return None,
        };
        Some(Self {
            lap: word >> 34,
            kind,
            len: word as u32,
        })
    }
}

/// The lap of position `position` in a ring of `slots`: never 0, which is what unused memory holds.
///
/// Positions count from 0 and must not wrap with u64 here, unless `slots` is a power of two: laps would
/// not follow each other. 2⁶⁴ slots take centuries. A lap comes again after 2³⁰−1 laps; by then a slot
/// whose last word is looked at has been written anew.
pub const fn lap_of(position: u64, slots: u64) -> u64 {
    position / slots % ((1 << LAP_BITS) - 1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips_and_never_panics(word in any::<u64>(), position in any::<u64>(), slots in 2u64..1 << 20) {
            if let Some(header) = Header::parse(word) {
                prop_assert_eq!(header.word(), word);
            }
            let lap = lap_of(position, slots);
            prop_assert!(lap > 0 && lap < 1 << LAP_BITS);
        }
    }
}

//! The 8-byte word that frames a message.
//!
//! In the modes with write twice, the header stands in front of a message and holds its length, or says
//! that the slots up to the end of the array are skipped. In latency mode it is the last word of a
//! message's first slot, and also holds the lap in which it was written. A receiver that polls the word
//! recognises a new message by its lap.
//!
//! ```text
//!  63            34 33 32 31             0
//! +----------------+-----+----------------+
//! |      lap       | kind|      len       |
//! +----------------+-----+----------------+
//! ```

/// Longest message that a header can describe, in bytes.
pub const LEN_MAX: usize = u32::MAX as usize;

const LAP_BITS: u32 = 30;

/// Kind of what the header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message of `len` bytes: after the header, or in latency mode in the header's slot before it.
    Message,
    /// Latency mode: a message of `len` bytes in the slots after this one.
    Long,
    /// `len` slots without a message, including the header's slot.
    Skip,
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Lap, 1 to 2³⁰−1; 0 outside latency mode.
    pub lap: u64,
    /// Kind of what the header describes.
    pub kind: Kind,
    /// Length of the message in bytes, or of the skip in slots.
    pub len: u32,
}

impl Header {
    /// Encodes the header as a word.
    pub const fn word(self) -> u64 {
        self.lap << 34 | (self.kind as u64) << 32 | self.len as u64
    }

    /// Decodes a word. Returns `None` if its kind is unknown.
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

/// Returns the lap of position `position` in a ring of `slots`. A lap is never 0, because unused
/// memory holds 0.
///
/// Positions count from 0 and must not wrap at 2⁶⁴, because laps would not be consecutive across the
/// wrap. Sending 2⁶⁴ slots takes centuries. A lap number is reused after 2³⁰−1 laps; by then the sender
/// has overwritten every slot whose last word the receiver polls.
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

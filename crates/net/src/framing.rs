//! Messages on a byte stream: a 32-bit little-endian length and that many bytes. A length that is too large
//! is refused before any memory is allocated for it.

use headworks_wire::Malformed;

/// The bytes of a stream are no messages that this end accepts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A message longer than this end accepts or sends.
    #[error("message of {len} bytes: at most {max} are allowed")]
    TooLong {
        /// The length in the header.
        len: usize,
        /// The longest that is accepted.
        max: usize,
    },
    /// The content is no message of the protocol.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
}

impl From<Malformed> for FrameError {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Malformed(what)
    }
}

/// Length of the header in front of each message.
pub const HEADER: usize = 4;

/// Appends a message that consists of the concatenated `parts` to `out`. Appends nothing if it is too long.
pub fn encode_frame(out: &mut Vec<u8>, parts: &[&[u8]], max: usize) -> Result<(), FrameError> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    match u32::try_from(len) {
        Ok(header) if len <= max => out.extend_from_slice(&header.to_le_bytes()),
        _ => return Err(FrameError::TooLong { len, max }),
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

/// Capacity in bytes that an empty buffer keeps for later messages. Actors measure their own memory use, and
/// a long message must not add to that for good.
pub const RETAINED_CAPACITY: usize = 4 << 10;

/// Splits a byte stream into messages.
#[derive(Debug)]
pub struct FrameDecoder {
    max: usize,
    bytes: Vec<u8>,
    start: usize,
}

impl FrameDecoder {
    /// Accepts messages of up to `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self {
            max,
            bytes: Vec::new(),
            start: 0,
        }
    }

    /// Appends bytes that arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole message, if there is one. After an error the stream cannot be used any more:
    /// the error repeats.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*header) as usize;
        if len > self.max {
            return Err(FrameError::TooLong { len, max: self.max });
        }
        let Some(message) = rest.get(..len) else {
            return Ok(None);
        };
        let message = message.to_vec();
        self.start += HEADER + len;
        if self.start == self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
            self.bytes.shrink_to(RETAINED_CAPACITY);
        }
        Ok(Some(message))
    }

    /// Removes and returns the bytes after the last message, for a reader that parses the stream in another
    /// way from here on.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.bytes.split_off(self.start);
        *self = Self::new(self.max);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_length_is_refused_at_its_header() {
        let mut deframer = FrameDecoder::new(8);
        deframer.feed(&9u32.to_le_bytes());
        assert_eq!(
            deframer.next_message(),
            Err(FrameError::TooLong { len: 9, max: 8 })
        );
        assert_eq!(
            deframer.next_message(),
            Err(FrameError::TooLong { len: 9, max: 8 })
        );
        let mut out = Vec::new();
        assert!(encode_frame(&mut out, &[b"12345", b"6789"], 8).is_err());
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_cuts_never_panic(cuts in prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..40), 0..20,
        )) {
            let mut deframer = FrameDecoder::new(64);
            for cut in cuts {
                deframer.feed(&cut);
                while let Ok(Some(message)) = deframer.next_message() {
                    prop_assert!(message.len() <= 64);
                }
            }
        }

        #[test]
        fn messages_survive_any_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..10),
            cut in 1usize..50,
        ) {
            let mut stream = Vec::new();
            for message in &messages {
                encode_frame(&mut stream, &[message], 64).unwrap();
            }
            let (mut deframer, mut got) = (FrameDecoder::new(64), Vec::new());
            for piece in stream.chunks(cut) {
                deframer.feed(piece);
                while let Some(message) = deframer.next_message().unwrap() {
                    got.push(message);
                }
            }
            prop_assert_eq!(got, messages);
        }
    }
}

//! Contents of messages: the sender writes them, the receiver reads and checks them.

use headworks::verbs::Instant;

use super::{MessageSink, MessageSource};
use crate::error::{Result, WorkloadError};
use crate::latency::{Histogram, Schedule};

/// Writes one message after the other.
#[derive(Default)]
pub struct MessageWriter {
    /// Whether every byte is written, with a value that changes from message to message. Otherwise only the
    /// message's number is written, into its first word.
    touches: bool,
    next: u64,
}

/// Reads one message after the other and counts those that differ from what [`MessageWriter`] wrote.
#[derive(Default)]
pub struct MessageChecker {
    /// Whether every byte is read.
    touches: bool,
    next: u64,
    wrong: u64,
}

impl MessageWriter {
    /// Makes a writer. `touches`: it writes all bytes of a message instead of one word.
    pub fn new(touches: bool) -> Self {
        Self { touches, next: 0 }
    }
}

impl MessageSource for MessageWriter {
    #[inline]
    fn fill(&mut self, message: &mut [u8]) {
        match self.touches {
            true => message.fill(self.next as u8),
            false => put(message, 0, self.next),
        }
        self.next += 1;
    }

    fn again(&mut self) {
        self.next -= 1;
    }
}

impl MessageSink for MessageChecker {
    #[inline]
    fn take(&mut self, message: &[u8]) {
        let is_right = match self.touches {
            true => sum(message) == u64::from(self.next as u8) * message.len() as u64,
            false => word(message, 0) == self.next,
        };
        self.wrong += u64::from(!is_right);
        self.next += 1;
    }
}

impl MessageChecker {
    /// Makes a checker. `touches`: it reads all bytes of a message instead of one word.
    pub fn new(touches: bool) -> Self {
        Self {
            touches,
            ..Self::default()
        }
    }

    /// Returns an error if any message differed from what the sender wrote.
    pub fn check(&self) -> Result<()> {
        match self.wrong {
            0 => Ok(()),
            n => Err(WorkloadError(format!(
                "{n} messages arrived with other contents than sent"
            ))),
        }
    }
}

/// Writes into each message when it should have been sent, and whether it is measured.
pub struct TimestampWriter {
    /// When each message is due.
    pub schedule: Schedule,
    /// Number of the next message.
    pub next: u64,
    /// Number of the first message after the warm-up.
    pub from: u64,
    /// One of every this many messages is measured. At high rates, measuring each would be the bottleneck.
    pub every: u64,
    /// Number of messages in all.
    pub total: u64,
}

impl MessageSource for TimestampWriter {
    fn fill(&mut self, message: &mut [u8]) {
        let measured = self.next >= self.from && self.next.is_multiple_of(self.every);
        put(message, 0, self.schedule.intended(self.next).nanos());
        put(message, 1, u64::from(measured));
        self.next += 1;
    }

    fn again(&mut self) {
        self.next -= 1;
    }
}

/// Collects when the measured messages were due, and how much later they came.
#[derive(Default)]
pub struct LatencyRecorder {
    /// Due times of messages taken since this list was last emptied.
    pub due: Vec<Instant>,
    /// Latencies of earlier messages.
    pub histogram: Histogram,
}

impl MessageSink for LatencyRecorder {
    fn take(&mut self, message: &[u8]) {
        if word(message, 1) == 1 {
            self.due.push(Instant::from_nanos(word(message, 0)));
        }
    }
}

fn put(message: &mut [u8], index: usize, value: u64) {
    message[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
}

fn word(message: &[u8], index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&message[index * 8..index * 8 + 8]);
    u64::from_le_bytes(bytes)
}

/// Returns the sum of all bytes. Pieces of 128 bytes sum into 16-bit lanes, which the compiler vectorises.
fn sum(bytes: &[u8]) -> u64 {
    let mut total = 0;
    let (pieces, rest) = bytes.as_chunks::<128>();
    for piece in pieces {
        total += u64::from(piece.iter().map(|&b| u16::from(b)).sum::<u16>());
    }
    total + rest.iter().map(|&b| u64::from(b)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sends 600 messages, writing those twice for which `again` is true, and then one that `harm` changes.
    /// Returns how many were wrong before the last one, and in all.
    fn wrong(
        touches: bool,
        again: impl Fn(u64) -> bool,
        harm: fn(&mut MessageWriter, &mut [u8]),
    ) -> [u64; 2] {
        let (mut from, mut to) = (MessageWriter::new(touches), MessageChecker::new(touches));
        let mut message = [0; 1000];
        for round in 0..600 {
            from.fill(&mut message);
            if again(round) {
                from.again();
                from.fill(&mut message);
            }
            to.take(&message);
        }
        let before = to.wrong;
        from.fill(&mut message);
        harm(&mut from, &mut message);
        to.take(&message);
        assert_eq!(to.check().is_err(), to.wrong > 0);
        [before, to.wrong]
    }

    #[test]
    fn written_messages_are_right_and_damaged_ones_wrong() {
        let harmed = |_: &mut MessageWriter, message: &mut [u8]| message[500] ^= 1;
        assert_eq!(wrong(true, |_| false, harmed), [0, 1]);
        assert_eq!(wrong(false, |_| false, MessageWriter::fill), [0, 1]);
        // A message that was not sent is written again.
        assert_eq!(wrong(true, |n| n % 3 == 1, |_, _| ()), [0, 0]);
        assert_eq!(wrong(false, |n| n % 3 == 0, |_, _| ()), [0, 0]);
    }

    proptest! {
        #[test]
        fn sums_every_byte(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            prop_assert_eq!(sum(&bytes), bytes.iter().map(|&b| u64::from(b)).sum::<u64>());
        }
    }
}

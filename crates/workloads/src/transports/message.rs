//! The contents of messages: what a sender writes and a receiver reads and checks.

use headworks::verbs::Instant;

use super::{Fill, Sink, WorkloadError};
use crate::latency::Schedule;

/// Writes the number of the message into its first word and touches nothing else.
#[derive(Debug, Default)]
pub struct Mark {
    next: u64,
}

impl Fill for Mark {
    fn fill(&mut self, message: &mut [u8]) {
        put(message, 0, self.next);
        self.next += 1;
    }

    fn again(&mut self) {
        self.next -= 1;
    }
}

/// Reads the first word of each message, which must be its number.
#[derive(Debug, Default)]
pub struct Marks {
    next: u64,
    wrong: u64,
}

impl Sink for Marks {
    fn take(&mut self, message: &[u8]) {
        self.wrong += u64::from(word(message, 0) != self.next);
        self.next += 1;
    }
}

/// Fills every byte with a value that changes from message to message.
#[derive(Debug, Default)]
pub struct Paint {
    next: u64,
}

impl Fill for Paint {
    fn fill(&mut self, message: &mut [u8]) {
        message.fill(self.next as u8);
        self.next += 1;
    }

    fn again(&mut self) {
        self.next -= 1;
    }
}

/// Sums every byte of each message and compares with what [`Paint`] wrote.
#[derive(Debug, Default)]
pub struct Sums {
    next: u64,
    wrong: u64,
}

impl Sink for Sums {
    fn take(&mut self, message: &[u8]) {
        let expected = u64::from(self.next as u8) * message.len() as u64;
        self.wrong += u64::from(sum(message) != expected);
        self.next += 1;
    }
}

/// What a receiver found wrong.
pub trait Verdict: Sink + Default {
    /// How many messages were not what the sender wrote.
    fn wrong(&self) -> u64;

    /// An error if any was.
    fn check(&self) -> Result<(), WorkloadError> {
        match self.wrong() {
            0 => Ok(()),
            n => Err(WorkloadError(format!(
                "{n} messages arrived with other contents than sent"
            ))),
        }
    }
}

impl Verdict for Marks {
    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl Verdict for Sums {
    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// Writes when each message should have been sent, and whether it is one of those to measure.
#[derive(Debug)]
pub struct Stamp {
    /// When each is due.
    pub schedule: Schedule,
    /// Number of the next message.
    pub next: u64,
    /// Those before this one are warm-up.
    pub from: u64,
    /// One in so many is measured: at high rates measuring every one would be the bottleneck.
    pub every: u64,
}

impl Fill for Stamp {
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

/// Collects the stamps of the messages to measure.
#[derive(Debug, Default)]
pub struct Stamps {
    /// Taken since it was last emptied.
    pub due: Vec<Instant>,
}

impl Sink for Stamps {
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

/// The sum of all bytes; 128-byte pieces sum into 16-bit lanes, which the compiler vectorises.
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

    #[test]
    fn what_is_painted_sums_and_what_is_not_does_not() {
        let (mut paint, mut sums) = (Paint::default(), Sums::default());
        let mut message = vec![0; 1000];
        for _ in 0..600 {
            paint.fill(&mut message);
            sums.take(&message);
        }
        assert!(sums.check().is_ok());
        paint.fill(&mut message);
        message[500] ^= 1;
        sums.take(&message);
        assert_eq!(sums.wrong(), 1);
    }

    #[test]
    fn a_message_that_was_not_sent_is_written_again() {
        let mut message = vec![0; 64];
        let (mut mark, mut marks) = (Mark::default(), Marks::default());
        let (mut paint, mut sums) = (Paint::default(), Sums::default());
        for round in 0..9 {
            mark.fill(&mut message);
            if round % 3 == 0 {
                mark.again();
                mark.fill(&mut message);
            }
            marks.take(&message);
            paint.fill(&mut message);
            if round % 3 == 1 {
                paint.again();
                paint.fill(&mut message);
            }
            sums.take(&message);
        }
        assert!(marks.check().is_ok() && sums.check().is_ok());
    }

    #[test]
    fn marks_see_a_lost_message() {
        let (mut mark, mut marks) = (Mark::default(), Marks::default());
        let mut message = [0; 8];
        mark.fill(&mut message);
        marks.take(&message);
        mark.fill(&mut message);
        mark.fill(&mut message);
        marks.take(&message);
        assert!(marks.check().is_err());
    }

    proptest! {
        #[test]
        fn sums_every_byte(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            prop_assert_eq!(sum(&bytes), bytes.iter().map(|&b| u64::from(b)).sum::<u64>());
        }
    }
}

//! Contents of each message. They are derived from the message's number alone, so either end can check what
//! the other sent.

use headworks::ring::Framing;
use headworks::sim::faults::Random;

use crate::plan::Plan;

impl Plan {
    /// Returns the length of message `number` of a ring, in bytes.
    pub(super) fn message_len(&self, ring: usize, number: u64) -> usize {
        match self.configs[0].framing {
            Framing::Fixed(len) => len,
            Framing::Variable(most) => {
                let mut random = Random::of(self.seed, &[2, ring as u64, number]);
                // Two thirds of the messages have at most 200 bytes. The others have any length up to the maximum.
                let most = match random.below(3) {
                    0 => most as u64,
                    _ => (most as u64).min(200),
                };
                random.within(0, most) as usize
            }
        }
    }

    /// Fills `place` with the first bytes of message `number` of a ring.
    pub(super) fn fill(&self, ring: usize, number: u64, place: &mut [u8]) {
        let mut random = Random::of(self.seed, &[3, ring as u64, number]);
        for chunk in place.chunks_mut(8) {
            let word = random.bits().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn message(&self, ring: usize, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.message_len(ring, number)];
        self.fill(ring, number, &mut bytes);
        bytes
    }

    /// Returns what is wrong with bytes that came as message `number` of a ring.
    pub(super) fn wrong(&self, ring: usize, number: u64, bytes: &[u8]) -> Option<String> {
        let expected = self.message(ring, number);
        if expected == bytes {
            return None;
        }
        let (len, right) = (bytes.len(), expected.len());
        let mut near = number.saturating_sub(300)..number + 300;
        let is_that = |other: &u64| *other != number && self.message(ring, *other) == bytes;
        let other = near.find(is_that).filter(|_| len >= 4);
        Some(match other {
            Some(other) => format!("message {other} came in place of {number}"),
            None if right != len => {
                format!("message {number} came with {len} bytes in place of {right}")
            }
            None => {
                let at = expected.iter().zip(bytes).position(|(one, two)| one != two);
                let at = at.unwrap_or(0);
                format!("message {number} of {len} bytes came changed at byte {at}")
            }
        })
    }
}

//! What each message is, from its number alone: either end knows what the other must have sent.

use headworks::ring::{Framing, RingConfig};
use headworks::sim::faults::Chance;

/// The messages of one ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Messages {
    seed: u64,
    ring: u64,
    framing: Framing,
}

impl Messages {
    pub(super) fn new(seed: u64, ring: usize, config: &RingConfig) -> Self {
        let (ring, framing) = (ring as u64, config.framing);
        Self {
            seed,
            ring,
            framing,
        }
    }

    /// Bytes of message `number`.
    pub(super) fn len(&self, number: u64) -> usize {
        match self.framing {
            Framing::Fixed(len) => len,
            Framing::Variable(most) => {
                let mut chance = Chance::of(self.seed, &[2, self.ring, number]);
                // Mostly short ones, and all lengths up to the longest.
                let most = match chance.below(3) {
                    0 => most as u64,
                    _ => (most as u64).min(200),
                };
                chance.within(0, most) as usize
            }
        }
    }

    /// Puts message `number` into `place`, which is as long as it.
    pub(super) fn fill(&self, number: u64, place: &mut [u8]) {
        let mut chance = Chance::of(self.seed, &[3, self.ring, number]);
        for chunk in place.chunks_mut(8) {
            let word = chance.bits().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// The bytes of message `number`.
    pub(super) fn bytes(&self, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.len(number)];
        self.fill(number, &mut bytes);
        bytes
    }

    /// What is wrong with bytes that came as message `number`.
    pub(super) fn wrong(&self, number: u64, bytes: &[u8]) -> Option<String> {
        let expected = self.bytes(number);
        if expected == bytes {
            return None;
        }
        let near = number.saturating_sub(300)..number + 300;
        let other = near
            .filter(|other| *other != number && bytes.len() >= 4)
            .find(|other| self.len(*other) == bytes.len() && self.bytes(*other) == bytes);
        Some(match other {
            Some(other) => format!("message {other} came in place of {number}"),
            None if expected.len() != bytes.len() => format!(
                "message {number} came with {} bytes in place of {}",
                bytes.len(),
                expected.len()
            ),
            None => {
                let at = expected.iter().zip(bytes).position(|(one, two)| one != two);
                format!(
                    "message {number} of {} bytes came changed at byte {}",
                    bytes.len(),
                    at.unwrap_or(0)
                )
            }
        })
    }
}

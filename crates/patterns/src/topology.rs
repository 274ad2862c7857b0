//! The responder of each request.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Chooses the responder of each request: its index among the requester's peers.
pub trait Topology: Send {
    /// Returns the index of the next request's responder.
    fn next(&mut self) -> usize;
}

/// One responder for all requests: one-to-one and N-to-one.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneResponder;

impl Topology for OneResponder {
    #[inline(always)]
    fn next(&mut self) -> usize {
        0
    }
}

/// A random responder for each request: N-to-M (section 7).
#[derive(Clone, Debug)]
pub struct RandomResponder {
    random: SplitMix64,
    responders: u64,
}

impl RandomResponder {
    /// Chooses among `responders` responders, at least one, by `seed`.
    pub fn new(responders: usize, seed: u64) -> Self {
        Self {
            random: SplitMix64::seed_from_u64(seed),
            responders: responders.max(1) as u64,
        }
    }
}

impl Topology for RandomResponder {
    #[inline(always)]
    fn next(&mut self) -> usize {
        // The high word of a product: uniform up to 2^-32 for fewer than 2^32 responders.
        ((u128::from(self.random.next_u64()) * u128::from(self.responders)) >> 64) as usize
    }
}

//! Where the announced transfers of one connection land, in the order of the stream. Pure.
//!
//! These rules keep connections from blocking each other for ever, however full the pool is:
//!
//! 1. Memory of the pool is granted in the order of the stream: only the first transfer of a connection that has not been
//!    READ completely may take some.
//! 2. A sender sends no further bytes in line while a transfer that it announced was not granted. So the connection's own
//!    ring, into which such bytes are copied, holds nothing behind the first transfer.
//! 3. A transfer that gets no memory of the pool while its application has read everything before it is READ piece by piece
//!    into the connection's own ring.
//!
//! So an application that reads one connection gets its bytes, even if others hold the whole pool and read nothing. If it
//! has not read everything, it can go on with that, and rule 3 applies when it has.

use std::collections::VecDeque;

use crate::units::{EXTENT_MAX, UNIT};

/// Where the next bytes of a connection go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LandingStep {
    /// Nothing was announced.
    Nothing,
    /// Nothing can be READ now. Ask again when the pool, or the connection's application, has released something.
    Wait,
    /// READ this many bytes into the pool.
    Pool(u32),
    /// READ this many bytes into the connection's own ring.
    Ring(u32),
}

/// The announced transfers of a connection that were not READ completely.
#[derive(Clone, Debug, Default)]
pub struct Landing {
    /// Bytes of each that no READ was begun for.
    left: VecDeque<u64>,
    /// Bytes that are being READ, or were and the application has not consumed.
    unread: u64,
}

impl Landing {
    /// Records that a transfer of `bytes` was announced.
    pub fn announced(&mut self, bytes: u64) {
        if bytes > 0 {
            self.left.push_back(bytes);
        }
    }

    /// Records that `bytes` came in line, which the application has not consumed.
    pub fn came(&mut self, bytes: u64) {
        self.unread += bytes;
    }

    /// Records that the application has consumed `bytes`.
    pub fn consumed(&mut self, bytes: u64) {
        self.unread -= bytes;
    }

    /// Returns the bytes of the first transfer for which no READ was begun.
    pub fn first(&self) -> Option<u64> {
        self.left.front().copied()
    }

    /// Returns where the next bytes go. `units` is the number of units of the pool that the first transfer may take: 0 if it
    /// was not admitted. `fragment` is the length of a READ at most, and `ring` the room in the connection's own ring, in bytes.
    pub fn next(&self, units: u32, fragment: u32, ring: u32) -> LandingStep {
        let Some(left) = self.first() else {
            return LandingStep::Nothing;
        };
        let up_to = |most: u32| left.min(most.into()) as u32;
        if units > 0 {
            let most = units.saturating_mul(UNIT).min(EXTENT_MAX).min(fragment);
            return LandingStep::Pool(up_to(most));
        }
        if self.unread == 0 && ring > 0 {
            return LandingStep::Ring(up_to(ring.min(fragment)));
        }
        LandingStep::Wait
    }

    /// Records that a READ of `bytes`, as [`next`](Self::next) returned them, has begun. Returns whether it is the transfer's
    /// last.
    ///
    /// # Panics
    ///
    /// If the first transfer has fewer bytes.
    pub fn begun(&mut self, bytes: u32) -> bool {
        let first = self.left.front_mut().expect("a transfer was announced");
        *first = first.checked_sub(bytes.into()).expect("more than was left");
        self.unread += u64::from(bytes);
        let is_last = *first == 0;
        if is_last {
            self.left.pop_front();
        }
        is_last
    }

    /// Bytes that are being READ, or were and the application has not consumed.
    pub fn unread(&self) -> u64 {
        self.unread
    }
}

//! Where the announced transfers of one connection land, in the order of the stream. Pure.
//!
//! These rules keep connections from blocking each other for ever, however full the pool is:
//!
//! 1. Memory of the pool is granted in the order of the stream: only the first transfer of a connection that has not
//!    been READ completely may take some.
//! 2. The sender may use only a part of the connection's own ring for bytes in line. So however many of them have come
//!    behind a transfer, the rest of the ring has room for a piece of that transfer.
//! 3. A transfer for which the pool [has no memory](Grant::Short) while its application has read everything before it
//!    is READ piece by piece into that rest of the connection's own ring.
//!
//! So an application that reads one connection gets its bytes, even if others hold the whole pool and read nothing. If
//! it has not read everything, it can go on with that, and rule 3 applies when it has.

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

/// Answer of the pool to the first transfer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The transfer was admitted, and may take this many units, at least 1.
    Units(u32),
    /// It waits for its turn, or for a READ to end, but not for memory.
    Soon,
    /// It waits for memory, or has waited for its turn for long.
    Short,
}

/// Error: a peer or an application did what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LandingError {
    /// The peer has announced [`ANNOUNCED_MAX`] transfers that were not READ.
    #[error("more than {ANNOUNCED_MAX} transfers are announced")]
    TooMany,
    /// A transfer has at least one byte.
    #[error("a transfer of 0 bytes was announced")]
    Empty,
    /// The application has consumed more than arrived.
    #[error("more was consumed than had arrived")]
    Consumed,
}

/// Greatest number of announced transfers of a connection that were not READ completely.
pub const ANNOUNCED_MAX: usize = 1024;

/// A transfer that was announced.
#[derive(Clone, Copy, Debug)]
struct Announced {
    /// Bytes that no READ was begun for.
    left: u64,
    /// Bytes that came in line behind it, before the next transfer.
    behind: u64,
}

/// The announced transfers of a connection that were not READ completely.
#[derive(Clone, Debug, Default)]
pub struct Landing {
    transfers: VecDeque<Announced>,
    /// Bytes before the first transfer's rest that the application has not consumed. They came in line, are being READ
    /// or were READ.
    unread: u64,
}

impl Landing {
    /// Records that a transfer of `bytes` was announced.
    ///
    /// # Errors
    ///
    /// [`LandingError::TooMany`], [`LandingError::Empty`].
    pub fn announced(&mut self, bytes: u64) -> Result<(), LandingError> {
        if bytes == 0 {
            return Err(LandingError::Empty);
        }
        if self.transfers.len() >= ANNOUNCED_MAX {
            return Err(LandingError::TooMany);
        }
        self.transfers.push_back(Announced {
            left: bytes,
            behind: 0,
        });
        Ok(())
    }

    /// Records that `bytes` came in line, behind all that was announced.
    pub fn came(&mut self, bytes: u64) {
        match self.transfers.back_mut() {
            Some(last) => last.behind += bytes,
            None => self.unread += bytes,
        }
    }

    /// Records that the application has consumed `bytes`.
    ///
    /// # Errors
    ///
    /// [`LandingError::Consumed`].
    pub fn consumed(&mut self, bytes: u64) -> Result<(), LandingError> {
        let left = self.unread.checked_sub(bytes);
        self.unread = left.ok_or(LandingError::Consumed)?;
        Ok(())
    }

    /// Returns the bytes of the first transfer for which no READ was begun.
    pub fn first(&self) -> Option<u64> {
        self.transfers.front().map(|first| first.left)
    }

    /// Returns where the next bytes go. `fragment` is the length of the longest READ in bytes. `ring` is the room, in
    /// bytes, in the part of the connection's own ring that the sender may not use. A READ into the ring counts in the
    /// windows of READs like any other.
    pub fn next(&self, grant: Grant, fragment: u32, ring: u32) -> LandingStep {
        let Some(left) = self.first() else {
            return LandingStep::Nothing;
        };
        let up_to = |most: u32| left.min(most.into()) as u32;
        match grant {
            Grant::Units(units) => {
                let most = units.saturating_mul(UNIT).min(EXTENT_MAX).min(fragment);
                LandingStep::Pool(up_to(most))
            }
            Grant::Short if self.unread == 0 && ring > 0 => {
                LandingStep::Ring(up_to(ring.min(fragment)))
            }
            Grant::Short | Grant::Soon => LandingStep::Wait,
        }
    }

    /// Records that a READ of `bytes`, as [`next`](Self::next) returned them, has begun. Returns whether it is the
    /// transfer's last.
    ///
    /// # Panics
    ///
    /// If the first transfer has fewer bytes.
    pub fn begun(&mut self, bytes: u32) -> bool {
        let first = self.transfers.front_mut();
        let first = first.expect("a transfer was announced");
        let left = first.left.checked_sub(bytes.into());
        first.left = left.expect("more than was left");
        self.unread += u64::from(bytes);
        let is_last = first.left == 0;
        if is_last {
            self.unread += first.behind;
            self.transfers.pop_front();
        }
        is_last
    }

    /// Number of transfers that were not READ completely.
    pub fn transfers_left(&self) -> usize {
        self.transfers.len()
    }

    /// Bytes before the first transfer's rest that the application has not consumed.
    pub fn unread(&self) -> u64 {
        self.unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_for_what_has_nothing_before_it_and_no_memory() {
        let mut landing = Landing::default();
        let next = |landing: &Landing, grant| landing.next(grant, EXTENT_MAX, 4096);
        assert_eq!(next(&landing, Grant::Short), LandingStep::Nothing);
        landing.announced(300_000).unwrap();
        assert_eq!(next(&landing, Grant::Soon), LandingStep::Wait);
        assert_eq!(next(&landing, Grant::Short), LandingStep::Ring(4096));
        assert_eq!(next(&landing, Grant::Units(2)), LandingStep::Pool(8192));
        assert_eq!(
            next(&landing, Grant::Units(99)),
            LandingStep::Pool(EXTENT_MAX)
        );
        // What came behind the transfer does not keep a piece of it from the ring.
        landing.came(10);
        assert_eq!(next(&landing, Grant::Short), LandingStep::Ring(4096));
        assert!(!landing.begun(1000));
        assert_eq!(next(&landing, Grant::Short), LandingStep::Wait);
        assert_eq!(next(&landing, Grant::Units(1)), LandingStep::Pool(4096));
        assert_eq!(landing.consumed(1001), Err(LandingError::Consumed));
        landing.consumed(1000).unwrap();
        assert_eq!(landing.next(Grant::Short, EXTENT_MAX, 0), LandingStep::Wait);
        assert!(!landing.begun(298_000));
        assert_eq!(next(&landing, Grant::Units(1)), LandingStep::Pool(1000));
        assert!(landing.begun(1000));
        assert_eq!((landing.first(), landing.unread()), (None, 299_010));
        assert_eq!(landing.announced(0), Err(LandingError::Empty));
        let announced = (0..=ANNOUNCED_MAX).map(|_| landing.announced(1));
        let refused: Vec<_> = announced.filter_map(Result::err).collect();
        assert_eq!(refused, [LandingError::TooMany]);
    }
}

//! The limit on the memory of one application: its slabs, and what its direct connections use.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an application may have in slabs and use for its direct connections, all together, and those that it has. The
/// memory of direct connections stays charged until both applications have left them. Other applications decide when they leave,
/// so direct connections take at most half of the limit. The rest remains for slabs.
#[derive(Debug)]
pub(crate) struct MemoryQuota {
    most: u64,
    charged: AtomicU64,
    direct: AtomicU64,
}

impl MemoryQuota {
    pub(crate) fn new(most: u64) -> Self {
        Self {
            most,
            charged: AtomicU64::new(0),
            direct: AtomicU64::new(0),
        }
    }

    /// Charges a slab; `false` if that would exceed the limit.
    #[must_use]
    pub(crate) fn take_slab(&self, bytes: u64) -> bool {
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.most);
        let taken = self
            .charged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok()
    }

    /// Returns the bytes of a slab that could not be allocated.
    pub(crate) fn give_slab(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Charges memory of direct connections; `false` if that would exceed the limit, or half of it for direct connections alone.
    #[must_use]
    pub(crate) fn take_direct(&self, bytes: u64) -> bool {
        let take = |used: u64| {
            used.checked_add(bytes)
                .filter(|used| *used <= self.most / 2)
        };
        let direct = self
            .direct
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if direct.is_err() {
            return false;
        }
        let is_taken = self.take_slab(bytes);
        if !is_taken {
            self.direct.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Returns memory of direct connections.
    pub(crate) fn give_direct(&self, bytes: u64) {
        self.direct.fetch_sub(bytes, Ordering::Relaxed);
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that direct connections use.
    pub(crate) fn direct(&self) -> u64 {
        self.direct.load(Ordering::Relaxed)
    }

    /// Bytes of slabs and of direct connections.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_and_direct_connections_share_the_limit() {
        let quota = MemoryQuota::new(100);
        assert!(quota.take_slab(60) && quota.take_direct(40));
        assert!(!quota.take_slab(1) && !quota.take_direct(1));
        assert_eq!((quota.charged(), quota.direct()), (100, 40));
        quota.give_direct(30);
        assert_eq!((quota.charged(), quota.direct()), (70, 10));
        assert!(quota.take_slab(30));
        assert!(!quota.take_direct(u64::MAX));
    }

    #[test]
    fn direct_connections_leave_half_of_the_limit_for_slabs() {
        let quota = MemoryQuota::new(100);
        assert!(quota.take_direct(50));
        assert!(!quota.take_direct(1));
        assert_eq!((quota.charged(), quota.direct()), (50, 50));
        assert!(quota.take_slab(50));
        quota.give_direct(50);
        // The quota charges nothing for a request that it refuses.
        assert!(quota.take_slab(20) && !quota.take_direct(40));
        assert_eq!((quota.charged(), quota.direct()), (70, 0));
        assert!(quota.take_direct(30));
    }
}

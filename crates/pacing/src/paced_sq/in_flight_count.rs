//! Requests that the device has, and the most that it may have.

/// Number of requests and slices in flight of all queue pairs of one completion queue.
#[derive(Debug)]
pub(super) struct InFlightCount {
    /// Sum of [`RequestQueue::flying`](crate::request_queue::RequestQueue::flying) of all queue pairs. It exceeds
    /// `limit` by no more than one request of each broken queue pair.
    count: usize,
    /// At least 1, and at most half of what the device's completion queue holds. The other half is for completions
    /// that destroyed queue pairs leave behind.
    limit: usize,
}

impl InFlightCount {
    /// `depth` is that of the device's completion queue; `most` is the configured limit.
    pub(super) fn new(depth: u32, most: usize) -> Self {
        Self {
            count: 0,
            limit: (depth as usize / 2).clamp(1, most),
        }
    }

    /// Returns the most requests that may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    #[inline]
    pub(super) fn is_zero(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    /// Returns how many more requests may be posted.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.limit - self.count.min(self.limit)
    }

    #[inline]
    pub(super) fn add(&mut self, count: usize) {
        self.count += count;
    }

    /// Removes a request that has completed as expected.
    #[inline]
    pub(super) fn remove_one(&mut self) {
        self.count -= 1;
    }

    /// Removes requests that failed, or that nobody waits for any more.
    #[inline]
    pub(super) fn remove(&mut self, count: usize) {
        self.count = self.count.saturating_sub(count);
    }
}

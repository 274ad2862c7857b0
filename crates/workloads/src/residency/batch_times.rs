//! Times of batches of bytes. Nothing is allocated while times are taken, so that no page fault is measured. Pure.

use crate::stats::median;

/// Most batches of a measurement.
const BATCHES_MAX: usize = 8192;

/// Times of batches.
#[derive(Debug)]
pub struct BatchTimes {
    /// Nanoseconds of each batch. All of it is written when it is made, so that its pages are there.
    nanos: Box<[u64]>,
    count: usize,
}

impl Default for BatchTimes {
    fn default() -> Self {
        Self {
            nanos: vec![u64::MAX; BATCHES_MAX].into(),
            count: 0,
        }
    }
}

impl BatchTimes {
    /// Records the time of a batch in nanoseconds. Returns whether there is room for another one.
    #[inline]
    pub fn record(&mut self, nanos: u64) -> bool {
        if let Some(place) = self.nanos.get_mut(self.count) {
            *place = nanos;
            self.count += 1;
        }
        self.count < self.nanos.len()
    }

    /// Number of batches.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the rate of the median batch per second, where a batch has `amount` of something. The median is what
    /// the machine does while nobody else uses its processors. `None` if no batch was recorded.
    pub fn per_second(&self, amount: usize) -> Option<f64> {
        let nanos: Vec<f64> = self.nanos[..self.count].iter().map(|&n| n as f64).collect();
        median(&nanos).map(|nanos| amount as f64 * 1e9 / nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_median_batch() {
        let mut times = BatchTimes::default();
        assert_eq!(times.per_second(1), None);
        for nanos in [1000, 1000, 1000, 90_000, 500] {
            assert!(times.record(nanos));
        }
        assert_eq!(times.per_second(64), Some(64e6));
    }

    #[test]
    fn batches_beyond_the_room_are_left_out() {
        let mut times = BatchTimes::default();
        assert!((1..BATCHES_MAX).all(|_| times.record(1)));
        assert!(!times.record(1) && !times.record(1));
        assert_eq!(times.count(), BATCHES_MAX);
    }
}

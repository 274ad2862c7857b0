//! The life-cycle monitor (section IV-B): averages the delay from the doorbell to the completion, pure.
//!
//! A request's delay is the time of its completion less that of its doorbell, less the time that its own
//! bytes take on the line. Long and short requests are thus comparable. The average is kept separately for
//! each [`Class`], and for peers on the same host and on others, because their delays without load differ.

use headworks_verbs::{Duration, SendOp};

use crate::config::PacingConfig;

/// Class of requests with comparable delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// SEND and WRITE: a round trip.
    Write = 0,
    /// READ.
    Read = 1,
    /// Compare-and-swap, fetch-and-add.
    Atomic = 2,
    /// A datagram: complete once it is on the wire.
    Datagram = 3,
}

impl Class {
    /// All classes of requests.
    pub const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Atomic, Self::Datagram];

    /// The class of a request.
    pub fn of(op: &SendOp) -> Self {
        match op {
            SendOp::SendTo(_) | SendOp::SendToImm(..) => Self::Datagram,
            SendOp::Read(_) => Self::Read,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Self::Atomic,
            _ => Self::Write,
        }
    }
}

/// Number of averages: one of each class for remote peers, and one for peers on this host.
pub const KINDS: usize = 2 * Class::ALL.len();

/// The kind of a request, which selects the average that it counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u8);

impl Kind {
    /// The kind of requests of a class to a peer on the same host (`is_local`) or on another.
    pub fn new(class: Class, is_local: bool) -> Self {
        Self(class as u8 + if is_local { Class::ALL.len() as u8 } else { 0 })
    }

    /// The kind with an index below [`KINDS`].
    pub fn at(index: usize) -> Self {
        Self((index % KINDS) as u8)
    }

    /// Index of the kind, less than [`KINDS`].
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The class.
    pub fn class(self) -> Class {
        Class::ALL[self.index() % Class::ALL.len()]
    }
}

/// The average delay of one kind of requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct DelayAverage {
    nanos: f64,
    outliers: u32,
}

impl DelayAverage {
    /// Adds a sample and returns the new average, or `None` if the sample is left out as an outlier.
    pub fn sample(&mut self, delay: Duration, config: &PacingConfig) -> Option<Duration> {
        let nanos = delay.nanos() as f64;
        let is_outlier = self.nanos > 0.0 && nanos > self.nanos * config.outlier_factor as f64;
        if is_outlier && u64::from(self.outliers) + 1 < config.outliers_in_row {
            self.outliers += 1;
            return None;
        }
        self.outliers = 0;
        self.nanos = match self.nanos == 0.0 {
            true => nanos,
            false => config.ewma_weight * self.nanos + (1.0 - config.ewma_weight) * nanos,
        };
        Some(self.delay())
    }

    /// The average delay; zero before the first sample.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.nanos as u64)
    }
}

/// Time that `bytes` take on a line of `rate` bytes a second.
pub fn serialisation(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_outlier_is_left_out_and_a_row_of_them_is_believed() {
        let config = PacingConfig::default();
        let mut average = DelayAverage::default();
        let us = Duration::from_micros;
        assert_eq!(average.sample(us(2), &config), Some(us(2)));
        assert_eq!(average.sample(us(100), &config), None);
        assert_eq!(average.sample(us(2), &config), Some(us(2)));
        for _ in 1..8 {
            assert_eq!(average.sample(us(100), &config), None);
        }
        let believed = average.sample(us(100), &config).unwrap();
        assert_eq!(believed, Duration::from_nanos(14_250));
        assert_eq!(average.delay(), believed);
    }

    #[test]
    fn the_average_moves_by_the_weight() {
        let config = PacingConfig {
            ewma_weight: 0.5,
            ..PacingConfig::default()
        };
        let mut average = DelayAverage::default();
        for (sample, expected) in [(100, 100), (200, 150), (50, 100)] {
            let found = average.sample(Duration::from_nanos(sample), &config);
            assert_eq!(found, Some(Duration::from_nanos(expected)));
        }
    }

    #[test]
    fn monitor_kinds_are_distinct() {
        let mut seen = std::collections::BTreeSet::new();
        for class in Class::ALL {
            for is_local in [false, true] {
                let kind = Kind::new(class, is_local);
                assert_eq!(kind.class(), class);
                assert!(kind.index() < KINDS && seen.insert(kind.index()));
            }
        }
        assert_eq!(
            serialisation(12_500, 12_500_000_000),
            Duration::from_micros(1)
        );
    }
}

//! Admission of transfers: which announced transfer may be READ next, and how much may be in flight (sections 3.2 and
//! 4.1.2). Pure.
//!
//! Transfers wait in one queue for each class, first in, first out. The first of a queue is admitted if the memory that it
//! is expected to take is free, and not promised to transfers admitted before. By Little's law that is the rate at which it
//! arrives times the time that its bytes stay; at least one fragment, at most the transfer. A higher class goes first, but
//! after [`BYPASSES_MAX`] transfers that overtook a lower class, that class's first is next, and nothing else is admitted
//! before it. READs in flight are limited in number and in bytes.

use std::collections::VecDeque;

use headworks_verbs::Duration;

use crate::config::PoolConfig;
use crate::units::{UNIT, units_of};

/// Class of service of an application. A lower number goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Goes before the others.
    High = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Goes last, and gets ordinary memory when the pool is short.
    Low = 2,
}

impl Class {
    /// All classes, highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

/// Transfers of higher classes that may overtake the first transfer of a class that waits.
pub const BYPASSES_MAX: u32 = 8;

/// Expected use of the pool by a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes per second at which the transfer arrives.
    pub rate: u64,
    /// How long its bytes stay in the pool.
    pub residence: Duration,
}

impl Estimate {
    /// Returns the bytes of the pool that a transfer of `bytes` is expected to take at the same time.
    fn footprint(self, bytes: u64, fragment: u32) -> u64 {
        let little = u128::from(self.rate) * u128::from(self.residence.nanos()) / 1_000_000_000;
        let little = u64::try_from(little).unwrap_or(u64::MAX);
        little.clamp(bytes.min(fragment.into()), bytes)
    }
}

/// A transfer that waits or was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting<T> {
    transfer: T,
    /// Units that it is expected to take.
    footprint: u32,
}

/// A transfer that may be READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted<T> {
    /// The transfer.
    pub transfer: T,
    /// Its class.
    pub class: Class,
    /// Units that are promised to it. Each unit that it takes is one less: see [`Admission::take`].
    pub promised: u32,
}

/// Queues and windows of a pool. `T` names a transfer.
#[derive(Clone, Debug)]
pub struct Admission<T> {
    queues: [VecDeque<Waiting<T>>; Class::ALL.len()],
    /// Transfers that overtook the first of a queue.
    bypasses: [u32; Class::ALL.len()],
    /// Units that are promised to admitted transfers and that those have not taken.
    promised: u32,
    /// Admitted transfers that have not ended.
    admitted: u32,
    reads: u32,
    read_bytes: u64,
    reads_max: u32,
    read_bytes_max: u64,
    fragment: u32,
    budget: u32,
}

impl<T: Copy + PartialEq> Admission<T> {
    /// Queues and windows of a pool with this configuration.
    pub fn new(config: &PoolConfig) -> Self {
        Self {
            queues: Default::default(),
            bypasses: [0; Class::ALL.len()],
            promised: 0,
            admitted: 0,
            reads: 0,
            read_bytes: 0,
            reads_max: config.reads,
            read_bytes_max: config.read_bytes,
            fragment: config.fragment,
            budget: config.budget_units(),
        }
    }

    /// Queues a transfer of `bytes`.
    pub fn announce(&mut self, transfer: T, class: Class, bytes: u64, estimate: Estimate) {
        let footprint = units_of(estimate.footprint(bytes, self.fragment));
        // More than the pool has can never be free. Such a transfer takes the pool for itself.
        let footprint = footprint.min(self.budget.into()) as u32;
        self.queues[class as usize].push_back(Waiting {
            transfer,
            footprint,
        });
    }

    /// Removes a transfer that waits: its connection is gone, or it was carried in another way. Returns whether it
    /// waited.
    pub fn withdraw(&mut self, transfer: T, class: Class) -> bool {
        let at = class as usize;
        let queue = &mut self.queues[at];
        let before = queue.len();
        let was_first = queue.front().is_some_and(|one| one.transfer == transfer);
        queue.retain(|one| one.transfer != transfer);
        if was_first {
            self.bypasses[at] = 0;
        }
        self.queues[at].len() < before
    }

    /// Admits the next transfer, if `available` units of the pool are enough for it. Call it until it returns `None`.
    pub fn admit(&mut self, available: u32) -> Option<Admitted<T>> {
        if self.admitted >= self.reads_max {
            return None;
        }
        let waiting = |class: &&Class| !self.queues[**class as usize].is_empty();
        let starving = |class: &&Class| self.bypasses[**class as usize] >= BYPASSES_MAX;
        let all = || Class::ALL.iter().filter(waiting);
        // Of two that starve, the higher goes first.
        let class = *all().find(starving).or_else(|| all().next())?;
        let at = class as usize;
        let first = *self.queues[at].front()?;
        if first.footprint > available.saturating_sub(self.promised) {
            return None;
        }
        self.queues[at].pop_front();
        self.bypasses[at] = 0;
        for lower in Class::ALL.into_iter().skip(at + 1) {
            let waits = !self.queues[lower as usize].is_empty();
            self.bypasses[lower as usize] += u32::from(waits);
        }
        self.promised += first.footprint;
        self.admitted += 1;
        Some(Admitted {
            transfer: first.transfer,
            class,
            promised: first.footprint,
        })
    }

    /// Records that an admitted transfer took units of the pool. A transfer may take more than it was promised, if more is
    /// free: [`spare`](Self::spare).
    pub fn take(&mut self, admitted: &mut Admitted<T>, units: u32) {
        let kept = units.min(admitted.promised);
        admitted.promised -= kept;
        self.promised -= kept;
    }

    /// Returns how many of `available` units an admitted transfer may take.
    pub fn spare(&self, admitted: &Admitted<T>, available: u32) -> u32 {
        available.saturating_sub(self.promised - admitted.promised)
    }

    /// Ends an admitted transfer.
    pub fn end(&mut self, admitted: Admitted<T>) {
        self.promised -= admitted.promised;
        self.admitted -= 1;
    }

    /// Whether another READ of `bytes` may be in flight.
    pub fn may_read(&self, bytes: u32) -> bool {
        self.reads < self.reads_max && self.read_bytes + u64::from(bytes) <= self.read_bytes_max
    }

    /// Records that a READ began.
    pub fn read_begun(&mut self, bytes: u32) {
        self.reads += 1;
        self.read_bytes += u64::from(bytes);
    }

    /// Records that a READ ended.
    pub fn read_ended(&mut self, bytes: u32) {
        self.reads -= 1;
        self.read_bytes -= u64::from(bytes);
    }

    /// Number of transfers of a class that wait.
    pub fn waiting(&self, class: Class) -> usize {
        self.queues[class as usize].len()
    }

    /// Units that are promised to admitted transfers.
    pub fn promised(&self) -> u32 {
        self.promised
    }

    /// Number of READs in flight, and their bytes.
    pub fn in_flight(&self) -> (u32, u64) {
        (self.reads, self.read_bytes)
    }
}

/// Moving averages from which transfers are estimated: how fast they arrive, and how long their bytes stay.
#[derive(Clone, Copy, Debug)]
pub struct Estimator {
    nanos_per_unit: u64,
    residence: u64,
}

/// Weight of a new value in the moving averages: one in this many.
const WEIGHT: u64 = 16;
/// Estimates before anything was measured: 12.5 GB/s, the rate of a link of 100 Gbit/s, and 200 µs (section 2.2).
const FIRST: Estimate = Estimate {
    rate: 12_500_000_000,
    residence: Duration::from_micros(200),
};

impl Default for Estimator {
    fn default() -> Self {
        Self {
            nanos_per_unit: u64::from(UNIT) * 1_000_000_000 / FIRST.rate,
            residence: FIRST.residence.nanos(),
        }
    }
}

impl Estimator {
    /// Records a READ of `bytes` that took `took` from the post to the completion.
    pub fn arrived(&mut self, bytes: u32, took: Duration) {
        let nanos = took.nanos() / units_of(bytes.into()).max(1);
        self.nanos_per_unit = average(self.nanos_per_unit, nanos);
    }

    /// Records units that were released after they had been held for `held`.
    pub fn released(&mut self, held: Duration) {
        self.residence = average(self.residence, held.nanos());
    }

    /// Returns what is expected of the next transfer.
    pub fn estimate(&self) -> Estimate {
        Estimate {
            rate: u64::from(UNIT) * 1_000_000_000 / self.nanos_per_unit.max(1),
            residence: Duration::from_nanos(self.residence),
        }
    }
}

fn average(old: u64, new: u64) -> u64 {
    let sum = u128::from(old) * u128::from(WEIGHT - 1) + u128::from(new);
    // Rounded, so that the average reaches a value that stays the same.
    ((sum + u128::from(WEIGHT / 2)) / u128::from(WEIGHT)) as u64
}

#[cfg(test)]
#[path = "admission/tests.rs"]
mod tests;

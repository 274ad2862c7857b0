//! Admission of transfers: which announced transfer may be READ next, and how much may be in flight (sections 3.2 and
//! 4.1.2). Pure.
//!
//! Transfers wait in a queue for each application, first in, first out. The applications of a class take turns. A
//! transfer is admitted if the memory that it is expected to take is free, and not claimed by transfers admitted
//! before. By Little's law that is the rate at which it arrives times the time that its bytes stay; at least a
//! fragment, at most the transfer, and at most a quarter of the pool. Until it has been READ, that is its
//! application's [claim](crate::pool). An application whose quota leaves no room for it is passed over. A higher class
//! goes first, but after [`BYPASSES_MAX`] transfers that overtook a lower class, that class is next, and nothing else
//! is admitted before it. READs in flight are limited in number and in bytes.

use std::collections::{BTreeMap, VecDeque};

use headworks_verbs::Duration;

use crate::config::PoolConfig;
use crate::holdings::AppId;
use crate::pool::ReceivePool;
use crate::units::{UNIT, units_of};

/// Class of service of an application. A lower number goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Goes before the others.
    High = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Goes last.
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
    /// Rate at which the transfer arrives, in bytes per second.
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

/// A transfer that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting<T> {
    transfer: T,
    /// Units that it is expected to take.
    footprint: u32,
}

/// A transfer that may be READ. Its application has claimed what it is expected to take. Pass it to [`Admission::end`]
/// once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted<T> {
    transfer: T,
    app: AppId,
    footprint: u32,
}

impl<T: Copy> Admitted<T> {
    /// The transfer.
    pub fn transfer(&self) -> T {
        self.transfer
    }

    /// Its application.
    pub fn app(&self) -> AppId {
        self.app
    }

    /// Units that it claims.
    pub fn footprint(&self) -> u32 {
        self.footprint
    }
}

/// The waiting transfers of a class.
#[derive(Clone, Debug)]
struct ClassQueue<T> {
    by_app: BTreeMap<AppId, VecDeque<Waiting<T>>>,
    /// Applications that have a transfer here, in the order of their turns.
    turns: VecDeque<AppId>,
    /// Transfers of higher classes that overtook this one.
    bypasses: u32,
}

/// Queues and windows of a pool. `T` names a transfer.
#[derive(Clone, Debug)]
pub struct Admission<T> {
    classes: [ClassQueue<T>; Class::ALL.len()],
    /// Admitted transfers that have not ended.
    admitted: u32,
    is_short: bool,
    /// Whether it is memory that a transfer waits for.
    lacks_memory: bool,
    reads: u32,
    read_bytes: u64,
    reads_max: u32,
    read_bytes_max: u64,
    /// Bytes of the longest READ.
    fragment: u32,
    /// Units of the largest footprint of a transfer.
    footprint_max: u32,
}

impl<T: Copy + PartialEq> Admission<T> {
    /// Queues and windows of a pool with this configuration.
    pub fn new(config: &PoolConfig) -> Self {
        Self {
            classes: std::array::from_fn(|_| ClassQueue {
                by_app: BTreeMap::new(),
                turns: VecDeque::new(),
                bypasses: 0,
            }),
            admitted: 0,
            is_short: false,
            lacks_memory: false,
            reads: 0,
            read_bytes: 0,
            reads_max: config.reads,
            read_bytes_max: config.read_bytes,
            fragment: config.fragment,
            footprint_max: (config.budget_units() / 4).max(1),
        }
    }

    /// Queues a transfer of `bytes`, behind those of its application.
    pub fn announce(
        &mut self,
        transfer: T,
        (app, class): (AppId, Class),
        bytes: u64,
        estimate: Estimate,
    ) {
        let footprint = units_of(estimate.footprint(bytes, self.fragment));
        let footprint = footprint.clamp(1, self.footprint_max.into()) as u32;
        let of = &mut self.classes[class as usize];
        let queue = of.by_app.entry(app).or_default();
        if queue.is_empty() {
            of.turns.push_back(app);
        }
        queue.push_back(Waiting {
            transfer,
            footprint,
        });
    }

    /// Removes a transfer that waits: its connection is gone, or it was carried in another way. Returns whether it
    /// waited. Takes time in proportion to the waiting transfers of its application.
    pub fn withdraw(&mut self, transfer: T, (app, class): (AppId, Class)) -> bool {
        let of = &mut self.classes[class as usize];
        let Some(queue) = of.by_app.get_mut(&app) else {
            return false;
        };
        let before = queue.len();
        queue.retain(|one| one.transfer != transfer);
        let waited = queue.len() < before;
        if queue.is_empty() {
            of.by_app.remove(&app);
            of.turns.retain(|one| *one != app);
        }
        waited
    }

    /// Admits the next transfer, if the pool has room for it. Call it until it returns `None`.
    pub fn admit(&mut self, pool: &mut ReceivePool) -> Option<Admitted<T>> {
        self.is_short = self.admitted >= self.reads_max && self.is_waited_for();
        self.lacks_memory = false;
        if self.admitted >= self.reads_max {
            return None;
        }
        let fragment = units_of(self.fragment.into()) as u32;
        let starving = |class: &&Class| self.classes[**class as usize].bypasses >= BYPASSES_MAX;
        let first = Class::ALL.iter().find(starving).copied();
        // If two classes have waited too long, the higher class goes first.
        let order = first.into_iter().chain(Class::ALL);
        for class in order {
            let of = &mut self.classes[class as usize];
            for turn in 0..of.turns.len() {
                let app = of.turns[turn];
                let queue = of.by_app.get_mut(&app)?;
                // A transfer does with what is left of its application's quota, if that is enough for a READ.
                let quota = pool.limits(app).map_or(1, |limits| limits.quota.max(1));
                let claimable = pool.claimable(app);
                let footprint = queue.front()?.footprint;
                if claimable.quota < footprint.min(fragment).min(quota) {
                    continue;
                }
                let footprint = footprint.min(claimable.quota);
                if footprint > claimable.free {
                    (self.is_short, self.lacks_memory) = (true, true);
                    return None;
                }
                let transfer = queue.pop_front()?.transfer;
                of.turns.remove(turn);
                match queue.is_empty() {
                    true => drop(of.by_app.remove(&app)),
                    false => of.turns.push_back(app),
                }
                of.bypasses = 0;
                for lower in &mut self.classes[class as usize + 1..] {
                    lower.bypasses += u32::from(!lower.turns.is_empty());
                }
                let claimed = pool.claim(app, footprint);
                debug_assert!(claimed, "it was claimable");
                self.admitted += 1;
                return Some(Admitted {
                    transfer,
                    app,
                    footprint,
                });
            }
            // The quotas admit no transfer of this class, whatever memory becomes free. The class then delays no
            // other class.
            of.bypasses = 0;
        }
        None
    }

    /// Ends an admitted transfer: all its READs have begun, or it has failed, or it waits again.
    pub fn end(&mut self, admitted: Admitted<T>, pool: &mut ReceivePool) {
        pool.unclaim(admitted.app, admitted.footprint);
        self.admitted -= 1;
    }

    /// Whether a transfer waits for memory or for another transfer, and not for its own application, as of the last
    /// [`admit`](Self::admit).
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether a transfer waits for memory, and not only for another transfer to end, as of the last
    /// [`admit`](Self::admit).
    pub fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Whether a transfer waits.
    pub fn is_waited_for(&self) -> bool {
        self.classes.iter().any(|of| !of.turns.is_empty())
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
        let queues = self.classes[class as usize].by_app.values();
        queues.map(VecDeque::len).sum()
    }

    /// Number of READs in flight, and their bytes.
    pub fn in_flight(&self) -> (u32, u64) {
        (self.reads, self.read_bytes)
    }
}

/// Exponentially weighted moving averages from which the transfers of an application are estimated: how fast they
/// arrive, and how long their bytes stay. One for each application, so that one that releases slowly does not count
/// for others.
#[derive(Clone, Copy, Debug)]
pub struct Estimator {
    /// Nanoseconds per unit, and of the residence, times [`SCALE`].
    per_unit: u64,
    residence: u64,
}

/// Weight of a new value in the averages: one in this many.
const WEIGHT: u64 = 16;
/// Factor of the stored averages, so that rounding does not stop them before they reach a value that stays the same.
const SCALE: u64 = 1024;
/// Estimates before anything was measured: 12.5 GB/s, the rate of a link of 100 Gbit/s, and 200 µs (section 2.2).
const FIRST: Estimate = Estimate {
    rate: 12_500_000_000,
    residence: Duration::from_micros(200),
};

impl Default for Estimator {
    fn default() -> Self {
        Self {
            per_unit: u64::from(UNIT) * 1_000_000_000 * SCALE / FIRST.rate,
            residence: FIRST.residence.nanos() * SCALE,
        }
    }
}

impl Estimator {
    /// Records a READ of `bytes` that took `took` from the post to the completion.
    pub fn arrived(&mut self, bytes: u32, took: Duration) {
        let units = u64::from(bytes).div_ceil(UNIT.into()).max(1);
        self.per_unit = average(self.per_unit, took.nanos().saturating_mul(SCALE) / units);
    }

    /// Records units that were released after they had been held for `held`.
    pub fn released(&mut self, held: Duration) {
        self.residence = average(self.residence, held.nanos().saturating_mul(SCALE));
    }

    /// Returns what is expected of the next transfer.
    pub fn estimate(&self) -> Estimate {
        let bytes = u128::from(UNIT) * u128::from(SCALE) * 1_000_000_000;
        let rate = bytes / u128::from(self.per_unit.max(1));
        Estimate {
            rate: u64::try_from(rate).unwrap_or(u64::MAX),
            residence: Duration::from_nanos(self.residence / SCALE),
        }
    }
}

fn average(old: u64, new: u64) -> u64 {
    let sum = u128::from(old) * u128::from(WEIGHT - 1) + u128::from(new);
    (sum / u128::from(WEIGHT)) as u64
}

#[cfg(test)]
#[path = "admission/tests.rs"]
mod tests;

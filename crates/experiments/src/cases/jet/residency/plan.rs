//! Arms and points of `jet-residency`. Pure.

use std::fmt;

use super::service::MESSAGE;
use crate::cases::prelude::*;
use crate::residency::receive_memory::MemoryKind;
use crate::residency::{Copier, ResidencyLoad};

/// Bytes of a KiB and of a MiB.
const KIB: u64 = 1 << 10;
const MIB_BYTES: usize = 1 << 20;
/// Lengths of the rings in MiB, the longest first and the shortest last. The pool is measured between the first two,
/// since its metrics are ratios over the longest and over the best, which is usually the second.
pub(super) const RINGS_MIB: [usize; 6] = [1024, 4, 12, 24, 64, 1];
/// Rings that hold what arrives within [`LAG`], in MiB.
pub(super) const ROOMY_RINGS_MIB: [usize; 5] = [1024, 64, 24, 12, 4];
/// Message sizes in bytes.
const MESSAGES: [u64; 4] = [4 * KIB, 64 * KIB, M256K, M1M];
/// The message sizes of the metrics.
pub(super) const M256K: u64 = 256 * KIB;
pub(super) const M1M: u64 = MIB;
/// The consumer's lags in microseconds.
const LAGS: [u64; 3] = [0, LAG, 1000];
/// The lag of the metrics in microseconds.
pub(super) const LAG: u64 = 200;
/// Bytes that arrive in a microsecond at 100 Gbit/s.
const BYTES_PER_US: u64 = 12_500;
/// Lengths in MiB of the memory that shows how much cache there is.
pub(super) const SCANS_MIB: [usize; 2] = [12, 24];
/// Loads of the scans before and after the other points of a round.
pub(super) const BEFORE: &str = "before";
pub(super) const AFTER: &str = "after";

/// How messages are received. Settings are ordered by their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    pub(super) copier: Copier,
    /// Whether the receive memory is on huge pages.
    pub(super) is_huge: bool,
    /// Whether long WRITEs may bypass the caches.
    pub(super) bypasses_caches: bool,
    /// Whether the antagonist runs.
    pub(super) is_loaded: bool,
    pub(super) memory: MemoryKind,
}

impl Setting {
    /// The receiver copies, on ordinary pages, without an antagonist.
    pub(super) const fn of(memory: MemoryKind) -> Self {
        Self {
            memory,
            copier: Copier::Read,
            is_huge: false,
            bypasses_caches: true,
            is_loaded: false,
        }
    }

    const fn write(memory: MemoryKind) -> Self {
        Self {
            copier: Copier::Write,
            ..Self::of(memory)
        }
    }

    pub(super) const fn loaded(self) -> Self {
        Self {
            is_loaded: true,
            ..self
        }
    }
}

/// Receive pool of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServicePool {
    /// The daemon's default.
    Usual,
    /// 1 GiB.
    Long,
    /// 1 GiB that is handed out in turn.
    InTurn,
}

impl ServicePool {
    /// All of them, in the order in which they are measured.
    pub(super) const ALL: [Self; 3] = [Self::InTurn, Self::Usual, Self::Long];
}

/// How messages are received that go through two daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceSetting {
    pub(super) pool: ServicePool,
    /// Whether the antagonist runs.
    pub(super) is_loaded: bool,
}

/// An arm: messages through receive memory, or something about the machine or the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// Messages through receive memory.
    Messages(Setting),
    /// Memory that is read again and again. The parameter x is its length in bytes.
    Scan,
    /// This many cores read and write memory.
    Memory(usize),
    /// Operations of the receive pool.
    PoolOp,
    /// Messages through two daemons.
    Service(ServiceSetting),
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setting = match self {
            Self::Scan => return f.write_str("cache-scan"),
            Self::Memory(1) => return f.write_str("memory-1core"),
            Self::Memory(cores) => return write!(f, "memory-{cores}cores"),
            Self::PoolOp => return f.write_str("pool-op"),
            Self::Service(of) => {
                let memory = match of.pool {
                    ServicePool::Usual => "pool",
                    ServicePool::Long => "pool-1024m",
                    ServicePool::InTurn => "in-turn-1024m",
                };
                let loaded = if of.is_loaded { "-antagonist" } else { "" };
                return write!(f, "service-{memory}{loaded}");
            }
            Self::Messages(setting) => setting,
        };
        match setting.memory {
            MemoryKind::Pool => f.write_str("pool")?,
            MemoryKind::Ring(len) => write!(f, "rings-{}m", len / MIB_BYTES)?,
        }
        for (is_so, suffix) in [
            (setting.copier == Copier::Write, "-write"),
            (!setting.bypasses_caches, "-cached"),
            (setting.is_huge, "-huge"),
            (setting.is_loaded, "-antagonist"),
        ] {
            f.write_str(if is_so { suffix } else { "" })?;
        }
        Ok(())
    }
}

/// Returns a ring of this many MiB.
pub(super) const fn ring(mib: usize) -> MemoryKind {
    MemoryKind::Ring(mib * MIB_BYTES)
}

/// The pool and all rings, in the order in which they are measured.
pub(super) fn memories() -> impl Iterator<Item = MemoryKind> {
    let [longest, others @ ..] = RINGS_MIB;
    [ring(longest), MemoryKind::Pool]
        .into_iter()
        .chain(others.map(ring))
}

/// Makes a point of messages of `message` bytes at a lag in microseconds.
pub(super) const fn at(setting: Setting, message: u64, lag: u64) -> Point<Arm> {
    Point::at(Arm::Messages(setting), message).with(lag)
}

/// Makes the point of a scan, `BEFORE` or `AFTER` the others.
pub(super) const fn scan(load: &'static str, mib: usize) -> Point<Arm> {
    Point::of(load, Arm::Scan, (mib * MIB_BYTES) as u64)
}

/// Makes the point of memory bandwidth.
pub(super) const fn memory(cores: usize) -> Point<Arm> {
    Point::at(Arm::Memory(cores), 128_000_000)
}

/// The point of the pool's operations.
pub(super) const POOL_OP: Point<Arm> = Point::at(Arm::PoolOp, M256K);

/// Makes a point of messages through two daemons.
pub(super) const fn service(pool: ServicePool, is_loaded: bool) -> Point<Arm> {
    let setting = ServiceSetting { pool, is_loaded };
    Point::at(Arm::Service(setting), MESSAGE as u64)
}

/// Returns the load of a point.
pub(super) fn load(setting: Setting, message: u64, lag: u64) -> ResidencyLoad {
    ResidencyLoad {
        memory: setting.memory,
        is_huge: setting.is_huge,
        copier: setting.copier,
        bypasses_caches: setting.bypasses_caches,
        message: message as usize,
        lag: (lag * BYTES_PER_US) as usize,
    }
}

/// Properties of the machine and of the device that decide which points are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Available {
    /// Number of processors.
    pub(super) cpus: usize,
    /// Whether all receive memory may be on huge pages.
    pub(super) has_huge_pages: bool,
    /// Whether the device can be kept from bypassing the caches.
    pub(super) has_ordinary_stores: bool,
    /// Whether the daemons serve.
    pub(super) has_daemons: bool,
}

/// Returns the points of a run, in the order of a round. A quick run has every memory on every axis, but not every
/// combination.
pub(super) fn points(available: Available, is_quick: bool) -> Vec<Point<Arm>> {
    let mut points = SCANS_MIB.map(|mib| scan(BEFORE, mib)).to_vec();
    points.push(memory(1));
    if available.cpus > 1 {
        points.push(memory(2));
    }
    points.push(POOL_OP);
    let all = || {
        MESSAGES
            .iter()
            .flat_map(|size| LAGS.map(|lag| (*size, lag)))
    };
    let is_main = |&(size, lag): &(u64, u64)| lag == LAG && size >= M256K;
    for (size, lag) in all() {
        let main = is_main(&(size, lag));
        let of_quick = main || lag == LAG || size == M256K;
        if is_quick && !of_quick {
            continue;
        }
        points.extend(memories().map(|memory| at(Setting::of(memory), size, lag)));
        if available.cpus > 1 && (main || !is_quick) {
            let loaded = memories().map(|memory| at(Setting::of(memory).loaded(), size, lag));
            points.extend(loaded);
        }
        if available.has_huge_pages && lag == LAG && size >= if is_quick { M1M } else { M256K } {
            points.extend(memories().map(|memory| {
                let setting = Setting {
                    is_huge: true,
                    ..Setting::of(memory)
                };
                at(setting, size, lag)
            }));
        }
        if available.cpus < 2 || is_quick && !main {
            continue;
        }
        points.extend(memories().map(|memory| at(Setting::write(memory), size, lag)));
        // No other WRITEs bypass the caches.
        if available.has_ordinary_stores && size > M256K {
            points.extend([64, 1024].map(|mib| {
                let setting = Setting {
                    bypasses_caches: false,
                    ..Setting::write(ring(mib))
                };
                at(setting, size, lag)
            }));
        }
        if available.cpus > 2 {
            let loaded = memories().map(|memory| at(Setting::write(memory).loaded(), size, lag));
            points.extend(loaded);
        }
    }
    if available.has_daemons {
        points.extend(ServicePool::ALL.map(|pool| service(pool, false)));
    }
    if available.has_daemons && available.cpus > 1 {
        points.extend(ServicePool::ALL.map(|pool| service(pool, true)));
    }
    points.extend(SCANS_MIB.map(|mib| scan(AFTER, mib)));
    points
}

/// Says whether the memory bandwidth that two cores have, over that of one, shows that they use all of it.
pub(super) fn saturation(one: f64, two: f64) -> String {
    let ratio = two / one;
    let verdict = match ratio {
        r if r < 1.2 => {
            "One core is enough to saturate the memory of this machine, so the antagonist takes bandwidth from the \
             receiver."
        }
        r if r < 1.8 => {
            "Two cores together come near to what the memory of this machine has, so the antagonist takes some \
             bandwidth from the receiver."
        }
        _ => {
            "Two cores do not saturate the memory of this machine, so the antagonist takes hardly any bandwidth from \
             the receiver: this run shows cache against memory, not contention."
        }
    };
    format!(
        "Memory: one core reads and writes {one:.1} GB/s, two cores {two:.1} GB/s ({ratio:.2} times). {verdict}"
    )
}

/// Says how much cache the scans of 12 and of 24 MiB show, in GB/s before and after a round.
pub(super) fn cache(before: [f64; 2], after: [f64; 2]) -> String {
    let [of_12, of_24] = [0, 1].map(|at| f64::min(before[at], after[at]));
    let verdict = match of_24 / of_12 {
        r if r < 0.8 => "24 MiB do not stay in the cache as 12 MiB do",
        _ => "24 MiB are read about as fast as 12 MiB",
    };
    format!(
        "Cache we really have: 12 MiB were read with {:.1} GB/s before a round and {:.1} after it, 24 MiB with {:.1} \
         and {:.1}: {verdict}. Other machines on the same processor may share its last-level cache.",
        before[0], after[0], before[1], after[1]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Available = Available {
        cpus: 4,
        has_huge_pages: true,
        has_ordinary_stores: true,
        has_daemons: true,
    };

    #[test]
    fn a_quick_run_measures_a_part_of_the_full_run_with_every_memory() {
        let (quick, full) = (points(FULL, true), points(FULL, false));
        assert!(quick.iter().all(|point| full.contains(point)));
        assert!(quick.len() * 2 < full.len(), "{}", quick.len());
        let has = |is: fn(Setting) -> bool, memory| {
            quick.iter().any(|point| match point.arm {
                Arm::Messages(setting) => setting.memory == memory && is(setting),
                _ => false,
            })
        };
        for memory in memories() {
            assert!(has(|setting| setting.copier == Copier::Write, memory));
            assert!(has(|setting| setting.is_huge, memory));
            assert!(has(|setting| setting.is_loaded, memory));
        }
        assert!(has(|setting| !setting.bypasses_caches, ring(1024)));
    }

    #[test]
    fn no_point_is_measured_twice_in_a_round() {
        for is_quick in [false, true] {
            let points = points(FULL, is_quick);
            for (at, point) in points.iter().enumerate() {
                assert!(!points[..at].contains(point), "{point:?}");
            }
        }
    }

    #[test]
    fn points_that_need_more_than_there_is_are_left_out() {
        let one = Available {
            cpus: 1,
            has_huge_pages: false,
            has_ordinary_stores: false,
            has_daemons: true,
        };
        for point in points(one, false) {
            match point.arm {
                Arm::Messages(setting) => assert_eq!(setting, Setting::of(setting.memory)),
                Arm::Service(setting) => assert!(!setting.is_loaded),
                _ => {}
            }
        }
    }

    #[test]
    fn arms_are_named_by_what_differs_from_the_plain_one() {
        let mut setting = Setting::of(MemoryKind::Pool);
        assert_eq!(Arm::Messages(setting).to_string(), "pool");
        setting.memory = ring(1024);
        let loaded = Arm::Messages(setting.loaded());
        assert_eq!(loaded.to_string(), "rings-1024m-antagonist");
        let setting = Setting {
            bypasses_caches: false,
            ..Setting::write(ring(64))
        };
        assert_eq!(Arm::Messages(setting).to_string(), "rings-64m-write-cached");
        let plain = service(ServicePool::Usual, false);
        assert_eq!(plain.arm.to_string(), "service-pool");
        let loaded = service(ServicePool::InTurn, true);
        assert_eq!(loaded.arm.to_string(), "service-in-turn-1024m-antagonist");
    }

    #[test]
    fn the_lag_is_what_arrives_at_100_gbit() {
        let load = load(Setting::of(MemoryKind::Pool), M256K, LAG);
        assert_eq!(load.lag, 2_500_000);
    }

    #[test]
    fn remarks_follow_from_the_values() {
        assert!(saturation(10.0, 20.0).contains("do not saturate"));
        assert!(saturation(10.0, 11.0).contains("One core is enough"));
        assert!(cache([60.0, 60.0], [60.0, 20.0]).contains("do not stay"));
        assert!(cache([60.0, 59.0], [60.0, 58.0]).contains("about as fast"));
    }
}

//! Sizes and limits that configure a daemon.

use std::collections::BTreeMap;
use std::fmt;

use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::units::{EXTENT_MAX, UNIT};
use headworks_verbs::{DeviceLimits, Duration};
use serde::{Deserialize, Serialize};

use crate::credit::FLOOR_MIN;
use crate::frame::{FRAME_MAX, FRAME_MIN};

/// Sizes and limits of a daemon's core. When a limit is reached, the request is refused; nothing stalls.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonLimits {
    /// Bytes of a receive, and so of a frame: 256 to 65,536. A message that fits into one beside its header
    /// of 32 bytes is SENT in one frame. Longer frames cost memory for every receive. Default 8,192.
    pub frame_bytes: u32,
    /// Initial number of receives of a domain. Default 256.
    pub receives: u32,
    /// Number of receives up to which a domain gets more as queue-pair groups need them. Default 8,192.
    pub receives_max: u32,
    /// Receives that each queue-pair group is promised at least, 4 or more. Default 8.
    pub qp_group_floor: u32,
    /// Receives that a queue-pair group is promised at most, while its peer sends. On a device without shared receive queues
    /// it is at most the length of a queue pair's receive queue. Default 64.
    pub qp_group_share: u32,
    /// Requests of a group's queue pair for frames, 8 to 1,024. Default 64.
    pub frame_depth: u32,
    /// Requests of a group's queue pair for bulk transfers, 8 to 1,024. Default 64.
    pub bulk_depth: u32,
    /// Most queue-pair groups of a domain. Default 256.
    pub qp_groups_max: u32,
    /// Length in bytes from which memory is announced, and READ by the receiver into its pool, instead of SENT in frames.
    /// Default 16,384.
    pub bulk_min: u32,
    /// Bytes of a READ, or of a one-sided WRITE, at most: a power of two, 4,096 to 262,144. Shorter ones let others in
    /// sooner. Default 65,536.
    pub bulk_max: u32,
    /// Transfers and one-sided operations of one connection in flight at most, 1 to 32. Default 8.
    pub bulk_each: u32,
    /// Length in bytes from which on a piece is READ while the peer's receive pool is in danger, 1 to 1,073,741,824. Shorter
    /// pieces are copied through frames and the connection's ring then (RaaS, section III-A: the choice depends on the
    /// current use of memory). Default 131,072 (RaaS, section III-B).
    pub copy_below: u32,
    /// Bytes of a tenant's receive pool: 262,144 to 1,073,741,824, a multiple of 4,096. Divided among the workers; each
    /// has 262,144 at least. Default 4,194,304; in a configuration file that sets `pool_budget`, at most that.
    pub pool_bytes: u64,
    /// Bytes of the receive pools of all tenants: 262,144 to 1,099,511,627,776, a multiple of 4,096. A tenant gets what is left
    /// of it, at most `pool_bytes`, and 262,144 for each worker at least. Default 12,582,912 (section 4.1.3 of Jet: 12 MB of a
    /// host's cache); in a configuration file that sets `pool_bytes`, at least that.
    pub pool_budget: u64,
    /// Part of its pool that an application may hold, in percent: 1 to 100. Default 50.
    pub pool_quota: u32,
    /// READs in flight into a pool at most, 1 to 1,024. Default 32.
    pub pool_reads: u32,
    /// Milliseconds after which memory of the pool that an application has not released counts as late, 1 to 10,000. If
    /// the pool is short, late memory is replaced or copied out. Default 50.
    pub pool_straggler_time: u32,
    /// Milliseconds for which an application whose data is to be copied out may go on keeping memory of the pool while the
    /// pool is short, 1 to 3,600,000. Then its connections that keep some are reset. Default 10,000.
    pub pool_reset_time: u32,
    /// Class of applications in the receive pool, by the names that they attach with. Default: none, and an application
    /// without an entry is [`PoolClass::Normal`].
    pub classes: BTreeMap<String, PoolClass>,
    /// Pages of the pool's memory. Default [`PoolPages::Ordinary`].
    pub pool_pages: PoolPages,
    /// Milliseconds between two reads of a random unit of a pool, 0 to 10,000, while transfers are under way and a worker
    /// has nothing else to do; 0 reads none. Default 0.
    pub pool_touch: u32,
    /// Whether the daemon reports the level of its pools ([`Output::PoolLevel`](crate::Output::PoolLevel)). No key of the
    /// configuration file. Default no.
    #[serde(skip)]
    pub reports_pool_level: bool,
    /// For comparison: a pool's memory is handed out in turn, from its beginning to its end, instead of where it was
    /// released most recently. No key of the configuration file. Default no.
    #[serde(skip)]
    pub is_pool_in_turn: bool,
    /// Approximate number of bytes that a connection sends in its turn. Default 16,384.
    pub quantum: u32,
    /// Initial length of a connection's egress ring in bytes, a power of two from 512 on. Default 2,048.
    pub ring_bytes: u32,
    /// Length in bytes up to which an egress ring grows if its stream fills it; a power of two. Default 4,194,304.
    pub ring_max: u32,
    /// Initial length of a connection's ingress ring in bytes, a power of two from 512 on. It holds what comes in frames.
    /// Half of it, at most 4,096 bytes, is not promised to the sender. Default 1,024.
    pub ingress_bytes: u32,
    /// Length in bytes up to which an ingress ring grows; a power of two. Default 32,768.
    pub ingress_max: u32,
    /// Bytes of an application's rings beyond which no ring grows longer than 131,072 bytes; the closer they are to
    /// it, the shorter are new rings. Many long rings do not stay in the processor's cache. Default 33,554,432.
    pub ring_budget: u64,
    /// Bytes of a slab, a power of two. A session's memory grows by one slab at a time. Default 4,194,304.
    pub slab_bytes: u32,
    /// Workers: 1 to 64. Each carries the links to some hosts. One is part of the daemon's only thread; several have a
    /// thread each, beside the one that serves applications and other daemons. Receives and queue-pair groups of a
    /// domain are divided among them. Default 1.
    pub workers: u16,
    /// Applications that a tenant may run at the same time. Default 1,024.
    pub applications_each: u32,
    /// Most connections of an application. Default 16,384.
    pub connections_each: u32,
    /// Most bytes of shared memory of an application. Its direct connections use half of it at most. Default 1,073,741,824.
    pub memory_each: u64,
    /// Whether two applications of this machine exchange bytes [without their daemons](headworks_client::direct), where both
    /// can. Default yes.
    pub direct: bool,
    /// Bytes of address space in which an application sends directly to another one, a power of two. Only what is used takes
    /// memory, and counts in `memory_each`. Default 67,108,864.
    pub direct_bytes: u32,
    /// Most other applications with which an application has direct connections. Connections with more of them go through the
    /// daemons. Default 256.
    pub pairs_each: u32,
    /// Most ports that an application may listen at. Default 1,024.
    pub listeners_each: u32,
    /// Seconds without a sign of life after which another host's daemon that has to react to something counts as
    /// unreachable, 0 to 86,400; 0 waits for ever. It is noticed after once to one and a half times as long. Default
    /// 10.
    pub peer_timeout: u32,
    /// For debugging: fills free shared memory with a pattern, and checks before it is used again whether the
    /// pattern was overwritten ([`ObjectCounts::overwritten`](crate::ObjectCounts::overwritten)). Costs a
    /// pass over the memory each time. Default no.
    pub poison: bool,
}

/// Class of an application in the receive pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolClass {
    /// Is served before the others, but does not overtake them without end.
    High,
    /// The default.
    #[default]
    Normal,
    /// Is served last, and with ordinary memory while the pool is short.
    Low,
}

/// Pages of a receive pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolPages {
    /// Pages of the usual size.
    #[default]
    Ordinary,
    /// Reserved pages of 2 MiB where there are some, else ordinary ones.
    Huge,
}

impl From<PoolClass> for Class {
    fn from(class: PoolClass) -> Self {
        match class {
            PoolClass::High => Self::High,
            PoolClass::Normal => Self::Normal,
            PoolClass::Low => Self::Low,
        }
    }
}

impl Default for DaemonLimits {
    fn default() -> Self {
        Self {
            frame_bytes: 8192,
            receives: 256,
            receives_max: 8192,
            qp_group_floor: 8,
            qp_group_share: 64,
            frame_depth: 64,
            bulk_depth: 64,
            qp_groups_max: 256,
            bulk_min: 16 << 10,
            bulk_max: 64 << 10,
            bulk_each: 8,
            copy_below: 128 << 10,
            pool_bytes: 4 << 20,
            pool_budget: 12 << 20,
            pool_quota: 50,
            pool_reads: 32,
            pool_straggler_time: 50,
            pool_reset_time: 10_000,
            classes: BTreeMap::new(),
            pool_pages: PoolPages::Ordinary,
            pool_touch: 0,
            reports_pool_level: false,
            is_pool_in_turn: false,
            quantum: 16 << 10,
            ring_bytes: 2048,
            ring_max: 4 << 20,
            ingress_bytes: 1024,
            ingress_max: 32 << 10,
            ring_budget: 32 << 20,
            slab_bytes: 4 << 20,
            workers: 1,
            applications_each: 1024,
            connections_each: 16_384,
            memory_each: 1 << 30,
            direct: true,
            direct_bytes: 64 << 20,
            pairs_each: 256,
            listeners_each: 1024,
            peer_timeout: 10,
            poison: false,
        }
    }
}

/// Error: a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}: {allowed}")]
pub struct LimitsError {
    /// Key of the setting.
    pub key: &'static str,
    /// Value that was given.
    pub value: u64,
    /// Values that are allowed.
    pub allowed: String,
}

impl LimitsError {
    /// The error for a value that is above another one that bounds it. It names the value that differs from
    /// its default, since only that one was configured. If both differ, it names the lower bound.
    fn of_pair((low, least): (&'static str, u64), (high, most): (&'static str, u64)) -> Self {
        let numbers = DaemonLimits::default().numbers();
        let is_default =
            |of: (&str, u64)| numbers.iter().any(|(key, value, _)| (*key, *value) == of);
        let (key, value, allowed) = match is_default((low, least)) {
            true => (high, most, format!("at least {low}, which is {least}")),
            false => (low, least, format!("at most {high}, which is {most}")),
        };
        Self {
            key,
            value,
            allowed,
        }
    }
}

/// Range of a value, without regard to the others.
#[derive(Clone, Copy)]
enum AllowedRange {
    Between(u64, u64),
    /// A power of two in this range.
    Power(u64, u64),
    /// A multiple of a pool's unit in this range.
    Multiple(u64, u64),
}

impl AllowedRange {
    fn has(self, value: u64) -> bool {
        match self {
            Self::Between(least, most) => (least..=most).contains(&value),
            Self::Power(least, most) => (least..=most).contains(&value) && value.is_power_of_two(),
            Self::Multiple(least, most) => {
                (least..=most).contains(&value) && value.is_multiple_of(UNIT.into())
            }
        }
    }
}

impl fmt::Display for AllowedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::Power(least, most) => write!(f, "a power of two from {least} to {most}"),
            Self::Multiple(least, most) => write!(f, "a multiple of {UNIT} from {least} to {most}"),
        }
    }
}

impl DaemonLimits {
    /// Adapts those sizes of receive pools that were not set to the others: a tenant's pool is at most as long as all pools
    /// together.
    pub(crate) fn complete_pools(&mut self, is_pool_set: bool, is_budget_set: bool) {
        match (is_pool_set, is_budget_set) {
            (_, false) => self.pool_budget = self.pool_budget.max(self.pool_bytes),
            (false, true) => self.pool_bytes = self.pool_bytes.min(self.pool_budget),
            (true, true) => {}
        }
    }

    /// Checks that all values are allowed.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] for the first value that is not allowed.
    pub fn check(&self) -> Result<(), LimitsError> {
        for (key, value, legal) in self.numbers() {
            if !legal.has(value) {
                return Err(LimitsError {
                    key,
                    value,
                    allowed: legal.to_string(),
                });
            }
        }
        let pair = |low: (&'static str, u64), high: (&'static str, u64)| match low.1 <= high.1 {
            true => Ok(()),
            false => Err(LimitsError::of_pair(low, high)),
        };
        let of =
            |low: (_, u32), high: (_, u32)| pair((low.0, low.1.into()), (high.0, high.1.into()));
        let receives = ("receives", self.receives);
        of(receives, ("receives_max", self.receives_max))?;
        let floor = ("qp_group_floor", self.qp_group_floor);
        of(floor, receives)?;
        of(floor, ("qp_group_share", self.qp_group_share))?;
        of(("ring_bytes", self.ring_bytes), ("ring_max", self.ring_max))?;
        let ingress = ("ingress_bytes", self.ingress_bytes);
        of(ingress, ("ingress_max", self.ingress_max))?;
        let slab = ("slab_bytes", self.slab_bytes.into());
        pair(slab, ("memory_each", self.memory_each))?;
        let pool = ("pool_bytes", self.pool_bytes);
        pair(pool, ("pool_budget", self.pool_budget))
    }

    /// Returns the limits that each worker's part of a domain has: receives and queue-pair groups are divided.
    #[must_use]
    pub fn of_each_worker(&self) -> Self {
        let workers = u32::from(self.workers.max(1));
        let receives = self.receives.div_ceil(workers).max(self.qp_group_floor);
        Self {
            receives,
            receives_max: self.receives_max.div_ceil(workers).max(receives),
            qp_groups_max: self.qp_groups_max.div_ceil(workers),
            ..self.clone()
        }
    }

    /// Length in bytes from which on a piece is READ by the peer. `is_peer_short`: whether the peer's receive pool is in
    /// danger.
    pub(crate) fn border(&self, is_peer_short: bool) -> u32 {
        match is_peer_short {
            true => self.copy_below.max(self.bulk_min),
            false => self.bulk_min,
        }
    }

    /// Returns how many receives a queue-pair group is promised at least and at most, on a device with these limits. With
    /// `has_own_queue`, the group has a receive queue of its own, which holds no more than the device allows.
    pub(crate) fn receives_of_group(
        &self,
        has_own_queue: bool,
        device: &DeviceLimits,
    ) -> (u32, u32) {
        let most = match has_own_queue {
            true => device.max_qp_wr.max(FLOOR_MIN),
            false => u32::MAX,
        };
        let floor = self.qp_group_floor.min(most);
        (floor, self.qp_group_share.max(floor).min(most))
    }

    /// Returns the bytes of a new tenant's receive pool. The other tenants have `taken` of [`pool_budget`](Self::pool_budget).
    pub(crate) fn pool_grant(&self, taken: u64) -> u64 {
        let least = u64::from(EXTENT_MAX) * u64::from(self.workers.max(1));
        let left = self.pool_budget.saturating_sub(taken) / u64::from(UNIT) * u64::from(UNIT);
        self.pool_bytes.min(left).max(least)
    }

    /// Returns the configuration of the receive pool that each worker's part of a domain has.
    #[must_use]
    pub fn pool(&self) -> PoolConfig {
        let each = self.pool_bytes / u64::from(self.workers.max(1));
        let budget = (each / u64::from(UNIT) * u64::from(UNIT)).max(EXTENT_MAX.into());
        PoolConfig {
            budget,
            reads: self.pool_reads,
            read_bytes: budget,
            fragment: self.bulk_max,
            straggler_time: Duration::from_millis(self.pool_straggler_time.into()),
            reset_time: Duration::from_millis(self.pool_reset_time.into()),
            signal_interval: Duration::from_millis(10),
            is_in_turn: self.is_pool_in_turn,
            ..PoolConfig::default()
        }
    }

    /// Returns the values that a key allows, without regard to the others.
    pub(crate) fn allowed(key: &str) -> Option<String> {
        let numbers = Self::default().numbers();
        let number = numbers.into_iter().find(|(name, ..)| *name == key);
        match key {
            "classes" => Some("a table of names, each high, normal or low".to_owned()),
            "pool_pages" => Some("ordinary or huge".to_owned()),
            "poison" | "direct" => Some("true or false".to_owned()),
            _ => number.map(|(_, _, legal)| legal.to_string()),
        }
    }

    fn numbers(&self) -> [(&'static str, u64, AllowedRange); 34] {
        use AllowedRange::{Between, Multiple, Power};
        let of = |key, value: u32, legal| (key, value.into(), legal);
        let frame = Between(FRAME_MIN.into(), FRAME_MAX.into());
        let floor = FLOOR_MIN.into();
        let ring = Power(512, 1 << 30);
        [
            of("frame_bytes", self.frame_bytes, frame),
            of("receives", self.receives, Between(16, 1 << 16)),
            of("receives_max", self.receives_max, Between(16, 1 << 16)),
            of("qp_group_floor", self.qp_group_floor, Between(floor, 4096)),
            of("qp_group_share", self.qp_group_share, Between(floor, 4096)),
            of("frame_depth", self.frame_depth, Between(8, 1024)),
            of("bulk_depth", self.bulk_depth, Between(8, 1024)),
            of("qp_groups_max", self.qp_groups_max, Between(1, 4096)),
            of("bulk_min", self.bulk_min, Between(1, 1 << 30)),
            of("copy_below", self.copy_below, Between(1, 1 << 30)),
            of("bulk_max", self.bulk_max, Power(4096, 1 << 18)),
            of("bulk_each", self.bulk_each, Between(1, 32)),
            ("pool_bytes", self.pool_bytes, Multiple(1 << 18, 1 << 30)),
            ("pool_budget", self.pool_budget, Multiple(1 << 18, 1 << 40)),
            of("pool_quota", self.pool_quota, Between(1, 100)),
            of("pool_reads", self.pool_reads, Between(1, 1024)),
            of(
                "pool_straggler_time",
                self.pool_straggler_time,
                Between(1, 10_000),
            ),
            of(
                "pool_reset_time",
                self.pool_reset_time,
                Between(1, 3_600_000),
            ),
            of("pool_touch", self.pool_touch, Between(0, 10_000)),
            of("quantum", self.quantum, Between(512, 1 << 30)),
            of("ring_bytes", self.ring_bytes, ring),
            of("ring_max", self.ring_max, ring),
            of("ingress_bytes", self.ingress_bytes, ring),
            of("ingress_max", self.ingress_max, ring),
            ("ring_budget", self.ring_budget, Between(0, 1 << 42)),
            of("slab_bytes", self.slab_bytes, Power(1 << 16, 1 << 30)),
            ("workers", self.workers.into(), Between(1, 64)),
            of(
                "applications_each",
                self.applications_each,
                Between(1, 65_535),
            ),
            of(
                "connections_each",
                self.connections_each,
                Between(1, 1 << 20),
            ),
            ("memory_each", self.memory_each, Between(1 << 16, 1 << 42)),
            of("direct_bytes", self.direct_bytes, Power(1 << 16, 1 << 30)),
            of("pairs_each", self.pairs_each, Between(1, 65_535)),
            of("listeners_each", self.listeners_each, Between(1, 65_535)),
            of("peer_timeout", self.peer_timeout, Between(0, 86_400)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_every_key_and_its_default() {
        let guide = include_str!("../../../docs/daemon.md");
        let config = toml::Table::try_from(DaemonLimits::default()).unwrap();
        for (key, default) in config {
            let row = format!("| `{key}` | {default} |");
            assert!(guide.contains(&row), "docs/daemon.md has no {row:?}");
        }
    }

    #[test]
    fn tenants_share_the_budget_of_pools_and_each_gets_some() {
        let limits = DaemonLimits {
            pool_bytes: 4 << 20,
            pool_budget: 10 << 20,
            workers: 2,
            ..DaemonLimits::default()
        };
        let mut taken = 0;
        let grants = [0; 5].map(|_| {
            let grant = limits.pool_grant(taken);
            taken += grant;
            grant
        });
        let least = 2 * 262_144;
        assert_eq!(grants, [4 << 20, 4 << 20, 2 << 20, least, least]);
    }

    #[test]
    fn default_limits_are_legal_and_illegal_ones_named() {
        DaemonLimits::default().check().unwrap();
        for (text, says) in [
            (
                "receives = 9000",
                "receives is 9000: at most receives_max, which is 8192",
            ),
            (
                "receives_max = 100",
                "receives_max is 100: at least receives, which is 256",
            ),
            (
                "ring_bytes = 8388608",
                "ring_bytes is 8388608: at most ring_max, which is 4194304",
            ),
            (
                "ring_max = 1024",
                "ring_max is 1024: at least ring_bytes, which is 2048",
            ),
            (
                "pool_bytes = 300000",
                "pool_bytes is 300000: a multiple of 4096 from 262144 to 1073741824",
            ),
            (
                "pool_bytes = 8388608\npool_budget = 4194304",
                "pool_bytes is 8388608: at most pool_budget, which is 4194304",
            ),
            (
                "ring_bytes = 4097",
                "ring_bytes is 4097: a power of two from 512 to 1073741824",
            ),
            (
                "qp_group_floor = 100",
                "qp_group_floor is 100: at most qp_group_share, which is 64",
            ),
            (
                "memory_each = 65536",
                "memory_each is 65536: at least slab_bytes, which is 4194304",
            ),
            ("qp_groups_max = 0", "qp_groups_max is 0: 1 to 4096"),
        ] {
            let config: DaemonLimits = toml::from_str(text).unwrap();
            assert_eq!(config.check().unwrap_err().to_string(), says);
        }
        let keys = toml::Table::try_from(DaemonLimits::default()).unwrap();
        for key in keys.keys() {
            assert!(DaemonLimits::allowed(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_receive_queue_of_a_group_is_no_longer_than_the_device_allows() {
        let limits = DaemonLimits {
            qp_group_floor: 20,
            qp_group_share: 64,
            ..DaemonLimits::default()
        };
        let device = |max_qp_wr| DeviceLimits {
            max_qp: 1,
            max_qp_wr,
            max_sge: 1,
            max_inline: 0,
            max_cq: 1,
            max_cqe: 1,
            max_mr: 1,
            max_ah: 1,
            max_srq: 0,
            max_srq_wr: 0,
            max_rd_atomic: 1,
            max_message: 1,
        };
        let of = |max_qp_wr| limits.receives_of_group(true, &device(max_qp_wr));
        assert_eq!(of(100), (20, 64));
        assert_eq!(of(30), (20, 30));
        assert_eq!(of(10), (10, 10));
        assert_eq!(limits.receives_of_group(false, &device(10)), (20, 64));
    }
}

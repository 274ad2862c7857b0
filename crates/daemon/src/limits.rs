//! What a daemon is configured by: sizes and limits.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::frame::{FRAME_MAX, FRAME_MIN};

/// Sizes and limits of a daemon's core. Every limit, reached, is an answer to whoever asked, never a stall.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonLimits {
    /// Bytes of a receive, and so of a frame: 256 to 65,536. A message that fits one beside its header of 32 bytes
    /// is SENT in one. Longer frames cost memory for every receive. Default 8,192.
    pub frame_bytes: u32,
    /// Receives of a domain's shared queue at first. Default 256.
    pub receives: u32,
    /// Receives that it grows to at most, as links need them. Default 8,192.
    pub receives_max: u32,
    /// Receives that each link is promised at least, 4 or more. Default 8.
    pub link_floor: u32,
    /// Receives that a link is promised at most, while it sends. Default 64.
    pub link_share: u32,
    /// Requests of a link's queue pair for frames, 8 to 1,024. Default 64.
    pub frame_depth: u32,
    /// Requests of a link's queue pair for bulk transfers, 8 to 1,024. Default 64.
    pub bulk_depth: u32,
    /// Links of a domain at most. Default 256.
    pub links_max: u32,
    /// Bytes from which on a stretch of memory is WRITTEN or READ where it belongs, instead of SENT in frames.
    /// Default 16,384.
    pub bulk_min: u32,
    /// Bytes of such a transfer at most. Shorter ones let others in sooner. Default 65,536.
    pub bulk_max: u32,
    /// WRITEs, one behind the other, that one frame tells of at most, 1 to 16; what is offered to be READ is no longer
    /// than as many would be. Default 4.
    pub bulk_told: u32,
    /// Bulk transfers of one connection that are under way at most, 1 to 32. Default 8.
    pub bulk_each: u32,
    /// How bulk transfers are made. Default [`Bulk::ByLoad`].
    pub bulk: Bulk,
    /// Bytes that a connection's turn takes, about. Default 16,384.
    pub quantum: u32,
    /// Bytes of a connection's rings at first, a power of two from 512 on, one for each way. Default 4,096.
    pub ring_bytes: u32,
    /// Bytes that they grow to at most, for streams that fill them; a power of two. Default 4,194,304.
    pub ring_max: u32,
    /// Bytes of a slab, a power of two: sessions' memory grows by so much. Default 4,194,304.
    pub slab_bytes: u32,
    /// Applications of a user at the same time at most. Default 1,024.
    pub applications_each: u32,
    /// Connections of an application at most. Default 16,384.
    pub connections_each: u32,
    /// Bytes of shared memory of an application at most. Default 1,073,741,824.
    pub memory_each: u64,
    /// Ports that an application listens at, at most. Default 1,024.
    pub listeners_each: u32,
    /// Fills shared memory that is free and looks, before it is used again, whether anybody has written to it
    /// ([`ObjectCounts::overwritten`](crate::ObjectCounts::overwritten)): for who looks for such an error. Costs a pass over the
    /// memory each time. Default no.
    pub poison: bool,
}

/// How bulk transfers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bulk {
    /// The receiver READs where it has less to do than the sender; else the sender WRITEs.
    #[default]
    ByLoad,
    /// The sender WRITEs.
    Write,
    /// The receiver READs.
    Read,
}

impl Default for DaemonLimits {
    fn default() -> Self {
        Self {
            frame_bytes: 8192,
            receives: 256,
            receives_max: 8192,
            link_floor: 8,
            link_share: 64,
            frame_depth: 64,
            bulk_depth: 64,
            links_max: 256,
            bulk_min: 16 << 10,
            bulk_max: 64 << 10,
            bulk_told: 4,
            bulk_each: 8,
            bulk: Bulk::ByLoad,
            quantum: 16 << 10,
            ring_bytes: 4096,
            ring_max: 4 << 20,
            slab_bytes: 4 << 20,
            applications_each: 1024,
            connections_each: 16_384,
            memory_each: 1 << 30,
            listeners_each: 1024,
            poison: false,
        }
    }
}

/// A value that is not legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}: {allowed}")]
pub struct LimitsError {
    /// Key of the setting.
    pub key: &'static str,
    /// Value that was given.
    pub value: u64,
    /// What it may be.
    pub allowed: String,
}

impl LimitsError {
    /// That one value is above another that it may reach at most. It is that one's fault which is not what it is by
    /// default, as only that was set by somebody; where both were, the lower one's.
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

/// What a value may be, whatever the others are.
#[derive(Clone, Copy)]
enum AllowedRange {
    Between(u64, u64),
    /// And a power of two.
    Power(u64, u64),
}

impl AllowedRange {
    fn has(self, value: u64) -> bool {
        match self {
            Self::Between(least, most) => (least..=most).contains(&value),
            Self::Power(least, most) => (least..=most).contains(&value) && value.is_power_of_two(),
        }
    }
}

impl fmt::Display for AllowedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::Power(least, most) => write!(f, "a power of two from {least} to {most}"),
        }
    }
}

impl DaemonLimits {
    /// Refuses what cannot work.
    ///
    /// # Errors
    ///
    /// [`LimitsError`], of the first value that is not legal.
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
        let floor = ("link_floor", self.link_floor);
        of(floor, receives)?;
        of(floor, ("link_share", self.link_share))?;
        of(("ring_bytes", self.ring_bytes), ("ring_max", self.ring_max))?;
        let slab = ("slab_bytes", self.slab_bytes.into());
        pair(slab, ("memory_each", self.memory_each))
    }

    /// What a key may be, whatever the others are.
    pub(crate) fn allowed(key: &str) -> Option<String> {
        let numbers = Self::default().numbers();
        let number = numbers.into_iter().find(|(name, ..)| *name == key);
        match key {
            "bulk" => Some("by-load, write or read".to_owned()),
            "poison" => Some("true or false".to_owned()),
            _ => number.map(|(_, _, legal)| legal.to_string()),
        }
    }

    fn numbers(&self) -> [(&'static str, u64, AllowedRange); 20] {
        use AllowedRange::{Between, Power};
        let of = |key, value: u32, legal| (key, value.into(), legal);
        let frame = Between(FRAME_MIN.into(), FRAME_MAX.into());
        let floor = crate::credit::FLOOR_MIN.into();
        let ring = Power(512, 1 << 30);
        [
            of("frame_bytes", self.frame_bytes, frame),
            of("receives", self.receives, Between(16, 1 << 16)),
            of("receives_max", self.receives_max, Between(16, 1 << 16)),
            of("link_floor", self.link_floor, Between(floor, 4096)),
            of("link_share", self.link_share, Between(floor, 4096)),
            of("frame_depth", self.frame_depth, Between(8, 1024)),
            of("bulk_depth", self.bulk_depth, Between(8, 1024)),
            of("links_max", self.links_max, Between(1, 4096)),
            of("bulk_min", self.bulk_min, Between(1, 1 << 30)),
            of("bulk_max", self.bulk_max, Between(512, 1 << 30)),
            of("bulk_told", self.bulk_told, Between(1, 16)),
            of("bulk_each", self.bulk_each, Between(1, 32)),
            of("quantum", self.quantum, Between(512, 1 << 30)),
            of("ring_bytes", self.ring_bytes, ring),
            of("ring_max", self.ring_max, ring),
            of("slab_bytes", self.slab_bytes, Power(1 << 16, 1 << 30)),
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
            of("listeners_each", self.listeners_each, Between(1, 65_535)),
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
    fn defaults_are_legal_and_what_is_not_is_named() {
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
                "ring_max = 2048",
                "ring_max is 2048: at least ring_bytes, which is 4096",
            ),
            (
                "ring_bytes = 4097",
                "ring_bytes is 4097: a power of two from 512 to 1073741824",
            ),
            (
                "link_floor = 100",
                "link_floor is 100: at most link_share, which is 64",
            ),
            (
                "memory_each = 65536",
                "memory_each is 65536: at least slab_bytes, which is 4194304",
            ),
            ("links_max = 0", "links_max is 0: 1 to 4096"),
        ] {
            let config: DaemonLimits = toml::from_str(text).unwrap();
            assert_eq!(config.check().unwrap_err().to_string(), says);
        }
        let keys = toml::Table::try_from(DaemonLimits::default()).unwrap();
        for key in keys.keys() {
            assert!(DaemonLimits::allowed(key).is_some(), "{key}");
        }
    }
}

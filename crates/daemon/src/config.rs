//! What a daemon is configured by: sizes and limits.

use serde::{Deserialize, Serialize};

use crate::frame::{FRAME_MAX, FRAME_MIN};

/// Sizes and limits of a daemon's core. Every limit, reached, is an answer to whoever asked, never a stall.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
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
    /// ([`Census::overwritten`](crate::Census::overwritten)): for who looks for such an error. Costs a pass over the
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

impl Default for Config {
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
pub struct ConfigError {
    /// Which.
    pub key: &'static str,
    /// What it is.
    pub value: u64,
    /// What it may be.
    pub allowed: String,
}

impl Config {
    /// Refuses what cannot work.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], of the first value that is not legal.
    pub fn check(&self) -> Result<(), ConfigError> {
        let between = |key, value: u64, least: u64, most: u64| match (least..=most).contains(&value)
        {
            true => Ok(()),
            false => Err(ConfigError {
                key,
                value,
                allowed: format!("{least} to {most}"),
            }),
        };
        let of = |key, value: u32, least, most| between(key, value.into(), least, most);
        let power = |key, value: u32| match value.is_power_of_two() {
            true => Ok(()),
            false => Err(ConfigError {
                key,
                value: value.into(),
                allowed: "a power of two".to_owned(),
            }),
        };
        let (shortest, longest) = (FRAME_MIN.into(), FRAME_MAX.into());
        of("frame_bytes", self.frame_bytes, shortest, longest)?;
        of("receives", self.receives, 16, 1 << 16)?;
        let most = 1 << 16;
        of(
            "receives_max",
            self.receives_max,
            self.receives.into(),
            most,
        )?;
        let floor = crate::credit::FLOOR_MIN.into();
        of("link_floor", self.link_floor, floor, self.receives.into())?;
        of("link_share", self.link_share, self.link_floor.into(), 4096)?;
        of("frame_depth", self.frame_depth, 8, 1024)?;
        of("bulk_depth", self.bulk_depth, 8, 1024)?;
        of("links_max", self.links_max, 1, 4096)?;
        of("bulk_min", self.bulk_min, 1, 1 << 30)?;
        of("bulk_max", self.bulk_max, 512, 1 << 30)?;
        of("bulk_told", self.bulk_told, 1, 16)?;
        of("bulk_each", self.bulk_each, 1, 32)?;
        of("quantum", self.quantum, 512, 1 << 30)?;
        power("ring_bytes", self.ring_bytes)?;
        power("ring_max", self.ring_max)?;
        power("slab_bytes", self.slab_bytes)?;
        of("ring_bytes", self.ring_bytes, 512, 1 << 30)?;
        of("ring_max", self.ring_max, self.ring_bytes.into(), 1 << 30)?;
        of("slab_bytes", self.slab_bytes, 1 << 16, 1 << 30)?;
        of("applications_each", self.applications_each, 1, 65_535)?;
        of("connections_each", self.connections_each, 1, 1 << 20)?;
        let slab = self.slab_bytes.into();
        between("memory_each", self.memory_each, slab, 1 << 42)?;
        of("listeners_each", self.listeners_each, 1, 65_535)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_every_key_and_its_default() {
        let guide = include_str!("../../../docs/daemon.md");
        let config = toml::Table::try_from(Config::default()).unwrap();
        for (key, default) in config {
            let row = format!("| `{key}` | {default} |");
            assert!(guide.contains(&row), "docs/daemon.md has no {row:?}");
        }
    }

    #[test]
    fn defaults_are_legal_and_what_is_not_is_named() {
        Config::default().check().unwrap();
        let short = Config {
            ring_max: 2048,
            ..Config::default()
        };
        let line = short.check().unwrap_err().to_string();
        assert_eq!(line, "ring_max is 2048: 4096 to 1073741824");
        let odd = Config {
            ring_bytes: 5000,
            ..Config::default()
        };
        let line = odd.check().unwrap_err().to_string();
        assert_eq!(line, "ring_bytes is 5000: a power of two");
    }
}

//! What happened to a device's port that ends connections.

use std::fmt;

use crate::address::{Gid, Lid, PKey};

/// What happened to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortChange {
    /// It went down. A connection ends once its retries are used up, unless the port comes up before.
    Down,
    /// It has another GID than the one that connections use; `None` if it has none.
    Gid(Gid, Option<Gid>),
    /// It has another partition key than the one that connections use; `None` if it has none.
    PKey(Option<PKey>, Option<PKey>),
    /// It has another LID than the one that connections use.
    Lid(Option<Lid>, Option<Lid>),
}

/// Why connections of a port end. One line, with the values before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFailure {
    /// Number of the port.
    pub port: u8,
    /// What happened.
    pub change: PortChange,
}

impl fmt::Display for PortFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn or_none(of: Option<impl fmt::Display>) -> String {
            of.map_or_else(|| "none".to_owned(), |of| of.to_string())
        }
        write!(f, "port {} ", self.port)?;
        match self.change {
            PortChange::Down => f.write_str("went down, and was up when the connection was made"),
            PortChange::Gid(before, after) => {
                let after = or_none(after.map(|gid| gid.ip()));
                write!(
                    f,
                    "lost the address {} of the connection and has {after}",
                    before.ip()
                )
            }
            PortChange::PKey(before, after) => {
                let (before, after) = (or_none(before), or_none(after));
                write!(
                    f,
                    "lost the partition key {before} of the connection and has {after}"
                )
            }
            PortChange::Lid(before, after) => {
                let (before, after) = (or_none(before), or_none(after));
                write!(f, "lost the LID {before} of the connection and has {after}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_values_are_named() {
        let gid = |text: &str| {
            let address: std::net::Ipv4Addr = text.parse().unwrap();
            Gid(address.to_ipv6_mapped().octets())
        };
        let line = |change| PortFailure { port: 1, change }.to_string();
        let gids = PortChange::Gid(gid("192.0.2.1"), Some(gid("192.0.2.9")));
        assert_eq!(
            line(gids),
            "port 1 lost the address 192.0.2.1 of the connection and has 192.0.2.9"
        );
        let gone = line(PortChange::Gid(gid("192.0.2.1"), None));
        assert!(gone.ends_with("has none"), "{gone}");
        let keys = PortChange::PKey(PKey::new(0x8001), PKey::new(0xffff));
        assert_eq!(
            line(keys),
            "port 1 lost the partition key 0x8001 of the connection and has 0xffff"
        );
    }
}

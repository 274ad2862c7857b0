//! Failures of a device's port that end connections.

use std::fmt;

use crate::address::{Gid, Lid, PKey};

/// Change of a port that ends connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortChange {
    /// It is down. A connection ends once its retries are used up, unless the port comes up before.
    Down {
        /// Whether it was up before, while the device was open.
        was_active: bool,
    },
    /// It has another GID.
    Gid {
        /// The GID that connections use.
        before: Gid,
        /// The GID that it has now; `None` if it has none.
        after: Option<Gid>,
    },
    /// It has another partition key.
    PKey {
        /// The key that connections use.
        before: Option<PKey>,
        /// The key that it has now.
        after: Option<PKey>,
    },
    /// It has another LID.
    Lid {
        /// The LID that connections use.
        before: Option<Lid>,
        /// The LID that it has now.
        after: Option<Lid>,
    },
}

/// Why connections of a port end. As text, one line with the values before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFailure {
    /// Number of the port.
    pub port: u8,
    /// The change.
    pub change: PortChange,
    /// Ordinal of the failure on this device, from 1. A connection is concerned by those after it was begun, and by a port that
    /// is down.
    pub number: u64,
}

impl PortFailure {
    /// Whether it concerns a connection that was begun after the failure `before`, 0 for none.
    pub const fn concerns(&self, before: u64) -> bool {
        self.number > before || matches!(self.change, PortChange::Down { .. })
    }
}

impl fmt::Display for PortFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn or_none(of: Option<impl fmt::Display>) -> String {
            of.map_or_else(|| "none".to_owned(), |of| of.to_string())
        }
        let (what, before, after) = match self.change {
            PortChange::Down { was_active } => {
                write!(f, "port {} is DOWN", self.port)?;
                let before = if was_active { " and was ACTIVE" } else { "" };
                return f.write_str(before);
            }
            PortChange::Gid { before, after } => {
                let after = after.map(|gid| gid.ip());
                ("address", before.ip().to_string(), or_none(after))
            }
            PortChange::PKey { before, after } => {
                ("partition key", or_none(before), or_none(after))
            }
            PortChange::Lid { before, after } => ("LID", or_none(before), or_none(after)),
        };
        let port = self.port;
        write!(
            f,
            "port {port} lost the {what} {before} of the connection and has {after}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(change: PortChange) -> PortFailure {
        PortFailure {
            port: 1,
            change,
            number: 3,
        }
    }

    #[test]
    fn both_values_are_named() {
        let gid = |text: &str| {
            let address: std::net::Ipv4Addr = text.parse().unwrap();
            Gid(address.to_ipv6_mapped().octets())
        };
        let line = |change| failure(change).to_string();
        let before = gid("192.0.2.1");
        let after = Some(gid("192.0.2.9"));
        assert_eq!(
            line(PortChange::Gid { before, after }),
            "port 1 lost the address 192.0.2.1 of the connection and has 192.0.2.9"
        );
        let gone = line(PortChange::Gid {
            before,
            after: None,
        });
        assert!(gone.ends_with("has none"), "{gone}");
        let keys = PortChange::PKey {
            before: PKey::new(0x8001),
            after: PKey::new(0xffff),
        };
        assert_eq!(
            line(keys),
            "port 1 lost the partition key 0x8001 of the connection and has 0xffff"
        );
        let down = |was_active| line(PortChange::Down { was_active });
        assert_eq!(down(true), "port 1 is DOWN and was ACTIVE");
        assert_eq!(down(false), "port 1 is DOWN");
    }

    #[test]
    fn a_connection_is_concerned_by_what_happens_later_and_by_a_port_that_is_down() {
        let lid = failure(PortChange::Lid {
            before: None,
            after: None,
        });
        assert!(lid.concerns(2) && !lid.concerns(3));
        assert!(failure(PortChange::Down { was_active: true }).concerns(3));
    }
}

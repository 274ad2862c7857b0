//! Facts about an RDMA device that sysfs has and libibverbs does not tell: tables of partition keys and GIDs, the
//! driver's traffic class, counters. `headworks doctor` and `headworks devices -v` print them.
//!
//! | module | purpose |
//! |---|---|
//! | `sysfs` | reads the facts |
//! | `in_words` | says what they mean: pure |

use std::net::Ipv6Addr;

use headworks::devices::Choice;
use headworks::verbs::{DeviceName, PKey};

pub(crate) mod in_words;
mod sysfs;

pub(crate) use sysfs::{DEVICES, is_software, net, port};

/// Facts about one port. A table that cannot be read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortFacts {
    /// Entries of the table of partition keys that have a key, by index.
    pub(crate) pkeys: Vec<PKeyEntry>,
    /// Entries of the GID table that have a GID, by index.
    pub(crate) gids: Vec<GidEntry>,
    /// Traffic class that the driver sets for all connections of the port, whatever a program asks for. Only the
    /// mlx5 driver of MLNX_OFED has this setting.
    pub(crate) driver_class: Option<u8>,
    /// Counters of errors and of congestion that the port has.
    pub(crate) counters: Vec<Counter>,
}

/// Entry of a port's table of partition keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PKeyEntry {
    pub(crate) index: u16,
    pub(crate) key: PKey,
}

/// Entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) index: u16,
    pub(crate) gid: Ipv6Addr,
    /// Type in the kernel's words: `RoCE v2`, `IB/RoCE v1`.
    pub(crate) kind: Option<String>,
    /// Network device that has the address.
    pub(crate) net: Option<String>,
}

/// Value of a counter since the driver was loaded or the counter was cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) name: String,
    pub(crate) value: u64,
}

/// Options of a device's name that decide about a connection, as far as the name gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameOptions {
    pub(crate) gid_index: Option<u16>,
    /// Whether it gives the GID's address (`gid`).
    pub(crate) names_gid: bool,
    /// Whether it gives a subnet of the GID (`subnet`).
    pub(crate) names_subnet: bool,
    pub(crate) pkey_index: Option<u16>,
    pub(crate) traffic_class: Option<u8>,
}

impl NameOptions {
    /// Reads the options of a name. The provider has checked them, so a value that is no number is ignored.
    pub(crate) fn of(name: &DeviceName) -> Self {
        let value = |key| name.option(key).flatten();
        Self {
            gid_index: value("gid_index").and_then(|text| text.parse().ok()),
            names_gid: value("gid").is_some(),
            names_subnet: value("subnet").is_some(),
            pkey_index: value("pkey_index").and_then(|text| text.parse().ok()),
            traffic_class: value("traffic_class").and_then(|text| text.parse().ok()),
        }
    }
}

/// Returns the index of the partition key that connections use, and the key if the table has one there.
pub(crate) fn pkey(choice: &Choice, facts: &PortFacts) -> (u16, Option<PKeyEntry>) {
    let index = choice.pkey_index;
    let mut table = facts.pkeys.iter();
    (index, table.find(|entry| entry.index == index).copied())
}

/// Traffic class that connections of a port have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrafficClass {
    pub(crate) value: u8,
    pub(crate) source: ClassSource,
}

/// Origin of a traffic class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassSource {
    /// The driver's setting for all connections. It replaces what a program asks for.
    Driver,
    /// An option of the device's name.
    Name,
    Default,
}

/// Returns the traffic class of a port on RoCE.
pub(crate) fn traffic_class(facts: &PortFacts, options: NameOptions) -> TrafficClass {
    let (value, source) = match (facts.driver_class, options.traffic_class) {
        (Some(value), _) => (value, ClassSource::Driver),
        (None, Some(value)) => (value, ClassSource::Name),
        (None, None) => (0, ClassSource::Default),
    };
    TrafficClass { value, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_name_gives_are_read() {
        let of = |name: &str| NameOptions::of(&name.parse().unwrap());
        assert_eq!(of("ibv:mlx5_0"), NameOptions::default());
        let expected = NameOptions {
            gid_index: Some(3),
            pkey_index: Some(300),
            traffic_class: Some(106),
            ..NameOptions::default()
        };
        let all = "ibv:mlx5_0,traffic_class=106,pkey_index=300,gid_index=3,mtu=1024";
        assert_eq!(of(all), expected);
        assert_eq!(of("ibv:mlx5_0,pkey_index").pkey_index, None);
    }

    #[test]
    fn the_drivers_traffic_class_replaces_the_names() {
        let class = |driver_class, traffic_class| {
            let facts = PortFacts {
                driver_class,
                ..PortFacts::default()
            };
            let options = NameOptions {
                traffic_class,
                ..NameOptions::default()
            };
            let class = super::traffic_class(&facts, options);
            (class.value, class.source)
        };
        assert_eq!(class(None, None), (0, ClassSource::Default));
        assert_eq!(class(None, Some(104)), (104, ClassSource::Name));
        assert_eq!(class(Some(106), None), (106, ClassSource::Driver));
        assert_eq!(class(Some(106), Some(104)), (106, ClassSource::Driver));
    }
}

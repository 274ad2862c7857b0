//! The device name that a resolved route comes to: pure.

use headworks_verbs::{DeviceName, Gid, Mtu};

use crate::gid::{Entry, GidType};

/// The route of a connection on this machine, as the connection manager resolved it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name of the device in libibverbs.
    pub device: String,
    /// Number of the device's port.
    pub port: u8,
    /// Index of the address in the port's GID table.
    pub gid_index: u8,
    /// Longest packet of the path; `None` if it is not known.
    pub mtu: Option<Mtu>,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Index in the port's partition key table, on an InfiniBand network; `None` elsewhere.
    pub pkey_index: Option<u16>,
}

/// Reason for which a route is refused: it does not fit the device or the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The route uses another device than the named one.
    #[error(
        "the connection goes through {found}, but the named device is {asked}: name {found}, or an address on {asked}'s network"
    )]
    OtherDevice {
        /// The named device.
        asked: String,
        /// The route's device.
        found: String,
    },
    /// The address to listen at belongs to another device than the named one.
    #[error(
        "the address to listen at belongs to {found}, but the named device is {asked}: name {found}, or an address of {asked}"
    )]
    NotItsAddress {
        /// The named device.
        asked: String,
        /// The device that has the address.
        found: String,
    },
    /// The connection manager's address is not in the port's GID table.
    #[error("port {port} of {device} does not have the address {gid} that the connection uses")]
    NoGid {
        /// Name of the device.
        device: String,
        /// Number of the port.
        port: u8,
        /// The address.
        gid: std::net::Ipv6Addr,
    },
    /// The connection manager uses another entry of the GID table than the one expected for its address.
    #[error("the connection uses GID index {found} of {device}, but index {expected} was expected")]
    OtherGid {
        /// Name of the device.
        device: String,
        /// Index that the connection uses.
        found: u8,
        /// Index expected for the address.
        expected: u8,
    },
}

impl Route {
    /// Name of the route's device, for the queue pair that the connection manager connects.
    pub fn own_device(&self) -> Result<DeviceName, RouteError> {
        match DeviceName::of_kind("ibv") {
            Ok(any) => self.device(&any),
            Err(_) => unreachable!("a legal kind"),
        }
    }

    /// Name of the route's device with the options of `asked`, the name that the user gave. Options that it
    /// omits are the route's. `ibv` alone omits everything. A name of another device or port is refused.
    pub fn device(&self, asked: &DeviceName) -> Result<DeviceName, RouteError> {
        if let Some((asked, found)) = other(&self.device, self.port, asked) {
            return Err(RouteError::OtherDevice { asked, found });
        }
        // The connection manager says 0 if nobody has asked for a class. Then the administrator's holds.
        let class = Some(self.traffic_class).filter(|class| *class > 0);
        let port = self.port.to_string();
        let mut name = format!("ibv:{}", self.device);
        let found = [
            ("port", Some(port)),
            ("gid_index", Some(self.gid_index.to_string())),
            ("mtu", self.mtu.map(|mtu| mtu.bytes().to_string())),
            ("service_level", Some(self.service_level.to_string())),
            ("traffic_class", class.map(|class| class.to_string())),
            ("pkey_index", self.pkey_index.map(|index| index.to_string())),
        ];
        for (key, value) in asked.options() {
            name.push(',');
            name.push_str(key);
            if let Some(value) = value {
                name.push('=');
                name.push_str(value);
            }
        }
        for (key, value) in found {
            let is_asked = |key| asked.option(key).is_some();
            // Any of the three options chooses the GID.
            let is_chosen = key == "gid_index" && ["gid", "subnet"].into_iter().any(is_asked);
            if let Some(value) = value.filter(|_| !is_asked(key) && !is_chosen) {
                name.push_str(&format!(",{key}={value}"));
            }
        }
        // libibverbs' name of a device may be illegal as a `DeviceName`; then the device cannot be opened.
        name.parse().map_err(|_| RouteError::OtherDevice {
            asked: asked.to_string(),
            found: name,
        })
    }
}

/// Checks that `asked` names this port of this device, to which an address belongs, or leaves it open.
pub(super) fn check_address(device: &str, port: u8, asked: &DeviceName) -> Result<(), RouteError> {
    match other(device, port, asked) {
        Some((asked, found)) => Err(RouteError::NotItsAddress { asked, found }),
        None => Ok(()),
    }
}

/// The device that `asked` names and the one that was found, if they differ in device or port.
fn other(device: &str, port: u8, asked: &DeviceName) -> Option<(String, String)> {
    let whole = |device: &str, port: Option<&str>| match port {
        Some(port) => format!("ibv:{device},port={port}"),
        None => format!("ibv:{device}"),
    };
    let port = port.to_string();
    let other_port = asked.option("port").flatten();
    let other_port = other_port.filter(|asked| *asked != port);
    let name = asked.name().unwrap_or(device);
    let found = whole(device, other_port.map(|_| &*port));
    (name != device || other_port.is_some()).then(|| (whole(name, other_port), found))
}

/// Index of `gid` in a port's table. On Ethernet the connection manager uses the RoCE v2 entry if there is
/// one.
pub(crate) fn index_of(entries: &[Entry], gid: Gid) -> Option<u8> {
    let of = |wanted: fn(&Entry) -> bool| {
        let found = entries
            .iter()
            .find(|entry| entry.gid == gid && wanted(entry));
        found.map(|entry| entry.index)
    };
    of(|entry| entry.gid_type == GidType::RoceV2).or_else(|| {
        let known = of(|entry| entry.gid_type != GidType::Unknown);
        // If types are not known, version 2 follows version 1.
        known.or_else(|| {
            entries
                .iter()
                .rev()
                .find(|entry| entry.gid == gid)
                .map(|entry| entry.index)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route() -> Route {
        Route {
            device: "rxe1".to_owned(),
            port: 2,
            gid_index: 3,
            mtu: Some(Mtu::B1024),
            service_level: 4,
            traffic_class: 104,
            pkey_index: None,
        }
    }

    fn device(asked: &str) -> Result<String, String> {
        let found = route().device(&asked.parse().unwrap());
        found
            .map(|name| name.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn unset_options_are_taken_from_the_route() {
        let all = "ibv:rxe1,port=2,gid_index=3,mtu=1024,service_level=4,traffic_class=104";
        assert_eq!(device("ibv").unwrap(), all);
        assert_eq!(device("ibv:rxe1").unwrap(), all);
        let asked = "ibv:rxe1,port=2,mtu=256,traffic_class=0,timeout=18";
        let rest = format!("{asked},gid_index=3,service_level=4");
        assert_eq!(device(asked).unwrap(), rest);
        let silent = Route {
            mtu: None,
            traffic_class: 0,
            ..route()
        };
        let name = silent.device(&"ibv".parse().unwrap()).unwrap();
        assert_eq!(
            (name.option("mtu"), name.option("traffic_class")),
            (None, None)
        );
        let infiniband = Route {
            pkey_index: Some(2),
            ..route()
        };
        let name = infiniband.device(&"ibv".parse().unwrap()).unwrap();
        assert_eq!(name.to_string(), format!("{all},pkey_index=2"));
    }

    #[test]
    fn another_device_or_port_is_refused_and_both_are_named() {
        let said = device("ibv:rxe0").unwrap_err();
        assert!(
            said.contains("ibv:rxe0") && said.contains("ibv:rxe1"),
            "{said}"
        );
        let said = device("ibv:rxe1,port=1").unwrap_err();
        assert!(said.contains("port=1") && said.contains("port=2"), "{said}");
    }

    #[test]
    fn an_address_of_another_device_or_port_is_refused_and_both_are_named() {
        let check = |asked: &str| {
            let checked = check_address("rxe1", 2, &asked.parse().unwrap());
            checked.map_err(|error| error.to_string())
        };
        for good in ["ibv", "ibv:rxe1", "ibv:rxe1,mtu=256", "ibv:rxe1,port=2"] {
            assert_eq!(check(good), Ok(()));
        }
        for (asked, found) in [
            ("ibv:rxe0", "ibv:rxe1"),
            ("ibv:rxe1,port=1", "ibv:rxe1,port=2"),
        ] {
            let said = check(asked).unwrap_err();
            assert!(said.contains(asked) && said.contains(found), "{said}");
            assert!(said.contains("the address to listen at"), "{said}");
        }
    }

    #[test]
    fn of_one_address_in_several_versions_the_second_counts() {
        let entry = |index, last, gid_type| {
            let mut gid = Gid::default();
            gid.0[15] = last;
            let has_interface = true;
            Entry {
                index,
                gid,
                gid_type,
                has_interface,
            }
        };
        use GidType::{Local, RoceV2, Unknown};
        let table = [
            entry(0, 1, Local),
            entry(1, 1, RoceV2),
            entry(2, 2, Local),
            entry(3, 1, RoceV2),
        ];
        let index = |table: &[Entry], last| index_of(table, entry(0, last, Local).gid);
        assert_eq!(index(&table, 1), Some(1));
        assert_eq!(index(&table, 2), Some(2));
        assert_eq!(index(&table, 3), None);
        let unknown = [entry(4, 1, Unknown), entry(5, 1, Unknown)];
        assert_eq!(index(&unknown, 1), Some(5));
    }
}

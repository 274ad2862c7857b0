//! Reads the facts below `/sys/class/infiniband`. A file that cannot be read leaves its fact out.

use std::net::Ipv6Addr;
use std::path::Path;

use headworks::verbs::PKey;

use super::{Counter, GidEntry, PKeyEntry, PortFacts, in_words};
use crate::system_files::{list, list_numbered, name_of, number, word};

/// Directory in which the kernel has an entry for each RDMA device.
pub(crate) const DEVICES: &str = "sys/class/infiniband";

/// Whether an RDMA device, whose directory is given, is one of the kernel's software devices.
pub(crate) fn is_software(device: &Path) -> bool {
    let description = word(&device.join("node_desc"));
    matches!(description.as_deref(), Some("rxe" | "Software iWARP stack"))
}

/// Returns the network device below an entry of a port's GID table, and that device's MTU.
pub(crate) fn net(root: &Path, port: &Path, gid_index: u16) -> Option<(String, u32)> {
    let name = word(&port.join("gid_attrs/ndevs").join(gid_index.to_string()))?;
    let mtu = number(&root.join("sys/class/net").join(&name).join("mtu"))?;
    Some((name, mtu))
}

/// Reads the facts about a port, whose directory is `ports/NUMBER` of its `device`.
pub(crate) fn port(device: &Path, number: u32) -> PortFacts {
    let port = device.join("ports").join(number.to_string());
    PortFacts {
        pkeys: pkeys(&port),
        gids: gids(&port),
        driver_class: word(&device.join(format!("tc/{number}/traffic_class")))
            .as_deref()
            .and_then(driver_class),
        counters: counters(&port),
    }
}

fn pkeys(port: &Path) -> Vec<PKeyEntry> {
    let entries = list_numbered(&port.join("pkeys")).into_iter();
    let in_use = entries.filter_map(|(index, file)| {
        let text = word(&file)?;
        let key = u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
        // A key without the bit of membership is 0 in an entry that is not in use.
        PKey::new(key).map(|key| PKeyEntry { index, key })
    });
    in_use.collect()
}

fn gids(port: &Path) -> Vec<GidEntry> {
    let attributes = port.join("gid_attrs");
    let entries = list_numbered::<u16>(&port.join("gids")).into_iter();
    let in_use = entries.filter_map(|(index, file)| {
        let gid: Ipv6Addr = word(&file)?.parse().ok()?;
        if gid.is_unspecified() {
            return None;
        }
        let attribute = |of: &str| {
            let text = word(&attributes.join(of).join(index.to_string()));
            text.filter(|text| !text.is_empty())
        };
        Some(GidEntry {
            index,
            gid,
            kind: attribute("types"),
            net: attribute("ndevs"),
        })
    });
    in_use.collect()
}

/// Reads `Global tclass=106`, the line of the setting for all connections. Lines with rules for some addresses follow.
fn driver_class(text: &str) -> Option<u8> {
    let value = text.lines().next()?.trim().strip_prefix("Global tclass=")?;
    value.parse().ok()
}

fn counters(port: &Path) -> Vec<Counter> {
    let folders = ["hw_counters", "counters"].map(|folder| list(&port.join(folder)));
    let known = folders.iter().flatten().filter_map(|file| {
        let name = name_of(file);
        in_words::counter(&name)?;
        let value = number(file)?;
        Some(Counter { name, value })
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Creates a root directory with the files of one port.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn tables_are_read_without_entries_that_are_not_in_use() {
        let root = root(&[
            ("ports/1/pkeys/0", "0xffff\n"),
            ("ports/1/pkeys/1", "0x0000\n"),
            ("ports/1/pkeys/2", "0x0001\n"),
            // An index of two digits sorts behind those of one.
            ("ports/1/pkeys/10", "0x8002\n"),
            ("ports/1/pkeys/3", "nonsense\n"),
            ("ports/1/pkeys/x", "0x8001\n"),
            (
                "ports/1/gids/0",
                "fe80:0000:0000:0000:0e42:a1ff:fe00:0001\n",
            ),
            (
                "ports/1/gids/1",
                "0000:0000:0000:0000:0000:ffff:c000:0201\n",
            ),
            (
                "ports/1/gids/2",
                "0000:0000:0000:0000:0000:0000:0000:0000\n",
            ),
            ("ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
            ("ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("ports/1/gid_attrs/ndevs/1", "eth0.7\n"),
        ]);
        let facts = port(root.path(), 1);
        let pkeys = facts
            .pkeys
            .iter()
            .map(|entry| (entry.index, entry.key.raw()));
        let expected = [(0, 0xffff), (2, 0x0001), (10, 0x8002)];
        assert_eq!(pkeys.collect::<Vec<_>>(), expected);
        let full: Vec<_> = facts
            .pkeys
            .iter()
            .map(|entry| entry.key.is_full())
            .collect();
        assert_eq!(full, [true, false, true]);
        let entry = |index, gid: &str, kind: &str, net: Option<&str>| GidEntry {
            index,
            gid: gid.parse().unwrap(),
            kind: Some(kind.to_owned()),
            net: net.map(str::to_owned),
        };
        let expected = [
            entry(0, "fe80::e42:a1ff:fe00:1", "IB/RoCE v1", None),
            entry(1, "::ffff:192.0.2.1", "RoCE v2", Some("eth0.7")),
        ];
        assert_eq!(facts.gids, expected);
        assert_eq!(port(root.path(), 2), PortFacts::default());
    }

    #[test]
    fn the_drivers_class_is_its_setting_for_all_connections() {
        let of = |text| port(root(&[("tc/1/traffic_class", text)]).path(), 1).driver_class;
        assert_eq!(of("Global tclass=106\n"), Some(106));
        assert_eq!(
            of("Global tclass=106\nsrc_ip=192.0.2.1,tclass=8\n"),
            Some(106)
        );
        assert_eq!(of("src_ip=192.0.2.1,tclass=8\n"), None);
        assert_eq!(of(""), None);
        assert_eq!(of("Global tclass=300\n"), None);
    }

    #[test]
    fn known_counters_are_read_from_both_directories() {
        let root = root(&[
            ("ports/1/hw_counters/out_of_sequence", "7\n"),
            ("ports/1/hw_counters/np_cnp_sent", "0\n"),
            ("ports/1/hw_counters/lifespan", "10\n"),
            ("ports/1/counters/symbol_error", "1\n"),
            ("ports/1/counters/port_rcv_errors", "N/A (no PMA)\n"),
        ]);
        let facts = port(root.path(), 1);
        let read = facts.counters.iter().map(|one| (&*one.name, one.value));
        let expected = [
            ("np_cnp_sent", 0),
            ("out_of_sequence", 7),
            ("symbol_error", 1),
        ];
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_kernels_software_devices_are_known_by_their_description() {
        let of = |text| is_software(root(&[("node_desc", text)]).path());
        assert!(of("rxe\n") && of("Software iWARP stack\n"));
        assert!(!of("host1 mlx5_0\n") && !of("\n"));
    }
}

//! Files in which programs look for RDMA devices: `/sys/class/infiniband` and its like, and `/dev/infiniband`. Pure.
//!
//! Programs read them beside the interface of libibverbs: UCX and perftest look up the types of GIDs. The kernel
//! has no such files for the devices of this library, and may have those of real devices, which the program cannot reach. So
//! `calls::files` answers from here.

use headworks_verbs::Gid;

use crate::devices::{GID_PLACES, Link, PORT, PortTables, VerbsDevice};
use crate::manners::Manner;

/// A file or directory that programs see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SystemFile {
    /// A directory, and the names in it.
    Directory(Vec<String>),
    /// A file with this text.
    Text(String),
    /// A character device.
    Device,
    /// A symbolic link to this path.
    Link(String),
}

/// Directories of the devices. Other classes of InfiniBand (`infiniband_verbs`, `infiniband_mad`) begin alike.
const CLASS: &str = "/sys/class/infiniband";
const DEV: &str = "/dev/infiniband";
/// The kernel's version of the interface between it and libibverbs. Nobody uses it here.
const ABI_VERSION: &str = "6\n";

/// Whether a path may be in one of the directories that this library answers for. All other paths are the kernel's.
pub(crate) fn is_ours(path: &[u8]) -> bool {
    let is_in = |root: &str| {
        path.strip_prefix(root.as_bytes())
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'/' | b'_')))
    };
    is_in(CLASS) || is_in(DEV)
}

/// Finds the file at a path that [`is_ours`]. `None` if the path leads elsewhere; an inner `None` if there is no such file.
pub(crate) fn look_up(devices: &[&VerbsDevice], path: &str) -> Option<Option<SystemFile>> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let plain = format!("/{}", parts.join("/"));
    is_ours(plain.as_bytes()).then(|| find(devices, &parts))
}

/// Finds the file at a path, by its parts.
fn find(devices: &[&VerbsDevice], parts: &[&str]) -> Option<SystemFile> {
    match parts {
        ["sys", "class", "infiniband"] => Some(names(devices.iter().map(|one| one.name.clone()))),
        ["sys", "class", "infiniband", name, rest @ ..] => {
            let device = devices.iter().find(|device| device.name == *name)?;
            of_device(device, rest)
        }
        ["sys", "class", "infiniband_verbs"] => {
            let uverbs = devices.iter().map(|one| uverbs(one));
            Some(names(uverbs.chain(["abi_version".to_owned()])))
        }
        ["sys", "class", "infiniband_verbs", "abi_version"] => text(ABI_VERSION),
        ["sys", "class", "infiniband_verbs", name, rest @ ..] => {
            let device = devices.iter().find(|device| uverbs(device) == *name)?;
            match rest {
                [] => Some(listed(&["abi_version", "dev", "ibdev"])),
                ["abi_version"] => text("1\n"),
                // The major number of uverbs devices.
                ["dev"] => text(&format!("231:{}\n", 191 + u32::from(device.number))),
                ["ibdev"] => text(&format!("{}\n", device.name)),
                _ => None,
            }
        }
        ["dev", "infiniband"] => Some(names(devices.iter().map(|one| uverbs(one)))),
        ["dev", "infiniband", name] => devices
            .iter()
            .any(|device| uverbs(device) == *name)
            .then_some(SystemFile::Device),
        _ => None,
    }
}

/// Name of the device's character device.
fn uverbs(device: &VerbsDevice) -> String {
    format!("uverbs{}", device.number - 1)
}

fn names(names: impl Iterator<Item = String>) -> SystemFile {
    SystemFile::Directory(names.collect())
}

fn listed(list: &[&str]) -> SystemFile {
    names(list.iter().map(|name| (*name).to_owned()))
}

fn numbered(count: usize) -> SystemFile {
    names((0..count).map(|number| number.to_string()))
}

/// A file with this text, which ends with a newline as the kernel's do.
fn text(text: &str) -> Option<SystemFile> {
    Some(SystemFile::Text(text.to_owned()))
}

/// The files of the function behind the device, which only drivers have. The kernel has them in a directory that links lead to.
fn of_function(device: &VerbsDevice, path: &[&str]) -> Option<SystemFile> {
    let driver = device.manners.find(|it| match it {
        Manner::Driver(name) => Some(name),
        _ => None,
    })?;
    match path {
        [] => Some(listed(&["driver"])),
        ["driver"] => Some(SystemFile::Link(format!("../../bus/pci/drivers/{driver}"))),
        _ => None,
    }
}

fn of_device(device: &VerbsDevice, path: &[&str]) -> Option<SystemFile> {
    let guid = device.guid().to_ne_bytes();
    match path {
        [] => Some(listed(&[
            "board_id",
            "fw_ver",
            "hca_type",
            "node_desc",
            "node_guid",
            "node_type",
            "ports",
            "sys_image_guid",
        ])),
        ["node_type"] => text("1: CA\n"),
        ["node_guid" | "sys_image_guid"] => text(&groups(&guid)),
        ["node_desc"] => text(&format!("{}\n", device.name)),
        ["fw_ver"] => text(concat!("headworks ", env!("CARGO_PKG_VERSION"), "\n")),
        ["hca_type" | "board_id"] => text("headworks\n"),
        ["device", rest @ ..] => of_function(device, rest),
        ["ports"] => Some(names([PORT.to_string()].into_iter())),
        ["ports", port, rest @ ..] if *port == PORT.to_string() => of_port(device, rest),
        _ => None,
    }
}

fn of_port(device: &VerbsDevice, path: &[&str]) -> Option<SystemFile> {
    let gids = device.gids();
    let gid = |index: &str| gids.get(index.parse::<usize>().ok()?);
    match path {
        [] => Some(listed(&[
            "cap_mask",
            "gid_attrs",
            "gids",
            "lid",
            "lid_mask_count",
            "link_layer",
            "phys_state",
            "pkeys",
            "rate",
            "sm_lid",
            "sm_sl",
            "state",
        ])),
        ["state"] => text("4: ACTIVE\n"),
        ["phys_state"] => text("5: LinkUp\n"),
        ["rate"] => text("100 Gb/sec (4X EDR)\n"),
        ["cap_mask"] => text("0x00000000\n"),
        ["lid"] => text(&format!("{:#x}\n", device.lid())),
        ["sm_lid"] => text(&format!("{:#x}\n", u8::from(device.lid() > 0))),
        ["lid_mask_count" | "sm_sl"] => text("0\n"),
        ["link_layer"] => text(match device.link {
            Link::Ethernet => "Ethernet\n",
            Link::Infiniband => "InfiniBand\n",
        }),
        ["gids"] => Some(numbered(GID_PLACES)),
        ["gid_attrs", "types" | "ndevs"] => Some(numbered(gids.len())),
        ["gids", index] => {
            let index: usize = index.parse().ok().filter(|index| *index < GID_PLACES)?;
            text(&groups(&gids.get(index).copied().unwrap_or_default().0))
        }
        ["gid_attrs"] => Some(listed(&["ndevs", "types"])),
        ["gid_attrs", "types", index] => {
            let Gid(_) = gid(index)?;
            text(match device.link {
                Link::Ethernet => "RoCE v2\n",
                Link::Infiniband => "IB/RoCE v1\n",
            })
        }
        // All peers are on this host.
        ["gid_attrs", "ndevs", index] => {
            let Gid(_) = gid(index)?;
            text("lo\n")
        }
        ["pkeys"] => Some(numbered(device.manners.pkeys().len())),
        ["pkeys", index] => {
            let pkey = device.pkey(index.parse().ok()?, PortTables::default())?;
            text(&format!("{pkey:#06x}\n"))
        }
        _ => None,
    }
}

/// Bytes as the kernel prints GUIDs and GIDs: groups of two bytes.
fn groups(bytes: &[u8]) -> String {
    let groups = bytes
        .chunks(2)
        .map(|two| two.iter().map(|byte| format!("{byte:02x}")).collect());
    let groups: Vec<String> = groups.collect();
    format!("{}\n", groups.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::devices;

    #[test]
    fn the_directories_are_ours_and_nothing_beside_them() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/mlx5_0/ports",
            "/sys/class/infiniband_verbs/uverbs0",
            "/sys/class/infiniband_mad",
            "/dev/infiniband/uverbs0",
        ] {
            assert!(is_ours(path.as_bytes()), "{path}");
        }
        for path in [
            "/sys/class/net",
            "/sys/class/infinibandx",
            "/dev/null",
            "infiniband",
            "",
        ] {
            assert!(!is_ours(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn the_driver_is_that_of_the_manners() {
        let irdma = devices(Some("irdma0"), None, Some("irdma")).unwrap();
        let irdma: Vec<_> = irdma.iter().collect();
        let driver = "/sys/class/infiniband/irdma0/device/driver";
        let target = "../../bus/pci/drivers/ice".to_owned();
        assert_eq!(
            look_up(&irdma, driver),
            Some(Some(SystemFile::Link(target)))
        );
        let plain = devices(Some("irdma0"), None, None).unwrap();
        let plain: Vec<_> = plain.iter().collect();
        assert_eq!(look_up(&plain, driver), Some(None));
    }

    /// Walks the tree. Whatever a directory lists is there.
    fn walk(devices: &[&VerbsDevice], path: &str) -> usize {
        match look_up(devices, path)
            .flatten()
            .unwrap_or_else(|| panic!("{path} is listed"))
        {
            SystemFile::Link(_) => panic!("a device without manners has no driver"),
            SystemFile::Directory(names) => {
                assert!(!names.is_empty(), "{path}");
                let below = names
                    .iter()
                    .map(|name| walk(devices, &format!("{path}/{name}")));
                below.sum::<usize>()
            }
            SystemFile::Text(text) => {
                assert!(text.ends_with('\n') && text.is_ascii(), "{path}: {text:?}");
                1
            }
            SystemFile::Device => 1,
        }
    }

    #[test]
    fn everything_that_is_listed_exists() {
        for link in ["ethernet", "infiniband"] {
            let two = devices(Some("mlx5_0,mlx5_1"), Some(link), None).unwrap();
            let two: Vec<_> = two.iter().collect();
            assert!(walk(&two, CLASS) > 30);
            assert_eq!(walk(&two, "/sys/class/infiniband_verbs"), 2 * 3 + 1);
            assert_eq!(walk(&two, DEV), 2);
            for absent in [
                "/mlx5_2",
                "/mlx5_0/device",
                "/mlx5_0/ports/2",
                "/mlx5_0/ports/1/gids/8",
            ] {
                let path = format!("{CLASS}{absent}");
                assert_eq!(look_up(&two, &path), Some(None), "{absent}");
            }
            assert_eq!(look_up(&two, "/sys/class/infiniband_mad"), Some(None));
            assert_eq!(look_up(&two, "/sys/class/infiniband/../net/lo"), None);
        }
    }

    #[test]
    fn files_say_what_the_interface_says() {
        let one = devices(Some("a"), Some("infiniband"), None).unwrap();
        let one: Vec<_> = one.iter().collect();
        let read = |path: &str| match look_up(&one, &format!("{CLASS}/a/{path}")).flatten() {
            Some(SystemFile::Text(text)) => text,
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(read("ports//1/./lid"), "0x1\n");
        assert_eq!(read("ports/1/pkeys/0"), "0xffff\n");
        let gid = read("ports/1/gids/0");
        assert!(gid.starts_with("fd68:7700:") && gid.len() == 40, "{gid}");
        assert_eq!(read("node_guid").trim_end(), &gid[20..39]);
    }
}

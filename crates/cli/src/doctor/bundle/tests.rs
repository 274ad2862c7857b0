//! Bundles of a machine whose names and addresses are known.

use std::fs;

use super::redact::HOMES;
use super::*;

const MAC: &str = "0c:42:a1:12:34:56";
const GUID: &str = "0c42:a103:0012:3456";
const LINK_LOCAL: &str = "fe80:0000:0000:0000:0c42:a103:0012:3456";
const IPV4_GID: &str = "0000:0000:0000:0000:0000:ffff:c633:6407";

/// Identifies the machine, or its user, in any of its files. `IPV4_GID` is 198.51.100.7.
const KNOWN: [&str; 11] = [
    MAC,
    GUID,
    "c42:a103:12:3456",
    "ffff:c633:6407",
    "198.51.100.7",
    "2001:db8:77::5",
    "0c42a1123456",
    "storage-node-12",
    "example.org",
    "carol",
    "SN0123456789",
];

/// Creates the root directory of a machine with a NIC.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let device = "sys/class/infiniband/rocex0c42a1123456";
    let link = format!("{IPV4_GID}\n");
    let files = [
        ("etc/hostname", "storage-node-12\n"),
        (
            "etc/hosts",
            "198.51.100.9 storage-node-12.example.org # it\n",
        ),
        (
            "etc/passwd",
            "root:x:0:0::/root:/bin/sh\ncarol:x:1000:1000::/carol:/bin/sh\n",
        ),
        ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Some Linux 12\"\n"),
        (
            "var/lib/dpkg/status",
            "Package: bash\nVersion: 5\n\nPackage: rdma-core\nStatus: x\nVersion: 44.0-2\n",
        ),
        ("sys/module/mlx5_core/version", "5.8-1\n"),
        ("sys/module/mlx5_core/parameters/prof_sel", "2\n"),
        ("sys/module/other/parameters/x", "1\n"),
        ("sys/class/net/enx0c42a1123456/mtu", "9000\n"),
        ("sys/class/net/enx0c42a1123456/address", MAC),
        ("sys/devices/system/node/node0/cpulist", "0-7\n"),
        (
            "proc/cpuinfo",
            "model name\t: Some CPU\nSerial\t: SN0123456789\n\nmodel name\t: Some CPU\n",
        ),
        ("proc/sys/vm/nr_hugepages", "512\n"),
        (
            "proc/self/limits",
            "Max locked memory  unlimited\nMax open files  1024\n",
        ),
        ("proc/self/cgroup", "0::/user.slice/carol.service\n"),
        (
            "sys/fs/cgroup/user.slice/rdma.max",
            "rocex0c42a1123456 hca_handle=2\n",
        ),
    ];
    let of_device = [
        ("node_desc", "storage-node-12 HCA-1\n"),
        ("node_guid", GUID),
        ("sys_image_guid", GUID),
        ("serial", "SN0123456789\n"),
        ("fw_ver", "16.35.20.14\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/pkeys/0", "0xffff\n"),
        ("ports/1/pkeys/1", "0x0000\n"),
        ("ports/1/gids/0", LINK_LOCAL),
        ("ports/1/gids/1", &link),
        (
            "ports/1/gids/2",
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        ),
        ("ports/1/gid_attrs/ndevs/0", "enx0c42a1123456\n"),
        ("ports/1/hw_counters/out_of_sequence", "7\n"),
        ("ports/1/counters/port_rcv_data", "123456789012\n"),
        (
            "tc/1/traffic_class",
            "Global tclass=106\nsrc_ip=198.51.100.7,tclass=8\n",
        ),
        ("device/numa_node", "1\n"),
        ("device/vpd", "\u{1}SN0123456789\n"),
    ];
    let of_device = of_device.map(|(path, text)| (format!("{device}/{path}"), text));
    let files = files.map(|(path, text)| (path.to_owned(), text));
    for (path, text) in files.iter().chain(&of_device) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn own_facts() -> OwnFacts {
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    OwnFacts {
        findings: "[{\"found\": \"::ffff:198.51.100.7 of carol\"}]\n".to_owned(),
        devices: "ibv:rocex0c42a1123456\n    gid 2001:db8:77::5\n".to_owned(),
        versions: "headworks/version: 0.1.0\n".to_owned(),
        host: "storage-node-12".to_owned(),
        user: 1000,
        variables: vec![
            variable("HEADWORKS_DAEMON", "198.51.100.7"),
            variable("HEADWORKS_PLACE", &format!("{HOMES}erin/x")),
            variable("HEADWORKS_TOKEN", "sesame"),
            variable("HOME", &format!("{HOMES}dave")),
            variable("MLX5_SINGLE_THREADED", "0"),
            variable("UCX_LOG_FILE", &format!("{HOMES}carol/storage-node-12.log")),
            variable("USER", "carol"),
        ],
    }
}

fn redacted() -> Bundle {
    let (root, own) = (machine(), own_facts());
    let entries = collect::entries(root.path(), &own);
    let names = collect::names(root.path(), &own);
    Bundle::redacted(entries, Redactor::new(&names))
}

/// Returns a file of a bundle.
fn file<'a>(bundle: &'a Bundle, path: &str) -> &'a str {
    let mut entries = bundle.entries.iter();
    let entry = entries.find(|entry| entry.path == path);
    &entry
        .unwrap_or_else(|| panic!("no {path} in {bundle:?}"))
        .text
}

/// Returns the bytes of the archive.
fn archived(bundle: &Bundle) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.tar");
    archive::write(&path, &bundle.entries).unwrap();
    fs::read(path).unwrap()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let mut windows = bytes.windows(text.len());
    windows.any(|window| window.to_ascii_lowercase() == text.as_bytes())
}

#[test]
fn an_archive_has_no_known_name_or_address() {
    let bytes = archived(&redacted());
    for known in KNOWN {
        assert!(!contains(&bytes, known), "{known}");
    }
    assert!(!contains(&bytes, "sesame") && !contains(&bytes, "dave") && !contains(&bytes, "erin"));
}

#[test]
fn equal_addresses_have_equal_placeholders_in_all_files() {
    let bundle = redacted();
    let address = |text: &str, before: &str| {
        let (_, rest) = text.split_once(before).expect(before);
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '-');
        rest[..end.unwrap_or(rest.len())].to_owned()
    };
    let device = &bundle
        .entries
        .iter()
        .find(|entry| entry.path.starts_with("rdma/"));
    let device = &device.expect("a device").text;
    let ipv4 = address(file(&bundle, "doctor.json"), "::ffff:");
    assert!(ipv4.starts_with("addr-"), "{ipv4}");
    assert_eq!(address(device, "gids/1: ::ffff:"), ipv4);
    assert_eq!(address(device, "src_ip="), ipv4);
    let variables = file(&bundle, "environment.txt");
    assert_eq!(address(variables, "HEADWORKS_DAEMON="), ipv4);
    let guid = address(device, "node_guid: ");
    assert_eq!(address(device, "gids/0: fe80::"), guid);
    assert_ne!(guid, ipv4);
    let mac = address(file(&bundle, "devices.txt"), "ibv:rocex");
    assert_eq!(address(device, "ndevs/0: enx"), mac);
    let path = format!("rdma/rocex{mac}.txt");
    file(&bundle, &path);
    assert!(bundle.report(Path::new("x")).contains(&path));
    let log = format!("UCX_LOG_FILE={HOMES}user-1/host-1.log\n");
    assert!(variables.contains(&log), "{variables}");
}

#[test]
fn a_bundle_has_what_a_report_needs() {
    let bundle = redacted();
    let has = |path: &str, lines: &[&str]| {
        let text = file(&bundle, path);
        for line in lines {
            assert!(text.lines().any(|there| there == *line), "{line}: {text}");
        }
    };
    let device = bundle
        .entries
        .iter()
        .find(|entry| entry.path.starts_with("rdma/"));
    has(
        &device.expect("a device").path,
        &[
            "ports/1/state: 4: ACTIVE",
            "ports/1/pkeys/0: 0xffff",
            "ports/1/hw_counters/out_of_sequence: 7",
            "ports/1/counters/port_rcv_data: 123456789012",
            "    Global tclass=106",
            "device/numa_node: 1",
            "fw_ver: 16.35.20.14",
            "node_desc: description-1",
            "serial: serial-1",
        ],
    );
    let text = &device.expect("a device").text;
    assert!(!text.contains("pkeys/1:") && !text.contains("gids/2:"));
    has(
        "modules.txt",
        &[
            "mlx5_core/version: 5.8-1",
            "mlx5_core/parameters/prof_sel: 2",
        ],
    );
    assert!(!file(&bundle, "modules.txt").contains("other"));
    has(
        "versions.txt",
        &[
            "headworks/version: 0.1.0",
            "system: Some Linux 12",
            "package rdma-core/version: 44.0-2",
        ],
    );
    assert!(!file(&bundle, "versions.txt").contains("bash"));
    has(
        "processors.txt",
        &["model name: Some CPU", "node0/cpulist: 0-7"],
    );
    has(
        "limits.txt",
        &["vm/nr_hugepages: 512", "    Max open files  1024"],
    );
    assert!(file(&bundle, "limits.txt").contains("control group 1/rdma.max: "));
    assert!(file(&bundle, "net.txt").contains("/mtu: 9000\n"));
    has(
        "environment.txt",
        &["HEADWORKS_TOKEN=(left out)", "MLX5_SINGLE_THREADED=0"],
    );
    assert!(!file(&bundle, "environment.txt").contains("HOME="));
    // The first file lists the others, and what was replaced.
    let contents = file(&bundle, "contents.txt");
    assert_eq!(bundle.entries[0].path, "contents.txt");
    for entry in &bundle.entries[1..] {
        assert!(contents.contains(&entry.path), "{}", entry.path);
    }
    for replaced in [
        "addresses: ",
        "host names: ",
        "user names: 2 (user-1 to user-2)",
        "serial numbers: 1",
    ] {
        assert!(contents.contains(replaced), "{replaced}: {contents}");
        assert!(bundle.report(Path::new("x")).contains(replaced));
    }
}

#[test]
fn with_addresses_everything_is_kept() {
    let (root, own) = (machine(), own_facts());
    let bundle = Bundle::with_addresses(collect::entries(root.path(), &own));
    let bytes = archived(&bundle);
    let kept = [
        GUID,
        LINK_LOCAL,
        IPV4_GID,
        "198.51.100.7",
        "storage-node-12",
        "carol",
    ];
    for known in kept {
        assert!(contains(&bytes, known), "{known}");
    }
    assert!(!contains(&bytes, "addr-1") && !contains(&bytes, "sesame"));
    assert!(bundle.report(Path::new("x")).contains("Replaced: nothing"));
}

#[test]
fn a_machine_without_rdma_has_a_bundle_too() {
    let root = tempfile::tempdir().unwrap();
    let entries = collect::entries(root.path(), &OwnFacts::default());
    let names = collect::names(root.path(), &OwnFacts::default());
    let bundle = Bundle::redacted(entries, Redactor::new(&names));
    assert!(
        bundle
            .entries
            .iter()
            .all(|entry| !entry.path.starts_with("rdma/"))
    );
    assert!(bundle.report(Path::new("x")).contains("Replaced: nothing."));
}

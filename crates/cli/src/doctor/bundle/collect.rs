//! Reads the files of a bundle. A file that cannot be read is left out, or its error is in its place.

use std::fs;
use std::path::{Path, PathBuf};

use super::archive::Entry;
use super::redact::Names;
use crate::rdma_facts::DEVICES;
use crate::system_files::{list, name_of, numbered, word};

/// Facts that the program knows without reading files of the system.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnFacts {
    /// Output of `headworks doctor --json`.
    pub(super) findings: String,
    /// Output of `headworks devices -v`.
    pub(super) devices: String,
    /// Version of this program, and of the kernel that runs it.
    pub(super) versions: String,
    /// Name of this host, as the kernel knows it.
    pub(super) host: String,
    /// User id of this process.
    pub(super) user: u32,
    /// All variables of the environment.
    pub(super) variables: Vec<(String, String)>,
}

/// Beginnings of the names of variables that go into a bundle.
const PREFIXES: [&str; 5] = ["HEADWORKS_", "MLX5_", "IBV_", "RDMAV_", "UCX_"];
/// Parts of the names of variables whose values are secrets.
const SECRETS: &[&str] = &[
    "AUTH",
    "CREDENTIAL",
    "CREDENTIALS",
    "KEY",
    "PASS",
    "PASSWORD",
    "SECRET",
    "SECRETS",
    "TOKEN",
];

/// Modules of the kernel whose parameters matter to RDMA.
const MODULES: &[&str] = &[
    "bnxt_en",
    "bnxt_re",
    "cxgb4",
    "efa",
    "erdma",
    "hfi1",
    "hns_roce",
    "hns_roce_hw_v2",
    "i40e",
    "i40iw",
    "ib_core",
    "ib_ipoib",
    "ib_umad",
    "ib_uverbs",
    "ice",
    "ionic",
    "ionic_rdma",
    "irdma",
    "iw_cm",
    "iw_cxgb4",
    "mana",
    "mana_ib",
    "mlx4_core",
    "mlx4_ib",
    "mlx5_core",
    "mlx5_ib",
    "nvidia_peermem",
    "ocrdma",
    "qede",
    "qedr",
    "qib",
    "rdma_cm",
    "rdma_rxe",
    "rdma_ucm",
    "siw",
    "usnic_verbs",
    "vmw_pvrdma",
];

/// Files of the PCI function below an RDMA device.
const FUNCTION_FILES: [&str; 13] = [
    "class",
    "current_link_speed",
    "current_link_width",
    "device",
    "local_cpulist",
    "max_link_speed",
    "max_link_width",
    "numa_node",
    "revision",
    "sriov_numvfs",
    "subsystem_device",
    "subsystem_vendor",
    "vendor",
];

/// Files of a network device.
const NET_FILES: [&str; 5] = ["mtu", "operstate", "speed", "tx_queue_len", "type"];

/// Settings of the kernel, below `/proc/sys`.
const SETTINGS: [&str; 12] = [
    "kernel/numa_balancing",
    "kernel/sched_rt_runtime_us",
    "kernel/yama/ptrace_scope",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/tcp_congestion_control",
    "vm/max_map_count",
    "vm/nr_hugepages",
    "vm/overcommit_memory",
    "vm/overcommit_ratio",
    "vm/swappiness",
    "vm/zone_reclaim_mode",
];

/// Packages with the libraries of RDMA, by the names that distributions give them.
const PACKAGES: [&str; 8] = [
    "ibverbs-providers",
    "infiniband-diags",
    "libibverbs",
    "libibverbs1",
    "librdmacm",
    "librdmacm1",
    "mlnx-ofed-kernel-utils",
    "rdma-core",
];

/// Directories of libraries.
const LIBRARY_FOLDERS: [&str; 6] = [
    "lib64",
    "usr/lib",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/local/lib",
];

/// Longest value that is taken from a file, in bytes.
const VALUE_MAX: usize = 64 << 10;

/// Returns the files of a bundle. Files of the system are read below `root`, which is `/` except in tests.
pub(super) fn entries(root: &Path, own: &OwnFacts) -> Vec<Entry> {
    let entry = |path: &str, text: String| Entry {
        path: path.to_owned(),
        text,
    };
    let mut entries = vec![
        entry("doctor.json", own.findings.clone()),
        entry("devices.txt", own.devices.clone()),
        entry("versions.txt", own.versions.clone() + &versions(root)),
        entry("modules.txt", modules(root)),
    ];
    for device in list(&root.join(DEVICES)) {
        let path = format!("rdma/{}.txt", name_of(&device));
        entries.push(entry(&path, rdma_device(&device)));
    }
    entries.push(entry("net.txt", nets(root)));
    entries.push(entry("processors.txt", processors(root)));
    entries.push(entry("limits.txt", limits(root)));
    entries.push(entry("environment.txt", environment(&own.variables)));
    for entry in entries.iter_mut().filter(|entry| entry.text.is_empty()) {
        entry.text = "nothing was found\n".to_owned();
    }
    entries
}

/// Returns the names that identify this machine and its users.
pub(super) fn names(root: &Path, own: &OwnFacts) -> Names {
    let at = |path: &str| word(&root.join(path)).unwrap_or_default();
    let mut hosts = vec![own.host.clone()];
    hosts.extend(["proc/sys/kernel/hostname", "etc/hostname"].map(at));
    for line in at("etc/hosts").lines() {
        let line = line.split('#').next().unwrap_or_default();
        let names = line.split_whitespace().skip(1);
        hosts.extend(
            names
                .filter(|name| !name.starts_with("ip6-"))
                .map(str::to_owned),
        );
    }
    let mut users: Vec<_> = ["USER", "LOGNAME", "SUDO_USER"]
        .iter()
        .filter_map(|name| {
            let mut variables = own.variables.iter();
            variables.find(|(there, _)| there == name)
        })
        .map(|(_, user)| user.clone())
        .collect();
    for line in at("etc/passwd").lines() {
        let mut fields = line.split(':');
        let (name, id) = (fields.next(), fields.nth(1));
        let id: Option<u32> = id.and_then(|id| id.parse().ok());
        // Users of programs have small numbers.
        if let (Some(name), Some(id)) = (name, id)
            && (id >= 1000 || id == own.user)
        {
            users.push(name.to_owned());
        }
    }
    let serials = [
        "etc/machine-id",
        "sys/class/dmi/id/board_serial",
        "sys/class/dmi/id/chassis_serial",
        "sys/class/dmi/id/product_serial",
        "sys/class/dmi/id/product_uuid",
    ];
    // A maker may leave `None` or `0` there.
    let serials = serials.map(at).into_iter().filter(|text| text.len() > 5);
    Names {
        hosts,
        users,
        serials: serials.collect(),
    }
}

/// Appends a line `KEY: VALUE` to a text, or several lines if the value has more than one.
fn say(text: &mut String, key: &str, value: &str) {
    if value.contains('\n') {
        text.push_str(&format!("{key}:\n"));
        for line in value.lines() {
            text.push_str(&format!("    {line}\n"));
        }
        return;
    }
    text.push_str(&format!("{key}: {value}\n"));
}

/// Appends a file's value to a text. A file that is missing is left out.
fn say_file(text: &mut String, key: &str, file: &Path) {
    let Ok(bytes) = fs::read(file) else {
        return;
    };
    let value = String::from_utf8_lossy(&bytes[..bytes.len().min(VALUE_MAX)]);
    // Values end with a line feed or a zero byte.
    let value = value.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    if value.contains(|c: char| c.is_control() && c != '\n' && c != '\t') {
        return;
    }
    say(text, key, value);
}

fn versions(root: &Path) -> String {
    let mut text = String::new();
    let release = word(&root.join("etc/os-release")).unwrap_or_default();
    let name = |line: &&str| line.starts_with("PRETTY_NAME=");
    if let Some(name) = release.lines().find(name) {
        say(
            &mut text,
            "system",
            name["PRETTY_NAME=".len()..].trim_matches('"'),
        );
    }
    for (package, version) in packages(&word(&root.join("var/lib/dpkg/status")).unwrap_or_default())
    {
        say(&mut text, &format!("package {package}/version"), &version);
    }
    for folder in LIBRARY_FOLDERS {
        for library in ["libibverbs.so.1", "librdmacm.so.1"] {
            let path = Path::new(folder).join(library);
            if let Ok(target) = fs::read_link(root.join(&path)) {
                let key = format!("/{}/version", path.display());
                say(&mut text, &key, &name_of(&target));
            }
        }
    }
    // A script of MLNX_OFED, whose version is in a line of its own.
    let script = word(&root.join("usr/bin/ofed_info")).unwrap_or_default();
    let version = |line: &&str| line.contains("OFED-") && line.trim_end().ends_with(':');
    if let Some(version) = script.lines().find(version) {
        say(
            &mut text,
            "ofed_info/version",
            version.trim().trim_end_matches(':'),
        );
    }
    text
}

/// Returns the installed packages of RDMA and their versions, from the status file of dpkg.
fn packages(status: &str) -> Vec<(String, String)> {
    let paragraphs = status.split("\n\n").filter_map(|paragraph| {
        let field = |name: &str| {
            let value = |line: &str| Some(line.strip_prefix(name)?.trim().to_owned());
            paragraph.lines().find_map(value)
        };
        let package = field("Package:")?;
        PACKAGES
            .contains(&&*package)
            .then_some((package, field("Version:")?))
    });
    paragraphs.collect()
}

fn modules(root: &Path) -> String {
    let mut text = String::new();
    for module in MODULES {
        let folder = root.join("sys/module").join(module);
        if !folder.is_dir() {
            continue;
        }
        say(&mut text, module, "there");
        for file in ["version", "srcversion"] {
            say_file(&mut text, &format!("{module}/{file}"), &folder.join(file));
        }
        for file in list(&folder.join("parameters")) {
            let key = format!("{module}/parameters/{}", name_of(&file));
            say_file(&mut text, &key, &file);
        }
    }
    say_file(
        &mut text,
        "/etc/infiniband/mlx5.conf",
        &root.join("etc/infiniband/mlx5.conf"),
    );
    text
}

/// Returns every attribute and counter of an RDMA device. Entries of tables that are not in use are left out.
fn rdma_device(device: &Path) -> String {
    let mut text = String::new();
    say_tree(&mut text, "", device);
    for link in ["device", "device/driver"] {
        if let Ok(target) = fs::read_link(device.join(link)) {
            say(&mut text, link, &name_of(&target));
        }
    }
    for file in FUNCTION_FILES {
        let path = device.join("device").join(file);
        say_file(&mut text, &format!("device/{file}"), &path);
    }
    text
}

/// Appends the values of all files below a directory, without following links.
fn say_tree(text: &mut String, prefix: &str, folder: &Path) {
    for path in list(folder) {
        let name = name_of(&path);
        let Ok(found) = path.symlink_metadata() else {
            continue;
        };
        // `power` has the same files for every device of the kernel.
        if found.is_dir() && name != "power" {
            say_tree(text, &format!("{prefix}{name}/"), &path);
        } else if found.is_file() && name != "uevent" && !is_unused(prefix, &path) {
            say_file(text, &format!("{prefix}{name}"), &path);
        }
    }
}

/// Whether a file is an entry of a table that is not in use.
fn is_unused(prefix: &str, file: &Path) -> bool {
    let zero = if prefix.ends_with("/pkeys/") {
        "0x0000"
    } else if prefix.ends_with("/gids/") {
        "0000:0000:0000:0000:0000:0000:0000:0000"
    } else {
        return false;
    };
    word(file).as_deref() == Some(zero)
}

/// Returns facts about the network devices below the RDMA devices.
fn nets(root: &Path) -> String {
    let mut names = Vec::new();
    for device in list(&root.join(DEVICES)) {
        let below = list(&device.join("device/net"));
        names.extend(below.iter().map(|net| name_of(net)));
        for port in list(&device.join("ports")) {
            let nets = list(&port.join("gid_attrs/ndevs"));
            names.extend(nets.iter().filter_map(|file| word(file)));
        }
    }
    names.sort();
    names.dedup();
    let mut text = String::new();
    for name in names.iter().filter(|name| !name.is_empty()) {
        let folder = root.join("sys/class/net").join(name);
        for file in NET_FILES {
            say_file(&mut text, &format!("{name}/{file}"), &folder.join(file));
        }
    }
    text
}

fn processors(root: &Path) -> String {
    let mut text = String::new();
    // The file has the same lines for each processor. Some have a serial number at the end.
    let info = word(&root.join("proc/cpuinfo")).unwrap_or_default();
    let first = info.split("\n\n").next().unwrap_or_default();
    for line in first.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let wanted = [
            "CPU implementer",
            "CPU part",
            "Features",
            "cpu family",
            "flags",
            "microcode",
            "model",
            "model name",
            "stepping",
            "vendor_id",
        ];
        if wanted.contains(&key.trim()) {
            say(&mut text, key.trim(), value.trim());
        }
    }
    let folder = root.join("sys/devices/system/cpu");
    for file in ["online", "isolated", "nohz_full", "smt/active"] {
        say_file(&mut text, &format!("cpu/{file}"), &folder.join(file));
    }
    let governors = list(&folder).into_iter();
    let mut governors: Vec<_> = governors
        .filter(|path| numbered(path, "cpu"))
        .filter_map(|path| word(&path.join("cpufreq/scaling_governor")))
        .collect();
    governors.sort();
    governors.dedup();
    say(
        &mut text,
        "cpu/cpufreq/scaling_governor",
        &governors.join(" "),
    );
    for node in list(&root.join("sys/devices/system/node")) {
        if !numbered(&node, "node") {
            continue;
        }
        for file in ["cpulist", "distance"] {
            let key = format!("{}/{file}", name_of(&node));
            say_file(&mut text, &key, &node.join(file));
        }
    }
    text
}

fn limits(root: &Path) -> String {
    let mut text = String::new();
    for setting in SETTINGS {
        let file = root.join("proc/sys").join(setting);
        say_file(&mut text, setting, &file);
    }
    for file in ["enabled", "shmem_enabled"] {
        let path = root.join("sys/kernel/mm/transparent_hugepage").join(file);
        say_file(&mut text, &format!("transparent_hugepage/{file}"), &path);
    }
    say_file(&mut text, "limits", &root.join("proc/self/limits"));
    let memory = word(&root.join("proc/meminfo")).unwrap_or_default();
    let wanted = [
        "MemTotal",
        "MemAvailable",
        "HugePages",
        "Hugepagesize",
        "Shmem",
    ];
    let memory = memory
        .lines()
        .filter(|line| wanted.iter().any(|key| line.starts_with(key)));
    say(&mut text, "memory", &memory.collect::<Vec<_>>().join("\n"));
    for (place, group) in groups(root) {
        for file in [
            "rdma.max",
            "rdma.current",
            "memory.max",
            "cpuset.cpus.effective",
        ] {
            let key = format!("control group {place}/{file}");
            say_file(&mut text, &key, &group.join(file));
        }
    }
    text
}

/// Returns the control groups of this process, the innermost first: how far out each is, and its directory. Their
/// names may have names of users.
fn groups(root: &Path) -> Vec<(usize, PathBuf)> {
    let groups = word(&root.join("proc/self/cgroup")).unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = Path::new(group.unwrap_or_default());
    let all = group.ancestors().enumerate();
    all.map(|(place, group)| (place, root.join("sys/fs/cgroup").join(group)))
        .collect()
}

fn environment(variables: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, value) in variables {
        if !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        // A partition key (UCX_IB_PKEY) is none.
        let is_secret = name.split('_').any(|word| SECRETS.contains(&word));
        let value = if is_secret { "(left out)" } else { value };
        text.push_str(&format!("{name}={}\n", value.replace('\n', "\\n")));
    }
    text
}

//! Facts about this machine. A fact whose file cannot be read is unknown, which is no error: many files are
//! missing in a container or on another kernel.

use std::fs;
use std::path::{Path, PathBuf};

use headworks::devices::{Choice, Refusal};
use headworks::environment::{self, ResourceLimit};
use headworks::verbs::{DeviceName, OpenError};
use rustix::thread::CapabilitySet;

use super::environment::Environment;
use super::soft_device::Unusable;
use crate::rdma_facts::{self, DEVICES, NameOptions, PortFacts};
use crate::system_files::{list, name_of, number, numbered, word};

/// Facts that the findings are derived from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SystemInfo {
    /// Whether one device was named, and nothing else matters.
    pub(super) is_single_device: bool,
    /// Devices that libibverbs lists, or why it cannot be asked.
    pub(super) library: Option<Result<Vec<String>, String>>,
    /// Whether librdmacm is installed, or why it is not.
    pub(super) manager: Option<Result<(), String>>,
    /// Whether the kernel's connection manager can be reached.
    pub(super) manager_file: ManagerFile,
    pub(super) devices: Vec<Nic>,
    /// Bytes that may be locked in memory; `None` if the kernel does not say.
    pub(super) memlock: Option<ResourceLimit>,
    /// Whether this process may exceed `memlock`, as root may.
    pub(super) may_lock_all_memory: bool,
    /// Files that may be open; `None` if the kernel does not say.
    pub(super) open_files: Option<ResourceLimit>,
    /// Cores that this process may run on.
    pub(super) cores: usize,
    /// Frequency governors of the cores, each once.
    pub(super) governors: Vec<String>,
    pub(super) huge: HugePages,
    pub(super) nodes: usize,
    /// Whether the kernel moves pages between nodes by itself.
    pub(super) numa_balancing: bool,
    /// Container runtime that this process runs under, if any.
    pub(super) container: Option<&'static str>,
    /// Limits of the control groups on RDMA devices: the device, the limits in the kernel's words, and the
    /// file that sets them. Devices without limits are left out.
    pub(super) rdma_limits: Vec<(String, String, PathBuf)>,
    /// Value of `MLX5_RELAXED_PACKET_ORDERING_ON` in the environment.
    pub(super) relaxed_ordering: Option<String>,
    /// Environment of the software device.
    pub(super) environment: Environment,
    /// Result of using the software device; `None` if it was not tried.
    pub(super) soft: Option<Result<(), Unusable>>,
}

/// Returns the kernel's names of its RDMA devices.
pub(super) fn devices(root: &Path) -> Vec<String> {
    list(&root.join(DEVICES))
        .iter()
        .map(|path| name_of(path))
        .collect()
}

/// State of the file through which programs reach the kernel's connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ManagerFile {
    #[default]
    Missing,
    /// It exists, and this process may not open it.
    Closed,
    Open,
}

/// Facts that come from the RDMA libraries, not from files.
pub(super) struct RdmaLibraries<'a> {
    /// Devices that libibverbs lists, or why it cannot be asked.
    pub(super) devices: Result<Vec<String>, String>,
    /// Whether librdmacm is installed, or why it is not.
    pub(super) manager: Result<(), String>,
    /// Returns the port and address that a device is used with, or why it is not used.
    pub(super) choice: &'a dyn Fn(&str) -> Result<Choice, OpenError>,
}

/// A device that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnusableDevice {
    /// Text of the error, one line.
    pub(super) said: String,
    /// Reason, if it is a known one.
    pub(super) refusal: Option<Refusal>,
}

impl From<OpenError> for UnusableDevice {
    fn from(error: OpenError) -> Self {
        let refusal = match &error {
            OpenError::Provider { source, .. } => source.downcast_ref().cloned(),
            _ => None,
        };
        let said = error.to_string();
        Self { said, refusal }
    }
}

/// Huge pages of 2 MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HugePages {
    pub(super) total: u64,
    pub(super) free: u64,
    /// When shared memory gets huge pages without asking: the word that the kernel has in brackets.
    pub(super) shmem: String,
}

/// An RDMA device of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Nic {
    pub(super) name: String,
    /// File that programs open; `None` if there is none.
    pub(super) uverbs: Option<PathBuf>,
    /// Whether this process may open the file.
    pub(super) may_open: bool,
    /// Result of opening the device; `None` if it cannot be tried.
    pub(super) opened: Option<Result<Choice, UnusableDevice>>,
    /// Options that the device's name gives.
    pub(super) options: NameOptions,
    pub(super) node: Option<u32>,
    /// Address of the PCI function below it and that function's driver, if both are known: `0000:3b:00.0` and
    /// `ice`. `None` for a software device.
    pub(super) pci: Option<(String, String)>,
    pub(super) ports: Vec<Port>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) number: u32,
    /// State in the kernel's words: `ACTIVE`, `DOWN`.
    pub(super) state: String,
    /// `Ethernet` or `InfiniBand`.
    pub(super) link_layer: String,
    /// Network device below the port and that device's MTU, if there is one.
    pub(super) net: Option<(String, u32)>,
    /// Its tables and counters.
    pub(super) facts: PortFacts,
}

impl SystemInfo {
    /// Reads the facts below `root`, which is `/` except in tests; resource limits and environment variables are this
    /// process's own. If `device` has a name, reads no other device. Does not try the software device.
    pub(super) fn read(
        root: &Path,
        libraries: RdmaLibraries<'_>,
        device: Option<&DeviceName>,
    ) -> Self {
        let at = |path: &str| root.join(path);
        let only = device.and_then(DeviceName::name);
        let options = device.map(NameOptions::of).unwrap_or_default();
        let devices = list(&at(DEVICES))
            .iter()
            .filter(|path| only.is_none_or(|only| name_of(path) == only))
            .map(|path| nic(root, path, &libraries, options))
            .collect();
        let manager_file = at("dev/infiniband/rdma_cm");
        Self {
            is_single_device: only.is_some(),
            library: Some(libraries.devices),
            manager: Some(libraries.manager),
            manager_file: match (manager_file.exists(), opens(&manager_file)) {
                (false, _) => ManagerFile::Missing,
                (true, false) => ManagerFile::Closed,
                (true, true) => ManagerFile::Open,
            },
            devices,
            may_lock_all_memory: may_lock_all_memory(&at("proc/self/status")),
            memlock: environment::locked_memory_limit(),
            open_files: environment::open_files_limit(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            governors: governors(&at("sys/devices/system/cpu")),
            huge: huge(&at("sys/kernel/mm")),
            nodes: list(&at("sys/devices/system/node"))
                .iter()
                .filter(|path| numbered(path, "node"))
                .count(),
            numa_balancing: number(&at("proc/sys/kernel/numa_balancing")) == Some(1_u8),
            container: container(root),
            rdma_limits: rdma_limits(root),
            relaxed_ordering: std::env::var("MLX5_RELAXED_PACKET_ORDERING_ON").ok(),
            environment: Environment::read(root, environment::registry_path()),
            soft: None,
        }
    }
}

/// Whether this process may open a device's file.
fn opens(file: &Path) -> bool {
    let options = &mut fs::OpenOptions::new();
    options.read(true).write(true).open(file).is_ok()
}

fn nic(root: &Path, path: &Path, libraries: &RdmaLibraries<'_>, options: NameOptions) -> Nic {
    let name = name_of(path);
    let files = list(&root.join("sys/class/infiniband_verbs"));
    let ours = |entry: &&PathBuf| word(&entry.join("ibdev")).as_deref() == Some(&*name);
    let uverbs = files.iter().find(ours).map(|entry| name_of(entry));
    let uverbs = uverbs.map(|entry| root.join("dev/infiniband").join(entry));
    let may_open = uverbs.as_deref().is_some_and(opens);
    let uverbs = uverbs.filter(|file| file.exists());
    let is_listed = libraries
        .devices
        .as_ref()
        .is_ok_and(|all| all.contains(&name));
    let opened =
        (is_listed && may_open).then(|| (libraries.choice)(&name).map_err(UnusableDevice::from));
    let node = number::<i32>(&path.join("device/numa_node"));
    // The network device is that of the GID in use: a VLAN has one of its own.
    let gid_of = |port: u32| match &opened {
        Some(Ok(choice)) if u32::from(choice.port) == port => u16::from(choice.gid_index),
        _ => 0,
    };
    let ports = list(&path.join("ports"));
    let ports = ports.iter().filter_map(|at| port(root, path, at, gid_of));
    Nic {
        ports: ports.collect(),
        name,
        uverbs,
        may_open,
        opened,
        options,
        node: node.and_then(|node| u32::try_from(node).ok()),
        pci: pci(path),
    }
}

/// Reads the address and driver of the PCI function below a device.
fn pci(device: &Path) -> Option<(String, String)> {
    // On some kernels, a software device shows the function below the network device that it uses.
    if rdma_facts::is_software(device) {
        return None;
    }
    let function = fs::read_link(device.join("device")).ok()?;
    let driver = fs::read_link(device.join("device/driver")).ok()?;
    Some((name_of(&function), name_of(&driver)))
}

/// Reads the port at `path` of `device`. `gid_of` returns the index of the GID that a port uses.
fn port(root: &Path, device: &Path, path: &Path, gid_of: impl Fn(u32) -> u16) -> Option<Port> {
    let state = word(&path.join("state"))?;
    let state = state.split_once(": ").map_or(&*state, |(_, name)| name);
    let number = name_of(path).parse().ok()?;
    let net = |index| rdma_facts::net(root, path, index);
    Some(Port {
        number,
        state: state.to_owned(),
        link_layer: word(&path.join("link_layer")).unwrap_or_default(),
        net: net(gid_of(number)).or_else(|| net(0)),
        facts: rdma_facts::port(device, number),
    })
}

/// Whether the effective capabilities include `CAP_IPC_LOCK`.
fn may_lock_all_memory(status: &Path) -> bool {
    const IPC_LOCK: u32 = 14;
    let Some(text) = word(status) else {
        let own = rustix::thread::capabilities(None);
        return own.is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    };
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> IPC_LOCK & 1 == 1)
}

fn governors(folder: &Path) -> Vec<String> {
    let mut found: Vec<_> = list(folder)
        .iter()
        .filter(|path| numbered(path, "cpu"))
        .filter_map(|path| word(&path.join("cpufreq/scaling_governor")))
        .collect();
    found.sort();
    found.dedup();
    found
}

fn huge(folder: &Path) -> HugePages {
    let pages = folder.join("hugepages/hugepages-2048kB");
    let shmem = word(&folder.join("transparent_hugepage/shmem_enabled")).unwrap_or_default();
    let chosen = shmem.split_whitespace().find_map(|word| {
        let word = word.strip_prefix('[')?;
        word.strip_suffix(']')
    });
    HugePages {
        total: number(&pages.join("nr_hugepages")).unwrap_or(0),
        free: number(&pages.join("free_hugepages")).unwrap_or(0),
        shmem: chosen.unwrap_or_default().to_owned(),
    }
}

fn container(root: &Path) -> Option<&'static str> {
    let marks = [
        (".dockerenv", "Docker"),
        ("run/.containerenv", "Podman"),
        ("var/run/secrets/kubernetes.io", "Kubernetes"),
    ];
    let there = |mark: &&(&str, &str)| root.join(mark.0).exists();
    marks.iter().rev().find(there).map(|(_, name)| *name)
}

/// Returns the limits of this process's control group (version 2) and of the groups around it.
fn rdma_limits(root: &Path) -> Vec<(String, String, PathBuf)> {
    let groups = word(&root.join("proc/self/cgroup")).unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let mut found = Vec::new();
    for group in Path::new(group.unwrap_or_default()).ancestors() {
        let file = root.join("sys/fs/cgroup").join(group).join("rdma.max");
        for line in word(&file).unwrap_or_default().lines() {
            // `mlx5_0 hca_handle=2 hca_object=max`.
            let Some((device, limits)) = line.split_once(' ') else {
                continue;
            };
            if limits.split(' ').any(|limit| !limit.ends_with("=max")) {
                found.push((device.to_owned(), limits.to_owned(), file.clone()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libraries<'a>(
        devices: &[&str],
        choice: &'a dyn Fn(&str) -> Result<Choice, OpenError>,
    ) -> RdmaLibraries<'a> {
        RdmaLibraries {
            devices: Ok(devices.iter().map(|&name| name.to_owned()).collect()),
            manager: Ok(()),
            choice,
        }
    }

    fn only(name: &str) -> Option<DeviceName> {
        Some(format!("ibv:{name}").parse().unwrap())
    }

    fn never(name: &str) -> Result<Choice, OpenError> {
        panic!("nobody asks for {name}")
    }

    /// Creates a root directory with these files.
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
    fn a_device_is_read_with_its_ports() {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let files = [
            (format!("{port}/state"), "4: ACTIVE\n"),
            (format!("{port}/link_layer"), "Ethernet\n"),
            (format!("{port}/gid_attrs/ndevs/0"), "eth0\n"),
            ("sys/class/net/eth0/mtu".to_owned(), "1500\n"),
            (
                "sys/class/infiniband/mlx5_0/device/numa_node".to_owned(),
                "1\n",
            ),
            (
                "sys/class/infiniband_verbs/uverbs0/ibdev".to_owned(),
                "other\n",
            ),
            (
                "sys/class/infiniband_verbs/uverbs1/ibdev".to_owned(),
                "mlx5_0\n",
            ),
            (
                "proc/self/status".to_owned(),
                "Name: x\nCapEff:\t0000000000004000\n",
            ),
            ("dev/infiniband/uverbs1".to_owned(), ""),
            ("dev/infiniband/rdma_cm".to_owned(), ""),
        ];
        let files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let root = root(&files);
        let refusal = Refusal::NoAddress { port: 1 };
        let refuses = |name: &str| {
            Err(OpenError::Provider {
                what: name.to_owned(),
                source: refusal.clone().into(),
            })
        };
        let facts = SystemInfo::read(root.path(), libraries(&["mlx5_0"], &refuses), None);
        assert!(facts.may_lock_all_memory);
        assert_eq!(facts.manager_file, ManagerFile::Open);
        let [nic] = &*facts.devices else {
            panic!("{:?}", facts.devices)
        };
        assert_eq!(
            (&*nic.name, nic.node, nic.may_open),
            ("mlx5_0", Some(1), true)
        );
        let [port] = &*nic.ports else {
            panic!("{:?}", nic.ports)
        };
        assert_eq!((&*port.state, &*port.link_layer), ("ACTIVE", "Ethernet"));
        assert_eq!(port.net, Some(("eth0".to_owned(), 1500)));
        let said = format!("cannot open mlx5_0: {refusal}");
        let unused = UnusableDevice {
            said,
            refusal: Some(refusal.clone()),
        };
        assert_eq!(nic.opened, Some(Err(unused)));
        // A device that libibverbs does not list is not opened.
        let facts = SystemInfo::read(
            root.path(),
            libraries(&["mlx4_0"], &never),
            only("mlx5_0").as_ref(),
        );
        assert_eq!(facts.devices[0].opened, None);
        // Nor is a device that was not asked for.
        let facts = SystemInfo::read(
            root.path(),
            libraries(&["mlx5_0"], &never),
            only("mlx4_0").as_ref(),
        );
        assert_eq!(facts.devices, []);
        assert_eq!(devices(root.path()), ["mlx5_0"]);
    }

    #[test]
    fn the_network_device_is_that_of_the_gid_in_use() {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let files = [
            (format!("{port}/state"), "4: ACTIVE\n"),
            (format!("{port}/gid_attrs/ndevs/0"), "eth0\n"),
            (format!("{port}/gid_attrs/ndevs/3"), "eth0.7\n"),
            (format!("{port}/pkeys/0"), "0xffff\n"),
            ("sys/class/net/eth0/mtu".to_owned(), "9000\n"),
            ("sys/class/net/eth0.7/mtu".to_owned(), "1500\n"),
            (
                "sys/class/infiniband_verbs/uverbs0/ibdev".to_owned(),
                "mlx5_0\n",
            ),
            ("dev/infiniband/uverbs0".to_owned(), ""),
        ];
        let files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let root = root(&files);
        let read = |index| {
            let gid = (index, headworks::verbs::Gid([0xfd; 16]));
            let (network, mtu) = (
                headworks::devices::Network::RoceV2,
                headworks::verbs::Mtu::B1024,
            );
            let choice = Choice::new(1, network, gid, mtu);
            let chosen = move |_: &str| Ok(choice);
            let name = "ibv:mlx5_0,traffic_class=106".parse().unwrap();
            let facts = SystemInfo::read(root.path(), libraries(&["mlx5_0"], &chosen), Some(&name));
            facts.devices.into_iter().next().unwrap()
        };
        let nic = read(3);
        assert_eq!(nic.options.traffic_class, Some(106));
        assert_eq!(nic.ports[0].net, Some(("eth0.7".to_owned(), 1500)));
        assert_eq!(nic.ports[0].facts.pkeys.len(), 1);
        // An entry without a network device leaves that of the first.
        assert_eq!(read(1).ports[0].net, Some(("eth0".to_owned(), 9000)));
    }

    #[test]
    fn the_function_below_a_device_is_read_with_its_driver() {
        let function = "sys/devices/pci0000:3a/0000:3b:00.0";
        let root = root(&[
            (&format!("{function}/infiniband/iwp59s0f0/node_desc"), "\n"),
            (
                &format!("{function}/infiniband/siw0/node_desc"),
                "Software iWARP stack\n",
            ),
            (&format!("{function}/infiniband/rxe0/node_desc"), "rxe\n"),
            ("sys/bus/pci/drivers/ice/module/version", ""),
            ("sys/class/infiniband/siw1/node_desc", ""),
        ]);
        let link = |target: &str, path: String| {
            std::os::unix::fs::symlink(target, root.path().join(path)).unwrap();
        };
        // The links of the kernel are relative, too.
        link("../../../bus/pci/drivers/ice", format!("{function}/driver"));
        for name in ["iwp59s0f0", "rxe0", "siw0"] {
            let device = format!("{function}/infiniband/{name}");
            link("../../../0000:3b:00.0", format!("{device}/device"));
            let target = format!("../../../{device}");
            link(&target, format!("sys/class/infiniband/{name}"));
        }
        let facts = SystemInfo::read(root.path(), libraries(&[], &never), None);
        let read = facts.devices.iter().map(|nic| (&*nic.name, &nic.pci));
        let function = Some(("0000:3b:00.0".to_owned(), "ice".to_owned()));
        let expected = [
            ("iwp59s0f0", &function),
            ("rxe0", &None),
            ("siw0", &None),
            ("siw1", &None),
        ];
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn missing_or_malformed_system_files_read_as_unknown() {
        let root = root(&[
            ("sys/class/infiniband/x/ports/one/state", "4: ACTIVE"),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "many",
            ),
            (
                "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always [advise] never",
            ),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "powersave",
            ),
            (
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                "powersave",
            ),
            ("sys/devices/system/cpu/cpufreq/scaling_governor", "other"),
            ("run/.containerenv", ""),
        ]);
        let facts = SystemInfo::read(root.path(), libraries(&[], &never), None);
        assert_eq!(facts.devices[0].ports, []);
        assert_eq!((facts.huge.total, &*facts.huge.shmem), (0, "advise"));
        assert_eq!(facts.governors, ["powersave"]);
        assert_eq!(facts.container, Some("Podman"));
    }

    #[test]
    fn limits_are_those_of_the_group_and_of_the_groups_around_it() {
        let (group, around) = ("sys/fs/cgroup/pod/inner", "sys/fs/cgroup/pod");
        let root = root(&[
            ("proc/self/cgroup", "1:name=systemd:/x\n0::/pod/inner\n"),
            (
                &format!("{group}/rdma.max"),
                "mlx5_0 hca_handle=max hca_object=max\n",
            ),
            (
                &format!("{around}/rdma.max"),
                "mlx5_0 hca_handle=2 hca_object=max\nnonsense\n",
            ),
            ("sys/fs/cgroup/x/rdma.max", "mlx5_0 hca_handle=0\n"),
        ]);
        let facts = SystemInfo::read(root.path(), libraries(&[], &never), None);
        let expected = (
            "mlx5_0".to_owned(),
            "hca_handle=2 hca_object=max".to_owned(),
            root.path().join(around).join("rdma.max"),
        );
        assert_eq!(facts.rdma_limits, [expected]);
        // Without a file that names the group, nothing is known.
        let bare = tempfile::tempdir().unwrap();
        assert_eq!(rdma_limits(bare.path()), []);
    }
}

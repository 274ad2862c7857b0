//! What follows from the facts.

use super::facts::{Facts, Nic, Port};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As it should be.
    Good,
    /// It works, and could work better.
    Improvable,
    /// A device that is there, or what the software one needs, does not work.
    Broken,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// What it does to a user, if it is not good.
    pub(super) why: Option<String>,
    /// The command that mends it.
    pub(super) mend: Option<String>,
}

impl Finding {
    fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Good,
            found: found.into(),
            why: None,
            mend: None,
        }
    }

    fn bad(verdict: Verdict, check: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict,
            ..Self::good(check, found)
        }
    }

    fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

use Verdict::{Broken, Improvable};

/// Bytes that programs with rings of a few MiB register.
const MEMLOCK_MIN: u64 = 64 << 20;
/// Files that a few hundred rings hold open.
const OPEN_FILES_MIN: u64 = 4096;
/// What the registry and the wake-ups of a few thousand processes take.
const SHM_BYTES_MIN: u64 = 16 << 20;
/// An Ethernet MTU from here on carries RDMA packets of 4096 bytes.
const ETHERNET_MTU: u32 = 4200;

/// All that there is to say, in the order in which to mend it.
pub(super) fn advise(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![library(facts)];
    for nic in &facts.devices {
        findings.push(device(facts, nic));
        findings.extend(provider(facts, nic));
        findings.extend(limits(facts, nic));
        for port in &nic.ports {
            findings.push(state(nic, port));
            findings.extend(address(nic, port));
            findings.extend(mtu(port));
        }
        findings.extend(numa(facts, nic));
    }
    findings.push(memlock(facts));
    findings.push(open_files(facts));
    findings.extend(shm(facts));
    findings.push(huge_pages(facts));
    findings.push(cores(facts));
    findings.extend(governor(facts));
    findings.extend(private_memory(facts));
    findings
}

fn library(facts: &Facts) -> Finding {
    let none = facts.devices.is_empty();
    match &facts.library {
        Some(Err(_)) if none => Finding::good(
            "devices",
            "no RDMA device, and no libibverbs: the software one, soft, needs neither",
        ),
        _ if none => Finding::good(
            "devices",
            "no RDMA device: the software one, soft, needs none",
        ),
        Some(Err(why)) => Finding::bad(Broken, "libibverbs", why)
            .because("the kernel has RDMA devices, and programs reach them by this library")
            .mend("apt-get install libibverbs1 ibverbs-providers"),
        _ => Finding::good("libibverbs", "there"),
    }
}

/// Of a device that libibverbs could list: whether it does.
fn provider(facts: &Facts, nic: &Nic) -> Option<Finding> {
    let Some(Ok(listed)) = &facts.library else {
        return None;
    };
    nic.uverbs.as_ref()?;
    let name = &nic.name;
    if listed.contains(name) {
        return Some(Finding::good("provider", format!("{name}: there")));
    }
    let finding = Finding::bad(Broken, "provider", format!("{name}: not known to libibverbs"))
        .because("each kind of device has a library of its own, which libibverbs looks for; this one's is not here");
    Some(finding.mend("apt-get install ibverbs-providers"))
}

/// What the control group withholds.
fn limits(facts: &Facts, nic: &Nic) -> Option<Finding> {
    let (name, limits, file) = facts
        .rdma_limits
        .iter()
        .find(|(device, ..)| *device == nic.name)?;
    let is_nothing = limits.split(' ').any(|limit| limit.ends_with("=0"));
    let verdict = if is_nothing { Broken } else { Improvable };
    let finding = Finding::bad(verdict, "cgroup", format!("{name}: {limits}")).because(
        "more than that of contexts (handles), queues and regions (objects) cannot be made here",
    );
    let file = file.display();
    Some(finding.mend(format!(
        "echo '{name} hca_handle=max hca_object=max' > {file}   # outside of the container"
    )))
}

fn device(facts: &Facts, nic: &Nic) -> Finding {
    let name = &nic.name;
    match &nic.uverbs {
        None => {
            let broken = Finding::bad(
                Broken,
                "device",
                format!("{name}: no file in /dev/infiniband"),
            );
            let broken = broken.because("the kernel has it, and this process has no way to it");
            match facts.container {
                Some(_) => broken.mend("docker run --device=/dev/infiniband --ulimit memlock=-1 …"),
                None => broken.mend("modprobe ib_uverbs"),
            }
        }
        Some(file) if !nic.may_open => {
            let file = file.display();
            Finding::bad(Broken, "device", format!("{name}: {file} cannot be opened"))
                .because("whoever uses RDMA reads and writes that file")
                .mend(format!("chmod a+rw {file}"))
        }
        Some(file) => Finding::good("device", format!("{name}: {}", file.display())),
    }
}

fn state(nic: &Nic, port: &Port) -> Finding {
    let found = format!("{} port {}: {}", nic.name, port.number, port.state);
    if port.state == "ACTIVE" {
        return Finding::good("port", found);
    }
    let broken = Finding::bad(Broken, "port", found);
    match &port.net {
        Some((net, _)) => broken
            .because("an RDMA port over Ethernet is up when its network device is")
            .mend(format!("ip link set {net} up")),
        None if port.link_layer == "InfiniBand" => broken
            .because("a subnet manager brings InfiniBand ports up")
            .mend("systemctl start opensm"),
        None => broken.because("no cable, or the other end is down"),
    }
}

/// Of RoCE: which address connections use.
fn address(nic: &Nic, port: &Port) -> Option<Finding> {
    if port.link_layer != "Ethernet" {
        return None;
    }
    let of_v2 = |gid: &&(u32, std::net::Ipv6Addr, String)| gid.2 == "RoCE v2";
    let mapped = port
        .gids
        .iter()
        .filter(of_v2)
        .find(|gid| gid.1.to_ipv4_mapped().is_some());
    let any = port.gids.iter().find(of_v2);
    let name = format!("{} port {}", nic.name, port.number);
    Some(match (mapped, any) {
        (Some((index, gid, _)), _) => {
            Finding::good("address", format!("{name}: gid index {index}, {gid}, RoCE v2"))
        }
        (None, Some((index, gid, _))) => Finding::bad(
            Improvable,
            "address",
            format!("{name}: gid index {index}, {gid}, RoCE v2; none of IPv4"),
        )
        .because("link-local addresses reach one network only; an IPv4 address gives a gid that routers forward")
        .mend(match &port.net {
            Some((net, _)) => format!("ip address add A.B.C.D/24 dev {net}"),
            None => "ip address add A.B.C.D/24 dev NET".to_owned(),
        }),
        (None, None) => Finding::bad(Broken, "address", format!("{name}: no gid of RoCE v2"))
            .because("connections over RoCE v2 need one; the network device gets it with an address")
            .mend(match &port.net {
                Some((net, _)) => format!("ip address add A.B.C.D/24 dev {net}"),
                None => "ip address add A.B.C.D/24 dev NET".to_owned(),
            }),
    })
}

fn mtu(port: &Port) -> Option<Finding> {
    let (net, mtu) = port.net.as_ref()?;
    if *mtu >= ETHERNET_MTU {
        return Some(Finding::good("mtu", format!("{net}: {mtu}")));
    }
    let finding = Finding::bad(Improvable, "mtu", format!("{net}: {mtu}"));
    let why = "RDMA packets are 1024 bytes or less here; 4096 take fewer of them. The switch and the peer must agree";
    Some(
        finding
            .because(why)
            .mend(format!("ip link set {net} mtu 9000")),
    )
}

fn numa(facts: &Facts, nic: &Nic) -> Option<Finding> {
    let node = nic.node.filter(|_| facts.nodes > 1)?;
    if !facts.numa_balancing {
        let found = format!("{} is on node {node} of {}", nic.name, facts.nodes);
        return Some(Finding::good("numa", found));
    }
    let found = format!(
        "{} is on node {node}, and pages are moved between nodes",
        nic.name
    );
    let finding = Finding::bad(Improvable, "numa", found);
    let why =
        "moving a page stops whoever polls it; run on the device's node: numactl --cpunodebind";
    Some(finding.because(why).mend("sysctl kernel.numa_balancing=0"))
}

fn memlock(facts: &Facts) -> Finding {
    let Some(bytes) = facts.memlock else {
        return Finding::good("memlock", "unlimited");
    };
    if facts.locks_freely {
        return Finding::good("memlock", "unlimited for this user");
    }
    let found = format!("{} KiB may be locked", bytes >> 10);
    if bytes >= MEMLOCK_MIN || facts.devices.is_empty() {
        return Finding::good("memlock", found);
    }
    let finding = Finding::bad(Broken, "memlock", found)
        .because("registered memory counts as locked: registering more fails with \"cannot allocate memory\"");
    match facts.container {
        Some(_) => finding.mend("docker run --ulimit memlock=-1 …"),
        None => finding
            .mend("ulimit -l unlimited   # for all logins: memlock in /etc/security/limits.conf"),
    }
}

fn open_files(facts: &Facts) -> Finding {
    match facts.open_files {
        Some(most) if most < OPEN_FILES_MIN => {
            Finding::bad(Improvable, "open files", format!("{most} at most"))
                .because("a segment, a channel and a connection are a file each: hundreds of rings run out of them")
                .mend("ulimit -n 65536")
        }
        Some(most) => Finding::good("open files", format!("{most} at most")),
        None => Finding::good("open files", "unlimited"),
    }
}

fn shm(facts: &Facts) -> Option<Finding> {
    let bytes = facts.shm_bytes?;
    let found = format!("/dev/shm has {} MiB", bytes >> 20);
    if bytes >= SHM_BYTES_MIN {
        return Some(Finding::good("shared memory", found));
    }
    let finding = Finding::bad(Improvable, "shared memory", found)
        .because("the registry of the software device is there, unless HEADWORKS_FABRIC names another directory");
    Some(match facts.container {
        Some(_) => finding.mend("docker run --shm-size=256m …"),
        None => finding.mend("mount -o remount,size=256m /dev/shm"),
    })
}

fn huge_pages(facts: &Facts) -> Finding {
    let huge = &facts.huge;
    let found = format!("{} of {} pages of 2 MiB free", huge.free, huge.total);
    if huge.free > 0 || ["always", "advise", "within_size", "force"].contains(&&*huge.shmem) {
        let shmem = match &*huge.shmem {
            "" => String::new(),
            when => format!("; shared memory gets them by itself: {when}"),
        };
        return Finding::good("huge pages", format!("{found}{shmem}"));
    }
    Finding::bad(Improvable, "huge pages", found)
        .because("an RNIC keeps fewer addresses for large rings on huge pages")
        .mend("sysctl vm.nr_hugepages=512")
}

fn cores(facts: &Facts) -> Finding {
    match facts.cores {
        1 => Finding::bad(Improvable, "cores", "one core")
            .because("two ends that poll take turns on one core: let them wait (mode Notify) or give them two"),
        n => Finding::good("cores", format!("{n} that this process may use")),
    }
}

fn governor(facts: &Facts) -> Option<Finding> {
    let slow: Vec<_> = facts
        .governors
        .iter()
        .filter(|name| *name != "performance")
        .collect();
    if facts.governors.is_empty() {
        return None;
    }
    if slow.is_empty() {
        return Some(Finding::good("governor", "performance"));
    }
    let finding = Finding::bad(Improvable, "governor", facts.governors.join(", "));
    let why = "cores slow down between messages: latencies are longer and vary";
    Some(
        finding
            .because(why)
            .mend("cpupower frequency-set -g performance"),
    )
}

fn private_memory(facts: &Facts) -> Option<Finding> {
    let scope = facts.ptrace_scope?;
    if scope == 0 {
        return Some(Finding::good("private memory", "peers may copy it"));
    }
    let found = format!("yama.ptrace_scope is {scope}");
    let finding = Finding::bad(Improvable, "private memory", found).because(
        "memory that the software device did not make is reached through its owner instead of directly, which is slower",
    );
    Some(finding.mend("sysctl kernel.yama.ptrace_scope=0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> Port {
        Port {
            number: 1,
            state: "ACTIVE".into(),
            link_layer: "Ethernet".into(),
            gids: vec![(3, "::ffff:192.0.2.1".parse().unwrap(), "RoCE v2".into())],
            net: Some(("eth0".into(), 9000)),
        }
    }

    fn healthy() -> Facts {
        Facts {
            library: Some(Ok(vec!["mlx4_0".into(), "mlx5_0".into()])),
            devices: vec![Nic {
                name: "mlx5_0".into(),
                uverbs: Some("/dev/infiniband/uverbs0".into()),
                may_open: true,
                node: Some(1),
                ports: vec![port()],
            }],
            open_files: Some(65536),
            cores: 8,
            governors: vec!["performance".into()],
            nodes: 2,
            shm_bytes: Some(1 << 30),
            ptrace_scope: Some(0),
            huge: super::super::facts::HugePages {
                total: 8,
                free: 8,
                shmem: "never".into(),
            },
            ..Facts::default()
        }
    }

    fn limited(limits: &str) -> Vec<(String, String, std::path::PathBuf)> {
        let file = "/sys/fs/cgroup/x/rdma.max".into();
        vec![("mlx5_0".into(), limits.into(), file)]
    }

    /// What is not good, and the command against it.
    fn complaints(facts: &Facts) -> Vec<(&'static str, Verdict, String)> {
        let findings = advise(facts);
        let bad = findings.into_iter().filter(|f| f.verdict != Verdict::Good);
        bad.map(|f| (f.check, f.verdict, f.mend.unwrap_or_default()))
            .collect()
    }

    #[test]
    fn a_healthy_machine_has_no_complaint_and_neither_has_one_without_devices() {
        assert_eq!(complaints(&healthy()), []);
        let bare = Facts {
            devices: Vec::new(),
            library: Some(Err("not there".into())),
            memlock: Some(65536),
            ..healthy()
        };
        assert_eq!(complaints(&bare), []);
    }

    #[test]
    fn each_trouble_is_found_alone_and_has_its_command() {
        type Spoil = fn(&mut Facts);
        let troubles: [(Spoil, &str, Verdict, &str); 19] = [
            (
                |f| f.library = Some(Err("gone".into())),
                "libibverbs",
                Broken,
                "libibverbs1",
            ),
            (
                |f| f.library = Some(Ok(vec!["mlx4_0".into()])),
                "provider",
                Broken,
                "ibverbs-providers",
            ),
            (
                |f| f.rdma_limits = limited("hca_handle=3 hca_object=max"),
                "cgroup",
                Improvable,
                "hca_object=max' > /sys/fs/cgroup/x/rdma.max",
            ),
            (
                |f| f.rdma_limits = limited("hca_handle=max hca_object=0"),
                "cgroup",
                Broken,
                "hca_object=max' > /sys/fs/cgroup/x/rdma.max",
            ),
            (
                |f| f.devices[0].uverbs = None,
                "device",
                Broken,
                "ib_uverbs",
            ),
            (
                |f| f.devices[0].may_open = false,
                "device",
                Broken,
                "uverbs0",
            ),
            (
                |f| f.devices[0].ports[0].state = "DOWN".into(),
                "port",
                Broken,
                "eth0 up",
            ),
            (
                |f| f.devices[0].ports[0].gids.clear(),
                "address",
                Broken,
                "dev eth0",
            ),
            (
                |f| f.devices[0].ports[0].gids[0].2 = "IB/RoCE v1".into(),
                "address",
                Broken,
                "dev eth0",
            ),
            (
                |f| f.devices[0].ports[0].gids[0].1 = "fe80::1".parse().unwrap(),
                "address",
                Improvable,
                "dev eth0",
            ),
            (
                |f| f.devices[0].ports[0].net = Some(("eth0".into(), 1500)),
                "mtu",
                Improvable,
                "eth0 mtu",
            ),
            (
                |f| f.numa_balancing = true,
                "numa",
                Improvable,
                "numa_balancing=0",
            ),
            (
                |f| f.memlock = Some(8 << 20),
                "memlock",
                Broken,
                "ulimit -l",
            ),
            (
                |f| f.open_files = Some(1024),
                "open files",
                Improvable,
                "ulimit -n",
            ),
            (
                |f| f.shm_bytes = Some(1 << 20),
                "shared memory",
                Improvable,
                "/dev/shm",
            ),
            (
                |f| f.huge.free = 0,
                "huge pages",
                Improvable,
                "nr_hugepages",
            ),
            (|f| f.cores = 1, "cores", Improvable, ""),
            (
                |f| f.governors.push("powersave".into()),
                "governor",
                Improvable,
                "performance",
            ),
            (
                |f| f.ptrace_scope = Some(1),
                "private memory",
                Improvable,
                "ptrace_scope=0",
            ),
        ];
        for (spoil, check, verdict, mend) in troubles {
            let mut facts = healthy();
            spoil(&mut facts);
            let said = complaints(&facts);
            let [(about, how, command)] = &*said else {
                panic!("{check}: {said:?}")
            };
            assert_eq!((*about, *how), (check, verdict));
            assert!(command.contains(mend), "{check}: {command}");
        }
    }

    #[test]
    fn in_a_container_the_command_is_the_containers() {
        let mut facts = healthy();
        facts.container = Some("Docker");
        facts.memlock = Some(65536);
        facts.devices[0].uverbs = None;
        let said = complaints(&facts);
        assert!(
            said.iter().all(|(.., mend)| mend.contains("docker run")),
            "{said:?}"
        );
        assert_eq!(said.len(), 2);
    }
}

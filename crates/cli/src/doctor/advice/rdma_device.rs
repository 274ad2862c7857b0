//! Findings about one RDMA device. The provider decides whether it is used, and through which port and
//! address. This module says only what could be better, and the command for it.

use std::net::Ipv6Addr;

use headworks::devices::{Choice, INSTALL_LIBIBVERBS, Network, Refusal};
use headworks::verbs::Mtu;

use super::super::system_info::{Nic, Port, SystemInfo, UnusableDevice};
use super::Verdict::{Broken, Improvable};
use super::{Finding, IN_CONTAINER, rdma_port};

/// Smallest Ethernet MTU that carries RDMA packets of 4096 bytes.
const ETHERNET_MTU: u32 = 4200;
/// Driver of the PCI functions of Intel's E810, which use either iWARP or RoCE v2. (Intel's X722, of the driver
/// `i40e`, has only iWARP.)
const ICE: &str = "ice";

pub(super) fn advise(facts: &SystemInfo, nic: &Nic) -> Vec<Finding> {
    let mut findings = vec![device(facts, nic)];
    findings.extend(provider(facts, nic));
    findings.extend(limits(facts, nic));
    let choice = match &nic.opened {
        Some(Ok(choice)) => Some(choice),
        Some(Err(unused)) => {
            findings.push(not_used(nic, unused));
            None
        }
        None => None,
    };
    // A port that is not used may be down.
    let is_used = |port: &&Port| choice.is_none_or(|choice| u32::from(choice.port) == port.number);
    findings.extend(
        nic.ports
            .iter()
            .filter(is_used)
            .map(|port| state(nic, port)),
    );
    if let Some(choice) = choice {
        let port = nic.ports.iter().find(is_used);
        findings.push(address(nic, choice, port));
        findings.push(mtu(nic, choice, port));
        findings.extend(rdma_port::of_connections(nic, choice, port));
    }
    let used = nic.ports.iter().filter(is_used);
    findings.extend(used.filter_map(|port| rdma_port::counters(nic, port)));
    findings.extend(rdma_port::ordering(facts, nic));
    findings.extend(numa(facts, nic));
    findings
}

/// For a device that libibverbs could list: whether it does.
fn provider(facts: &SystemInfo, nic: &Nic) -> Option<Finding> {
    let Some(Ok(listed)) = &facts.library else {
        return None;
    };
    nic.uverbs.as_ref()?;
    let name = &nic.name;
    if listed.contains(name) {
        return Some(Finding::good("provider", format!("{name}: there")));
    }
    let finding = Finding::bad(Broken, "provider", format!("{name}: not known to libibverbs"))
        .because("libibverbs needs a provider library for each kind of device; this device's is not installed");
    Some(finding.mend(INSTALL_LIBIBVERBS))
}

/// Limits that the control group sets.
fn limits(facts: &SystemInfo, nic: &Nic) -> Option<Finding> {
    let (name, limits, file) = facts
        .rdma_limits
        .iter()
        .find(|(device, ..)| *device == nic.name)?;
    let is_nothing = limits.split(' ').any(|limit| limit.ends_with("=0"));
    let verdict = if is_nothing { Broken } else { Improvable };
    let finding = Finding::bad(verdict, "cgroup", format!("{name}: {limits}")).because(
        "this process cannot create more contexts (handles), queues and regions (objects) than that",
    );
    let file = file.display();
    Some(finding.mend(format!(
        "echo '{name} hca_handle=max hca_object=max' > {file}   # outside of the container"
    )))
}

fn device(facts: &SystemInfo, nic: &Nic) -> Finding {
    let name = &nic.name;
    match &nic.uverbs {
        None => {
            let broken = Finding::bad(
                Broken,
                "device",
                format!("{name}: no file in /dev/infiniband"),
            );
            let broken = broken.because("the kernel has it, but this process cannot reach it");
            match facts.container {
                Some(_) => broken.mend(IN_CONTAINER),
                None => broken.mend("modprobe ib_uverbs"),
            }
        }
        Some(file) if !nic.may_open => {
            let file = file.display();
            Finding::bad(Broken, "device", format!("{name}: {file} cannot be opened"))
                .because("programs that use RDMA read and write that file")
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
        None => broken
            .because("no cable, or the other end is down")
            .mend(format!(
                "cat /sys/class/infiniband/{}/ports/{}/phys_state   # LinkUp once there is a cable",
                nic.name, port.number
            )),
    }
}

/// Returns the network device below a port, or a placeholder for a command.
pub(super) fn net(port: Option<&Port>) -> &str {
    let net = port.and_then(|port| port.net.as_ref());
    net.map_or("NET", |(name, _)| name)
}

/// Command that switches a PCI function of Intel's E810 from iWARP to RoCE v2. The driver refuses to enable one
/// protocol as long as the other is enabled. The in-tree driver has these parameters since Linux 5.17; Intel's
/// out-of-tree module `irdma` starts with iWARP unless `roce_ena=1` is given.
fn to_roce(address: &str) -> String {
    let set = format!("devlink dev param set pci/{address} name");
    format!(
        "{set} enable_iwarp value false cmode runtime && {set} enable_roce value true cmode runtime   \
         # if devlink has no such parameter: modprobe -r irdma && modprobe irdma roce_ena=1"
    )
}

/// For a device that cannot be opened: the error of opening it.
fn not_used(nic: &Nic, unused: &UnusableDevice) -> Finding {
    let finding = Finding::bad(Broken, "use", &*unused.said);
    let finding = finding.because("programs that open this device get this error");
    let name = &nic.name;
    match &unused.refusal {
        Some(Refusal::Iwarp) => match &nic.pci {
            Some((address, driver)) if driver == ICE => finding.mend(to_roce(address)),
            _ => finding.mend("rdma link show   # devices of RoCE and InfiniBand can be used"),
        },
        Some(Refusal::NoLocks(_)) => finding.mend("unset MLX5_SINGLE_THREADED"),
        Some(Refusal::NoAddress { port }) => {
            let port = nic.ports.iter().find(|at| at.number == u32::from(*port));
            finding.mend(format!("ip address add A.B.C.D/24 dev {}", net(port)))
        }
        Some(Refusal::NoLid { .. }) => finding
            .mend("systemctl start opensm   # on one machine of the subnet, or on its switch"),
        Some(Refusal::NoSuchAddress { .. } | Refusal::GidIndex { .. }) => finding.mend(format!(
            "headworks devices -v   # the addresses of {name}; gid, gid_index and subnet name one of them"
        )),
        Some(Refusal::NoConnections { .. }) => {
            finding.mend("headworks devices   # what can be used in its place")
        }
        _ => finding.mend(format!("rdma resource show; dmesg | grep {name}")),
    }
}

/// Address that connections use.
fn address(nic: &Nic, choice: &Choice, port: Option<&Port>) -> Finding {
    let gid = Ipv6Addr::from(choice.gid.0);
    let (index, network) = (choice.gid_index, choice.network);
    let found = format!(
        "{} port {}: {network}, gid index {index}, {gid}",
        nic.name, choice.port
    );
    let why = match network {
        Network::RoceV1 => {
            "routers do not forward RoCE v1, and the peer must use it, too; a port that supports v2 has a v2 gid \
             for each IP address"
        }
        Network::RoceV2 | Network::Roce if gid.is_unicast_link_local() => {
            "link-local addresses reach one network only; an IPv4 address gives a gid that routers forward"
        }
        _ => return Finding::good("address", found).with(rdma_port::gids(nic, choice, port)),
    };
    let finding = Finding::bad(Improvable, "address", found).because(why);
    let finding = finding.with(rdma_port::gids(nic, choice, port));
    finding.mend(format!("ip address add A.B.C.D/24 dev {}", net(port)))
}

/// Size of packets. Only on RoCE can the MTU of the network device raise it; on InfiniBand the subnet manager
/// decides.
fn mtu(nic: &Nic, choice: &Choice, port: Option<&Port>) -> Finding {
    let bytes = choice.mtu.bytes();
    let net_mtu = match port.and_then(|port| port.net.as_ref()) {
        Some((net, mtu)) if choice.network.is_roce() => format!("; the MTU of {net} is {mtu}"),
        _ => String::new(),
    };
    let found = format!(
        "{} port {}: packets of {bytes} bytes{net_mtu}",
        nic.name, choice.port
    );
    let carries_more = port
        .and_then(|port| port.net.as_ref())
        .is_some_and(|(_, mtu)| *mtu >= ETHERNET_MTU);
    if choice.mtu == Mtu::B4096 || !choice.network.is_roce() || carries_more {
        return Finding::good("mtu", found);
    }
    let why = "larger packets, of 4096 bytes, are fewer; the switch and the peer must support them";
    let finding = Finding::bad(Improvable, "mtu", found).because(why);
    finding.mend(format!("ip link set {} mtu 9000", net(port)))
}

fn numa(facts: &SystemInfo, nic: &Nic) -> Option<Finding> {
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
    let why = "moving a page stops the thread that polls it; run on the device's node: numactl --cpunodebind";
    Some(finding.because(why).mend("sysctl kernel.numa_balancing=0"))
}

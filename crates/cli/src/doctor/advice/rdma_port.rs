//! Findings about a port's tables and counters, and about the order in which a device places data. What the facts mean
//! is in `rdma_facts::in_words`.

use headworks::devices::{Choice, Network};

use super::super::system_info::{Nic, Port, SystemInfo};
use super::Finding;
use super::Verdict::{Broken, Improvable};
use super::rdma_device::net;
use crate::rdma_facts::in_words::{self, CounterKind};
use crate::rdma_facts::{Counter, pkey, traffic_class};

/// Traffic class of RoCE in the settings that vendors recommend: DSCP 26, and ECN on.
const CLASS_OF_ROCE: u8 = 106;

/// Returns the findings about what connections through the chosen port carry.
pub(super) fn of_connections(nic: &Nic, choice: &Choice, port: Option<&Port>) -> Vec<Finding> {
    let findings = [
        partition(nic, choice, port),
        class_of_traffic(nic, choice, port),
    ];
    findings.into_iter().flatten().collect()
}

/// Returns the reason for the chosen GID, and the entries of the GID table, a line each.
pub(super) fn gids(nic: &Nic, choice: &Choice, port: Option<&Port>) -> Vec<String> {
    let table = port.map_or(&[][..], |port| &port.facts.gids);
    let reason = in_words::gid_reason(choice, table, nic.options);
    let mut lines = vec![format!("reason: {reason}")];
    lines.extend(table.iter().map(|entry| {
        let mark = match entry.index == u16::from(choice.gid_index) {
            true => " (used)",
            false => "",
        };
        format!("gid {}: {}{mark}", entry.index, in_words::gid(entry))
    }));
    lines
}

/// Partition of connections. Only InfiniBand has more than the default one.
fn partition(nic: &Nic, choice: &Choice, port: Option<&Port>) -> Option<Finding> {
    let check = "partition";
    let facts = &port?.facts;
    let table = &facts.pkeys;
    let (index, used) = pkey(choice, facts);
    let full = table.iter().find(|entry| entry.key.is_full());
    if table.is_empty() {
        return None;
    }
    let place = format!("{} port {}: key index {index}", nic.name, choice.port);
    let others = table.iter().filter(|entry| entry.index != index);
    let others = others.map(|entry| format!("key {}: {}", entry.index, in_words::pkey(*entry)));
    let is_infiniband = matches!(choice.network, Network::Infiniband(_));
    let finding = match used {
        Some(entry) if entry.key.is_full() || !is_infiniband => {
            let found = format!("{place}, {}", in_words::pkey(entry));
            return Some(Finding::good(check, found).with(others));
        }
        Some(entry) => {
            let found = format!("{place}, {}", in_words::pkey(entry));
            Finding::bad(Improvable, check, found)
                .because("a limited member of a partition reaches full members only, so two limited members do not connect")
        }
        None => Finding::bad(Broken, check, format!("{place} has no key")).because(
            "the subnet manager assigns the keys; connections with an entry without a key do not work",
        ),
    };
    let finding = finding.with(others);
    Some(match full {
        Some(full) => finding.mend(format!(
            "headworks doctor ibv:{},pkey_index={}   # a full membership; other commands take this name, too",
            nic.name, full.index
        )),
        None => finding.mend("sminfo   # on the subnet manager that it names: its partitions.conf"),
    })
}

/// Traffic class of RoCE on a NIC. A software device has no queues by class.
fn class_of_traffic(nic: &Nic, choice: &Choice, port: Option<&Port>) -> Option<Finding> {
    if !choice.network.is_roce() || nic.pci.is_none() {
        return None;
    }
    let check = "traffic class";
    let facts = port.map(|port| port.facts.clone()).unwrap_or_default();
    let class = traffic_class(&facts, nic.options);
    let source = in_words::class_source(class, nic.options, choice.port);
    let found = format!(
        "{} port {}: {}, {source}",
        nic.name, choice.port, class.value
    );
    let net = net(port);
    let counters = format!(
        "pauses (PFC) and drops of each priority: ethtool -S {net} | grep -E 'prio|pause|discard'"
    );
    if class.value != 0 {
        return Some(Finding::good(check, found).with([counters]));
    }
    let finding = Finding::bad(Improvable, check, found).because(
        "NICs and switches mostly put class 0 in a lossy queue: under congestion packets are dropped and sent again",
    );
    let name = &nic.name;
    Some(finding.with([counters]).mend(format!(
        "mlnx_qos -i {net} || dcb pfc show dev {net}   # which priorities are lossless; with the usual settings the name \
         is ibv:{name},traffic_class={CLASS_OF_ROCE}"
    )))
}

/// Counters of errors and of congestion; `None` if the port has none.
pub(super) fn counters(nic: &Nic, port: &Port) -> Option<Finding> {
    let check = "counters";
    let known = port.facts.counters.iter().filter_map(|counter| {
        let (kind, meaning) = in_words::counter(&counter.name)?;
        Some((kind, counter, meaning))
    });
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        return None;
    }
    let of = |wanted: CounterKind, is_wanted: fn(u64) -> bool| {
        let all = known
            .iter()
            .filter(move |(kind, counter, _)| *kind == wanted && is_wanted(counter.value));
        all.map(|(_, counter, meaning)| (*counter, *meaning))
            .collect::<Vec<_>>()
    };
    let values = |counters: &[(&Counter, &str)]| {
        let values = counters.iter();
        let values = values.map(|(one, _)| format!("{} {}", one.name, one.value));
        values.collect::<Vec<_>>().join(", ")
    };
    let counted = of(CounterKind::Error, |value| value > 0);
    let zero = of(CounterKind::Error, |value| value == 0);
    let congestion = of(CounterKind::Congestion, |_| true);
    let mut details: Vec<_> = counted
        .iter()
        .map(|(one, meaning)| format!("{}: {meaning}", one.name))
        .collect();
    if !congestion.is_empty() {
        details.push(format!("congestion: {}", values(&congestion)));
    }
    if !zero.is_empty() {
        let names: Vec<_> = zero.iter().map(|(one, _)| &*one.name).collect();
        details.push(format!("0: {}", names.join(", ")));
    }
    let place = format!("{} port {}", nic.name, port.number);
    if counted.is_empty() {
        let found = format!("{place}: no error was counted");
        return Some(Finding::good(check, found).with(details));
    }
    let found = format!("{place}: {}", values(&counted));
    let finding = Finding::bad(Improvable, check, found).because(
        "they count since the driver was loaded: an error of the past is harmless, a counter that rises is not",
    );
    Some(finding.with(details).mend(format!(
        "cd /sys/class/infiniband/{}/ports/{} && grep -r . hw_counters counters   # before and after a run",
        nic.name, port.number
    )))
}

/// For mlx5: settings that let data arrive in another order than the provider promises.
pub(super) fn ordering(facts: &SystemInfo, nic: &Nic) -> Option<Finding> {
    let check = "ordering";
    let (address, driver) = nic.pci.as_ref()?;
    // The driver of a scalable function is `mlx5_core.sf`.
    if driver.split('.').next() != Some("mlx5_core") {
        return None;
    }
    let name = &nic.name;
    let is_set = |value: &&String| !["", "0"].contains(&value.trim());
    if let Some(value) = facts.relaxed_ordering.as_ref().filter(is_set) {
        let found = format!("{name}: MLX5_RELAXED_PACKET_ORDERING_ON={value} is set");
        let finding = Finding::bad(Improvable, check, found).because(
            "data may then be placed out of order, so the device promises no order and rings are slower",
        );
        return Some(finding.mend("unset MLX5_RELAXED_PACKET_ORDERING_ON"));
    }
    // A scalable function has no settings of its own.
    let function = match driver == "mlx5_core" {
        true => address,
        false => "ADDRESS-OF-ITS-PCI-FUNCTION",
    };
    let found = format!(
        "{name}: the environment leaves it to the device; the firmware's setting is not known"
    );
    let finding = Finding::good(check, found).because(
        "the firmware's PCI_WR_ORDERING must not be force_relax: WRITEs would then be placed out of order",
    );
    Some(finding.mend(format!("mlxconfig -d {function} query PCI_WR_ORDERING")))
}

#[cfg(test)]
mod tests;

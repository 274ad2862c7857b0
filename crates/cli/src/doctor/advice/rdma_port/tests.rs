//! Findings about the tables and counters of a port, and about the order of data.

use headworks::verbs::{Lid, Mtu, PKey};

use super::super::tests::{IPV4, complaints, healthy, opened};
use super::super::{Verdict, advise};
use super::*;
use crate::rdma_facts::{GidEntry, PKeyEntry};

/// Returns the finding of a check.
fn finding(facts: &SystemInfo, check: &str) -> Finding {
    let found = advise(facts).into_iter().find(|one| one.check == check);
    found.unwrap_or_else(|| panic!("no finding on {check}"))
}

fn has(facts: &SystemInfo, check: &str) -> bool {
    advise(facts).iter().any(|one| one.check == check)
}

fn counted(counters: &[(&str, u64)]) -> SystemInfo {
    let mut facts = healthy();
    let counters = counters.iter().map(|&(name, value)| Counter {
        name: name.to_owned(),
        value,
    });
    facts.devices[0].ports[0].facts.counters = counters.collect();
    facts
}

/// The facts of a port on InfiniBand with these partition keys.
fn infiniband(keys: &[(u16, u16)]) -> SystemInfo {
    let mut facts = healthy();
    let network = Network::Infiniband(Lid::new(7).unwrap());
    facts.devices[0].opened = opened(network, "fe80::2:c903:1", Mtu::B4096);
    let port = &mut facts.devices[0].ports[0];
    port.net = None;
    let keys = keys.iter();
    port.facts.pkeys = keys
        .map(|&(index, key)| PKeyEntry {
            index,
            key: PKey::new(key).unwrap(),
        })
        .collect();
    facts
}

#[test]
fn the_gid_table_is_shown_with_the_chosen_entry_and_the_reason() {
    let mut facts = healthy();
    let entry = |index, gid: &str, kind: &str| GidEntry {
        index,
        gid: gid.parse().unwrap(),
        kind: Some(kind.to_owned()),
        net: Some("eth0".to_owned()),
    };
    facts.devices[0].ports[0].facts.gids = vec![
        entry(2, IPV4, "IB/RoCE v1"),
        entry(3, IPV4, "RoCE v2"),
        entry(5, "::ffff:198.51.100.1", "RoCE v2"),
    ];
    assert_eq!(complaints(&facts), []);
    let expected = [
        "reason: RoCE v2 over IPv4 comes first; entry 5 is as good: gid_index=5 takes it",
        "gid 2: ::ffff:192.0.2.1, IB/RoCE v1, eth0",
        "gid 3: ::ffff:192.0.2.1, RoCE v2, eth0 (used)",
        "gid 5: ::ffff:198.51.100.1, RoCE v2, eth0",
    ];
    assert_eq!(finding(&facts, "address").details, expected);
    // A worse address has the table, too.
    facts.devices[0].opened = opened(Network::RoceV1, IPV4, Mtu::B4096);
    assert_eq!(finding(&facts, "address").details.len(), 4);
}

#[test]
fn a_full_member_of_a_partition_is_good() {
    let facts = infiniband(&[(0, 0xffff), (1, 0x8001), (2, 0x0002)]);
    assert_eq!(complaints(&facts), []);
    let finding = finding(&facts, "partition");
    let expected = "mlx5_0 port 1: key index 0, 0xffff, full membership";
    assert_eq!(finding.found, expected);
    let expected = [
        "key 1: 0x8001, full membership",
        "key 2: 0x0002, limited membership",
    ];
    assert_eq!(finding.details, expected);
    // A table that cannot be read says nothing.
    assert!(!has(&infiniband(&[]), "partition"));
}

#[test]
fn a_limited_member_is_told_of_an_index_with_full_membership() {
    let mut facts = infiniband(&[(0, 0x7fff), (3, 0x8001)]);
    let said = complaints(&facts);
    let [("partition", Improvable, command)] = &*said else {
        panic!("{said:?}")
    };
    assert!(
        command.starts_with("headworks doctor ibv:mlx5_0,pkey_index=3 "),
        "{command}"
    );
    facts.devices[0].options.pkey_index = Some(3);
    if let Some(Ok(choice)) = &mut facts.devices[0].opened {
        choice.pkey_index = 3;
    }
    assert_eq!(complaints(&facts), []);
    // Without one, only the subnet manager can help.
    let said = complaints(&infiniband(&[(0, 0x7fff)]));
    let [("partition", Improvable, command)] = &*said else {
        panic!("{said:?}")
    };
    assert!(command.starts_with("sminfo "), "{command}");
    // RoCE has the default partition only.
    let mut facts = healthy();
    facts.devices[0].ports[0].facts.pkeys[0].key = PKey::new(0x7fff).unwrap();
    assert_eq!(complaints(&facts), []);
}

#[test]
fn an_index_without_a_key_is_broken() {
    let said = complaints(&infiniband(&[(1, 0xffff)]));
    let [("partition", Verdict::Broken, command)] = &*said else {
        panic!("{said:?}")
    };
    assert!(command.contains("pkey_index=1"), "{command}");
}

#[test]
fn class_0_is_warned_of_on_a_nic_with_roce_alone() {
    let mut facts = healthy();
    facts.devices[0].ports[0].facts.driver_class = None;
    let said = complaints(&facts);
    let [("traffic class", Improvable, command)] = &*said else {
        panic!("{said:?}")
    };
    for part in [
        "mlnx_qos -i eth0",
        "dcb pfc show dev eth0",
        "ibv:mlx5_0,traffic_class=106",
    ] {
        assert!(command.contains(part), "{part}: {command}");
    }
    let finding = finding(&facts, "traffic class");
    assert_eq!(finding.found, "mlx5_0 port 1: 0, the default");
    assert!(finding.details[0].contains("ethtool -S eth0"));
    facts.devices[0].options.traffic_class = Some(104);
    assert_eq!(complaints(&facts), []);
    facts.devices[0].options.traffic_class = Some(0);
    assert_eq!(complaints(&facts).len(), 1);
    // A software device, such as rxe, has no queues.
    facts.devices[0].pci = None;
    assert!(!has(&facts, "traffic class"));
    // InfiniBand has service levels instead.
    assert!(!has(&infiniband(&[]), "traffic class"));
}

#[test]
fn the_origin_of_the_traffic_class_is_shown() {
    let facts = healthy();
    let found = finding(&facts, "traffic class").found;
    assert!(
        found.starts_with("mlx5_0 port 1: 106, the driver sets it"),
        "{found}"
    );
    let mut facts = healthy();
    facts.devices[0].ports[0].facts.driver_class = None;
    facts.devices[0].options.traffic_class = Some(104);
    let found = finding(&facts, "traffic class").found;
    assert_eq!(found, "mlx5_0 port 1: 104, as the device's name says");
}

#[test]
fn counters_without_errors_are_shown_and_good() {
    assert!(!has(&healthy(), "counters"));
    let facts = counted(&[
        ("np_cnp_sent", 12),
        ("rp_cnp_handled", 0),
        ("out_of_sequence", 0),
        ("packet_seq_err", 0),
    ]);
    assert_eq!(complaints(&facts), []);
    let finding = finding(&facts, "counters");
    assert_eq!(finding.found, "mlx5_0 port 1: no error was counted");
    let expected = [
        "congestion: np_cnp_sent 12, rp_cnp_handled 0",
        "0: out_of_sequence, packet_seq_err",
    ];
    assert_eq!(finding.details, expected);
}

#[test]
fn errors_that_were_counted_are_named_with_their_meaning() {
    let facts = counted(&[
        ("local_ack_timeout_err", 2),
        ("np_cnp_sent", 12),
        ("out_of_sequence", 7),
        ("packet_seq_err", 0),
    ]);
    let said = complaints(&facts);
    let [("counters", Improvable, command)] = &*said else {
        panic!("{said:?}")
    };
    assert!(command.starts_with("cd /sys/class/infiniband/mlx5_0/ports/1 && grep"));
    let finding = finding(&facts, "counters");
    let expected = "mlx5_0 port 1: local_ack_timeout_err 2, out_of_sequence 7";
    assert_eq!(finding.found, expected);
    let expected = [
        "local_ack_timeout_err: requests that the peer did not acknowledge in time",
        "out_of_sequence: packets that arrived behind a lost one",
        "congestion: np_cnp_sent 12",
        "0: packet_seq_err",
    ];
    assert_eq!(finding.details, expected);
}

#[test]
fn counters_of_a_device_that_cannot_be_opened_are_shown() {
    let mut facts = counted(&[("out_of_sequence", 7)]);
    facts.devices[0].opened = None;
    assert!(has(&facts, "counters") && !has(&facts, "partition"));
}

#[test]
fn relaxed_ordering_of_mlx5_is_warned_of() {
    let mut facts = healthy();
    let finding_of = |facts: &SystemInfo| finding(facts, "ordering");
    let query = "mlxconfig -d 0000:3b:00.0 query PCI_WR_ORDERING";
    assert_eq!(finding_of(&facts).mend.as_deref(), Some(query));
    for harmless in ["", "0"] {
        facts.relaxed_ordering = Some(harmless.to_owned());
        assert_eq!(complaints(&facts), []);
    }
    for set in ["1", "all", "mlx5_0"] {
        facts.relaxed_ordering = Some(set.to_owned());
        let said = complaints(&facts);
        let [("ordering", Improvable, command)] = &*said else {
            panic!("{said:?}")
        };
        assert!(command.starts_with("unset MLX5_RELAXED_PACKET_ORDERING_ON"));
    }
    facts.relaxed_ordering = None;
    // A scalable function has a driver, but no settings, of its own.
    facts.devices[0].pci = Some(("mlx5_core.sf.4".into(), "mlx5_core.sf".into()));
    let mend = finding_of(&facts).mend.unwrap();
    assert!(mend.contains("ADDRESS-OF-ITS-PCI-FUNCTION"), "{mend}");
    for other in ["bnxt_en", "mlx5_core2", "mlx4_core"] {
        facts.devices[0].pci = Some(("0000:3b:00.0".into(), other.into()));
        assert!(!has(&facts, "ordering"), "{other}");
    }
}

//! The facts about a port as text: pure.

use headworks::devices::{Choice, Network};

use super::{ClassSource, GidEntry, NameOptions, PKeyEntry, TrafficClass};

/// The kind of event that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterKind {
    /// Congestion, which the network handles: no fault.
    Congestion,
    /// A lost packet, a retransmission, a refused access, or a broken link.
    Error,
}

/// Returns the kind of a counter and its meaning; `None` for counters that say nothing about errors or congestion.
pub(crate) fn counter(name: &str) -> Option<(CounterKind, &'static str)> {
    let known = COUNTERS.iter().find(|(known, ..)| *known == name);
    known.map(|(_, kind, meaning)| (*kind, *meaning))
}

use CounterKind::{Congestion, Error};

/// Counters by their names in sysfs. Those of one driver that have another meaning elsewhere are left out.
const COUNTERS: &[(&str, CounterKind, &str)] = &[
    // mlx5: congestion control of RoCE.
    ("np_cnp_sent", Congestion, "congestion notifications sent"),
    (
        "np_ecn_marked_roce_packets",
        Congestion,
        "packets that a switch marked on their way here",
    ),
    (
        "rp_cnp_handled",
        Congestion,
        "congestion notifications that slowed a sender down",
    ),
    (
        "rp_cnp_ignored",
        Congestion,
        "congestion notifications that were ignored",
    ),
    (
        "port_xmit_wait",
        Congestion,
        "ticks in which the port had data and no credit to send it",
    ),
    // mlx5 and others: retransmission.
    (
        "roce_adp_retrans",
        Error,
        "retransmissions by the adaptive timer",
    ),
    (
        "roce_adp_retrans_to",
        Error,
        "time-outs of the adaptive timer",
    ),
    (
        "out_of_sequence",
        Error,
        "packets that arrived behind a lost one",
    ),
    (
        "packet_seq_err",
        Error,
        "reports of the peer that a packet was lost",
    ),
    (
        "implied_nak_seq_err",
        Error,
        "READs or atomics whose answer was lost",
    ),
    (
        "local_ack_timeout_err",
        Error,
        "requests that the peer did not acknowledge in time",
    ),
    (
        "rnr_nak_retry_err",
        Error,
        "requests that found no receive posted at the peer",
    ),
    (
        "out_of_buffer",
        Error,
        "packets that found no receive posted here",
    ),
    (
        "duplicate_request",
        Error,
        "requests that arrived twice, because the peer sent them again",
    ),
    (
        "rx_icrc_encapsulated",
        Error,
        "packets whose checksum was wrong",
    ),
    (
        "req_transport_retries_exceeded",
        Error,
        "requests that failed after all retries",
    ),
    (
        "req_rnr_retries_exceeded",
        Error,
        "requests that failed because no receive was ever posted",
    ),
    (
        "req_remote_access_errors",
        Error,
        "requests that the peer refused: wrong key, range or rights",
    ),
    (
        "req_remote_invalid_request",
        Error,
        "requests that the peer found invalid",
    ),
    (
        "resp_remote_access_errors",
        Error,
        "requests of peers that were refused here: wrong key, range or rights",
    ),
    (
        "resp_local_length_error",
        Error,
        "messages that were longer than the receive",
    ),
    // bnxt_re.
    (
        "rx_cnp_pkts",
        Congestion,
        "congestion notifications received",
    ),
    ("tx_cnp_pkts", Congestion, "congestion notifications sent"),
    (
        "rx_ecn_marked_pkts",
        Congestion,
        "packets that a switch marked on their way here",
    ),
    (
        "to_retransmits",
        Error,
        "requests that the peer did not acknowledge in time",
    ),
    (
        "seq_err_naks_rcvd",
        Error,
        "reports of the peer that a packet was lost",
    ),
    (
        "rnr_naks_rcvd",
        Error,
        "requests that found no receive posted at the peer",
    ),
    (
        "max_retry_exceeded",
        Error,
        "requests that failed after all retries",
    ),
    (
        "missing_resp",
        Error,
        "READs or atomics whose answer was lost",
    ),
    (
        "dup_req",
        Error,
        "requests that arrived twice, because the peer sent them again",
    ),
    (
        "remote_access_err",
        Error,
        "requests that the peer refused: wrong key, range or rights",
    ),
    ("oos_drop_count", Error, "packets dropped behind a lost one"),
    ("rx_roce_error_pkts", Error, "broken packets received"),
    ("rx_roce_discard_pkts", Error, "packets dropped on arrival"),
    ("tx_roce_error_pkts", Error, "packets that were not sent"),
    (
        "tx_roce_discard_pkts",
        Error,
        "packets dropped before they were sent",
    ),
    // irdma.
    ("cnpSent", Congestion, "congestion notifications sent"),
    (
        "cnpHandled",
        Congestion,
        "congestion notifications that slowed a sender down",
    ),
    (
        "cnpIgnored",
        Congestion,
        "congestion notifications that were ignored",
    ),
    (
        "RxECNMrkd",
        Congestion,
        "packets that a switch marked on their way here",
    ),
    ("ip4InDiscards", Error, "packets dropped on arrival"),
    ("ip6InDiscards", Error, "packets dropped on arrival"),
    // rxe.
    (
        "rcvd_seq_err",
        Error,
        "reports of the peer that a packet was lost",
    ),
    (
        "out_of_seq_request",
        Error,
        "packets that arrived behind a lost one",
    ),
    (
        "retry_exceeded_err",
        Error,
        "requests that failed after all retries",
    ),
    (
        "retry_rnr_exceeded_err",
        Error,
        "requests that failed because no receive was ever posted",
    ),
    // The port's counters of the InfiniBand specification.
    ("symbol_error", Error, "symbols that the link garbled"),
    (
        "link_error_recovery",
        Error,
        "times that the link had to be trained again",
    ),
    (
        "local_link_integrity_errors",
        Error,
        "times that the link had too many errors",
    ),
    (
        "excessive_buffer_overrun_errors",
        Error,
        "times that the port's buffers overran",
    ),
    ("port_rcv_errors", Error, "broken packets received"),
    (
        "port_rcv_remote_physical_errors",
        Error,
        "packets that were broken on an earlier link",
    ),
    (
        "port_rcv_constraint_errors",
        Error,
        "packets received with a wrong partition key or path",
    ),
    (
        "port_xmit_constraint_errors",
        Error,
        "packets not sent: wrong partition key or path",
    ),
    (
        "port_xmit_discards",
        Error,
        "packets dropped before they were sent: congestion, or the link was down",
    ),
];

/// Describes a partition key: `0x8001, full membership`.
pub(crate) fn pkey(entry: PKeyEntry) -> String {
    format!("{}, {}", entry.key, membership(entry))
}

/// Describes the membership in a partition.
pub(crate) fn membership(entry: PKeyEntry) -> &'static str {
    match entry.key.is_full() {
        true => "full membership",
        false => "limited membership",
    }
}

/// Describes an entry of a GID table: `::ffff:192.0.2.1, RoCE v2, eth0`.
pub(crate) fn gid(entry: &GidEntry) -> String {
    let mut text = entry.gid.to_string();
    for part in [&entry.kind, &entry.net].into_iter().flatten() {
        text.push_str(", ");
        text.push_str(part);
    }
    text
}

/// Returns the reason for which a port's GID was chosen among `table`, which may be empty.
pub(crate) fn gid_reason(choice: &Choice, table: &[GidEntry], options: NameOptions) -> String {
    if let Some(index) = options.gid_index {
        return format!("the device's name says gid_index={index}");
    }
    if options.names_gid {
        return "the device's name gives this address by gid=ADDRESS".to_owned();
    }
    if options.names_subnet {
        return "the first entry in the subnet that the device's name gives, in the order of preference".to_owned();
    }
    let gid = std::net::Ipv6Addr::from(choice.gid.0);
    let (is_ipv4, is_local) = (gid.to_ipv4_mapped().is_some(), gid.is_unicast_link_local());
    let reason = match choice.network {
        Network::Infiniband(_) => {
            return "on InfiniBand the first entry, the port's own GID, is used".to_owned();
        }
        Network::RoceV2 if is_ipv4 => "RoCE v2 over IPv4 comes first",
        Network::RoceV2 if !is_local => {
            "RoCE v2 over IPv4 comes first, but the port has none; RoCE v2 over a routed IPv6 address comes next"
        }
        Network::RoceV2 => {
            "RoCE v2 comes first, and the port has it with link-local addresses only"
        }
        Network::RoceV1 => "RoCE v2 comes first, but the port has none",
        Network::Roce => {
            "libibverbs does not tell the types; RoCE v2 usually follows v1 in the table, so the last entry of the \
             best address is used"
        }
        _ => return "the first entry that is in use".to_owned(),
    };
    let index = u16::from(choice.gid_index);
    let Some(chosen) = table.iter().find(|entry| entry.index == index) else {
        return reason.to_owned();
    };
    let alike = table
        .iter()
        .filter(|entry| entry.index != index && are_alike(entry, chosen));
    let alike: Vec<_> = alike.map(|entry| entry.index.to_string()).collect();
    match &*alike {
        [] => reason.to_owned(),
        [one] => format!("{reason}; entry {one} is as good: gid_index={one} takes it"),
        more => format!(
            "{reason}; entries {} are as good: gid_index=N takes another",
            more.join(", ")
        ),
    }
}

/// Whether the choice prefers neither of two entries for its type and its kind of address.
fn are_alike(one: &GidEntry, other: &GidEntry) -> bool {
    let address = |entry: &GidEntry| {
        let is_ipv4 = entry.gid.to_ipv4_mapped().is_some();
        (is_ipv4, entry.gid.is_unicast_link_local())
    };
    one.kind == other.kind && address(one) == address(other)
}

/// Says where a port's traffic class comes from.
pub(crate) fn class_source(class: TrafficClass, options: NameOptions, port: u8) -> String {
    match class.source {
        ClassSource::Default => "the default".to_owned(),
        ClassSource::Name => "as the device's name says".to_owned(),
        ClassSource::Driver => {
            let driver =
                format!("the driver sets it for all connections (tc/{port}/traffic_class)");
            match options.traffic_class {
                Some(asked) if asked != class.value => {
                    format!("{driver}; traffic_class={asked} of the device's name has no effect")
                }
                _ => driver,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks::verbs::{Gid, Lid, Mtu, PKey};

    use super::*;

    fn entry(index: u16, gid: &str, kind: &str) -> GidEntry {
        GidEntry {
            index,
            gid: gid.parse().unwrap(),
            kind: Some(kind.to_owned()),
            net: Some("eth0".to_owned()),
        }
    }

    fn table() -> Vec<GidEntry> {
        vec![
            entry(0, "fe80::1", "IB/RoCE v1"),
            entry(1, "fe80::1", "RoCE v2"),
            entry(2, "::ffff:192.0.2.1", "IB/RoCE v1"),
            entry(3, "::ffff:192.0.2.1", "RoCE v2"),
        ]
    }

    /// Returns the reason for a GID that is at `index`.
    fn reason(network: Network, index: u8, gid: &str, table: &[GidEntry]) -> String {
        let gid = Gid(gid.parse::<std::net::Ipv6Addr>().unwrap().octets());
        let choice = Choice::new(1, network, (index, gid), Mtu::B4096);
        gid_reason(&choice, table, NameOptions::default())
    }

    const IPV4: &str = "::ffff:192.0.2.1";

    #[test]
    fn the_reason_for_a_gid_follows_the_order_of_choice() {
        let said = reason(Network::RoceV2, 3, IPV4, &table());
        assert_eq!(said, "RoCE v2 over IPv4 comes first");
        let said = reason(Network::RoceV2, 3, "2001:db8::1", &[]);
        assert!(said.contains("routed IPv6 address comes next"), "{said}");
        let said = reason(Network::RoceV2, 1, "fe80::1", &table());
        assert!(said.contains("link-local addresses only"), "{said}");
        let said = reason(Network::RoceV1, 2, IPV4, &table());
        assert!(said.contains("but the port has none"), "{said}");
        let said = reason(Network::Roce, 3, IPV4, &[]);
        assert!(said.contains("does not tell the types"), "{said}");
        let network = Network::Infiniband(Lid::new(7).unwrap());
        let said = reason(network, 0, "fe80::2:c903:1", &[]);
        assert!(said.contains("the port's own GID"), "{said}");
        let said = reason(Network::Other, 0, "fe80::1", &table());
        assert_eq!(said, "the first entry that is in use");
    }

    #[test]
    fn entries_that_are_as_good_are_named() {
        let mut table = table();
        table.push(entry(5, "::ffff:198.51.100.1", "RoCE v2"));
        let said = reason(Network::RoceV2, 3, IPV4, &table);
        assert!(
            said.ends_with("; entry 5 is as good: gid_index=5 takes it"),
            "{said}"
        );
        table.push(entry(7, "::ffff:203.0.113.1", "RoCE v2"));
        let said = reason(Network::RoceV2, 3, IPV4, &table);
        assert!(said.contains("; entries 5, 7 are as good"), "{said}");
    }

    #[test]
    fn a_gid_of_the_devices_name_has_no_other_reason() {
        let gid = Gid(IPV4.parse::<std::net::Ipv6Addr>().unwrap().octets());
        let choice = Choice::new(1, Network::RoceV1, (2, gid), Mtu::B4096);
        let options = NameOptions {
            gid_index: Some(2),
            ..NameOptions::default()
        };
        let said = gid_reason(&choice, &table(), options);
        assert_eq!(said, "the device's name says gid_index=2");
        for (option, part) in [
            ("gid=192.0.2.1", "by gid="),
            ("subnet=192.0.2.0/24", "in the subnet"),
        ] {
            let options = NameOptions::of(&format!("ibv:mlx5_0,{option}").parse().unwrap());
            let said = gid_reason(&choice, &table(), options);
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn entries_of_tables_are_described() {
        let key = |key| {
            pkey(PKeyEntry {
                index: 0,
                key: PKey::new(key).unwrap(),
            })
        };
        assert_eq!(key(0xffff), "0xffff, full membership");
        assert_eq!(key(0x0001), "0x0001, limited membership");
        let mut entry = entry(3, IPV4, "RoCE v2");
        assert_eq!(gid(&entry), "::ffff:192.0.2.1, RoCE v2, eth0");
        (entry.kind, entry.net) = (None, None);
        assert_eq!(gid(&entry), "::ffff:192.0.2.1");
    }

    #[test]
    fn each_counter_is_listed_once() {
        for (at, (name, ..)) in COUNTERS.iter().enumerate() {
            let again = COUNTERS[at + 1..].iter().any(|(other, ..)| other == name);
            assert!(!again, "{name}");
        }
        assert_eq!(counter("port_rcv_data"), None);
    }

    #[test]
    fn an_option_that_the_driver_overrides_is_said_to_have_no_effect() {
        let class = |source| TrafficClass { value: 106, source };
        let asked = |traffic_class| NameOptions {
            traffic_class,
            ..NameOptions::default()
        };
        let said = class_source(class(ClassSource::Driver), asked(Some(104)), 1);
        assert!(
            said.ends_with("traffic_class=104 of the device's name has no effect"),
            "{said}"
        );
        for same in [None, Some(106)] {
            let said = class_source(class(ClassSource::Driver), asked(same), 2);
            assert!(said.ends_with("(tc/2/traffic_class)"), "{said}");
        }
    }
}

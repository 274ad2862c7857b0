//! Choice of the GID that a port uses: pure.

use headworks_verbs::Gid;

/// The kind of packets that a GID is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidType {
    /// InfiniBand, or RoCE v1, whose packets are not routed.
    Local,
    /// RoCE v2: UDP over IP.
    RoceV2,
    /// Not reported, because the library is too old.
    Unknown,
}

impl GidType {
    /// Converts libibverbs' number `code` of a GID type.
    pub(crate) const fn from_code(code: u32) -> Self {
        match code {
            2 => Self::RoceV2,
            _ => Self::Local,
        }
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u8,
    pub(crate) gid: Gid,
    pub(crate) gid_type: GidType,
    /// Whether a network interface has the address, as far as the library says; if none has, nothing is sent.
    pub(crate) has_interface: bool,
}

impl Entry {
    pub(crate) fn is_empty(&self) -> bool {
        self.gid.0 == [0; 16]
    }

    /// Returns whether the GID is an IPv4-mapped IPv6 address, `::ffff:a.b.c.d`.
    fn is_ipv4(&self) -> bool {
        self.gid.ipv4().is_some()
    }

    fn is_link_local(&self) -> bool {
        self.gid.0[..2] == [0xfe, 0x80]
    }

    /// Preference of the entry; larger is better.
    fn rank(&self) -> u32 {
        let routed = match self.gid_type {
            GidType::RoceV2 => 2,
            GidType::Unknown => 1,
            GidType::Local => 0,
        };
        let address = match (self.is_ipv4(), self.is_link_local()) {
            (true, _) => 2,
            (_, false) => 1,
            (_, true) => 0,
        };
        u32::from(self.has_interface) * 9 + routed * 3 + address
    }
}

/// Chooses the entry to use. RoCE v2 comes first: with an IPv4 address, then with a routed IPv6 address, then
/// with a link-local one. Entries that are not routed come next, in the same order of addresses. Entries
/// without a network interface come last. Of equal entries the first is used, but the last if types are
/// unknown, because RoCE v2 follows v1 in the table.
pub(crate) fn choose(entries: &[Entry]) -> Option<Entry> {
    let mut best: Option<Entry> = None;
    for entry in entries.iter().filter(|entry| !entry.is_empty()) {
        let is_better = best.is_none_or(|best| {
            entry.rank() > best.rank()
                || entry.rank() == best.rank() && entry.gid_type == GidType::Unknown
        });
        if is_better {
            best = Some(*entry);
        }
    }
    best
}

/// Chooses the entry to use on a port of an InfiniBand network: the first, which is the port's own GID.
pub(crate) fn choose_infiniband(entries: &[Entry]) -> Option<Entry> {
    entries.iter().find(|entry| !entry.is_empty()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(index: u8, address: &str, gid_type: GidType) -> Entry {
        let address: std::net::Ipv6Addr = address.parse().unwrap();
        let gid = Gid(address.octets());
        Entry {
            index,
            gid,
            gid_type,
            has_interface: true,
        }
    }

    #[test]
    fn roce_v2_over_ipv4_comes_first() {
        use GidType::{Local, RoceV2};
        // A ConnectX has both versions of each address.
        let table = [
            entry(0, "fe80::1", Local),
            entry(1, "fe80::1", RoceV2),
            entry(2, "::ffff:10.0.0.1", Local),
            entry(3, "::ffff:10.0.0.1", RoceV2),
            entry(4, "2001:db8::1", RoceV2),
            entry(5, "::ffff:10.0.0.2", RoceV2),
        ];
        let chosen = |table: &[Entry]| choose(table).map(|entry| entry.index);
        assert_eq!(chosen(&table), Some(3));
        let without_ipv4 = [table[0], table[1], table[4]];
        assert_eq!(chosen(&without_ipv4), Some(4));
        assert_eq!(chosen(&table[..2]), Some(1));
        assert_eq!(chosen(&table[..1]), Some(0));
        assert_eq!(chosen(&[entry(0, "::", RoceV2)]), None);
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn where_types_are_not_known_the_second_of_a_pair_is_version_2() {
        let table = [
            entry(0, "fe80::1", GidType::Unknown),
            entry(1, "fe80::1", GidType::Unknown),
            entry(2, "::ffff:10.0.0.1", GidType::Unknown),
            entry(3, "::ffff:10.0.0.1", GidType::Unknown),
        ];
        assert_eq!(choose(&table).map(|entry| entry.index), Some(3));
    }

    #[test]
    fn on_infiniband_the_ports_own_address_comes_first_whatever_is_known_of_types() {
        for gid_type in [GidType::Local, GidType::Unknown] {
            let table = [
                entry(0, "fe80::2:c903:1", gid_type),
                entry(1, "fe80::2:c903:2", gid_type),
                entry(2, "2001:db8::1", gid_type),
            ];
            assert_eq!(choose_infiniband(&table).map(|entry| entry.index), Some(0));
        }
        assert_eq!(choose_infiniband(&[entry(0, "::", GidType::Local)]), None);
    }

    #[test]
    fn entries_without_an_interface_are_chosen_last() {
        let gone = Entry {
            has_interface: false,
            ..entry(0, "::ffff:10.0.0.1", GidType::RoceV2)
        };
        let poor = entry(1, "fe80::1", GidType::Local);
        assert_eq!(choose(&[gone, poor]), Some(poor));
        assert_eq!(choose(&[gone]), Some(gone));
    }

    proptest! {
        #[test]
        fn one_that_is_there_is_chosen_and_none_is_better(
            table in proptest::collection::vec((any::<[u8; 16]>(), 0u32..4, any::<bool>()), 0..8),
        ) {
            let entries: Vec<_> = table
                .iter()
                .zip(0..)
                .map(|(&(gid, code, has_interface), index)| Entry {
                    index,
                    gid: Gid(gid),
                    gid_type: GidType::from_code(code),
                    has_interface,
                })
                .collect();
            let best = choose(&entries);
            prop_assert_eq!(best.is_some(), entries.iter().any(|entry| !entry.is_empty()));
            for entry in entries.iter().filter(|entry| !entry.is_empty()) {
                prop_assert!(entry.rank() <= best.unwrap().rank());
            }
        }
    }
}

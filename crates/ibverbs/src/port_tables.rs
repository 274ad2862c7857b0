//! What a port's attributes and tables say now, and what is chosen from them.

use headworks_verbs::{Lid, Mtu, PKey};

use crate::abi;
use crate::attributes::Port;
use crate::gid::{self, Entry};
use crate::options::Options;
use crate::port_selection::{Network, Refusal};
use crate::raw::Raw;

/// A port as the device describes it now.
pub(crate) struct PortTables {
    pub(crate) number: u8,
    pub(crate) attr: abi::PortAttr,
    transport: i32,
    /// The GIDs; unused entries are zeros or left out.
    gids: Vec<Entry>,
}

/// What is used of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) network: Network,
    pub(crate) entry: Entry,
    pub(crate) pkey_index: u16,
    /// The key at that index, if the device says it.
    pub(crate) pkey: Option<PKey>,
}

impl PortTables {
    pub(crate) fn read(raw: &Raw, number: u8, attr: abi::PortAttr) -> Self {
        let count = usize::try_from(attr.gid_tbl_len).unwrap_or(0);
        Self {
            number,
            transport: raw.transport(),
            gids: raw.gids(number, count),
            attr,
        }
    }

    /// Chooses by the options. What is in use before a change of the tables (`previous`) is kept if it still is there, at whatever
    /// index. `key_at` reads the partition key of an index.
    pub(crate) fn select(
        &self,
        options: &Options,
        previous: Option<&Port>,
        key_at: impl Fn(u16) -> Option<PKey>,
    ) -> Result<Selected, Refusal> {
        let is_infiniband = is_infiniband(self.transport, &self.attr);
        let entry = self.entry(options, previous, is_infiniband)?;
        let network = match (is_infiniband, Lid::new(self.attr.lid)) {
            // On other transports the types of GIDs have no meaning.
            (false, _) if self.transport != abi::TRANSPORT_IB => Network::Other,
            (false, _) => Network::of_ethernet(entry.gid_type),
            (true, Some(lid)) => Network::Infiniband(lid),
            (true, None) => {
                let (port, lid) = (self.number, self.attr.lid);
                return Err(Refusal::NoLid { port, lid });
            }
        };
        let pkey_index = match options.pkey_index {
            Some(index) => self.same_pkey(previous, &key_at).unwrap_or(index),
            // Ethernet has one partition.
            None if !is_infiniband => 0,
            None => self.pkey_index(previous, &key_at),
        };
        Ok(Selected {
            network,
            entry,
            pkey_index,
            pkey: (self.attr.pkey_tbl_len > pkey_index)
                .then(|| key_at(pkey_index))
                .flatten(),
        })
    }

    /// The key that is in use, else the first of full membership, else the first.
    fn pkey_index(&self, previous: Option<&Port>, key_at: &impl Fn(u16) -> Option<PKey>) -> u16 {
        let find = |is_it: &dyn Fn(PKey) -> bool| self.find_pkey(key_at, is_it);
        let any = || find(&PKey::is_full).or_else(|| find(&|_| true));
        self.same_pkey(previous, key_at).or_else(any).unwrap_or(0)
    }

    /// Index of the first key that `is_it`.
    fn find_pkey(
        &self,
        key_at: &impl Fn(u16) -> Option<PKey>,
        is_it: &dyn Fn(PKey) -> bool,
    ) -> Option<u16> {
        (0..self.attr.pkey_tbl_len).find(|index| key_at(*index).is_some_and(is_it))
    }

    /// Index at which the key that is in use is now.
    fn same_pkey(
        &self,
        previous: Option<&Port>,
        key_at: &impl Fn(u16) -> Option<PKey>,
    ) -> Option<u16> {
        let used = previous?.pkey?;
        self.find_pkey(key_at, &|pkey| pkey == used)
    }

    /// The GID that is in use, wherever it is now, else the requested one, else the best one.
    fn entry(
        &self,
        options: &Options,
        previous: Option<&Port>,
        is_infiniband: bool,
    ) -> Result<Entry, Refusal> {
        let port = self.number;
        if let Some(used) = previous {
            let is_it = |entry: &&Entry| (entry.gid, entry.gid_type) == (used.gid, used.gid_type);
            if let Some(entry) = self.gids.iter().find(is_it) {
                return Ok(*entry);
            }
        }
        if let Some(index) = options.gid_index {
            let found = self
                .gids
                .iter()
                .find(|entry| entry.index == index && !entry.is_empty());
            return found.copied().ok_or_else(|| Refusal::GidIndex {
                index,
                port,
                there: self.listed(|entry| entry.index.to_string()),
            });
        }
        let choose = |entries: &[Entry]| match is_infiniband {
            true => gid::choose_infiniband(entries),
            false => gid::choose(entries),
        };
        let asked = match (options.gid, options.subnet) {
            (None, None) => return choose(&self.gids).ok_or(Refusal::NoAddress { port }),
            (Some(gid), _) => format!("gid={}", gid.ip()),
            (None, Some(subnet)) => format!("subnet={subnet}"),
        };
        let is_asked = |entry: &&Entry| {
            options.gid.is_none_or(|gid| entry.gid == gid)
                && options
                    .subnet
                    .is_none_or(|subnet| subnet.contains(entry.gid))
        };
        let asked_for: Vec<_> = self.gids.iter().filter(is_asked).copied().collect();
        choose(&asked_for).ok_or_else(|| {
            let there = self.listed(|entry| entry.gid.ip().to_string());
            Refusal::NoSuchAddress { asked, port, there }
        })
    }

    /// The entries in use, each in words, or "none".
    fn listed(&self, word: impl Fn(&Entry) -> String) -> String {
        let mut words: Vec<_> = Vec::new();
        for entry in self.gids.iter().filter(|entry| !entry.is_empty()) {
            let word = word(entry);
            if !words.contains(&word) {
                words.push(word);
            }
        }
        match words.is_empty() {
            true => "none".to_owned(),
            false => words.join(", "),
        }
    }
}

/// The active MTU of a port.
pub(crate) fn active_mtu(port: &abi::PortAttr) -> Mtu {
    let active = u8::try_from(port.active_mtu).ok();
    active.and_then(Mtu::from_code).unwrap_or(Mtu::B1024)
}

/// Returns whether a port is on an InfiniBand network. A port that does not say is if the transport is.
pub(crate) fn is_infiniband(transport: i32, port: &abi::PortAttr) -> bool {
    match port.link_layer {
        abi::LINK_INFINIBAND => true,
        abi::LINK_UNSPECIFIED => transport == abi::TRANSPORT_IB,
        _ => false,
    }
}

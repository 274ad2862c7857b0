//! What is used of a device, and why one is not: what [`IbvProvider::choice`](crate::IbvProvider::choice)
//! says, so that nobody has to choose again.

use std::fmt;

use headworks_verbs::{Gid, Lid, Mtu};

use crate::gid::GidType;

/// The kind of network that a port is on, and what a port of it is called there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// InfiniBand: the port has a local identifier besides its GID.
    Infiniband(Lid),
    /// RoCE of version 2: UDP over IP, which is routed.
    RoceV2,
    /// RoCE of version 1: Ethernet frames, which are not.
    RoceV1,
    /// RoCE, and libibverbs is too old to say of which version.
    Roce,
    /// The device's own: neither InfiniBand nor RoCE, as EFA has it. Addresses are GIDs there, too.
    Other,
}

impl Network {
    /// Of an Ethernet port that uses an address of this type.
    pub(crate) const fn of_ethernet(gid_type: GidType) -> Self {
        match gid_type {
            GidType::RoceV2 => Self::RoceV2,
            GidType::Local => Self::RoceV1,
            GidType::Unknown => Self::Roce,
        }
    }

    /// Whether it is RoCE, whose packets and addresses are those of a network interface.
    pub const fn is_roce(self) -> bool {
        matches!(self, Self::RoceV2 | Self::RoceV1 | Self::Roce)
    }

    /// The port's local identifier, where it has one.
    pub const fn lid(self) -> Option<Lid> {
        match self {
            Self::Infiniband(lid) => Some(lid),
            _ => None,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infiniband(lid) => write!(f, "InfiniBand, LID {lid}"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::Roce => f.write_str("RoCE"),
            Self::Other => f.write_str("a network of its own"),
        }
    }
}

/// Which port of a device is used, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The port, from 1.
    pub port: u8,
    /// Whether it is up.
    pub is_up: bool,
    /// Its network.
    pub network: Network,
    /// Which of the port's addresses.
    pub gid_index: u8,
    /// That address.
    pub gid: Gid,
    /// The longest packet.
    pub mtu: Mtu,
}

impl Choice {
    /// For tests of those who are told.
    #[doc(hidden)]
    pub const fn new(port: u8, network: Network, (gid_index, gid): (u8, Gid), mtu: Mtu) -> Self {
        Self {
            port,
            is_up: true,
            network,
            gid_index,
            gid,
            mtu,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = if self.is_up { "up" } else { "down" };
        let (port, network, index) = (self.port, self.network, self.gid_index);
        write!(f, "port {port} ({up}), {network}, GID index {index}")
    }
}

/// Why a device that is there is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It is connected in another way.
    #[error("the device speaks iWARP: only RoCE and InfiniBand are known how to connect")]
    Iwarp,
    /// Its library takes no locks in this environment.
    #[error("{0}")]
    NoLocks(&'static str),
    /// The port has no GID.
    #[error("port {port} has no address: give its network interface an IP address")]
    NoAddress {
        /// The port.
        port: u8,
    },
    /// The port of an InfiniBand network has no local identifier, or one that is not of one port.
    #[error(
        "port {port} has no LID (it says {lid:#x}): the manager of its InfiniBand subnet gives it one"
    )]
    NoLid {
        /// The port.
        port: u8,
        /// What it says.
        lid: u16,
    },
    /// The entry that was asked for is not in use.
    #[error("gid_index={index} is not in use on port {port}: in use are {there}")]
    GidIndex {
        /// The entry.
        index: u8,
        /// The port.
        port: u8,
        /// Those that are, or "none".
        there: String,
    },
}

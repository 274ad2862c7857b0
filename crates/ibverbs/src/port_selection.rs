//! The chosen port and GID of a device, and why a device cannot be used.
//! [`IbvProvider::choice`](crate::IbvProvider::choice) returns both, so that no other code chooses again.

use std::fmt;

use headworks_verbs::{Gid, Lid, Mtu, PKey, RoceVersion};

use crate::gid::GidType;

/// The network that a port is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// InfiniBand: the port has a local identifier besides its GID.
    Infiniband(Lid),
    /// RoCE v2: UDP over IP, which is routed.
    RoceV2,
    /// RoCE v1: Ethernet frames, which are not routed.
    RoceV1,
    /// RoCE of an unknown version, because libibverbs is too old to say.
    Roce,
    /// A network of the device's own, neither InfiniBand nor RoCE, such as EFA's. Its addresses are GIDs too.
    Other,
}

impl Network {
    /// The network of an Ethernet port that uses a GID of this type.
    pub(crate) const fn of_ethernet(gid_type: GidType) -> Self {
        match gid_type {
            GidType::RoceV2 => Self::RoceV2,
            GidType::Local => Self::RoceV1,
            GidType::Unknown => Self::Roce,
        }
    }

    /// Returns whether this is RoCE, whose packets and addresses are those of a network interface.
    pub const fn is_roce(self) -> bool {
        matches!(self, Self::RoceV2 | Self::RoceV1 | Self::Roce)
    }

    /// The version of RoCE, if this is RoCE of a known version.
    pub const fn roce(self) -> Option<RoceVersion> {
        match self {
            Self::RoceV2 => Some(RoceVersion::V2),
            Self::RoceV1 => Some(RoceVersion::V1),
            _ => None,
        }
    }

    /// The port's local identifier, if it has one.
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

/// The chosen port of a device, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// Number of the port, from 1.
    pub port: u8,
    /// Whether the port is up.
    pub is_up: bool,
    /// The port's network.
    pub network: Network,
    /// Index of the GID in the port's table.
    pub gid_index: u8,
    /// The GID at that index.
    pub gid: Gid,
    /// The longest packet.
    pub mtu: Mtu,
    /// Index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The key at that index, if the device says it.
    pub pkey: Option<PKey>,
    /// Traffic class of connections, and of datagrams that set none.
    pub traffic_class: u8,
}

impl Choice {
    /// Creates a choice, for tests of code that receives one.
    #[doc(hidden)]
    pub const fn new(port: u8, network: Network, (gid_index, gid): (u8, Gid), mtu: Mtu) -> Self {
        Self {
            port,
            is_up: true,
            network,
            gid_index,
            gid,
            mtu,
            pkey_index: 0,
            pkey: None,
            traffic_class: 0,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = if self.is_up { "up" } else { "down" };
        let (port, network, index) = (self.port, self.network, self.gid_index);
        write!(f, "port {port} ({up}), {network}, GID index {index}")?;
        // The default partition needs no word.
        match self.pkey.filter(|pkey| *pkey != PKey::DEFAULT) {
            Some(pkey) => write!(f, ", partition key {pkey}"),
            None => Ok(()),
        }
    }
}

/// Reason for which an existing device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The device uses iWARP, which is connected in another way.
    #[error("the device uses iWARP, which is not supported: use a RoCE or InfiniBand device")]
    Iwarp,
    /// The device's library takes no locks in this environment.
    #[error("{0}")]
    NoLocks(&'static str),
    /// The device has no connections: its only queue pairs are for datagrams.
    #[error(
        "the device refuses reliable connections (RC): its driver, {driver}, has datagrams only; use another device"
    )]
    NoConnections {
        /// The device's driver.
        driver: String,
    },
    /// Order was declared for a device that can only register memory with relaxed ordering.
    #[error(
        "the device registers memory with relaxed ordering only, so its WRITEs are in no order: leave out \
         ordered_between_writes=yes"
    )]
    OnlyRelaxed,
    /// No GID of the port is the requested one, or in the requested subnet.
    #[error("no address of port {port} matches {asked}: it has {there}")]
    NoSuchAddress {
        /// The option that asked, such as `gid=192.0.2.1`.
        asked: String,
        /// Number of the port.
        port: u8,
        /// The addresses in use, or "none".
        there: String,
    },
    /// The port has no GID.
    #[error("port {port} has no address: give its network interface an IP address")]
    NoAddress {
        /// Number of the port.
        port: u8,
    },
    /// The port of an InfiniBand network has no LID, or one that is not a unicast LID.
    #[error(
        "port {port} has no unicast LID (it reports {lid:#x}): its InfiniBand subnet needs a subnet manager"
    )]
    NoLid {
        /// Number of the port.
        port: u8,
        /// The LID that the port reports.
        lid: u16,
    },
    /// The requested entry of the GID table is not in use.
    #[error("gid_index={index} is not in use on port {port}: in use are {there}")]
    GidIndex {
        /// The requested index.
        index: u8,
        /// Number of the port.
        port: u8,
        /// The indexes in use, or "none".
        there: String,
    },
}

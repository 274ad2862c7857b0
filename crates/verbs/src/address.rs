//! Addresses on a fabric: GID, LID, queue pair number, packet sequence number, MTU.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A global identifier: the 16-byte address of a port. On RoCE it holds an IP address; on the software RNIC,
/// a hash of the soft host's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The upper half. On an InfiniBand network it is the prefix of the port's subnet (specification, volume
    /// 1, section 4.1.1).
    pub const fn subnet_prefix(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The IPv4 address, if the GID is that of RoCE over IPv4 (`::ffff:a.b.c.d`).
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The IP address that the GID is on RoCE.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            write!(f, "{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A local identifier: the address that a subnet manager assigns to a port of an InfiniBand network, and by
/// which switches forward (specification, volume 1, section 4.1.3). Unicast only; multicast LIDs are
/// excluded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lid(u16);

impl Lid {
    /// The largest unicast LID; values above it are multicast.
    pub const MAX: u16 = 0xbfff;

    /// The LID `raw`, if it is from 1 to [`Lid::MAX`]. A port without a LID reports 0.
    pub const fn new(raw: u16) -> Option<Self> {
        match raw {
            1..=Self::MAX => Some(Self(raw)),
            _ => None,
        }
    }

    /// The number.
    pub const fn raw(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid({self})")
    }
}

/// A partition key: the number of a partition in 15 bits, and in the highest bit whether the port is a full member of it
/// (specification, volume 1, section 10.9).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PKey(u16);

impl PKey {
    /// The default partition, with full membership. All ports on Ethernet have it.
    pub const DEFAULT: Self = Self(0xffff);

    /// The key `raw`, unless its partition is 0. An unused entry of a port's table is 0.
    pub const fn new(raw: u16) -> Option<Self> {
        match raw & 0x7fff {
            0 => None,
            _ => Some(Self(raw)),
        }
    }

    /// The number, with the bit of membership.
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// Whether the port is a full member of the partition. Limited members do not reach each other.
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether ports with these two keys reach each other: both keys are of one partition, and one is of a full member.
    pub const fn reaches(self, other: Self) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.is_full() || other.is_full())
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKey({self})")
    }
}

/// The version of RoCE that a GID is for: how packets look on Ethernet. Ports reach each other only with one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoceVersion {
    /// Ethernet frames of their own type, which are not routed.
    V1,
    /// UDP over IPv4 or IPv6.
    V2,
}

impl fmt::Display for RoceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "RoCE v1",
            Self::V2 => "RoCE v2",
        })
    }
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest queue pair number.
    pub const MAX: u32 = (1 << 24) - 1;

    /// The queue pair number `raw`; `None` if it needs more than 24 bits.
    pub const fn new(raw: u32) -> Option<Self> {
        if raw <= Self::MAX {
            Some(Self(raw))
        } else {
            None
        }
    }

    /// The number.
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

/// A packet sequence number: 24 bits. The two ends of a connection must agree on the first one
/// in each direction; a device treats a mismatch as a stale connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `raw` as a sequence number.
    pub const fn truncated(raw: u32) -> Self {
        Self(raw & Qpn::MAX)
    }

    /// The number.
    pub const fn raw(self) -> u32 {
        self.0
    }
}

/// Path MTU: payload bytes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1,024 bytes.
    #[default]
    B1024,
    /// 2,048 bytes.
    B2048,
    /// 4,096 bytes.
    B4096,
}

impl Mtu {
    /// Payload bytes of one packet.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The encoding used on the wire and by libibverbs (`IBV_MTU_256` is 1).
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The MTU with encoding `code`; `None` if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lid_is_of_one_port() {
        for raw in [0, 0xc000, u16::MAX] {
            assert_eq!(Lid::new(raw), None);
        }
        for raw in [1, 0xbfff] {
            assert_eq!(Lid::new(raw).map(Lid::raw), Some(raw));
        }
    }

    #[test]
    fn the_prefix_of_a_subnet_is_the_first_half() {
        let mut gid = Gid([7; 16]);
        gid.0[..8].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 1]);
        assert_eq!(gid.subnet_prefix(), 0xfe80_0000_0000_0001);
    }
}

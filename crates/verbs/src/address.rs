//! Addresses on a fabric: GID, LID, queue pair number, packet sequence number, MTU.

use core::fmt;

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

//! Addresses on a fabric: GID, queue pair number, packet sequence number, MTU.

use core::fmt;

/// A global identifier: the 16-byte address of a port. RoCE puts an IP address here; the software
/// RNIC a hash of its soft host's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

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

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest queue pair number.
    pub const MAX: u32 = (1 << 24) - 1;

    /// The number with its low 24 bits; `None` if `raw` does not fit them.
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
/// in each direction; a device takes a mismatch for a stale connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The number made of the low 24 bits of `raw`.
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

    /// The MTU with that encoding.
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

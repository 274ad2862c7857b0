//! Datagrams: address handles, destinations, and the header at the start of a datagram's receive buffer
//! (InfiniBand specification, volume 1, section 8.3 for the GRH, 10.6.1 and 11.2.2 for address
//! handles).
//!
//! A datagram is one message of at most the port's MTU to any UD queue pair. It is unconnected and
//! unacknowledged. It is lost silently if no queue pair takes it: no receive is posted, the Q_Key differs, or
//! there is no such queue pair. The receive buffer must hold [`GRH_BYTES`] more than the message. Its first
//! 40 bytes are for the header, also if no header came, and the completion's length counts them. If a queue
//! pair's own receive is too short for both, it stays for the next datagram and this datagram is lost
//! (section 9.9.3, class D). A receive of an SRQ that is too short is consumed and ends with
//! [`Status::LocalLength`](crate::Status::LocalLength) (class E). The sender's request succeeds in all these
//! cases: success means that the datagram left.
//!
//! To answer a datagram, use the header, if one came, and
//! [`Completion::src_qpn`](crate::Completion::src_qpn). On an InfiniBand network an answer also needs
//! [`Completion::src_lid`](crate::Completion::src_lid). There, datagrams from the same subnet usually come
//! without a header; [`AhInit::dgid`] may then be the local port's own GID, because only its prefix is used.
//!
//! ```
//! use headworks_verbs::{GRH_BYTES, Gid, Grh};
//!
//! // What a receive of a datagram of 5 bytes holds, and how it is read.
//! let (sgid, dgid) = (Gid([1; 16]), Gid([2; 16]));
//! let header = Grh { payload_len: 5, next_header: Grh::NEXT_HEADER, sgid, dgid, ..Grh::default() };
//! let received = [&header.emit()[..], b"hello"].concat();
//! let (grh, message) = received.split_at(GRH_BYTES);
//! assert_eq!(Grh::parse(grh).map(|grh| grh.sgid), Some(sgid));
//! assert_eq!(message, b"hello");
//! ```

use crate::address::{Gid, Lid, Qpn};

/// Where and how datagrams are sent: the parameters of a new address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AhInit {
    /// The port to send to.
    pub dgid: Gid,
    /// The port's LID. A device on an InfiniBand network ([`DeviceInfo::lid`](crate::DeviceInfo::lid)) needs
    /// it, others ignore it. If the port is in another subnet, this is the LID of the router to that subnet.
    pub dlid: Option<Lid>,
    /// The GRH's traffic class.
    pub traffic_class: u8,
    /// The GRH's flow label: 20 bits.
    pub flow_label: u32,
    /// The GRH's hop limit.
    pub hop_limit: u8,
    /// Service level, 0 to 15.
    pub service_level: u8,
}

impl AhInit {
    /// Addresses the port `dgid`, with defaults for the rest. On an InfiniBand network the caller must also
    /// set `dlid`.
    pub const fn to(dgid: Gid) -> Self {
        Self {
            dgid,
            dlid: None,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            service_level: 0,
        }
    }
}

/// Identifies an address handle within its device, as a local key identifies a region. A request with the key
/// of a dropped handle, or of another protection domain's, fails. Depending on the device it completes with
/// [`Status::LocalQpOperation`](crate::Status::LocalQpOperation), or posting refuses it with
/// [`PostErrorKind::Operation`](crate::PostErrorKind::Operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AhKey(pub u32);

/// An address handle. Dropping the value destroys it. Keep it until the last request that uses it has
/// completed: a device may read the handle until then.
pub trait AddressHandle: Send + Sync {
    /// The key by which send requests name this handle.
    fn key(&self) -> AhKey;
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address handle of the destination port.
    pub ah: AhKey,
    /// The queue pair at that port.
    pub qpn: Qpn,
    /// The Q_Key that the destination queue pair requires. With the highest bit set, the sender's own Q_Key
    /// is sent instead (section 10.2.5).
    pub qkey: u32,
}

/// Bytes of a global routing header, at the start of a datagram's receive buffer.
pub const GRH_BYTES: usize = 40;

/// A global routing header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// Bytes after the header.
    pub payload_len: u16,
    /// Type of the next header: 0x1b on InfiniBand.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// GID of the sender's port.
    pub sgid: Gid,
    /// GID of the destination port.
    pub dgid: Gid,
}

impl Grh {
    /// The header of a datagram of `len` bytes from the port `sgid` to `ah`, with or without immediate.
    pub fn of_datagram(ah: &AhInit, sgid: Gid, len: u64, has_imm: bool) -> Self {
        /// Bytes of the transport headers after the GRH, and of the checksum.
        const HEADERS: u64 = 12 + 8 + 4;
        let imm = if has_imm { 4 } else { 0 };
        Self {
            traffic_class: ah.traffic_class,
            flow_label: ah.flow_label,
            // A packet's payload is padded to a multiple of 4 bytes.
            payload_len: (HEADERS + imm + len.next_multiple_of(4)) as u16,
            next_header: Self::NEXT_HEADER,
            hop_limit: ah.hop_limit,
            sgid,
            dgid: ah.dgid,
        }
    }

    /// The IP version field.
    const VERSION: u32 = 6;
    /// The value of `next_header` in an InfiniBand packet.
    pub const NEXT_HEADER: u8 = 0x1b;

    /// Encodes the header as it is on the wire.
    pub fn emit(&self) -> [u8; GRH_BYTES] {
        let mut bytes = [0; GRH_BYTES];
        let first = Self::VERSION << 28
            | u32::from(self.traffic_class) << 20
            | (self.flow_label & 0xf_ffff);
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        bytes[6] = self.next_header;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.sgid.0);
        bytes[24..].copy_from_slice(&self.dgid.0);
        bytes
    }

    /// The first 12 bytes of a GID that holds an IPv4 address.
    const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    /// First byte of an IPv4 header: version 4, five words long.
    const IPV4_START: u8 = 0x45;
    /// Bytes before the IPv4 header.
    const IPV4_AT: usize = 20;

    /// Encodes the header as RoCE version 2 does between IPv4 addresses: an IPv4 header in the last 20 bytes. `None` if a GID holds no
    /// IPv4 address.
    pub fn emit_ipv4(&self) -> Option<[u8; GRH_BYTES]> {
        let from = self.sgid.0.strip_prefix(&Self::IPV4_MAPPED)?;
        let to = self.dgid.0.strip_prefix(&Self::IPV4_MAPPED)?;
        let mut bytes = [0; GRH_BYTES];
        let header = &mut bytes[Self::IPV4_AT..];
        header[0] = Self::IPV4_START;
        header[1] = self.traffic_class;
        header[2..4].copy_from_slice(&(self.payload_len.wrapping_add(20)).to_be_bytes());
        // Do not fragment.
        header[6] = 0x40;
        header[8] = self.hop_limit;
        header[9] = Self::UDP;
        header[12..16].copy_from_slice(from);
        header[16..20].copy_from_slice(to);
        let sum = Self::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        Some(bytes)
    }

    /// Parses what [`emit_ipv4`](Self::emit_ipv4) encodes. `None` if there is no IPv4 header with a right checksum.
    pub fn parse_ipv4(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; 20] = bytes.get(Self::IPV4_AT..GRH_BYTES)?.first_chunk()?;
        if header[0] != Self::IPV4_START || Self::checksum(header) != 0 {
            return None;
        }
        let gid = |from: usize| {
            let mut gid = Gid::default();
            gid.0[..12].copy_from_slice(&Self::IPV4_MAPPED);
            gid.0[12..].copy_from_slice(&header[from..from + 4]);
            gid
        };
        Some(Self {
            traffic_class: header[1],
            flow_label: 0,
            payload_len: u16::from_be_bytes([header[2], header[3]]).wrapping_sub(20),
            next_header: header[9],
            hop_limit: header[8],
            sgid: gid(12),
            dgid: gid(16),
        })
    }

    /// Parses the header in front of a received datagram, whichever of the two it is. RoCE over IPv4 leaves the first bytes as they
    /// were, so they may look like an IPv6 header; an IPv4 header has a checksum.
    pub fn of_receive(bytes: &[u8]) -> Option<Self> {
        Self::parse_ipv4(bytes).or_else(|| Self::parse(bytes))
    }

    /// Protocol number of UDP, which carries RoCE version 2.
    const UDP: u8 = 17;

    /// The checksum of an IPv4 header: 0 if the header holds the right one.
    fn checksum(header: &[u8]) -> u16 {
        let words = header.chunks_exact(2);
        let sum: u32 = words
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) + (folded >> 16)) as u16
    }

    /// Parses the header at the front of `bytes`, which is not one of IPv4 ([`of_receive`](Self::of_receive) reads both). `None` if there are fewer than 40 bytes, or if the IP
    /// version is not 6: RoCE may put an IPv4 header into the last 20 of the 40 bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; GRH_BYTES] = bytes.first_chunk()?;
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if first >> 28 != Self::VERSION {
            return None;
        }
        let gid = |from: usize| {
            let mut gid = Gid::default();
            gid.0.copy_from_slice(&bytes[from..from + 16]);
            gid
        };
        Some(Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: u16::from_be_bytes([bytes[4], bytes[5]]),
            next_header: bytes[6],
            hop_limit: bytes[7],
            sgid: gid(8),
            dgid: gid(24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_comes_back_as_it_was_sent(
            class in any::<u8>(), label in 0u32..1 << 20, len in any::<u16>(), hops in any::<u8>(),
            gids in any::<[[u8; 16]; 2]>(),
        ) {
            let header = Grh {
                traffic_class: class,
                flow_label: label,
                payload_len: len,
                next_header: Grh::NEXT_HEADER,
                hop_limit: hops,
                sgid: Gid(gids[0]),
                dgid: Gid(gids[1]),
            };
            prop_assert_eq!(Grh::parse(&header.emit()), Some(header));
        }

        #[test]
        fn an_ipv4_header_comes_back_as_it_was_sent(
            class in any::<u8>(), len in 0u16..60_000, hops in any::<u8>(), hosts in any::<[[u8; 4]; 2]>(), wrong in 20usize..40,
        ) {
            let gid = |host: [u8; 4]| {
                let mut gid = Gid::default();
                gid.0[10..12].fill(0xff);
                gid.0[12..].copy_from_slice(&host);
                gid
            };
            let header = Grh {
                traffic_class: class,
                payload_len: len,
                next_header: 17,
                hop_limit: hops,
                sgid: gid(hosts[0]),
                dgid: gid(hosts[1]),
                ..Grh::default()
            };
            let mut bytes = header.emit_ipv4().unwrap();
            prop_assert_eq!(Grh::parse_ipv4(&bytes), Some(header));
            prop_assert_eq!(Grh::parse(&bytes), None);
            // What was there before may look like an IPv6 header.
            let mut stale = bytes;
            stale[0] = 0x60;
            prop_assert_eq!(Grh::of_receive(&stale), Some(header));
            bytes[wrong] ^= 1;
            prop_assert_eq!(Grh::parse_ipv4(&bytes), None);
            prop_assert_eq!(Grh { sgid: Gid([1; 16]), ..header }.emit_ipv4(), None);
        }

        #[test]
        fn any_bytes_are_a_header_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Grh::parse(&bytes);
            let _ = Grh::parse_ipv4(&bytes);
        }
    }

    #[test]
    fn the_fields_lie_where_the_specification_puts_them() {
        let header = Grh {
            traffic_class: 0xab,
            flow_label: 0x12345,
            payload_len: 0x0102,
            next_header: Grh::NEXT_HEADER,
            hop_limit: 7,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
        };
        let bytes = header.emit();
        assert_eq!(bytes[..8], [0x6a, 0xb1, 0x23, 0x45, 1, 2, 0x1b, 7]);
        assert_eq!((bytes[8], bytes[23], bytes[24], bytes[39]), (1, 1, 2, 2));
    }
}

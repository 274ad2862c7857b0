//! The record of a packet: 40 bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4, 4..8 | source and destination address, as in the packet |
//! | 8..10, 10..12 | source and destination port, 0 where the protocol has none |
//! | 12 | the protocol that IP carries: 6 for TCP, 17 for UDP |
//! | 13 | version of IP, 4 or 6 |
//! | 14..16 | 0 |
//! | 16..24 | time of the packet, in ns since some beginning |
//! | 24..32 | sequence: which record it is, from 0 |
//! | 32..40 | size of the packet on the wire, in bytes |
//!
//! Numbers are little-endian. An IPv6 address does not fit: a hash of 32 bits stands for it. Two flows of IPv6 can
//! therefore be taken for each other, with a probability of 2^-64.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;

use crate::apps::word;
use crate::random::mix;

/// Bytes of a record.
pub const RECORD: usize = 40;
/// Bytes of a flow's key in it.
const KEY: usize = 16;

/// Identifies a flow: addresses, ports, protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey([u8; KEY]);

impl FlowKey {
    /// A flow of IPv4. Each pair is of source and destination.
    pub fn v4(addresses: [[u8; 4]; 2], ports: [u16; 2], protocol: u8) -> Self {
        Self::new(addresses, ports, protocol, 4)
    }

    /// A flow of IPv6.
    pub fn v6(addresses: [[u8; 16]; 2], ports: [u16; 2], protocol: u8) -> Self {
        let short = |address| {
            let whole = u128::from_le_bytes(address);
            let mixed = mix(mix(whole as u64) ^ (whole >> 64) as u64);
            (mixed as u32).to_le_bytes()
        };
        Self::new(addresses.map(short), ports, protocol, 6)
    }

    fn new(addresses: [[u8; 4]; 2], ports: [u16; 2], protocol: u8, version: u8) -> Self {
        let mut key = [0; KEY];
        key[0..4].copy_from_slice(&addresses[0]);
        key[4..8].copy_from_slice(&addresses[1]);
        key[8..10].copy_from_slice(&ports[0].to_le_bytes());
        key[10..12].copy_from_slice(&ports[1].to_le_bytes());
        key[12..14].copy_from_slice(&[protocol, version]);
        Self(key)
    }

    /// The key as two words.
    #[inline]
    pub(super) fn words(&self) -> [u64; 2] {
        [0, 8].map(|at| word(&self.0, at))
    }
}

impl Hash for FlowKey {
    /// As one word: for hashers that mix it.
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let [low, high] = self.words();
        to.write_u64(low.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ high);
    }
}

impl fmt::Display for FlowKey {
    /// For example `10.0.0.1:53 > 10.0.0.2:4000 UDP`; of an IPv6 address its hash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.0;
        for (at, gap) in [(0, ""), (1, " > ")] {
            let address = [0, 1, 2, 3].map(|byte| key[4 * at + byte]);
            let port = u16::from_le_bytes([key[8 + 2 * at], key[9 + 2 * at]]);
            match key[13] {
                6 => write!(f, "{gap}[{:08x}]", u32::from_be_bytes(address))?,
                _ => write!(f, "{gap}{}", Ipv4Addr::from(address))?,
            }
            if port != 0 {
                write!(f, ":{port}")?;
            }
        }
        match key[12] {
            6 => f.write_str(" TCP"),
            17 => f.write_str(" UDP"),
            other => write!(f, " protocol {other}"),
        }
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its flow.
    pub key: FlowKey,
    /// When it was seen, in ns.
    pub time_ns: u64,
    /// Which record it is, from 0.
    pub sequence: u64,
    /// Its size on the wire, in bytes.
    pub size_bytes: u64,
}

impl Record {
    /// Writes it to a message of [`RECORD`] bytes.
    #[inline(always)]
    pub fn emit(&self, to: &mut [u8]) {
        to[..KEY].copy_from_slice(&self.key.0);
        to[16..24].copy_from_slice(&self.time_ns.to_le_bytes());
        to[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        to[32..40].copy_from_slice(&self.size_bytes.to_le_bytes());
    }

    /// Parses a message; `None` if it is malformed.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD] = bytes.try_into().ok()?;
        let mut key = [0; KEY];
        key.copy_from_slice(&bytes[..KEY]);
        if !matches!(key[13..], [4 | 6, 0, 0]) {
            return None;
        }
        Some(Self {
            key: FlowKey(key),
            time_ns: word(bytes, 16),
            sequence: word(bytes, 24),
            size_bytes: word(bytes, 32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lies_as_the_table_says() {
        let key = FlowKey::v4([[10, 0, 0, 1], [10, 0, 0, 2]], [53, 0x1234], 17);
        let mut bytes = [0xff; RECORD];
        Record {
            key,
            time_ns: 1,
            sequence: 2,
            size_bytes: 0x0305,
        }
        .emit(&mut bytes);
        let words = [1u64, 2, 0x0305].map(u64::to_le_bytes).concat();
        let laid = [10, 0, 0, 1, 10, 0, 0, 2, 53, 0, 0x34, 0x12, 17, 4, 0, 0];
        assert_eq!(bytes[..], [&laid[..], &words].concat());
        assert_eq!(key.to_string(), "10.0.0.1:53 > 10.0.0.2:4660 UDP");
    }

    #[test]
    fn addresses_of_ipv6_keep_apart() {
        let key = |from: u128, to: u128| {
            let addresses = [from, to].map(|last| (0x20 << 120 | last).to_be_bytes());
            FlowKey::v6(addresses, [1, 2], 6)
        };
        assert_eq!(key(1, 2), key(1, 2));
        assert_ne!(key(1, 2), key(2, 1));
        assert_ne!(key(1, 2), key(1, 3));
        let text = key(1, 2).to_string();
        assert!(text.ends_with("]:2 TCP"), "{text}");
    }

    proptest! {
        #[test]
        fn what_was_parsed_is_what_was_emitted(bytes in proptest::collection::vec(any::<u8>(), 38..42), right in any::<bool>()) {
            let mut bytes = bytes;
            if right {
                bytes.resize(RECORD, 0);
                bytes[13..16].copy_from_slice(&[6, 0, 0]);
            }
            let parsed = Record::parse(&bytes);
            prop_assert!(parsed.is_some() || !right);
            if let Some(record) = parsed {
                let mut again = [0; RECORD];
                record.emit(&mut again);
                prop_assert_eq!(&again[..], &bytes[..]);
            }
        }
    }
}

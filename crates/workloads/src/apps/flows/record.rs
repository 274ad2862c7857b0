//! The record of a packet: 40 bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4, 4..8 | source and destination address, as in the packet |
//! | 8..10, 10..12 | source and destination port, 0 where the protocol has none |
//! | 12 | the protocol that IP carries: 6 for TCP, 17 for UDP |
//! | 13 | version of IP, 4 or 6 |
//! | 14..16 | 0 |
//! | 16..24 | time of the packet, in ns since an arbitrary origin |
//! | 24..32 | sequence number of the record, from 0 |
//! | 32..40 | size of the packet on the wire, in bytes |
//!
//! Numbers are little-endian. An IPv6 address does not fit, so its 32-bit hash takes its place. Two given
//! IPv6 flows with the same ports therefore get the same key with a probability of 2^-64.

use std::hash::{Hash, Hasher};

use crate::apps::{put, words};
use crate::random::mix;

/// Length of a record, in bytes.
pub const RECORD: usize = 40;

/// Identifies a flow by addresses, ports and protocol, laid out like the beginning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey(pub(super) [u64; 2]);

impl FlowKey {
    /// Makes the key of an IPv4 flow. Each pair is source and destination.
    pub fn v4(addresses: [[u8; 4]; 2], ports: [u16; 2], protocol: u8) -> Self {
        Self::new(addresses, ports, protocol, 4)
    }

    /// Makes the key of an IPv6 flow. Each pair is source and destination.
    pub fn v6(addresses: [[u8; 16]; 2], ports: [u16; 2], protocol: u8) -> Self {
        let short = |address| {
            let whole = u128::from_le_bytes(address);
            let mixed = mix(mix(whole as u64) ^ (whole >> 64) as u64);
            (mixed as u32).to_le_bytes()
        };
        Self::new(addresses.map(short), ports, protocol, 6)
    }

    fn new(addresses: [[u8; 4]; 2], ports: [u16; 2], protocol: u8, version: u8) -> Self {
        let addresses = addresses.map(|address| u64::from(u32::from_le_bytes(address)));
        let ports = ports.map(u64::from);
        let rest = u64::from(u16::from_le_bytes([protocol, version]));
        let words = [
            addresses[0] | addresses[1] << 32,
            ports[0] | ports[1] << 16 | rest << 32,
        ];
        Self(words)
    }
}

impl Hash for FlowKey {
    /// Hashes the key as one word. The hasher is expected to mix the word.
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let [low, high] = self.0;
        to.write_u64(low.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ high);
    }
}

/// Record of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The packet's flow.
    pub key: FlowKey,
    /// Time of the packet, in ns.
    pub time_ns: u64,
    /// Sequence number of the record, from 0.
    pub sequence: u64,
    /// Size of the packet on the wire, in bytes.
    pub size_bytes: u64,
}

impl Record {
    /// Writes the record into a message of [`RECORD`] bytes.
    #[inline(always)]
    pub fn emit(&self, to: &mut [u8]) {
        let ([low, high], size_bytes) = (self.key.0, self.size_bytes);
        put(&[low, high, self.time_ns, self.sequence, size_bytes], to);
    }

    /// Parses a message; `None` if it is malformed.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let [low, high, time_ns, sequence, size_bytes] = words(bytes)?;
        let is_flow = matches!(high >> 40, 4 | 6);
        is_flow.then_some(Self {
            key: FlowKey([low, high]),
            time_ns,
            sequence,
            size_bytes,
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
    }

    proptest! {
        #[test]
        fn a_parsed_record_is_emitted_unchanged(bytes in proptest::collection::vec(any::<u8>(), 38..42), right in any::<bool>()) {
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

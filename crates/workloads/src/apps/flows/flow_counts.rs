//! Exact counts of packets and bytes of every flow.

use std::collections::hash_map::Entry;

use super::{FlowKey, Replay};
use crate::apps::{put, words};
use crate::error::{Result, WorkloadError};
use crate::random::{MixedMap, mix};

/// Maximum number of flows that are counted.
const FLOWS_MAX: usize = 1 << 24;

/// Counts of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Number of packets.
    pub packets: u64,
    /// Sum of the packets' sizes on the wire, in bytes.
    pub bytes: u64,
}

/// Counts of all flows.
#[derive(Clone, Debug)]
pub struct FlowCounts {
    flows: MixedMap<FlowKey, FlowCount>,
    limit: usize,
}

impl Default for FlowCounts {
    fn default() -> Self {
        Self::new(FLOWS_MAX)
    }
}

impl FlowCounts {
    /// Makes counts of up to `limit` flows.
    pub fn new(limit: usize) -> Self {
        let flows = MixedMap::default();
        Self { flows, limit }
    }

    /// Counts a packet.
    #[inline]
    pub fn count(&mut self, key: FlowKey, size_bytes: u64) -> Result<()> {
        let (known, limit) = (self.flows.len(), self.limit);
        let count = match self.flows.entry(key) {
            Entry::Occupied(count) => count.into_mut(),
            Entry::Vacant(_) if known == limit => {
                return Err(WorkloadError(format!("more than {limit} flows")));
            }
            Entry::Vacant(place) => place.insert(FlowCount::default()),
        };
        count.packets += 1;
        count.bytes = count.bytes.wrapping_add(size_bytes);
        Ok(())
    }

    /// Returns the digest, to be compared with [`Digest::of`] the same records.
    pub fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        for (key, count) in &self.flows {
            digest.add(*key, *count);
        }
        digest
    }
}

/// A digest of all counts. It can be computed from the records, one by one, or from the counts, flow by flow.
/// The two digests differ unless they agree on every flow, except with a probability of 2^-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest([u64; 4]);

/// Length of a digest in a message, in bytes.
pub const DIGEST: usize = 32;

impl Digest {
    /// Computes the digest of the next `records` records.
    pub fn of(source: &mut Replay, records: u64) -> Self {
        let mut digest = Self::default();
        for _ in 0..records {
            let record = source.record();
            let (packets, bytes) = (1, record.size_bytes);
            digest.add(record.key, FlowCount { packets, bytes });
        }
        digest
    }

    fn add(&mut self, key: FlowKey, FlowCount { packets, bytes }: FlowCount) {
        let [low, high] = key.0;
        let flow = mix(mix(low) ^ high);
        let parts = [
            packets,
            bytes,
            flow.wrapping_mul(packets),
            mix(flow).wrapping_mul(bytes),
        ];
        for (sum, part) in self.0.iter_mut().zip(parts) {
            *sum = sum.wrapping_add(part);
        }
    }

    /// Returns the digest's bytes, for the other side.
    pub fn emit(&self) -> [u8; DIGEST] {
        let mut bytes = [0; DIGEST];
        put(&self.0, &mut bytes);
        bytes
    }

    /// Parses the other side's bytes; `None` if there are too many or too few.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        words(bytes).map(Self)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::apps::flows::Capture;

    /// Returns the counts of every flow.
    pub(crate) fn counts(meter: &FlowCounts) -> BTreeMap<FlowKey, FlowCount> {
        meter.flows.clone().into_iter().collect()
    }

    /// Counts the next records in the obvious way, as a reference.
    pub(crate) fn truth(source: &mut Replay, records: u64) -> BTreeMap<FlowKey, FlowCount> {
        let mut counts: BTreeMap<FlowKey, FlowCount> = BTreeMap::new();
        for _ in 0..records {
            let record = source.record();
            let count = counts.entry(record.key).or_default();
            count.packets += 1;
            count.bytes += record.size_bytes;
        }
        counts
    }

    fn key(number: u32) -> FlowKey {
        FlowKey::v4([number.to_le_bytes(), [0; 4]], [0; 2], 6)
    }

    #[test]
    fn counts_are_the_truth() {
        let traffic = Replay::new(Capture::synthetic(1, 20_000, 200_000));
        let records = 200_000;
        let (mut meter, mut source) = (FlowCounts::default(), traffic.clone());
        for _ in 0..records {
            let record = source.record();
            meter.count(record.key, record.size_bytes).expect("counts");
        }
        assert_eq!(counts(&meter), truth(&mut traffic.clone(), records));
        let digest = Digest::of(&mut traffic.clone(), records);
        assert_eq!((meter.digest(), digest.0[0]), (digest, records));
        assert_eq!(Digest::parse(&digest.emit()), Some(digest));
    }

    #[test]
    fn whatever_is_counted_wrong_shows_in_the_digest() {
        let mut right = FlowCounts::default();
        for number in 0..100 {
            right.count(key(number), 60).expect("counts");
            right.count(key(number), 1500).expect("counts");
        }
        // A packet counted for another flow; bytes counted for another flow; one flow more.
        for changes in [
            [(1, 1, 1560), (2, 3, 1560)],
            [(1, 2, 1559), (2, 2, 1561)],
            [(1, 2, 1560), (100, 1, 60)],
        ] {
            let mut wrong = right.clone();
            for (number, packets, bytes) in changes {
                wrong
                    .flows
                    .insert(key(number), FlowCount { packets, bytes });
            }
            assert_ne!(wrong.digest(), right.digest());
        }
    }

    #[test]
    fn a_flow_too_many_is_refused_and_known_ones_go_on() {
        let mut meter = FlowCounts::new(2);
        for number in [1, 2, 1] {
            meter.count(key(number), 1).expect("counts");
        }
        let before = counts(&meter);
        let refused = meter.count(key(3), 1).expect_err("full");
        assert_eq!(refused.to_string(), "more than 2 flows");
        assert_eq!(counts(&meter), before);
        meter.count(key(2), 1).expect("counts");
    }
}

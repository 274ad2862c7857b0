//! Packets and bytes of every flow, exactly.
//!
//! A hash table with open addressing. A record costs one look at a line of memory and two additions
//! there, so that what is measured is the channel that it came on and not the table. The hash is not
//! keyed: whoever chooses the addresses of packets can choose ones that collide, which makes this slow
//! and never wrong.

use std::collections::BTreeMap;

use super::{FlowKey, Record, Source};
use crate::apps::AppError;
use crate::random::mix;

/// Flows that are counted at most.
pub const FLOWS_MAX: usize = 1 << 24;
/// Places of an empty table.
const PLACES: usize = 1 << 10;

/// What was counted of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their sizes on the wire.
    pub bytes: u64,
}

impl Count {
    #[inline]
    fn add(&mut self, size_bytes: u64) {
        self.packets += 1;
        self.bytes = self.bytes.wrapping_add(size_bytes);
    }
}

/// Half a cache line. A place without packets is free.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Place {
    key: [u64; 2],
    count: Count,
}

/// Counts of all flows.
#[derive(Clone, Debug)]
pub struct Meter {
    places: Vec<Place>,
    flows: usize,
    limit: usize,
    total: Count,
}

impl Default for Meter {
    fn default() -> Self {
        Self::new(FLOWS_MAX)
    }
}

impl Meter {
    /// Of up to `limit` flows.
    pub fn new(limit: usize) -> Self {
        Self {
            places: vec![Place::default(); PLACES],
            flows: 0,
            limit,
            total: Count::default(),
        }
    }

    /// Counts a packet.
    #[inline]
    pub fn count(&mut self, key: FlowKey, size_bytes: u64) -> Result<(), AppError> {
        let key = key.words();
        let at = find(&self.places, key);
        if self.places[at].count.packets == 0 {
            return self.count_first(key, size_bytes);
        }
        self.places[at].count.add(size_bytes);
        self.total.add(size_bytes);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn count_first(&mut self, key: [u64; 2], size_bytes: u64) -> Result<(), AppError> {
        if self.flows == self.limit {
            return Err(AppError::Flows { limit: self.limit });
        }
        // At most half full, so that the next free place is near.
        if 2 * (self.flows + 1) > self.places.len() {
            let mut wider = vec![Place::default(); 2 * self.places.len()];
            for place in self.places.iter().filter(|place| place.count.packets > 0) {
                let at = find(&wider, place.key);
                wider[at] = *place;
            }
            self.places = wider;
        }
        let at = find(&self.places, key);
        self.places[at].key = key;
        self.places[at].count.add(size_bytes);
        self.flows += 1;
        self.total.add(size_bytes);
        Ok(())
    }

    /// How many flows there were.
    pub fn flows(&self) -> usize {
        self.flows
    }

    /// Packets and bytes of all flows.
    pub fn total(&self) -> Count {
        self.total
    }

    /// What was counted of this flow.
    pub fn get(&self, key: FlowKey) -> Count {
        self.places[find(&self.places, key.words())].count
    }

    /// Every flow, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (FlowKey, Count)> {
        let places = self.places.iter().filter(|place| place.count.packets > 0);
        places.map(|place| (FlowKey::from_words(place.key), place.count))
    }

    /// The `most` flows with the most bytes, those first.
    pub fn heaviest(&self, most: usize) -> Vec<(FlowKey, Count)> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_unstable_by_key(|(key, count)| (std::cmp::Reverse(count.bytes), *key));
        all.truncate(most);
        all
    }

    /// What the counts amount to, to be compared with [`Digest::of`] the same records.
    pub fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        for (key, count) in self.iter() {
            digest.add(key, count);
        }
        digest
    }

    /// Compares every flow with the counts that somebody else made; says what differs first.
    pub fn compare(&self, truth: &BTreeMap<FlowKey, Count>) -> Result<(), String> {
        if self.flows != truth.len() {
            return Err(format!("{} flows instead of {}", self.flows, truth.len()));
        }
        for (key, expected) in truth {
            let found = self.get(*key);
            if found != *expected {
                return Err(format!("{key}: {found:?} instead of {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Where `key` is, or the free place where it would be: there is always one.
#[inline(always)]
fn find(places: &[Place], key: [u64; 2]) -> usize {
    let mask = places.len() - 1;
    // Both halves of a product of 128 bits depend on all of the key, unless a factor is 0.
    let product =
        u128::from(key[0] ^ 0x9E37_79B9_7F4A_7C15) * u128::from(key[1] ^ 0xD1B5_4A32_D192_ED03);
    let hash = product as u64 ^ (product >> 64) as u64 ^ key[1];
    let mut at = hash as usize & mask;
    while places[at].count.packets != 0 && places[at].key != key {
        at = (at + 1) & mask;
    }
    at
}

/// The truth about these records, found the slow and obvious way.
pub fn truth(source: &mut impl Source, records: u64) -> BTreeMap<FlowKey, Count> {
    let mut counts: BTreeMap<FlowKey, Count> = BTreeMap::new();
    for _ in 0..records {
        let record = source.record();
        counts.entry(record.key).or_default().add(record.size_bytes);
    }
    counts
}

/// What counts of flows amount to. Whoever has the records makes one record by record, whoever counted
/// them flow by flow, and unless both agree on every flow, the two differ (but for a chance of 2^-64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// Packets of all flows.
    pub packets: u64,
    /// Bytes of all flows.
    pub bytes: u64,
    by_packets: u64,
    by_bytes: u64,
}

/// Bytes of a digest on its way.
pub const DIGEST: usize = 32;

impl Digest {
    /// Of the next so many records.
    pub fn of(source: &mut impl Source, records: u64) -> Self {
        let mut digest = Self::default();
        for _ in 0..records {
            let Record {
                key, size_bytes, ..
            } = source.record();
            let bytes = size_bytes;
            digest.add(key, Count { packets: 1, bytes });
        }
        digest
    }

    fn add(&mut self, key: FlowKey, count: Count) {
        let [low, high] = key.words();
        let flow = mix(mix(low) ^ high);
        self.packets = self.packets.wrapping_add(count.packets);
        self.bytes = self.bytes.wrapping_add(count.bytes);
        self.by_packets = self
            .by_packets
            .wrapping_add(flow.wrapping_mul(count.packets));
        self.by_bytes = self
            .by_bytes
            .wrapping_add(mix(flow).wrapping_mul(count.bytes));
    }

    /// As bytes, for the other side.
    pub fn emit(&self) -> [u8; DIGEST] {
        let words = [self.packets, self.bytes, self.by_packets, self.by_bytes];
        let mut bytes = [0; DIGEST];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From the other side's bytes; `None` if there are not so many as there should be.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DIGEST] = bytes.try_into().ok()?;
        let [packets, bytes, by_packets, by_bytes] = [0, 8, 16, 24].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        });
        Some(Self {
            packets,
            bytes,
            by_packets,
            by_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::flows::{Mix, Synthetic};

    fn key(number: u32) -> FlowKey {
        FlowKey::v4([number.to_le_bytes(), [0; 4]], [0; 2], 6)
    }

    #[test]
    fn counts_are_the_truth_however_much_the_table_grows() {
        let traffic = Synthetic::new(&Mix {
            flows: 20_000,
            ..Mix::default()
        });
        let records = 200_000;
        let mut meter = Meter::default();
        let mut source = traffic.clone();
        for _ in 0..records {
            let record = source.record();
            meter.count(record.key, record.size_bytes).expect("counts");
        }
        let truth = truth(&mut traffic.clone(), records);
        assert!(truth.len() > 10 * PLACES, "{}", truth.len());
        assert_eq!(meter.compare(&truth), Ok(()));
        assert_eq!(meter.total().packets, records);
        let digest = Digest::of(&mut traffic.clone(), records);
        assert_eq!(meter.digest(), digest);
        assert_eq!(Digest::parse(&digest.emit()), Some(digest));
        let heaviest = meter.heaviest(3);
        let mut bytes: Vec<_> = truth.values().map(|count| count.bytes).collect();
        bytes.sort_unstable();
        let found: Vec<_> = heaviest.iter().map(|(_, count)| count.bytes).collect();
        assert_eq!(
            found,
            bytes.iter().rev().take(3).copied().collect::<Vec<_>>()
        );
    }

    #[test]
    fn flows_between_two_addresses_are_kept_apart() {
        // Those of an ordinary pair, and of the one for which a factor of the hash is 0.
        for addresses in [
            [[1; 4], [2; 4]],
            [[0x15, 0x7c, 0x4a, 0x7f], [0xb9, 0x79, 0x37, 0x9e]],
        ] {
            let keys = (0..5000).flat_map(|port| {
                [6, 17].map(|protocol| FlowKey::v4(addresses, [port, 443], protocol))
            });
            let mut meter = Meter::default();
            for (size_bytes, key) in (0..).zip(keys.clone()) {
                meter.count(key, size_bytes).expect("counts");
                meter.count(key, 1).expect("counts");
            }
            assert_eq!(meter.flows(), 10_000);
            for (size_bytes, key) in (0..).zip(keys) {
                let (packets, bytes) = (2, size_bytes + 1);
                assert_eq!(meter.get(key), Count { packets, bytes });
            }
        }
    }

    #[test]
    fn whatever_is_counted_wrong_shows() {
        let mut right = Meter::default();
        let mut truth = BTreeMap::new();
        for number in 0..100 {
            right.count(key(number), 60).expect("counts");
            right.count(key(number), 1500).expect("counts");
            let (packets, bytes) = (2, 1560);
            truth.insert(key(number), Count { packets, bytes });
        }
        assert_eq!(right.compare(&truth), Ok(()));
        // A packet counted for another flow; two sizes changed; one flow more.
        let mut wrongs = [right.clone(), right.clone(), right.clone()];
        let place = |number| find(&right.places, key(number).words());
        wrongs[0].places[place(1)].count.packets -= 1;
        wrongs[0].places[place(2)].count.packets += 1;
        wrongs[1].places[place(1)].count.bytes -= 1;
        wrongs[1].places[place(2)].count.bytes += 1;
        wrongs[2].count(key(100), 60).expect("counts");
        for wrong in &wrongs {
            assert!(wrong.compare(&truth).is_err());
            assert_ne!(wrong.digest(), right.digest());
        }
    }

    #[test]
    fn a_flow_too_many_is_refused_and_those_that_are_known_go_on() {
        let mut meter = Meter::new(2);
        for number in [1, 2, 1] {
            meter.count(key(number), 1).expect("counts");
        }
        let refused = meter.count(key(3), 1).expect_err("full");
        assert_eq!(refused.to_string(), "more than 2 flows");
        meter.count(key(2), 1).expect("counts");
        assert_eq!((meter.flows(), meter.total().packets), (2, 4));
        assert_eq!(meter.get(key(3)), Count::default());
    }
}

//! A key-value store (RB² section V-C, case 2) under YCSB's workload C: reads only, of keys whose popularity
//! follows Zipf's law. The popularity is YCSB's "scrambled Zipfian": a rank is drawn by Zipf's law and hashed
//! into the records. Popular records therefore lie all over the table, and their popularity does not depend
//! on its size.
//!
//! | request, bytes | what | | response, bytes | what |
//! |---|---|---|---|---|
//! | 0..8 | number of the request | | 0..8 | number of the request |
//! | 8..16 | key | | 8..16 | status: 0 found, 1 no such key |
//! | | | | 16..128 | the value, zeros if there is none |
//!
//! Numbers are little-endian. The lengths are those of the paper.
//!
//! YCSB: B. Cooper, A. Silberstein, E. Tam, R. Ramakrishnan, R. Sears, "Benchmarking cloud serving systems
//! with YCSB", SoCC 2010.

use headworks::ring::{MessageSender, SendError};
use rand_distr::{Distribution, Zipf};

use super::request_response::{self, Requests, Service};
use super::{in_order, malformed, put, words, wrong};
use crate::error::Result;
use crate::random::{MixedMap, Random};

/// Default number of records in the table: 120 MB of values and 34 MB of index.
pub const RECORDS: u64 = 1_000_000;
/// Length of a request, in bytes.
pub const REQUEST: usize = 16;
/// Length of a response, in bytes.
pub const RESPONSE: usize = 16 + VALUE;
/// Length of a value, in bytes.
const VALUE: usize = 112;
/// Maximum number of messages handled in one step, by default.
const BATCH: usize = 32;
/// Maximum number of keys drawn in advance, a power of two. Longer runs start again from the first key.
const DRAWN: u64 = 1 << 20;
/// Seed of the draws.
const SEED: u64 = 1;
/// YCSB's number of ranks, and its exponent.
const LAW: (f64, f64) = (1e10, 0.99);

const FOUND: u64 = 0;
const NO_SUCH_KEY: u64 = 1;

/// Requests keys, with up to a window of requests outstanding.
pub type Client = request_response::Client<KeyRequests>;
/// Answers requests for the keys of a [`Store`].
pub type Server = request_response::Server<Store>;

/// A value.
pub type Value = [u8; VALUE];

/// Returns the key of record `record`: hashed like YCSB's keys, so that neighbouring records have distant
/// keys.
#[inline]
pub fn key_of(record: u64) -> u64 {
    scramble(record)
}

/// Returns the FNV-1a hash of the number's bytes.
fn scramble(number: u64) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let bytes = number.to_le_bytes().into_iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

/// Draws records without end from `records` records (at least 1).
pub(super) fn drawn(records: u64) -> impl Iterator<Item = u64> {
    let law = Zipf::new(LAW.0, LAW.1).expect("ranks and an exponent");
    let ranks = law.sample_iter(Random::new(SEED).into_generator());
    // The most popular rank is 1.
    ranks.map(move |rank| scramble(rank as u64 - 1) % records.max(1))
}

/// Returns the value of a key. A client that knows the key can check the value.
#[inline]
pub fn value_of(key: u64) -> Value {
    let mut value = [0; VALUE];
    for (at, to) in (0..).zip(value.chunks_exact_mut(8)) {
        let word = (key ^ at << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        to.copy_from_slice(&(word.rotate_left(29) ^ key).to_le_bytes());
    }
    value
}

/// A table of records. The values lie one behind the other, and an index maps keys to their positions.
#[derive(Clone, Debug)]
pub struct Store {
    index: MixedMap<u64, u32>,
    values: Vec<Value>,
}

impl Store {
    /// Makes a store of the records 0 up to `records`, which is at most 2^32.
    pub fn of(records: u64) -> Self {
        let records = records.min(1 << 32);
        let keys = || (0..records).map(key_of);
        Self {
            index: keys().zip(0..).collect(),
            values: keys().map(value_of).collect(),
        }
    }

    /// Returns the value of a key; `None` if there is no such key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&Value> {
        self.values.get(*self.index.get(&key)? as usize)
    }
}

/// Writes a response into a message of [`RESPONSE`] bytes.
#[inline]
pub(super) fn respond(number: u64, value: Option<&Value>, to: &mut [u8]) {
    let (head, rest) = to.split_at_mut(16);
    let (status, value) = match value {
        Some(value) => (FOUND, value),
        None => (NO_SUCH_KEY, &[0; VALUE]),
    };
    put(&[number, status], head);
    rest.copy_from_slice(value);
}

impl Service for Store {
    /// The request's number and its key.
    type Request = [u64; 2];

    const BATCH: usize = BATCH;
    const PROMPT: bool = false;

    #[inline]
    fn parse(&self, message: &[u8]) -> Result<[u64; 2]> {
        words(message).ok_or_else(|| malformed("request for a key", message))
    }

    #[inline]
    fn answer(&self, to: [u64; 2], out: &mut impl MessageSender) -> Result<(), SendError> {
        let [number, key] = to;
        out.try_send_with(RESPONSE, |place| respond(number, self.get(key), place))
    }
}

/// The keys that a client requests. Their number is a power of two.
#[derive(Clone, Debug)]
pub struct KeyRequests(Vec<u64>);

impl KeyRequests {
    #[inline]
    fn key(&self, number: u64) -> u64 {
        self.0[number as usize & (self.0.len() - 1)]
    }
}

impl Requests for KeyRequests {
    const BATCH: usize = BATCH;
    const ALTERNATE: bool = false;

    #[inline]
    fn ask(&self, number: u64, out: &mut impl MessageSender) -> Result<(), SendError> {
        let key = self.key(number);
        out.try_send_with(REQUEST, |place| put(&[number, key], place))
    }

    #[inline]
    fn check(&self, number: u64, response: &[u8]) -> Result<()> {
        let none = || malformed("response with a value", response);
        let whole: &[u8; RESPONSE] = response.try_into().map_err(|_| none())?;
        let (head, value) = whole.split_at(16);
        let [found, status] = words(head).ok_or_else(none)?;
        in_order("response", found, number)?;
        match status {
            FOUND if *value == value_of(self.key(number)) => Ok(()),
            FOUND => Err(wrong(number, "another key's value")),
            NO_SUCH_KEY => Err(wrong(number, "no such key")),
            _ => Err(none()),
        }
    }
}

impl Client {
    /// Makes a client that sends `requests` requests for keys of `records` records (at least 1), with
    /// `window` (at least 1) of them outstanding. The keys are drawn here.
    pub fn new(records: u64, requests: u64, window: usize) -> Self {
        let draws = requests.clamp(1, DRAWN).next_power_of_two();
        let keys = drawn(records).map(key_of).take(draws as usize);
        Self::over(KeyRequests(keys.collect()), requests, window)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_lie_as_the_table_says() {
        let mut request = [0xff; REQUEST];
        put(&[0x0102, 3], &mut request);
        assert_eq!(request, [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let mut response = [0xff; RESPONSE];
        for (value, status, fill) in [(None, 1, 0), (Some(&[7; VALUE]), 0, 7)] {
            respond(0x0102, value, &mut response);
            assert_eq!(response[..9], [2, 1, 0, 0, 0, 0, 0, 0, status]);
            assert_eq!(response[9..16], [0; 7]);
            assert_eq!(response[16..], [fill; VALUE]);
        }
    }

    #[test]
    fn records_are_as_popular_as_ycsb_has_it() {
        // FNV-1a of eight zero bytes.
        assert_eq!(scramble(0), 0xa8c7_f832_281a_39c5);
        let draws = 400_000;
        let records = 1 << 40;
        let known: Vec<_> = (0..100).map(|rank| scramble(rank) % records).collect();
        let mut seen = [0; 100];
        for record in drawn(records).take(draws) {
            if let Some(rank) = known.iter().position(|known| *known == record) {
                seen[rank] += 1;
            }
        }
        // The sum of the weights of all ranks, from YCSB.
        let share = |count: u32| f64::from(count) / draws as f64 * 26.469_028_201_783_02;
        let weight = |rank: u32| f64::from(rank).powf(-LAW.1);
        let first = (1..=100).map(weight).sum();
        for (found, expected) in [
            (seen[0], 1.0),
            (seen[1], weight(2)),
            (seen.iter().sum(), first),
        ] {
            let ratio = share(found) / expected;
            assert!((0.95..1.05).contains(&ratio), "{ratio}");
        }
        let again = drawn(7).zip(drawn(7)).take(10_000);
        let mut counts = [0; 7];
        for (record, same) in again {
            assert_eq!(record, same);
            counts[record as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
        assert_eq!(drawn(0).next(), Some(0));
    }

    #[test]
    fn every_record_is_found_and_nothing_else() {
        let store = Store::of(10_000);
        for record in 0..10_000 {
            let key = key_of(record);
            let value = store.get(key).expect("a record");
            assert_eq!(*value, value_of(key));
            assert_ne!(*value, value_of(key_of(record + 1)));
        }
        for record in 10_000..20_000 {
            assert_eq!(store.get(key_of(record)), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..140),
            known in any::<bool>(), exact in any::<bool>(),
        ) {
            if exact {
                bytes.resize(RESPONSE, 0);
            }
            let (store, keys) = (Store::of(1), KeyRequests(vec![key_of(0)]));
            if known && bytes.len() > 16 {
                let rest = bytes.split_off(16);
                bytes.fill(0);
                bytes[8] = rest[0] % 3;
                bytes.extend(rest);
            }
            let is_right = bytes.len() == RESPONSE
                && bytes[..16] == [0; 16]
                && bytes[16..] == value_of(key_of(0));
            prop_assert_eq!(keys.check(0, &bytes).is_ok(), is_right);
            prop_assert_eq!(store.parse(&bytes).is_ok(), bytes.len() == REQUEST);
            let mut whole = [0; RESPONSE];
            respond(0, store.get(key_of(0)), &mut whole);
            prop_assert!(keys.check(0, &whole).is_ok());
        }
    }
}

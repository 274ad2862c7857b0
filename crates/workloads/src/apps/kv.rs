//! A key-value store (RB² section V-C, case 2) under YCSB's workload C: reads only, of keys whose popularity follows
//! Zipf's law.
//!
//! | request, bytes | what | | response, bytes | what |
//! |---|---|---|---|---|
//! | 0..8 | number of the request | | 0..8 | number of the request |
//! | 8..16 | key | | 8..16 | status: 0 found, 1 no such key |
//! | | | | 16..128 | the value, zeros if there is none |
//!
//! Numbers are little-endian. The lengths are those of the paper.
//!
//! YCSB: B. Cooper, A. Silberstein, E. Tam, R. Ramakrishnan, R. Sears, "Benchmarking cloud serving systems with
//! YCSB", SoCC 2010.

use headworks::ring::{MessageSender, SendError};

use super::exchange::{self, Requests, Service};
use super::{AppError, in_order, word};
use crate::random::MixedMap;

mod zipf;

pub use zipf::Zipf;
use zipf::scramble;

/// Records of the table by default: 120 MB of values and 34 MB of index.
pub const RECORDS: u64 = 1_000_000;
/// Bytes of a request.
pub const REQUEST: usize = 16;
/// Bytes of a response.
pub const RESPONSE: usize = 16 + VALUE;
/// Bytes of a value.
const VALUE: usize = 112;
/// Messages handled in one step at most, by default.
const BATCH: usize = 32;
/// Keys drawn beforehand at most, a power of two. Longer runs ask for them again from the first one on.
const DRAWN: u64 = 1 << 20;

const FOUND: u64 = 0;
const NO_SUCH_KEY: u64 = 1;

/// Asks for keys, with up to a window of requests on their way.
pub type Client = exchange::Client<Keys>;
/// Answers requests for the keys of a [`Store`].
pub type Server = exchange::Server<Store>;

/// A value.
pub type Value = [u8; VALUE];

/// The key of record `record`: hashed, as YCSB's keys are, so that neighbours are none.
#[inline]
pub fn key_of(record: u64) -> u64 {
    scramble(record)
}

/// The value of a key: whoever knows the key can tell whether it is right.
#[inline]
pub fn value_of(key: u64) -> Value {
    let mut value = [0; VALUE];
    for (at, to) in (0..).zip(value.chunks_exact_mut(8)) {
        let word = (key ^ at << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        to.copy_from_slice(&(word.rotate_left(29) ^ key).to_le_bytes());
    }
    value
}

/// A table of records. The values lie one behind the other, and an index says where.
#[derive(Clone, Debug)]
pub struct Store {
    index: MixedMap<u64, u32>,
    values: Vec<Value>,
}

impl Store {
    /// With the records 0 up to `records`, which is at most 2^32.
    pub fn of(records: u64) -> Self {
        let records = records.min(1 << 32);
        let keys = || (0..records).map(key_of);
        Self {
            index: keys().zip(0..).collect(),
            values: keys().map(value_of).collect(),
        }
    }

    /// The value of a key, if there is one.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&Value> {
        self.values.get(*self.index.get(&key)? as usize)
    }
}

/// A request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of the request, from 0.
    pub number: u64,
    /// The key.
    pub key: u64,
}

impl Request {
    /// Writes it to a message of [`REQUEST`] bytes.
    #[inline]
    pub fn emit(&self, to: &mut [u8]) {
        to[..8].copy_from_slice(&self.number.to_le_bytes());
        to[8..].copy_from_slice(&self.key.to_le_bytes());
    }

    /// Parses a message; `None` if it is malformed.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        Some(Self {
            number: word(bytes, 0),
            key: word(bytes, 8),
        })
    }
}

/// A response, in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// Number of the request.
    pub number: u64,
    /// The value, if there is such a key.
    pub value: Option<&'a Value>,
}

impl<'a> Response<'a> {
    /// Writes it to a message of [`RESPONSE`] bytes.
    #[inline]
    pub fn emit(&self, to: &mut [u8]) {
        let (status, value) = match self.value {
            Some(value) => (FOUND, value),
            None => (NO_SUCH_KEY, &[0; VALUE]),
        };
        to[..8].copy_from_slice(&self.number.to_le_bytes());
        to[8..16].copy_from_slice(&status.to_le_bytes());
        to[16..].copy_from_slice(value);
    }

    /// Parses a message; `None` if it is malformed.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let bytes: &[u8; RESPONSE] = bytes.try_into().ok()?;
        let value = match word(bytes, 8) {
            FOUND => Some(bytes[16..].try_into().ok()?),
            NO_SUCH_KEY => None,
            _ => return None,
        };
        Some(Self {
            number: word(bytes, 0),
            value,
        })
    }
}

impl Service for Store {
    type Request = Request;

    const BATCH: usize = BATCH;
    const PROMPT: bool = false;

    #[inline]
    fn parse(&self, message: &[u8]) -> Result<Request, AppError> {
        let malformed = || AppError::malformed("request for a key", message);
        Request::parse(message).ok_or_else(malformed)
    }

    #[inline]
    fn answer(&self, to: Request, out: &mut impl MessageSender) -> Result<(), SendError> {
        let response = |place: &mut [u8]| {
            let (number, value) = (to.number, self.get(to.key));
            Response { number, value }.emit(place);
        };
        out.try_send_with(RESPONSE, response)
    }
}

/// The keys that a client asks for, a power of two of them.
#[derive(Clone, Debug)]
pub struct Keys(Vec<u64>);

impl Keys {
    #[inline]
    fn key(&self, number: u64) -> u64 {
        self.0[number as usize & (self.0.len() - 1)]
    }
}

impl Requests for Keys {
    const BATCH: usize = BATCH;
    const ALTERNATE: bool = false;

    #[inline]
    fn ask(&self, number: u64, out: &mut impl MessageSender) -> Result<(), SendError> {
        let key = self.key(number);
        out.try_send_with(REQUEST, |place| Request { number, key }.emit(place))
    }

    #[inline]
    fn check(&self, number: u64, response: &[u8]) -> Result<(), AppError> {
        let malformed = || AppError::malformed("response with a value", response);
        let response = Response::parse(response).ok_or_else(malformed)?;
        in_order("response", response.number, number)?;
        let what = match response.value {
            Some(value) if *value == value_of(self.key(number)) => return Ok(()),
            Some(_) => "another key's value",
            None => "no such key",
        };
        Err(AppError::Answer { number, what })
    }
}

impl Client {
    /// Sends `requests` requests for keys that are drawn here, `window` (at least 1) of them at a time.
    pub fn new(mut zipf: Zipf, requests: u64, window: usize) -> Self {
        let draws = requests.clamp(1, DRAWN).next_power_of_two();
        let keys = Keys((0..draws).map(|_| key_of(zipf.record())).collect());
        Self::over(keys, requests, window)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_lie_as_the_table_says() {
        let (number, key) = (0x0102, 3);
        let mut request = [0xff; REQUEST];
        Request { number, key }.emit(&mut request);
        assert_eq!(request, [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let mut response = [0xff; RESPONSE];
        for (value, status, fill) in [(None, 1, 0), (Some(&[7; VALUE]), 0, 7)] {
            Response { number, value }.emit(&mut response);
            assert_eq!(response[..9], [2, 1, 0, 0, 0, 0, 0, 0, status]);
            assert_eq!(response[9..16], [0; 7]);
            assert_eq!(response[16..], [fill; VALUE]);
        }
        // A status that does not exist.
        response[8] = 2;
        assert_eq!(Response::parse(&response), None);
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
            bytes in proptest::collection::vec(any::<u8>(), 0..140), known in any::<bool>(), exact in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if exact {
                bytes.resize(RESPONSE, 0);
            }
            if known && bytes.len() > 16 {
                bytes[9..16].fill(0);
                bytes[8] %= 3;
            }
            if let Some(response) = Response::parse(&bytes) {
                let mut again = [0; RESPONSE];
                response.emit(&mut again);
                prop_assert_eq!(Response::parse(&again), Some(response));
            }
            prop_assert_eq!(Request::parse(&bytes).is_some(), bytes.len() == REQUEST);
        }
    }
}

//! Request and response.
//!
//! | request, bytes | what | | response, bytes | what |
//! |---|---|---|---|---|
//! | 0..8 | number of the request | | 0..8 | number of the request |
//! | 8..16 | key | | 8..16 | status: 0 found, 1 no such key |
//! | | | | 16..128 | the value, zeros if there is none |
//!
//! Numbers are little-endian.

use super::store::{VALUE, Value};

/// Bytes of a request.
pub const REQUEST: usize = 16;
/// Bytes of a response.
pub const RESPONSE: usize = 16 + VALUE;

const FOUND: u64 = 0;
const NO_SUCH_KEY: u64 = 1;

/// A key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which request of its client it is, from 0.
    pub number: u64,
    /// What is asked for.
    pub key: u64,
}

impl Request {
    /// Writes it where it is sent from.
    #[inline]
    pub fn emit(&self, to: &mut [u8; REQUEST]) {
        to[..8].copy_from_slice(&self.number.to_le_bytes());
        to[8..].copy_from_slice(&self.key.to_le_bytes());
    }

    /// Reads one; `None` if it is none.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        Some(Self {
            number: word(bytes, 0),
            key: word(bytes, 8),
        })
    }
}

/// A response, where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// Which request it answers.
    pub number: u64,
    /// The value, if there is such a key.
    pub value: Option<&'a Value>,
}

impl<'a> Response<'a> {
    /// Writes it where it is sent from.
    #[inline]
    pub fn emit(&self, to: &mut [u8; RESPONSE]) {
        let (status, value) = match self.value {
            Some(value) => (FOUND, value),
            None => (NO_SUCH_KEY, &[0; VALUE]),
        };
        to[..8].copy_from_slice(&self.number.to_le_bytes());
        to[8..16].copy_from_slice(&status.to_le_bytes());
        to[16..].copy_from_slice(value);
    }

    /// Reads one; `None` if it is none.
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

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lie_as_the_table_says() {
        let mut request = [0xff; REQUEST];
        let (number, key) = (0x0102, 3);
        Request { number, key }.emit(&mut request);
        assert_eq!(request, [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let mut response = [0xff; RESPONSE];
        let value = None;
        Response { number, value }.emit(&mut response);
        let mut expected = [0; RESPONSE];
        (expected[0], expected[1], expected[8]) = (2, 1, 1);
        assert_eq!(response, expected);
        let value = Some(&[7; VALUE]);
        Response { number, value }.emit(&mut response);
        expected[8] = 0;
        expected[16..].fill(7);
        assert_eq!(response, expected);
        // A status that nobody has.
        response[8] = 2;
        assert_eq!(Response::parse(&response), None);
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

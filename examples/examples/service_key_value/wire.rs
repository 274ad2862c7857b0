//! The protocol. A request is an operation, a key, and, to set a value, the value. An answer says whether the
//! key had a value, and contains the value that was asked for. A value's length precedes it.

/// Longest value in bytes.
pub(crate) const VALUE_MAX: usize = 1 << 20;
/// Bytes of a request, without the value.
pub(crate) const REQUEST: usize = 13;
/// Bytes of an answer, without the value.
pub(crate) const ANSWER: usize = 5;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Set,
    Delete,
}

/// A request, without the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) key: u64,
    /// Bytes of the value that follows.
    pub(crate) len: usize,
}

impl Request {
    pub(crate) fn encode(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[0] = match self.operation {
            Operation::Get => b'g',
            Operation::Set => b's',
            Operation::Delete => b'd',
        };
        bytes[1..9].copy_from_slice(&self.key.to_le_bytes());
        bytes[9..].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes
    }

    /// Parses a request; `None` if it is invalid.
    pub(crate) fn decode(bytes: &[u8; REQUEST]) -> Option<Self> {
        let operation = match bytes[0] {
            b'g' => Operation::Get,
            b's' => Operation::Set,
            b'd' => Operation::Delete,
            _ => return None,
        };
        let key = u64::from_le_bytes(*bytes[1..].first_chunk()?);
        let len = u32::from_le_bytes(*bytes[9..].first_chunk()?) as usize;
        let has_value = operation == Operation::Set;
        let is_legal = len <= VALUE_MAX && (has_value || len == 0);
        is_legal.then_some(Self {
            operation,
            key,
            len,
        })
    }
}

/// Encodes an answer without the value: whether the key had a value, and the length of the value that
/// follows.
pub(crate) fn answer(was_there: bool, len: usize) -> [u8; ANSWER] {
    let mut bytes = [0; ANSWER];
    bytes[0] = was_there.into();
    bytes[1..].copy_from_slice(&(len as u32).to_le_bytes());
    bytes
}

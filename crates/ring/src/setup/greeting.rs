//! The greeting of one end of a ring to the other, and its encoding.

use headworks_verbs::RemoteAddr;

use super::{SetupError, VERSION};
use crate::config::{Framing, Mode};

/// Role of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndRole {
    Sender = 1,
    Receiver = 2,
}

/// Message of one end to the other during bring-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Greeting {
    pub(crate) role: EndRole,
    pub(crate) mode: Mode,
    /// Whether the end's device lets cursors be polled in memory.
    pub(crate) can_poll: bool,
    /// Whether the end's device lets a message's last word be polled.
    pub(crate) in_order: bool,
    pub(crate) slots: u64,
    pub(crate) slot_size: u64,
    pub(crate) framing: Framing,
    /// Address of the end's memory: one cache line, then its array.
    pub(crate) memory: RemoteAddr,
    /// Address that the other end's cursor is written to: in front of the array, or in a group's tail array.
    pub(crate) cursor: RemoteAddr,
    /// Value that the word holds for a cursor of 0.
    pub(crate) cursor_start: u64,
}

const GREETING: usize = 2 + 4 + 1 + 8 + 8 + 8 + 8 + 4 + 8 + 4 + 8;

impl Greeting {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let (framing, len) = match self.framing {
            Framing::Fixed(len) => (0, len),
            Framing::Variable(len) => (1, len),
        };
        let mut bytes = Vec::with_capacity(GREETING);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[
            self.role as u8,
            self.mode as u8,
            self.can_poll.into(),
            self.in_order.into(),
            framing,
        ]);
        for word in [self.slots, self.slot_size, len as u64, self.memory.addr] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.memory.rkey.to_le_bytes());
        bytes.extend_from_slice(&self.cursor.addr.to_le_bytes());
        bytes.extend_from_slice(&self.cursor.rkey.to_le_bytes());
        bytes.extend_from_slice(&self.cursor_start.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, SetupError> {
        if let Some(&[a, b]) = bytes.get(..2)
            && u16::from_le_bytes([a, b]) != VERSION
        {
            return Err(SetupError::Version {
                found: u16::from_le_bytes([a, b]),
            });
        }
        let bytes: &[u8; GREETING] = bytes
            .try_into()
            .map_err(|_| SetupError::Greeting("its length"))?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let len = usize::try_from(word(23)).map_err(|_| SetupError::Greeting("framing"))?;
        let role = match bytes[2] {
            1 => EndRole::Sender,
            2 => EndRole::Receiver,
            _ => return Err(SetupError::Greeting("role")),
        };
        let mode = match bytes[3] {
            0 => Mode::Poll,
            1 => Mode::Latency,
            2 => Mode::Notify,
            _ => return Err(SetupError::Greeting("mode")),
        };
        let framing = match bytes[6] {
            0 => Framing::Fixed(len),
            1 => Framing::Variable(len),
            _ => return Err(SetupError::Greeting("framing")),
        };
        let remote = |at: usize| RemoteAddr {
            addr: word(at),
            // The rkey is the four bytes after the address.
            rkey: (word(at + 4) >> 32) as u32,
        };
        Ok(Self {
            role,
            mode,
            can_poll: bytes[4] != 0,
            in_order: bytes[5] != 0,
            slots: word(7),
            slot_size: word(15),
            framing,
            memory: remote(31),
            cursor: remote(43),
            cursor_start: word(55),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_greeting_is_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Greeting::parse(&bytes);
            let mut versioned = bytes;
            if versioned.len() >= 2 {
                versioned[..2].copy_from_slice(&VERSION.to_le_bytes());
            }
            versioned.resize(GREETING, 0);
            if let Ok(greeting) = Greeting::parse(&versioned) {
                let again = Greeting::parse(&greeting.emit()).unwrap();
                prop_assert_eq!(again, greeting);
            }
        }
    }
}

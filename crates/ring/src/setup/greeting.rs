//! The greeting of one end of a ring to the other, and its encoding.

use headworks_verbs::RemoteAddr;
use headworks_wire::{Decoder, Encoder};

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

impl Greeting {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let (framing, len) = match self.framing {
            Framing::Fixed(len) => (0, len),
            Framing::Variable(len) => (1, len),
        };
        let to = Encoder::new().u16(VERSION);
        let to = to.u8(self.role as u8).u8(self.mode as u8);
        let to = to.u8(self.can_poll.into()).u8(self.in_order.into());
        let to = to.u8(framing).u64(self.slots).u64(self.slot_size);
        let to = to.u64(len as u64).field(&self.memory);
        to.field(&self.cursor).u64(self.cursor_start).finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, SetupError> {
        let wrong = SetupError::Greeting;
        let mut of = Decoder::new(bytes);
        match of.u16()? {
            VERSION => {}
            found => return Err(SetupError::Version { found }),
        }
        let role = match of.u8()? {
            1 => EndRole::Sender,
            2 => EndRole::Receiver,
            _ => return Err(wrong("role")),
        };
        let mode = match of.u8()? {
            0 => Mode::Poll,
            1 => Mode::Latency,
            2 => Mode::Notify,
            _ => return Err(wrong("mode")),
        };
        let (can_poll, in_order) = (of.u8()? != 0, of.u8()? != 0);
        let framing = match of.u8()? {
            0 => Framing::Fixed,
            1 => Framing::Variable,
            _ => return Err(wrong("framing")),
        };
        let (slots, slot_size) = (of.u64()?, of.u64()?);
        let len = usize::try_from(of.u64()?).map_err(|_| wrong("framing"))?;
        let greeting = Self {
            role,
            mode,
            can_poll,
            in_order,
            slots,
            slot_size,
            framing: framing(len),
            memory: of.field()?,
            cursor: of.field()?,
            cursor_start: of.u64()?,
        };
        of.end()?;
        Ok(greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Greeting {
        let at = |addr, rkey| RemoteAddr { addr, rkey };
        Greeting {
            role: EndRole::Receiver,
            mode: Mode::Latency,
            can_poll: true,
            in_order: false,
            slots: 2,
            slot_size: 3,
            framing: Framing::Variable(4),
            memory: at(5, 6),
            cursor: at(7, 8),
            cursor_start: 9,
        }
    }

    #[test]
    fn its_bytes_are_these() {
        let mut expected = VERSION.to_le_bytes().to_vec();
        expected.extend([2, 1, 1, 0, 1]);
        for word in [2u64, 3, 4, 5] {
            expected.extend(word.to_le_bytes());
        }
        expected.extend(6u32.to_le_bytes());
        expected.extend(7u64.to_le_bytes());
        expected.extend(8u32.to_le_bytes());
        expected.extend(9u64.to_le_bytes());
        assert_eq!(sample().emit(), expected);
        assert_eq!(Greeting::parse(&expected).unwrap(), sample());
    }

    proptest! {
        #[test]
        fn any_greeting_is_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Greeting::parse(&bytes);
            let mut versioned = bytes;
            if versioned.len() >= 2 {
                versioned[..2].copy_from_slice(&VERSION.to_le_bytes());
            }
            versioned.resize(sample().emit().len(), 0);
            if let Ok(greeting) = Greeting::parse(&versioned) {
                let again = Greeting::parse(&greeting.emit()).unwrap();
                prop_assert_eq!(again, greeting);
            }
        }
    }
}

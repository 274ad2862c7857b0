//! One-sided operations on memory that the application at the other end has exported. That application takes
//! no part in them.
//!
//! An operation is a record of the egress ring. The record names two words of the session's memory for the
//! outcome: a status, which is 0 until the operation is over, and for an atomic operation the previous value.

use std::sync::atomic::Ordering;

use headworks_shm::View;
use headworks_shm::view::WordRef;

use crate::error::ContractError;
use crate::slabs::{Extent, Slabs};

/// Bytes of an operation in its record.
pub const OPERATION_BYTES: u32 = 64;
/// Bytes of the two words for the outcome.
pub const RESULT_BYTES: u32 = 16;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Copies the peer's memory to local memory.
    Read = 1,
    /// Copies local memory to the peer's memory.
    Write = 2,
    /// Adds a number to an aligned word of the peer's memory, modulo 2⁶⁴.
    FetchAdd = 3,
    /// Replaces an aligned word of the peer's memory if it has the expected value.
    CompareSwap = 4,
}

impl Op {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::FetchAdd, Self::CompareSwap];

    /// The kind with number `code`.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == code)
    }

    /// Whether the operation is atomic, on one word.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// The right that the peer must have granted.
    pub fn needs(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
            Self::FetchAdd | Self::CompareSwap => Rights::ATOMIC,
        }
    }
}

bitflags::bitflags! {
    /// Rights of the peer on memory that is exported to it, as sent on the wire. Combine with `|`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Rights: u8 {
        /// No access.
        const NONE = 0;
        /// The right to read it.
        const READ = 1;
        /// The right to write it.
        const WRITE = 2;
        /// The right to perform atomic operations on its words.
        const ATOMIC = 4;
        /// Reading, writing and atomic operations.
        const ALL = 7;
    }
}

/// A one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Kind of the operation.
    pub op: Op,
    /// Number of the export, as the peer gave it.
    pub export_id: u32,
    /// Offset in the exported memory, in bytes.
    pub at: u64,
    /// Local memory for READ and WRITE; its length is the length of the copy.
    pub local: Extent,
    /// The number to add, or the new value of a compare-and-swap.
    pub operand: u64,
    /// The expected value of a compare-and-swap.
    pub compare: u64,
    /// Memory for the outcome: [`RESULT_BYTES`] bytes, aligned to 8.
    pub result: Extent,
}

impl Operation {
    pub(crate) fn words(&self) -> [u64; 8] {
        let shape = |extent: Extent| u64::from(extent.slab) << 32 | u64::from(extent.len);
        [
            u64::from(self.export_id) << 32 | self.op as u64,
            self.at,
            shape(self.local),
            self.local.offset,
            self.operand,
            self.compare,
            shape(self.result),
            self.result.offset,
        ]
    }

    /// Parses and checks an operation that an application wrote.
    pub(crate) fn parse(words: [u64; 8], slabs: &Slabs) -> Result<Self, ContractError> {
        let extent = |shape: u64, offset: u64| Extent {
            slab: (shape >> 32) as u32,
            len: shape as u32,
            offset,
        };
        let op = Op::from_code(words[0] as u8).ok_or(ContractError::RecordKind(words[0] as u8))?;
        let operation = Self {
            op,
            export_id: (words[0] >> 32) as u32,
            at: words[1],
            local: extent(words[2], words[3]),
            operand: words[4],
            compare: words[5],
            result: extent(words[6], words[7]),
        };
        if !op.is_atomic() {
            slabs.view(operation.local)?;
            if operation.local.len == 0 {
                return Err(ContractError::Extent(operation.local));
            }
        }
        Outcomes::at(slabs, operation.result)?;
        Ok(operation)
    }
}

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It was carried out.
    Done = 1,
    /// The peer has no such export, or has revoked it.
    NoExport = 2,
    /// It exceeds the exported memory, or a word is not aligned.
    OutOfBounds = 3,
    /// The peer has not granted the right.
    Denied = 4,
    /// The connection is gone; the operation may or may not have been carried out.
    Lost = 5,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Done,
        Self::NoExport,
        Self::OutOfBounds,
        Self::Denied,
        Self::Lost,
    ];

    /// The outcome with number `code`; [`Outcome::Lost`] for an unknown number.
    pub fn from_code(code: u8) -> Self {
        let known = Self::ALL.into_iter().find(|known| *known as u8 == code);
        known.unwrap_or(Self::Lost)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::NoExport => "the other end has exported no such memory",
            Self::OutOfBounds => "beyond the memory that was exported, or not aligned",
            Self::Denied => "the other end does not allow it",
            Self::Lost => "the connection is no more",
        })
    }
}

/// The two words for the outcome of an operation.
#[derive(Clone, Debug)]
pub struct Outcomes {
    status: WordRef,
    value: WordRef,
}

impl Outcomes {
    /// The words at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`]: no such memory, wrong length, or not aligned.
    pub fn at(slabs: &Slabs, extent: Extent) -> Result<Self, ContractError> {
        let view: View = slabs.view(extent)?;
        if extent.len != RESULT_BYTES {
            return Err(ContractError::Extent(extent));
        }
        let word = |at| view.word_ref(at).map_err(|_| ContractError::Extent(extent));
        Ok(Self {
            status: word(0)?,
            value: word(8)?,
        })
    }

    /// For the application, before it asks for the operation: marks it as not over.
    pub fn clear(&self) {
        self.status.store(0, Ordering::Relaxed);
    }

    /// For the application: the outcome and the previous value, or `None` while the operation is not over.
    pub fn get(&self) -> Option<(Outcome, u64)> {
        // Pairs with the store in `set`.
        match self.status.load(Ordering::Acquire) {
            0 => None,
            code => Some((
                Outcome::from_code(code as u8),
                self.value.load(Ordering::Relaxed),
            )),
        }
    }

    /// For the daemon: writes the outcome and the previous value.
    pub fn set(&self, outcome: Outcome, before: u64) {
        self.value.store(before, Ordering::Relaxed);
        self.status.store(outcome as u64, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::slabs;
    use proptest::prelude::*;

    proptest! {
        /// Any words that an application writes are either refused, or an operation on existing memory.
        #[test]
        fn any_words_are_an_operation_or_none(words in any::<[u64; 8]>(), small in any::<bool>()) {
            let slabs = slabs(&[4096]);
            let mut words = words;
            if small {
                words[0] = (words[0] % 6) | (words[0] >> 32 << 32);
                for at in [2, 6] {
                    words[at] %= 64;
                }
                for at in [3, 7] {
                    words[at] %= 5000;
                }
            }
            if let Ok(operation) = Operation::parse(words, &slabs) {
                let outcomes = Outcomes::at(&slabs, operation.result).unwrap();
                prop_assert!(operation.op.is_atomic() || slabs.view(operation.local).is_ok());
                outcomes.set(Outcome::Denied, 7);
                prop_assert_eq!(outcomes.get(), Some((Outcome::Denied, 7)));
                let again = Operation::parse(operation.words(), &slabs).unwrap();
                prop_assert_eq!(again, operation);
            }
        }
    }

    #[test]
    fn rights_cover_their_bits_and_operations() {
        let both = Rights::READ | Rights::ATOMIC;
        assert!(
            both.contains(Rights::READ)
                && both.contains(Rights::ATOMIC)
                && !both.contains(Rights::WRITE)
        );
        assert_eq!(Rights::from_bits_truncate(0xff), Rights::ALL);
        for op in Op::ALL {
            assert!(Rights::ALL.contains(op.needs()) && !Rights::NONE.contains(op.needs()));
            assert_eq!(Op::from_code(op as u8), Some(op));
        }
    }
}

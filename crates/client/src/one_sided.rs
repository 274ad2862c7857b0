//! One-sided operations: on memory that the application at the other end has exported, without its help.
//!
//! One is a record of the egress ring. What became of it stands in two words of the session's memory that the record
//! names: a status, which is 0 until it is done, and for an atomic what was there before.

use std::sync::atomic::Ordering;

use headworks_shm::View;
use headworks_shm::view::WordRef;

use crate::error::ContractError;
use crate::memory::{Extent, Slabs};

/// Bytes of an operation in its record.
pub const OPERATION_BYTES: u32 = 64;
/// Bytes of the words that say what became of it.
pub const RESULT_BYTES: u32 = 16;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// The other end's memory is copied here.
    Read = 1,
    /// And the other way round.
    Write = 2,
    /// A number is added to an aligned word there, modulo 2⁶⁴.
    FetchAdd = 3,
    /// An aligned word there is replaced, where it is as expected.
    CompareSwap = 4,
}

impl Op {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::FetchAdd, Self::CompareSwap];

    /// The operation numbered so.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == code)
    }

    /// Whether it is on one word.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// What the other end must have allowed.
    pub fn needs(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
            Self::FetchAdd | Self::CompareSwap => Rights::ATOMIC,
        }
    }
}

/// What the other end may do with memory that is exported to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rights(u8);

impl Rights {
    /// No access.
    pub const NONE: Self = Self(0);
    /// Read it.
    pub const READ: Self = Self(1);
    /// Write it.
    pub const WRITE: Self = Self(2);
    /// Add to its words, and swap them.
    pub const ATOMIC: Self = Self(4);
    /// Reading, writing and atomic operations.
    pub const ALL: Self = Self(7);

    /// These and those.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of those are among these.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// As they travel.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// As they travelled; what is none is left out.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What is done.
    pub op: Op,
    /// What the other end calls the memory.
    pub window: u32,
    /// From which byte of it on.
    pub at: u64,
    /// This end's memory, for READ and WRITE: as many bytes.
    pub local: Extent,
    /// What is added, or put there.
    pub operand: u64,
    /// What is expected there.
    pub compare: u64,
    /// Where it is said what became of it: [`RESULT_BYTES`], aligned to 8.
    pub result: Extent,
}

impl Operation {
    pub(crate) fn words(&self) -> [u64; 8] {
        let shape = |extent: Extent| u64::from(extent.slab) << 32 | u64::from(extent.len);
        [
            u64::from(self.window) << 32 | self.op as u64,
            self.at,
            shape(self.local),
            self.local.offset,
            self.operand,
            self.compare,
            shape(self.result),
            self.result.offset,
        ]
    }

    /// What an application wrote.
    pub(crate) fn parse(words: [u64; 8], slabs: &Slabs) -> Result<Self, ContractError> {
        let extent = |shape: u64, offset: u64| Extent {
            slab: (shape >> 32) as u32,
            len: shape as u32,
            offset,
        };
        let op = Op::from_code(words[0] as u8).ok_or(ContractError::RecordKind(words[0] as u8))?;
        let operation = Self {
            op,
            window: (words[0] >> 32) as u32,
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

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It is done.
    Done = 1,
    /// The other end has exported no such memory, or not any more.
    NoWindow = 2,
    /// It reaches beyond that memory, or a word is not aligned.
    OutOfBounds = 3,
    /// The other end does not allow it.
    Denied = 4,
    /// The connection is no more; it may or may not have been done.
    Lost = 5,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Done,
        Self::NoWindow,
        Self::OutOfBounds,
        Self::Denied,
        Self::Lost,
    ];

    /// The outcome numbered so; [`Outcome::Lost`] for a number that is none.
    pub fn from_code(code: u8) -> Self {
        let known = Self::ALL.into_iter().find(|known| *known as u8 == code);
        known.unwrap_or(Self::Lost)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::NoWindow => "the other end has exported no such memory",
            Self::OutOfBounds => "beyond the memory that was exported, or not aligned",
            Self::Denied => "the other end does not allow it",
            Self::Lost => "the connection is no more",
        })
    }
}

/// The words where it is said.
#[derive(Clone, Debug)]
pub struct Outcomes {
    status: WordRef,
    value: WordRef,
}

impl Outcomes {
    /// Those at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
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

    /// For the application: before it is asked for.
    pub fn clear(&self) {
        self.status.store(0, Ordering::Relaxed);
    }

    /// For the application: what became of it, and what was there before.
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

    /// For the daemon: says it.
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
        /// Whatever an application writes is an operation on memory that is there, or refused.
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
    fn rights_are_what_they_are() {
        let both = Rights::READ.and(Rights::ATOMIC);
        assert!(both.has(Rights::READ) && both.has(Rights::ATOMIC) && !both.has(Rights::WRITE));
        assert_eq!(Rights::from_bits(0xff), Rights::ALL);
        for op in Op::ALL {
            assert!(Rights::ALL.has(op.needs()) && !Rights::NONE.has(op.needs()));
            assert_eq!(Op::from_code(op as u8), Some(op));
        }
    }
}

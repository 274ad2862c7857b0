//! Cuts an extent that has arrived into slices of 4 KiB, which are processed one by one and in any order, and tells
//! which units may be released (sections 3.2 and 4.2). Pure.
//!
//! A slice is the bytes of one unit. A slice that is processed soon after the one before it was released uses memory
//! that is still in the processor's cache, so the pool stays small however long the transfer is.
//!
//! Order of calls: [`next`](ExtentSlices::next) hands out a slice, [`processed`](ExtentSlices::processed) records that
//! it was processed, [`releasable`](ExtentSlices::releasable) returns units to pass to
//! [`Receiver::release`](crate::receiver::Receiver::release), until [`is_over`](ExtentSlices::is_over).

use std::ops::Range;

use crate::holdings::HeldExtent;
use crate::units::{UNIT, units_of};

/// Bytes of a transfer within one unit of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Number of the unit, counted within the extent.
    pub unit: u32,
    /// Offset of the first byte in the pool's memory.
    pub offset: u64,
    /// Position of the first byte in the transfer.
    pub at: u64,
    /// Bytes, 1 to [`UNIT`]. Only the last slice of an extent has fewer than [`UNIT`].
    pub len: u32,
}

/// Error of the slices of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// The extent does not have as many bytes, or there are none.
    #[error("{len} bytes do not lie in an extent of {extent} bytes: 1 to {extent} are allowed")]
    Length {
        /// Bytes that were to be cut.
        len: u32,
        /// Bytes of the extent.
        extent: u32,
    },
    /// The slice was not handed out, or it was processed before.
    #[error("the slice of unit {0} is not being processed")]
    NotBegun(u32),
}

/// The slices of an extent.
///
/// - Cutting: [`new`](Self::new), [`next`](Self::next), [`put_back`](Self::put_back).
/// - Finishing: [`processed`](Self::processed), [`releasable`](Self::releasable).
/// - Querying: [`held`](Self::held), [`is_over`](Self::is_over).
#[derive(Clone, Debug)]
pub struct ExtentSlices {
    held: HeldExtent,
    /// Position of the extent's first byte in the transfer.
    at: u64,
    /// Bytes of the extent that belong to the transfer.
    len: u32,
    /// Units whose slices were not handed out, as bits counted from the extent's first.
    waiting: u64,
    /// Units whose slices are being processed.
    begun: u64,
    /// Units that may be released and were not yet returned for that.
    free: u64,
}

impl ExtentSlices {
    /// Cuts the first `len` bytes of an extent. They begin at position `at` of their transfer. Units of the extent
    /// behind them may be released at once.
    ///
    /// # Errors
    ///
    /// [`SliceError::Length`].
    pub fn new(held: HeldExtent, at: u64, len: u32) -> Result<Self, SliceError> {
        let extent = held.extent.len();
        if len == 0 || len > extent {
            return Err(SliceError::Length { len, extent });
        }
        let waiting = bits(units_of(len.into()) as u32);
        Ok(Self {
            held,
            at,
            len,
            waiting,
            begun: 0,
            free: bits(held.extent.units) & !waiting,
        })
    }

    /// Hands out the next slice: the first one that was not handed out.
    #[allow(
        clippy::should_implement_trait,
        reason = "not an iterator: a slice that was put back comes again after `None`"
    )]
    pub fn next(&mut self) -> Option<Slice> {
        let slice = self.peek()?;
        self.waiting &= !(1 << slice.unit);
        self.begun |= 1 << slice.unit;
        Some(slice)
    }

    /// Returns the slice that [`next`](Self::next) hands out.
    pub fn peek(&self) -> Option<Slice> {
        if self.waiting == 0 {
            return None;
        }
        let unit = self.waiting.trailing_zeros();
        let from = unit * UNIT;
        Some(Slice {
            unit,
            offset: self.held.extent.offset() + u64::from(from),
            at: self.at + u64::from(from),
            len: (self.len - from).min(UNIT),
        })
    }

    /// Takes a slice back that was handed out and is not processed now: it is handed out again.
    ///
    /// # Errors
    ///
    /// [`SliceError::NotBegun`].
    pub fn put_back(&mut self, unit: u32) -> Result<(), SliceError> {
        self.waiting |= self.end(unit)?;
        Ok(())
    }

    /// Records that a slice was processed. Its unit becomes [`releasable`](Self::releasable).
    ///
    /// # Errors
    ///
    /// [`SliceError::NotBegun`].
    pub fn processed(&mut self, unit: u32) -> Result<(), SliceError> {
        self.free |= self.end(unit)?;
        Ok(())
    }

    /// Ends the processing of a slice, and returns the bit of its unit.
    fn end(&mut self, unit: u32) -> Result<u64, SliceError> {
        let bit = 1_u64.checked_shl(unit).unwrap_or(0) & self.begun;
        if bit == 0 {
            return Err(SliceError::NotBegun(unit));
        }
        self.begun &= !bit;
        Ok(bit)
    }

    /// Returns units that lie side by side and whose slices were processed, once: release them. Call it again for
    /// others.
    pub fn releasable(&mut self) -> Option<Range<u32>> {
        if self.free == 0 {
            return None;
        }
        let from = self.free.trailing_zeros();
        let units = (self.free >> from).trailing_ones();
        self.free &= !(bits(units) << from);
        Some(from..from + units)
    }

    /// The extent.
    pub fn held(&self) -> HeldExtent {
        self.held
    }

    /// Whether all slices were processed and all units returned for release.
    pub fn is_over(&self) -> bool {
        self.waiting | self.begun | self.free == 0
    }
}

/// The first `units` bits, 0 to 64.
fn bits(units: u32) -> u64 {
    match units {
        0 => 0,
        units => u64::MAX >> (u64::BITS - units),
    }
}

#[cfg(test)]
#[path = "slices/tests.rs"]
mod tests;

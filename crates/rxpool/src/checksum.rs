//! CRC32C of slices and transfers. The parts of a transfer are computed in parallel and in any order, and put together.
//!
//! A CRC without its first and last inversion is linear: the CRC of a transfer is the exclusive or of the CRCs of its
//! parts, each one moved by the number of bytes behind the part. [`PartChecksum::of`] moves it, so the thread that
//! processes a slice does all the work, and [`TransferChecksum::add`] takes a few instructions.
//!
//! The polynomial is that of iSCSI and of NVMe over Fabrics (Castagnoli). Processors have an instruction for it, which
//! the crate `crc32c` uses.

/// CRC32C of bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Checks bytes, such as those of a slice, against the CRC32C that their sender computed.
///
/// # Errors
///
/// [`ChecksumError::Mismatch`].
pub fn check(bytes: &[u8], expected: u32) -> Result<(), ChecksumError> {
    compare(expected, checksum(bytes))
}

fn compare(expected: u32, found: u32) -> Result<(), ChecksumError> {
    match expected == found {
        true => Ok(()),
        false => Err(ChecksumError::Mismatch { expected, found }),
    }
}

/// Error: bytes are not those that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChecksumError {
    /// The CRC32C is another one.
    #[error("the CRC32C is {found:#010x}, expected {expected:#010x}")]
    Mismatch {
        /// CRC32C that the sender stated.
        expected: u32,
        /// CRC32C of the bytes that arrived.
        found: u32,
    },
    /// A part does not lie in the transfer, or more bytes were added than the transfer has.
    #[error("{len} bytes at position {at} do not belong to a transfer of {transfer} bytes")]
    Range {
        /// Position of the part's first byte in the transfer.
        at: u64,
        /// Bytes of the part.
        len: u64,
        /// Bytes of the transfer.
        transfer: u64,
    },
    /// Some of the transfer's parts are missing.
    #[error("{added} of {transfer} bytes were added")]
    Incomplete {
        /// Bytes that were added.
        added: u64,
        /// Bytes of the transfer.
        transfer: u64,
    },
}

/// CRC32C of a part of a transfer, moved to its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartChecksum {
    at: u64,
    len: u64,
    transfer: u64,
    moved: u32,
}

impl PartChecksum {
    /// Computes the CRC32C of the bytes from position `at` of a transfer of `transfer` bytes on.
    ///
    /// # Errors
    ///
    /// [`ChecksumError::Range`].
    pub fn of(bytes: &[u8], at: u64, transfer: u64) -> Result<Self, ChecksumError> {
        let len = bytes.len() as u64;
        let behind = at
            .checked_add(len)
            .and_then(|end| transfer.checked_sub(end));
        let Some(behind) = behind else {
            return Err(ChecksumError::Range { at, len, transfer });
        };
        Ok(Self {
            at,
            len,
            transfer,
            moved: moved(checksum(bytes), behind),
        })
    }
}

/// CRC32C of a transfer, put together from its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferChecksum {
    transfer: u64,
    added: u64,
    value: u32,
}

impl TransferChecksum {
    /// A transfer of `transfer` bytes, of which no part was added.
    pub fn new(transfer: u64) -> Self {
        Self {
            transfer,
            added: 0,
            value: 0,
        }
    }

    /// Adds a part, in any order. The caller adds each byte once.
    ///
    /// # Errors
    ///
    /// [`ChecksumError::Range`]: it is a part of a transfer of another length, or more bytes were added than the
    /// transfer has. Nothing was added.
    pub fn add(&mut self, part: &PartChecksum) -> Result<(), ChecksumError> {
        let left = self.transfer - self.added;
        if part.transfer != self.transfer || part.len > left {
            return Err(ChecksumError::Range {
                at: part.at,
                len: part.len,
                transfer: self.transfer,
            });
        }
        self.added += part.len;
        self.value ^= part.moved;
        Ok(())
    }

    /// Returns the CRC32C.
    ///
    /// # Errors
    ///
    /// [`ChecksumError::Incomplete`].
    pub fn value(&self) -> Result<u32, ChecksumError> {
        let Self {
            transfer, added, ..
        } = *self;
        match added == transfer {
            true => Ok(self.value),
            false => Err(ChecksumError::Incomplete { added, transfer }),
        }
    }

    /// Checks the transfer against the CRC32C that its sender computed.
    ///
    /// # Errors
    ///
    /// [`ChecksumError::Incomplete`] or [`ChecksumError::Mismatch`].
    pub fn check(&self, expected: u32) -> Result<(), ChecksumError> {
        compare(expected, self.value()?)
    }
}

/// The polynomial. The coefficient of `x^31` is the lowest bit, and that of `x^0` the highest.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Multiplies two polynomials modulo [`POLYNOMIAL`].
const fn product(mut one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    while one != 0 {
        product ^= other & (one >> 31).wrapping_neg();
        one <<= 1;
        other = other >> 1 ^ (POLYNOMIAL & (other & 1).wrapping_neg());
    }
    product
}

/// `MOVES[digit][value]` moves a CRC by `value * 16^digit` bytes: it is `x` to the power of as many bits. There is one
/// table for each hexadecimal digit, so a position in a transfer of 16 MiB takes at most six products.
static MOVES: [[u32; 16]; 16] = {
    let mut moves = [[1 << 31; 16]; 16];
    // x^8, which moves by one byte.
    let mut step = 1 << 23;
    let mut digit = 0;
    while digit < 16 {
        let mut value = 1;
        while value < 16 {
            moves[digit][value] = product(moves[digit][value - 1], step);
            value += 1;
        }
        step = product(moves[digit][15], step);
        digit += 1;
    }
    moves
};

/// Returns the CRC of a part when `behind` bytes are behind it.
fn moved(mut crc: u32, mut behind: u64) -> u32 {
    for values in &MOVES {
        if behind == 0 {
            break;
        }
        let value = behind % 16;
        if value != 0 {
            crc = product(values[value as usize], crc);
        }
        behind /= 16;
    }
    crc
}

#[cfg(test)]
#[path = "checksum/tests.rs"]
mod tests;

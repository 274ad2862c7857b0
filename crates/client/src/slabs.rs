//! Memory that an application and its daemon share: slabs, and ranges of bytes in them.

use std::sync::Arc;

use headworks_shm::View;

use headworks_wire::{Decoder, Encoder, Field, Malformed, Output};

use crate::error::ContractError;

/// A range of bytes in a slab. It is valid at both ends, at whatever address each has mapped the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Extent {
    /// Number of the slab in the session.
    pub slab: u32,
    /// Length in bytes.
    pub len: u32,
    /// Offset in the slab, in bytes.
    pub offset: u64,
}

/// A range is not checked when it is decoded.
impl Field for Extent {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u32(self.slab).u32(self.len).u64(self.offset)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            slab: of.u32()?,
            len: of.u32()?,
            offset: of.u64()?,
        })
    }
}

impl Extent {
    /// The part of `len` bytes that begins at offset `from`.
    ///
    /// # Panics
    ///
    /// If the part does not lie within this range.
    #[must_use]
    pub fn part(self, from: u32, len: u32) -> Self {
        assert!(
            from <= self.len && len <= self.len - from,
            "exceeds the range"
        );
        Self {
            slab: self.slab,
            len,
            offset: self.offset + u64::from(from),
        }
    }
}

/// Slabs of a session, as one end has them mapped. A clone is cheap, and does not get slabs that are added
/// later.
#[derive(Clone, Debug, Default)]
pub struct Slabs(Arc<Vec<Option<View>>>);

impl Slabs {
    /// Maximum number of slabs of a session.
    pub const MAX: usize = 4096;

    /// Adds slab `number`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Slab`]: the number is in use, or is [`Slabs::MAX`] or more.
    pub fn add(&mut self, number: u32, view: View) -> Result<(), ContractError> {
        let at = number as usize;
        if at >= Self::MAX {
            return Err(ContractError::Slab(number));
        }
        let slabs = Arc::make_mut(&mut self.0);
        if slabs.len() <= at {
            slabs.resize(at + 1, None);
        }
        match &mut slabs[at] {
            Some(_) => Err(ContractError::Slab(number)),
            none => {
                *none = Some(view);
                Ok(())
            }
        }
    }

    /// The whole slab `number`, if it was added.
    pub fn slab(&self, number: u32) -> Option<&View> {
        self.0.get(number as usize)?.as_ref()
    }

    /// Memory of a range that the other end gave, and that may be invalid.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`]: it does not lie in a slab of the session.
    pub fn view(&self, extent: Extent) -> Result<View, ContractError> {
        let found = self.slab(extent.slab).and_then(|slab| {
            let offset = usize::try_from(extent.offset).ok()?;
            slab.part(offset, extent.len as usize).ok()
        });
        found.ok_or(ContractError::Extent(extent))
    }

    /// Copies a range once. The other end may change the memory at any time after that.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`]: the range does not lie in a slab of the session, or is longer than `into`.
    #[inline]
    pub fn read(&self, extent: Extent, into: &mut [u8]) -> Result<(), ContractError> {
        let read = self.slab(extent.slab).and_then(|slab| {
            let offset = usize::try_from(extent.offset).ok()?;
            slab.read(offset, into.get_mut(..extent.len as usize)?).ok()
        });
        read.ok_or(ContractError::Extent(extent))
    }
}

/// A ring of bytes: a range of memory whose length is a power of two. A position of a stream determines where
/// its byte lies. The ring does not know which bytes are valid.
#[derive(Clone, Debug)]
pub struct ByteRing {
    view: View,
    extent: Extent,
    from: u64,
}

impl ByteRing {
    /// Length of the shortest ring, in bytes.
    pub const LEN_MIN: u32 = 1 << 8;
    /// Length of the longest ring, in bytes.
    pub const LEN_MAX: u32 = 1 << 30;

    /// The ring at `extent` that holds a stream from position `from` on. That position lies at the beginning.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`]: there is no such memory, or its length or alignment does not suit a ring.
    pub fn new(slabs: &Slabs, extent: Extent, from: u64) -> Result<Self, ContractError> {
        let fits = extent.len.is_power_of_two()
            && (Self::LEN_MIN..=Self::LEN_MAX).contains(&extent.len)
            && extent.offset.is_multiple_of(8);
        if !fits {
            return Err(ContractError::Extent(extent));
        }
        let view = slabs.view(extent)?;
        Ok(Self { view, extent, from })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        u64::from(self.extent.len)
    }

    /// Always `false`: a ring has at least [`ByteRing::LEN_MIN`] bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The position from which the ring holds the stream.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// Memory of the ring.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Offset of position `at` in the ring, in bytes.
    #[inline]
    pub fn offset(&self, at: u64) -> usize {
        (at.wrapping_sub(self.from) & (self.len() - 1)) as usize
    }

    /// Prefetches the memory at position `at` and the following line.
    #[inline]
    pub fn expect(&self, at: u64) {
        let offset = self.offset(at);
        self.view.prefetch(offset);
        self.view.prefetch(offset + 64);
    }

    /// Number of bytes from position `at` on, at most `len`, that lie before the ring's end.
    #[inline]
    pub fn contiguous(&self, at: u64, len: usize) -> usize {
        len.min(self.extent.len as usize - self.offset(at))
    }

    /// Memory of `len` bytes from position `at` on, or of as many as lie before the ring's end.
    #[inline]
    pub fn stretch(&self, at: u64, len: usize) -> Extent {
        let len = self.contiguous(at, len) as u32;
        self.extent.part(self.offset(at) as u32, len)
    }

    /// Copies bytes in from position `at` on. There must be no more of them than the ring has.
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(self.contiguous(at, bytes.len()));
        let fits = self.view.write_in_any_order(self.offset(at), first);
        let fits = fits.and_then(|()| self.view.write_in_any_order(0, rest));
        debug_assert_eq!(fits, Ok(()), "longer than the ring");
    }

    /// Copies bytes out from position `at` on. There must be no more of them than the ring has.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) {
        let contiguous = self.contiguous(at, into.len());
        let (first, rest) = into.split_at_mut(contiguous);
        let fits = self.view.read_in_any_order(self.offset(at), first);
        let fits = fits.and_then(|()| self.view.read_in_any_order(0, rest));
        debug_assert_eq!(fits, Ok(()), "longer than the ring");
    }

    /// Reads the word at position `at` once. `at - from` must be a multiple of 8.
    #[inline]
    pub fn read_word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::slabs;

    #[test]
    fn a_stream_falls_into_a_ring_by_position() {
        let slabs = slabs(&[8192]);
        let extent = Extent {
            slab: 0,
            len: 512,
            offset: 1024,
        };
        let ring = ByteRing::new(&slabs, extent, 1000).unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        let at = 1000 + 512 * 7 + 400;
        ring.write(at, &bytes);
        let mut read = [0; 256];
        ring.read(at, &mut read);
        assert_eq!(&read[..], bytes);
        assert_eq!(ring.contiguous(at, 256), 112);
        let stretch = ring.stretch(at, 256);
        assert_eq!((stretch.offset, stretch.len), (1024 + 400, 112));
        let mut read = [0; 112];
        slabs.read(stretch, &mut read).unwrap();
        assert_eq!(read, bytes[..112]);
    }

    #[test]
    fn extents_outside_the_slabs_are_refused() {
        let mut slabs = slabs(&[4096]);
        let extent = |slab, offset, len| Extent { slab, len, offset };
        for wrong in [
            extent(1, 0, 512),
            extent(0, 4096, 1),
            extent(0, u64::MAX, 2),
            extent(0, 1, 4096),
        ] {
            assert_eq!(slabs.view(wrong).unwrap_err(), ContractError::Extent(wrong));
            assert!(slabs.read(wrong, &mut [0; 4096]).is_err());
        }
        assert!(slabs.read(extent(0, 0, 9), &mut [0; 8]).is_err());
        for wrong in [extent(0, 0, 500), extent(0, 0, 128), extent(0, 4, 512)] {
            assert!(ByteRing::new(&slabs, wrong, 0).is_err());
        }
        let again = slabs.slab(0).unwrap().clone();
        assert_eq!(slabs.add(0, again.clone()), Err(ContractError::Slab(0)));
        assert!(slabs.add(Slabs::MAX as u32, again).is_err());
    }
}

//! Faults of memory that a request names. They are the same for local memory, for the peer's memory, and
//! for the memory of a receive.

use headworks_verbs::Access;

use crate::call::{AddressFault, Id, Piece, Remote};
use crate::case_context::{CaseContext, QpFixture, piece};
use crate::world::HostId;

/// Fault of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryFault {
    /// The key differs in one bit from a valid key and was never handed out.
    Key,
    /// The range ends one past the end of the region.
    End,
    /// The range begins before the region.
    Start,
    /// The range wraps around the end of the address space.
    Wrap,
    /// The address is far from all memory.
    Far,
    /// The region is in another protection domain.
    Domain,
    /// The region is deregistered.
    Deregistered,
    /// The region allows only this access.
    Access(Access),
    /// The second of two pieces has a bad key.
    SecondPiece,
}

/// Memory with a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultyMemory {
    host: HostId,
    region: Id,
    offset: i64,
    len: u32,
    address_fault: AddressFault,
    /// Region of the first piece, which is good, if only the second has the fault.
    good: Option<Id>,
}

impl MemoryFault {
    /// Faults that any memory may have.
    pub(super) const COMMON: [Self; 7] = [
        Self::Key,
        Self::End,
        Self::Start,
        Self::Wrap,
        Self::Far,
        Self::Domain,
        Self::Deregistered,
    ];

    /// Returns the fault as a part of a case name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Key => "bad_key",
            Self::End => "end",
            Self::Start => "start",
            Self::Wrap => "wrap",
            Self::Far => "far",
            Self::Domain => "domain",
            Self::Deregistered => "deregistered",
            Self::Access(_) => "access",
            Self::SecondPiece => "second_piece",
        }
    }

    /// Returns the fault as text for the coverage table.
    pub(super) const fn wrong(self) -> &'static str {
        match self {
            Self::Key => "key that was never issued",
            Self::End => "range that ends past the end of the region",
            Self::Start => "range that begins before the region",
            Self::Wrap => "range that wraps around the end of the address space",
            Self::Far => "address far from any region",
            Self::Domain => "region of another protection domain",
            Self::Deregistered => "deregistered region",
            Self::Access(_) => "region that does not allow the access",
            Self::SecondPiece => "key that was never issued, in the second of two SGEs",
        }
    }

    /// Returns `len` bytes of a fixture's buffer with this fault. Their offset in the region is a multiple
    /// of `align` if `len` and the length of the buffer are.
    pub(super) fn apply(
        self,
        cx: &mut CaseContext<'_>,
        side: QpFixture,
        len: u32,
        align: i64,
    ) -> Result<FaultyMemory, String> {
        let mut bad = FaultyMemory {
            host: side.host.id,
            region: side.region,
            offset: 0,
            len,
            address_fault: AddressFault::default(),
            good: None,
        };
        match self {
            Self::Key | Self::SecondPiece => {
                let bit = cx.handles().unused_key_bit(side.host.id, side.region);
                bad.address_fault = AddressFault::key(bit.ok_or("a region that has no bad keys")?);
                bad.good = (self == Self::SecondPiece).then_some(side.region);
            }
            Self::End => bad.offset = side.len as i64 - i64::from(len) + align,
            Self::Start => bad.offset = -align,
            Self::Wrap => bad.address_fault = AddressFault::absolute(u64::MAX - 7),
            Self::Far => bad.address_fault = AddressFault::absolute(8),
            Self::Domain => {
                let pd = cx.new_pd(side.host)?;
                bad.region = cx.register(side, pd, Access::ALL)?;
            }
            Self::Deregistered => {
                bad.region = cx.register(side, side.pd, Access::ALL)?;
                cx.destroy(side.host, bad.region)?;
            }
            Self::Access(allowed) => bad.region = cx.register(side, side.pd, allowed)?,
        }
        Ok(bad)
    }
}

impl FaultyMemory {
    /// Returns the memory as local pieces.
    pub(super) fn pieces(self) -> Vec<Piece> {
        let bad =
            |offset, len| piece(self.region, offset, len).with_address_fault(self.address_fault);
        match self.good {
            None => vec![bad(self.offset, self.len)],
            Some(good) => {
                let half = self.len / 2;
                vec![piece(good, 0, half), bad(64, half)]
            }
        }
    }

    /// Returns the memory as remote memory.
    pub(super) const fn remote(self) -> Remote {
        Remote::Of {
            host: self.host,
            region: self.region,
            offset: self.offset,
            address_fault: self.address_fault,
        }
    }
}

//! Resolves slices: which bytes of which region, and with which fault.

use headworks_verbs::Access;

use super::ProgramRunner;
use crate::call::{AddressFault, Piece, Remote};
use crate::differential::observation::Span;
use crate::differential::program::{HALF, LEN, Slice, SliceFault};

/// Purpose for which a slice names memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceUse {
    /// Local source of a request.
    Source,
    /// Local destination of a READ, an atomic or a receive.
    Sink,
    /// Remote memory of a request.
    Peer,
    /// Remote word of an atomic.
    Word,
}

/// Memory that a slice names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ResolvedSlice {
    end: usize,
    memory: usize,
    offset: i64,
    pub(super) len: usize,
    address_fault: AddressFault,
    /// Number of its bytes before the fault.
    pub(super) good: usize,
    /// A request that names it locally fails.
    pub(super) is_bad: bool,
}

impl ResolvedSlice {
    /// Returns the part of it that exists.
    pub(super) fn span(&self) -> Span {
        let inside = |at: i64| at.clamp(0, LEN as i64) as usize;
        Span {
            end: self.end,
            memory: self.memory,
            from: inside(self.offset),
            to: inside(self.offset + self.len as i64),
        }
    }
}

impl ProgramRunner<'_, '_> {
    pub(super) fn target(
        &self,
        end: usize,
        slice: &Slice,
        len: usize,
        use_: SliceUse,
    ) -> ResolvedSlice {
        let all = &self.regions[end];
        let of = |is_live: bool| {
            let chosen = move |number: &usize| all[*number].is_live == is_live;
            (0..all.len()).filter(chosen).collect::<Vec<_>>()
        };
        let mut choice = of(slice.wrong != SliceFault::Gone);
        if choice.is_empty() {
            choice = (0..all.len()).collect();
        }
        let memory = choice[usize::from(slice.memory) % choice.len()];
        let region = &all[memory];
        let (low, high) = match use_ {
            SliceUse::Source => (0, HALF),
            SliceUse::Sink => (HALF, LEN),
            SliceUse::Peer | SliceUse::Word => (0, LEN),
        };
        let room = (high - low).saturating_sub(len) + 1;
        let mut at = (low + usize::from(slice.at) % room) as i64;
        if use_ == SliceUse::Word {
            at &= !7;
        }
        let offset = match slice.wrong {
            SliceFault::End => (LEN - len.min(LEN) + 1) as i64,
            SliceFault::Start => -1,
            SliceFault::Aside if use_ == SliceUse::Word => at ^ 4,
            _ => at,
        };
        let host = self.hosts[end].id;
        let stray = self.cx.handles().unused_key_bit(host, region.id);
        let address_fault = match slice.wrong {
            SliceFault::Key => AddressFault::key(stray.unwrap_or(1 << 31)),
            SliceFault::Far => AddressFault::absolute(0x10_0000),
            _ => AddressFault::default(),
        };
        let may = region.memory.access;
        let is_allowed = use_ != SliceUse::Sink || may.contains(Access::LOCAL_WRITE);
        let is_right = matches!(
            slice.wrong,
            SliceFault::Not | SliceFault::Aside | SliceFault::Gone
        );
        let is_end = slice.wrong == SliceFault::End && region.is_live;
        ResolvedSlice {
            end,
            memory,
            offset,
            len,
            address_fault,
            good: match is_end && is_allowed && !region.memory.foreign {
                true => len.saturating_sub(1),
                false => 0,
            },
            is_bad: !is_right || !region.is_live || region.memory.foreign || !is_allowed,
        }
    }

    /// Returns whether a peer may access the target in this way.
    pub(super) fn lets(&self, target: &ResolvedSlice, need: Access) -> bool {
        let allowed = self.regions[target.end][target.memory].memory.access;
        !target.is_bad && target.len <= LEN && allowed.contains(need)
    }

    pub(super) fn piece(&self, target: &ResolvedSlice) -> Piece {
        Piece {
            region: self.regions[target.end][target.memory].id,
            offset: target.offset,
            len: target.len as u32,
            address_fault: target.address_fault,
        }
    }

    pub(super) fn remote(&self, target: &ResolvedSlice) -> Remote {
        Remote::Of {
            host: self.hosts[target.end].id,
            region: self.regions[target.end][target.memory].id,
            offset: target.offset,
            address_fault: target.address_fault,
        }
    }
}

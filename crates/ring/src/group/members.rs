//! The ends of a group, each at an index, with ids that are not given twice.

use std::fmt;

use crate::error::RingError;

/// Names a ring of a group. One that was removed names none, also when its place is used again; and that of
/// a ring it receives from is never that of one it sends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RingId {
    pub(super) index: u32,
    generation: u32,
}

impl RingId {
    /// No ring: what is the whole group's is said of it where there is none.
    pub(super) const NONE: Self = Self {
        index: u32::MAX,
        generation: u32::MAX,
    };

    /// A small number that no two rings of the same kind have at the same time: to index tables by.
    /// A ring that comes later may have it again.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("no ring");
        }
        write!(f, "ring {}.{}", self.index, self.generation)
    }
}

/// A ring of a group is broken. It is told once, after everything was handed out that can be; but
/// that the group is the parent's, after a fork, every time, of whichever ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ring}: {error}")]
pub struct BrokenRing {
    /// Which. A group that is the parent's and has no ring names one that is none.
    pub ring: RingId,
    /// Error that broke the ring.
    pub error: RingError,
}

/// Ends by index.
pub(super) struct Members<T> {
    all: Vec<Option<Member<T>>>,
    /// Indices before this one are given by whoever puts.
    behind: u32,
    free: Vec<u32>,
    next_generation: u32,
    len: usize,
}

/// What the ends are. One kind's generations are even, the other's odd, so that they have no id in common.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndKind {
    Receivers = 0,
    Senders = 1,
}

struct Member<T> {
    id: RingId,
    /// That it is broken was told.
    told: bool,
    end: T,
}

impl<T> Members<T> {
    /// None; [`Members::push`] gives indices from `first` on.
    pub(super) fn behind(first: u32, kind: EndKind) -> Self {
        Self {
            all: Vec::new(),
            behind: first,
            free: Vec::new(),
            next_generation: kind as u32,
            len: 0,
        }
    }

    /// Takes in an end at `index`, where none is.
    pub(super) fn put(&mut self, index: u32, end: T) -> RingId {
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(2);
        let id = RingId { index, generation };
        let at = index as usize;
        if at >= self.all.len() {
            self.all.resize_with(at + 1, || None);
        }
        let told = false;
        self.all[at] = Some(Member { id, told, end });
        self.len += 1;
        id
    }

    /// Takes in an end at the first index that is free.
    pub(super) fn push(&mut self, end: T) -> RingId {
        let last = (self.all.len() as u32).max(self.behind);
        let index = self.free.pop().unwrap_or(last);
        self.put(index, end)
    }

    pub(super) fn take(&mut self, id: RingId) -> Option<T> {
        let place = self.all.get_mut(id.index as usize)?;
        let member = place.take_if(|member| member.id == id)?;
        self.len -= 1;
        if id.index >= self.behind {
            self.free.push(id.index);
        }
        Some(member.end)
    }

    /// The end at `index`.
    #[inline(always)]
    pub(super) fn at(&mut self, index: u32) -> Option<(RingId, &mut T)> {
        let member = self.all.get_mut(index as usize)?.as_mut()?;
        Some((member.id, &mut member.end))
    }

    pub(super) fn get(&mut self, id: RingId) -> Option<&mut T> {
        let (found, end) = self.at(id.index)?;
        (found == id).then_some(end)
    }

    /// That the one at `index` is broken is told now: its id, unless it was told before.
    pub(super) fn told(&mut self, index: u32) -> Option<RingId> {
        let member = self.all.get_mut(index as usize)?.as_mut()?;
        (!std::mem::replace(&mut member.told, true)).then_some(member.id)
    }

    pub(super) fn is_told(&self, index: u32) -> bool {
        let member = self.all.get(index as usize).and_then(Option::as_ref);
        member.is_some_and(|member| member.told)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Any of them.
    pub(super) fn any(&self) -> Option<RingId> {
        self.all.iter().flatten().map(|member| member.id).next()
    }

    /// Every index that is or was in use: there may be none at some of them.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..self.all.len() as u32
    }
}

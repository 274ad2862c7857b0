//! The ends of a group: each has an index, and an id that is not reused.

use std::fmt;

use crate::error::RingError;

/// Identifies a ring of a group. The id of a removed ring identifies no other ring, even when its index is
/// reused. A ring that the group receives from never has the id of one that it sends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RingId {
    pub(super) index: u32,
    generation: u32,
}

impl RingId {
    /// No ring: named in an error of the whole group, if the group has no ring.
    pub(super) const NONE: Self = Self {
        index: u32::MAX,
        generation: u32::MAX,
    };

    /// Small number that no two rings of the same kind have at the same time: an index for tables. A later
    /// ring may have it again.
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

/// A ring of a group is broken. The group reports it once, after it handed out every message that can be
/// handed out. In a forked child every call reports [`RingError::Forked`], of any ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ring}: {error}")]
pub struct BrokenRing {
    /// The broken ring. In a forked child any ring of the group, or no ring if it has none.
    pub ring: RingId,
    /// Error that broke the ring.
    pub error: RingError,
}

/// Table of ends by index.
pub(super) struct Members<T> {
    all: Vec<Option<Member<T>>>,
    /// Indices before this one are chosen by the caller of [`Members::put`].
    behind: u32,
    free: Vec<u32>,
    next_generation: u32,
    len: usize,
}

/// Kind of the ends. Receivers have even generations and senders odd ones, so that they share no id.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndKind {
    Receivers = 0,
    Senders = 1,
}

struct Member<T> {
    id: RingId,
    /// Whether it was reported that the end is broken.
    told: bool,
    end: T,
}

impl<T> Members<T> {
    /// An empty table. [`Members::push`] assigns indices from `first` on.
    pub(super) fn behind(first: u32, kind: EndKind) -> Self {
        Self {
            all: Vec::new(),
            behind: first,
            free: Vec::new(),
            next_generation: kind as u32,
            len: 0,
        }
    }

    /// Adds an end at `index`, which must be free.
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

    /// Adds an end at a free index.
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

    /// Marks the end at `index` as reported broken. Returns its id, unless it was reported before.
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

    /// Id of any end.
    pub(super) fn any(&self) -> Option<RingId> {
        self.all.iter().flatten().map(|member| member.id).next()
    }

    /// All indices that are or were in use. Some of them may have no end.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..self.all.len() as u32
    }
}

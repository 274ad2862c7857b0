//! Memory that one end of a connection exports to the other, and the messages still to be sent about it.
//! Pure.

use std::collections::{BTreeMap, VecDeque};

use headworks_client::{Extent, Operation, Outcome, Rights};

use crate::frame::Remote;

/// Most exported ranges of a connection, in each direction.
pub(crate) const EXPORTS_MAX: usize = 1024;

/// Ranges that this end exports.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    last: u32,
    all: BTreeMap<u32, Export>,
    /// Ranges that are to be announced to the other end.
    news: VecDeque<u32>,
    /// Ranges that the other end is to give back.
    wanted: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Export {
    extent: Extent,
    rights: Rights,
    /// The request to revoke it, if there was one.
    revoked_by: Option<u32>,
}

impl Exports {
    /// Exports memory. Returns the number of the new range, or `None` if there are too many.
    pub(crate) fn add(&mut self, extent: Extent, rights: Rights) -> Option<u32> {
        if self.all.len() >= EXPORTS_MAX {
            return None;
        }
        self.last = self.last.checked_add(1)?;
        let export = Export {
            extent,
            rights,
            revoked_by: None,
        };
        self.all.insert(self.last, export);
        self.news.push_back(self.last);
        Some(self.last)
    }

    /// Revokes a range for a request. Returns `false` if the range does not exist or is already being
    /// revoked.
    pub(crate) fn revoke(&mut self, export_id: u32, request: u32) -> bool {
        match self.all.get_mut(&export_id) {
            Some(export) if export.revoked_by.is_none() => {
                export.revoked_by = Some(request);
                self.wanted.push_back(export_id);
                true
            }
            _ => false,
        }
    }

    /// Records that the other end has given a range back. Returns its memory, and the request that revoked
    /// it.
    pub(crate) fn revoked(&mut self, export_id: u32) -> Option<(Extent, u32)> {
        let export = self.all.get(&export_id)?;
        let request = export.revoked_by?;
        let extent = export.extent;
        self.all.remove(&export_id);
        Some((extent, request))
    }

    /// Ends all exports, once the other end touches no memory any more. Returns their memory, and the
    /// requests that were revoking them.
    pub(crate) fn end(&mut self) -> Vec<(Extent, Option<u32>)> {
        self.news.clear();
        self.wanted.clear();
        let all = std::mem::take(&mut self.all);
        all.into_values()
            .map(|export| (export.extent, export.revoked_by))
            .collect()
    }

    /// Whether an announcement to the other end is due.
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty() || !self.wanted.is_empty()
    }

    /// Returns the next range to announce to the other end.
    pub(crate) fn next_news(&mut self) -> Option<(u32, Extent, Rights)> {
        let export_id = self.news.pop_front()?;
        let export = self.all.get(&export_id)?;
        Some((export_id, export.extent, export.rights))
    }

    /// Returns the next range that the other end is to give back.
    pub(crate) fn next_wanted(&mut self) -> Option<u32> {
        self.wanted.pop_front()
    }

    /// Returns the word that the other end wants to change by an atomic.
    pub(crate) fn word(&self, export_id: u32, at: u64) -> Result<Extent, Outcome> {
        let export = self.all.get(&export_id).ok_or(Outcome::NoExport)?;
        if !export.rights.contains(Rights::ATOMIC) {
            return Err(Outcome::Denied);
        }
        let end = at.checked_add(8).ok_or(Outcome::OutOfBounds)?;
        if end > export.extent.len.into() || !(export.extent.offset + at).is_multiple_of(8) {
            return Err(Outcome::OutOfBounds);
        }
        Ok(export.extent.part(at as u32, 8))
    }
}

/// Ranges that the other end exports.
#[derive(Debug, Default)]
pub(crate) struct ExportTable {
    all: BTreeMap<u32, ExportEntry>,
    /// Ranges that the other end wants back.
    wanted: VecDeque<u32>,
    /// Whether the other end is over. Its memory may then be used for something else.
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct ExportEntry {
    memory: Remote,
    rights: Rights,
    is_wanted: bool,
}

impl ExportTable {
    /// Adds a range that the other end exports. Returns `false` if that is impossible.
    pub(crate) fn add(&mut self, export_id: u32, memory: Remote, rights: Rights) -> bool {
        let new = ExportEntry {
            memory,
            rights,
            is_wanted: false,
        };
        self.all.len() < EXPORTS_MAX && self.all.insert(export_id, new).is_none()
    }

    /// Records that the other end wants a range back. Returns `false` if the range does not exist or
    /// the other end has asked before.
    pub(crate) fn want(&mut self, export_id: u32) -> bool {
        match self.all.get_mut(&export_id) {
            Some(known) if !known.is_wanted => {
                known.is_wanted = true;
                self.wanted.push_back(export_id);
                true
            }
            _ => false,
        }
    }

    /// Returns a range that the other end wants back and that no operation of this end uses.
    pub(crate) fn unused(&self, is_used: impl Fn(u32) -> bool) -> Option<u32> {
        self.wanted
            .iter()
            .copied()
            .find(|export_id| !is_used(*export_id))
    }

    /// Removes a range that is given back.
    pub(crate) fn give_back(&mut self, export_id: u32) {
        self.all.remove(&export_id);
        self.wanted.retain(|other| *other != export_id);
    }

    /// Records that the other end is over.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.wanted.clear();
    }

    /// Returns the remote memory that an operation of `len` bytes accesses.
    pub(crate) fn target(&self, operation: &Operation, len: u32) -> Result<Remote, Outcome> {
        if self.is_closed {
            return Err(Outcome::Lost);
        }
        let export_id = self
            .all
            .get(&operation.export_id)
            .filter(|export_id| !export_id.is_wanted);
        let export_id = export_id.ok_or(Outcome::NoExport)?;
        if !export_id.rights.contains(operation.op.needs()) {
            return Err(Outcome::Denied);
        }
        let end = operation.at.checked_add(len.into());
        if end.is_none_or(|end| end > export_id.memory.len.into()) {
            return Err(Outcome::OutOfBounds);
        }
        Ok(Remote {
            addr: export_id.memory.addr.wrapping_add(operation.at),
            rkey: export_id.memory.rkey,
            len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_client::Op;

    fn extent(len: u32) -> Extent {
        Extent {
            slab: 1,
            len,
            offset: 4096,
        }
    }

    fn operation(op: Op, export_id: u32, at: u64) -> Operation {
        Operation {
            op,
            export_id,
            at,
            local: extent(8),
            operand: 0,
            compare: 0,
            result: extent(16),
        }
    }

    #[test]
    fn accesses_out_of_bounds_or_rights_are_refused() {
        let mut imports = ExportTable::default();
        let memory = Remote {
            addr: 1000,
            rkey: 7,
            len: 100,
        };
        assert!(imports.add(3, memory, Rights::READ));
        assert!(!imports.add(3, memory, Rights::READ), "the range exists");
        let target = |imports: &ExportTable, op, export_id, at, len| {
            imports
                .target(&operation(op, export_id, at), len)
                .map(|to| to.addr)
        };
        assert_eq!(target(&imports, Op::Read, 3, 92, 8), Ok(1092));
        for (export_id, at, len, why) in [
            (3, 93, 8, Outcome::OutOfBounds),
            (3, u64::MAX, 8, Outcome::OutOfBounds),
            (4, 0, 8, Outcome::NoExport),
        ] {
            assert_eq!(target(&imports, Op::Read, export_id, at, len), Err(why));
        }
        assert_eq!(target(&imports, Op::Write, 3, 0, 8), Err(Outcome::Denied));
        // A range that is wanted back takes no new operation. It is given back once no operation uses it.
        assert!(imports.want(3) && !imports.want(3) && !imports.want(4));
        assert_eq!(target(&imports, Op::Read, 3, 0, 8), Err(Outcome::NoExport));
        assert_eq!(imports.unused(|_| true), None);
        assert_eq!(imports.unused(|_| false), Some(3));
        imports.give_back(3);
        assert_eq!(imports.unused(|_| false), None);
        assert!(imports.add(5, memory, Rights::READ));
        imports.close();
        assert_eq!(target(&imports, Op::Read, 5, 0, 8), Err(Outcome::Lost));
    }

    #[test]
    fn an_export_is_announced_and_revoked_once() {
        let mut exports = Exports::default();
        let export_id = exports.add(extent(64), Rights::ATOMIC).unwrap();
        assert_eq!(
            exports.next_news(),
            Some((export_id, extent(64), Rights::ATOMIC))
        );
        assert_eq!(exports.next_news(), None);
        assert_eq!(
            exports.word(export_id, 56).map(|word| word.offset),
            Ok(4152)
        );
        assert_eq!(exports.word(export_id, 57), Err(Outcome::OutOfBounds));
        assert_eq!(exports.word(export_id, 60), Err(Outcome::OutOfBounds));
        assert_eq!(exports.word(export_id, u64::MAX), Err(Outcome::OutOfBounds));
        assert_eq!(exports.word(export_id + 1, 0), Err(Outcome::NoExport));
        assert_eq!(exports.revoked(export_id), None, "it was not revoked");
        assert!(exports.revoke(export_id, 5) && !exports.revoke(export_id, 6));
        assert_eq!(exports.next_wanted(), Some(export_id));
        assert_eq!(exports.revoked(export_id), Some((extent(64), 5)));
        assert_eq!(exports.revoked(export_id), None);
        // Whatever is left at the end is returned at once.
        let export_id = exports.add(extent(8), Rights::READ).unwrap();
        assert_eq!(exports.word(export_id, 0), Err(Outcome::Denied));
        assert!(exports.revoke(export_id, 9));
        assert_eq!(exports.end(), [(extent(8), Some(9))]);
        assert!(!exports.has_news());
    }
}

//! Table of address handles, found by the keys that requests name.
//!
//! A key holds a slot's index and a generation, so the key of a destroyed handle finds nothing. A key is
//! valid in one protection domain only. Slots are reused in the order in which they became free, and rest
//! before that, so that a key recurs as late as possible.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use headworks_verbs::{AhKey, ResourceError};

use crate::abi;
use crate::raw::Object;

/// Bits of a key that hold the index of its slot.
const PLACE_BITS: u32 = 20;
/// Largest number of slots.
pub(crate) const PLACES: u32 = 1 << PLACE_BITS;
/// Free slots that are not reused while the table can still grow.
const RESTING: usize = 64;

#[derive(Default)]
struct AhSlot {
    /// The key in use, or the last one.
    key: u32,
    /// Number of the protection domain, and the handle; `None` for a free slot.
    handle: Option<(u32, Arc<Object<abi::Ah>>)>,
}

struct AhTable {
    /// Changes whenever a handle leaves; never 0.
    version: u64,
    places: Vec<AhSlot>,
    /// Indexes of the free slots, the longest free first.
    free: VecDeque<u32>,
}

impl Default for AhTable {
    fn default() -> Self {
        Self {
            version: 1,
            places: Vec::new(),
            free: VecDeque::new(),
        }
    }
}

impl AhTable {
    #[inline(never)]
    fn get(&self, key: AhKey, pd: u32) -> Option<*mut abi::Ah> {
        let place = self.places.get((key.0 % PLACES) as usize)?;
        match &place.handle {
            Some((of, ah)) if place.key == key.0 && *of == pd => Some(ah.as_ptr()),
            _ => None,
        }
    }
}

/// The address handles of a device.
#[derive(Default)]
pub(crate) struct AddressHandles {
    table: RwLock<AhTable>,
}

impl AddressHandles {
    pub(crate) fn enter(
        &self,
        pd: u32,
        ah: Arc<Object<abi::Ah>>,
        limit: u32,
    ) -> Result<AhKey, ResourceError> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let limit = limit.min(PLACES);
        let may_grow = table.places.len() < limit as usize;
        let at = match table.free.len() {
            free if may_grow && free <= RESTING => {
                table.places.push(AhSlot::default());
                Some(table.places.len() as u32 - 1)
            }
            _ => table.free.pop_front(),
        };
        let at = at.ok_or_else(|| ResourceError::Exhausted {
            what: "address handles",
            limit: limit.into(),
        })?;
        let place = &mut table.places[at as usize];
        let generation = (place.key >> PLACE_BITS).wrapping_add(1) << PLACE_BITS;
        // Generation 0 is not used.
        let generation = if generation == 0 { PLACES } else { generation };
        place.key = generation | at;
        place.handle = Some((pd, ah));
        Ok(AhKey(place.key))
    }

    pub(crate) fn leave(&self, key: AhKey) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let at = key.0 % PLACES;
        let left = match table.places.get_mut(at as usize) {
            Some(place) if place.key == key.0 => place.handle.take(),
            _ => None,
        };
        if left.is_some() {
            table.version += 1;
            table.free.push_back(at);
        }
        drop(table);
        // The lock is released first, because destroying the handle takes a system call.
        drop(left);
    }

    /// Locks the table for requests of the protection domain `pd`. Handles that are found stay while this is
    /// held.
    pub(crate) fn lookup(&self, pd: u32) -> AhLookup<'_> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        AhLookup { table, pd }
    }
}

/// Address handles that a queue pair's requests may name; holds the table's lock.
pub(crate) struct AhLookup<'a> {
    table: RwLockReadGuard<'a, AhTable>,
    pd: u32,
}

impl AhLookup<'_> {
    /// Version of the table. A handle found in a table of the same version is still there.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        self.table.version
    }

    #[inline(always)]
    pub(crate) fn get(&self, key: AhKey) -> Option<*mut abi::Ah> {
        self.table.get(key, self.pd)
    }
}

//! Address handles by the numbers that requests name them by.
//!
//! A number is a place and a generation, so one that is gone names nothing; it belongs to one protection
//! domain and means nothing in another. Places are used again in the order in which they became free, and
//! rest before that, so that a number comes back as late as can be.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use headworks_verbs::{AhKey, ResourceError};

use crate::abi;
use crate::raw::Object;

/// Bits of a key that number its place.
const PLACE_BITS: u32 = 20;
/// Places there are at most.
pub(crate) const PLACES: u32 = 1 << PLACE_BITS;
/// Free places that rest while there can be others.
const RESTING: usize = 64;

#[derive(Default)]
struct AhSlot {
    /// The key in use, or the last one.
    key: u32,
    /// Its protection domain, and itself; `None` for a free place.
    handle: Option<(u32, Arc<Object<abi::Ah>>)>,
}

struct AhTable {
    /// Changes whenever one leaves, and is never 0.
    version: u64,
    places: Vec<AhSlot>,
    /// The longest free first.
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
        // Of generation 0 there is none.
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
        // The system call that destroys it is nobody else's business.
        drop(left);
    }

    /// For a chain of requests of the protection domain `pd`: what is found stays while this is held.
    pub(crate) fn lookup(&self, pd: u32) -> AhLookup<'_> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        AhLookup { table, pd }
    }
}

/// The handles that a queue pair's requests may name.
pub(crate) struct AhLookup<'a> {
    table: RwLockReadGuard<'a, AhTable>,
    pd: u32,
}

impl AhLookup<'_> {
    /// What was found in a table of this version is still there.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        self.table.version
    }

    #[inline(always)]
    pub(crate) fn get(&self, key: AhKey) -> Option<*mut abi::Ah> {
        self.table.get(key, self.pd)
    }
}

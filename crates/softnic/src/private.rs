//! What this process knows of its own registrations, apart from the table that others can write.
//!
//! In this process registered memory is used at its plain address, so what is here is believed and a
//! row is not.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headworks_verbs::Access;

/// A registration.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    /// The region's `key` word.
    pub(crate) word: u64,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) pd: u32,
}

/// The registrations of a context, by key.
#[derive(Default)]
pub(crate) struct Private {
    areas: Mutex<HashMap<u32, Area>>,
}

/// Nothing is deregistered while this lives.
pub(crate) struct Areas<'a>(MutexGuard<'a, HashMap<u32, Area>>);

impl Areas<'_> {
    /// The registration under `key`.
    pub(crate) fn get(&self, key: u32) -> Option<&Area> {
        self.0.get(&key)
    }
}

impl Private {
    pub(crate) fn lock(&self) -> Areas<'_> {
        Areas(self.areas.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn enter(&self, key: u32, area: Area) {
        self.lock().0.insert(key, area);
    }

    /// When this returns, nobody who found it here uses it.
    pub(crate) fn leave(&self, key: u32) {
        self.lock().0.remove(&key);
    }

    pub(crate) fn find(&self, key: u32) -> Option<Area> {
        self.lock().0.get(&key).copied()
    }
}

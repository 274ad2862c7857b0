//! What this process knows of its own registrations, apart from the table that others can write.
//!
//! In this process registered memory is used at its plain address, so what is here is believed and a
//! row is not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::Access;

/// Whether a registration has ended: the word that this process looks at with each request, as a
/// peer looks at the row's key. Set before the fence of whoever takes the memory away.
#[derive(Clone, Default)]
pub(crate) struct Ended(Arc<AtomicBool>);

impl Ended {
    #[inline(always)]
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A registration.
#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) ended: Ended,
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

    /// When this returns, nobody who looked for it while holding the lock uses it. Others do not begin to,
    /// behind a heavy fence.
    pub(crate) fn leave(&self, key: u32) {
        if let Some(area) = self.lock().0.remove(&key) {
            area.ended.0.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn find(&self, key: u32) -> Option<Area> {
        self.lock().0.get(&key).cloned()
    }
}

//! This process's own record of its registrations. Unlike the shared table, no peer can write it.
//!
//! This process uses its registered memory at its plain address, so it trusts this record and not the table's
//! rows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::Access;

/// Whether a registration has ended. This process checks the flag with each request, as a peer checks the
/// row's key. Deregistration sets it before its heavy fence.
#[derive(Clone, Default)]
pub(crate) struct DeregisteredFlag(Arc<AtomicBool>);

impl DeregisteredFlag {
    #[inline(always)]
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A registration: its memory, access and protection domain.
#[derive(Clone)]
pub(crate) struct LocalMr {
    pub(crate) ended: DeregisteredFlag,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) pd: u32,
}

/// The registrations of a context, by key.
#[derive(Default)]
pub(crate) struct LocalMrs {
    areas: Mutex<HashMap<u32, LocalMr>>,
}

/// Guard that holds the lock on the registrations. No region is deregistered while it lives.
pub(crate) struct LocalMrsGuard<'a>(MutexGuard<'a, HashMap<u32, LocalMr>>);

impl LocalMrsGuard<'_> {
    /// Returns the registration under `key`.
    pub(crate) fn get(&self, key: u32) -> Option<&LocalMr> {
        self.0.get(&key)
    }
}

impl LocalMrs {
    pub(crate) fn lock(&self) -> LocalMrsGuard<'_> {
        LocalMrsGuard(self.areas.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn enter(&self, key: u32, area: LocalMr) {
        self.lock().0.insert(key, area);
    }

    /// Ends the registration under `key`. When this returns, every reader that used the registration while it
    /// held the lock is done. A reader that uses it without the lock checks the `ended` flag; after a heavy fence
    /// no such reader starts to use the memory.
    pub(crate) fn leave(&self, key: u32) {
        if let Some(area) = self.lock().0.remove(&key) {
            area.ended.0.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn find(&self, key: u32) -> Option<LocalMr> {
        self.lock().0.get(&key).cloned()
    }
}

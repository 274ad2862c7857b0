//! This process's own record of its registrations. Unlike the shared table, no peer can write it.
//!
//! This process uses its registered memory at its plain address, so it trusts this record and not the table's
//! rows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::Access;

/// The `key` word of a registration, as its row has it. This process checks the word with each request, as a peer checks the
/// row's. Deregistration clears it before its heavy fence.
#[derive(Clone)]
pub(crate) struct KeyWord {
    now: Arc<AtomicU64>,
    registered: u64,
}

impl KeyWord {
    /// Makes the word of a registration that begins.
    pub(crate) fn new(registered: u64) -> Self {
        Self {
            now: Arc::new(AtomicU64::new(registered)),
            registered,
        }
    }

    /// Returns the word.
    pub(crate) fn now(&self) -> &Arc<AtomicU64> {
        &self.now
    }

    /// Returns the value that the word has while the registration lasts.
    pub(crate) fn registered(&self) -> u64 {
        self.registered
    }
}

/// A registration: its memory, access and protection domain.
#[derive(Clone)]
pub(crate) struct LocalMr {
    pub(crate) word: KeyWord,
    /// The address under which requests name it.
    pub(crate) start: usize,
    /// Where this process reaches it: another address if the program has mapped it twice.
    pub(crate) mapped: usize,
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
    /// held the lock is done. A reader that uses it without the lock checks its word; after a heavy fence
    /// no such reader starts to use the memory.
    pub(crate) fn leave(&self, key: u32) {
        if let Some(area) = self.lock().0.remove(&key) {
            area.word.now.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn find(&self, key: u32) -> Option<LocalMr> {
        self.lock().0.get(&key).cloned()
    }
}

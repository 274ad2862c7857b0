//! Contexts: which process has which index in a soft host.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, unlinkat};

use super::record::{HOST_NAME_BYTES_MAX, owner};
use super::{ContextRecord, Entry, HostKey, Registry, RegistryError, common_segments};
use crate::fork::ForkGeneration;

/// How many contexts a soft host can have.
pub const CONTEXTS_MAX: u16 = 1024;

/// An index in a soft host, ours until dropped.
#[derive(Debug)]
pub struct ContextClaim {
    /// The index, below [`CONTEXTS_MAX`].
    pub index: u16,
    registry: Arc<Registry>,
    entry: Entry,
    generation: ForkGeneration,
}

impl Registry {
    /// Takes the lowest free index of `host`, after removing what dead processes left (in all hosts).
    pub fn claim_context(
        self: &Arc<Self>,
        host: HostKey,
        record: &ContextRecord,
    ) -> Result<ContextClaim, RegistryError> {
        if record.host_name.len() > HOST_NAME_BYTES_MAX {
            let name = record.host_name.chars().take(80).collect();
            return Err(RegistryError::BadName {
                name,
                legal: "at most 255 bytes for a host",
            });
        }
        let locked = self.lock()?;
        let taken = self.clean(&locked.dir)?;
        let free = (0..CONTEXTS_MAX).find(|&index| !taken.contains(&(host, index)));
        let index = free.ok_or(RegistryError::Full {
            limit: CONTEXTS_MAX,
        })?;
        let entry = self.write_entry(&locked.dir, &file_name(host, index), &record.to_bytes());
        let entry = entry.inspect_err(|_| self.remove_if_empty(&locked))?;
        drop(locked);
        Ok(ContextClaim {
            index,
            registry: self.clone(),
            entry,
            generation: ForkGeneration::current(),
        })
    }

    /// Who has `index` in `host`; `None` if nobody alive does.
    pub fn lookup_context(
        &self,
        host: HostKey,
        index: u16,
    ) -> Result<Option<ContextRecord>, RegistryError> {
        let Some(dir) = self.open_existing_directory()? else {
            return Ok(None);
        };
        let name = file_name(host, index);
        let Some(bytes) = self.read_entry(&dir, &name)? else {
            return Ok(None);
        };
        let record = ContextRecord::parse(&name, &bytes);
        if owner(&bytes).is_some_and(|process| !process.is_alive()) {
            return Ok(None);
        }
        record.map(Some)
    }

    /// All contexts of live processes, in order. What cannot be read (another version's) is left out.
    pub fn list_contexts(&self) -> Result<Vec<(HostKey, u16, ContextRecord)>, RegistryError> {
        let Some(dir) = self.open_existing_directory()? else {
            return Ok(Vec::new());
        };
        let mut names = self.entries(&dir)?;
        names.sort_unstable();
        let mut found = Vec::new();
        for (host, index) in names.iter().filter_map(|name| parse_file_name(name)) {
            if let Ok(Some(record)) = self.lookup_context(host, index) {
                found.push((host, index, record));
            }
        }
        Ok(found)
    }

    /// Removes what dead processes left, and the directory if nothing else is in it. Whoever comes next
    /// would; this is for who has just killed some.
    pub fn remove_dead(&self) -> Result<(), RegistryError> {
        if let Some(locked) = self.lock_existing()? {
            self.clean(&locked.dir)?;
            self.remove_if_empty(&locked);
        }
        Ok(())
    }

    /// Removes what the dead left; returns the indices in use. Under the lock.
    pub(super) fn clean(&self, dir: &OwnedFd) -> Result<BTreeSet<(HostKey, u16)>, RegistryError> {
        let mut taken = BTreeSet::new();
        for name in self.entries(dir)? {
            if let Some(context) = parse_file_name(&name) {
                if self.clean_entry(dir, &name)? {
                    taken.insert(context);
                }
            } else if common_segments::parse_file_name(&name).is_some() {
                self.clean_entry(dir, &name)?;
            } else if let Some(listening) = name.strip_prefix("o.") {
                self.clean_name(dir, listening)?;
            } else if name.starts_with("t.") {
                let _ = unlinkat(dir, &name, AtFlags::empty());
            }
        }
        Ok(taken)
    }

    /// Whether the process of an entry lives; else it is removed. Under the lock.
    fn clean_entry(&self, dir: &OwnedFd, name: &str) -> Result<bool, RegistryError> {
        let bytes = self.read_entry(dir, name)?.unwrap_or_default();
        // Nobody owns what names no process: entries appear whole, so no writer was interrupted.
        let lives = owner(&bytes).is_some_and(|process| process.is_alive());
        if !lives {
            let _ = unlinkat(dir, name, AtFlags::empty());
        }
        Ok(lives)
    }
}

impl ContextClaim {
    /// The registry that it is in.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }
}

impl Drop for ContextClaim {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        // What cannot be removed now is removed by whoever comes after our death.
        if let Ok(Some(locked)) = self.registry.lock_existing() {
            self.registry.remove_entry(&locked.dir, &self.entry);
            self.registry.remove_if_empty(&locked);
        }
    }
}

fn file_name(host: HostKey, index: u16) -> String {
    format!("c.{:016x}.{index:04}", host.0)
}

fn parse_file_name(name: &str) -> Option<(HostKey, u16)> {
    let (host, index) = name.strip_prefix("c.")?.split_once('.')?;
    let host = HostKey(u64::from_str_radix(host, 16).ok()?);
    let index = index.parse().ok().filter(|&index| index < CONTEXTS_MAX)?;
    // Exactly as we write it: each context has one name.
    (file_name(host, index) == name).then_some((host, index))
}

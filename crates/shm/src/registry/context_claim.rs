//! Context claims: each gives a process one index in a soft host.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, unlinkat};

use super::record::{HOST_NAME_BYTES_MAX, owner};
use super::{
    ContextRecord, Entry, HostKey, Listing, Member, Registry, RegistryError, common_segments,
    member,
};
use crate::ProcessId;
use crate::fork::ForkGeneration;

/// Maximum number of contexts of a soft host.
pub const CONTEXTS_MAX: u16 = 1024;

/// An index in a soft host, held by this process until dropped.
#[derive(Debug)]
pub struct ContextClaim {
    /// The index, below [`CONTEXTS_MAX`].
    pub index: u16,
    entry: Entry,
    member: Arc<Member>,
    generation: ForkGeneration,
}

impl Registry {
    /// Claims the lowest free index of `host` for this process, after removing the entries of dead processes (in all
    /// hosts). The record's process is `member`'s.
    pub fn claim_context(
        self: &Arc<Self>,
        host: HostKey,
        member: &Arc<Member>,
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
        let mut taken = self.clean_if_dead(&locked.dir)?;
        let free_in =
            |taken: &BTreeSet<_>| (0..CONTEXTS_MAX).find(|&index| !taken.contains(&(host, index)));
        if free_in(&taken).is_none() {
            // Perhaps entries are left whose process has no entry at all.
            taken = self.clean(&locked.dir)?;
        }
        let index = free_in(&taken).ok_or(RegistryError::Full {
            limit: CONTEXTS_MAX,
        })?;
        let entry = self.write_entry(&locked.dir, &file_name(host, index), &record.to_bytes());
        let entry = entry.inspect_err(|_| self.remove_if_empty(&locked))?;
        drop(locked);
        Ok(ContextClaim {
            index,
            entry,
            member: member.clone(),
            generation: ForkGeneration::current(),
        })
    }

    /// Returns the context with `index` in `host`; `None` if no live process has it.
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
        if owner(&bytes).is_some_and(|process| !self.is_alive_in(&dir, process)) {
            return Ok(None);
        }
        record.map(Some)
    }

    /// Returns all contexts of live processes, in the order of host and index.
    ///
    /// # Errors
    ///
    /// The directory cannot be opened or listed. An entry that cannot be read is in [`Listing::unreadable`].
    pub fn list_contexts(&self) -> Result<Listing<(HostKey, u16), ContextRecord>, RegistryError> {
        let mut listing = Listing::default();
        let Some(dir) = self.open_existing_directory()? else {
            return Ok(listing);
        };
        let mut names = self.entries(&dir)?;
        names.sort_unstable();
        for (host, index) in names.iter().filter_map(|name| parse_file_name(name)) {
            listing.add((host, index), self.lookup_context(host, index));
        }
        Ok(listing)
    }

    /// Removes the entries of dead processes, and the directory if nothing else is in it. The next claim
    /// would do so too; this is for a caller that has just killed some.
    pub fn remove_dead(&self) -> Result<(), RegistryError> {
        if let Some(locked) = self.lock_existing()? {
            self.clean(&locked.dir)?;
            self.remove_if_empty(&locked);
        }
        Ok(())
    }

    /// Does what [`Registry::clean`] does if a process has died since the last time. Otherwise only names are read: with
    /// a thousand processes, reading the entries of each would take most of the time of opening a device.
    pub(super) fn clean_if_dead(
        &self,
        dir: &OwnedFd,
    ) -> Result<BTreeSet<(HostKey, u16)>, RegistryError> {
        if self.has_dead(dir)? {
            return self.clean(dir);
        }
        let names = self.entries(dir)?;
        Ok(names
            .iter()
            .filter_map(|name| parse_file_name(name))
            .collect())
    }

    /// Removes the entries of dead processes and returns the indices in use. The caller holds the lock.
    pub(super) fn clean(&self, dir: &OwnedFd) -> Result<BTreeSet<(HostKey, u16)>, RegistryError> {
        let mut taken = BTreeSet::new();
        // A process may have many entries: each is asked for once.
        let mut asked = HashMap::new();
        let mut slots = BTreeSet::new();
        for name in self.entries(dir)? {
            if let Some(context) = parse_file_name(&name) {
                if self.clean_entry(dir, &name, &mut asked)? {
                    taken.insert(context);
                }
            } else if common_segments::parse_file_name(&name).is_some() {
                self.clean_entry(dir, &name, &mut asked)?;
            } else if let Some(listening) = name.strip_prefix("o.") {
                self.clean_name(dir, listening)?;
            } else if let Some(slot) = member::parse_file_name(&name) {
                slots.insert(slot);
            } else if name.starts_with("t.") {
                let _ = unlinkat(dir, &name, AtFlags::empty());
            }
        }
        for slot in slots {
            self.clean_slot(dir, slot)?;
        }
        Ok(taken)
    }

    /// Returns whether the process of an entry is alive; removes the entry if not. The caller holds the lock.
    fn clean_entry(
        &self,
        dir: &OwnedFd,
        name: &str,
        asked: &mut HashMap<ProcessId, bool>,
    ) -> Result<bool, RegistryError> {
        let bytes = self.read_entry(dir, name)?.unwrap_or_default();
        // An entry that names no process has no owner. It is not a half-written one: entries appear whole.
        let lives = owner(&bytes).is_some_and(|process| {
            *asked
                .entry(process)
                .or_insert_with(|| self.is_alive_in(dir, process))
        });
        if !lives {
            let _ = unlinkat(dir, name, AtFlags::empty());
        }
        Ok(lives)
    }
}

impl ContextClaim {
    /// Returns the registry that the claim is in.
    pub fn registry(&self) -> &Arc<Registry> {
        self.member.registry()
    }
}

impl Drop for ContextClaim {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        // If the entry cannot be removed now, another process removes it after our death.
        let registry = self.member.registry();
        if let Ok(Some(locked)) = registry.lock_existing() {
            registry.remove_entry(&locked.dir, &self.entry);
            registry.remove_if_empty(&locked);
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
    // Accept only the name that we write, so that each context has one name.
    (file_name(host, index) == name).then_some((host, index))
}

//! Membership: the entry by which other processes know that this one lives, and where they ask it for
//! descriptors.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::descriptor_client::DescriptorClient;
use super::descriptor_server::{DescriptorServer, DescriptorSource};
use super::directory::{LOCK_TIMEOUT, RETRY_EVERY};
use super::record::{self, ProcessRecord};
use super::{Registry, RegistryError, create_file, temporary, try_lock, write_all};
use crate::file_lock;
use crate::fork::{CloseOnFork, ForkGeneration};
use crate::liveness::{
    ProcessId, ProcessWatch, clock_nanos, new_generation, open_own_pidfd, own_command,
};

/// How long a process has to answer with a pidfd of itself, before its entry has to do.
const WATCH_ANSWER_LIMIT: Duration = Duration::from_millis(100);

/// Slots of a registry: the largest number of processes in it.
pub const SLOTS: u32 = 1 << 16;

/// This process's membership in a registry, shared by all that it claims there. The entry is removed with the
/// last of them.
#[derive(Debug)]
pub struct Member {
    id: ProcessId,
    registry: Arc<Registry>,
    /// The entry, locked.
    _lock: CloseOnFork<File>,
    server: Mutex<Option<DescriptorServer>>,
    generation: ForkGeneration,
}

impl Registry {
    /// Returns this process's membership. The first call makes its entry.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, or has no room for an entry.
    pub fn join(self: &Arc<Self>) -> Result<Arc<Member>, RegistryError> {
        let mut known = self.lock_member()?;
        if let Some(member) = known.upgrade()
            && !member.is_foreign()
        {
            return Ok(member);
        }
        let locked = self.lock()?;
        // Whoever only uses names cleans up after the dead here.
        if self.has_dead(&locked.dir)? {
            self.clean(&locked.dir)?;
        }
        let made = self.make_member(&locked.dir);
        let made = made.inspect_err(|_| self.remove_if_empty(&locked))?;
        *known = Arc::downgrade(&made);
        Ok(made)
    }

    /// Locks this process's membership. In a child that was forked while another thread held the lock, nobody
    /// releases it: the wait has a limit.
    pub(super) fn lock_member(&self) -> Result<MutexGuard<'_, Weak<Member>>, RegistryError> {
        let begin = Instant::now();
        loop {
            if let Some(guard) = try_lock(&self.member) {
                return Ok(guard);
            }
            if begin.elapsed() > 2 * LOCK_TIMEOUT {
                return Err(RegistryError::Busy {
                    what: "another thread, or a thread of the parent of this process, has been joining the registry"
                        .to_owned(),
                    seconds: begin.elapsed().as_secs(),
                });
            }
            std::thread::sleep(RETRY_EVERY);
        }
    }

    /// The caller holds the lock.
    fn make_member(self: &Arc<Self>, dir: &OwnedFd) -> Result<Arc<Member>, RegistryError> {
        let names = self.entries(dir)?;
        let taken: HashSet<u32> = names
            .iter()
            .filter_map(|name| parse_file_name(name))
            .collect();
        let slot = (0..SLOTS).find(|slot| !taken.contains(slot));
        let slot = slot.ok_or(RegistryError::Processes { limit: SLOTS })?;
        let id = ProcessId {
            slot,
            generation: new_generation(),
        };
        let record = ProcessRecord {
            process: id,
            pid: std::process::id(),
            joined_nanos: clock_nanos(),
            command: own_command(),
        };
        let lock = self.write_locked_entry(dir, &file_name(slot), &record.to_bytes())?;
        Ok(Arc::new(Member {
            id,
            registry: self.clone(),
            _lock: lock,
            server: Mutex::new(None),
            generation: ForkGeneration::current(),
        }))
    }

    /// Writes an entry that appears whole and locked.
    fn write_locked_entry(
        &self,
        dir: &OwnedFd,
        name: &str,
        bytes: &[u8],
    ) -> Result<CloseOnFork<File>, RegistryError> {
        self.check_file_size(bytes)?;
        let temporary = temporary(dir);
        let write = || -> Result<_, Errno> {
            let file = CloseOnFork::open(|| create_file(dir, &temporary))?;
            write_all(&file, bytes)?;
            // Nobody else has opened the new file.
            file_lock::try_lock(&file)?;
            renameat(dir, &temporary, dir, name)?;
            Ok(file)
        };
        let locked = write();
        locked.map_err(|errno| {
            let _ = unlinkat(dir, &temporary, AtFlags::empty());
            self.write_error(name, bytes, errno)
        })
    }

    /// Returns whether a process lives. When in doubt (its entry cannot be read) the result is true: a live
    /// process must not be cleaned up after.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        match self.open_existing_directory() {
            Ok(Some(dir)) => self.is_alive_in(&dir, process),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// [`is_alive`](Self::is_alive), with the directory open.
    pub(super) fn is_alive_in(&self, dir: &OwnedFd, process: ProcessId) -> bool {
        self.open_live_entry(dir, process)
            .map_or(true, |found| found.is_some())
    }

    /// Returns whether it is certain that no living process has this slot.
    pub fn is_slot_unused(&self, slot: u32) -> bool {
        let Ok(dir) = self.open_existing_directory() else {
            return false;
        };
        let entry = dir.map_or(Ok(None), |dir| self.open_entry(&dir, &file_name(slot)));
        match entry {
            Ok(Some(entry)) => matches!(file_lock::is_locked(entry), Ok(false)),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Returns what a process wrote about itself; `None` if it is dead.
    ///
    /// # Errors
    ///
    /// Its entry cannot be read.
    pub fn process_record(
        &self,
        process: ProcessId,
    ) -> Result<Option<ProcessRecord>, RegistryError> {
        let Some(dir) = self.open_existing_directory()? else {
            return Ok(None);
        };
        Ok(self
            .open_live_entry(&dir, process)?
            .map(|(record, _)| record))
    }

    /// Begins to watch a process. Returns `None` if it is dead. With `may_ask`, the process is asked for a pidfd;
    /// without, or if it has none, the result must be polled.
    ///
    /// # Errors
    ///
    /// Its entry cannot be opened.
    pub fn watch(
        self: &Arc<Self>,
        process: ProcessId,
        may_ask: bool,
    ) -> Result<Option<ProcessWatch>, RegistryError> {
        let Some(dir) = self.open_existing_directory()? else {
            return Ok(None);
        };
        let Some((_, entry)) = self.open_live_entry(&dir, process)? else {
            return Ok(None);
        };
        if may_ask
            && let Ok(Some(mut client)) =
                DescriptorClient::connect_within(self, process, WATCH_ANSWER_LIMIT)
            && let Ok(Some(pidfd)) = client.pidfd()
        {
            return Ok(Some(ProcessWatch::of_pidfd(pidfd)));
        }
        Ok(Some(ProcessWatch::of_entry(entry)))
    }

    /// Opens the entry of a process; `None` if the process is dead.
    pub(super) fn open_live_entry(
        &self,
        dir: &OwnedFd,
        process: ProcessId,
    ) -> Result<Option<(ProcessRecord, File)>, RegistryError> {
        let name = file_name(process.slot);
        let Some(entry) = self.open_entry(dir, &name)? else {
            return Ok(None);
        };
        let bytes = self.read_opened(&entry, &name)?;
        // Checked before the content: the entry may be of another version.
        if record::owner(&bytes) != Some(process) {
            return Ok(None);
        }
        match file_lock::is_locked(&entry) {
            Ok(false) => Ok(None),
            Ok(true) => Ok(Some((ProcessRecord::parse(&name, &bytes)?, entry))),
            Err(errno) => Err(self.failed(&name, errno)),
        }
    }

    fn open_entry(&self, dir: &OwnedFd, name: &str) -> Result<Option<File>, RegistryError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(dir, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(name, errno)),
        }
    }

    /// Returns whether a slot has no living holder.
    pub(super) fn has_dead(&self, dir: &OwnedFd) -> Result<bool, RegistryError> {
        for name in self.entries(dir)? {
            let slot = parse_file_name(&name).filter(|slot| name == file_name(*slot));
            if slot.is_some()
                && let Some(entry) = self.open_entry(dir, &name)?
                && matches!(file_lock::is_locked(entry), Ok(false))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the entry and the socket in a slot unless a process holds it. The caller holds the lock.
    pub(super) fn clean_slot(&self, dir: &OwnedFd, slot: u32) -> Result<(), RegistryError> {
        let is_held = match self.open_entry(dir, &file_name(slot))? {
            Some(entry) => !matches!(file_lock::is_locked(entry), Ok(false)),
            None => false,
        };
        if !is_held {
            remove_slot(dir, slot);
        }
        Ok(())
    }
}

impl Member {
    /// Returns the identity of this process in the registry.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns whether the calling process is a forked child of the one that joined.
    pub(super) fn is_foreign(&self) -> bool {
        self.generation.is_foreign()
    }

    /// Returns the registry.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Hands out descriptors of the object `object` from now on, until `source` is dropped. A thread of its own
    /// answers; it sleeps until it is asked.
    ///
    /// # Errors
    ///
    /// The socket or the thread cannot be made.
    pub fn serve(
        &self,
        object: u64,
        source: Weak<dyn DescriptorSource>,
    ) -> Result<(), RegistryError> {
        let locked = self.registry.lock()?;
        self.serve_locked(&locked.dir, object, source)
    }

    /// [`serve`](Self::serve), for a caller that holds the lock.
    pub(super) fn serve_locked(
        &self,
        dir: &OwnedFd,
        object: u64,
        source: Weak<dyn DescriptorSource>,
    ) -> Result<(), RegistryError> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let server = match &mut *server {
            Some(server) => server,
            none => {
                // One that a failed start left. The slot is this process's.
                let _ = unlinkat(dir, socket_name(self.id.slot), AtFlags::empty());
                let listener = self.registry.listen(dir, &socket_name(self.id.slot))?;
                let pidfd = open_own_pidfd().ok();
                let made = DescriptorServer::start(listener, pidfd).map_err(|source| {
                    RegistryError::io("serving descriptors in", self.registry.path(), source)
                })?;
                none.insert(made)
            }
        };
        server.add(object, source);
        Ok(())
    }

    /// Returns the source of `object`, if this process serves it.
    pub(super) fn source(&self, object: u64) -> Option<Arc<dyn DescriptorSource>> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.as_ref()?.source(object)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            // The child has no thread to stop.
            let server = self.server.get_mut();
            std::mem::forget(server.unwrap_or_else(PoisonError::into_inner).take());
            return;
        }
        // If the entry cannot be removed now, another process removes it: it is not locked any more.
        if let Ok(Some(locked)) = self.registry.lock_existing() {
            let entry = self
                .registry
                .read_entry(&locked.dir, &file_name(self.id.slot));
            // Not if the directory was removed and made again.
            if entry.is_ok_and(|bytes| bytes.as_deref().and_then(record::owner) == Some(self.id)) {
                remove_slot(&locked.dir, self.id.slot);
            }
            // Perhaps nobody comes who would remove what the dead left.
            if matches!(self.registry.has_dead(&locked.dir), Ok(true)) {
                let _ = self.registry.clean(&locked.dir);
            }
            self.registry.remove_if_empty(&locked);
        }
    }
}

fn remove_slot(dir: &OwnedFd, slot: u32) {
    let _ = unlinkat(dir, socket_name(slot), AtFlags::empty());
    let _ = unlinkat(dir, file_name(slot), AtFlags::empty());
}

pub(super) fn file_name(slot: u32) -> String {
    format!("p.{slot:05}")
}

pub(super) fn socket_name(slot: u32) -> String {
    format!("d.{slot:05}")
}

/// Returns the slot of an entry or socket with this name.
pub(super) fn parse_file_name(name: &str) -> Option<u32> {
    let digits = name
        .strip_prefix("p.")
        .or_else(|| name.strip_prefix("d."))?;
    let slot = digits.parse().ok().filter(|slot| *slot < SLOTS)?;
    // Accept only the names that we write.
    (file_name(slot) == name || socket_name(slot) == name).then_some(slot)
}

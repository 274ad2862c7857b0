//! The registry: one directory per user, in which the processes of that user find each other.
//!
//! Every change happens under a lock file that the kernel releases when its holder dies. Every process has an
//! entry that it keeps locked, and the other entries name their process, so that a later change can remove the
//! entries of dead processes. Look-ups take no lock: entries appear whole, by rename. The last process to leave
//! removes the files, and the directory too if a process made it.
//!
//! ```text
//! lock                      locked while the registry changes
//! p.SLOT, d.SLOT            a process, locked while it lives; the socket where it hands out descriptors
//! c.HOST.INDEX              a context in the soft host HOST, see ContextRecord
//! n.NAME, o.NAME            a socket that listens under NAME, and the process that owns it
//! s.KEY.SLOT.N              a hold of a process on the common segment KEY, see CommonSegmentRecord
//! t.…                       an entry being written; found under the lock it is a dead writer's
//! id                        a random number that identifies the registry
//! ```
//!
//! Nothing here depends on process ids or on `/proc`, so processes may be in different PID, user, mount and network
//! namespaces, as those of containers are, as long as they see the same directory and have the same user id.

use std::env;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::getuid;

mod common_segments;
mod context_claim;
mod descriptor_client;
mod descriptor_server;
mod directory;
mod error;
mod member;
mod named_sockets;
mod record;

pub use common_segments::CommonSegmentClaim;
pub use context_claim::{CONTEXTS_MAX, ContextClaim};
pub use descriptor_client::{ANSWER_LIMIT, DescriptorClient};
pub use descriptor_server::{DescriptorRequest, DescriptorSource};
pub use error::RegistryError;
pub use member::{Member, SLOTS};
pub use named_sockets::NameClaim;
pub use record::{CommonSegmentRecord, ContextRecord, HOST_NAME_BYTES_MAX, ProcessRecord};

use crate::liveness::new_generation;
use crate::process_limits;

/// Number of a soft host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostKey(
    /// The number; the caller decides what it is derived from.
    pub u64,
);

/// The entries of one kind in a registry. `K` is what an entry's name says.
#[derive(Debug)]
pub struct Listing<K, T> {
    /// The entries of live processes.
    pub entries: Vec<(K, T)>,
    /// The entries that cannot be read, and the reasons. Their processes may be alive.
    pub unreadable: Vec<(K, RegistryError)>,
}

impl<K, T> Default for Listing<K, T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            unreadable: Vec::new(),
        }
    }
}

impl<K, T> Listing<K, T> {
    /// Adds the result of reading an entry; `None` is an entry that is gone.
    fn add(&mut self, key: K, read: Result<Option<T>, RegistryError>) {
        match read {
            Ok(Some(entry)) => self.entries.push((key, entry)),
            Ok(None) => {}
            Err(error) => self.unreadable.push((key, error)),
        }
    }
}

/// Name of the environment variable that overrides the registry's path.
pub const REGISTRY_VARIABLE: &str = "HEADWORKS_FABRIC";

/// File with a random number that identifies the registry.
const IDENTITY_FILE: &str = "id";
/// Bytes of that number.
const IDENTITY_BYTES: usize = 16;

/// Returns the FNV-1a hash of these bytes.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A registry. Its directory need not exist yet: the first claim makes it.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    /// This process's membership, while anything of it is in the registry.
    member: Mutex<Weak<Member>>,
}

impl Registry {
    /// Opens the user's registry: `$HEADWORKS_FABRIC`, else `headworks` in `$XDG_RUNTIME_DIR`, else
    /// `/dev/shm/headworks-UID`, else `/tmp/headworks-UID`. Makes it if it is missing.
    ///
    /// All callers in a process get the same registry, and so share one membership.
    pub fn open_default() -> Result<Arc<Self>, RegistryError> {
        static OPENED: Mutex<Weak<Registry>> = Mutex::new(Weak::new());
        let path = Self::user_path();
        // Held by a thread that opens it, or by one that did when this process was forked: then it stays held.
        let Some(mut opened) = try_lock(&OPENED) else {
            return Self::open_at(path);
        };
        if let Some(known) = opened.upgrade()
            && std::path::absolute(&path).is_ok_and(|path| path == known.path)
        {
            known.open_or_create_directory()?;
            return Ok(known);
        }
        let registry = Self::open_at(path)?;
        *opened = Arc::downgrade(&registry);
        Ok(registry)
    }

    /// Returns the path of the user's registry, which need not exist: the one that [`Self::open_default`] opens.
    pub fn user_path() -> PathBuf {
        default_path(|name| env::var_os(name), getuid().as_raw())
    }

    /// Opens the user's registry if it exists; never makes it.
    pub fn open_existing_default() -> Result<Option<Arc<Self>>, RegistryError> {
        Self::open_existing_at(Self::user_path())
    }

    /// Opens the registry at `path` if it exists; never makes it. Refuses one that other users can reach.
    pub fn open_existing_at(path: impl Into<PathBuf>) -> Result<Option<Arc<Self>>, RegistryError> {
        let path = std::path::absolute(path.into())
            .map_err(|source| RegistryError::io("the registry's path", Path::new("."), source))?;
        let registry = Self::of(path);
        let there = registry.open_existing_directory()?.is_some();
        Ok(there.then(|| Arc::new(registry)))
    }

    /// Opens the registry at `path`. Makes it if it is missing; refuses one that other users can reach.
    pub fn open_at(path: impl Into<PathBuf>) -> Result<Arc<Self>, RegistryError> {
        let path = std::path::absolute(path.into())
            .map_err(|source| RegistryError::io("the registry's path", Path::new("."), source))?;
        let registry = Self::of(path);
        registry.open_or_create_directory()?;
        Ok(Arc::new(registry))
    }

    fn of(path: PathBuf) -> Self {
        Self {
            path,
            member: Mutex::default(),
        }
    }

    /// Returns this process's membership, if it has one.
    fn own_member(&self) -> Option<Arc<Member>> {
        let member = self.lock_member().ok()?;
        member.upgrade().filter(|member| !member.is_foreign())
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a number that identifies this registry while it has entries; any other has another number. Makes
    /// the directory if it is missing.
    pub fn identity(&self) -> Result<u64, RegistryError> {
        let dir = self.open_or_create_directory()?;
        let is_whole = |bytes: &Vec<u8>| bytes.len() == IDENTITY_BYTES;
        let known = self.read_entry(&dir, IDENTITY_FILE)?;
        let (dir, mut bytes) = match known.filter(is_whole) {
            Some(bytes) => (dir, bytes),
            None => self.make_identity()?,
        };
        // A copy of the directory is another registry.
        let stat = fstat(&dir).map_err(|errno| self.failed("", errno))?;
        bytes.extend_from_slice(&stat.st_dev.to_le_bytes());
        bytes.extend_from_slice(&stat.st_ino.to_le_bytes());
        Ok(fnv1a(&bytes).max(1))
    }

    /// Makes the registry's random number, unless another process has. Returns it, and the directory.
    fn make_identity(&self) -> Result<(OwnedFd, Vec<u8>), RegistryError> {
        let locked = self.lock()?;
        let dir = locked.dir.try_clone();
        let dir = dir.map_err(|source| RegistryError::io("using", &self.path, source))?;
        let known = self.read_entry(&locked.dir, IDENTITY_FILE)?;
        if let Some(bytes) = known.filter(|bytes| bytes.len() == IDENTITY_BYTES) {
            return Ok((dir, bytes));
        }
        let halves = [new_generation(), new_generation()];
        let bytes: Vec<u8> = halves.into_iter().flat_map(u64::to_le_bytes).collect();
        self.write_entry(&locked.dir, IDENTITY_FILE, &bytes)?;
        Ok((dir, bytes))
    }

    /// Returns the names of all entries.
    fn entries(&self, dir: &OwnedFd) -> Result<Vec<String>, RegistryError> {
        let failed = |errno| self.failed("listing", errno);
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // All our names are ASCII; skip others.
            if let Ok(name) = entry.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns the bytes of an entry, or `None` if there is none. Cuts off entries longer than any of ours.
    fn read_entry(&self, dir: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>, RegistryError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(name, errno)),
        };
        self.read_opened(&file, name).map(Some)
    }

    /// Returns the bytes of an open entry, or the beginning of them.
    fn read_opened(&self, file: &File, name: &str) -> Result<Vec<u8>, RegistryError> {
        let mut bytes = Vec::new();
        file.take(record::ENTRY_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| RegistryError::io("reading", &self.path.join(name), source))?;
        Ok(bytes)
    }

    /// Writes an entry so that it appears whole. The caller holds the lock.
    fn write_entry(&self, dir: &OwnedFd, name: &str, bytes: &[u8]) -> Result<Entry, RegistryError> {
        self.check_file_size(bytes)?;
        let temporary = temporary(dir);
        let written = create_file(dir, &temporary).and_then(|file| write_all(&file, bytes));
        let written = written.and_then(|()| renameat(dir, &temporary, dir, name));
        let entry = || Entry {
            name: name.to_owned(),
            bytes: bytes.to_owned(),
        };
        written.map(|()| entry()).map_err(|errno| {
            let _ = unlinkat(dir, &temporary, AtFlags::empty());
            self.write_error(name, bytes, errno)
        })
    }

    /// Checks the limit beyond which writing would raise a fatal signal.
    fn check_file_size(&self, bytes: &[u8]) -> Result<(), RegistryError> {
        match process_limits::file_size() {
            Some(limit) if limit < bytes.len() as u64 => {
                Err(self.no_space(bytes.len(), "the file size limit (ulimit -f)"))
            }
            _ => Ok(()),
        }
    }

    fn write_error(&self, name: &str, bytes: &[u8], errno: Errno) -> RegistryError {
        match errno {
            Errno::NOSPC | Errno::DQUOT => self.no_space(bytes.len(), "its file system"),
            errno => self.failed(name, errno),
        }
    }

    /// Removes an entry if it still is the one we made; returns whether it was. The caller holds the lock.
    fn remove_entry(&self, dir: &OwnedFd, entry: &Entry) -> bool {
        let found = self.read_entry(dir, &entry.name);
        let same = matches!(found, Ok(Some(bytes)) if bytes == entry.bytes);
        same && unlinkat(dir, &entry.name, AtFlags::empty()).is_ok()
    }

    fn failed(&self, what: &str, errno: Errno) -> RegistryError {
        match errno {
            Errno::NOSPC | Errno::DQUOT => self.no_space(0, "its file system"),
            errno => RegistryError::io("using", &self.path.join(what), errno.into()),
        }
    }

    fn no_space(&self, bytes: usize, limit: &'static str) -> RegistryError {
        // A file takes whole pages, and the directory may need another page.
        let page = rustix::param::page_size() as u64;
        let wanted = (bytes as u64).next_multiple_of(page) + page;
        RegistryError::NoSpace {
            path: self.path.clone(),
            wanted,
            limit,
        }
    }
}

/// Locks a mutex if no thread holds it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn create_file(dir: &OwnedFd, name: &str) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

fn write_all(mut file: &File, bytes: &[u8]) -> Result<(), Errno> {
    let written = file.write_all(bytes);
    written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Returns the name for a file that is not complete yet. The caller holds the lock.
fn temporary(dir: &OwnedFd) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let name = format!("t.{}.{number}", std::process::id());
    // A dead process may have left one of this name. No other process writes: we hold the lock.
    let _ = unlinkat(dir, &name, AtFlags::empty());
    name
}

/// An entry that we made. It is removed only if it still holds what we wrote. (Inode numbers are reused.)
#[derive(Debug)]
struct Entry {
    name: String,
    bytes: Vec<u8>,
}

/// Returns the first usable path, judging by the environment and by who owns the directories.
fn default_path(variable: impl Fn(&str) -> Option<std::ffi::OsString>, uid: u32) -> PathBuf {
    let set = |name| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(path) = set(REGISTRY_VARIABLE) {
        return path;
    }
    // A stale variable, or one kept by sudo, names a directory that is missing or belongs to another user.
    let ours = |path: &PathBuf| owner_of(path) == Some(uid);
    if let Some(runtime) = set("XDG_RUNTIME_DIR")
        .filter(|path| path.is_absolute())
        .filter(ours)
    {
        return runtime.join("headworks");
    }
    let memory = Path::new("/dev/shm");
    let writable = rustix::fs::access(memory, rustix::fs::Access::WRITE_OK).is_ok();
    let parent = if writable { memory } else { Path::new("/tmp") };
    parent.join(format!("headworks-{uid}"))
}

fn owner_of(directory: &Path) -> Option<u32> {
    let stat = rustix::fs::stat(directory).ok()?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    is_directory.then_some(stat.st_uid)
}

/// Description of legal names, for error messages.
const NAME_FORM: &str = "1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'";

fn check_name(name: &str) -> Result<(), RegistryError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=64).contains(&name.len()) && name.bytes().all(legal) {
        return Ok(());
    }
    let name = name.chars().take(80).collect();
    Err(RegistryError::BadName {
        name,
        legal: NAME_FORM,
    })
}

#[cfg(test)]
mod tests;

//! The registry: one directory per user, in which the processes of that user find each other.
//!
//! Every change happens under a lock file that the kernel releases when its holder dies. Every entry names
//! its process, so that a later change can remove the entries of dead processes. Look-ups take no lock:
//! entries appear whole, by rename. The last process to leave removes the directory.
//!
//! ```text
//! lock                      locked while the registry changes
//! c.HOST.INDEX              a process in the soft host HOST, see ContextRecord
//! n.NAME, o.NAME            a socket that listens under NAME, and the process that owns it
//! s.KEY.PID.N               a hold of a process on the common segment KEY, see CommonSegmentRecord
//! t.…                       an entry being written; found under the lock it is a dead writer's
//! ```

use std::env;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::getuid;

mod common_segments;
mod context_claim;
mod directory;
mod error;
mod named_sockets;
mod record;

pub use common_segments::CommonSegmentClaim;
pub use context_claim::{CONTEXTS_MAX, ContextClaim};
pub use error::RegistryError;
pub use named_sockets::NameClaim;
pub use record::{CommonSegmentRecord, ContextRecord, HOST_NAME_BYTES_MAX};

use crate::segment::memory_limits::file_size_limit;

/// Number of a soft host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostKey(
    /// The number; the caller decides what it is derived from.
    pub u64,
);

/// Name of the environment variable that overrides the registry's path.
pub const REGISTRY_VARIABLE: &str = "HEADWORKS_FABRIC";

/// File whose content identifies the running machine since its boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

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
}

impl Registry {
    /// Opens the user's registry: `$HEADWORKS_FABRIC`, else `headworks` in `$XDG_RUNTIME_DIR`, else
    /// `/dev/shm/headworks-UID`, else `/tmp/headworks-UID`. Makes it if it is missing.
    pub fn open_default() -> Result<Arc<Self>, RegistryError> {
        Self::open_at(default_path(|name| env::var_os(name), getuid().as_raw()))
    }

    /// Opens the user's registry if it exists; never makes it.
    pub fn open_existing_default() -> Result<Option<Arc<Self>>, RegistryError> {
        Self::open_existing_at(default_path(|name| env::var_os(name), getuid().as_raw()))
    }

    /// Opens the registry at `path` if it exists; never makes it. Refuses one that other users can reach.
    pub fn open_existing_at(path: impl Into<PathBuf>) -> Result<Option<Arc<Self>>, RegistryError> {
        let path = std::path::absolute(path.into())
            .map_err(|source| RegistryError::io("the registry's path", Path::new("."), source))?;
        let registry = Self { path };
        let there = registry.open_existing_directory()?.is_some();
        Ok(there.then(|| Arc::new(registry)))
    }

    /// Opens the registry at `path`. Makes it if it is missing; refuses one that other users can reach.
    pub fn open_at(path: impl Into<PathBuf>) -> Result<Arc<Self>, RegistryError> {
        let path = std::path::absolute(path.into())
            .map_err(|source| RegistryError::io("the registry's path", Path::new("."), source))?;
        let registry = Self { path };
        registry.open_or_create_directory()?;
        Ok(Arc::new(registry))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a number that identifies this directory on this machine while it exists; any other has
    /// another number. Returns 0 if the machine cannot be identified. Makes the directory if it is missing.
    pub fn identity(&self) -> Result<u64, RegistryError> {
        let dir = self.open_or_create_directory()?;
        let stat = fstat(&dir).map_err(|errno| self.failed("", errno))?;
        // Other processes on this machine may be able to read it and would get another number: return none.
        let Ok(mut bytes) = std::fs::read(BOOT_ID) else {
            return Ok(0);
        };
        bytes.extend_from_slice(&stat.st_dev.to_le_bytes());
        bytes.extend_from_slice(&stat.st_ino.to_le_bytes());
        Ok(fnv1a(&bytes).max(1))
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
            Ok(file) => std::fs::File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(name, errno)),
        };
        let mut bytes = Vec::new();
        file.take(record::ENTRY_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| RegistryError::io("reading", &self.path.join(name), source))?;
        Ok(Some(bytes))
    }

    /// Writes an entry so that it appears whole. The caller holds the lock.
    fn write_entry(&self, dir: &OwnedFd, name: &str, bytes: &[u8]) -> Result<Entry, RegistryError> {
        // Writing beyond the file size limit would raise a fatal signal.
        if file_size_limit().is_some_and(|limit| limit < bytes.len() as u64) {
            return Err(self.no_space(bytes.len(), "the file size limit (ulimit -f)"));
        }
        let temporary = temporary(dir);
        let written = self.write_whole(dir, &temporary, bytes);
        let written = written.and_then(|()| renameat(dir, &temporary, dir, name));
        let entry = || Entry {
            name: name.to_owned(),
            bytes: bytes.to_owned(),
        };
        written.map(|()| entry()).map_err(|errno| {
            let _ = unlinkat(dir, &temporary, AtFlags::empty());
            match errno {
                Errno::NOSPC | Errno::DQUOT => self.no_space(bytes.len(), "its file system"),
                errno => self.failed(name, errno),
            }
        })
    }

    /// Removes an entry if it still is the one we made; returns whether it was. The caller holds the lock.
    fn remove_entry(&self, dir: &OwnedFd, entry: &Entry) -> bool {
        let found = self.read_entry(dir, &entry.name);
        let same = matches!(found, Ok(Some(bytes)) if bytes == entry.bytes);
        same && unlinkat(dir, &entry.name, AtFlags::empty()).is_ok()
    }

    fn write_whole(&self, dir: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(bytes)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
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

/// Returns the name for a file that is not complete yet. The caller holds the lock.
fn temporary(dir: &OwnedFd) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let name = format!("t.{}.{number}", std::process::id());
    // A dead process with our id may have left one. No other live process writes: we hold the lock.
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

/// Returns the path of an entry by way of an open directory: short, however deep the directory is.
fn path_in(dir: &OwnedFd, name: &str) -> PathBuf {
    use std::os::fd::AsRawFd;
    let mut path = PathBuf::from("/proc/self/fd");
    path.push(dir.as_fd().as_raw_fd().to_string());
    path.push(OsStr::new(name));
    path
}

#[cfg(test)]
mod tests;

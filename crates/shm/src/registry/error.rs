//! What can go wrong with the registry.

use std::io;
use std::path::{Path, PathBuf};

use crate::SegmentError;

/// Why the registry could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The directory is another user's.
    #[error("the registry {} belongs to user {owner}, not to us (user {us}): set HEADWORKS_FABRIC to a directory of your own", path.display())]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        us: u32,
    },
    /// Others can reach the directory.
    #[error("the registry {} has mode {mode:04o}, it must be 0700: name a directory of its own, or, if it is one, chmod 700 {}", path.display(), path.display())]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// There is something else in its place.
    #[error("the registry {} is not a directory (or a symbolic link to one)", path.display())]
    NotDirectory {
        /// The path.
        path: PathBuf,
    },
    /// There is no room for an entry.
    #[error("no room in the registry {}: {limit} is too small, {wanted} more bytes and 2 more files would be enough", path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Bytes that would be enough.
        wanted: u64,
        /// What is short.
        limit: &'static str,
    },
    /// An entry was written by another version of this software.
    #[error("registry entry {entry} has version {found}, this is version {expected}")]
    Layout {
        /// The entry.
        entry: String,
        /// Its version.
        found: u32,
        /// This software's version.
        expected: u32,
    },
    /// An entry is not what this software writes.
    #[error("registry entry {entry} is malformed: {what}")]
    Malformed {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// All contexts of a soft host are taken.
    #[error("the soft host has {limit} contexts, which is the limit: close a device first")]
    Full {
        /// How many there can be.
        limit: u16,
    },
    /// Not a legal name.
    #[error("bad name {name:?}: a name is {legal}")]
    BadName {
        /// The name, or its beginning.
        name: String,
        /// What is legal.
        legal: &'static str,
    },
    /// A live process listens under the name.
    #[error("the name {name} is in use by process {pid}")]
    NameInUse {
        /// The name.
        name: String,
        /// Who uses it.
        pid: u32,
    },
    /// No live process listens under the name.
    #[error("nobody listens under the name {name}")]
    NobodyListening {
        /// The name.
        name: String,
    },
    /// A common segment is there, and not as it was asked for.
    #[error(
        "the common segment {key} of process {pid} has {what} {found}, this program wants {expected}"
    )]
    Unlike {
        /// What it is called.
        key: String,
        /// Who holds it.
        pid: u32,
        /// In what they differ.
        what: &'static str,
        /// What it has.
        found: u64,
        /// What was asked for.
        expected: u64,
    },
    /// A common segment could not be made or attached.
    #[error("{what}: {source}")]
    Segment {
        /// Which one, and who holds it.
        what: String,
        /// Error of the segment.
        source: SegmentError,
    },
    /// Somebody keeps us from getting on: holds the lock, or does not accept connections.
    #[error("{what} for {seconds} seconds: is its process stopped?")]
    Busy {
        /// What did not happen.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The operating system refused.
    #[error("registry: {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl RegistryError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

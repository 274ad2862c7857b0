//! Errors of the registry.

use std::io;
use std::path::{Path, PathBuf};

use crate::SegmentError;

/// Error of using the registry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The directory belongs to another user.
    #[error("the registry {} belongs to user {owner}{}, not to us (user {us}): set HEADWORKS_FABRIC to a directory of your own", path.display(), unknown_user(*.owner))]
    Owner {
        /// The directory.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// Our user id.
        us: u32,
    },
    /// Other users can reach the directory.
    #[error("the registry {} has mode {mode:04o}, it must be 0700: name a directory of its own, or, if it is one, chmod 700 {}", path.display(), path.display())]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The path names something other than a directory.
    #[error("the registry {} is not a directory (or a symbolic link to one)", path.display())]
    NotDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The directory cannot be made.
    #[error("the registry {} cannot be made (set HEADWORKS_FABRIC to a directory that you may write to): {source}", path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A part of the path is a symbolic link to nothing.
    #[error("{} is a symbolic link to nothing: set HEADWORKS_FABRIC to a directory", path.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
    },
    /// There is no room for an entry.
    #[error("no room in the registry {}: {limit} is too small, {wanted} more bytes and 2 more files would be enough", path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Additional bytes that would be enough.
        wanted: u64,
        /// Name of the resource or limit that is too small.
        limit: &'static str,
    },
    /// An entry was written by another version of this software.
    #[error("registry entry {entry} has version {found}, this is version {expected}")]
    Layout {
        /// The entry's name.
        entry: String,
        /// The entry's version.
        found: u32,
        /// This software's version.
        expected: u32,
    },
    /// An entry has a form that this software does not write.
    #[error("registry entry {entry} is malformed: {what}")]
    Malformed {
        /// The entry's name.
        entry: String,
        /// Description of the defect.
        what: &'static str,
    },
    /// All contexts of a soft host are taken.
    #[error("the soft host has {limit} contexts, which is the limit: close a device first")]
    Full {
        /// Maximum number of contexts.
        limit: u16,
    },
    /// All slots for processes are taken.
    #[error("the registry has entries of {limit} processes, which is the limit")]
    Processes {
        /// Maximum number of processes.
        limit: u32,
    },
    /// A process that lives did not answer.
    #[error("{who} did not answer within {millis} ms: is it stopped?")]
    Unanswered {
        /// The process.
        who: String,
        /// How long we waited, in milliseconds.
        millis: u64,
    },
    /// The path of the directory is too long for the address of a socket.
    #[error("the registry's path {} is too long for its sockets, and there is no /proc to shorten it: use one of at most {max} bytes", path.display())]
    PathTooLong {
        /// The directory.
        path: PathBuf,
        /// Most bytes of a path that is not too long.
        max: usize,
    },
    /// The name is not legal.
    #[error("bad name {name:?}: a name is {legal}")]
    BadName {
        /// The name, or its beginning.
        name: String,
        /// Description of legal names.
        legal: &'static str,
    },
    /// A live process listens under the name.
    #[error("the name {name} is in use by {who}")]
    NameInUse {
        /// The name.
        name: String,
        /// The listener.
        who: String,
    },
    /// No live process listens under the name.
    #[error("nobody listens under the name {name} in {}", registry.display())]
    NobodyListening {
        /// The name.
        name: String,
        /// The registry.
        registry: PathBuf,
    },
    /// An existing common segment differs from the requested one.
    #[error("the common segment {key} of {who} has {what} {found}, this program wants {expected}")]
    Unlike {
        /// The segment's key.
        key: String,
        /// A holder.
        who: String,
        /// Name of the property that differs.
        what: &'static str,
        /// The existing segment's value.
        found: u64,
        /// The requested value.
        expected: u64,
    },
    /// A common segment could not be made or attached.
    #[error("{what}: {source}")]
    Segment {
        /// The segment, and its holder if it has one.
        what: String,
        /// The segment's error.
        source: SegmentError,
    },
    /// Another process blocks us: it holds the lock, or does not accept connections.
    #[error("{what} for {seconds} seconds: is its process stopped?")]
    Busy {
        /// Description of what did not happen.
        what: String,
        /// How long we waited, in seconds.
        seconds: u64,
    },
    /// The operating system refused.
    #[error("registry: {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The path that it was applied to.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns a remark about the user id that the kernel shows for every user of other user namespaces.
fn unknown_user(owner: u32) -> &'static str {
    match owner {
        65534 => " (nobody, or a user that is unknown in this user namespace)",
        _ => "",
    }
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

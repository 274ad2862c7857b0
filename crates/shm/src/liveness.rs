//! Identity and liveness of processes, without process ids: an id means nothing in another PID namespace, and
//! is reused.
//!
//! A process is known by its entry in a registry: a slot, and a generation that no other holder of the slot has.
//! It lives while the kernel keeps the lock on that entry ([`file_lock`]). To be told of its
//! death, others get a pidfd that the process opened of itself.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::file_lock;

/// Identity of one process in its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Slot of its entry in the registry. Slots are reused.
    pub slot: u32,
    /// Number that tells it from every other process that has had the slot: random, below
    /// [`GENERATION_END`], never 0.
    pub generation: u64,
}

/// Every generation is less than this.
pub const GENERATION_END: u64 = 1 << 48;

/// Opens a descriptor that becomes readable when the calling process ends.
///
/// # Errors
///
/// The errors of pidfd_open(2): an old kernel has no such call, and a sandbox may forbid it.
pub fn open_own_pidfd() -> io::Result<OwnedFd> {
    Ok(pidfd_open(getpid(), PidfdFlags::empty())?)
}

/// Returns whether the process of a pidfd has ended. It needs no other descriptor, so it also works where no more
/// can be opened.
pub fn pidfd_is_dead(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::IN)
}

/// Evidence of a process's life, kept open so that asking for it needs no other descriptor.
#[derive(Debug)]
pub struct ProcessWatch(Evidence);

#[derive(Debug)]
enum Evidence {
    /// Readable once the process has ended.
    Pidfd(OwnedFd),
    /// Its entry, locked while it lives. Nothing tells of its death: it must be asked for.
    Entry(File),
}

impl ProcessWatch {
    /// Watches the process that sent this pidfd of itself.
    pub fn of_pidfd(pidfd: OwnedFd) -> Self {
        Self(Evidence::Pidfd(pidfd))
    }

    pub(crate) fn of_entry(entry: File) -> Self {
        Self(Evidence::Entry(entry))
    }

    /// Returns whether the process has ended. When in doubt the result is false: a live process must not be
    /// cleaned up after.
    pub fn is_dead(&self) -> bool {
        match &self.0 {
            Evidence::Pidfd(pidfd) => pidfd_is_dead(pidfd.as_fd()),
            Evidence::Entry(entry) => matches!(file_lock::is_locked(entry), Ok(false)),
        }
    }

    /// Returns the descriptor that becomes readable when the process ends; `None` if there is none, so that
    /// [`is_dead`](Self::is_dead) must be called now and then.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Evidence::Pidfd(pidfd) => Some(pidfd.as_fd()),
            Evidence::Entry(_) => None,
        }
    }
}

/// Returns a new generation.
pub(crate) fn new_generation() -> u64 {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let random = match filled {
        Ok(8) => u64::from_le_bytes(bytes),
        // A sandbox without the call. The slot's lock still excludes two holders at a time; the clock tells
        // those that follow each other apart.
        _ => clock_nanos() ^ u64::from(std::process::id()) << 32,
    };
    (random % GENERATION_END).max(1)
}

/// Returns the time since the machine started, in nanoseconds.
pub(crate) fn clock_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the name of the calling process's command as `ps` shows it, or the name that it was started under
/// where `/proc` is not readable: at most [`COMMAND_BYTES_MAX`] arbitrary bytes.
pub(crate) fn own_command() -> Vec<u8> {
    let mut name = std::fs::read("/proc/self/comm").unwrap_or_else(|_| {
        let program = std::env::args_os().next().map(std::path::PathBuf::from);
        let name = program.as_deref().and_then(std::path::Path::file_name);
        name.map_or(Vec::new(), |name| name.as_encoded_bytes().to_owned())
    });
    while name.last() == Some(&b'\n') {
        name.pop();
    }
    name.truncate(COMMAND_BYTES_MAX);
    name
}

/// Longest name of a command, in bytes.
pub(crate) const COMMAND_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::fork::CloseOnFork;

    #[test]
    fn a_pidfd_tells_of_the_end_of_its_process_even_unreaped() {
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep starts");
        let pidfd = pidfd_open(
            rustix::process::Pid::from_child(&child),
            PidfdFlags::empty(),
        );
        let watch = ProcessWatch::of_pidfd(pidfd.expect("a pidfd"));
        assert!(!watch.is_dead());
        child.kill().expect("kill");
        let fd = watch.fd().expect("a pidfd");
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).expect("poll");
        assert!(watch.is_dead(), "a zombie is dead");
        child.wait().expect("reap");
        assert!(watch.is_dead());
        let ours = ProcessWatch::of_pidfd(open_own_pidfd().expect("a pidfd"));
        assert!(!ours.is_dead());
    }

    #[test]
    fn an_entry_tells_of_life_while_it_is_locked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("entry");
        let held = CloseOnFork::new(File::create(&path).expect("made"));
        assert_eq!(file_lock::try_lock(&held), Ok(true));
        let watch = ProcessWatch::of_entry(File::open(&path).expect("opened"));
        assert!(!watch.is_dead() && watch.fd().is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(!watch.is_dead(), "its name does not matter");
        drop(held);
        assert!(watch.is_dead());
    }

    #[test]
    fn generations_are_in_range_and_differ() {
        let all: std::collections::BTreeSet<u64> = (0..100).map(|_| new_generation()).collect();
        assert_eq!(all.len(), 100);
        assert!(all.iter().all(|one| (1..GENERATION_END).contains(one)));
    }
}

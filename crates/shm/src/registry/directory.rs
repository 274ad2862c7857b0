//! Opening, making, locking and removing the registry's directory.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, open, openat, stat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::getuid;

use super::{IDENTITY_FILE, Registry, RegistryError};
use crate::fork::CloseOnFork;
use crate::process_limits;

const LOCK_FILE: &str = "lock";
/// Files that belong to no process, in the order in which they are removed. Once the lock file is gone, another process
/// may use the directory.
const COMMON_FILES: [&str; 2] = [IDENTITY_FILE, LOCK_FILE];
/// Permissions of a directory that a process makes. The sticky bit means nothing in a directory of one user. It
/// tells the directory from one that somebody else made, which is kept when all have left.
const MADE_MODE: u32 = 0o1700;

/// How long to wait for another process to release the lock, which is held for a few system calls.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(1);

/// Longest pause between two tries: many waiting processes must not keep the holder from its processor.
const RETRY_MAX: Duration = Duration::from_millis(16);

/// Returns how often the lock was taken, as its holders count; 0 if nobody counted.
fn read_turn(lock: &OwnedFd) -> u64 {
    let mut turn = [0; 8];
    match pread(lock, &mut turn, 0) {
        Ok(8) => u64::from_le_bytes(turn),
        _ => 0,
    }
}

/// Counts that the lock was taken. Called by its holder. If it fails (a full disk), others wait no longer than before.
fn write_turn(lock: &OwnedFd) {
    let turn = read_turn(lock).wrapping_add(1);
    // Writing beyond the file size limit would raise a fatal signal.
    if process_limits::file_size().is_some_and(|limit| limit < 8) {
        return;
    }
    let _ = pwrite(lock, &turn.to_le_bytes(), 0);
}

/// Returns the part of a path that is a symbolic link to nothing, if one is.
fn dangling_link(path: &Path) -> Option<&Path> {
    path.ancestors().find(|part| {
        let is_link = part.symlink_metadata().is_ok_and(|at| at.is_symlink());
        is_link && part.metadata().is_err()
    })
}

/// The directory, locked against changes by others until dropped.
#[derive(Debug)]
pub(super) struct LockedDirectory {
    pub(super) dir: OwnedFd,
    // A child forked meanwhile must not keep the lock if this process is killed.
    lock: CloseOnFork<OwnedFd>,
}

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        // Unlock explicitly: a child made by a raw system call holds the descriptor too.
        let _ = flock(&*self.lock, FlockOperation::Unlock);
    }
}

impl Registry {
    /// Opens the directory if it exists; refuses one that is not ours alone.
    pub(super) fn open_existing_directory(&self) -> Result<Option<OwnedFd>, RegistryError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match open(&self.path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(RegistryError::NotDirectory {
                    path: self.path.clone(),
                });
            }
            Err(Errno::ACCESS) => return Err(self.access_error()),
            Err(errno) => return Err(self.failed("", errno)),
        };
        let stat = fstat(&dir).map_err(|errno| self.failed("", errno))?;
        self.check(stat.st_uid, stat.st_mode)?;
        Ok(Some(dir))
    }

    /// Opens the directory; makes it if it is missing.
    pub(super) fn open_or_create_directory(&self) -> Result<OwnedFd, RegistryError> {
        let start = Instant::now();
        loop {
            if let Some(dir) = self.open_existing_directory()? {
                return Ok(dir);
            }
            match DirBuilder::new()
                .recursive(true)
                .mode(MADE_MODE)
                .create(&self.path)
            {
                Ok(()) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::EXIST) => {
                        if let Some(link) = dangling_link(&self.path) {
                            let path = link.to_owned();
                            return Err(RegistryError::DanglingLink { path });
                        }
                    }
                    Some(Errno::NOSPC | Errno::DQUOT) => {
                        return Err(self.no_space(0, "its file system"));
                    }
                    _ => {
                        return Err(RegistryError::Make {
                            path: self.path.clone(),
                            source: error,
                        });
                    }
                },
            }
            // The last process to leave may have removed it again; that cannot continue for ever.
            self.check_lock_timeout(start, "the directory is removed as soon as it is made")?;
        }
    }

    /// Locks the directory; makes it if it is missing.
    pub(super) fn lock(&self) -> Result<LockedDirectory, RegistryError> {
        let start = Instant::now();
        loop {
            let dir = self.open_or_create_directory()?;
            if let Some(locked) = self.lock_dir(dir, start)? {
                return Ok(locked);
            }
            self.check_lock_timeout(start, "the directory keeps being removed")?;
        }
    }

    /// Locks the directory; `None` if it is missing.
    pub(super) fn lock_existing(&self) -> Result<Option<LockedDirectory>, RegistryError> {
        let start = Instant::now();
        while let Some(dir) = self.open_existing_directory()? {
            if let Some(locked) = self.lock_dir(dir, start)? {
                return Ok(Some(locked));
            }
            self.check_lock_timeout(start, "the directory keeps being removed")?;
        }
        Ok(None)
    }

    /// Removes the common files if there is nothing else, and the directory if a process made it. A process
    /// waiting for the lock notices that and retries.
    pub(super) fn remove_if_empty(&self, locked: &LockedDirectory) {
        let Ok(names) = self.entries(&locked.dir) else {
            return;
        };
        let is_common = |name: &String| COMMON_FILES.contains(&&name[..]);
        let mut rest = names.iter().filter(|name| !matches!(&name[..], "." | ".."));
        if !rest.all(is_common) || !self.is_current(&locked.dir) {
            return;
        }
        let sticky = MADE_MODE & 0o7000;
        let is_ours = fstat(&locked.dir).is_ok_and(|stat| stat.st_mode & sticky != 0);
        for name in COMMON_FILES
            .iter()
            .filter(|name| names.iter().any(|n| n == *name))
        {
            let _ = unlinkat(&locked.dir, *name, AtFlags::empty());
        }
        if is_ours {
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Locks `dir`; `None` if it has been removed meanwhile.
    fn lock_dir(
        &self,
        dir: OwnedFd,
        start: Instant,
    ) -> Result<Option<LockedDirectory>, RegistryError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = CloseOnFork::open(|| openat(&dir, LOCK_FILE, flags, Mode::RUSR | Mode::WUSR));
        let lock = match opened {
            Ok(lock) => lock,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(LOCK_FILE, errno)),
        };
        // Many processes may wait, each for its turn: the limit is for one holder.
        let (mut start, mut seen) = (start, None);
        let mut pause = RETRY_EVERY;
        loop {
            match flock(&*lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let turn = read_turn(&lock);
                    if seen.replace(turn) != Some(turn) {
                        start = Instant::now();
                    }
                    self.check_lock_timeout(start, "its lock has been held by another process")?;
                    thread::sleep(pause);
                    pause = (pause * 2).min(RETRY_MAX);
                }
                Err(errno) => return Err(self.failed(LOCK_FILE, errno)),
            }
        }
        write_turn(&lock);
        let linked = fstat(&*lock).is_ok_and(|stat| stat.st_nlink > 0);
        let current = linked && self.is_current(&dir);
        Ok(current.then_some(LockedDirectory { dir, lock }))
    }

    /// Returns whether `dir` still is the directory that the path names.
    fn is_current(&self, dir: &OwnedFd) -> bool {
        match (fstat(dir), stat(&self.path)) {
            (Ok(open), Ok(named)) => (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino),
            _ => false,
        }
    }

    fn check_lock_timeout(&self, start: Instant, what: &str) -> Result<(), RegistryError> {
        if start.elapsed() < LOCK_TIMEOUT {
            return Ok(());
        }
        let what = format!("registry {}: {what}", self.path.display());
        Err(RegistryError::Busy {
            what,
            seconds: LOCK_TIMEOUT.as_secs(),
        })
    }

    /// Returns the error that explains why the directory may not be opened.
    fn access_error(&self) -> RegistryError {
        match stat(&self.path) {
            Ok(stat) => match self.check(stat.st_uid, stat.st_mode) {
                Err(error) => error,
                Ok(()) => self.failed("", Errno::ACCESS),
            },
            Err(errno) => self.failed("", errno),
        }
    }

    fn check(&self, owner: u32, mode: u32) -> Result<(), RegistryError> {
        let us = getuid().as_raw();
        let path = || self.path.clone();
        if FileType::from_raw_mode(mode) != FileType::Directory {
            return Err(RegistryError::NotDirectory { path: path() });
        }
        if owner != us {
            return Err(RegistryError::Owner {
                path: path(),
                owner,
                us,
            });
        }
        if mode & 0o077 != 0 {
            return Err(RegistryError::Mode {
                path: path(),
                mode: mode & 0o7777,
            });
        }
        Ok(())
    }
}

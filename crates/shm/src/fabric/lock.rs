//! Opening, making, locking and removing the directory.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, open, openat, stat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::getuid;

use super::{FabricDir, FabricError};

const LOCK: &str = "lock";

/// How long somebody else may hold the lock; it is held for a few system calls.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// The directory while nobody else changes it.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) dir: OwnedFd,
    lock: OwnedFd,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Explicitly: a child forked meanwhile holds the descriptor too.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl FabricDir {
    /// The directory, if it exists, and is ours alone.
    pub(super) fn open_existing(&self) -> Result<Option<OwnedFd>, FabricError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match open(&self.path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(FabricError::NotDirectory {
                    path: self.path.clone(),
                });
            }
            Err(Errno::ACCESS) => return Err(self.whose()),
            Err(errno) => return Err(self.failed("", errno)),
        };
        let stat = fstat(&dir).map_err(|errno| self.failed("", errno))?;
        self.check(stat.st_uid, stat.st_mode)?;
        Ok(Some(dir))
    }

    /// The directory, made if it is missing.
    pub(super) fn open_or_make(&self) -> Result<OwnedFd, FabricError> {
        let start = Instant::now();
        loop {
            if let Some(dir) = self.open_existing()? {
                return Ok(dir);
            }
            match DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.path)
            {
                Ok(()) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::EXIST) => {}
                    Some(Errno::NOSPC | Errno::DQUOT) => {
                        return Err(self.no_space(0, "its file system"));
                    }
                    _ => return Err(FabricError::io("making", &self.path, error)),
                },
            }
            // It may have been removed again by the last one to leave; that cannot go on for ever.
            self.still_patient(start, "the directory is removed as soon as it is made")?;
        }
    }

    /// The locked directory, made if it is missing.
    pub(super) fn lock(&self) -> Result<Locked, FabricError> {
        let start = Instant::now();
        loop {
            let dir = self.open_or_make()?;
            if let Some(locked) = self.lock_dir(dir, start)? {
                return Ok(locked);
            }
            self.still_patient(start, "the directory keeps being removed")?;
        }
    }

    /// The locked directory, unless it is missing.
    pub(super) fn lock_existing(&self) -> Result<Option<Locked>, FabricError> {
        let start = Instant::now();
        while let Some(dir) = self.open_existing()? {
            if let Some(locked) = self.lock_dir(dir, start)? {
                return Ok(Some(locked));
            }
            self.still_patient(start, "the directory keeps being removed")?;
        }
        Ok(None)
    }

    /// Removes the directory if nothing is left in it. Whoever waits for the lock meanwhile sees that and starts over.
    pub(super) fn remove_if_empty(&self, locked: &Locked) {
        let nothing_left = self.entries(&locked.dir).is_ok_and(|names| {
            names
                .iter()
                .all(|name| matches!(&name[..], "." | ".." | LOCK))
        });
        if nothing_left && self.is_current(&locked.dir) {
            let _ = unlinkat(&locked.dir, LOCK, AtFlags::empty());
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Locks `dir`; `None` if it turns out to have been removed.
    fn lock_dir(&self, dir: OwnedFd, start: Instant) -> Result<Option<Locked>, FabricError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = match openat(&dir, LOCK, flags, Mode::RUSR | Mode::WUSR) {
            Ok(lock) => lock,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(LOCK, errno)),
        };
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    self.still_patient(start, "its lock has been held by another process")?;
                    thread::sleep(RETRY_EVERY);
                }
                Err(errno) => return Err(self.failed(LOCK, errno)),
            }
        }
        let linked = fstat(&lock).is_ok_and(|stat| stat.st_nlink > 0);
        let current = linked && self.is_current(&dir);
        Ok(current.then_some(Locked { dir, lock }))
    }

    /// Whether `dir` still is what the path names.
    fn is_current(&self, dir: &OwnedFd) -> bool {
        match (fstat(dir), stat(&self.path)) {
            (Ok(open), Ok(named)) => (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino),
            _ => false,
        }
    }

    fn still_patient(&self, start: Instant, what: &str) -> Result<(), FabricError> {
        if start.elapsed() < PATIENCE {
            return Ok(());
        }
        let what = format!("registry {}: {what}", self.path.display());
        Err(FabricError::Busy {
            what,
            seconds: PATIENCE.as_secs(),
        })
    }

    /// Why it may not be opened.
    fn whose(&self) -> FabricError {
        match stat(&self.path) {
            Ok(stat) => match self.check(stat.st_uid, stat.st_mode) {
                Err(error) => error,
                Ok(()) => self.failed("", Errno::ACCESS),
            },
            Err(errno) => self.failed("", errno),
        }
    }

    fn check(&self, owner: u32, mode: u32) -> Result<(), FabricError> {
        let us = getuid().as_raw();
        let path = || self.path.clone();
        if FileType::from_raw_mode(mode) != FileType::Directory {
            return Err(FabricError::NotDirectory { path: path() });
        }
        if owner != us {
            return Err(FabricError::Owner {
                path: path(),
                owner,
                us,
            });
        }
        if mode & 0o077 != 0 {
            return Err(FabricError::Mode {
                path: path(),
                mode: mode & 0o7777,
            });
        }
        Ok(())
    }
}

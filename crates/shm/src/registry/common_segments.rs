//! Common segments: one memory for all processes of the user that name the same key.
//!
//! A memory file has no name and is freed when its last holder is gone. So every holder has an entry in the
//! registry that records its descriptor's number, and a newcomer opens any holder's descriptor. While a
//! holder lives, all have the same memory. After the last is gone, however it ended, the next begins with
//! zeros.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, fstat, stat, unlinkat};

use super::record::owner;
use super::{CommonSegmentRecord, Entry, Registry, RegistryError, check_name};
use crate::ProcessId;
use crate::fork::ForkGeneration;
use crate::segment::{HugePages, SegmentError, SegmentRequest, SharedSegment};

/// How long to retry when a holder's descriptor may not be opened: while a process executes another program,
/// the kernel refuses access to its descriptors even to its own user.
const EXEC_LIMIT: Duration = Duration::from_millis(100);

/// A hold on a common segment, until dropped.
#[derive(Debug)]
pub struct CommonSegmentClaim {
    segment: Arc<SharedSegment>,
    is_first: bool,
    registry: Arc<Registry>,
    entry: Entry,
    generation: ForkGeneration,
}

impl Registry {
    /// Holds the segment of `len` bytes called `key`; makes it, of zeros, if no live process holds it. An
    /// existing one must have this `len` and `layout_version`, the version of what is kept in it.
    ///
    /// The registry is locked while it is made, so this is for small segments. A process may hold a segment
    /// several times.
    pub fn claim_common_segment(
        self: &Arc<Self>,
        key: &str,
        len: usize,
        layout_version: u32,
    ) -> Result<CommonSegmentClaim, RegistryError> {
        check_name(key)?;
        let locked = self.lock()?;
        let claim = self.hold_locked(&locked.dir, key, len, layout_version);
        if claim.is_err() {
            self.remove_if_empty(&locked);
        }
        claim
    }

    /// Returns the holds on common segments, by key: each hold of each live process. Skips entries that
    /// cannot be read (another version's).
    pub fn common_segments(&self) -> Result<Vec<(String, CommonSegmentRecord)>, RegistryError> {
        let Some(dir) = self.open_existing_directory()? else {
            return Ok(Vec::new());
        };
        let mut names = self.entries(&dir)?;
        names.sort_unstable();
        let mut found = Vec::new();
        for name in &names {
            let Some(key) = parse_file_name(name) else {
                continue;
            };
            if let Ok(Some(record)) = self.read_common(&dir, name) {
                found.push((key.to_owned(), record));
            }
        }
        Ok(found)
    }

    fn hold_locked(
        self: &Arc<Self>,
        dir: &OwnedFd,
        key: &str,
        len: usize,
        layout_version: u32,
    ) -> Result<CommonSegmentClaim, RegistryError> {
        self.clean(dir)?;
        let held = self.attach_held(dir, key, len, layout_version)?;
        let is_first = held.is_none();
        let segment = match held {
            Some(segment) => segment,
            None => make(key, len)?,
        };
        let process = ProcessId::current()
            .map_err(|source| RegistryError::io("holding a segment of", &self.path, source))?;
        let made = fstat(segment.fd()).map_err(|errno| self.failed(key, errno))?;
        let record = CommonSegmentRecord {
            process,
            layout_version,
            segment_fd: segment.fd().as_raw_fd(),
            inode: made.st_ino,
            len: len as u64,
        };
        let entry = self.write_entry(dir, &new_file_name(key, process.pid), &record.to_bytes())?;
        Ok(CommonSegmentClaim {
            segment: Arc::new(segment),
            is_first,
            registry: self.clone(),
            entry,
            generation: ForkGeneration::current(),
        })
    }

    /// Attaches the segment called `key` from any of its holders; `None` if there are none. The caller holds
    /// the lock.
    fn attach_held(
        &self,
        dir: &OwnedFd,
        key: &str,
        len: usize,
        layout_version: u32,
    ) -> Result<Option<SharedSegment>, RegistryError> {
        let mut refused = None;
        for name in self.entries(dir)? {
            if parse_file_name(&name) != Some(key) {
                continue;
            }
            let attached = self.read_common(dir, &name).and_then(|record| {
                let attach =
                    |record: CommonSegmentRecord| record.attach_as(key, len, layout_version);
                record.map_or(Ok(None), attach)
            });
            match attached {
                Ok(Some(segment)) => return Ok(Some(segment)),
                // Remove the stale entry for good: nobody may attach it once there is another segment.
                Ok(None) => {
                    let _ = unlinkat(dir, &name, AtFlags::empty());
                }
                // All holders have the same memory, so another one may give access if this one does not.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Parses an entry; `None` if it is gone or its process is dead.
    fn read_common(
        &self,
        dir: &OwnedFd,
        name: &str,
    ) -> Result<Option<CommonSegmentRecord>, RegistryError> {
        let Some(bytes) = self.read_entry(dir, name)? else {
            return Ok(None);
        };
        if owner(&bytes).is_some_and(|process| !process.is_alive()) {
            return Ok(None);
        }
        CommonSegmentRecord::parse(name, &bytes).map(Some)
    }
}

impl CommonSegmentClaim {
    /// Returns the segment. Newcomers get the same one as long as any process has a claim on it. A caller
    /// that keeps it beyond its claim may end up alone with it.
    pub fn segment(&self) -> &Arc<SharedSegment> {
        &self.segment
    }

    /// Returns whether this claim made the segment, of zeros. Others may have written to it since. Others may
    /// find zeros too, because the maker can have died at once.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Returns the registry that the claim is in.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }
}

impl Drop for CommonSegmentClaim {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        // An entry that cannot be removed is soon stale: its descriptor is closed, or is another file's.
        if let Ok(Some(locked)) = self.registry.lock_existing() {
            self.registry.remove_entry(&locked.dir, &self.entry);
            self.registry.remove_if_empty(&locked);
        }
    }
}

impl CommonSegmentRecord {
    /// Attaches the segment read-only, for observers; `None` if its holder has released it.
    pub fn attach_read_only(&self) -> Result<Option<SharedSegment>, SegmentError> {
        let fd = self.open(ProcessId::open_fd_read_only)?;
        fd.map(SharedSegment::attach_read_only).transpose()
    }

    /// Attaches the segment if it is as requested; `None` if its holder has released it.
    fn attach_as(
        &self,
        key: &str,
        len: usize,
        layout_version: u32,
    ) -> Result<Option<SharedSegment>, RegistryError> {
        let pid = self.process.pid;
        let failed = |source| RegistryError::Segment {
            what: format!("the common segment {key} of process {pid}"),
            source,
        };
        let Some(fd) = self.open(ProcessId::open_fd).map_err(failed)? else {
            return Ok(None);
        };
        let same = |what, found, expected| {
            let unlike = || RegistryError::Unlike {
                key: key.to_owned(),
                pid,
                what,
                found,
                expected,
            };
            (found == expected).then_some(()).ok_or_else(unlike)
        };
        let version = u64::from(self.layout_version);
        same("layout version", version, layout_version.into())?;
        let segment = SharedSegment::attach(fd).map_err(failed)?;
        same("length", segment.len() as u64, len as u64)?;
        Ok(Some(segment))
    }

    /// Opens the holder's descriptor with `how`; `None` if the holder is gone, or the descriptor is. (A
    /// process that executes another program is still the same process.)
    fn open(
        &self,
        how: fn(&ProcessId, i32) -> io::Result<OwnedFd>,
    ) -> Result<Option<OwnedFd>, SegmentError> {
        let process = self.process;
        let names_another_file = || {
            let seen = stat(format!("/proc/{}/fd/{}", process.pid, self.segment_fd));
            seen.is_ok_and(|seen| seen.st_ino != self.inode)
        };
        // Do not open another file: it may be one that cannot be opened at all.
        if names_another_file() {
            return Ok(None);
        }
        let began = Instant::now();
        let opened = loop {
            let opened = how(&process, self.segment_fd);
            let is_denied =
                matches!(&opened, Err(why) if why.kind() == io::ErrorKind::PermissionDenied);
            if !is_denied || began.elapsed() > EXEC_LIMIT {
                break opened;
            }
            std::thread::yield_now();
        };
        match opened {
            Ok(fd) => {
                let opened = fstat(&fd).map_err(SegmentError::os("fstat"))?;
                Ok((opened.st_ino == self.inode).then_some(fd))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // The number can be given to another file between the look above and the opening.
            Err(_) if names_another_file() || !process.is_alive() => Ok(None),
            Err(source) => Err(SegmentError::Os {
                step: "opening its holder's descriptor",
                source,
            }),
        }
    }
}

fn make(key: &str, len: usize) -> Result<SharedSegment, RegistryError> {
    let request = SegmentRequest {
        name: &format!("headworks-{key}"),
        len,
        huge_pages: HugePages::No,
        numa_node: None,
    };
    SharedSegment::create(&request).map_err(|source| RegistryError::Segment {
        what: format!("the common segment {key}"),
        source,
    })
}

fn new_file_name(key: &str, pid: u32) -> String {
    static CLAIMS: AtomicU64 = AtomicU64::new(0);
    file_name(key, pid, CLAIMS.fetch_add(1, Ordering::Relaxed))
}

fn file_name(key: &str, pid: u32, number: u64) -> String {
    format!("s.{key}.{pid}.{number}")
}

/// Returns the key of a common segment's entry with this file name. Keys may contain dots.
pub(super) fn parse_file_name(name: &str) -> Option<&str> {
    let (rest, number) = name.strip_prefix("s.")?.rsplit_once('.')?;
    let (key, pid) = rest.rsplit_once('.')?;
    check_name(key).ok()?;
    // Accept only the name that we write.
    (file_name(key, pid.parse().ok()?, number.parse().ok()?) == name).then_some(key)
}

#[cfg(test)]
mod tests;

//! Common segments: one memory for all processes of the user that name the same key.
//!
//! A memory file has no name and is freed when its last holder is gone. So every holder has an entry in the
//! registry and hands out the descriptor, and a newcomer asks any holder for it. While a holder lives, all have
//! the same memory. After the last is gone, however it ended, the next begins with zeros.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::fs::fstat;

use super::descriptor_server::{DescriptorRequest, DescriptorSource};
use super::directory::LOCK_TIMEOUT;
use super::record::owner;
use super::{
    CommonSegmentRecord, DescriptorClient, Entry, Listing, Member, Registry, RegistryError,
    check_name,
};
use crate::fork::ForkGeneration;
use crate::liveness::new_generation;
use crate::segment::{HugePages, SegmentRequest, SharedSegment};

/// Bit of the object of every common segment, which no context has.
const OBJECT: u64 = 1 << 63;

/// A hold on a common segment, until dropped.
#[derive(Debug)]
pub struct CommonSegmentClaim {
    segment: Arc<SharedSegment>,
    is_first: bool,
    entry: Entry,
    // Hands out the segment while the entry may be found, and a little longer.
    _source: Arc<SegmentSource>,
    member: Arc<Member>,
    generation: ForkGeneration,
}

/// Hands out the descriptor of a segment.
#[derive(Debug)]
struct SegmentSource(Arc<SharedSegment>);

impl DescriptorSource for SegmentSource {
    fn descriptors(&self, _: DescriptorRequest) -> io::Result<Option<Vec<OwnedFd>>> {
        Ok(Some(vec![self.0.fd().try_clone_to_owned()?]))
    }
}

/// An entry of a holder: its file name, and its content.
type Holder = (String, CommonSegmentRecord);

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
        let member = self.join()?;
        let begin = Instant::now();
        loop {
            let locked = self.lock()?;
            self.clean(&locked.dir)?;
            let (holders, refused) = self.holders(&locked.dir, key)?;
            if holders.is_empty() {
                if let Some(error) = refused {
                    return Err(error);
                }
                let made = make(key, len).and_then(|segment| {
                    self.hold_locked(&locked.dir, &member, key, layout_version, segment, true)
                });
                return made.inspect_err(|_| self.remove_if_empty(&locked));
            }
            // A holder may be stopped: others must be able to use the registry meanwhile.
            drop(locked);
            if let Some((segment, inode)) = self.attach_from(&holders, key, len, layout_version)? {
                let locked = self.lock()?;
                let (holders, _) = self.holders(&locked.dir, key)?;
                // If the last holder left meanwhile, the memory is not the one that the next will find.
                if holders.iter().any(|(_, record)| record.inode == inode) {
                    return self.hold_locked(
                        &locked.dir,
                        &member,
                        key,
                        layout_version,
                        segment,
                        false,
                    );
                }
            }
            if begin.elapsed() > LOCK_TIMEOUT {
                return Err(RegistryError::Busy {
                    what: format!("the holders of the common segment {key} come and go"),
                    seconds: LOCK_TIMEOUT.as_secs(),
                });
            }
        }
    }

    /// Returns the holds on common segments, in the order of their keys: each hold of each live process.
    ///
    /// # Errors
    ///
    /// The directory cannot be opened or listed. An entry that cannot be read is in [`Listing::unreadable`].
    pub fn common_segments(&self) -> Result<Listing<String, CommonSegmentRecord>, RegistryError> {
        let mut listing = Listing::default();
        let Some(dir) = self.open_existing_directory()? else {
            return Ok(listing);
        };
        let mut names = self.entries(&dir)?;
        names.sort_unstable();
        for name in &names {
            if let Some(key) = parse_file_name(name) {
                listing.add(key.to_owned(), self.read_common(&dir, name));
            }
        }
        Ok(listing)
    }

    fn hold_locked(
        self: &Arc<Self>,
        dir: &OwnedFd,
        member: &Arc<Member>,
        key: &str,
        layout_version: u32,
        segment: SharedSegment,
        is_first: bool,
    ) -> Result<CommonSegmentClaim, RegistryError> {
        let made = fstat(segment.fd()).map_err(|errno| self.failed(key, errno))?;
        let record = CommonSegmentRecord {
            process: member.id(),
            layout_version,
            object: OBJECT | new_generation(),
            inode: made.st_ino,
            len: segment.len() as u64,
        };
        let segment = Arc::new(segment);
        let source = Arc::new(SegmentSource(segment.clone()));
        let weak: Weak<SegmentSource> = Arc::downgrade(&source);
        // Whoever sees the entry may ask for the segment.
        member.serve_locked(dir, record.object, weak)?;
        let entry = self.write_entry(
            dir,
            &new_file_name(key, member.id().slot),
            &record.to_bytes(),
        )?;
        Ok(CommonSegmentClaim {
            segment,
            is_first,
            entry,
            _source: source,
            member: member.clone(),
            generation: ForkGeneration::current(),
        })
    }

    /// Returns the entries of the living holders of the segment called `key`, and the error of the first one that
    /// cannot be read. The caller holds the lock.
    fn holders(
        &self,
        dir: &OwnedFd,
        key: &str,
    ) -> Result<(Vec<Holder>, Option<RegistryError>), RegistryError> {
        let (mut holders, mut refused) = (Vec::new(), None);
        for name in self.entries(dir)? {
            if parse_file_name(&name) != Some(key) {
                continue;
            }
            match self.read_common(dir, &name) {
                Ok(Some(record)) => holders.push((name, record)),
                Ok(None) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Ok((holders, refused))
    }

    /// Attaches the segment called `key` from any of its holders, and returns it with its inode; `None` if none of
    /// them has it any more.
    fn attach_from(
        self: &Arc<Self>,
        holders: &[Holder],
        key: &str,
        len: usize,
        layout_version: u32,
    ) -> Result<Option<(SharedSegment, u64)>, RegistryError> {
        let mut refused = None;
        // A process may hold the segment several times: if it is stopped, it is waited for once.
        let mut silent = BTreeSet::new();
        for (name, record) in holders {
            if silent.contains(&record.process) {
                continue;
            }
            match self.attach_as(record, key, len, layout_version) {
                Ok(Some(segment)) => return Ok(Some((segment, record.inode))),
                // Remove the stale entry for good: nobody may attach it once there is another segment.
                Ok(None) => {
                    let entry = Entry {
                        name: name.clone(),
                        bytes: record.to_bytes(),
                    };
                    if let Some(locked) = self.lock_existing()? {
                        self.remove_entry(&locked.dir, &entry);
                    }
                }
                // All holders have the same memory, so another one may give it if this one does not.
                Err(error) => {
                    silent.insert(record.process);
                    refused = refused.or(Some(error));
                }
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Attaches a holder's segment if it is as requested; `None` if the holder has released it, or is dead.
    fn attach_as(
        self: &Arc<Self>,
        record: &CommonSegmentRecord,
        key: &str,
        len: usize,
        layout_version: u32,
    ) -> Result<Option<SharedSegment>, RegistryError> {
        let who = || self.describe(record.process);
        let same = |what, found, expected| {
            let unlike = || RegistryError::Unlike {
                key: key.to_owned(),
                who: who(),
                what,
                found,
                expected,
            };
            (found == expected).then_some(()).ok_or_else(unlike)
        };
        let Some(fd) = self.common_descriptor(record)? else {
            return Ok(None);
        };
        let version = u64::from(record.layout_version);
        same("layout version", version, layout_version.into())?;
        let segment = SharedSegment::attach(fd).map_err(|source| RegistryError::Segment {
            what: format!("the common segment {key} of {}", who()),
            source,
        })?;
        same("length", segment.len() as u64, len as u64)?;
        Ok(Some(segment))
    }

    /// Gets a holder's descriptor; `None` if the holder has released it, or is dead.
    fn common_descriptor(
        self: &Arc<Self>,
        record: &CommonSegmentRecord,
    ) -> Result<Option<OwnedFd>, RegistryError> {
        let Some(mut client) = DescriptorClient::connect(self, record.process)? else {
            return Ok(None);
        };
        let found = client.descriptors(record.object, DescriptorRequest::default())?;
        let fd = found.and_then(|descriptors| descriptors.into_iter().next());
        // A descriptor of another file is not what the entry promised.
        Ok(fd.filter(|fd| fstat(fd).is_ok_and(|stat| stat.st_ino == record.inode)))
    }

    /// Attaches a holder's segment read-only, for observers; `None` if the holder has released it, or is dead.
    pub fn attach_common_segment_read_only(
        self: &Arc<Self>,
        record: &CommonSegmentRecord,
    ) -> Result<Option<SharedSegment>, RegistryError> {
        let Some(fd) = self.common_descriptor(record)? else {
            return Ok(None);
        };
        let attached = SharedSegment::attach_read_only(fd);
        let failed = |source| RegistryError::Segment {
            what: format!("a common segment of {}", self.describe(record.process)),
            source,
        };
        attached.map(Some).map_err(failed)
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
        if owner(&bytes).is_some_and(|process| !self.is_alive_in(dir, process)) {
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

    /// Returns this process's membership in the registry.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Returns the registry that the claim is in.
    pub fn registry(&self) -> &Arc<Registry> {
        self.member.registry()
    }
}

impl Drop for CommonSegmentClaim {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        // An entry that cannot be removed is soon stale: nothing hands out its segment.
        let registry = self.member.registry();
        if let Ok(Some(locked)) = registry.lock_existing() {
            registry.remove_entry(&locked.dir, &self.entry);
            registry.remove_if_empty(&locked);
        }
    }
}

fn make(key: &str, len: usize) -> Result<SharedSegment, RegistryError> {
    let request = SegmentRequest {
        name: &format!("headworks-{key}"),
        len,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    SharedSegment::create(&request).map_err(|source| RegistryError::Segment {
        what: format!("the common segment {key}"),
        source,
    })
}

fn new_file_name(key: &str, slot: u32) -> String {
    static CLAIMS: AtomicU64 = AtomicU64::new(0);
    file_name(key, slot, CLAIMS.fetch_add(1, Ordering::Relaxed))
}

fn file_name(key: &str, slot: u32, number: u64) -> String {
    format!("s.{key}.{slot}.{number}")
}

/// Returns the key of a common segment's entry with this file name. Keys may contain dots.
pub(super) fn parse_file_name(name: &str) -> Option<&str> {
    let (rest, number) = name.strip_prefix("s.")?.rsplit_once('.')?;
    let (key, slot) = rest.rsplit_once('.')?;
    check_name(key).ok()?;
    // Accept only the name that we write.
    (file_name(key, slot.parse().ok()?, number.parse().ok()?) == name).then_some(key)
}

#[cfg(test)]
mod tests;

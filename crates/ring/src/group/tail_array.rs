//! The tail array of a group: the words that its senders WRITE their tails to, eight to a cache line, and
//! the other resources that its rings share.
//!
//! # When a word is reused
//!
//! A word belongs to one ring until that ring's queue pair is destroyed. From then on its sender, if it
//! still exists, reaches nothing. The device places a WRITE that had begun before it reports the queue
//! pair destroyed, with one exception that `soft` declares: a process that is stopped in the middle of a
//! request goes on with it when it is resumed. Such a late tail would land in the word of another ring.
//! Two rules keep it from being taken for a tail of that ring:
//!
//! - Words are reused in the order in which they were freed.
//! - The next ring counts from where no earlier sender can have come: its word starts N beyond everything
//!   that was consumed, which is more than a sender may publish.
//!
//! A late tail is therefore below every tail of the ring. It breaks the ring with
//! [`RingError::Cursor`](crate::RingError::Cursor), like any other impossible word. The group cannot ignore
//! it: it may have overwritten a tail that nobody had looked at, and the sender would not WRITE that tail
//! again.
//!
//! The tail array is one region. Every sender of a group can write all its words: senders of one group
//! trust each other with their tails as they trust the receiver. The slot arrays have a region each, in one
//! protection domain: the key keeps another sender out of them unless that sender guesses the key.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_shm::{CursorRef, View};
use headworks_verbs::{
    Access, AllocRequest, CompletionChannel, CompletionQueue, CqInit, Device, ProtectionDomain,
    Region, RemoteAddr,
};

use super::GroupConfig;
use crate::config::{CheckedConfig, ConfigError, LINE, Mode};
use crate::setup::{GroupPlacement, GroupReceiverSetup, SetupError, requests_in_group, sleeps};

/// Words per cache line.
const WORDS: usize = LINE / 8;

/// Objects that the receiving ends of a group share.
pub(super) struct TailArray {
    pub(super) device: Arc<dyn Device>,
    pub(super) config: GroupConfig,
    ring: CheckedConfig,
    pub(super) cq: Arc<dyn CompletionQueue>,
    pub(super) channel: Option<Arc<dyn CompletionChannel>>,
    pd: Arc<dyn ProtectionDomain>,
    /// Whether tails come by immediate: nobody writes to the words then.
    pub(super) sleeps: bool,
    view: View,
    /// Last value seen in each word.
    seen: Vec<[u64; WORDS]>,
    /// Number of lines that were ever in use.
    lines: usize,
    free: Arc<FreeWords>,
    region: Region,
}

/// Words that belong to no ring: the index of each, and the value from which its next ring counts.
struct FreeWords(Mutex<VecDeque<(u32, u64)>>);

impl FreeWords {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u32, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A word of the tail array.
#[derive(Clone)]
pub(crate) struct TailWord {
    pub(crate) at: CursorRef,
    /// Address of the word for the sender's WRITEs.
    pub(crate) remote: RemoteAddr,
    /// Value that the word holds for a tail of 0.
    pub(crate) start: u64,
}

/// A ring's claim to a word. Dropping it frees the word, and must not happen before the ring's queue pair is
/// destroyed.
pub(super) struct TailWordClaim {
    pub(super) index: u32,
    /// Value from which the next ring counts.
    next_start: u64,
    start: u64,
    slots: u64,
    free: Arc<FreeWords>,
}

impl TailWordClaim {
    /// Records that the ring consumed `slots` slots in all.
    pub(super) fn consumed(&mut self, slots: u64) {
        let published = slots.wrapping_add(self.slots);
        self.next_start = self.start.wrapping_add(published);
    }

    pub(super) fn is_of(&self, tail_array: &TailArray) -> bool {
        Arc::ptr_eq(&self.free, &tail_array.free)
    }
}

impl Drop for TailWordClaim {
    fn drop(&mut self) {
        self.free.lock().push_back((self.index, self.next_start));
    }
}

impl TailArray {
    pub(super) fn new(device: &Arc<dyn Device>, config: &GroupConfig) -> Result<Self, SetupError> {
        let ring = config.ring.settle()?;
        let info = device.info();
        if ring.mode == Mode::Latency {
            return Err(SetupError::NoTail);
        }
        let (sends, receives) = requests_in_group(info, &ring);
        let each = sends + receives;
        let most = (info.limits.max_cqe / each).min(info.limits.max_qp);
        let capacity = config.capacity;
        if !(1..=most as usize).contains(&capacity) {
            let legal = format!("1 to {most} with {} slots on this device", ring.slots);
            return Err(SetupError::Config(ConfigError {
                key: "capacity",
                value: capacity as u64,
                legal,
            }));
        }
        if config.quantum == 0 {
            return Err(SetupError::Config(ConfigError {
                key: "quantum",
                value: 0,
                legal: format!("1 to {}", u32::MAX),
            }));
        }
        let sleeps = sleeps(info, &ring);
        let channel = match sleeps {
            true => Some(device.create_channel()?),
            false => None,
        };
        let cq = device.create_cq(&CqInit {
            depth: capacity as u32 * each,
            channel: channel.clone(),
            timestamps: false,
        })?;
        let pd = device.alloc_pd()?;
        let lines = capacity.div_ceil(WORDS);
        let request = AllocRequest {
            numa_node: config.ring.numa_node.or(info.numa_node),
            ..AllocRequest::of(lines * LINE)
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(&device.alloc(&request)?, access)?;
        let all = (0..capacity as u32).map(|index| (index, 0));
        Ok(Self {
            device: device.clone(),
            config: config.clone(),
            ring,
            cq,
            channel,
            pd,
            sleeps,
            view: crate::slot_array::view_of(&region, 0),
            seen: vec![[0; WORDS]; lines],
            lines: 0,
            free: Arc::new(FreeWords(Mutex::new(all.collect()))),
            region,
        })
    }

    /// Makes a receiving end with a word of its own.
    pub(super) fn place(&mut self) -> Result<(TailWordClaim, GroupReceiverSetup), SetupError> {
        let capacity = self.config.capacity;
        let (index, start) = self
            .free
            .lock()
            .pop_front()
            .ok_or(SetupError::GroupFull { capacity })?;
        let claim = TailWordClaim {
            index,
            start,
            // Once the other end has the address of its word, it may publish up to this value.
            next_start: start.wrapping_add(self.ring.slots),
            slots: self.ring.slots,
            free: self.free.clone(),
        };
        let (line, word) = (index as usize / WORDS, index as usize % WORDS);
        let offset = index as usize * 8;
        let at = self
            .view
            .cursor_ref(offset)
            .map_err(|_| SetupError::TailArray { index })?;
        at.publish(start);
        self.seen[line][word] = start;
        self.lines = self.lines.max(line + 1);
        let place = GroupPlacement {
            pd: self.pd.clone(),
            cq: self.cq.clone(),
            word: TailWord {
                at,
                remote: self.region.remote(offset),
                start,
            },
        };
        let placed = GroupReceiverSetup::new(&self.device, &self.config.ring, &place)?;
        Ok((claim, placed))
    }

    /// Calls `changed` with the index of every word that changed since the last look. The load is an Acquire:
    /// what the sender placed before the word is visible once the word is seen.
    #[inline]
    pub(super) fn look(&mut self, mut changed: impl FnMut(u32)) {
        for (at, seen) in self.seen[..self.lines].iter_mut().enumerate() {
            let Ok(line) = self.view.cache_line(at * LINE) else {
                return;
            };
            let mut differs = 0;
            for (word, seen) in line.iter().zip(&*seen) {
                differs |= word.load(Ordering::Acquire) ^ seen;
            }
            if differs == 0 {
                continue;
            }
            for (word, (found, seen)) in line.iter().zip(seen).enumerate() {
                let found = found.load(Ordering::Acquire);
                if std::mem::replace(seen, found) != found {
                    changed((at * WORDS + word) as u32);
                }
            }
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.lock().is_empty()
    }
}

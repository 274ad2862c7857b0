//! The board of a group: the words that its senders' tails go to, eight to a cache line, and what
//! else its rings share.
//!
//! # When a word is used again
//!
//! A word belongs to one ring until that ring's queue pair is destroyed: from then on its sender, if
//! there still is one, reaches nobody. What it had begun to place is placed before the device says
//! that the queue pair is gone, with one exception that `soft` declares: a process that is stopped in
//! the middle of a request goes on with it when it is let go on. Such a late tail would land in the
//! word of another ring. So the words are used in turn, the one that was freed last after all others;
//! and a ring counts on where no sender before it can have come: its word starts N beyond everything
//! that was consumed, which is more than a sender may publish. A tail that comes late is then below all that
//! the ring can have, and breaks it with [`RingError::Cursor`](crate::RingError::Cursor), as any
//! other impossible word does; it is never taken for one of its own. It cannot be passed over: it may lie
//! where a tail of the ring was that nobody had looked at, and nobody would place that one again.
//!
//! The board is one region. Every sender of a group can reach all its words, as it can reach its whole
//! array: senders of one group trust each other with their tails as they trust the receiver. The
//! arrays have a region each, of one protection domain: a key keeps another sender out of them that does
//! not guess it, and no other.

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

/// Words in a line.
const WORDS: usize = LINE / 8;

/// What the receiving ends of a group share.
pub(super) struct TailArray {
    pub(super) device: Arc<dyn Device>,
    pub(super) config: GroupConfig,
    ring: CheckedConfig,
    pub(super) cq: Arc<dyn CompletionQueue>,
    pub(super) channel: Option<Arc<dyn CompletionChannel>>,
    pd: Arc<dyn ProtectionDomain>,
    /// Tails come by immediate: nobody writes to the words.
    pub(super) sleeps: bool,
    view: View,
    /// What each word held when it was looked at last.
    seen: Vec<[u64; WORDS]>,
    /// Lines that were ever in use.
    lines: usize,
    free: Arc<FreeWords>,
    region: Region,
}

/// Words that belong to no ring: which, and where the next one of each starts to count.
struct FreeWords(Mutex<VecDeque<(u32, u64)>>);

impl FreeWords {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u32, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A word of the board.
#[derive(Clone)]
pub(crate) struct TailWord {
    pub(crate) at: CursorRef,
    /// Where a sender finds it.
    pub(crate) remote: RemoteAddr,
    /// What it holds for a tail of 0.
    pub(crate) start: u64,
}

/// A word that belongs to a ring: free again when dropped, which must not be before the ring's queue pair
/// is destroyed.
pub(super) struct TailWordClaim {
    pub(super) index: u32,
    /// Where the next ring begins to count.
    next_start: u64,
    start: u64,
    slots: u64,
    free: Arc<FreeWords>,
}

impl TailWordClaim {
    /// So many slots were consumed.
    pub(super) fn consumed(&mut self, slots: u64) {
        let published = slots.wrapping_add(self.slots);
        self.next_start = self.start.wrapping_add(published);
    }

    pub(super) fn is_of(&self, board: &TailArray) -> bool {
        Arc::ptr_eq(&self.free, &board.free)
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

    /// A receiving end with a word of its own.
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
            // Once it is told where its word is, the other end may publish this much.
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

    /// Calls `changed` with every word that holds something else than when it was looked at last. What
    /// was placed before a word is there when it is seen (Acquire).
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

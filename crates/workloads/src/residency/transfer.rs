//! The measurement: messages are copied into receive memory, and each is read some time later.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headworks::verbs::RemoteAddr;
use headworks_baselines::WordMemory;
use headworks_rxpool::units::EXTENT_MAX;

use super::batch_times::BatchTimes;
use super::hosts::{Fetcher, Hosts, Sender, WORD};
use super::machine::{MemoryLoad, SetOnDrop, scan};
use super::page_faults::page_faults;
use super::receive_memory::{MemoryKind, Piece, Place, ReceiveMemory};
use crate::cpu_affinity::pin;
use crate::error::{Result, WorkloadError};

/// Bytes whose time is taken together: 16 MiB.
const BATCH: usize = 16 << 20;
/// Bytes read before times are taken: five batches. That is more than all caches, and longer than every queue here.
const WARM_UP_BATCHES: u32 = 5;
/// Bytes that are granted to a sender ahead of what it has written, if they are more than two messages.
const GRANTED: usize = 256 << 10;
/// Places for grants: more pieces than are granted at the same time.
const GRANTS: usize = 512;

/// The side that copies a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Copier {
    /// The receiver, on the processor that reads the message later, by READs.
    Read,
    /// The sender, on a processor of its own, by WRITEs.
    Write,
}

/// Load of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidencyLoad {
    /// Receive memory.
    pub memory: MemoryKind,
    /// Whether the receive memory is on huge pages.
    pub is_huge: bool,
    /// The side that copies.
    pub copier: Copier,
    /// Whether the device may copy with stores that bypass the caches.
    pub bypasses_caches: bool,
    /// Bytes of a message.
    pub message: usize,
    /// Bytes that lie between a message's arrival and its being read. The receive memory may hold less.
    pub lag: usize,
}

impl ResidencyLoad {
    /// Returns the receive memory of this load. READs are divided into fragments in both kinds of memory; WRITEs are
    /// divided only where the pool's extents demand it.
    fn receive_memory(&self) -> ReceiveMemory {
        let longest = match self.copier {
            Copier::Read => EXTENT_MAX as usize,
            Copier::Write => self.message,
        };
        ReceiveMemory::new(self.memory, self.message, longest)
    }
}

/// Processors of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// The receiver's, which reads the messages.
    pub receiver: usize,
    /// The sender's, if it copies.
    pub sender: usize,
    /// The antagonist's.
    pub antagonist: usize,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transferred {
    /// Message bytes that were copied and read per second: the rate of the median batch of 16 MiB.
    pub bytes_per_second: f64,
    /// Bytes that arrived between a message's arrival and its being read, at the end.
    pub between: usize,
    /// Page faults of the receiver's thread, and of the sender's if it copies, while times were taken.
    pub page_faults: u64,
    /// Bytes that the antagonist read and wrote per second, if there was one.
    pub antagonist: Option<f64>,
}

/// Flags that the threads of a measurement share.
#[derive(Default)]
struct Flags {
    /// The receiver has ended.
    over: AtomicBool,
    /// The sender has ended.
    sender_gone: AtomicBool,
    antagonist_runs: AtomicBool,
    /// Times are being taken.
    is_timed: AtomicBool,
}

/// Pieces of receive memory that the receiver grants to the sender, and how far each has come.
struct Grants {
    /// Each holds a piece: its offset in the upper half, its length in the lower.
    pieces: Box<[AtomicU64]>,
    granted: AtomicU64,
    /// Keeps the counters of both sides in cache lines of their own.
    _apart: [u64; 16],
    written: AtomicU64,
}

impl Grants {
    fn new() -> Self {
        Self {
            pieces: (0..GRANTS).map(|_| AtomicU64::new(1)).collect(),
            granted: AtomicU64::new(0),
            _apart: [0; 16],
            written: AtomicU64::new(0),
        }
    }

    /// For the receiver: grants a piece.
    fn grant(&self, piece: Piece) {
        let number = self.granted.load(Ordering::Relaxed);
        let packed = u64::from(piece.offset) << 32 | u64::from(piece.len);
        self.pieces[number as usize % GRANTS].store(packed, Ordering::Relaxed);
        self.granted.store(number + 1, Ordering::Release);
    }

    /// For the sender: returns the next piece that was granted and not written.
    fn next(&self) -> Option<Piece> {
        let number = self.written.load(Ordering::Relaxed);
        if self.granted.load(Ordering::Acquire) == number {
            return None;
        }
        let packed = self.pieces[number as usize % GRANTS].load(Ordering::Relaxed);
        Some(Piece {
            offset: (packed >> 32) as u32,
            len: packed as u32,
        })
    }

    /// For the sender: the next piece was written.
    fn wrote(&self) {
        let number = self.written.load(Ordering::Relaxed);
        self.written.store(number + 1, Ordering::Release);
    }
}

/// Ways to have messages copied, as the receiver sees them. Copies end in the order in which they were begun.
enum Copying<'a> {
    /// The receiver copies each message itself, when it waits for it.
    Read(&'a mut Fetcher),
    /// The sender copies. The number counts pieces of messages that have arrived.
    Granted(&'a Grants, u64),
}

impl Copying<'_> {
    fn begin(&mut self, place: &Place) {
        if let Self::Granted(grants, _) = self {
            place.pieces().iter().for_each(|piece| grants.grant(*piece));
        }
    }

    /// Waits until the oldest message has arrived.
    fn finish(&mut self, memory: &WordMemory, place: &Place, flags: &Flags) -> Result<()> {
        match self {
            Self::Read(fetcher) => fetcher.read(memory, place.pieces()),
            Self::Granted(grants, arrived) => {
                *arrived += place.pieces().len() as u64;
                while grants.written.load(Ordering::Acquire) < *arrived {
                    if flags.sender_gone.load(Ordering::Acquire) {
                        return Err(WorkloadError("the sender has ended".into()));
                    }
                    std::hint::spin_loop();
                }
                Ok(())
            }
        }
    }
}

/// Bytes read so far, and the time that batches of them took.
struct Meter<'a> {
    memory: &'a WordMemory,
    flags: &'a Flags,
    stop: &'a AtomicBool,
    run: Duration,
    times: BatchTimes,
    /// Bytes of the current batch.
    bytes: usize,
    began: Instant,
    /// Batches of the warm-up that are left.
    warm_up: u32,
    started: Instant,
    /// Page faults of this thread when the first time was taken.
    faults: u64,
    is_over: bool,
}

impl Meter<'_> {
    /// Reads a message.
    #[inline]
    fn consume(&mut self, place: &Place) -> Result<()> {
        for piece in place.pieces() {
            let words = piece.len as usize / size_of::<u64>();
            let words = self.memory.words(piece.offset as usize, words);
            let sum = black_box(scan(words));
            if sum != WORD.wrapping_mul(u64::from(piece.len) / 64) {
                return Err(WorkloadError("a message is not what was sent".into()));
            }
            self.bytes += piece.len as usize;
        }
        if self.bytes >= BATCH {
            self.batch()?;
        }
        Ok(())
    }

    fn batch(&mut self) -> Result<()> {
        let now = Instant::now();
        if self.warm_up > 0 {
            self.warm_up -= 1;
            if self.warm_up == 0 {
                self.flags.is_timed.store(true, Ordering::Release);
                self.faults = page_faults()?;
                self.started = Instant::now();
            }
            self.began = Instant::now();
        } else {
            let has_room = self.times.record((now - self.began).as_nanos() as u64);
            let is_late = now - self.started >= self.run;
            self.is_over = !has_room || is_late || self.stop.load(Ordering::Relaxed);
            self.began = now;
        }
        self.bytes = 0;
        Ok(())
    }
}

/// Receives and reads messages until the meter is over. Returns how many bytes arrived between a message's arrival and
/// its being read.
fn receive(load: &ResidencyLoad, mut copying: Copying<'_>, meter: &mut Meter<'_>) -> Result<usize> {
    let mut memory = load.receive_memory();
    let window = match load.copier {
        Copier::Read => 1,
        Copier::Write => (GRANTED / load.message).max(2),
    };
    let mut under_way = VecDeque::with_capacity(window);
    let mut unread = VecDeque::with_capacity(load.lag / load.message + 2);
    let mut between = 0;
    while !meter.is_over {
        let mut is_full = false;
        while under_way.len() < window && !is_full {
            match memory.get() {
                Some(place) => {
                    copying.begin(&place);
                    under_way.push_back(place);
                }
                None => is_full = true,
            }
        }
        // A full memory makes room first, so that a sender is not kept waiting.
        let mut is_due = is_full && !unread.is_empty();
        if !is_due {
            let place = under_way.pop_front();
            let place = place.ok_or_else(|| WorkloadError("no message fits the memory".into()))?;
            copying.finish(meter.memory, &place, meter.flags)?;
            memory.arrived(&place);
            unread.push_back(place);
            is_due = unread.len() * load.message > load.lag;
        }
        if is_due && let Some(place) = unread.pop_front() {
            between = unread.len() * load.message;
            meter.consume(&place)?;
            memory.release(&place);
        }
    }
    Ok(between)
}

/// WRITEs what is granted until the receiver has ended. Returns the page faults while times were taken.
fn send(sender: &mut Sender, target: RemoteAddr, grants: &Grants, flags: &Flags) -> Result<u64> {
    let _gone = SetOnDrop(&flags.sender_gone);
    let mut before = None;
    // The first count may itself cause page faults.
    page_faults()?;
    while !flags.over.load(Ordering::Acquire) {
        if before.is_none() && flags.is_timed.load(Ordering::Acquire) {
            before = Some(page_faults()?);
        }
        match grants.next() {
            Some(piece) => {
                sender.write(target, &[piece])?;
                grants.wrote();
            }
            None => std::hint::spin_loop(),
        }
    }
    let after = page_faults()?;
    Ok(before.map_or(0, |before| after - before))
}

/// Measures `load` for about `run`, or until `stop` is set, with an antagonist if one is given. The memory must be
/// [prepared](Hosts::prepare).
pub fn transfer(
    hosts: &mut Hosts,
    load: &ResidencyLoad,
    cpus: Cpus,
    antagonist: Option<&mut MemoryLoad>,
    run: Duration,
    stop: &AtomicBool,
) -> Result<Transferred> {
    let (link, memory) = hosts.parts(load.memory, load.is_huge, load.bypasses_caches)?;
    let (fetcher, sender) = (&mut link.fetcher, &mut link.sender);
    let (flags, grants) = (Flags::default(), Grants::new());
    let (flags, grants, memory) = (&flags, &grants, &memory);
    let has_antagonist = antagonist.is_some();
    std::thread::scope(|scope| {
        let antagonist = antagonist.map(|antagonist| {
            scope.spawn(move || -> Result<f64> {
                let _running = SetOnDrop(&flags.antagonist_runs);
                pin(cpus.antagonist)?;
                Ok(antagonist.run(&flags.antagonist_runs, &flags.over).mean)
            })
        });
        let sending = (load.copier == Copier::Write).then(|| {
            let target = memory.region().remote(0);
            scope.spawn(move || {
                pin(cpus.sender)?;
                send(sender, target, grants, flags)
            })
        });
        let receiving = scope.spawn(move || -> Result<Transferred> {
            let _over = SetOnDrop(&flags.over);
            pin(cpus.receiver)?;
            while has_antagonist && !flags.antagonist_runs.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let now = Instant::now();
            let mut meter = Meter {
                memory,
                flags,
                stop,
                run,
                times: BatchTimes::default(),
                bytes: 0,
                began: now,
                warm_up: WARM_UP_BATCHES,
                started: now,
                faults: page_faults()?,
                is_over: false,
            };
            let copying = match load.copier {
                Copier::Read => Copying::Read(fetcher),
                Copier::Write => Copying::Granted(grants, 0),
            };
            let between = receive(load, copying, &mut meter)?;
            let page_faults = page_faults()? - meter.faults;
            let rate = meter.times.per_second(BATCH);
            let rate = rate.ok_or_else(|| WorkloadError("no batch has ended".into()))?;
            Ok(Transferred {
                bytes_per_second: rate,
                between,
                page_faults,
                antagonist: None,
            })
        });
        let panicked = |_| WorkloadError("a measuring thread panicked".into());
        let received = receiving.join().map_err(panicked)?;
        let sent = sending.map(|thread| thread.join().map_err(panicked)?);
        let loaded = antagonist.map(|thread| thread.join().map_err(panicked)?);
        // A sender that failed is why its receiver failed.
        let faults = sent.transpose()?.unwrap_or(0);
        let received = received?;
        Ok(Transferred {
            page_faults: received.page_faults + faults,
            antagonist: loaded.transpose()?,
            ..received
        })
    })
}

#[cfg(test)]
mod tests;

//! A host and its RNIC.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use headworks_net::EventFd;
use headworks_verbs::{AsyncEvent, Gid, Instant, Sge, Status};

use super::{QpRef, ReceivingSide};
use crate::cache::{Cache, Index, Policy};
use crate::hardware_units::{BusyLog, NS, Pipe, Ps, Units};
use crate::preset::Preset;
use crate::registered_memory::{AccessRequest, Regions, Span};
use headworks_faults::Random;

/// An RNIC's counters, as its vendor's tools would show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that a unit sent.
    pub requests: u64,
    /// Packets sent, of requests and of responses.
    pub packets_out: u64,
    /// Packets received.
    pub packets_in: u64,
    /// Payload bytes sent.
    pub bytes_out: u64,
    /// Payload bytes placed in memory, without those that still wait at the port.
    pub bytes_in: u64,
    /// Lookups of queue pair contexts that were not on the chip.
    pub icm_misses: u64,
    /// Lookups of translations that were not on the chip.
    pub mtt_misses: u64,
    /// Lookups of protections that were not on the chip.
    pub mpt_misses: u64,
    /// Requests that had left the chip before they were sent,
    /// or before they ended. One request may count twice.
    pub wqe_misses: u64,
    /// Time that units waited for DMA reads, in picoseconds.
    pub stalls: Ps,
    /// Packets of retransmitted requests; for READs, the packets of the response.
    pub sent_again: u64,
    /// RNR NAKs received.
    pub not_ready: u64,
    /// Time that processors computed, in picoseconds.
    pub cpu: Ps,
}

/// A host with its RNIC.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) gid: Gid,
    pub(crate) tx: Vec<SendUnit>,
    pub(crate) rx: Units,
    pub(crate) dma_in: Pipe,
    pub(crate) dma_out: Pipe,
    pub(crate) ports: Ports,
    pub(crate) icm: Cache,
    pub(crate) mtt: Cache,
    pub(crate) mpt: Cache,
    /// Cache of requests. One that was fetched and evicted must
    /// be fetched again when it is sent, and when it ends.
    pub(crate) requests: Cache,
    /// Its memory and congestion, if the preset models them.
    pub(crate) receiving: Option<Box<ReceivingSide>>,
    /// Number of queue pair contexts created so far.
    pub(crate) contexts: u64,
    /// Existing queue pairs and completion queues.
    pub(crate) qps: u32,
    pub(crate) cqs: u32,
    /// Time at which each lock for atomics becomes free.
    pub(crate) locks: Vec<Ps>,
    pub(crate) counters: Counters,
    /// Times of visible changes on this host.
    pub(crate) change_times: ChangeTimes,
    /// Clock error in parts per million; positive if it runs fast.
    pub(crate) drift: i32,
    pub(crate) async_events: VecDeque<AsyncEvent>,
    pub(crate) async_alarm: Arc<EventFd>,
}

/// Times at which a host's memory or completions change. A change may lie ahead of the event that causes it:
/// a completion then still has to cross the bus.
#[derive(Debug, Default)]
pub(crate) struct ChangeTimes {
    /// Time of the last change that has happened.
    past: Ps,
    /// Times of pending changes, ascending.
    coming: VecDeque<Ps>,
    /// Whether the next change must be reported.
    is_watched: bool,
    /// Time of the pending report, if one is scheduled.
    reported_at: Option<Ps>,
}

impl ChangeTimes {
    /// Adds a change `at`; it is `now`. Returns the time to report
    /// it, if a report is wanted and no earlier one is scheduled.
    #[inline]
    pub(crate) fn add(&mut self, now: Ps, at: Ps) -> Option<Ps> {
        self.pass(now);
        if at <= now {
            self.past = self.past.max(at);
        } else if self.coming.back().is_none_or(|last| *last < at) {
            self.coming.push_back(at);
        } else if let Err(place) = self.coming.binary_search(&at) {
            self.coming.insert(place, at);
        }
        self.tell(at.max(now))
    }

    /// Requests a report of the next change; it is `now`. Returns its time, if the change is known already.
    pub(crate) fn watch(&mut self, now: Ps) -> Option<Ps> {
        self.pass(now);
        self.is_watched = true;
        let next = self.coming.front().copied()?;
        self.tell(next)
    }

    #[inline]
    fn tell(&mut self, at: Ps) -> Option<Ps> {
        let is_first = self.reported_at.is_none_or(|told| at < told);
        (self.is_watched && is_first).then(|| {
            self.reported_at = Some(at);
            at
        })
    }

    /// Marks the report as made. A watcher that wants another must ask again.
    pub(crate) fn mark_reported(&mut self) {
        (self.is_watched, self.reported_at) = (false, None);
    }

    /// Returns the first known change after `began`. Of past changes only the last is known.
    pub(crate) fn after(&self, began: Ps) -> Option<Ps> {
        if self.past > began {
            return Some(self.past);
        }
        self.coming.iter().copied().find(|at| *at > began)
    }

    #[inline]
    fn pass(&mut self, now: Ps) {
        while let Some(at) = self.coming.front().copied()
            && at <= now
        {
            self.past = self.past.max(at);
            self.coming.pop_front();
        }
    }
}

/// A port: a link in each direction.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) link_out: Pipe,
    pub(crate) link_in: Pipe,
}

impl Port {
    fn new(gbps: f64) -> Self {
        Self {
            link_out: Pipe::new(gbps),
            link_in: Pipe::new(gbps),
        }
    }
}

/// The ports of a host. The first is stored in place, because most hosts have no other.
#[derive(Debug)]
pub(crate) struct Ports {
    first: Port,
    others: Box<[Port]>,
}

impl Ports {
    fn new(count: u64, gbps: f64) -> Self {
        Self {
            first: Port::new(gbps),
            others: (1..count).map(|_| Port::new(gbps)).collect(),
        }
    }

    /// Returns the port with this index, which must exist.
    #[inline(always)]
    pub(crate) fn get(&mut self, index: u8) -> &mut Port {
        match index {
            0 => &mut self.first,
            other => &mut self.others[usize::from(other) - 1],
        }
    }

    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Port> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Port> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }
}

/// A sending unit. Each queue pair belongs to one unit, so its requests are sent one after the other.
#[derive(Debug, Default)]
pub(crate) struct SendUnit {
    /// Time from which it is idle.
    pub(crate) free_at: Ps,
    pub(crate) busy: Ps,
    /// Queue pairs that have something to send.
    pub(crate) ready: VecDeque<QpRef>,
    /// Whether an event is scheduled for when it becomes idle.
    pub(crate) awaited: bool,
    pub(crate) log: BusyLog,
}

impl SendUnit {
    /// Serves work that arrives `at` and takes `cost`. Returns when it is done.
    pub(crate) fn serve(&mut self, at: Ps, cost: Ps) -> Ps {
        let begin = self.free_at.max(at);
        self.log.note(0, (begin, begin + cost), 0);
        self.free_at = begin + cost;
        self.busy += cost;
        self.free_at
    }

    /// Blocks the unit until `end` without counting it as busy: its packets wait for buffer space.
    pub(crate) fn wait(&mut self, end: Ps) {
        self.free_at = self.free_at.max(end);
    }
}

/// Returns the GID of a host's port: a unique-local prefix and the host's number.
fn gid_of(number: u32) -> Gid {
    let mut gid = [0xfd, b's', b'i', b'm', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    gid[12..].copy_from_slice(&(number + 1).to_be_bytes());
    Gid(gid)
}

impl Counters {
    /// Returns the difference from an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            packets_out: self.packets_out.saturating_sub(earlier.packets_out),
            packets_in: self.packets_in.saturating_sub(earlier.packets_in),
            bytes_out: self.bytes_out.saturating_sub(earlier.bytes_out),
            bytes_in: self.bytes_in.saturating_sub(earlier.bytes_in),
            icm_misses: self.icm_misses.saturating_sub(earlier.icm_misses),
            mtt_misses: self.mtt_misses.saturating_sub(earlier.mtt_misses),
            mpt_misses: self.mpt_misses.saturating_sub(earlier.mpt_misses),
            wqe_misses: self.wqe_misses.saturating_sub(earlier.wqe_misses),
            stalls: self.stalls.saturating_sub(earlier.stalls),
            sent_again: self.sent_again.saturating_sub(earlier.sent_again),
            not_ready: self.not_ready.saturating_sub(earlier.not_ready),
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }
}

impl Host {
    pub(crate) fn new(number: u32, name: &str, preset: &Preset, seed: u64) -> io::Result<Self> {
        let mut random = Random::new(seed);
        let mut cache = |entries: u64, ways: u64, policy, index| {
            Cache::new(entries, ways as usize, policy, index, random.bits())
        };
        // Queue pairs created in a row have consecutive contexts,
        // so low bits spread them evenly over the sets.
        let icm = cache(
            preset.icm_entries,
            preset.icm_ways,
            Policy::Random,
            Index::Low,
        );
        let (recent, hashed) = (Policy::LeastRecent, Index::Hashed);
        let mtt = cache(preset.mtt_entries, preset.mtt_ways, recent, hashed);
        let mpt = cache(preset.mpt_entries, preset.mpt_ways, recent, hashed);
        // Rounded up, because zero entries mean an unlimited cache.
        let room = (preset.wqe_kib * 1024.0 / preset.wqe_bytes as f64).ceil() as u64;
        let requests = cache(room, preset.wqe_ways, recent, hashed);
        Ok(Self {
            name: name.to_owned(),
            gid: gid_of(number),
            tx: (0..preset.tx_units as usize)
                .map(|_| SendUnit::default())
                .collect(),
            rx: Units::new(preset.rx_units as usize),
            dma_in: Pipe::new(preset.read_gbps),
            dma_out: Pipe::new(preset.write_gbps),
            ports: Ports::new(preset.ports, preset.link_gbps),
            icm,
            mtt,
            mpt,
            requests,
            receiving: None,
            contexts: 0,
            qps: 0,
            cqs: 0,
            locks: vec![0; preset.atomic_locks as usize],
            counters: Counters::default(),
            change_times: ChangeTimes::default(),
            drift: 0,
            async_events: VecDeque::new(),
            async_alarm: Arc::new(EventFd::new()?),
        })
    }

    /// Returns what its clock reads at that time.
    pub(crate) fn clock(&self, at: Ps) -> Instant {
        let off = i128::from(at) * i128::from(self.drift) / 1_000_000;
        Instant::from_nanos((i128::from(at) + off).max(0) as u64 / NS)
    }

    /// Looks up the translations and protections of a part `(list, offset, length)` of a request's bytes.
    /// Returns how long the unit waits: `read` for each entry that is not on the chip. With `again` the
    /// request itself was evicted, and each span's protection and first translation count as evicted with it.
    #[inline]
    pub(crate) fn look_up(
        &mut self,
        regions: &Regions,
        (sges, offset, len): (&[Sge], u32, u32),
        asks: AccessRequest,
        again: bool,
        read: Ps,
    ) -> Result<Ps, Status> {
        let mut waits = 0;
        regions.gather(sges, offset.into(), len.into(), asks, |span| {
            if again {
                self.mpt.forget(span.protection);
                self.mtt.forget(*span.translations().start());
            }
            waits += self.translate(&span) * read;
        })?;
        Ok(waits)
    }

    /// Whether the caches of translations and protections are unlimited.
    #[inline]
    pub(crate) fn translates_at_once(&self) -> bool {
        self.mpt.is_endless() && self.mtt.is_endless()
    }

    /// Looks up the entries for some bytes and caches them. Returns how many were not on the chip.
    #[inline]
    pub(crate) fn translate(&mut self, span: &Span) -> u64 {
        if self.translates_at_once() {
            return 0;
        }
        let mpt = u64::from(!self.mpt.touch(span.protection));
        let pages = span.translations();
        let mtt = pages.filter(|page| !self.mtt.touch(*page)).count() as u64;
        self.counters.mpt_misses += mpt;
        self.counters.mtt_misses += mtt;
        mpt + mtt
    }

    pub(crate) fn raise_async_event(&mut self, event: AsyncEvent) {
        self.async_events.push_back(event);
        self.async_alarm.signal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_is_notified_of_the_earliest_change() {
        let mut change_times = ChangeTimes::default();
        assert_eq!(change_times.add(10, 50), None, "nobody watches");
        assert_eq!(change_times.watch(10), Some(50), "what is to come is known");
        assert_eq!(change_times.add(10, 200), None, "later than what is told");
        assert_eq!(change_times.add(10, 30), Some(30), "earlier");
        assert_eq!(change_times.after(10), Some(30));
        assert_eq!(
            (change_times.after(30), change_times.after(50)),
            (Some(50), Some(200))
        );
        change_times.mark_reported();
        // The watcher looked at the first change, did not find what it waits for, and watches again.
        assert_eq!(change_times.watch(30), Some(50));
        change_times.mark_reported();
        assert_eq!(change_times.add(60, 60), None);
        assert_eq!(change_times.after(55), Some(60), "what has just been");
        assert_eq!(change_times.watch(60), Some(200));
    }
}

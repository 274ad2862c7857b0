//! The memory side of a host that receives: last-level cache, memory bandwidth, and the RNIC's buffer. Pure.
//!
//! | module | contents |
//! |---|---|
//! | [`last_level_cache`] | which lines are cached, and in which ways |
//! | [`memory_bandwidth`] | what RNIC, processors and an antagonist get of the memory |
//! | [`memory_traffic`] | what memory has moved for them |
//!
//! Arrived bytes wait in the RNIC's buffer until the bus has taken them. The bus takes them one piece after the
//! other, at the slowest of three rates: its own, that of posted writes (a limited number of lines is under way,
//! each for some time), and, for lines whose place in the cache must first be written back, what the RNIC gets
//! of the memory's bandwidth. A processor that reads or writes lines that are not cached waits for the memory.

pub(crate) mod last_level_cache;
pub(crate) mod memory_bandwidth;
pub(crate) mod memory_traffic;

use last_level_cache::{CacheOutcome, CacheUser, LINE_BYTES, LastLevelCache};
use memory_bandwidth::{MemoryBandwidth, MemoryConstants};
use memory_traffic::MemoryBytes;

use crate::congestion::booked_queue::BookedQueue;
use crate::hardware_units::{Pipe, Ps};
use headworks_faults::Random;

/// Constants of the memory side of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostConstants {
    /// Bytes of the last-level cache, and of the ways that DMA allocates in.
    pub(crate) cache: u64,
    pub(crate) dma_ways: u64,
    /// Whether processors do not allocate in those ways.
    pub(crate) is_isolated: bool,
    pub(crate) memory: MemoryConstants,
    /// Largest number of posted lines under way, and how long one takes. 0 lines are unlimited.
    pub(crate) posted_lines: u64,
    pub(crate) posted_time: Ps,
    /// Latency of a line from idle and from saturated memory, and how many lines a core waits for at a time.
    pub(crate) line_time: Ps,
    pub(crate) loaded_line_time: Ps,
    pub(crate) core_lines: u64,
    /// Bytes of the RNIC's buffer for arrived packets; 0 is unlimited.
    pub(crate) buffer: u64,
    /// Lengths of that buffer's content at which the RNIC pauses and resumes the switch (PFC); 0 never pauses.
    pub(crate) pause_at: u64,
    pub(crate) resume_at: u64,
    /// Length beyond which the RNIC notifies senders (CNP); 0 never does.
    pub(crate) notify_at: u64,
}

/// Counters of a receiving host, as the tools that Jet's authors used would show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Lines that DMA wrote and that were cached (DDIO write update).
    pub dma_hits: u64,
    /// Lines that DMA wrote and that were not cached (DDIO write allocate).
    pub dma_misses: u64,
    /// Lines that processors used and that were cached.
    pub processor_hits: u64,
    /// Lines that processors used and that were not cached.
    pub processor_misses: u64,
    /// Lines that other devices read by DMA and that were cached.
    pub device_hits: u64,
    /// Lines that other devices read by DMA and that were not cached.
    pub device_misses: u64,
    /// Time for which posted writes of the RNIC waited (outbound stalled writes), in picoseconds.
    pub stalled_writes: Ps,
    /// Packets that were dropped, by the RNIC or by the switch before it.
    pub dropped: u64,
    /// Number of the pauses that the RNIC asked the switch for, of all ports.
    pub pauses: u64,
    /// Total length of these pauses in picoseconds, summed over the ports.
    pub paused: Ps,
    /// Total length of the pauses of this host's own sending that the switch asked for, in picoseconds, summed over
    /// the ports.
    pub held: Ps,
    /// Arrived packets that the switch had marked.
    pub marked: u64,
    /// Notifications (CNP) sent and received.
    pub notifications_sent: u64,
    /// See `notifications_sent`.
    pub notifications_received: u64,
    /// Bytes that memory has moved for the RNIC, the processors with other devices, and an antagonist. Bytes that were
    /// asked for and that memory has not moved yet are not counted.
    pub memory_rnic: u64,
    /// See `memory_rnic`.
    pub memory_processors: u64,
    /// See `memory_rnic`.
    pub memory_antagonist: u64,
}

impl HostCounters {
    /// Returns the difference from an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            dma_hits: self.dma_hits - earlier.dma_hits,
            dma_misses: self.dma_misses - earlier.dma_misses,
            processor_hits: self.processor_hits - earlier.processor_hits,
            processor_misses: self.processor_misses - earlier.processor_misses,
            device_hits: self.device_hits - earlier.device_hits,
            device_misses: self.device_misses - earlier.device_misses,
            stalled_writes: self.stalled_writes - earlier.stalled_writes,
            dropped: self.dropped - earlier.dropped,
            pauses: self.pauses - earlier.pauses,
            paused: self.paused - earlier.paused,
            held: self.held - earlier.held,
            marked: self.marked - earlier.marked,
            notifications_sent: self.notifications_sent - earlier.notifications_sent,
            notifications_received: self.notifications_received - earlier.notifications_received,
            memory_rnic: self.memory_rnic - earlier.memory_rnic,
            memory_processors: self.memory_processors - earlier.memory_processors,
            memory_antagonist: self.memory_antagonist - earlier.memory_antagonist,
        }
    }
}

/// Decision of the RNIC's buffer about packets that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferVerdict {
    /// There is room.
    Taken,
    /// There is room, and the sender is to be notified.
    TakenAndNotify,
    /// There is no room: the packets are dropped.
    Dropped,
}

/// The memory side of a host.
#[derive(Debug)]
pub(crate) struct ReceivingHost {
    constants: HostConstants,
    cache: LastLevelCache,
    memory: MemoryBandwidth,
    buffer: BookedQueue,
    /// Time at which the bus has taken everything that has arrived so far.
    drained_at: Ps,
    pauses: BookedPauses,
    pub(crate) counters: HostCounters,
}

/// Pauses of ports, some of which lie ahead: packets are decided about when they are sent.
#[derive(Debug, Default)]
struct BookedPauses {
    /// Total length of those that are over.
    over: Ps,
    /// Begin and end of the others.
    ahead: Vec<(Ps, Ps)>,
}

impl BookedPauses {
    /// Number of pauses ahead from which on those that are over are looked for.
    const MANY: usize = 1024;

    fn book(&mut self, now: Ps, begin: Ps, until: Ps) {
        self.ahead.push((begin, until));
        if self.ahead.len().is_multiple_of(Self::MANY) {
            self.settle(now);
        }
    }

    fn settle(&mut self, now: Ps) {
        self.ahead.retain(|(begin, until)| {
            if *until <= now {
                self.over += until - begin;
            }
            *until > now
        });
    }

    /// Returns the total length up to `now`.
    fn passed(&mut self, now: Ps) -> Ps {
        self.settle(now);
        let under_way = self
            .ahead
            .iter()
            .map(|(begin, _)| now.saturating_sub(*begin));
        self.over + under_way.sum::<Ps>()
    }
}

impl ReceivingHost {
    pub(crate) fn new(constants: HostConstants, random: Random) -> Self {
        let HostConstants {
            cache,
            dma_ways,
            is_isolated,
            ..
        } = constants;
        Self {
            cache: LastLevelCache::new(cache, dma_ways, is_isolated, random),
            memory: MemoryBandwidth::new(constants.memory),
            buffer: BookedQueue::default(),
            drained_at: 0,
            pauses: BookedPauses::default(),
            counters: HostCounters::default(),
            constants,
        }
    }

    /// Sets the bandwidth that an antagonist would use alone, in bytes a picosecond.
    pub(crate) fn set_antagonist(&mut self, now: Ps, demand: f64) {
        self.advance(now);
        self.memory.set_demand(demand);
    }

    /// Lets the antagonist run up to `now`. Half of what it moves are reads, which fill the cache.
    fn advance(&mut self, now: Ps) {
        let moved = self.memory.advance(now);
        if moved > 0.0 {
            self.cache.fill(moved / 2.0 / LINE_BYTES as f64);
        }
    }

    /// Returns the time until which the switch must hold packets of `bytes` that could leave it at `begin`;
    /// `now` is not later. Counts the pause.
    pub(crate) fn pause(&mut self, now: Ps, begin: Ps, bytes: u64) -> Option<Ps> {
        let HostConstants {
            pause_at,
            resume_at,
            ..
        } = self.constants;
        if pause_at == 0 {
            return None;
        }
        self.buffer.advance(now);
        if self.buffer.bytes_at(begin) + bytes <= pause_at {
            return None;
        }
        let until = self.buffer.falls_to(resume_at)?;
        if until <= begin {
            return None;
        }
        self.counters.pauses += 1;
        self.pauses.book(now, begin, until);
        Some(until)
    }

    /// Returns the number of bytes that the RNIC's buffer holds at `now`.
    pub(crate) fn buffered(&self, now: Ps) -> u64 {
        self.buffer.bytes_at(now)
    }

    /// Decides about packets with `bytes` that have arrived completely at that time.
    pub(crate) fn admit(&mut self, now: Ps, at: Ps, bytes: u64, packets: u64) -> BufferVerdict {
        self.buffer.advance(now);
        let waiting = self.buffer.bytes_at(at);
        let (room, notify_at) = (self.constants.buffer, self.constants.notify_at);
        // With pauses there is room for what was under way. Packets that find the buffer empty always pass.
        let overflows = room > 0 && self.constants.pause_at == 0 && waiting > 0;
        if overflows && waiting + bytes > room {
            self.counters.dropped += packets;
            return BufferVerdict::Dropped;
        }
        match notify_at > 0 && waiting + bytes > notify_at {
            true => BufferVerdict::TakenAndNotify,
            false => BufferVerdict::Taken,
        }
    }

    /// Carries `len` arrived bytes over the bus to memory at `targets` (place, length). They take `bus_bytes` on
    /// the bus, of which the first could be there at `begin` and the last are not there before `last`. Returns
    /// when the bus has taken them.
    pub(crate) fn place(
        &mut self,
        now: Ps,
        bus: &mut Pipe,
        (begin, last): (Ps, Ps),
        (len, bus_bytes): (u64, u64),
        targets: impl Iterator<Item = (u64, u64)>,
    ) -> Ps {
        self.advance(now);
        let mut outcome = CacheOutcome::default();
        for (place, len) in targets {
            outcome += self.cache.write(CacheUser::Dma, place, len);
        }
        let begin = begin.max(self.drained_at);
        let alone = (begin + bus.time(bus_bytes)).max(last);
        let written_back = self.note_dma(outcome);
        let in_memory = self.memory.serve_rnic(begin, written_back);
        let end = match self.constants.posted_lines {
            0 => bus.carry_through(begin, bus_bytes, last),
            lines => {
                let posted = len.div_ceil(LINE_BYTES) * self.constants.posted_time / lines;
                // Lines under way may still wait for memory.
                let slack = ((lines * LINE_BYTES) as f64 / self.memory.rnic_rate()) as Ps;
                let last = last
                    .max(begin + posted)
                    .max(in_memory.saturating_sub(slack));
                bus.carry_through(begin, bus_bytes, last)
            }
        };
        self.counters.stalled_writes += end.saturating_sub(alone);
        self.drained_at = self.drained_at.max(end);
        self.buffer.put(end, len);
        end
    }

    /// Writes bytes whose place was not known when they crossed the bus. Returns how long that takes longer.
    pub(crate) fn place_late(&mut self, now: Ps, (place, len): (u64, u64)) -> Ps {
        self.advance(now);
        let outcome = self.cache.write(CacheUser::Dma, place, len);
        let bytes = self.note_dma(outcome);
        if bytes == 0 {
            return 0;
        }
        let end = self.memory.serve_rnic(now, bytes);
        self.counters.stalled_writes += end - now;
        self.drained_at = self.drained_at.max(end);
        end - now
    }

    /// Counts what DMA did. Returns the bytes that it moves to memory.
    fn note_dma(&mut self, outcome: CacheOutcome) -> u64 {
        self.counters.dma_hits += outcome.hits;
        self.counters.dma_misses += outcome.misses;
        // The antagonist waited for these write-backs, not the RNIC.
        self.memory.count_processors(outcome.lost * LINE_BYTES);
        outcome.write_backs * LINE_BYTES
    }

    /// A processor reads or writes `len` bytes at `place`. Returns how long it waits for memory.
    pub(crate) fn process(&mut self, now: Ps, (place, len): (u64, u64), writes: bool) -> Ps {
        self.advance(now);
        let outcome = match writes {
            true => self.cache.write(CacheUser::Processor, place, len),
            false => self.cache.read(CacheUser::Processor, place, len),
        };
        self.counters.processor_hits += outcome.hits;
        self.counters.processor_misses += outcome.misses;
        let lines = outcome.misses + outcome.write_backs + outcome.lost;
        self.memory.count_processors(lines * LINE_BYTES);
        let constants = &self.constants;
        let slower = constants
            .loaded_line_time
            .saturating_sub(constants.line_time);
        let latency = constants.line_time + (self.memory.load() * slower as f64) as Ps;
        outcome.misses * latency / constants.core_lines.max(1)
    }

    /// A device other than the RNIC reads `len` bytes at `place`. Lines that are not cached stay so.
    pub(crate) fn device_reads(&mut self, now: Ps, (place, len): (u64, u64)) {
        self.advance(now);
        let outcome = self.cache.read(CacheUser::Dma, place, len);
        self.counters.device_hits += outcome.hits;
        self.counters.device_misses += outcome.misses;
        let lines = outcome.misses + outcome.lost;
        self.memory.count_processors(lines * LINE_BYTES);
    }

    /// Forgets the cached lines of memory that is not registered any more.
    pub(crate) fn forget(&mut self, (place, len): (u64, u64)) {
        self.cache.forget(place, len);
    }

    /// Returns the counters at `now`.
    pub(crate) fn counters(&mut self, now: Ps) -> HostCounters {
        self.advance(now);
        let MemoryBytes {
            rnic,
            processors,
            antagonist,
        } = self.memory.moved();
        HostCounters {
            memory_rnic: rnic as u64,
            memory_processors: processors as u64,
            memory_antagonist: antagonist as u64,
            paused: self.pauses.passed(now),
            ..self.counters
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware_units::NS;

    const US: Ps = 1000 * NS;
    const MIB: u64 = 1 << 20;

    /// Jet's first testbed: 20 MiB of cache, 4 MiB of it for DMA, 60 GB/s of memory.
    fn constants() -> HostConstants {
        HostConstants {
            cache: 20 * MIB,
            dma_ways: 4 * MIB,
            is_isolated: false,
            memory: MemoryConstants {
                bandwidth: 0.06,
                rnic_share: 0.05,
            },
            posted_lines: 92,
            posted_time: 300 * NS,
            line_time: 90 * NS,
            loaded_line_time: 270 * NS,
            core_lines: 10,
            buffer: 256 << 10,
            pause_at: 0,
            resume_at: 0,
            notify_at: 0,
        }
    }

    fn host(constants: HostConstants) -> ReceivingHost {
        ReceivingHost::new(constants, Random::new(1))
    }

    /// Places 4 KiB after 4 KiB of an area, as fast as they come. Returns the rate in bytes a picosecond.
    fn rate(host: &mut ReceivingHost, area: u64) -> f64 {
        let mut bus = Pipe::new(126.0);
        let (mut at, mut begin, rounds) = (0, 0, 4 * area / 4096);
        for number in 0..2 * rounds {
            let place = number * 4096 % area;
            at = host.place(
                at,
                &mut bus,
                (at, at),
                (4096, 4096),
                [(place, 4096)].into_iter(),
            );
            if number == rounds - 1 {
                begin = at;
            }
        }
        (rounds * 4096) as f64 / (at - begin) as f64
    }

    #[test]
    fn bytes_that_stay_cached_cross_at_the_rate_of_the_bus() {
        let found = rate(&mut host(constants()), MIB);
        assert!((found / 0.01575 - 1.0).abs() < 0.01, "{found}");
    }

    #[test]
    fn posted_writes_limit_the_rate() {
        let slow = HostConstants {
            posted_lines: 46,
            ..constants()
        };
        let found = rate(&mut host(slow), MIB);
        let expected = 46.0 * 64.0 / 300_000.0;
        assert!((found / expected - 1.0).abs() < 0.01, "{found}");
    }

    #[test]
    fn an_antagonist_leaves_its_share_to_lines_that_are_written_back() {
        let mut host = host(constants());
        host.set_antagonist(0, 0.06);
        let found = rate(&mut host, 32 * MIB);
        assert!((found / 0.003 - 1.0).abs() < 0.05, "{found}");
        let counters = host.counters(0);
        assert!(counters.dma_misses > 20 * counters.dma_hits);
        assert!(counters.stalled_writes > 0 && counters.memory_rnic > 0);
    }

    #[test]
    fn a_full_buffer_pauses_or_notifies_and_drops() {
        let mut bus = Pipe::new(126.0);
        let mut fill = |constants: HostConstants| {
            let mut host = host(constants);
            host.set_antagonist(0, 0.06);
            // What was written back once is missed again: 256 KiB take 80 µs at 3 GB/s.
            for number in 0..64 {
                let place = (64 + number * 8) * MIB;
                host.place(
                    0,
                    &mut bus,
                    (0, 0),
                    (4096, 4096),
                    [(place, 4096)].into_iter(),
                );
            }
            host
        };
        let mut without = fill(constants());
        assert_eq!(without.admit(0, 0, 4096, 1), BufferVerdict::Dropped);
        assert_eq!(without.admit(0, 500 * US, 4096, 1), BufferVerdict::Taken);
        assert_eq!(without.counters.dropped, 1);
        let mut notifies = fill(HostConstants {
            notify_at: 128 << 10,
            buffer: 1 << 20,
            ..constants()
        });
        assert_eq!(notifies.admit(0, 0, 4096, 1), BufferVerdict::TakenAndNotify);
        let mut pauses = fill(HostConstants {
            pause_at: 200 << 10,
            resume_at: 100 << 10,
            ..constants()
        });
        assert_eq!(pauses.admit(0, 0, 4096, 1), BufferVerdict::Taken);
        let until = pauses.pause(0, 1, 4096).expect("a pause");
        assert!(until > 2);
        let paused = [1, until / 2, until, 2 * until].map(|now| pauses.counters(now).paused);
        assert_eq!(paused, [0, until / 2 - 1, until - 1, until - 1]);
        assert_eq!(pauses.pause(0, until, 4096), None);
    }

    #[test]
    fn memory_moves_no_more_than_its_bandwidth_in_any_window() {
        let mut host = host(constants());
        host.set_antagonist(0, 0.06);
        let moved = |host: &mut ReceivingHost, now| {
            let of = host.counters(now);
            of.memory_rnic + of.memory_processors + of.memory_antagonist
        };
        let mut readings = vec![(0, 0)];
        for number in 0..200 {
            let now = number * 5 * US;
            // Bursts of devices that read memory: more than the memory moves in 10 µs.
            if number % 7 == 0 {
                (0..8).for_each(|at| host.device_reads(now, (at * MIB + number * 8 * MIB, MIB)));
            }
            let end = now + 4 * US;
            readings.push((end, moved(&mut host, end)));
        }
        for (at, (from, before)) in readings.iter().enumerate() {
            for (until, after) in &readings[at..] {
                let most = 0.06 * (until - from) as f64 + 3.0;
                assert!((after - before) as f64 <= most, "{from} to {until}");
            }
        }
    }

    #[test]
    fn a_processor_waits_for_lines_that_are_not_cached() {
        let mut host = host(constants());
        let cold = host.process(0, (0, 4096), false);
        assert_eq!(cold, 64 * 90 * NS / 10);
        assert_eq!(host.process(0, (0, 4096), true), 0);
        host.set_antagonist(0, 0.06);
        assert_eq!(host.process(0, (MIB, 4096), false), 64 * 270 * NS / 10);
        assert_eq!(host.counters(0).processor_misses, 128);
    }
}

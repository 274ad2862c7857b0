//! A host's memory bandwidth, shared by its RNIC, its processors and an antagonist. Pure.
//!
//! Processors come first, as the paper found (Jet, 4.3): the RNIC gets what they leave, but at least a fixed
//! share of the bandwidth. The antagonist gets what both leave of it. What processors and RNIC need is measured
//! in intervals; the shares of an interval follow from the one before. So a burst may need more than the
//! bandwidth within an interval: [`MemoryTraffic`] counts bytes when memory has moved them.

use super::memory_traffic::{MemoryBytes, MemoryTraffic};
use crate::hardware_units::{NEVER, NS, Ps};

/// Length of an interval.
pub(crate) const INTERVAL: Ps = 10_000 * NS;

/// Constants of a host's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryConstants {
    /// Bandwidth in bytes a picosecond.
    pub(crate) bandwidth: f64,
    /// Smallest share of it that the RNIC gets.
    pub(crate) rnic_share: f64,
}

/// The memory's bandwidth and who uses it.
#[derive(Debug)]
pub(crate) struct MemoryBandwidth {
    constants: MemoryConstants,
    /// Bandwidth that the antagonist would use alone, in bytes a picosecond.
    demand: f64,
    /// Time up to which the antagonist's bytes are counted, and when the next interval begins.
    counted: Ps,
    next: Ps,
    /// Bytes that the RNIC and the processors asked for, and that the antagonist got at its rates.
    rnic_bytes: u64,
    processor_bytes: u64,
    antagonist_bytes: f64,
    /// Bytes of the RNIC and of the processors at the beginning of the interval.
    before: (u64, u64),
    /// Rates of the processors and of the antagonist in this interval, in bytes a picosecond.
    processors: f64,
    antagonist: f64,
    /// Time at which the RNIC's transfers so far are done.
    free_at: Ps,
    traffic: MemoryTraffic,
}

impl MemoryBandwidth {
    pub(crate) fn new(constants: MemoryConstants) -> Self {
        Self {
            constants,
            demand: 0.0,
            counted: 0,
            next: INTERVAL,
            rnic_bytes: 0,
            processor_bytes: 0,
            antagonist_bytes: 0.0,
            before: (0, 0),
            processors: 0.0,
            antagonist: 0.0,
            free_at: 0,
            traffic: MemoryTraffic::new(constants),
        }
    }

    /// Sets what the antagonist would use alone, in bytes a picosecond. Time must have been advanced.
    pub(crate) fn set_demand(&mut self, demand: f64) {
        self.demand = demand.min(self.constants.bandwidth);
        // The RNIC is assumed to need its share at once, until its use is measured.
        self.antagonist = self.left_for_antagonist(0.0);
    }

    fn left_for_antagonist(&self, rnic: f64) -> f64 {
        let left = self.constants.bandwidth - self.processors - rnic;
        self.demand.min(left.max(0.0))
    }

    /// Advances to `now`. Returns the bytes that the antagonist has moved since.
    pub(crate) fn advance(&mut self, now: Ps) -> f64 {
        self.traffic.advance(now, self.demand);
        let begin = self.antagonist_bytes;
        while self.next <= now {
            self.count_until(self.next);
            let since = |bytes: u64, before: u64| (bytes - before) as f64 / INTERVAL as f64;
            let rnic = since(self.rnic_bytes, self.before.0);
            self.processors = since(self.processor_bytes, self.before.1);
            self.before = (self.rnic_bytes, self.processor_bytes);
            self.antagonist = self.left_for_antagonist(rnic);
            let is_quiet = rnic == 0.0 && self.processors == 0.0;
            self.next = match is_quiet {
                // Nothing changes before the next transfer, so this interval may be long.
                true => now - now % INTERVAL + INTERVAL,
                false => self.next + INTERVAL,
            };
        }
        self.count_until(now);
        self.antagonist_bytes - begin
    }

    fn count_until(&mut self, at: Ps) {
        self.antagonist_bytes += self.antagonist * at.saturating_sub(self.counted) as f64;
        self.counted = self.counted.max(at);
    }

    /// Returns the rate that the RNIC gets now, in bytes a picosecond.
    pub(crate) fn rnic_rate(&self) -> f64 {
        let constants = &self.constants;
        let left = constants.bandwidth - self.processors - self.demand;
        left.max(constants.bandwidth * constants.rnic_share)
    }

    /// Moves bytes for the RNIC from time `begin` on, after its earlier ones. Returns when they are done.
    pub(crate) fn serve_rnic(&mut self, begin: Ps, bytes: u64) -> Ps {
        let begin = begin.max(self.free_at);
        if bytes == 0 {
            return begin;
        }
        self.rnic_bytes += bytes;
        self.traffic.add_rnic(bytes);
        let time = bytes as f64 / self.rnic_rate();
        self.free_at = begin.saturating_add(time as Ps).min(NEVER);
        self.free_at
    }

    /// Counts bytes that processors move.
    pub(crate) fn count_processors(&mut self, bytes: u64) {
        self.processor_bytes += bytes;
        self.traffic.add_processors(bytes);
    }

    /// Returns the share of the bandwidth that processors and antagonist use in this interval.
    pub(crate) fn load(&self) -> f64 {
        ((self.processors + self.demand) / self.constants.bandwidth).min(1.0)
    }

    /// Returns the bytes that memory has moved up to the time to which it was advanced.
    pub(crate) fn moved(&self) -> MemoryBytes {
        self.traffic.moved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Ps = 1000 * NS;

    /// 60 GB/s, of which the RNIC keeps 10 %.
    fn memory() -> MemoryBandwidth {
        MemoryBandwidth::new(MemoryConstants {
            bandwidth: 0.06,
            rnic_share: 0.1,
        })
    }

    #[test]
    fn the_rnic_gets_what_is_left_but_at_least_its_share() {
        for (demand, expected) in [(0.0, 0.06), (0.03, 0.03), (0.057, 0.006), (0.06, 0.006)] {
            let mut memory = memory();
            memory.set_demand(demand);
            assert!((memory.rnic_rate() - expected).abs() < 1e-9, "{demand}");
        }
        let mut memory = memory();
        memory.set_demand(0.06);
        assert_eq!(memory.serve_rnic(0, 6_000), 1_000_000);
        assert_eq!(
            memory.serve_rnic(500, 6_000),
            2_000_000,
            "one after the other"
        );
        assert_eq!(memory.serve_rnic(3_000_000, 0), 3_000_000);
    }

    #[test]
    fn the_antagonist_gets_the_rest() {
        let mut memory = memory();
        memory.set_demand(0.06);
        let mut moved = 0.0;
        for step in 1..=1000 {
            memory.serve_rnic(step * US, 6_000);
            memory.count_processors(12_000);
            moved += memory.advance(step * US);
        }
        // Per microsecond: 60,000 bytes in all, of which 6,000 and 12,000 are others'.
        assert!((moved / 1000.0 - 42_000.0).abs() < 500.0, "{moved}");
        let counted = memory.moved();
        let others = counted.rnic + counted.processors;
        assert!((others - 18_000_000.0).abs() < 1.0, "{counted:?}");
        let all = others + counted.antagonist;
        assert!((all - 60_000_000.0).abs() < 1.0, "{counted:?}");
    }

    #[test]
    fn processors_take_bandwidth_from_the_rnic() {
        let mut memory = memory();
        memory.set_demand(0.03);
        for step in 1..=100 {
            memory.count_processors(20_000);
            memory.advance(step * US);
        }
        assert!(
            (memory.rnic_rate() - 0.01).abs() < 0.0005,
            "{}",
            memory.rnic_rate()
        );
        memory.advance(300 * US);
        assert!(
            (memory.rnic_rate() - 0.03).abs() < 1e-9,
            "they are quiet again"
        );
    }

    #[test]
    fn a_long_quiet_time_takes_one_interval() {
        let mut memory = memory();
        memory.set_demand(0.03);
        let moved = memory.advance(1_000_000 * US);
        assert!((moved / 3e10 - 1.0).abs() < 1e-6, "{moved}");
        memory.set_demand(0.0);
        assert_eq!(memory.advance(2_000_000 * US), 0.0);
    }
}

//! Resources that work waits for: units that serve one item at a time, and pipes that carry bytes. Pure.
//!
//! None of them holds a queue. A caller passes the time of arrival and gets the time at which the service
//! ends; the next caller is served after that. So callers must come in the order of time, as events do. Only
//! pipes are booked ahead, and by different spans (bytes behind a stall, or bytes that must be read first),
//! so a pipe remembers its last idle gaps.

/// Virtual time in picoseconds: at 100 Gbit/s a byte takes 80.
pub(crate) type Ps = u64;

/// Fractional bits of a pipe's time per byte.
const FRACTION: u32 = 32;

/// Picoseconds of a nanosecond.
pub(crate) const NS: Ps = 1_000;

/// A time that never comes, 106 days after the start. Endless
/// spans are cut to it, and adding to it does not overflow.
pub(crate) const NEVER: Ps = Ps::MAX / 2;

/// Returns `at + span`, but at most [`NEVER`].
pub(crate) fn later(at: Ps, span: Ps) -> Ps {
    at.saturating_add(span).min(NEVER)
}

/// Converts nanoseconds to whole picoseconds.
pub(crate) fn ns(nanos: f64) -> Ps {
    (nanos * NS as f64).round() as Ps
}

/// An interval in which a unit or a pipe was busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusyInterval {
    /// Index of the unit; 0 for a pipe.
    pub(crate) unit: u32,
    pub(crate) begin: Ps,
    pub(crate) end: Ps,
    /// Bytes carried.
    pub(crate) bytes: u64,
}

/// Log of busy intervals. It records nothing until it is started.
#[derive(Debug, Default)]
pub(crate) struct BusyLog(Option<Vec<BusyInterval>>);

impl BusyLog {
    /// Starts recording.
    pub(crate) fn begin(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Takes the intervals that were recorded since the last call.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = BusyInterval> {
        self.0.iter_mut().flat_map(|noted| noted.drain(..))
    }

    #[inline]
    pub(crate) fn note(&mut self, unit: usize, (begin, end): (Ps, Ps), bytes: u64) {
        if self.0.is_some() {
            let unit = unit as u32;
            self.enter(BusyInterval {
                unit,
                begin,
                end,
                bytes,
            });
        }
    }

    #[cold]
    #[inline(never)]
    fn enter(&mut self, busy: BusyInterval) {
        self.0.get_or_insert_default().push(busy);
    }
}

/// Equal servers, each of which serves one item at a time.
#[derive(Debug)]
pub(crate) struct Units {
    free_at: Vec<Ps>,
    busy: Vec<Ps>,
    pub(crate) log: BusyLog,
}

impl Units {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            free_at: vec![0; count.max(1)],
            busy: vec![0; count.max(1)],
            log: BusyLog::default(),
        }
    }

    /// Returns the server that is free first, and when that is.
    pub(crate) fn first_free(&self) -> (usize, Ps) {
        let mut best = (0, self.free_at[0]);
        for (index, &at) in self.free_at.iter().enumerate().skip(1) {
            if at < best.1 {
                best = (index, at);
            }
        }
        best
    }

    /// Occupies a server from `begin`, which must not be before it is free, until `end`.
    pub(crate) fn take(&mut self, unit: usize, begin: Ps, end: Ps) {
        self.free_at[unit] = end;
        self.busy[unit] += end - begin;
        self.log.note(unit, (begin, end), 0);
    }

    /// Serves an item that arrives `at` and takes `cost`, on an idle server or else the one that is free
    /// first. Returns when it is done.
    pub(crate) fn serve(&mut self, at: Ps, cost: Ps) -> Ps {
        let (unit, free) = match self.free_at.iter().position(|free| *free <= at) {
            Some(unit) => (unit, at),
            None => self.first_free(),
        };
        let begin = free.max(at);
        self.take(unit, begin, begin + cost);
        begin + cost
    }

    /// Returns the time that each server was busy.
    pub(crate) fn busy(&self) -> &[Ps] {
        &self.busy
    }
}

/// Number of idle gaps that a pipe remembers.
const GAPS: usize = 4;

/// A path that carries bytes in sequence: a bus direction or a link.
#[derive(Debug)]
pub(crate) struct Pipe {
    free_at: Ps,
    /// Last idle gaps before `free_at`, and the index of the one to be replaced next.
    gaps: [(Ps, Ps); GAPS],
    oldest: usize,
    /// End of the latest gap.
    gaps_end: Ps,
    /// Time per byte, in picoseconds times 2 to the power of [`FRACTION`].
    per_byte: u64,
    busy: Ps,
    bytes: u64,
    pub(crate) log: BusyLog,
}

impl Pipe {
    /// Creates a pipe of this rate in Gbit/s.
    pub(crate) fn new(gbps: f64) -> Self {
        Self {
            free_at: 0,
            gaps: [(0, 0); GAPS],
            oldest: 0,
            gaps_end: 0,
            per_byte: (8_000.0 / gbps * (1u64 << FRACTION) as f64).round() as u64,
            busy: 0,
            bytes: 0,
            log: BusyLog::default(),
        }
    }

    /// Returns how long the pipe takes for these bytes.
    #[inline(always)]
    pub(crate) fn time(&self, bytes: u64) -> Ps {
        ((u128::from(bytes) * u128::from(self.per_byte)) >> FRACTION) as Ps
    }

    /// Carries bytes that arrive `at`. Returns when the last of them is through.
    #[inline(always)]
    pub(crate) fn carry(&mut self, at: Ps, bytes: u64) -> Ps {
        self.carry_through(at, bytes, 0)
    }

    /// Carries bytes of which the first arrive `at` and the last are
    /// through at `last` or later. Returns when the last are through.
    #[inline(always)]
    pub(crate) fn carry_through(&mut self, at: Ps, bytes: u64, last: Ps) -> Ps {
        let time = self.time(bytes);
        self.busy += time;
        self.bytes += bytes;
        let free_at = self.free_at;
        let end = if at < free_at
            && at < self.gaps_end
            && let Some(end) = self.fit(at, time, last)
        {
            end
        } else {
            if at > free_at {
                self.gaps[self.oldest] = (free_at, at);
                self.oldest = (self.oldest + 1) % GAPS;
                self.gaps_end = at;
            }
            let end = (free_at.max(at) + time).max(last);
            self.free_at = end;
            end
        };
        self.log.note(0, (end - time, end), bytes);
        end
    }

    /// Carries bytes in an idle gap, if one is long enough.
    /// The longer part of what is left of the gap stays a gap.
    #[inline(never)]
    fn fit(&mut self, at: Ps, time: Ps, last: Ps) -> Option<Ps> {
        self.gaps.iter_mut().find_map(|gap| {
            let begin = gap.0.max(at);
            let end = (begin + time).max(last);
            if end > gap.1 {
                return None;
            }
            *gap = match begin - gap.0 > gap.1 - end {
                true => (gap.0, begin),
                false => (end, gap.1),
            };
            Some(end)
        })
    }

    pub(crate) fn busy(&self) -> Ps {
        self.busy
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_wait_for_the_first_free_unit() {
        let mut units = Units::new(2);
        assert_eq!(units.serve(10, 100), 110);
        assert_eq!(units.serve(10, 50), 60);
        assert_eq!(units.serve(20, 5), 65);
        assert_eq!(units.serve(200, 5), 205);
        assert_eq!(units.busy(), &[105, 55][..]);
    }

    #[test]
    fn bytes_take_their_time_and_wait_for_those_before_them() {
        let mut link = Pipe::new(100.0);
        assert_eq!(link.carry(0, 1000), 80_000);
        assert_eq!(link.carry(10, 1), 80_080);
        assert_eq!(link.carry(100_000, 1), 100_080);
        assert_eq!((link.busy(), link.bytes()), (80_160, 1002));
    }

    #[test]
    fn earlier_bytes_fill_a_fitting_gap_on_the_link() {
        let mut link = Pipe::new(100.0);
        assert_eq!(link.carry(100_000, 1000), 180_000);
        // The gap before is too short for these bytes.
        assert_eq!(link.carry(90_000, 200), 196_000);
        assert_eq!(link.carry(10_000, 1000), 90_000);
        assert_eq!(link.carry(10_000, 100), 98_000);
        assert_eq!(link.carry(10_000, 26), 198_080);
        // The longer remainder stays a gap. Bytes whose last come late occupy it until they are through.
        assert_eq!(link.carry_through(0, 10, 99_000), 99_000);
        assert_eq!(link.carry(0, 1), 99_080);
    }

    proptest! {
        /// No bytes are carried before they arrive, nor two at once. A pipe whose callers come in the order
        /// of time behaves like a queue.
        #[test]
        fn no_two_are_carried_at_once(asked in proptest::collection::vec((0u64..5_000, 1u64..300), 1..100)) {
            let (mut pipe, mut carried) = (Pipe::new(8_000.0), Vec::new());
            for &(at, bytes) in &asked {
                let end = pipe.carry(at, bytes);
                prop_assert!(end - bytes >= at);
                carried.push((end - bytes, end));
            }
            carried.sort_unstable();
            prop_assert!(carried.windows(2).all(|two| two[0].1 <= two[1].0), "{:?}", carried);

            let (mut pipe, mut free) = (Pipe::new(8_000.0), 0);
            let mut asked = asked;
            asked.sort_unstable();
            for (at, bytes) in asked {
                free = at.max(free) + bytes;
                prop_assert_eq!(pipe.carry(at, bytes), free);
            }
        }
    }
}

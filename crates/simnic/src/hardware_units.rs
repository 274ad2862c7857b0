//! What work queues for: units that serve one thing after the other, and pipes that carry bytes. Pure.
//!
//! None of them holds a queue. Who comes says when, and is told when its turn begins and when it ends; who
//! comes next waits until then. So a caller must come in the order of time, as events do. Only pipes are asked for
//! what is yet to come, and at different distances (bytes behind a stall, or those that must be read first): so they
//! remember for how long they will be idle before that.

/// Virtual time in picoseconds: at 100 Gbit/s a byte takes 80.
pub(crate) type Ps = u64;

/// Bits of a pipe's pace behind the point.
const FRACTION: u32 = 32;

/// Picoseconds of a nanosecond.
pub(crate) const NS: Ps = 1_000;

/// A time that never comes, some 106 days after the beginning: spans without end are cut to it, and what is added to
/// it is a time still.
pub(crate) const NEVER: Ps = Ps::MAX / 2;

/// So long after that; never, if it is too long.
pub(crate) fn later(at: Ps, span: Ps) -> Ps {
    at.saturating_add(span).min(NEVER)
}

/// Whole picoseconds of some nanoseconds.
pub(crate) fn ns(nanos: f64) -> Ps {
    (nanos * NS as f64).round() as Ps
}

/// A time in which something was busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusyInterval {
    /// Which server; a pipe is one.
    pub(crate) unit: u32,
    pub(crate) begin: Ps,
    pub(crate) end: Ps,
    /// What it carried.
    pub(crate) bytes: u64,
}

/// When something was busy, if anybody wants to know.
#[derive(Debug, Default)]
pub(crate) struct BusyLog(Option<Vec<BusyInterval>>);

impl BusyLog {
    /// Somebody wants to know from now on.
    pub(crate) fn begin(&mut self) {
        self.0.get_or_insert_default();
    }

    /// What was noted since it was last asked for.
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

/// Some equal servers, each of which serves one thing at a time.
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

    /// The server that is free first, and when that is.
    pub(crate) fn first_free(&self) -> (usize, Ps) {
        let mut best = (0, self.free_at[0]);
        for (index, &at) in self.free_at.iter().enumerate().skip(1) {
            if at < best.1 {
                best = (index, at);
            }
        }
        best
    }

    /// Has a server be busy until `end`, from `begin` on, which is not before it is free.
    pub(crate) fn take(&mut self, unit: usize, begin: Ps, end: Ps) {
        self.free_at[unit] = end;
        self.busy[unit] += end - begin;
        self.log.note(unit, (begin, end), 0);
    }

    /// Serves what comes `at` and takes `cost`, by one that is free or the one that is free first: when it is
    /// done.
    pub(crate) fn serve(&mut self, at: Ps, cost: Ps) -> Ps {
        let (unit, free) = match self.free_at.iter().position(|free| *free <= at) {
            Some(unit) => (unit, at),
            None => self.first_free(),
        };
        let begin = free.max(at);
        self.take(unit, begin, begin + cost);
        begin + cost
    }

    /// Time that each of the servers was busy.
    pub(crate) fn busy(&self) -> &[Ps] {
        &self.busy
    }
}

/// How many times of idleness a pipe remembers.
const GAPS: usize = 4;

/// A way on which bytes go one after the other.
#[derive(Debug)]
pub(crate) struct Pipe {
    free_at: Ps,
    /// When it is idle before that, of late; which is forgotten next.
    gaps: [(Ps, Ps); GAPS],
    oldest: usize,
    /// When the last of them ended.
    gaps_end: Ps,
    /// What a byte takes, in picoseconds times 2 to the power of [`FRACTION`].
    per_byte: u64,
    busy: Ps,
    bytes: u64,
    pub(crate) log: BusyLog,
}

impl Pipe {
    /// One of so many gigabits per second.
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

    /// What these bytes take.
    #[inline(always)]
    pub(crate) fn time(&self, bytes: u64) -> Ps {
        ((u128::from(bytes) * u128::from(self.per_byte)) >> FRACTION) as Ps
    }

    /// Carries bytes that come `at`: when the last of them is through.
    #[inline(always)]
    pub(crate) fn carry(&mut self, at: Ps, bytes: u64) -> Ps {
        self.carry_through(at, bytes, 0)
    }

    /// Carries bytes whose first come `at`, and whose last do not come before `last`: when those are through.
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

    /// Carries bytes where it would be idle, if that is long enough; the longer part of what is left stays idle.
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
    fn what_finds_all_units_busy_waits_for_the_first_that_is_free() {
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
    fn what_comes_before_something_later_goes_before_it_if_it_fits() {
        let mut link = Pipe::new(100.0);
        assert_eq!(link.carry(100_000, 1000), 180_000);
        // Idle until then, but not for so long.
        assert_eq!(link.carry(90_000, 200), 196_000);
        assert_eq!(link.carry(10_000, 1000), 90_000);
        assert_eq!(link.carry(10_000, 100), 98_000);
        assert_eq!(link.carry(10_000, 26), 198_080);
        // Of what is left the longer part stays idle; what comes late takes its place until it is through.
        assert_eq!(link.carry_through(0, 10, 99_000), 99_000);
        assert_eq!(link.carry(0, 1), 99_080);
    }

    proptest! {
        /// Nothing is carried before it comes, nor while something else is; and a pipe that is asked in the order
        /// of time is one with a queue.
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

//! What the ring on verbs, the bare ring and the rival designs have in common as arms: the same
//! workloads, the same spinning. Messages are copied in from the application's memory or written where
//! they lie ([`Channel::in_place`](super::job::Channel::in_place)).

use std::hint::spin_loop;

use headworks_stage::Spacing;

use super::job::Job;
use super::{Arm, Fill, Sink, Taken, WorkloadError};

/// Bytes of the application's own messages that lie around before they are sent, about.
const OUTBOX: usize = 4096;
/// Messages in there at most.
const OUTBOX_MESSAGES: usize = 16;
/// Looks at a full or an empty ring in one call.
const TRIES: u32 = 64;
/// Calls that found the ring full or empty between two looks at the rest: errors, the peer's death.
const LOOK_EVERY: u32 = 16;
/// Calls of `flush` between two of those looks.
const LOOK_FLUSHES: u32 = 256;

/// The two rings of one part: one out, one in.
pub trait Ends {
    /// Sends a copy of a message; whether there was room.
    fn put(&mut self, message: &[u8]) -> Result<bool, WorkloadError>;
    /// Sends a message of `len` bytes filled in place; whether there was room.
    fn put_in_place<F: Fill>(&mut self, len: usize, fill: &mut F) -> Result<bool, WorkloadError>;
    /// Takes a message where it lies; whether there was one.
    fn get<S: Sink>(&mut self, len: usize, sink: &mut S) -> Result<bool, WorkloadError>;
    /// Publishes what was sent; whether all of it is published.
    fn publish(&mut self) -> Result<bool, WorkloadError>;
    /// Sees to what the hot calls do not look at.
    fn look(&mut self) -> Result<(), WorkloadError>;
}

/// An arm made of two rings.
#[derive(Debug)]
pub struct Rings<E> {
    ends: E,
    size: usize,
    in_place: bool,
    yields: bool,
    /// Looks at a full or an empty ring in one call.
    looks: u32,
    outbox: Outbox,
    spacing: Spacing,
    /// Calls in a row that found nothing to do.
    idle: u32,
    flushes: u32,
    finished: bool,
}

impl<E: Ends> Rings<E> {
    /// For messages as `job` has them.
    pub fn new(job: &Job, ends: E) -> Self {
        Self {
            ends,
            size: job.size,
            in_place: job.channel.in_place(job.size),
            yields: job.yields,
            looks: TRIES,
            outbox: Outbox::new(job.size, job.channel.in_place(job.size)),
            spacing: Spacing::default(),
            idle: 0,
            flushes: 0,
            finished: false,
        }
    }

    /// The same where time is virtual, and has to pass between two looks.
    #[must_use]
    pub fn in_virtual_time(self) -> Self {
        Self { looks: 1, ..self }
    }

    #[cold]
    fn found_nothing(&mut self) -> Result<(), WorkloadError> {
        self.idle += 1;
        if self.idle.is_multiple_of(LOOK_EVERY) {
            self.ends.look()?;
        }
        if self.yields {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Tries for a bounded time; whether `put` succeeded.
    #[inline]
    fn patiently(
        &mut self,
        mut put: impl FnMut(&mut E, &Outbox) -> Result<bool, WorkloadError>,
    ) -> Result<bool, WorkloadError> {
        for _ in 0..self.looks {
            if put(&mut self.ends, &self.outbox)? {
                return Ok(true);
            }
            spin_loop();
        }
        self.found_nothing()?;
        Ok(false)
    }

    /// Sends what lies in the outbox; whether nothing is left.
    #[inline]
    fn empty_outbox(&mut self) -> Result<bool, WorkloadError> {
        while !self.outbox.is_empty() {
            if !self.patiently(|ends, outbox| ends.put(outbox.oldest()))? {
                return Ok(false);
            }
            self.outbox.sent();
        }
        Ok(true)
    }

    fn flush_now(&mut self) -> Result<bool, WorkloadError> {
        if !self.empty_outbox()? || !self.ends.publish()? {
            return Ok(false);
        }
        self.flushes += 1;
        if self.finished || self.flushes.is_multiple_of(LOOK_FLUSHES) {
            self.ends.look()?;
        }
        Ok(true)
    }
}

impl<E: Ends> Arm for Rings<E> {
    #[inline]
    fn offer<F: Fill>(&mut self, n: usize, fill: &mut F) -> Result<usize, WorkloadError> {
        let mut accepted = 0;
        if self.in_place {
            let len = self.size;
            while accepted < n && self.patiently(|ends, _| ends.put_in_place(len, fill))? {
                accepted += 1;
            }
            return Ok(accepted);
        }
        while self.empty_outbox()? && accepted < n {
            accepted += self.outbox.fill(n - accepted, fill);
        }
        Ok(accepted)
    }

    #[inline]
    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<Taken, WorkloadError> {
        let (mut taken, mut tries) = (0, 0);
        while taken < max {
            if self.ends.get(self.size, sink)? {
                self.spacing.found();
                taken += 1;
                continue;
            }
            for _ in 0..self.spacing.empty() {
                spin_loop();
            }
            // What was taken is handled before anything is waited for.
            tries += 1;
            if taken > 0 || tries > self.looks {
                break;
            }
        }
        if taken == 0 {
            self.found_nothing()?;
        }
        Ok(Taken::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool, WorkloadError> {
        match self.flush_now() {
            // Everything was delivered, and the peer may be gone before its mail is here.
            Err(_) if self.finished => Ok(true),
            flushed => flushed,
        }
    }

    fn finish(&mut self) -> Result<(), WorkloadError> {
        self.finished = true;
        Ok(())
    }
}

/// Messages of the application on their way into the ring. A few, so that none is copied while
/// the processor still holds back the stores that made it.
#[derive(Debug)]
struct Outbox {
    bytes: Vec<u8>,
    size: usize,
    from: usize,
    to: usize,
}

impl Outbox {
    fn new(size: usize, in_place: bool) -> Self {
        let messages = match in_place {
            true => 0,
            false => (OUTBOX / size).clamp(1, OUTBOX_MESSAGES),
        };
        Self {
            bytes: vec![0; messages * size],
            size,
            from: 0,
            to: 0,
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// The oldest message, if it is not empty.
    #[inline]
    fn oldest(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.size]
    }

    #[inline]
    fn sent(&mut self) {
        self.from += self.size;
    }

    /// Fills at most `n` messages, once the earlier ones were sent; answers how many.
    #[inline]
    fn fill<F: Fill>(&mut self, n: usize, fill: &mut F) -> usize {
        (self.from, self.to) = (0, 0);
        let messages = self.bytes.chunks_exact_mut(self.size).take(n);
        for message in messages {
            fill.fill(message);
            self.to += self.size;
        }
        self.to / self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Room for so many messages, which come back in order.
    struct Small {
        room: usize,
        published: bool,
        looks: usize,
        within: VecDeque<Vec<u8>>,
        broken: bool,
    }

    impl Ends for Small {
        fn put(&mut self, message: &[u8]) -> Result<bool, WorkloadError> {
            if self.within.len() == self.room {
                return Ok(false);
            }
            self.published = false;
            self.within.push_back(message.to_vec());
            Ok(true)
        }
        fn put_in_place<F: Fill>(
            &mut self,
            len: usize,
            fill: &mut F,
        ) -> Result<bool, WorkloadError> {
            if self.within.len() == self.room {
                return Ok(false);
            }
            let mut message = vec![0; len];
            fill.fill(&mut message);
            self.put(&message)
        }
        fn get<S: Sink>(&mut self, _: usize, sink: &mut S) -> Result<bool, WorkloadError> {
            let message = self.within.pop_front();
            Ok(message.map(|m| sink.take(&m)).is_some())
        }
        fn publish(&mut self) -> Result<bool, WorkloadError> {
            self.published = true;
            match self.broken {
                true => Err(WorkloadError("gone".into())),
                false => Ok(true),
            }
        }
        fn look(&mut self) -> Result<(), WorkloadError> {
            self.looks += 1;
            Ok(())
        }
    }

    fn arm(size: usize, room: usize) -> Rings<Small> {
        let job = Job {
            channel: super::super::job::Channel::Bare,
            workload: super::super::job::Workload::Rate,
            size,
            slots: room + 1,
            touch: false,
            run_ns: 0,
            warm_ns: 0,
            buffer: None,
            yields: false,
            counted: false,
            together: false,
            dir: "/".into(),
        };
        let small = Small {
            room,
            published: true,
            looks: 0,
            within: VecDeque::new(),
            broken: false,
        };
        Rings::new(&job, small)
    }

    #[test]
    fn every_message_accepted_arrives_once_in_order_however_full_the_ring_is() {
        use super::super::message::{Paint, Sums, Verdict};
        for (size, room) in [
            (8, 1),
            (64, 5),
            (100, 40),
            (4096, 3),
            (super::super::job::IN_PLACE, 2),
        ] {
            let mut arm = arm(size, room);
            let (mut paint, mut sums) = (Paint::default(), Sums::default());
            let (mut accepted, mut taken) = (0, 0);
            for round in 0..300 {
                accepted += arm.offer(round % 23, &mut paint).unwrap();
                if let Taken::Messages(n) = arm.take(round % 7, &mut sums).unwrap() {
                    taken += n;
                }
            }
            while !arm.flush().unwrap() || taken < accepted {
                if let Taken::Messages(n) = arm.take(9, &mut sums).unwrap() {
                    taken += n;
                }
            }
            assert!(arm.ends.published && accepted > 100 && taken == accepted);
            sums.check().unwrap();
        }
    }

    #[test]
    fn an_end_that_waits_looks_and_one_that_has_finished_bears_a_peer_that_left() {
        use super::super::message::Marks;
        let mut arm = arm(64, 2);
        for _ in 0..2 * LOOK_EVERY {
            arm.take(1, &mut Marks::default()).unwrap();
        }
        assert_eq!(arm.ends.looks, 2);
        arm.ends.broken = true;
        assert!(arm.flush().is_err());
        arm.finish().unwrap();
        assert!(arm.flush().unwrap());
    }
}

//! What the ring on verbs and the bare ring have in common as arms: the same copies, the same
//! spinning. Messages below [`IN_PLACE`] are copied in from the application's memory, larger ones
//! are written where they lie; all are read where they lie.

use std::hint::spin_loop;

use super::job::Job;
use super::{Arm, ArmError, Fill, Sink, Taken};

/// Messages of so many bytes and more are written in place.
pub const IN_PLACE: usize = 64 * 1024;
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
    fn put(&mut self, message: &[u8]) -> Result<bool, ArmError>;
    /// Sends a message of `len` bytes filled in place; whether there was room.
    fn put_in_place<F: Fill>(&mut self, len: usize, fill: &mut F) -> Result<bool, ArmError>;
    /// Takes a message where it lies; whether there was one.
    fn get<S: Sink>(&mut self, len: usize, sink: &mut S) -> Result<bool, ArmError>;
    /// Publishes what was sent; whether all of it is published.
    fn publish(&mut self) -> Result<bool, ArmError>;
    /// Sees to what the hot calls do not look at.
    fn look(&mut self) -> Result<(), ArmError>;
}

/// An arm made of two rings.
#[derive(Debug)]
pub struct Rings<E> {
    ends: E,
    size: usize,
    outbox: Outbox,
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
            outbox: Outbox::new(job.size),
            idle: 0,
            flushes: 0,
            finished: false,
        }
    }

    #[cold]
    fn found_nothing(&mut self) -> Result<(), ArmError> {
        self.idle += 1;
        if self.idle.is_multiple_of(LOOK_EVERY) {
            self.ends.look()?;
        }
        Ok(())
    }

    /// Tries for a bounded time; whether `put` succeeded.
    #[inline]
    fn patiently(
        &mut self,
        mut put: impl FnMut(&mut E, &Outbox) -> Result<bool, ArmError>,
    ) -> Result<bool, ArmError> {
        for _ in 0..TRIES {
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
    fn empty_outbox(&mut self) -> Result<bool, ArmError> {
        while !self.outbox.is_empty() {
            if !self.patiently(|ends, outbox| ends.put(outbox.next()))? {
                return Ok(false);
            }
            self.outbox.sent();
        }
        Ok(true)
    }

    fn flush_now(&mut self) -> Result<bool, ArmError> {
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
    fn offer<F: Fill>(&mut self, n: usize, fill: &mut F) -> Result<usize, ArmError> {
        let mut accepted = 0;
        if self.size >= IN_PLACE {
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
    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<Taken, ArmError> {
        let (mut taken, mut tries) = (0, 0);
        while taken < max {
            if self.ends.get(self.size, sink)? {
                taken += 1;
                continue;
            }
            // What was taken is handled before anything is waited for.
            if taken > 0 || tries == TRIES {
                break;
            }
            tries += 1;
            spin_loop();
        }
        if taken == 0 {
            self.found_nothing()?;
        }
        Ok(Taken::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool, ArmError> {
        match self.flush_now() {
            // Everything was delivered, and the peer may be gone before its mail is here.
            Err(_) if self.finished => Ok(true),
            flushed => flushed,
        }
    }

    fn finish(&mut self) -> Result<(), ArmError> {
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
    fn new(size: usize) -> Self {
        let messages = match size {
            IN_PLACE.. => 0,
            _ => (OUTBOX / size).clamp(1, OUTBOX_MESSAGES),
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
    fn next(&self) -> &[u8] {
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

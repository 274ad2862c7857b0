//! Plain WRITEs over a number of queue pairs at a fixed queue depth. The receiving side checks the bytes of
//! every completed request. One thread owns both ends, so this measures how fast a device takes requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks_verbs::bringup::{BringUpError, ConnectionParams};
use headworks_verbs::{
    BringUp, Completion, Device, Payload, PollError, PostError, QpCaps, SendFlags, SendOp, SendWr,
    Status,
};

use crate::{End, EndError, EndSizes, WordMemory};

/// Bytes of a word.
const WORD: usize = 8;
/// Completions polled at a time.
const BATCH: usize = 64;

/// Number of requests in flight, and their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteWindow {
    /// Number of queue pairs.
    pub queue_pairs: usize,
    /// Outstanding requests per queue pair.
    pub depth: usize,
    /// Bytes of a request: a positive multiple of 8.
    pub bytes: usize,
}

/// Failure to set up or post WRITEs, or a WRITE with a wrong result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WritesError {
    /// The window is empty, or its requests are not whole words.
    #[error("{0:?}: queue_pairs and depth must be at least 1, bytes a multiple of 8 and not 0")]
    Window(WriteWindow),
    /// The device failed to create an object of an end.
    #[error(transparent)]
    End(#[from] EndError),
    /// The ends could not be connected.
    #[error("connecting: {0}")]
    Connect(#[from] BringUpError),
    /// The device refused a request.
    #[error("posting: {0}")]
    Post(#[from] PostError),
    /// Polling failed: completions were lost.
    #[error("polling: {0}")]
    Poll(#[from] PollError),
    /// A request failed.
    #[error("request {} ended: {}", .0.wr_id, .0.status)]
    Ended(Completion),
    /// A completion of a queue pair came out of order.
    #[error("queue pair {queue_pair}: request {found} completed, but {wanted} is the next")]
    Order {
        /// Index of the queue pair, from 0.
        queue_pair: usize,
        /// The request that completed.
        found: u64,
        /// The request that should have completed next.
        wanted: u64,
    },
    /// A request completed, but its bytes are not in the target memory.
    #[error("request {number} completed, but byte {at} holds {found:#x} instead of {wanted:#x}")]
    Wrong {
        /// Number of the request on its queue pair, from 0.
        number: u64,
        /// Byte offset in the message.
        at: usize,
        /// The word found there.
        found: u64,
        /// The word that was written.
        wanted: u64,
    },
}

/// A completed request whose bytes were checked. Its place is free for another request.
#[derive(Debug)]
pub struct CompletedWrite {
    at: usize,
    number: u64,
    place: usize,
}

/// An end with separate memory for each request in flight.
struct WriteEnd {
    end: End,
    memory: WordMemory,
}

impl WriteEnd {
    fn new(device: Arc<dyn Device>, window: &WriteWindow) -> Result<Self, WritesError> {
        let shape = EndSizes {
            queue_pairs: window.queue_pairs,
            caps: QpCaps {
                max_send_wr: window.depth as u32,
                max_recv_wr: 1,
                ..QpCaps::default()
            },
            cq_depth: (window.queue_pairs * window.depth) as u32,
            shared_receives: 0,
            channel: false,
        };
        let mut end = End::open(device, &shape)?;
        end.populate(&shape)?;
        let memory = end.memory(window.queue_pairs * window.depth * window.bytes)?;
        Ok(Self { end, memory })
    }
}

/// Two connected ends and the WRITEs between them.
pub struct Writes {
    window: WriteWindow,
    near: WriteEnd,
    far: WriteEnd,
    /// Number of low bits of a `wr_id` that hold the queue pair's index. The bits above hold the request's
    /// number.
    which: u32,
    /// Completed requests of each queue pair.
    done: Vec<u64>,
    is_full: bool,
}

impl Writes {
    /// Connects the two devices. The first will WRITE to the second.
    pub fn connect(
        devices: [Arc<dyn Device>; 2],
        window: WriteWindow,
    ) -> Result<Self, WritesError> {
        let WriteWindow {
            queue_pairs,
            depth,
            bytes,
        } = window;
        if queue_pairs == 0 || depth == 0 || bytes == 0 || !bytes.is_multiple_of(WORD) {
            return Err(WritesError::Window(window));
        }
        let [near, far] = devices;
        let (mut near, mut far) = (WriteEnd::new(near, &window)?, WriteEnd::new(far, &window)?);
        let infos = [
            near.end.device.info().clone(),
            far.end.device.info().clone(),
        ];
        let pairs = near
            .end
            .queue_pairs
            .iter_mut()
            .zip(&mut far.end.queue_pairs);
        for (ours, theirs) in pairs {
            let start = |at: usize, qp| {
                BringUp::start(&infos[at], qp, ConnectionParams::default(), 1, vec![])
            };
            let (mut one, mut two) = (start(0, &mut **ours)?, start(1, &mut **theirs)?);
            one.connect_both(&mut **ours, &mut two, &mut **theirs)?;
        }
        Ok(Self {
            which: queue_pairs.next_power_of_two().trailing_zeros(),
            done: vec![0; queue_pairs],
            is_full: false,
            window,
            near,
            far,
        })
    }

    /// Keeps the window full until at least `count` more requests have completed.
    pub fn run(&mut self, count: u64) -> Result<(), WritesError> {
        self.fill()?;
        let mut done = 0;
        while done < count {
            done += self.take()?;
        }
        Ok(())
    }

    /// Fills the window on the first call, one queue pair after the other in turn; later calls do nothing.
    pub fn fill(&mut self) -> Result<(), WritesError> {
        if std::mem::replace(&mut self.is_full, true) {
            return Ok(());
        }
        for number in 0..self.window.depth as u64 {
            for at in 0..self.window.queue_pairs {
                self.post(at, number, self.place(at, number))?;
            }
        }
        Ok(())
    }

    /// Polls completions, checks the bytes of each request and posts one in its place. Returns their number.
    fn take(&mut self) -> Result<u64, WritesError> {
        let mut found = [Completion::default(); BATCH];
        let count = self.near.end.send_cq.poll(&mut found)?;
        for completion in &found[..count] {
            let ended = self.ended(completion)?;
            self.post_again(ended)?;
        }
        Ok(count as u64)
    }

    /// Polls one completion, if there is one, and checks its request's bytes.
    pub fn take_one(&mut self) -> Result<Option<CompletedWrite>, WritesError> {
        let mut found = [Completion::default()];
        match self.near.end.send_cq.poll(&mut found)? {
            0 => Ok(None),
            _ => self.ended(&found[0]).map(Some),
        }
    }

    /// Posts the next request in the place of a completed one.
    #[inline]
    pub fn post_again(&mut self, ended: CompletedWrite) -> Result<(), WritesError> {
        let CompletedWrite { at, number, place } = ended;
        self.post(at, number + self.window.depth as u64, place)
    }

    #[inline]
    fn ended(&mut self, completion: &Completion) -> Result<CompletedWrite, WritesError> {
        let number = completion.wr_id >> self.which;
        let at = (completion.wr_id & ((1 << self.which) - 1)) as usize;
        let (Some(next), Status::Success) = (self.done.get_mut(at), completion.status) else {
            return Err(WritesError::Ended(*completion));
        };
        if number != *next {
            return Err(WritesError::Order {
                queue_pair: at,
                found: number,
                wanted: *next,
            });
        }
        *next += 1;
        let place = self.place(at, number);
        self.look(number, place)?;
        Ok(CompletedWrite { at, number, place })
    }

    fn post(&mut self, at: usize, number: u64, place: usize) -> Result<(), WritesError> {
        let words = self.near.memory.words(place, self.window.bytes / WORD);
        for (at, word) in words.iter().enumerate() {
            word.store(content(number, at), Ordering::Relaxed);
        }
        let sges = [self.near.memory.sge(place, self.window.bytes)];
        self.near.end.queue_pairs[at].post_send(&[SendWr {
            wr_id: number << self.which | at as u64,
            op: SendOp::Write(self.far.memory.region().remote(place)),
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        }])?;
        Ok(())
    }

    /// Checks that all bytes of a request are in its place at the target.
    fn look(&self, number: u64, place: usize) -> Result<(), WritesError> {
        // Read where they are, once and without a copy: the check must not cost more than the WRITE.
        let words = self.far.memory.words(place, self.window.bytes / WORD);
        let words = words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut all = 0;
        // Compares all words without an early exit, so that the loop has no branch.
        for (at, word) in words.clone().enumerate() {
            all |= word ^ content(number, at);
        }
        if all == 0 {
            return Ok(());
        }
        let differs = |(at, word): &(usize, u64)| *word != content(number, *at);
        let wrong = words.enumerate().find(differs);
        wrong.map_or(Ok(()), |(at, found)| {
            Err(WritesError::Wrong {
                number,
                at: at * WORD,
                found,
                wanted: content(number, at),
            })
        })
    }

    /// Offset of a request's bytes, the same on both sides. The next lap of the window uses the place again.
    fn place(&self, at: usize, number: u64) -> usize {
        let WriteWindow { depth, bytes, .. } = self.window;
        (at * depth + number as usize % depth) * bytes
    }
}

/// Word `at` of request `number`. It differs between requests that use the same place, and is never 0, the
/// initial content of memory.
fn content(number: u64, at: usize) -> u64 {
    ((number + 1) << 24) + at as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use headworks_shm::Registry;
    use headworks_softnic::SoftProvider;
    use headworks_verbs::Provider;

    const WINDOW: WriteWindow = WriteWindow {
        queue_pairs: 3,
        depth: 4,
        bytes: 24,
    };

    fn with<R>(window: WriteWindow, then: impl FnOnce(Result<Writes, WritesError>) -> R) -> R {
        let dir = tempfile::tempdir().unwrap();
        let provider = SoftProvider::on(Registry::open_at(dir.path().join("fabric")).unwrap());
        let open = |name: &str| provider.open(&name.parse().unwrap()).unwrap();
        then(Writes::connect([open("soft:h1"), open("soft:h2")], window))
    }

    #[test]
    fn as_many_are_written_as_were_asked_for_and_the_window_stays_full() {
        with(WINDOW, |writes| {
            let mut writes = writes.unwrap();
            for count in [1000, 0, 1] {
                let before: u64 = writes.done.iter().sum();
                writes.run(count).unwrap();
                let more = writes.done.iter().sum::<u64>() - before;
                assert!((count..count + 12).contains(&more), "{more}");
            }
            // Every queue pair was used. Each place holds a request of the current window, if that has
            // arrived, or else the request before it.
            for (at, done) in writes.done.clone().into_iter().enumerate() {
                assert!(done > 100);
                for number in done..done + 4 {
                    let place = writes.place(at, number);
                    let (here, before) = (writes.look(number, place), number - 4);
                    assert!(here.is_ok() || writes.look(before, place).is_ok());
                }
            }
        });
    }

    #[test]
    fn bytes_that_are_not_those_of_the_request_are_found_be_they_the_last_word() {
        for at in [0, 8, 16] {
            with(WINDOW, |writes| {
                let mut writes = writes.unwrap();
                writes.run(100).unwrap();
                let number = writes.done[1];
                let place = writes.place(1, number) + at;
                // As if this request had not been written.
                let last = content(number - 4, at / WORD);
                writes.far.memory.word(place).store(last, Ordering::Relaxed);
                let wrong = writes.run(100).unwrap_err();
                let WritesError::Wrong {
                    number: wrong_one,
                    at: found_at,
                    found,
                    wanted,
                } = wrong
                else {
                    panic!("{wrong}");
                };
                assert_eq!((wrong_one, found_at), (number, at));
                assert_eq!((found, wanted), (last, content(number, at / WORD)));
            });
        }
    }

    #[test]
    fn a_failed_request_is_reported() {
        with(WINDOW, |writes| {
            let mut writes = writes.unwrap();
            writes.run(10).unwrap();
            // Removes the peer's queue pairs.
            writes.far.end.queue_pairs.clear();
            let ended = writes.run(1000).unwrap_err();
            assert!(matches!(ended, WritesError::Ended(_)), "{ended}");
        });
    }

    #[test]
    fn a_window_of_nothing_is_refused() {
        for (queue_pairs, depth, bytes) in [(0, 4, 8), (1, 0, 8), (1, 4, 0), (1, 4, 12)] {
            let window = WriteWindow {
                queue_pairs,
                depth,
                bytes,
            };
            with(window, |writes| {
                let refused = writes.err().map(|why| why.to_string());
                assert!(refused.is_some_and(|why| why.contains("a multiple")));
            });
        }
    }
}

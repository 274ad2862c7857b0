//! Threads that process slices: a small thread pool with a bounded queue, whose completions are polled.
//!
//! [`Jobs::submit`] queues a slice, and one of the threads calls the processing function for it. [`Jobs::poll`] returns
//! what has completed. Neither waits. The caller decides when to [release](crate::receiver::Receiver::release) the
//! slice's unit: after its completion, since before that the thread reads the bytes.
//!
//! This module starts threads. A thread waits on a condition variable while the queue is empty.
//!
//! A device writes the pool's memory, so no code holds a plain reference to it. [`SliceBytes`] copies: a whole slice
//! goes to a buffer of 4 KiB that the thread uses again for each slice, and that stays in the first-level cache.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use headworks_shm::View;

use crate::slices::Slice;
use crate::units::UNIT;

/// Numbers of threads and jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobsConfig {
    /// Threads, 1 to 256. Default 2.
    pub threads: u32,
    /// Jobs that are queued, running or not yet polled, 1 to 65,536. Default 64: those of the longest extent.
    pub jobs: u32,
}

impl Default for JobsConfig {
    fn default() -> Self {
        Self {
            threads: 2,
            jobs: 64,
        }
    }
}

/// Error of [`Jobs::start`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A number that is not allowed.
    #[error("{key} is {value}: 1 to {most}")]
    Config {
        /// Key of the setting.
        key: &'static str,
        /// Value that was given.
        value: u32,
        /// Greatest value that is allowed.
        most: u32,
    },
    /// The operating system starts no more threads.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// Error of [`Jobs::submit`]. The job was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many jobs as are allowed are queued, running or not yet polled: poll completions first.
    #[error("job limit reached (jobs = {0}); poll completions first")]
    Full(u32),
    /// The slice does not lie in the pool's memory, or is longer than a unit.
    #[error("a slice of {len} bytes at offset {offset} does not lie in the pool's memory")]
    Range {
        /// Offset of the slice in the pool's memory.
        offset: u64,
        /// Bytes of the slice.
        len: u32,
    },
}

/// Failure of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The processing function panicked. The thread goes on with other jobs.
    #[error("the processing of the slice panicked: {0}")]
    Panicked(String),
}

/// A job that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedJob<T, R> {
    /// Value that was given with the slice.
    pub tag: T,
    /// The slice.
    pub slice: Slice,
    /// What the processing function returned.
    pub result: Result<R, JobError>,
}

/// The bytes of a slice, for reading.
pub struct SliceBytes<'a> {
    view: &'a View,
    buffer: &'a mut [u8; UNIT as usize],
    slice: Slice,
}

impl SliceBytes<'_> {
    /// The slice.
    pub fn slice(&self) -> Slice {
        self.slice
    }

    /// Copies all bytes to the thread's buffer, and returns them.
    pub fn copied(&mut self) -> &[u8] {
        let into = &mut self.buffer[..self.slice.len as usize];
        let read = self.view.read(self.slice.offset as usize, into);
        debug_assert!(read.is_ok(), "the range was checked when it was submitted");
        into
    }

    /// Copies bytes from position `from` of the slice on. Returns `false`, and copies nothing, if the slice does not
    /// have as many.
    pub fn read(&self, from: u32, into: &mut [u8]) -> bool {
        let end = (from as usize).checked_add(into.len());
        end.is_some_and(|end| end <= self.slice.len as usize)
            && self
                .view
                .read(self.slice.offset as usize + from as usize, into)
                .is_ok()
    }
}

/// A job that is queued.
type Queued<T> = (T, Slice);

/// What the threads share.
struct Shared<T> {
    queue: Mutex<Queue<T>>,
    /// Notified when a job was queued, and when the threads must end.
    changed: Condvar,
}

struct Queue<T> {
    jobs: VecDeque<Queued<T>>,
    must_end: bool,
}

impl<T> Shared<T> {
    fn change<O>(&self, change: impl FnOnce(&mut Queue<T>) -> O) -> O {
        // Nothing panics while the lock is held.
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut queue)
    }

    /// Waits for the next job. Returns `None` when the thread must end.
    fn next(&self) -> Option<Queued<T>> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queue = self
            .changed
            .wait_while(queue, |queue| queue.jobs.is_empty() && !queue.must_end)
            .unwrap_or_else(PoisonError::into_inner);
        match queue.must_end {
            true => None,
            false => queue.jobs.pop_front(),
        }
    }
}

/// Threads that process slices of a pool. `T` is the caller's tag of a slice, which the completed job returns.
/// `R` is what the processing function returns.
///
/// Dropping it waits for the jobs that are running; those that are queued are not begun.
///
/// - Working: [`submit`](Self::submit), [`poll`](Self::poll).
/// - Querying: [`room`](Self::room), [`outstanding`](Self::outstanding).
pub struct Jobs<T, R> {
    shared: Arc<Shared<T>>,
    completed: Receiver<CompletedJob<T, R>>,
    threads: Vec<JoinHandle<()>>,
    /// Bytes of the pool's memory.
    memory: usize,
    most: u32,
    outstanding: u32,
}

impl<T: Copy + Send + 'static, R: Send + 'static> Jobs<T, R> {
    /// Starts the threads, `rxpool-job-0` and so on. `memory` is the pool's memory from its first byte on. The threads
    /// call `process` for each slice, several at the same time.
    ///
    /// # Errors
    ///
    /// [`StartError`], and then no thread runs.
    pub fn start(
        config: JobsConfig,
        memory: View,
        process: impl Fn(T, &mut SliceBytes<'_>) -> R + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let JobsConfig { threads, jobs } = config;
        for (key, value, most) in [("threads", threads, 256), ("jobs", jobs, 65_536)] {
            if !(1..=most).contains(&value) {
                return Err(StartError::Config { key, value, most });
            }
        }
        let queue = Queue {
            jobs: VecDeque::with_capacity(jobs as usize),
            must_end: false,
        };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        });
        let (sender, completed) = channel();
        let mut all = Self {
            shared,
            completed,
            threads: Vec::new(),
            memory: memory.len(),
            most: jobs,
            outstanding: 0,
        };
        let process = Arc::new(process);
        for number in 0..threads {
            let (shared, sender) = (all.shared.clone(), sender.clone());
            let (memory, process) = (memory.clone(), process.clone());
            let builder = Builder::new().name(format!("rxpool-job-{number}"));
            // If this one does not start, dropping `all` ends the others.
            let thread = builder.spawn(move || work(&shared, &memory, &sender, &*process))?;
            all.threads.push(thread);
        }
        Ok(all)
    }

    /// Queues a slice. Its unit must not be released before the job is [polled](Self::poll).
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn submit(&mut self, slice: Slice, tag: T) -> Result<(), SubmitError> {
        let Slice { offset, len, .. } = slice;
        let end = offset.checked_add(len.into());
        if len > UNIT || end.is_none_or(|end| end > self.memory as u64) {
            return Err(SubmitError::Range { offset, len });
        }
        if self.outstanding == self.most {
            return Err(SubmitError::Full(self.most));
        }
        self.outstanding += 1;
        self.shared
            .change(|queue| queue.jobs.push_back((tag, slice)));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Returns a job that has ended, if there is one. Jobs end in any order.
    pub fn poll(&mut self) -> Option<CompletedJob<T, R>> {
        let completed = self.completed.try_recv().ok()?;
        self.outstanding -= 1;
        Some(completed)
    }

    /// Number of jobs that may be submitted before others are polled.
    pub fn room(&self) -> u32 {
        self.most - self.outstanding
    }

    /// Number of jobs that are queued, running or not yet polled.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }
}

impl<T, R> Drop for Jobs<T, R> {
    fn drop(&mut self) {
        self.shared.change(|queue| queue.must_end = true);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the processing function was caught.
            let _ = thread.join();
        }
    }
}

/// A thread: takes jobs until it must end.
fn work<T: Copy, R>(
    shared: &Shared<T>,
    view: &View,
    completed: &Sender<CompletedJob<T, R>>,
    process: &impl Fn(T, &mut SliceBytes<'_>) -> R,
) {
    let mut buffer = [0; UNIT as usize];
    while let Some((tag, slice)) = shared.next() {
        let buffer = &mut buffer;
        let mut bytes = SliceBytes {
            view,
            buffer,
            slice,
        };
        let result = catch_unwind(AssertUnwindSafe(|| process(tag, &mut bytes)));
        let result = result.map_err(|why| JobError::Panicked(message_of(&*why)));
        let job = CompletedJob { tag, slice, result };
        if completed.send(job).is_err() {
            // The owner is gone.
            return;
        }
    }
}

/// The text of a panic.
fn message_of(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<&str>().copied();
    let text = text.or_else(|| why.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
#[path = "jobs/tests.rs"]
mod tests;

//! What processes take of this machine, as its kernel says: memory, processors, and how often they were switched to.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::transports::ArmError;

/// How links to files in memory begin, in `/proc`.
const IN_MEMORY: &str = "/memfd:";
/// Bytes of a block of a file, as stat(2) counts.
const BLOCK: u64 = 512;

/// Whether what `/proc` listed has ended or was closed since.
fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

fn unread(what: impl Display) -> impl Fn(std::io::Error) -> ArmError {
    move |error| ArmError(format!("{what}: {error}"))
}

fn of(pid: Pid) -> String {
    format!("/proc/{}", pid.as_raw_nonzero())
}

/// Memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of its own and its share of files that it maps, without what follows.
    pub own: u64,
    /// Bytes of files in memory that it has, and nobody before it: what processes share and what devices are given. All
    /// that the kernel has allocated, whether anybody has touched it or not.
    pub shared: u64,
    /// Bytes that it has mapped, its share of those that others have mapped as well (PSS of proc_pid_smaps(5)): what it
    /// has touched, more or less.
    pub mapped: u64,
}

impl Memory {
    /// All that the kernel has given for it.
    pub fn bytes(self) -> u64 {
        self.own + self.shared
    }
}

/// Memory of each of some processes. What several have is counted once, of the first of them.
///
/// # Errors
///
/// One is gone, or another user's.
pub fn memory(pids: &[Pid]) -> Result<Vec<Memory>, ArmError> {
    let mut counted = BTreeSet::new();
    let mut all = Vec::with_capacity(pids.len());
    for pid in pids {
        let path = format!("{}/smaps_rollup", of(*pid));
        let text = std::fs::read_to_string(&path).map_err(unread(&path))?;
        let bytes = |key| match field(&text, key) {
            Some(kib) => Ok(kib * 1024),
            None => Err(ArmError(format!("{path} has no {key}"))),
        };
        let mapped = bytes("Pss:")?;
        let mut memory = Memory {
            own: mapped.saturating_sub(bytes("Pss_Shmem:")?),
            shared: 0,
            mapped,
        };
        let files = format!("{}/fd", of(*pid));
        for file in std::fs::read_dir(&files).map_err(unread(&files))? {
            let path = file.map_err(unread(&files))?.path();
            let link = match std::fs::read_link(&path) {
                Ok(link) => link,
                // The process closed the descriptor after it was listed.
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(unread(&files)(error)),
            };
            if !link.to_string_lossy().starts_with(IN_MEMORY) {
                continue;
            }
            let about = match std::fs::metadata(&path) {
                Ok(about) => about,
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(unread(&files)(error)),
            };
            if counted.insert((about.dev(), about.ino())) {
                memory.shared += about.blocks() * BLOCK;
            }
        }
        all.push(memory);
    }
    Ok(all)
}

/// What threads do, per second: of processes, for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Seconds on a processor: how many they use.
    pub runs: f64,
    /// Seconds ready to run, on none.
    pub waits: f64,
}

/// What threads did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Nanoseconds on a processor.
    pub ran_ns: u64,
    /// Nanoseconds ready to run, on none.
    pub waited_ns: u64,
    /// How often they were switched to, after they had slept or somebody else had run.
    pub switches: u64,
}

impl Load {
    /// Of threads that processes have all the time. On a machine that is busy it takes a while to look at all of them:
    /// each process has a time of its own.
    ///
    /// # Errors
    ///
    /// As [`Work::of`].
    pub fn of(pids: &[Pid], time: Duration) -> Result<Self, ArmError> {
        let look = || -> Result<Vec<(Instant, Work)>, ArmError> {
            let look = |pid: &Pid| Ok((Instant::now(), Work::of(&[*pid])?));
            pids.iter().map(look).collect()
        };
        let before = look()?;
        std::thread::sleep(time);
        let mut load = Self::default();
        for ((began, before), (ended, after)) in before.into_iter().zip(look()?) {
            let nanos = ended.duration_since(began).as_nanos().max(1) as f64;
            let work = after.since(before);
            load.runs += work.ran_ns as f64 / nanos;
            load.waits += work.waited_ns as f64 / nanos;
        }
        Ok(load)
    }
}

impl Work {
    /// Of all threads that processes have now. What those did that have ended is forgotten.
    ///
    /// # Errors
    ///
    /// A process is gone, or the kernel does not say.
    pub fn of(pids: &[Pid]) -> Result<Self, ArmError> {
        let mut sum = Self::default();
        for pid in pids {
            let tasks = format!("{}/task", of(*pid));
            for task in std::fs::read_dir(&tasks).map_err(unread(&tasks))? {
                let task = task.map_err(unread(&tasks))?;
                sum.add(&task.path())?;
            }
        }
        Ok(sum)
    }

    /// Adds a thread; nothing of one that ended after it was listed.
    fn add(&mut self, task: &Path) -> Result<(), ArmError> {
        let read = |name| {
            let path = task.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if is_gone(&error) => Ok(None),
                Err(error) => Err(unread(path.display())(error)),
            }
        };
        let (Some(schedule), Some(status)) = (read("schedstat")?, read("status")?) else {
            return Ok(());
        };
        let mut numbers = schedule.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(ran)), Some(Ok(waited))) = (numbers.next(), numbers.next()) else {
            return Err(ArmError(format!("no times of threads: {schedule}")));
        };
        self.ran_ns += ran;
        self.waited_ns += waited;
        for key in ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"] {
            let count = field(&status, key);
            self.switches += count.ok_or_else(|| ArmError(format!("no {key} of a thread")))?;
        }
        Ok(())
    }

    /// What they did since then.
    pub fn since(self, before: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// The number behind a key that begins a line.
fn field(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
    use rustix::process::getpid;

    #[test]
    fn fields_are_found_by_the_whole_of_their_keys() {
        let text = "Rss:  7 kB\nPss:      12 kB\nPss_Anon:  3 kB\nodd:\n";
        assert_eq!(field(text, "Pss:"), Some(12));
        assert_eq!(field(text, "odd:"), None);
        assert_eq!(field(text, "none:"), None);
        let text = "voluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t5\n";
        assert_eq!(field(text, "voluntary_ctxt_switches:"), Some(4));
    }

    #[test]
    fn what_nobody_has_touched_is_counted_once_however_many_have_it() {
        let bytes = 256 << 20;
        let file = memfd_create("taken", MemfdFlags::CLOEXEC).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        let both = memory(&[getpid(), getpid()]).unwrap();
        // Others of this process's tests have some, too.
        assert!(both[0].shared >= bytes, "{both:?}");
        assert!(both[1].shared < bytes / 2, "{both:?}");
        assert!(both[0].mapped > 0 && both[0].own > 0);
    }

    #[test]
    fn this_process_has_run() {
        let own = [getpid()];
        let before = Work::of(&own).unwrap();
        assert!(before.ran_ns > 0);
        assert_eq!(before.since(before), Work::default());
    }
}

//! Resource use of processes as the kernel reports it: memory, processor time, context switches.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;

use super::Result;
use crate::error::WorkloadError;

/// How links to memfds in `/proc` begin.
const IN_MEMORY: &str = "/memfd:";
/// Longest time between two checks of a stop flag.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of a file's block as stat(2) counts them.
const BLOCK: u64 = 512;

/// Waits for `time`. Returns an error if `stop` is set meanwhile.
pub fn pause(time: Duration, stop: &AtomicBool) -> Result<()> {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK));
    }
    Err(WorkloadError("interrupted".to_owned()))
}

/// Returns what was read in `/proc`; `None` if the process, thread or descriptor has gone since it was
/// listed.
fn unless_gone<T>(read: std::io::Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(WorkloadError::at("/proc", error)),
    }
}

/// Lists a directory of a process in `/proc`. The process must exist.
fn list(pid: Pid, directory: &str) -> Result<Vec<PathBuf>> {
    let path = format!("/proc/{}/{directory}", pid.as_raw_nonzero());
    let entries = std::fs::read_dir(&path).and_then(|entries| {
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect()
    });
    entries.map_err(|error| WorkloadError::at(&path, error))
}

/// Returns the number after a key at the beginning of a line.
fn field(text: &str, key: &str) -> Result<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key));
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| WorkloadError(format!("/proc has no field {key}")))
}

/// Memory use of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes of private memory and its share of mapped files, without shared memory (PSS less `Pss_Shmem`).
    pub own: u64,
    /// Bytes of memfds that no earlier process in the list has open: memory that processes share or devices
    /// use. Counts all that the kernel has allocated, whether a process has touched it or not.
    pub shared: u64,
    /// Bytes mapped, with its share of what others map as well (PSS of proc_pid_smaps(5)): roughly what the
    /// process has touched.
    pub mapped: u64,
}

impl MemoryUsage {
    /// Returns all bytes that the kernel has allocated for the process.
    pub fn bytes(self) -> u64 {
        self.own + self.shared
    }
}

/// Returns the memory of each process. What several have open is counted once, for the first of them.
pub fn memory(pids: &[Pid]) -> Result<Vec<MemoryUsage>> {
    let mut counted = BTreeSet::new();
    let mut all = Vec::with_capacity(pids.len());
    for pid in pids {
        let path = format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero());
        let text =
            std::fs::read_to_string(&path).map_err(|error| WorkloadError::at(&path, error))?;
        let bytes = |key| Ok::<_, WorkloadError>(field(&text, key)? * 1024);
        let mapped = bytes("Pss:")?;
        let mut memory = MemoryUsage {
            own: mapped.saturating_sub(bytes("Pss_Shmem:")?),
            shared: 0,
            mapped,
        };
        for path in list(*pid, "fd")? {
            let Some(link) = unless_gone(std::fs::read_link(&path))? else {
                continue;
            };
            if !link.to_string_lossy().starts_with(IN_MEMORY) {
                continue;
            }
            if let Some(about) = unless_gone(std::fs::metadata(&path))?
                && counted.insert((about.dev(), about.ino()))
            {
                memory.shared += about.blocks() * BLOCK;
            }
        }
        all.push(memory);
    }
    Ok(all)
}

/// Processor load of threads, averaged over a while.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuLoad {
    /// Seconds on a processor per second: the number of processors in use.
    pub runs: f64,
    /// Seconds ready to run but on no processor, per second.
    pub waits: f64,
}

/// Accumulated processor times of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Nanoseconds on a processor.
    pub ran_ns: u64,
    /// Nanoseconds ready to run but on no processor.
    pub waited_ns: u64,
    /// Number of times that a thread was switched to, after it had slept or another thread had run.
    pub switches: u64,
}

impl CpuLoad {
    /// Measures the load of processes for `time`. Right only for threads that exist all the time. Reading all
    /// of them takes a while on a busy machine, so each process has its own interval.
    pub fn of(pids: &[Pid], time: Duration, stop: &AtomicBool) -> Result<Self> {
        let look = || -> Result<Vec<(Instant, CpuTimes)>> {
            let look = |pid: &Pid| Ok((Instant::now(), CpuTimes::of(&[*pid])?));
            pids.iter().map(look).collect()
        };
        let before = look()?;
        pause(time, stop)?;
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

impl CpuTimes {
    /// Returns the sum over all threads that the processes have now. The times of threads that have ended are
    /// lost.
    pub fn of(pids: &[Pid]) -> Result<Self> {
        let mut sum = Self::default();
        for pid in pids {
            for task in list(*pid, "task")? {
                let read = |name| unless_gone(std::fs::read_to_string(task.join(name)));
                if let (Some(schedule), Some(status)) = (read("schedstat")?, read("status")?) {
                    sum.add(&schedule, &status)?;
                }
            }
        }
        Ok(sum)
    }

    /// Adds the times of a thread.
    fn add(&mut self, schedule: &str, status: &str) -> Result<()> {
        let mut numbers = schedule.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(ran)), Some(Ok(waited))) = (numbers.next(), numbers.next()) else {
            return Err(WorkloadError(format!(
                "no thread times in schedstat: {schedule}"
            )));
        };
        self.ran_ns += ran;
        self.waited_ns += waited;
        for key in ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"] {
            self.switches += field(status, key)?;
        }
        Ok(())
    }

    /// Returns what was added since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// Returns the processor time of processes in nanoseconds, threads that have ended included.
pub fn process_cpu_ns(pids: &[Pid]) -> Result<u64> {
    pids.iter().map(|pid| ticks_ns(*pid)).sum()
}

/// Returns the processor time of a process, which the kernel counts in ticks.
fn ticks_ns(pid: Pid) -> Result<u64> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).map_err(|error| WorkloadError::at(&path, error))?;
    // The name, in parentheses, may contain anything. utime and stime are fields 14 and 15.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let (Some(user), Some(system)) = (ticks(11), ticks(12)) else {
        return Err(WorkloadError(format!("{path} has no processor times")));
    };
    Ok((user + system) * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
    use rustix::process::getpid;

    #[test]
    fn fields_are_found_by_the_whole_of_their_keys() {
        let text = "Rss:  7 kB\nPss:      12 kB\nPss_Anon:  3 kB\nodd:\n";
        let found = ["Pss:", "odd:", "none:"].map(|key| field(text, key).ok());
        assert_eq!(found, [Some(12), None, None]);
    }

    #[test]
    fn a_threads_times_and_switches_are_added() {
        let status = "voluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t5\n";
        let mut work = CpuTimes::default();
        work.add("10 20 3\n", status).unwrap();
        work.add("1 2 3\n", status).unwrap();
        let CpuTimes {
            ran_ns,
            waited_ns,
            switches,
        } = work;
        assert_eq!((ran_ns, waited_ns, switches), (11, 22, 18));
        assert!(work.add("none", status).is_err());
    }

    #[test]
    fn untouched_shared_memory_is_counted_once() {
        let bytes = 256 << 20;
        let file = memfd_create("taken", MemfdFlags::CLOEXEC).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        let both = memory(&[getpid(), getpid()]).unwrap();
        // Other tests in this process have memfds, too.
        assert!(both[0].shared >= bytes, "{both:?}");
        assert!(both[1].shared < bytes / 2, "{both:?}");
        assert!(both[0].mapped > 0 && both[0].own > 0);
    }

    #[test]
    fn processor_time_of_threads_that_have_ended_counts() {
        let spin = || {
            let until = Instant::now() + Duration::from_millis(200);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        };
        let before = process_cpu_ns(&[getpid()]).unwrap();
        std::thread::spawn(spin).join().unwrap();
        assert!(process_cpu_ns(&[getpid()]).unwrap() > before);
    }

    #[test]
    fn this_process_has_run() {
        let own = [getpid()];
        let before = CpuTimes::of(&own).unwrap();
        assert!(before.ran_ns > 0);
        assert_eq!(before.since(before), CpuTimes::default());
    }
}

//! Keeping a thread on one processor.

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use crate::error::WorkloadError;

/// Keeps the calling thread, and what it starts, on processor `cpu`.
pub fn pin(cpu: usize) -> Result<(), WorkloadError> {
    pin_process(None, cpu)
}

/// Keeps process `pid` (unset: the calling thread) on processor `cpu`.
pub fn pin_process(pid: Option<Pid>, cpu: usize) -> Result<(), WorkloadError> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(pid, &set)
        .map_err(|why| WorkloadError::at(&format!("pinning to processor {cpu}"), why))
}

/// The processors that this process may use.
pub fn allowed_cpus() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect()
}

/// Two processors that this process may use; the same one twice where there is only one.
pub fn two_cpus() -> [usize; 2] {
    let allowed = allowed_cpus();
    let first = allowed.first().copied().unwrap_or(0);
    [first, allowed.get(1).copied().unwrap_or(first)]
}

//! Processor affinity of threads and processes.

use std::path::Path;

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use crate::error::WorkloadError;

/// Pins the calling thread, and what it starts, to processor `cpu`.
pub fn pin(cpu: usize) -> Result<(), WorkloadError> {
    pin_process(None, cpu)
}

/// Pins process `pid` (`None`: the calling thread) to processor `cpu`.
pub fn pin_process(pid: Option<Pid>, cpu: usize) -> Result<(), WorkloadError> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(pid, &set)
        .map_err(|why| WorkloadError::at(&format!("pinning to processor {cpu}"), why))
}

/// Returns the processors that this process may use.
pub fn allowed_cpus() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect()
}

/// Returns two processors that this process may use; the same one twice if there is only one.
pub fn two_cpus() -> [usize; 2] {
    let allowed = allowed_cpus();
    let first = allowed.first().copied().unwrap_or(0);
    [first, allowed.get(1).copied().unwrap_or(first)]
}

fn is_on(cpu: usize, node: u32) -> bool {
    Path::new(&format!("/sys/devices/system/node/node{node}/cpu{cpu}")).exists()
}

/// Returns the NUMA node with memory that the first processor belongs to, and another node with memory.
pub fn numa_nodes() -> [Option<u32>; 2] {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory");
    let nodes = listed(text.unwrap_or_default().trim());
    let [first, _] = two_cpus();
    [true, false].map(|is_home| {
        let mut nodes = nodes.iter().copied();
        nodes.find(|node| is_on(first, *node) == is_home)
    })
}

/// Returns two processors that do not belong to `node`; the same one twice if there is only one.
pub fn cpus_off(node: u32) -> Option<[usize; 2]> {
    let mut cpus = allowed_cpus().into_iter().filter(|cpu| !is_on(*cpu, node));
    let first = cpus.next()?;
    Some([first, cpus.next().unwrap_or(first)])
}

/// Parses a list like `0,2-3`.
fn listed(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes() {
        assert_eq!(listed("0"), [0]);
        assert_eq!(listed("0,2-4"), [0, 2, 3, 4]);
        assert!(listed("").is_empty() && listed("x-3").is_empty());
    }
}

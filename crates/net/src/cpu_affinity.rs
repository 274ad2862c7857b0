//! The processors that this thread may run on, and their NUMA nodes.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread, and threads it starts from now on, to one processor.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        let text = format!("cpu {cpu} is not legal: 0 to {}", CpuSet::MAX_CPU - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| {
        let text = format!(
            "cannot pin to cpu {cpu}: {error}; allowed are {:?}",
            allowed_cpus()
        );
        io::Error::new(io::Error::from(error).kind(), text)
    })
}

/// The processors that the calling thread may run on, ascending. Empty only if the kernel does not tell.
pub fn allowed_cpus() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(error) => {
            tracing::debug!(%error, "cannot read the CPU affinity");
            Vec::new()
        }
    }
}

/// Binds the calling thread, and threads it starts from now on, to those processors of a NUMA node that it may run on.
///
/// # Errors
///
/// `NotFound` if there are none, and the kernel's own.
pub fn keep_to_node(node: u32) -> io::Result<()> {
    let of_node = |cpu: &usize| numa_node_of(*cpu) == Some(node);
    let near: Vec<_> = allowed_cpus().into_iter().filter(of_node).collect();
    if near.is_empty() {
        let text = format!("NUMA node {node} has no processor that this process may use");
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let mut set = CpuSet::new();
    near.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// The NUMA node of a processor, if the machine tells.
pub fn numa_node_of(cpu: usize) -> Option<u32> {
    fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}"))
        .ok()?
        .filter_map(Result::ok)
        .find_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_prefix("node")?
                .parse()
                .ok()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_processor() {
        let allowed = allowed_cpus();
        let last = *allowed.last().expect("a processor");
        std::thread::spawn(move || {
            pin_to_cpu(last).expect("pins");
            assert_eq!(allowed_cpus(), [last]);
        })
        .join()
        .expect("the pinned thread");
        assert_eq!(allowed_cpus(), allowed, "other threads keep theirs");
    }

    #[test]
    fn a_thread_keeps_to_the_processors_of_a_node_or_to_all_it_had() {
        let allowed = allowed_cpus();
        let Some(node) = numa_node_of(allowed[0]) else {
            println!("skipped: the machine does not tell of NUMA nodes");
            return;
        };
        std::thread::spawn(move || {
            keep_to_node(node).expect("a node with a processor");
            let near = allowed_cpus();
            assert!(near.iter().all(|cpu| numa_node_of(*cpu) == Some(node)));
            let all = allowed
                .iter()
                .filter(|cpu| numa_node_of(**cpu) == Some(node));
            assert_eq!(near.len(), all.count());
            let text = keep_to_node(9999).expect_err("no such node").to_string();
            assert!(text.contains("9999") && !text.contains('\n'), "{text}");
            assert_eq!(allowed_cpus(), near, "nothing changed");
        })
        .join()
        .expect("the thread");
    }

    #[test]
    fn a_processor_that_is_not_there_is_one_clear_line() {
        for cpu in [CpuSet::MAX_CPU - 1, usize::MAX] {
            let text = pin_to_cpu(cpu).expect_err("not there").to_string();
            assert!(
                text.contains(&cpu.to_string()) && !text.contains('\n'),
                "{text}"
            );
        }
    }
}

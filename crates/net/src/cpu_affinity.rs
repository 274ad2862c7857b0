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

//! Page faults of the calling thread.

use std::fs::File;
use std::io::Read;

use crate::error::{Result, WorkloadError};

/// Bytes that a thread's line in `/proc` has at most.
const LINE: usize = 1024;

/// Returns the number of page faults of the calling thread so far, with and without I/O, as getrusage(2) counts them.
/// It allocates no memory, so that it causes no page fault of its own.
pub fn page_faults() -> Result<u64> {
    let failed = |why| WorkloadError::at("/proc/thread-self/stat", why);
    let mut line = [0; LINE];
    let mut file = File::open("/proc/thread-self/stat").map_err(failed)?;
    let len = file.read(&mut line).map_err(failed)?;
    parse(&line[..len]).ok_or_else(|| WorkloadError("/proc tells no page faults".into()))
}

/// Parses `minflt` and `majflt` (proc_pid_stat(5)), and adds them up.
fn parse(line: &[u8]) -> Option<u64> {
    // The name of the program may contain spaces and parentheses.
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&line[end + 1..]).ok()?;
    // State, five numbers of processes and terminals, flags; then the faults, each with those of waited-for children.
    let mut fields = text.split_ascii_whitespace().skip(7);
    let minor: u64 = fields.next()?.parse().ok()?;
    let major: u64 = fields.nth(1)?.parse().ok()?;
    Some(minor + major)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_found_behind_any_name() {
        let line = b"7 (a) b (c) R 1 2 3 4 5 6 1000 77 20 88 9 9\n";
        assert_eq!(parse(line), Some(1020));
        assert_eq!(parse(b"7 (a) R 1"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn touching_new_memory_is_counted() {
        let before = page_faults().expect("Linux tells them");
        // So long that the allocator always takes it from the kernel. The compiler must not write to it later.
        let memory = std::hint::black_box(vec![1_u8; 40 << 20]);
        let after = page_faults().expect("Linux tells them");
        assert!(memory.iter().all(|byte| *byte == 1));
        assert!(after > before, "{before} {after}");
    }
}

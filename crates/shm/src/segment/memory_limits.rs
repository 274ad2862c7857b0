//! Checks memory limits before allocating, because the kernel reacts late or fatally. It kills a process that
//! exceeds its control group's memory, and sends a signal to one that exceeds its file size limit.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use super::SegmentError;
use crate::control_group::{self, MemoryLimit, field};
use crate::process_limits;

const FREE_MEMORY: &str = "free memory";
const GROUP_MEMORY: &str = "the control group's memory limit";
const FILE_SIZE: &str = "the file size limit (ulimit -f)";
const ADDRESS_SPACE: &str = "the address space limit (ulimit -v)";

/// Requests below this size are too small to be worth reading `/proc` for.
const WORTH_ASKING_BYTES: usize = 1 << 20;

/// Refuses a size that exceeds free memory, a control group's limit, or the file size limit.
pub(super) fn check(bytes: usize) -> Result<(), SegmentError> {
    check_file_size(bytes)?;
    if bytes < WORTH_ASKING_BYTES {
        return Ok(());
    }
    let wanted = bytes as u64;
    let limits = [
        (cgroup_available(), GROUP_MEMORY),
        (available_memory(), FREE_MEMORY),
    ];
    for (available, limit) in limits {
        if available.is_some_and(|available| available < wanted) {
            return Err(SegmentError::NoSpace {
                wanted,
                available,
                limit,
            });
        }
    }
    Ok(())
}

/// Refuses a file beyond `RLIMIT_FSIZE`, for which the kernel would send a fatal signal.
pub(super) fn check_file_size(bytes: usize) -> Result<(), SegmentError> {
    let wanted = bytes as u64;
    match process_limits::file_size() {
        Some(limit) if limit < wanted => Err(SegmentError::NoSpace {
            wanted,
            available: Some(limit),
            limit: FILE_SIZE,
        }),
        _ => Ok(()),
    }
}

/// Converts the error of an allocation step into the limit that it means.
pub(super) fn explain(errno: Errno, step: &'static str, wanted: u64) -> SegmentError {
    let (available, limit) = match errno {
        Errno::NOMEM if step == "mmap" => match address_space() {
            Some(available) if available < wanted => (Some(available), ADDRESS_SPACE),
            _ => (available_memory(), FREE_MEMORY),
        },
        Errno::NOMEM | Errno::NOSPC => (available_memory(), FREE_MEMORY),
        Errno::FBIG => (process_limits::file_size(), FILE_SIZE),
        _ => return SegmentError::os(step)(errno),
    };
    // The kernel has further rules, so "available" may exceed "wanted". It is then left out as meaningless.
    let available = available.filter(|&available| available < wanted);
    SegmentError::NoSpace {
        wanted,
        available,
        limit,
    }
}

pub(super) fn no_space_line(wanted: u64, available: Option<u64>, limit: &str) -> String {
    match available {
        Some(available) => format!(
            "a shared segment needs {wanted} bytes but {limit} leaves {available}: {} more would be enough",
            wanted.saturating_sub(available)
        ),
        None => format!(
            "a shared segment needs {wanted} bytes, more than {limit} allows: {wanted} free bytes would be enough"
        ),
    }
}

/// Returns how many bytes of memory are available without swapping.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = field(&text, "MemAvailable:")?;
    Some(kibibytes.saturating_mul(1024))
}

/// Returns how many bytes `RLIMIT_AS` leaves, if it is set.
fn address_space() -> Option<u64> {
    let limit = process_limits::address_space()?;
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64)))
}

/// Returns the smallest number of bytes that any control group of this process leaves.
fn cgroup_available() -> Option<u64> {
    let limits = control_group::memory_limits(Path::new("/"))?;
    limits.iter().map(MemoryLimit::available).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_line_names_the_missing_bytes() {
        let line = no_space_line(100, Some(30), FREE_MEMORY);
        assert_eq!(
            line,
            "a shared segment needs 100 bytes but free memory leaves 30: 70 more would be enough"
        );
    }
}

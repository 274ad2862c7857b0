//! Checks memory limits before allocating, because the kernel reacts late or fatally. It kills a process that
//! exceeds its control group's memory, and sends a signal to one that exceeds its file size limit.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::SegmentError;
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
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let root = Path::new("/sys/fs/cgroup");
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
            let names = if controllers.is_empty() {
                &CGROUP_V2
            } else if controllers.split(',').any(|name| name == "memory") {
                &CGROUP_V1
            } else {
                return None;
            };
            // In a container the path may be the host's, of which only the last part is mounted here.
            let mounts = [root.join(names.mount), root.join("unified")];
            mounts
                .iter()
                .filter_map(|mount| least_available(mount, mount.join(path), names))
                .min()
        })
        .min()
}

/// File names of one version of control groups.
struct CgroupFiles {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Fields of `memory.stat`: memory that counts as used but is given back when needed.
    reclaimable: [&'static str; 2],
}

const CGROUP_V2: CgroupFiles = CgroupFiles {
    mount: "",
    limit: "memory.max",
    used: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

const CGROUP_V1: CgroupFiles = CgroupFiles {
    mount: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

/// Returns the smallest number of bytes that `group` or a group above it leaves.
fn least_available(mount: &Path, mut group: PathBuf, names: &CgroupFiles) -> Option<u64> {
    let mut least = None;
    while group.starts_with(mount) {
        if let Some(left) = available_in_cgroup(&group, names) {
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
        if !group.pop() {
            break;
        }
    }
    least
}

fn available_in_cgroup(group: &Path, names: &CgroupFiles) -> Option<u64> {
    let number = |file: &str| -> Option<u64> {
        // "max" does not parse as a number and means no limit.
        fs::read_to_string(group.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let limit = number(names.limit)?;
    let used = number(names.used)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = names
        .reclaimable
        .iter()
        .filter_map(|name| field(&stat, name));
    let held = used.saturating_sub(reclaimable.fold(0, u64::saturating_add));
    Some(limit.saturating_sub(held))
}

/// Returns the number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_leaves_its_limit_less_unreclaimable_memory() {
        let dir = tempfile::tempdir().expect("tempdir");
        let inner = dir.path().join("a/b");
        fs::create_dir_all(&inner).expect("dirs");
        let write = |path: &str, text: &str| fs::write(dir.path().join(path), text).expect("write");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "70\n");
        assert_eq!(least_available(dir.path(), inner.clone(), &CGROUP_V2), None);
        write("a/memory.max", "100\n");
        write("a/memory.current", "90\n");
        assert_eq!(
            least_available(dir.path(), inner.clone(), &CGROUP_V2),
            Some(10)
        );
        write(
            "a/memory.stat",
            "anon 50\ninactive_file 20\nactive_file 5\nfile 999\n",
        );
        assert_eq!(
            least_available(dir.path(), inner.clone(), &CGROUP_V2),
            Some(35)
        );
        write("a/b/memory.max", "80\n");
        assert_eq!(least_available(dir.path(), inner, &CGROUP_V2), Some(10));
    }

    #[test]
    fn the_error_line_names_the_missing_bytes() {
        let line = no_space_line(100, Some(30), FREE_MEMORY);
        assert_eq!(
            line,
            "a shared segment needs 100 bytes but free memory leaves 30: 70 more would be enough"
        );
    }
}

//! Memory limits of control groups, of version 1 and version 2.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory limit of one control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// File that sets the limit.
    pub file: PathBuf,
    /// Bytes that the processes of the group may use together.
    pub bytes: u64,
    /// Bytes that they use and that the kernel cannot take back when it needs memory.
    pub held: u64,
}

impl MemoryLimit {
    /// Returns how many more bytes the processes of the group may use.
    pub fn available(&self) -> u64 {
        self.bytes.saturating_sub(self.held)
    }
}

/// Returns the limits of this process's control groups and of the groups around them; groups without a limit are
/// left out. Reads `/proc` and `/sys` below `root`, which is `/` except in tests. Returns `None` if they do not tell
/// the groups, or show no group that can have a limit.
pub fn memory_limits(root: &Path) -> Option<Vec<MemoryLimit>> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = root.join("sys/fs/cgroup");
    let mut limits = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        let files = if controllers.is_empty() {
            &VERSION_2
        } else if controllers.split(',').any(|name| name == "memory") {
            &VERSION_1
        } else {
            continue;
        };
        // In a container the path may be the host's, of which only the last part is mounted here.
        for mount in [mounts.join(files.mount), mounts.join("unified")] {
            let (mark, word) = files.mark;
            let is_there =
                fs::read_to_string(mount.join(mark)).is_ok_and(|text| text.contains(word));
            let found = limits_up_to(&mount, mount.join(path), files);
            if is_there || !found.is_empty() {
                limits.get_or_insert_with(Vec::new).extend(found);
            }
        }
    }
    limits
}

/// File names of one version of control groups.
struct FileNames {
    mount: &'static str,
    /// File of the topmost group, and a word that is in it if this version limits memory.
    mark: (&'static str, &'static str),
    limit: &'static str,
    used: &'static str,
    /// Fields of `memory.stat`: memory that counts as used but is given back when needed.
    reclaimable: [&'static str; 2],
}

const VERSION_2: FileNames = FileNames {
    mount: "",
    mark: ("cgroup.controllers", "memory"),
    limit: "memory.max",
    used: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

const VERSION_1: FileNames = FileNames {
    mount: "memory",
    mark: ("memory.limit_in_bytes", ""),
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

/// Version 1 shows the largest multiple of a page for a group without a limit. No machine has so much memory.
const LIMIT_END: u64 = 1 << 60;

/// Returns the limits of `group` and of the groups above it.
fn limits_up_to(mount: &Path, mut group: PathBuf, files: &FileNames) -> Vec<MemoryLimit> {
    let mut limits = Vec::new();
    while group.starts_with(mount) {
        limits.extend(limit_of(&group, files));
        if !group.pop() {
            break;
        }
    }
    limits
}

fn limit_of(group: &Path, files: &FileNames) -> Option<MemoryLimit> {
    let number = |file: &Path| -> Option<u64> {
        // "max" does not parse as a number and means no limit.
        fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    let file = group.join(files.limit);
    let bytes = number(&file).filter(|bytes| *bytes < LIMIT_END)?;
    let used = number(&group.join(files.used))?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = files.reclaimable.iter();
    let reclaimable = reclaimable.filter_map(|name| field(&stat, name));
    let held = used.saturating_sub(reclaimable.fold(0, u64::saturating_add));
    Some(MemoryLimit { file, bytes, held })
}

/// Returns the number after `name` at the start of a line.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> (tempfile::TempDir, impl Fn(&str, &str)) {
        let root = tempfile::tempdir().expect("tempdir");
        let below = root.path().to_owned();
        let write = move |path: &str, text: &str| {
            let file = below.join(path);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        };
        (root, write)
    }

    fn least(root: &tempfile::TempDir) -> Option<u64> {
        let limits = memory_limits(root.path()).expect("there are control groups");
        limits.iter().map(MemoryLimit::available).min()
    }

    #[test]
    fn a_group_leaves_its_limit_less_unreclaimable_memory() {
        let (root, write) = root();
        let write_in = |file: &str, text: &str| write(&format!("sys/fs/cgroup/{file}"), text);
        write("proc/self/cgroup", "1:name=systemd:/a\n0::/a/b\n");
        assert_eq!(memory_limits(root.path()), None, "nothing is mounted");
        write_in("cgroup.controllers", "cpu io\n");
        assert_eq!(memory_limits(root.path()), None, "version 1 has it");
        write_in("cgroup.controllers", "cpu io memory\n");
        write_in("a/b/memory.max", "max\n");
        write_in("a/b/memory.current", "70\n");
        assert_eq!(least(&root), None);
        write_in("a/memory.max", "100\n");
        write_in("a/memory.current", "90\n");
        assert_eq!(least(&root), Some(10));
        let stat = "anon 50\ninactive_file 20\nactive_file 5\nfile 999\n";
        write_in("a/memory.stat", stat);
        assert_eq!(least(&root), Some(35));
        write_in("a/b/memory.max", "80\n");
        assert_eq!(least(&root), Some(10));
        let limits = memory_limits(root.path()).expect("there are control groups");
        let file = root.path().join("sys/fs/cgroup/a/memory.max");
        let expected = MemoryLimit {
            file,
            bytes: 100,
            held: 65,
        };
        assert_eq!(limits[1], expected);
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_and_a_number_for_no_limit() {
        let (root, write) = root();
        assert_eq!(memory_limits(root.path()), None, "there is no /proc");
        // The path is that of the host. The group itself is mounted here.
        write("proc/self/cgroup", "4:cpu,memory:/docker/1f\n0::/\n");
        let group = "sys/fs/cgroup/memory";
        write(&format!("{group}/memory.usage_in_bytes"), "4096\n");
        let unlimited = "9223372036854771712\n";
        write(&format!("{group}/memory.limit_in_bytes"), unlimited);
        assert_eq!(memory_limits(root.path()), Some(Vec::new()));
        write(&format!("{group}/memory.limit_in_bytes"), "8192\n");
        write(&format!("{group}/memory.stat"), "total_active_file 96\n");
        assert_eq!(least(&root), Some(8192 - 4000));
    }
}

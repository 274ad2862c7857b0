//! Facts about the environment that the software device runs in: the place of the registry, namespaces, control
//! groups, sandboxes. A fact that cannot be read is `None`, and the findings say so.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headworks::environment::{self, MemoryLimit, SystemCall};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::process::{DumpableBehavior, dumpable_behavior, getuid};

/// Facts that the findings about the software device are derived from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// User id of this process.
    pub(super) user: u32,
    /// Path of the registry's directory, which need not exist.
    pub(super) registry: PathBuf,
    /// The registry's directory, or the nearest one above it; `None` if not even that can be seen.
    pub(super) place: Option<RegistryPlace>,
    /// `/dev/shm`, if it is there.
    pub(super) shm: Option<FileSystem>,
    /// State of `/proc`.
    pub(super) proc: Proc,
    /// Namespaces of this process.
    pub(super) namespaces: Option<Namespaces>,
    /// Memory limits of the control groups of this process, from the inside out.
    pub(super) memory_limits: Option<Vec<MemoryLimit>>,
    /// Bytes that a file of this process may have; `None` if unlimited.
    pub(super) file_size: Option<u64>,
    /// Sandbox that filters the system calls of this process.
    pub(super) seccomp: Option<Seccomp>,
    /// System calls that failed when they were tried, and the errors.
    pub(super) refused_calls: Vec<(SystemCall, String)>,
    /// Yama's restriction of ptrace(2).
    pub(super) yama: Yama,
    /// Whether other processes of this user may read the memory of this one.
    pub(super) is_dumpable: Option<bool>,
}

/// The registry's directory, or what is nearest to it on its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegistryPlace {
    /// Path of what exists.
    pub(super) path: PathBuf,
    pub(super) is_directory: bool,
    /// User id of the owner.
    pub(super) owner: u32,
    /// Permission bits.
    pub(super) mode: u32,
    /// Whether this process has permission to write there. On a read-only file system it is false, too.
    pub(super) may_write: bool,
    /// Its file system.
    pub(super) file_system: Option<FileSystem>,
}

/// A mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSystem {
    /// Size.
    pub(super) bytes: u64,
    /// Bytes that this process may still use.
    pub(super) free: u64,
    pub(super) is_read_only: bool,
}

/// State of `/proc`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Proc {
    #[default]
    Missing,
    Mounted {
        /// Mount options that hide something: `hidepid=…`, `subset=…`.
        hiding: Vec<String>,
    },
}

/// Namespaces of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// Whether the PID namespace is the machine's first.
    pub(super) is_first_pid: bool,
    /// Whether the user namespace is the machine's first.
    pub(super) is_first_user: bool,
    /// Number of user ids that the user namespace maps.
    pub(super) mapped_users: Option<u64>,
}

/// State of seccomp(2) for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seccomp {
    /// Whether a filter decides about system calls.
    pub(super) is_filtered: bool,
    /// Whether programs that this process executes get no privileges.
    pub(super) no_new_privs: bool,
}

/// Yama, a security module of the kernel that restricts which process may read another's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Yama {
    /// `/proc/sys` does not show whether there is one.
    #[default]
    Unknown,
    Absent,
    /// `kernel.yama.ptrace_scope`.
    Scope(u8),
}

/// Inode numbers of the machine's first namespaces (`PROC_PID_INIT_INO`, `PROC_USER_INIT_INO` of the kernel).
const FIRST_PID: u64 = 0xefff_fffc;
const FIRST_USER: u64 = 0xefff_fffd;

impl Environment {
    /// Reads the facts below `root`, which is `/` except in tests. `registry` is the absolute path of the registry.
    /// System calls, limits and attributes are those of this process.
    pub(super) fn read(root: &Path, registry: PathBuf) -> Self {
        let at = |path: &str| root.join(path);
        let status = fs::read_to_string(at("proc/self/status")).ok();
        let calls = environment::refused_calls().into_iter();
        let dumpable = dumpable_behavior().ok();
        Self {
            user: getuid().as_raw(),
            place: place(root, &registry),
            registry,
            shm: file_system(&at("dev/shm")),
            proc: proc(root),
            namespaces: namespaces(&at("proc/self")),
            memory_limits: environment::memory_limits(root),
            file_size: environment::file_size(),
            seccomp: status.as_deref().and_then(seccomp),
            refused_calls: calls
                .map(|(call, error)| (call, in_words(&error)))
                .collect(),
            yama: yama(root),
            is_dumpable: dumpable.map(|how| how == DumpableBehavior::Dumpable),
        }
    }
}

/// Returns the text of a system's error without its number.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    words.to_owned()
}

/// Finds what exists of the registry's path.
fn place(root: &Path, registry: &Path) -> Option<RegistryPlace> {
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    registry.ancestors().find_map(|path| {
        let there = below(path);
        let found = fs::metadata(&there).ok()?;
        Some(RegistryPlace {
            path: path.to_owned(),
            is_directory: found.is_dir(),
            owner: found.uid(),
            mode: found.mode() & 0o7777,
            may_write: access(&there, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
            file_system: file_system(&there),
        })
    })
}

fn file_system(path: &Path) -> Option<FileSystem> {
    let found = statvfs(path).ok()?;
    Some(FileSystem {
        bytes: found.f_blocks.saturating_mul(found.f_frsize),
        free: found.f_bavail.saturating_mul(found.f_frsize),
        is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

fn proc(root: &Path) -> Proc {
    if !root.join("proc/self/status").exists() {
        return Proc::Missing;
    }
    let mounts = fs::read_to_string(root.join("proc/self/mounts")).unwrap_or_default();
    // `proc /proc proc rw,nosuid,hidepid=invisible 0 0`. The last mount on a place is the one that is seen.
    let options = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (place == "/proc" && kind == "proc").then_some(options)
    });
    let hides = |option: &&str| {
        let (key, value) = option.split_once('=').unwrap_or_default();
        let is_off = value == "0" || value == "off";
        key == "subset" || (key == "hidepid" && !is_off)
    };
    let options = options.unwrap_or_default().split(',').filter(hides);
    let hiding = options.map(str::to_owned).collect();
    Proc::Mounted { hiding }
}

fn namespaces(process: &Path) -> Option<Namespaces> {
    // The link reads `pid:[4026531836]`.
    let inode = |name: &str| -> Option<u64> {
        let link = fs::read_link(process.join("ns").join(name)).ok()?;
        let number = link.to_str()?.strip_prefix(name)?.strip_prefix(":[")?;
        number.strip_suffix(']')?.parse().ok()
    };
    // Each line has the first id inside, the first id outside, and the length of the range.
    let length = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
    let map = fs::read_to_string(process.join("uid_map")).ok();
    Some(Namespaces {
        is_first_pid: inode("pid")? == FIRST_PID,
        is_first_user: inode("user")? == FIRST_USER,
        mapped_users: map.map(|map| map.lines().filter_map(length).sum()),
    })
}

fn seccomp(status: &str) -> Option<Seccomp> {
    let field = |name: &str| -> Option<u8> {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.strip_prefix(':')?.trim().parse().ok()
    };
    Some(Seccomp {
        is_filtered: field("Seccomp")? != 0,
        no_new_privs: field("NoNewPrivs") == Some(1),
    })
}

fn yama(root: &Path) -> Yama {
    let settings = root.join("proc/sys/kernel");
    let scope = fs::read_to_string(settings.join("yama/ptrace_scope"));
    match scope.ok().and_then(|scope| scope.trim().parse().ok()) {
        Some(scope) => Yama::Scope(scope),
        None if settings.exists() => Yama::Absent,
        None => Yama::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Creates a root directory with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn read(root: &tempfile::TempDir) -> Environment {
        Environment::read(root.path(), "/run/headworks".into())
    }

    #[test]
    fn the_nearest_part_of_the_path_of_the_registry_is_examined() {
        let root = root(&[("run/user/file", "")]);
        let place = |registry: &str| {
            let facts = Environment::read(root.path(), registry.into());
            assert_eq!(facts.registry, Path::new(registry));
            facts.place.unwrap()
        };
        let us = getuid().as_raw();
        let user = place("/run/user/headworks/x");
        assert_eq!((&*user.path, user.owner), (Path::new("/run/user"), us));
        assert!(user.is_directory && user.may_write, "{user:?}");
        let space = user.file_system.unwrap();
        assert!(space.bytes >= space.free && !space.is_read_only);
        let file = place("/run/user/file/headworks");
        assert_eq!(file.path, Path::new("/run/user/file"));
        assert!(!file.is_directory);
        let closed = Permissions::from_mode(0o1700);
        fs::set_permissions(root.path().join("run/user"), closed).unwrap();
        let own = place("/run/user");
        assert_eq!((&*own.path, own.mode), (Path::new("/run/user"), 0o1700));
        // A relative path cannot be found below another root, which is no error.
        assert!(place("headworks").path.as_os_str().is_empty());
    }

    #[test]
    fn namespaces_are_compared_with_the_first_ones() {
        let root = root(&[("proc/self/uid_map", "  0  1000  1\n  1  100000  65536\n")]);
        let namespaces = root.path().join("proc/self/ns");
        fs::create_dir(&namespaces).unwrap();
        assert_eq!(read(&root).namespaces, None, "the links are missing");
        symlink("pid:[4026531836]", namespaces.join("pid")).unwrap();
        symlink("user:[4026532000]", namespaces.join("user")).unwrap();
        let expected = Namespaces {
            is_first_pid: true,
            is_first_user: false,
            mapped_users: Some(65537),
        };
        assert_eq!(read(&root).namespaces, Some(expected));
        fs::remove_file(namespaces.join("pid")).unwrap();
        symlink("pid:[4026532001]", namespaces.join("pid")).unwrap();
        fs::remove_file(namespaces.join("user")).unwrap();
        symlink("user:[4026531837]", namespaces.join("user")).unwrap();
        let read = read(&root).namespaces.unwrap();
        assert!(!read.is_first_pid && read.is_first_user, "{read:?}");
    }

    #[test]
    fn the_mount_options_that_hide_something_are_read() {
        assert_eq!(read(&root(&[])).proc, Proc::Missing);
        let hiding = |mounts: &str| {
            let root = root(&[("proc/self/status", ""), ("proc/self/mounts", mounts)]);
            match read(&root).proc {
                Proc::Mounted { hiding } => hiding.join(" "),
                Proc::Missing => panic!("it is mounted"),
            }
        };
        let outer = "proc /proc proc rw,hidepid=1 0 0\n";
        assert_eq!(hiding(outer), "hidepid=1");
        let open = "proc /proc proc rw,relatime,hidepid=0 0 0\nproc /x proc rw,hidepid=2 0 0\n";
        assert_eq!(hiding(&format!("{outer}{open}")), "");
        let options = "rw,hidepid=invisible,subset=pid";
        let both = hiding(&format!("none /proc proc {options} 0 0\n"));
        assert_eq!(both, "hidepid=invisible subset=pid");
    }

    #[test]
    fn seccomp_is_read_from_the_status() {
        let of = |status| read(&root(&[("proc/self/status", status)])).seccomp;
        let expected = |is_filtered, no_new_privs| {
            Some(Seccomp {
                is_filtered,
                no_new_privs,
            })
        };
        assert_eq!(
            of("NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n"),
            expected(true, true)
        );
        assert_eq!(of("NoNewPrivs:\t0\nSeccomp:\t0\n"), expected(false, false));
        assert_eq!(of("Name:\tx\n"), None, "the kernel has no seccomp");
    }

    #[test]
    fn the_absence_of_yama_differs_from_not_knowing() {
        let of = |files| read(&root(files)).yama;
        assert_eq!(of(&[]), Yama::Unknown);
        assert_eq!(of(&[("proc/sys/kernel/ostype", "Linux\n")]), Yama::Absent);
        let scope = "proc/sys/kernel/yama/ptrace_scope";
        assert_eq!(of(&[(scope, "2\n")]), Yama::Scope(2));
    }

    #[test]
    fn memory_limits_and_shared_memory_are_those_below_the_root() {
        let group = "sys/fs/cgroup/memory.max";
        let bare = root(&[(group, "1048576\n")]);
        let facts = read(&bare);
        assert_eq!((facts.memory_limits, facts.shm), (None, None));
        let root = root(&[
            ("proc/self/cgroup", "0::/\n"),
            (group, "1048576\n"),
            ("sys/fs/cgroup/memory.current", "4096\n"),
            ("dev/shm/file", ""),
        ]);
        let facts = read(&root);
        let [limit] = &facts.memory_limits.unwrap()[..] else {
            panic!("one limit")
        };
        assert_eq!((limit.bytes, limit.held), (1 << 20, 4096));
        assert!(facts.shm.is_some());
    }

    #[test]
    fn errors_are_shown_without_their_numbers() {
        let words = in_words(&io::Error::from(rustix::io::Errno::PERM));
        assert_eq!(words, "Operation not permitted");
    }
}

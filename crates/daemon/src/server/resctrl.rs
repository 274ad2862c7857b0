//! Puts the daemon's threads into a group of Linux's resctrl file system, which limits them to a part of the last-level
//! cache. [`resctrl`](crate::resctrl) has the rules. Nothing here ends the daemon: each failure is one line.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::resctrl::{CacheInfo, MaskError, ResctrlSettings, check_mask, schemata_line};
use crate::snapshot::CacheSnapshot;

/// Threads of this process.
const THREADS: &str = "/proc/self/task";

/// The daemon's group. Dropping the value removes the directory if the daemon made it; its threads are then in the group of
/// all others again.
pub(super) struct CacheGroup {
    path: PathBuf,
    is_made: bool,
    remove: fn(&Path) -> io::Result<()>,
}

/// Error: the group cannot be set up.
#[derive(Debug, thiserror::Error)]
enum GroupError {
    #[error("{} cannot be read: {source}; mount resctrl, or this processor has no L3 allocation", .path.display())]
    Absent { path: PathBuf, source: io::Error },
    #[error("resctrl.l3: {0}")]
    Mask(#[from] MaskError),
    #[error("{} lists no L3 cache", .0.display())]
    NoCache(PathBuf),
    #[error("{}: {source}{status}", .path.display())]
    System {
        path: PathBuf,
        source: io::Error,
        /// Text of the kernel's file `last_cmd_status`; empty if there is none.
        status: String,
    },
}

/// Sets up the group, and logs a line if that fails. Call it before the daemon's threads are started: they inherit the group
/// of the thread that starts them.
pub(super) fn enter(settings: &ResctrlSettings) -> (Option<CacheGroup>, CacheSnapshot) {
    let group = CacheGroup::enter(settings, Path::new(THREADS), |path| fs::remove_dir(path));
    let group = group.inspect_err(|error| {
        tracing::warn!("the daemon shares the whole cache with others: {error}");
    });
    let group = group.ok();
    let snapshot = CacheSnapshot {
        group: settings.group.clone(),
        mask: settings.check().unwrap_or(0),
        is_in_force: group.is_some(),
    };
    (group, snapshot)
}

impl CacheGroup {
    /// `threads` has an entry for each thread. `remove` removes a group's directory.
    fn enter(
        settings: &ResctrlSettings,
        threads: &Path,
        remove: fn(&Path) -> io::Result<()>,
    ) -> Result<Self, GroupError> {
        let root = Path::new(&settings.root);
        let read = |name: &str| {
            let path = root.join(name);
            let text = fs::read_to_string(&path);
            text.map_err(|source| GroupError::Absent { path, source })
        };
        let cbm_mask = read("info/L3/cbm_mask")?;
        let min_cbm_bits = read("info/L3/min_cbm_bits")?;
        let sparse_masks = read("info/L3/sparse_masks").ok();
        let schemata = read("schemata")?;
        let info = CacheInfo {
            cbm_mask: &cbm_mask,
            min_cbm_bits: &min_cbm_bits,
            sparse_masks: sparse_masks.as_deref(),
        };
        // The settings were checked when they were read.
        let mask = settings.check().unwrap_or(0);
        check_mask(mask, &info)?;
        let no_cache = || GroupError::NoCache(root.join("schemata"));
        let line = schemata_line(&schemata, mask).ok_or_else(no_cache)?;

        let path = root.join(&settings.group);
        let failed = |path: PathBuf| {
            move |source| {
                let status = fs::read_to_string(root.join("info/last_cmd_status"));
                let status = status.unwrap_or_default();
                let status = match status.trim().lines().next() {
                    None | Some("" | "ok") => String::new(),
                    Some(line) => format!(" ({line})"),
                };
                GroupError::System {
                    path,
                    source,
                    status,
                }
            }
        };
        let is_made = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed(path)(error)),
        };
        // From here on the directory is removed on failure.
        let group = Self {
            path,
            is_made,
            remove,
        };
        let schemata = group.path.join("schemata");
        fs::write(&schemata, line).map_err(failed(schemata))?;
        let tasks = group.path.join("tasks");
        let entries = fs::read_dir(threads).map_err(failed(threads.to_owned()))?;
        let threads = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let leave = |thread: &str| {
            // The threads of a group that is removed leave it by that.
            if !group.is_made
                && let Err(error) = move_thread(thread, &root.join("tasks"))
            {
                tracing::warn!("thread {thread} stays in the group: {error}");
            }
        };
        move_all(threads, |thread| move_thread(thread, &tasks), leave)
            .map_err(failed(tasks.clone()))?;
        Ok(group)
    }
}

/// Moves a thread into the group of this file. A thread that has ended is no error.
fn move_thread(thread: &str, tasks: &Path) -> io::Result<()> {
    let file = fs::File::options().append(true).create(true).open(tasks);
    let ended = rustix::io::Errno::SRCH.raw_os_error();
    match file?.write_all(format!("{thread}\n").as_bytes()) {
        Err(error) if error.raw_os_error() == Some(ended) => Ok(()),
        written => written,
    }
}

/// Moves all threads, or none: after an error it calls `back` for those that were moved.
fn move_all(
    threads: impl Iterator<Item = String>,
    mut to: impl FnMut(&str) -> io::Result<()>,
    back: impl FnMut(&str),
) -> io::Result<()> {
    let mut moved = Vec::new();
    for thread in threads {
        if let Err(error) = to(&thread) {
            moved.iter().map(String::as_str).for_each(back);
            return Err(error);
        }
        moved.push(thread);
    }
    Ok(())
}

impl Drop for CacheGroup {
    fn drop(&mut self) {
        if self.is_made
            && let Err(error) = (self.remove)(&self.path)
        {
            tracing::warn!("{} cannot be removed: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with the files of the kernel, and three threads.
    struct Tree {
        root: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a directory");
            let tree = Self { root };
            for thread in ["7", "12", "345"] {
                fs::create_dir_all(tree.path("threads").join(thread)).expect("made");
            }
            fs::create_dir_all(tree.path("info/L3")).expect("made");
            tree.write("info/L3/cbm_mask", "fffff\n");
            tree.write("info/L3/min_cbm_bits", "2\n");
            tree.write("info/last_cmd_status", "ok\n");
            tree.write("schemata", "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n");
            tree.write("tasks", "1\n7\n12\n345\n");
            tree
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).expect("is written");
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).expect("is read")
        }

        fn enter(&self, l3: &str) -> Result<CacheGroup, String> {
            let settings = ResctrlSettings {
                root: self.root.path().to_str().expect("a path").to_owned(),
                l3: l3.to_owned(),
                ..ResctrlSettings::default()
            };
            // The kernel's directories vanish with their files.
            let remove = |path: &Path| fs::remove_dir_all(path);
            let group = CacheGroup::enter(&settings, &self.path("threads"), remove);
            group.map_err(|error| error.to_string())
        }

        fn has_group(&self) -> bool {
            self.path("headworks").exists()
        }
    }

    #[test]
    fn the_daemon_makes_a_group_and_removes_it() {
        let tree = Tree::new();
        let group = tree.enter("ff0").expect("a group");
        assert_eq!(tree.read("headworks/schemata"), "L3:0=ff0;1=ff0\n");
        let tasks = tree.read("headworks/tasks");
        let mut tasks: Vec<&str> = tasks.lines().collect();
        tasks.sort_unstable();
        assert_eq!(tasks, ["12", "345", "7"]);
        drop(group);
        assert!(!tree.has_group());
    }

    #[test]
    fn a_thread_that_cannot_be_moved_brings_the_others_back() {
        let threads = ["7", "12", "345"].map(str::to_owned).into_iter();
        let to = |thread: &str| match thread {
            "345" => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Ok(()),
        };
        let mut back = Vec::new();
        let moved = move_all(threads, to, |thread| back.push(thread.to_owned()));
        assert!(moved.is_err());
        assert_eq!(back, ["7", "12"]);
    }

    #[test]
    fn a_group_of_others_is_used_and_stays() {
        let tree = Tree::new();
        fs::create_dir(tree.path("headworks")).expect("made");
        tree.write(
            "headworks/schemata",
            "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n",
        );
        tree.write("headworks/tasks", "99\n");
        drop(tree.enter("ff0").expect("a group"));
        assert_eq!(tree.read("headworks/schemata"), "L3:0=ff0;1=ff0\n");
        assert!(tree.read("headworks/tasks").starts_with("99\n"));
    }

    #[test]
    fn a_machine_that_cannot_is_left_as_it_is() {
        let tree = Tree::new();
        for (l3, says) in [
            (
                "f0f",
                "resctrl.l3: the bits of the mask f0f are not side by side, as this processor needs them",
            ),
            (
                "8",
                "resctrl.l3: the mask 8 has fewer bits than the 2 that this processor needs",
            ),
            (
                "300000",
                "resctrl.l3: the mask 300000 has bits outside of fffff, which is the whole cache",
            ),
        ] {
            assert_eq!(tree.enter(l3).err().as_deref(), Some(says));
            assert!(!tree.has_group());
        }
        tree.write("schemata", "    MB:0=100\n");
        let error = tree.enter("ff0").err().expect("no cache");
        assert!(error.ends_with("schemata lists no L3 cache"), "{error}");
        fs::remove_dir_all(tree.path("info")).expect("removed");
        let error = tree.enter("ff0").err().expect("no resctrl");
        assert!(
            error.contains("info/L3/cbm_mask cannot be read: No such file"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
        assert!(!tree.has_group());
    }

    #[test]
    fn the_kernels_reason_is_told_and_the_group_removed() {
        let tree = Tree::new();
        tree.write("info/last_cmd_status", "No task found\n");
        fs::remove_dir_all(tree.path("threads")).expect("removed");
        let error = tree.enter("ff0").err().expect("no threads");
        assert!(error.ends_with("(No task found)"), "{error}");
        assert!(!tree.has_group());
    }
}

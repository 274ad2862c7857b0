//! Files that are replaced atomically: a reader sees the old contents or the new, never a part.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Replacement of a file's contents. The new contents are written to a temporary file beside the target,
/// which is then renamed over it; until then the old contents stay. Dropping an unfinished replacement
/// removes the temporary file. A killed process may leave one behind; the next replacement of the same file
/// removes it.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    /// Temporary path and target path; `None` if the target is written directly.
    moves: Option<(PathBuf, PathBuf)>,
}

impl AtomicFile {
    /// Starts to replace the file at `path`, which need not exist. A symbolic link is followed. A device or a
    /// pipe is written to directly.
    ///
    /// # Errors
    ///
    /// `path` names something other than a file, the file may not be written, or no temporary file can be
    /// created beside it.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(there) => {
                let file = OpenOptions::new().write(true).open(path)?;
                if !there.is_file() {
                    return Ok(Self { file, moves: None });
                }
                fs::canonicalize(path)?
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(why) => return Err(why),
        };
        let name = path
            .file_name()
            .ok_or_else(|| io::Error::other("not a file name"))?;
        remove_abandoned(&path, name);
        let (file, temporary) = temporary(&path, name)?;
        Ok(Self {
            file,
            moves: Some((temporary, path)),
        })
    }

    /// Has `write` write the new contents, and then renames them over the target.
    ///
    /// # Errors
    ///
    /// Errors of `write` and of the file. The old contents are still in place then.
    pub fn write(
        mut self,
        write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = BufWriter::new(&self.file);
        write(&mut out)?;
        out.flush()?;
        drop(out);
        if let Some((temporary, path)) = &self.moves {
            fs::rename(temporary, path)?;
            self.moves = None;
        }
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.moves {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Suffix of temporary files.
const SUFFIX: &str = ".tmp";
/// Attempts to create a temporary file: others may hold the name or the lock, or remove the file at once.
const TRIES: u32 = 100;

/// Creates a temporary file beside `path`. It is locked while it is open, which tells it from files of dead
/// processes.
fn temporary(path: &Path, name: &OsStr) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..TRIES {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.{number}{SUFFIX}", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let file = match File::create_new(&temporary) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        };
        // A process that cleans up may have found the file before it was locked: it may hold the lock, or
        // have removed the file.
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => continue,
            // Where locks are not supported, clean-up cannot lock either and removes nothing.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let ours = file.metadata()?.ino();
        if fs::symlink_metadata(&temporary).is_ok_and(|there| there.ino() == ours) {
            return Ok((file, temporary));
        }
    }
    Err(io::Error::other(
        "other processes remove each temporary file beside it",
    ))
}

/// Removes the temporary files beside `path` that no process has open. Failures are ignored: leftovers do no
/// harm.
fn remove_abandoned(path: &Path, name: &OsStr) {
    let beside = path.parent().filter(|path| !path.as_os_str().is_empty());
    let Ok(all) = fs::read_dir(beside.unwrap_or_else(|| Path::new("."))) else {
        return;
    };
    let is_temporary = |found: &OsStr| {
        let found = found.as_encoded_bytes().strip_prefix(b".");
        let found = found.and_then(|found| found.strip_prefix(name.as_encoded_bytes()));
        let found = found.and_then(|found| found.strip_suffix(SUFFIX.as_bytes()));
        found.is_some_and(|found| {
            let is_ours = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
            found.first() == Some(&b'.') && found.iter().all(is_ours)
        })
    };
    for entry in all.flatten() {
        let is_file = || entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_temporary(&entry.file_name())
            && is_file()
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Writes `bytes` to `path` through a temporary file beside it, so that no reader sees a part of them.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    AtomicFile::of(path)?.write(|out| out.write_all(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&dir.path().join("no/such/dir"), b"").is_err());
    }

    #[test]
    fn a_file_is_kept_until_its_replacement_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        fs::write(&path, "one").unwrap();
        drop(AtomicFile::of(&path).unwrap());
        let failed = AtomicFile::of(&path).unwrap().write(|out| {
            out.write_all(b"half")?;
            out.flush()?;
            assert_eq!(fs::read(&path).unwrap(), b"one");
            Err(io::Error::other("no more"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_files_left_by_dead_writers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        let others = [".a.txt.x.tmp", ".a.txt.tmp.tmp", ".b.txt.7.tmp", ".a.txt.7"];
        for name in [".a.txt.7.tmp", ".a.txt.7.0.tmp"].iter().chain(&others) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let one = AtomicFile::of(&path).unwrap();
        let other = AtomicFile::of(&path).unwrap();
        for (replacement, text) in [(one, "one"), (other, "other")] {
            let written = replacement.write(|out| out.write_all(text.as_bytes()));
            written.unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let left = fs::read_dir(dir.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), others.len() + 1, "{left:?}");
        assert!(others.iter().all(|other| left.contains(&(*other).into())));
    }

    #[test]
    fn links_and_devices_keep_their_type() {
        let dir = tempfile::tempdir().unwrap();
        let [path, link] = ["a.txt", "link"].map(|name| dir.path().join(name));
        fs::write(&path, "one").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, b"two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let null = dir.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        replace(&null, b"three").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(AtomicFile::of(dir.path()).is_err());
    }
}

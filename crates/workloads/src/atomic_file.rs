//! Files that are there whole or not at all.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is to be in a file in place of what is there, which stays until it is written whole. Until then, and if it
/// never comes to that, there is a temporary file beside it at most. One that a process left which was killed goes
/// with the next replacement of the same file.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    /// Where that is, and where it is to be.
    moves: Option<(PathBuf, PathBuf)>,
}

impl AtomicFile {
    /// Of the file at `path`, if there is one; of the one that it leads to, where it is a link. A device or a pipe is
    /// not replaced, but written to.
    ///
    /// # Errors
    ///
    /// What is there is no file, or may not be written, or nothing can be made beside it.
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

    /// Has `write` write it, and puts it in its place.
    ///
    /// # Errors
    ///
    /// Those of `write`, and of the file; what was there is still there then.
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

/// What names of temporary files end with.
const SUFFIX: &str = ".tmp";
/// How often one is made anew that others removed at once.
const TRIES: u32 = 100;

/// A temporary file beside `path`, locked for as long as it is open: that tells it from those of the dead.
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
        // Somebody who cleans up may have come before the lock, and have it, or have removed the file.
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => continue,
            // Where there are no locks nobody cleans up.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let ours = file.metadata()?.ino();
        if fs::symlink_metadata(&temporary).is_ok_and(|there| there.ino() == ours) {
            return Ok((file, temporary));
        }
    }
    Err(io::Error::other(
        "others remove each temporary file beside it",
    ))
}

/// Removes the temporary files beside `path` that nobody has open any more. What cannot be removed is in nobody's way.
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

/// Writes `bytes` to `path` through a temporary file beside it, so that nobody sees half of it.
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
    fn what_is_there_stays_until_all_is_written_and_if_it_never_is() {
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
    fn what_the_dead_left_goes_and_what_others_have_open_stays() {
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
    fn a_link_and_a_device_stay_what_they_are() {
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

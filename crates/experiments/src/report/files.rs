//! Files that are there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What is to be in a file in place of what is there, which stays until it is written whole. Until then, and if it
/// never comes to that, there is a temporary file beside it at most.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    /// Where that is, and where it is to be.
    moves: Option<(PathBuf, PathBuf)>,
}

impl Replacement {
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
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(hidden);
        Ok(Self {
            file: File::create(&temporary)?,
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

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.moves {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Writes `bytes` to `path` through a temporary file beside it, so that nobody sees half of it.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Replacement::of(path)?.write(|out| out.write_all(bytes))
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
        drop(Replacement::of(&path).unwrap());
        let failed = Replacement::of(&path).unwrap().write(|out| {
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
        assert!(Replacement::of(dir.path()).is_err());
    }
}

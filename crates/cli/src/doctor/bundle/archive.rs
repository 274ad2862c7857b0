//! Writes the archive. Its file appears whole or not at all, and replaces nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};

use crate::exit_status::bad_input;

/// Directory in the archive that has all files.
const FOLDER: &str = "headworks-report";

/// Time of all entries, in seconds since 1970: 1980 began. Some programs warn of an entry without a time.
const TIME: u64 = 315_532_800;

/// A text of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its path below the archive's directory.
    pub(super) path: String,
    pub(super) text: String,
}

/// Refuses a path that the archive cannot be written to, before anything is read.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    if path.file_name().is_none() {
        return Err(bad_input(format_args!(
            "{} names no file: --bundle writes to a new file, as in --bundle report.tar",
            path.display()
        )));
    }
    // Also a link to nowhere is in the way.
    match path.symlink_metadata() {
        Ok(_) => Err(exists(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => match folder(path).metadata() {
            Ok(_) => Ok(()),
            Err(error) => Err(unwritable(path, &error)),
        },
        Err(error) => Err(unwritable(path, &error)),
    }
}

/// Writes the entries to a new file.
pub(super) fn write(path: &Path, entries: &[Entry]) -> anyhow::Result<()> {
    let bytes = bytes(entries)?;
    create(path, &bytes).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            anyhow::Error::new(error).context(format!("writing {}", path.display()))
        }
        _ => unwritable(path, &error),
    })
}

/// Returns the archive.
fn bytes(entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(entry.text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(TIME);
        let path = format!("{FOLDER}/{}", entry.path);
        tar.append_data(&mut header, path, entry.text.as_bytes())?;
    }
    tar.into_inner()
}

/// Creates a file with these bytes. If the process is killed, no file is left, except on a file system without
/// nameless files.
fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let Ok(nameless) = openat(CWD, folder(path), flags, mode) else {
        return create_by_name(path, bytes);
    };
    let mut nameless = File::from(nameless);
    nameless.write_all(bytes)?;
    nameless.sync_all()?;
    let link = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    match linkat(CWD, link, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        // There is no /proc.
        Err(rustix::io::Errno::NOENT) => create_by_name(path, bytes),
        done => Ok(done?),
    }
}

/// Does what [`create`] does, through a file with a name, which is removed if an error occurs.
fn create_by_name(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder(path))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    Ok(())
}

/// Returns the directory of a file's path.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str() != OsStr::new("") => folder,
        _ => Path::new("."),
    }
}

fn exists(path: &Path) -> anyhow::Error {
    bad_input(format_args!(
        "{} exists, and is not replaced: remove it, or name another file",
        path.display()
    ))
}

fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
    bad_input(format_args!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::exit_status::{BAD_INPUT, code_of};

    fn entries() -> Vec<Entry> {
        let entry = |path: &str, text: &str| Entry {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        vec![entry("a.txt", "one\n"), entry("rdma/b.txt", "two\n")]
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_archive_has_all_entries_in_one_directory() {
        let folder = tempfile::tempdir().unwrap();
        for (name, create) in [
            ("one", create as fn(&Path, &[u8]) -> io::Result<()>),
            ("other", create_by_name),
        ] {
            let path = folder.path().join(name);
            create(&path, &bytes(&entries()).unwrap()).unwrap();
            let mut read = tar::Archive::new(File::open(&path).unwrap());
            let read = read.entries().unwrap().map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                io::Read::read_to_string(&mut entry, &mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            });
            let expected = [
                ("headworks-report/a.txt".to_owned(), "one\n".to_owned()),
                ("headworks-report/rdma/b.txt".to_owned(), "two\n".to_owned()),
            ];
            assert_eq!(read.collect::<Vec<_>>(), expected);
        }
        assert_eq!(files(folder.path()), ["one", "other"]);
    }

    #[test]
    fn what_exists_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for path in [&file, &link, &folder.path().to_owned()] {
            for refused in [check(path), write(path, &entries())] {
                let error = refused.unwrap_err();
                assert_eq!(code_of(&error), BAD_INPUT, "{error}");
                assert!(error.to_string().contains("is not replaced"), "{error}");
            }
        }
        let error = create_by_name(&file, b"").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        assert_eq!(files(folder.path()), ["file", "link"]);
    }

    #[test]
    fn a_place_where_nothing_can_be_written_is_bad_input() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [
            folder.path().join("missing/report.tar"),
            file.join("report.tar"),
            "/".into(),
            "..".into(),
        ] {
            let error = check(&path).unwrap_err();
            assert_eq!(code_of(&error), BAD_INPUT, "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
        assert!(check(&folder.path().join("report.tar")).is_ok());
        assert!(check(Path::new("report-that-does-not-exist.tar")).is_ok());
    }
}

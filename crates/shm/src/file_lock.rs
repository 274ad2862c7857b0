//! Lock on a file as proof that a process lives: the kernel releases it when the process ends, however it ends,
//! and shows it to every process that can open the file, whatever PID or user namespace it is in.
//!
//! The lock is an open file description lock (`F_OFD_SETLK`). It belongs to the open file, so two objects of
//! one process exclude each other too. A forked child inherits the open file;
//! [`CloseOnFork`](crate::fork::CloseOnFork) closes it there. Querying takes no lock, so observers do not
//! disturb each other.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Takes the lock on `file`, which must be open for writing. Returns whether it did: false if another open file
/// holds the lock.
///
/// # Errors
///
/// The errors of fcntl(2).
pub fn try_lock(file: impl AsFd) -> Result<bool, Errno> {
    match call(&file, libc::F_OFD_SETLK).map(drop) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns whether another open file holds the lock on `file`.
///
/// # Errors
///
/// The errors of fcntl(2).
pub fn is_locked(file: impl AsFd) -> Result<bool, Errno> {
    call(&file, libc::F_OFD_GETLK).map(|found| found != libc::F_UNLCK as libc::c_short)
}

/// Calls fcntl(2) for an exclusive lock on the first byte, and returns the type of the lock that it leaves.
fn call(file: &impl AsFd, command: libc::c_int) -> Result<libc::c_short, Errno> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: both commands take a valid `flock`, which outlives the call.
    let status = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut lock) };
    if status < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(lock.l_type)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_lock_shows_until_its_file_is_closed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let holder = File::create(&path).expect("made");
        let reader = File::open(&path).expect("opened");
        assert_eq!(is_locked(&reader), Ok(false));
        assert_eq!(try_lock(&holder), Ok(true));
        assert_eq!(try_lock(&holder), Ok(true), "its own lock is no obstacle");
        assert_eq!(is_locked(&holder), Ok(false), "nor found by itself");
        assert_eq!(is_locked(&reader), Ok(true));
        let other = File::options().write(true).open(&path).expect("opened");
        assert_eq!(try_lock(&other), Ok(false));
        drop(other);
        assert_eq!(
            is_locked(&reader),
            Ok(true),
            "closing another file frees nothing"
        );
        drop(holder);
        assert_eq!(is_locked(&reader), Ok(false));
        assert_eq!(try_lock(&reader), Err(Errno::BADF), "open for reading only");
    }
}

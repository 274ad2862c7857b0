//! Descriptors that a forked child does not keep.
//!
//! A handler of the C library's fork replaces them in the child by an event descriptor that nobody else has. The
//! numbers stay taken, so an inherited object that is dropped in the child closes no other file. Children that are
//! made without the C library's fork (a raw `clone` system call) keep the descriptors until they execute another
//! program: all of these descriptors are closed on exec.
//!
//! A handler of a signal must not fork if the signal can interrupt code that opens or closes such a file: it would
//! wait for itself.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A file or socket that is closed in forked children, and on exec.
#[derive(Debug)]
pub struct CloseOnFork<T: AsRawFd>(ManuallyDrop<T>);

impl<T: AsRawFd> CloseOnFork<T> {
    /// Closes `file` in every child that is forked from now on.
    pub fn new(file: T) -> Self {
        LIST.install();
        LIST.with(|numbers| Self::enter(numbers, file))
    }

    /// Opens a file that no forked child has: no fork comes between the opening and the listing. `open` must not
    /// fork, and must not open another such file.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    pub fn open<E>(open: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        LIST.install();
        LIST.with(|numbers| open().map(|file| Self::enter(numbers, file)))
    }

    fn enter(numbers: &mut Vec<RawFd>, file: T) -> Self {
        numbers.push(file.as_raw_fd());
        Self(ManuallyDrop::new(file))
    }

    /// Returns the file, which forked children inherit from now on.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        LIST.with(|numbers| leave(numbers, this.0.as_raw_fd()));
        // SAFETY: `this` is not dropped, so nothing else takes the file out.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T: AsRawFd> Drop for CloseOnFork<T> {
    fn drop(&mut self) {
        // Closed while the list is held: a child that is forked meanwhile would keep the file, and nobody would
        // close it there.
        LIST.with(|numbers| {
            leave(numbers, self.0.as_raw_fd());
            // SAFETY: this is the only place that drops the file, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        });
    }
}

fn leave(numbers: &mut Vec<RawFd>, number: RawFd) {
    if let Some(at) = numbers.iter().position(|listed| *listed == number) {
        numbers.swap_remove(at);
    }
}

impl<T: AsRawFd> Deref for CloseOnFork<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsRawFd + AsFd> AsFd for CloseOnFork<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<T: AsRawFd + Into<Self>> From<CloseOnFork<T>> for OwnedFd {
    fn from(file: CloseOnFork<T>) -> Self {
        file.into_inner().into()
    }
}

/// The numbers of all descriptors that a child must not keep. A forking thread holds the list's lock from before
/// the fork until after it, in the parent and in the child: the child never finds it half-changed.
struct List {
    is_held: AtomicBool,
    numbers: UnsafeCell<Vec<RawFd>>,
    /// What replaces the descriptors in a child; -1 before the first one is listed.
    substitute: AtomicI32,
}

// SAFETY: `numbers` is accessed only while `is_held` is set by the accessing thread.
unsafe impl Sync for List {}

static LIST: List = List {
    is_held: AtomicBool::new(false),
    numbers: UnsafeCell::new(Vec::new()),
    substitute: AtomicI32::new(-1),
};

impl List {
    /// Spins: the lock is held for a few instructions, or for a fork. A `Mutex` could not be released by the
    /// child.
    fn hold(&self) {
        while self.is_held.swap(true, Acquire) {
            std::thread::yield_now();
        }
    }

    fn release(&self) {
        self.is_held.store(false, Release);
    }

    fn with<T>(&self, change: impl FnOnce(&mut Vec<RawFd>) -> T) -> T {
        self.hold();
        // SAFETY: this thread holds the list.
        let changed = change(unsafe { &mut *self.numbers.get() });
        self.release();
        changed
    }

    /// Installs the handlers, once per process and its children.
    fn install(&self) {
        static INSTALLED: std::sync::Once = std::sync::Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: the call makes a descriptor. If it fails, the child closes instead of replacing.
            let substitute = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            self.substitute.store(substitute, Relaxed);
            // SAFETY: the handlers take and release the list's lock, and call dup3 and close, which a forked
            // child may call.
            unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        });
    }
}

extern "C" fn before() {
    LIST.hold();
}

extern "C" fn in_parent() {
    LIST.release();
}

extern "C" fn in_child() {
    let substitute = LIST.substitute.load(Relaxed);
    // SAFETY: the forking thread took the lock in `before`, and is the child's only thread.
    let numbers = unsafe { &mut *LIST.numbers.get() };
    for number in numbers.iter() {
        // SAFETY: the number is of a descriptor that an object in the list owns. Objects of the parent are inert
        // here, so nothing relies on what it names.
        unsafe {
            if substitute < 0 || libc::dup3(substitute, *number, libc::O_CLOEXEC) < 0 {
                libc::close(*number);
            }
        }
    }
    // Clearing frees no memory, which a child of a process with several threads may not do. From here on the
    // numbers are the child's: it may close them all and open files of its own.
    numbers.clear();
    LIST.release();
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::super::tests::in_child;
    use super::*;
    use crate::file_lock;

    #[test]
    fn a_child_keeps_neither_lock_nor_connection() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let lock = CloseOnFork::new(File::create(&path).expect("made"));
        assert_eq!(file_lock::try_lock(&lock), Ok(true));
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let ours = CloseOnFork::new(ours);
        let (ready, mut wait) = UnixStream::pair().expect("a pair");
        // The child lives until this process closes `wait`.
        // SAFETY: the child makes a system call and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(wait);
            let mut byte = [0];
            let ended = (&ready).read(&mut byte);
            // SAFETY: the call ends the child.
            unsafe { libc::_exit(ended.map_or(1, |len| len as i32)) };
        }
        drop(ready);
        (&*ours).write_all(b"x").expect("still connected here");
        let mut byte = [0; 2];
        assert_eq!(theirs.read(&mut byte).expect("read"), 1);
        let reader = File::open(&path).expect("opened");
        assert_eq!(file_lock::is_locked(&reader), Ok(true));
        drop((ours, lock));
        assert_eq!(theirs.read(&mut byte).expect("the end"), 0);
        assert_eq!(file_lock::is_locked(&reader), Ok(false));
        wait.write_all(b"").expect("open");
        drop(wait);
        let mut status = 0;
        // SAFETY: the process is our own child, and `status` is a valid place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }

    #[test]
    fn dropping_it_in_a_child_closes_nothing_of_the_childs() {
        let file = CloseOnFork::new(tempfile::tempfile().expect("a file"));
        let number = file.as_raw_fd();
        let code = in_child(move || {
            let mine = tempfile::tempfile().expect("a file");
            let taken = mine.as_raw_fd() == number;
            drop(file);
            i32::from(taken || mine.metadata().is_err())
        });
        assert_eq!(code, 0);
    }

    #[test]
    fn one_that_is_given_back_is_inherited() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let ours = CloseOnFork::new(ours).into_inner();
        assert_eq!(
            in_child(|| i32::from((&ours).write_all(b"child").is_err())),
            0
        );
        drop(ours);
        let mut text = String::new();
        theirs.read_to_string(&mut text).expect("read");
        assert_eq!(text, "child");
    }
}

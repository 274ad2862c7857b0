//! Closing what applications had a hand in: the last close of a file may block for as long as whoever made it likes (a
//! TCP socket that lingers, a file system in user space), as may that of a socket in which such a file lies unread. So
//! threads do it that nobody waits for.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads at most, and files that wait for each before there is another.
const THREADS: usize = 16;
const EACH: usize = 32;

/// Where files are left to be closed. They are, by and by; in any case when the process ends.
#[derive(Debug)]
pub(super) struct Closer {
    files: mpsc::Sender<OwnedFd>,
    left: Arc<Mutex<mpsc::Receiver<OwnedFd>>>,
    /// Files that were left and are not closed.
    open: Arc<AtomicUsize>,
    threads: usize,
}

impl Default for Closer {
    fn default() -> Self {
        let (files, left) = mpsc::channel();
        Self {
            files,
            left: Arc::new(Mutex::new(left)),
            open: Arc::default(),
            threads: 0,
        }
    }
}

impl Closer {
    /// Has a file closed.
    pub(super) fn close(&mut self, file: OwnedFd) {
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        // This end has the other, too.
        let _ = self.files.send(file);
        if self.threads < THREADS && open >= self.threads * EACH {
            let (left, open) = (self.left.clone(), self.open.clone());
            let name = "headworks-close".to_owned();
            match std::thread::Builder::new()
                .name(name)
                .spawn(move || close_all(&left, &open))
            {
                Ok(_) => self.threads += 1,
                Err(error) => tracing::warn!("no thread to close files: {error}"),
            }
        }
    }
}

fn close_all(left: &Mutex<mpsc::Receiver<OwnedFd>>, open: &AtomicUsize) {
    loop {
        // The one that waits for files holds the lock; nobody does while it closes one.
        let file = left.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(file) = file else {
            return;
        };
        drop(file);
        open.fetch_sub(1, Ordering::Relaxed);
    }
}

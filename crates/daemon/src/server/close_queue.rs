//! Closes files that applications may have influenced, on threads of their own.
//!
//! The last close of a file may block for as long as its creator likes: think of a lingering TCP socket, or a
//! file system in user space. So may the close of a socket in which such a file lies unread. Therefore a few
//! threads for each tenant close files, and nothing waits for them. One tenant's files never delay the closing of
//! another's. A tenant with too many unclosed files may hand over no more.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headworks_shm::process_limits;

use crate::ids::Tenant;

/// Maximum number of threads of a tenant. `EACH` is the number of waiting files per thread from which another
/// thread is started.
const THREADS: usize = 4;
const EACH: usize = 16;
/// How long an idle thread waits for the next file before it ends.
const KEPT: Duration = Duration::from_secs(5);
/// Divisor of the daemon's descriptor limit: a user may have this part of it unclosed, in equal parts at each socket, and
/// others keep the rest. `LEAST` is the lower bound of the result. Many files may be unclosed for a moment though none closes
/// slowly, for example when an application ends that polls many connections.
const PART: u64 = 4;
const LEAST: usize = 64;

/// Files waiting to be closed, kept apart by tenant. All are closed at the latest when the process ends.
#[derive(Debug)]
pub(super) struct CloseQueue {
    tenants: BTreeMap<Tenant, Arc<TenantCloseQueue>>,
    most: usize,
}

/// Files of one tenant.
#[derive(Debug, Default)]
struct TenantCloseQueue {
    work: Mutex<CloseQueueState>,
    has_more: Condvar,
}

#[derive(Debug, Default)]
struct CloseQueueState {
    files: VecDeque<OwnedFd>,
    /// Files that threads are closing now.
    closing: usize,
    threads: usize,
    /// Whether the daemon has ended, so that no more files come.
    is_over: bool,
}

impl CloseQueueState {
    /// Returns the number of files that are not closed yet.
    fn left(&self) -> usize {
        self.files.len() + self.closing
    }

    fn wants_thread(&self) -> bool {
        self.threads < THREADS && self.left() > self.threads * EACH
    }
}

impl CloseQueue {
    /// Creates the queue of a daemon with this many sockets.
    pub(super) fn new(sockets: usize) -> Self {
        let may_have = process_limits::open_files().unwrap_or(u64::MAX);
        let most = usize::try_from(may_have / PART).unwrap_or(usize::MAX) / sockets.max(1);
        Self::of_at_most(most.max(LEAST))
    }

    fn of_at_most(most: usize) -> Self {
        Self {
            tenants: BTreeMap::new(),
            most,
        }
    }

    /// Returns the number of a tenant's unclosed files if it has reached the maximum.
    pub(super) fn is_full(&self, tenant: Tenant) -> Option<usize> {
        let left = self.tenants.get(&tenant)?.work().left();
        (left >= self.most).then_some(left)
    }

    /// Queues a file of a tenant to be closed.
    pub(super) fn close(&mut self, tenant: Tenant, file: OwnedFd) {
        if !self.tenants.contains_key(&tenant) {
            self.tenants.retain(|_, one| one.work().threads > 0);
        }
        let closer = self.tenants.entry(tenant).or_default();
        let mut work = closer.work();
        work.files.push_back(file);
        closer.has_more.notify_one();
        if work.wants_thread() {
            let own = closer.clone();
            let name = "headworks-close".to_owned();
            let started = std::thread::Builder::new().name(name);
            match started.spawn(move || own.close_all()) {
                Ok(_) => work.threads += 1,
                Err(error) => tracing::warn!("cannot start a thread to close files: {error}"),
            }
        }
    }
}

impl Drop for CloseQueue {
    /// Ends the threads once they have closed what is queued. They are not waited for.
    fn drop(&mut self) {
        for tenant in self.tenants.values() {
            tenant.work().is_over = true;
            tenant.has_more.notify_all();
        }
    }
}

impl TenantCloseQueue {
    fn work(&self) -> MutexGuard<'_, CloseQueueState> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes queued files until there have been none for [`KEPT`], or the daemon has ended.
    fn close_all(&self) {
        let mut work = self.work();
        loop {
            if let Some(file) = work.files.pop_front() {
                work.closing += 1;
                drop(work);
                drop(file);
                work = self.work();
                work.closing -= 1;
                continue;
            }
            if work.is_over {
                work.threads -= 1;
                return;
            }
            let waited = self.has_more.wait_timeout(work, KEPT);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            work = again;
            if waited.timed_out() && work.files.is_empty() {
                work.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use rustix::net::sockopt::{
        set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
    };

    /// Returns a socket whose last close blocks for as long as the other socket exists.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        one.set_nonblocking(true).unwrap();
        set_socket_send_buffer_size(&one, 4096).unwrap();
        set_socket_recv_buffer_size(&other, 4096).unwrap();
        while one.write(&[0; 1 << 16]).is_ok() {}
        one.set_nonblocking(false).unwrap();
        let long = Some(Duration::from_secs(600));
        set_socket_linger(&one, long).unwrap();
        (one.into(), other)
    }

    #[test]
    fn slow_closes_of_one_user_delay_no_other_user() {
        const MOST: usize = THREADS * (EACH + 1);
        let mut closers = CloseQueue::of_at_most(MOST);
        let mut others = Vec::new();
        for left in 0..MOST {
            assert_eq!(closers.is_full(1.into()), None, "{left}");
            let (slow, other) = lingering();
            others.push(other);
            closers.close(1.into(), slow);
        }
        assert_eq!(closers.is_full(1.into()), Some(MOST));
        assert_eq!(closers.is_full(2.into()), None);
        let (file, mut far) = UnixStream::pair().unwrap();
        // The test fails instead of hanging if the file is not closed.
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        closers.close(2.into(), file.into());
        let mut rest = Vec::new();
        assert_eq!(far.read_to_end(&mut rest).unwrap(), 0, "it is closed");
        // The same user's later file is closed too, once the slow ones are.
        let (file, mut far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        closers.close(1.into(), file.into());
        drop(others);
        assert_eq!(far.read_to_end(&mut rest).unwrap(), 0, "it is closed");
        // A file counts until its close has returned, which is a moment after the other end saw it.
        while closers.is_full(1.into()).is_some() {
            std::thread::yield_now();
        }
    }
}

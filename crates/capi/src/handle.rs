//! Descriptors and what they stand for.
//!
//! A handle is in the table from the time C learns its number until C closes it. The descriptor itself stays
//! open while another thread is in a call with it, so that its number is not given to another file in the
//! meantime.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::net::{Waiter, WakeReason, clock};
use headworks::service::ServiceError;
use headworks::verbs::{Duration, Instant};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::connection::{Connection, Port};
use crate::error::{Error, system};
use crate::poller::Poller;
use crate::sockets::Socket;

/// First and longest pause between two attempts, for events that no descriptor signals.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

/// First of the numbers of handles without a file descriptor. The kernel gives no file such a number: the table of a
/// process's files would take 8 GiB.
const WITHOUT_FD: RawFd = 1 << 30;

/// All handles that C knows, by number.
static TABLE: Mutex<BTreeMap<RawFd, Arc<Handle>>> = Mutex::new(BTreeMap::new());

/// Kind of a descriptor.
pub(crate) enum Kind {
    /// A port that listens for connections.
    Port(Port),
    /// A connection; it may still be connecting.
    Connection(Box<Connection>),
    /// A port that sends and receives messages.
    Socket(Box<Socket>),
    /// A poller of ports and connections.
    Poller(Box<Poller>),
}

/// A descriptor that C knows of.
pub(crate) struct Handle {
    kind: Kind,
    /// The file descriptor. Without one, a number of at least [`WITHOUT_FD`].
    number: RawFd,
    /// Unique among all handles of this process, past and future.
    id: u64,
    is_closed: AtomicBool,
    is_nonblocking: AtomicBool,
    /// Absolute time in nanoseconds.
    deadline: AtomicU64,
    /// Event descriptors of the threads that wait for this handle.
    asleep: Mutex<Vec<Arc<OwnedFd>>>,
}

/// Whether a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// Waits unless the descriptor is non-blocking.
    AsSet,
    /// Does not wait.
    Never,
    /// Waits until the deadline, even if the descriptor is non-blocking.
    Always,
}

/// Event that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Data, a message or a connection that arrives.
    In,
    /// Room to send, or the return of memory that was lent.
    Out,
    /// Room for messages; a second descriptor signals it.
    Room,
    /// An answer of the daemon; no descriptor signals it.
    Answer,
}

impl Handle {
    /// A handle that C does not know of yet.
    pub(crate) fn new(kind: Kind, number: RawFd, is_nonblocking: bool) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self {
            kind,
            number,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            is_closed: AtomicBool::new(false),
            is_nonblocking: AtomicBool::new(is_nonblocking),
            deadline: AtomicU64::new(Instant::FAR_FUTURE.nanos()),
            asleep: Mutex::default(),
        }
    }

    /// Enters the handle in the table, and returns the descriptor number that the C program uses.
    pub(crate) fn open(self) -> RawFd {
        let number = self.number;
        // If the table had a handle with this number, its descriptor was closed without `hw_close`. Forget
        // it: dropping it would close the new descriptor, which now has the number.
        mem::forget(locked(&TABLE).insert(number, Arc::new(self)));
        number
    }

    /// Makes a handle without a file descriptor, whose calls never wait. Enters it in the table, and returns the number
    /// that the C program uses.
    pub(crate) fn open_without_fd(kind: Kind) -> RawFd {
        static NEXT: Mutex<RawFd> = Mutex::new(WITHOUT_FD);
        let mut next = locked(&NEXT);
        let mut table = locked(&TABLE);
        // A number is used again as late as possible, so that a stale one is found out.
        while table.contains_key(&*next) {
            *next = following(*next);
        }
        let number = *next;
        *next = following(number);
        table.insert(number, Arc::new(Self::new(kind, number, true)));
        number
    }

    /// Whether the number is a file descriptor of the kernel.
    pub(crate) fn has_fd(&self) -> bool {
        self.number < WITHOUT_FD
    }

    /// The handle with number `number`.
    pub(crate) fn of(number: RawFd) -> Result<Arc<Self>, Error> {
        let table = locked(&TABLE);
        table.get(&number).cloned().ok_or(Error::BadDescriptor)
    }

    /// Removes the handle from the table. Calls that wait for it fail.
    pub(crate) fn close(number: RawFd) -> Result<Arc<Self>, Error> {
        let handle = locked(&TABLE).remove(&number);
        let handle = handle.ok_or(Error::BadDescriptor)?;
        handle.is_closed.store(true, Ordering::SeqCst);
        handle.wake_waiters();
        Ok(handle)
    }

    pub(crate) fn number(&self) -> RawFd {
        self.number
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether the program has called `hw_close` for it.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn connection(&self) -> Result<&Connection, Error> {
        match &self.kind {
            Kind::Connection(connection) => Ok(connection),
            Kind::Port(_) | Kind::Socket(_) | Kind::Poller(_) => Err(Error::NotOfThisKind),
        }
    }

    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) -> Result<(), Error> {
        if !self.has_fd() && !is_nonblocking {
            return Err(Error::NeverWaits);
        }
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) {
        let nanos = deadline.unwrap_or(Instant::FAR_FUTURE).nanos();
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    /// Wakes every thread that waits for this handle, so that it tries again.
    pub(crate) fn wake_waiters(&self) {
        for wake in &*locked(&self.asleep) {
            // The write fails only if the counter is full; then the thread is woken anyway.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Repeats `attempt`, as long as `waits` allows, until its result is not an error that
    /// [would block](Error::would_block).
    pub(crate) fn wait<T>(
        &self,
        way: WaitFor,
        waits: WaitMode,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let first = attempt();
        let goes_on = match waits {
            WaitMode::Always => true,
            WaitMode::Never => false,
            WaitMode::AsSet => !self.is_nonblocking.load(Ordering::Relaxed),
        };
        if !goes_on || !first.as_ref().is_err_and(Error::would_block) {
            return first;
        }
        let wake = wake_of_thread()?;
        let _asleep = RegisteredWaiter::on(self, &wake);
        let (mut waiter, [mut pause, longest]) = (Waiter::default(), PAUSES);
        loop {
            let mut found = None;
            let mut look = |_| {
                // Check before the attempt, so that a result is never lost. A thread that closes the handle
                // after this check wakes this thread.
                if self.is_closed() {
                    found = Some(Err(Error::BadDescriptor));
                    return true;
                }
                found = match attempt() {
                    Err(error) if error.would_block() => None,
                    done => Some(done),
                };
                found.is_some()
            };
            let mut fds = vec![PollFd::new(&*wake, PollFlags::IN)];
            let mut until = self.deadline();
            match (way, &self.kind, self.fd()) {
                (WaitFor::Answer, ..) | (WaitFor::In | WaitFor::Out, _, None) => {
                    until = until.min(clock::now() + pause);
                    pause = longest.min(pause.times(2));
                }
                (WaitFor::Room, Kind::Socket(socket), _) => {
                    fds.push(PollFd::new(socket.room(), PollFlags::IN));
                }
                (WaitFor::In, _, Some(fd)) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                (WaitFor::Out | WaitFor::Room, _, Some(fd)) => {
                    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::OUT));
                }
                (WaitFor::Room, _, None) => return Err(Error::NotOfThisKind),
            }
            let woken = waiter.wait_polling(&mut fds, Some(until), &mut look);
            if let Some(found) = found {
                return found;
            }
            if woken.map_err(system("waiting"))? == WakeReason::Deadline
                && clock::now() >= self.deadline()
            {
                return Err(ServiceError::Deadline.into());
            }
            if !fds[0].revents().is_empty() {
                empty(&wake);
            }
        }
    }
}

/// Registers a thread to be woken with the others that wait for a handle, until it is dropped.
struct RegisteredWaiter<'h> {
    handle: &'h Handle,
    wake: &'h Arc<OwnedFd>,
}

impl<'h> RegisteredWaiter<'h> {
    fn on(handle: &'h Handle, wake: &'h Arc<OwnedFd>) -> Self {
        locked(&handle.asleep).push(wake.clone());
        Self { handle, wake }
    }
}

impl Drop for RegisteredWaiter<'_> {
    fn drop(&mut self) {
        let is_other = |other: &Arc<OwnedFd>| !Arc::ptr_eq(other, self.wake);
        locked(&self.handle.asleep).retain(is_other);
        // A wake-up for this wait must not end the next one.
        empty(self.wake);
    }
}

/// The number after `number`, for handles without a file descriptor.
fn following(number: RawFd) -> RawFd {
    number.checked_add(1).unwrap_or(WITHOUT_FD)
}

fn empty(wake: &OwnedFd) {
    let _ = rustix::io::read(wake, &mut [0; 8]);
}

/// The event descriptor that wakes this thread. One suffices, since a thread waits for one thing at a time.
fn wake_of_thread() -> Result<Arc<OwnedFd>, Error> {
    thread_local! {
        static WAKE: std::cell::OnceCell<Arc<OwnedFd>> = const { std::cell::OnceCell::new() };
    }
    let made = || {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let made = eventfd(0, flags).map_err(std::io::Error::from);
        made.map(Arc::new).map_err(system("eventfd"))
    };
    let known = WAKE.try_with(|wake| match wake.get() {
        Some(wake) => Ok(wake.clone()),
        None => made().map(|new| wake.get_or_init(|| new).clone()),
    });
    // The storage of a thread that is ending may be gone: make a descriptor for this wait only.
    known.unwrap_or_else(|_| made())
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a descriptor of the service.
pub(crate) fn number(fd: Result<impl AsRawFd, ServiceError>) -> Result<RawFd, Error> {
    Ok(fd?.as_raw_fd())
}

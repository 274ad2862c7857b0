//! Descriptors, and what they stand for.
//!
//! A handle is in the table from when C learns of its number until C closes that. The descriptor itself is open a little
//! longer where another thread is in a call with it, so that its number is not given to another file meanwhile.

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
use crate::sockets::Socket;

/// Between two looks for what no descriptor tells of: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

/// All that C knows of.
static TABLE: Mutex<BTreeMap<RawFd, Arc<Handle>>> = Mutex::new(BTreeMap::new());

/// What a descriptor stands for.
pub(crate) enum Kind {
    /// A port that others connect to.
    Port(Port),
    /// A connection, also one that is being made.
    Connection(Box<Connection>),
    /// A port that messages are sent from and come to.
    Socket(Box<Socket>),
}

/// A descriptor that C knows of.
pub(crate) struct Handle {
    kind: Kind,
    number: RawFd,
    /// No other handle has it, before or after.
    id: u64,
    is_closed: AtomicBool,
    is_nonblocking: AtomicBool,
    /// In nanoseconds.
    deadline: AtomicU64,
    /// By what threads are woken that wait for it.
    asleep: Mutex<Vec<Arc<OwnedFd>>>,
}

/// Whether a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// As the descriptor is set.
    AsSet,
    /// Not at all.
    Never,
    /// Until the deadline.
    Always,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Something that comes.
    In,
    /// Room, or what was lent.
    Out,
    /// Room for messages, of which a descriptor beside it tells.
    Room,
    /// The daemon's answer, of which the descriptor does not tell.
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

    /// C learns of it, under its number.
    pub(crate) fn open(self) -> RawFd {
        let number = self.number;
        // Whoever had the number had it closed behind our back. It must not be closed once more, being another's now.
        mem::forget(locked(&TABLE).insert(number, Arc::new(self)));
        number
    }

    /// What is open under that number.
    pub(crate) fn of(number: RawFd) -> Result<Arc<Self>, Error> {
        let table = locked(&TABLE);
        table.get(&number).cloned().ok_or(Error::BadDescriptor)
    }

    /// Takes the handle from C. Who waits for it does not any more.
    pub(crate) fn close(number: RawFd) -> Result<Arc<Self>, Error> {
        let handle = locked(&TABLE).remove(&number);
        let handle = handle.ok_or(Error::BadDescriptor)?;
        handle.is_closed.store(true, Ordering::SeqCst);
        handle.rouse();
        Ok(handle)
    }

    pub(crate) fn number(&self) -> RawFd {
        self.number
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether C has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn connection(&self) -> Result<&Connection, Error> {
        match &self.kind {
            Kind::Connection(connection) => Ok(connection),
            Kind::Port(_) | Kind::Socket(_) => Err(Error::NotOfThisKind),
        }
    }

    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) {
        let nanos = deadline.unwrap_or(Instant::FAR_FUTURE).nanos();
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    /// Every thread that waits looks again.
    pub(crate) fn rouse(&self) {
        for wake in &*locked(&self.asleep) {
            // It fails where it has been woken often enough.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Tries something until it is done, which it says by no [error that would block](Error::would_block).
    pub(crate) fn wait<T>(
        &self,
        way: Way,
        waits: Waits,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let first = attempt();
        let goes_on = match waits {
            Waits::Always => true,
            Waits::Never => false,
            Waits::AsSet => !self.is_nonblocking.load(Ordering::Relaxed),
        };
        if !goes_on || !first.as_ref().is_err_and(Error::would_block) {
            return first;
        }
        let wake = wake_of_thread()?;
        let _asleep = Asleep::on(self, &wake);
        let (mut waiter, [mut pause, longest]) = (Waiter::default(), PAUSES);
        loop {
            let mut found = None;
            let mut look = |_| {
                // Before: what was done is not to be lost. Who closes it afterwards wakes this thread.
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
            match (way, &self.kind) {
                (Way::Answer, _) => {
                    until = until.min(clock::now() + pause);
                    pause = longest.min(pause.times(2));
                }
                (Way::Room, Kind::Socket(socket)) => {
                    fds.push(PollFd::new(socket.room(), PollFlags::IN));
                }
                (Way::In, _) => fds.push(PollFd::new(self, PollFlags::IN)),
                (Way::Out | Way::Room, _) => fds.push(PollFd::new(self, PollFlags::OUT)),
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

/// A thread that is woken with others that wait for a handle, until it is dropped.
struct Asleep<'h> {
    handle: &'h Handle,
    wake: &'h Arc<OwnedFd>,
}

impl<'h> Asleep<'h> {
    fn on(handle: &'h Handle, wake: &'h Arc<OwnedFd>) -> Self {
        locked(&handle.asleep).push(wake.clone());
        Self { handle, wake }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let is_other = |other: &Arc<OwnedFd>| !Arc::ptr_eq(other, self.wake);
        locked(&self.handle.asleep).retain(is_other);
        // What it was woken for is over.
        empty(self.wake);
    }
}

fn empty(wake: &OwnedFd) {
    let _ = rustix::io::read(wake, &mut [0; 8]);
}

/// By what this thread is woken. One for all that it ever waits for, since it waits for one thing at a time.
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
    // A thread that is ending has nowhere to keep it.
    known.unwrap_or_else(|_| made())
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a descriptor of the service's.
pub(crate) fn number(fd: Result<impl AsRawFd, ServiceError>) -> Result<RawFd, Error> {
    Ok(fd?.as_raw_fd())
}

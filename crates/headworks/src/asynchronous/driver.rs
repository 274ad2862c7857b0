//! The task that waits for all streams and listeners of one session in one runtime.
//!
//! A [`Driver`] has a [`Poller`], and a task that waits with it. Everything that another task waits for has a
//! [`Registration`], where that task leaves its waker. A task tries, leaves its waker, and tries once more: the poller
//! reports everything that comes after the first attempt.
//!
//! While there was something to do a short time ago, the driver's task looks at the poller again and again, and yields to
//! the other tasks in between. Else it sleeps on the poller's descriptor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use headworks_net::clock;
use headworks_net::waiting::{PollHistory, SPIN_BUDGET};
use slab::Slab;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};
use tokio::task::yield_now;

use super::waiter::readable_fd;
use crate::service::{
    Interest, Listener, PendingConnection, PollEvent, PollWaker, Poller, ServiceError, SessionRef,
    Stream,
};

/// Looks at the poller between two turns of the other tasks.
const LOOKS: u32 = 8;

/// Direction of a stream for which a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Something to receive, or a connection to accept.
    Receive,
    /// Room, or an answer.
    Send,
}

/// The wakers of the tasks that wait for one stream, listener or pending connection.
#[derive(Debug, Default)]
struct Waiting {
    receive: Mutex<Vec<Waker>>,
    send: Mutex<Vec<Waker>>,
}

/// Most wakers that are kept for a listener. Beyond that all are woken: the tasks that still wait leave theirs again.
const WAKERS_MAX: usize = 64;

impl Waiting {
    fn wakers(&self, direction: Direction) -> MutexGuard<'_, Vec<Waker>> {
        let wakers = match direction {
            Direction::Receive => &self.receive,
            Direction::Send => &self.send,
        };
        wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the waker of a task: beside others if `is_shared`, else in the place of the one before.
    fn store(&self, direction: Direction, waker: &Waker, is_shared: bool) {
        let mut wakers = self.wakers(direction);
        if wakers.iter().any(|known| known.will_wake(waker)) {
            return;
        }
        if !is_shared {
            wakers.clear();
        }
        wakers.push(waker.clone());
        if wakers.len() > WAKERS_MAX {
            drop(wakers);
            self.wake(direction);
        }
    }

    fn wake(&self, direction: Direction) {
        // Taken first: the lock is not held while tasks are woken.
        let wakers = std::mem::take(&mut *self.wakers(direction));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Waits for the streams and listeners of one session, in one runtime.
struct Driver {
    state: Mutex<DriverState>,
    waker: PollWaker,
    /// Whether the runtime has ended the task, or the poller has failed.
    is_over: AtomicBool,
}

struct DriverState {
    poller: Poller,
    waiting: Slab<Arc<Waiting>>,
}

/// All drivers, by runtime and session.
static DRIVERS: Mutex<Vec<(Id, usize, Weak<Driver>)>> = Mutex::new(Vec::new());

impl Driver {
    /// Returns the driver for a session in the present runtime, and starts it if there is none.
    fn of(session: &SessionRef) -> Result<Arc<Self>, ServiceError> {
        let (runtime, address) = (Handle::current(), session.address());
        let id = runtime.id();
        let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.retain(|(.., driver)| driver.strong_count() > 0);
        let mut own = drivers.iter().filter(|one| (one.0, one.1) == (id, address));
        // A session that has a driver exists, so no other has its address.
        if let Some(driver) = own.find_map(|(.., driver)| driver.upgrade())
            && !driver.is_over.load(Ordering::Acquire)
        {
            return Ok(driver);
        }
        let poller = session.poller()?;
        let waker = poller.waker();
        let registered = readable_fd(poller.as_fd()).map_err(reactor)?;
        let driver = Arc::new(Self {
            state: Mutex::new(DriverState {
                poller,
                waiting: Slab::new(),
            }),
            waker,
            is_over: AtomicBool::new(false),
        });
        drivers.push((id, address, Arc::downgrade(&driver)));
        runtime.spawn(drive(End(Arc::downgrade(&driver)), registered));
        Ok(driver)
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the tasks that have news, by [`Poller::wait`] if the driver is about to sleep. Returns whether there are some.
    fn turn(&self, events: &mut Vec<PollEvent>, sleeps: bool) -> Result<bool, ServiceError> {
        let mut found = Vec::new();
        {
            let mut state = self.state();
            match sleeps {
                true => state.poller.wait(events, Some(std::time::Duration::ZERO))?,
                false => state.poller.look(events)?,
            }
            for event in events.iter() {
                if let Some(waiting) = state.waiting.get(event.key as usize) {
                    found.push((waiting.clone(), *event));
                }
            }
        }
        for (waiting, event) in &found {
            if event.is_readable || event.is_hung_up {
                waiting.wake(Direction::Receive);
            }
            if event.is_writable || event.is_hung_up {
                waiting.wake(Direction::Send);
            }
        }
        Ok(!events.is_empty())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The driver's task may sleep. This wake-up has it end.
        self.waker.wake();
    }
}

/// The driver of a task. When the task ends, whatever the reason, all that wait for it are woken and find that it is over.
struct End(Weak<Driver>);

impl Drop for End {
    fn drop(&mut self) {
        let Some(driver) = self.0.upgrade() else {
            return;
        };
        driver.is_over.store(true, Ordering::Release);
        let all: Vec<Arc<Waiting>> = {
            let state = driver.state();
            state.waiting.iter().map(|(_, one)| one.clone()).collect()
        };
        for one in all {
            one.wake(Direction::Receive);
            one.wake(Direction::Send);
        }
    }
}

/// Runs a driver until nothing is registered with it any more.
async fn drive(own: End, descriptor: AsyncFd<OwnedFd>) {
    let mut events = Vec::new();
    let mut history = PollHistory::default();
    let mut turn = |sleeps| match own.0.upgrade() {
        Some(driver) => driver.turn(&mut events, sleeps).map_err(drop),
        None => Err(()),
    };
    loop {
        let (began, polls) = (clock::now(), history.polls());
        let mut has_found = false;
        while polls && !has_found && clock::now().since(began) < SPIN_BUDGET {
            for _ in 0..LOOKS {
                match turn(false) {
                    Ok(found) => has_found = found,
                    Err(()) => return,
                }
                if has_found {
                    break;
                }
            }
            // The peer may need this core.
            if !has_found {
                rustix::thread::sched_yield();
            }
            yield_now().await;
        }
        if !has_found {
            match turn(true) {
                Ok(found) => has_found = found,
                Err(()) => return,
            }
        }
        if !has_found {
            match descriptor.readable().await {
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return,
            }
        }
        history.ended(polls, clock::now().since(began));
    }
}

/// Something that tasks wait for, until this is dropped.
pub(super) struct Registration {
    driver: Arc<Driver>,
    waiting: Arc<Waiting>,
    key: usize,
    /// Whether several tasks may wait in the same direction.
    is_shared: bool,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Registration {
    /// Registers a stream.
    pub(super) fn of_stream(stream: &mut Stream) -> Result<Self, ServiceError> {
        let session = stream.session();
        Self::of(&session, |poller, key| {
            poller.add(stream, key, Interest::BOTH.edge_triggered())
        })
    }

    /// Registers a listener.
    pub(super) fn of_listener(listener: &Listener) -> Result<Self, ServiceError> {
        let mut registration = Self::of(&listener.session(), |poller, key| {
            poller.add_listener_for_news(listener, key)
        })?;
        registration.is_shared = true;
        Ok(registration)
    }

    /// Registers a connection that is not established yet. It is reported as [`Direction::Send`], once.
    pub(super) fn of_pending(pending: &PendingConnection) -> Result<Self, ServiceError> {
        Self::of(&pending.session(), |poller, key| {
            poller.add_pending(pending, key)
        })
    }

    fn of(
        session: &SessionRef,
        add: impl FnOnce(&mut Poller, u64) -> Result<(), ServiceError>,
    ) -> Result<Self, ServiceError> {
        let driver = Driver::of(session)?;
        let waiting = Arc::new(Waiting::default());
        let key = {
            let mut state = driver.state();
            let key = state.waiting.insert(waiting.clone());
            if let Err(error) = add(&mut state.poller, key as u64) {
                state.waiting.remove(key);
                return Err(error);
            }
            key
        };
        // The stream, listener or connection may be ready already, and the driver's task may sleep.
        driver.waker.wake();
        Ok(Self {
            driver,
            waiting,
            key,
            is_shared: false,
        })
    }

    /// Has the driver leave a stream alone.
    pub(super) fn leave_stream(&self, stream: &mut Stream) {
        // This fails only if the stream is in no poller any more.
        let _ = self.driver.state().poller.remove(stream);
    }

    /// Has the driver leave a listener alone.
    pub(super) fn leave_listener(&self, listener: &Listener) {
        self.driver.state().poller.remove_listener(listener);
    }

    /// Calls `attempt` until it does not have to wait. It is called in every poll, at most twice.
    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        mut attempt: impl FnMut() -> Result<Option<T>, ServiceError>,
    ) -> Poll<Result<T, ServiceError>> {
        if let Some(done) = attempt().transpose() {
            return Poll::Ready(done);
        }
        self.waiting.store(direction, cx.waker(), self.is_shared);
        // The second attempt finds bytes, room and connections that came before the waker was stored.
        match attempt().transpose() {
            Some(done) => Poll::Ready(done),
            None if self.driver.is_over.load(Ordering::Acquire) => {
                Poll::Ready(Err(reactor(io::ErrorKind::BrokenPipe.into())))
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.driver.state().waiting.remove(self.key);
    }
}

pub(super) fn reactor(source: io::Error) -> ServiceError {
    ServiceError::System {
        what: "tokio's reactor",
        source,
    }
}

//! Pollers: which of many connections and listeners are ready.
//!
//! One thread at a time has the poller of the service: it *has the turn*. A thread that waits takes the poller out of
//! its place and puts it back. A thread that changes the poller wakes the one that waits, changes the poller in its
//! place, and lets the other go on. A thread takes the lock of a connection only after the turn, never before.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use headworks::net::clock;
use headworks::service::{
    Interest, Listener, PollEvent, PollWaker, Poller as ServicePoller, ServiceError,
};
use headworks::verbs::Instant;
use slab::Slab;

use crate::connection::{Connection, PolledStage, Port};
use crate::error::Error;
use crate::handle::{Handle, Kind, locked};
use crate::library;

/// `HW_POLLIN`.
const IN: u32 = libc::EPOLLIN as u32;
/// `HW_POLLOUT`.
const OUT: u32 = libc::EPOLLOUT as u32;
/// `HW_POLLHUP`.
const HUP: u32 = libc::EPOLLHUP as u32;
/// `HW_POLLET`.
const EDGE_TRIGGERED: u32 = libc::EPOLLET as u32;

/// `struct hw_poller_event`.
#[repr(C)]
pub(crate) struct Event {
    key: u64,
    events: u32,
}

/// A poller.
pub(crate) struct Poller {
    turn: Mutex<Turn>,
    /// Notified when the turn is over.
    turn_over: Condvar,
    waker: PollWaker,
    /// Whether `hw_poller_wake` asks for the end of a wait.
    is_woken: AtomicBool,
}

struct Turn {
    /// Absent while a thread waits with it, and once the poller is closed.
    state: Option<Box<PollerState>>,
    /// Number of threads that want to change the poller. They go before those that want to wait.
    changes: usize,
    /// Whether the poller is closed.
    is_over: bool,
}

struct PollerState {
    service: ServicePoller,
    entries: Slab<Entry>,
    /// Places of the entries with events to deliver, in the order in which these came.
    queue: VecDeque<usize>,
    /// Reports of the service's poller: a buffer.
    reports: Vec<PollEvent>,
    /// Whether the descriptor becomes readable once there is something to report.
    is_armed: bool,
}

/// A connection or a listener in a poller.
struct Entry {
    key: u64,
    /// Events that the program asked for.
    events: u32,
    /// Events that were not delivered yet. If there are some, the entry is in the queue.
    ready: u32,
    handle: Weak<Handle>,
}

/// The poller that a connection or listener is in, and its place there.
#[derive(Clone)]
pub(crate) struct PollerLink {
    poller: Arc<Handle>,
    place: usize,
}

/// Makes a poller of the current daemon's connections.
pub(crate) fn create() -> Result<RawFd, Error> {
    let service = ServicePoller::new(&library::service()?)?;
    let number = service.as_fd().as_raw_fd();
    let poller = Poller {
        waker: service.waker(),
        turn: Mutex::new(Turn {
            state: Some(Box::new(PollerState {
                service,
                entries: Slab::new(),
                queue: VecDeque::new(),
                reports: Vec::new(),
                is_armed: false,
            })),
            changes: 0,
            is_over: false,
        }),
        turn_over: Condvar::new(),
        is_woken: AtomicBool::new(false),
    };
    Ok(Handle::new(Kind::Poller(Box::new(poller)), number, false).open())
}

/// Adds a connection or a listener to a poller.
pub(crate) fn add(
    poller: &Arc<Handle>,
    handle: &Arc<Handle>,
    key: u64,
    events: u32,
) -> Result<(), Error> {
    let interest = interest(events)?;
    let pollable = pollable(handle)?;
    poller.poller()?.change(|state| {
        let place = state.entries.insert(Entry {
            key,
            events,
            ready: 0,
            handle: Arc::downgrade(handle),
        });
        let link = PollerLink {
            poller: poller.clone(),
            place,
        };
        let service = &mut state.service;
        let added = match pollable {
            Pollable::Connection(connection) => connection.enter(handle, link, |stage| {
                match stage {
                    PolledStage::Connected(stream) => {
                        service.add(stream, place as u64, interest)?
                    }
                    PolledStage::Connecting(pending) => {
                        service.add_pending(pending, place as u64)?;
                    }
                }
                Ok(())
            }),
            Pollable::Port(port) => port.enter(handle, link, |listener| {
                set_listener(service, listener, place, interest)
            }),
        };
        if added.is_err() {
            state.entries.remove(place);
        }
        added
    })
}

/// Changes key and events of a connection or listener in a poller.
pub(crate) fn modify(
    poller: &Arc<Handle>,
    handle: &Handle,
    key: u64,
    events: u32,
) -> Result<(), Error> {
    let interest = interest(events)?;
    let pollable = pollable(handle)?;
    poller.poller()?.change(|state| {
        let place = place_in(poller, handle)?;
        let service = &mut state.service;
        match pollable {
            Pollable::Connection(connection) => connection.in_poller(|stage| match stage {
                PolledStage::Connected(stream) => Ok(service.modify(stream, interest)?),
                // The poller is told of the interest once the connection is made.
                PolledStage::Connecting(_) => Ok(()),
            })?,
            Pollable::Port(port) => {
                port.in_poller(|listener| set_listener(service, listener, place, interest))?;
            }
        }
        state.unqueue(place);
        let entry = &mut state.entries[place];
        (entry.key, entry.events) = (key, events);
        Ok(())
    })
}

/// Removes a connection or a listener from a poller.
pub(crate) fn remove(poller: &Arc<Handle>, handle: &Handle) -> Result<(), Error> {
    pollable(handle)?;
    poller.poller()?.change(|state| {
        let place = place_in(poller, handle)?;
        state.remove(handle, place);
        Ok(())
    })
}

/// Removes a handle that was closed from its poller. If it is a poller, ends that.
pub(crate) fn leave(handle: &Handle) {
    if let Kind::Poller(poller) = handle.kind() {
        poller.end();
        return;
    }
    // A thread that adds the handle either has set the link before this, or sees that the handle is closed.
    let Some(link) = link_of(handle) else {
        return;
    };
    // The error says that the handle is in the poller no more.
    let _ = remove(&link.poller, handle);
}

/// Finishes connecting, for a connection that is in a poller. Returns `None` if it is in none.
pub(crate) fn finish(handle: &Handle, connection: &Connection) -> Option<Result<(), Error>> {
    let link = connection.link()?;
    let poller = link.poller.poller().ok()?;
    Some(poller.change(|state| {
        let place = place_in(&link.poller, handle)?;
        state.settle(connection, place, FailureReason::Returned)
    }))
}

/// A connection or a listener, which a poller reports.
enum Pollable<'h> {
    Connection(&'h Connection),
    Port(&'h Port),
}

fn pollable(handle: &Handle) -> Result<Pollable<'_>, Error> {
    let pollable = match handle.kind() {
        Kind::Connection(connection) => Pollable::Connection(connection),
        Kind::Port(port) => Pollable::Port(port),
        Kind::Socket(_) | Kind::Poller(_) => return Err(Error::NotOfThisKind),
    };
    match handle.has_fd() {
        true => Err(Error::HasFd),
        false => Ok(pollable),
    }
}

fn link_of(handle: &Handle) -> Option<PollerLink> {
    match handle.kind() {
        Kind::Connection(connection) => connection.link(),
        Kind::Port(port) => port.link(),
        Kind::Socket(_) | Kind::Poller(_) => None,
    }
}

fn unlink(handle: &Handle) {
    match handle.kind() {
        Kind::Connection(connection) => connection.unlink(),
        Kind::Port(port) => port.unlink(),
        Kind::Socket(_) | Kind::Poller(_) => {}
    }
}

/// Returns the place of a connection or listener in a poller. It may change unless the calling thread has the turn.
fn place_in(poller: &Arc<Handle>, handle: &Handle) -> Result<usize, Error> {
    let link = link_of(handle).filter(|link| Arc::ptr_eq(&link.poller, poller));
    let link = link.ok_or(ServiceError::NotInPoller)?;
    Ok(link.place)
}

fn interest(events: u32) -> Result<Interest, Error> {
    // As with epoll(7), a hang-up is reported whether the program asks for it or not.
    if events & !(IN | OUT | HUP | EDGE_TRIGGERED) != 0 {
        return Err(Error::Invalid("unknown events; use HW_POLL..."));
    }
    Ok(Interest {
        receive: events & IN != 0,
        send: events & OUT != 0,
        is_edge_triggered: events & EDGE_TRIGGERED != 0,
    })
}

/// Returns how long it is until `deadline`.
fn until(deadline: Instant) -> Duration {
    Duration::from_nanos(deadline.since(clock::now()).nanos())
}

impl Handle {
    pub(crate) fn poller(&self) -> Result<&Poller, Error> {
        match self.kind() {
            Kind::Poller(poller) => Ok(poller),
            _ => Err(Error::NotOfThisKind),
        }
    }
}

impl Poller {
    /// Ends the current wait, or the next one.
    pub(crate) fn wake(&self) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Waits until there are events, no longer than `timeout`, and writes as many as fit. Returns their number.
    pub(crate) fn wait(
        &self,
        handle: &Handle,
        into: &mut [MaybeUninit<Event>],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let is_zero = timeout == Some(Duration::ZERO);
        let deadline = timeout.filter(|_| !is_zero);
        let deadline = deadline.map(|timeout| clock::now() + timeout);
        loop {
            let mut remaining = deadline.map_or(timeout, |deadline| Some(until(deadline)));
            let Some(mut turn) = self.take_turn(handle, deadline, is_zero)? else {
                return Ok(0);
            };
            if self.is_woken.load(Ordering::SeqCst) {
                remaining = Some(Duration::ZERO);
            }
            let written = turn.state().wait(into, remaining)?;
            drop(turn);
            // A wake-up that came during the wait has ended this wait.
            let was_woken = self.is_woken.swap(false, Ordering::SeqCst);
            if written > 0 || was_woken || remaining == Some(Duration::ZERO) {
                return Ok(written);
            }
        }
    }

    /// Takes the state out, to wait with it. Returns `None` if another thread waits with it until the deadline, or at all
    /// if `is_zero`.
    fn take_turn(
        &self,
        handle: &Handle,
        deadline: Option<Instant>,
        is_zero: bool,
    ) -> Result<Option<TakenState<'_>>, Error> {
        let mut turn = locked(&self.turn);
        loop {
            if handle.is_closed() {
                return Err(Error::BadDescriptor);
            }
            if turn.state.is_some() && turn.changes > 0 {
                // A change takes little time.
                turn = self.next_turn(turn);
                continue;
            }
            if let Some(state) = turn.state.take() {
                return Ok(Some(TakenState {
                    poller: self,
                    state: Some(state),
                }));
            }
            turn = match deadline {
                None if is_zero => return Ok(None),
                None => self.next_turn(turn),
                Some(deadline) => match until(deadline) {
                    Duration::ZERO => return Ok(None),
                    remaining => {
                        let waited = self.turn_over.wait_timeout(turn, remaining);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                },
            };
        }
    }

    fn next_turn<'t>(&self, turn: MutexGuard<'t, Turn>) -> MutexGuard<'t, Turn> {
        let turn = self.turn_over.wait(turn);
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    /// Interrupts a thread that waits, and returns once its state is back in its place or the poller is closed.
    fn interrupt(&self) -> MutexGuard<'_, Turn> {
        let mut turn = locked(&self.turn);
        turn.changes += 1;
        while turn.state.is_none() && !turn.is_over {
            self.waker.wake();
            turn = self.next_turn(turn);
        }
        turn.changes -= 1;
        turn
    }

    /// Changes the state while no thread waits with it.
    fn change<T>(
        &self,
        act: impl FnOnce(&mut PollerState) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _others = NotifyAll(&self.turn_over);
        let mut turn = self.interrupt();
        let state = turn.state.as_mut().ok_or(Error::BadDescriptor)?;
        let done = act(state);
        if std::mem::take(&mut state.is_armed) {
            // A thread may sleep on the descriptor, and there may be something to report now.
            self.waker.wake();
        }
        done
    }

    /// Closes the poller: nothing is in it any more.
    fn end(&self) {
        let _others = NotifyAll(&self.turn_over);
        let mut turn = self.interrupt();
        turn.is_over = true;
        let state = turn.state.take();
        drop(turn);
        let Some(mut state) = state else {
            return;
        };
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        // From here on they can be added to another poller.
        let handles = entries
            .iter()
            .filter_map(|(_, entry)| entry.handle.upgrade());
        handles.for_each(|handle| unlink(&handle));
    }
}

/// Lets the other threads have the turn when it is dropped. It is declared before the lock, so it is dropped after it.
struct NotifyAll<'p>(&'p Condvar);

impl Drop for NotifyAll<'_> {
    fn drop(&mut self) {
        self.0.notify_all();
    }
}

/// The state of a poller that a thread waits with. Dropping this puts it back.
struct TakenState<'p> {
    poller: &'p Poller,
    state: Option<Box<PollerState>>,
}

impl TakenState<'_> {
    fn state(&mut self) -> &mut PollerState {
        self.state.as_mut().expect("present until it is dropped")
    }
}

impl Drop for TakenState<'_> {
    fn drop(&mut self) {
        locked(&self.poller.turn).state = self.state.take();
        self.poller.turn_over.notify_all();
    }
}

/// When the program is told why a connection cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// The program is told now.
    Returned,
    /// The program's next call with the connection returns it.
    Kept,
}

impl PollerState {
    /// Writes as many events as fit of those that did not fit before. If there are none, waits for events.
    fn wait(
        &mut self,
        into: &mut [MaybeUninit<Event>],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        // Only then: each of many that stay ready is reported once before any is reported again.
        if self.queue.is_empty() {
            let mut reports = std::mem::take(&mut self.reports);
            let waited = self.service.wait(&mut reports, timeout);
            self.is_armed = timeout == Some(Duration::ZERO) && reports.is_empty();
            reports.drain(..).for_each(|report| self.note(report));
            self.reports = reports;
            waited?;
        }
        let mut written = 0;
        while written < into.len()
            && let Some(place) = self.queue.pop_front()
        {
            let entry = &mut self.entries[place];
            let events = std::mem::take(&mut entry.ready);
            let key = entry.key;
            into[written].write(Event { key, events });
            written += 1;
        }
        Ok(written)
    }

    /// Records a report of the service's poller.
    fn note(&mut self, report: PollEvent) {
        let place = report.key as usize;
        let Some(entry) = self.entries.get(place) else {
            return;
        };
        let Some(handle) = entry.handle.upgrade() else {
            return;
        };
        if let Kind::Connection(connection) = handle.kind()
            && !connection.is_made()
        {
            // The outcome is queued, and a call with the connection returns the reason of a failure.
            let _ = self.settle(connection, place, FailureReason::Kept);
            return;
        }
        let bits = [
            (report.is_readable, IN),
            (report.is_writable, OUT),
            (report.is_hung_up, HUP),
        ];
        let bits = bits.iter().filter(|(is_so, _)| *is_so);
        self.queue(place, bits.fold(0, |all, (_, bit)| all | bit));
    }

    /// Finishes connecting. Once the outcome is known, queues it and has the service's poller report the connection.
    fn settle(
        &mut self,
        connection: &Connection,
        place: usize,
        reason: FailureReason,
    ) -> Result<(), Error> {
        let interest = interest(self.entries[place].events)?;
        let service = &mut self.service;
        let (settled, is_news) = connection.settle(reason, |stream| {
            Ok(service.add(stream, place as u64, interest)?)
        });
        if is_news {
            let events = if settled.is_ok() { OUT } else { OUT | HUP };
            self.queue(place, events);
        }
        settled
    }

    fn queue(&mut self, place: usize, events: u32) {
        let ready = &mut self.entries[place].ready;
        if *ready == 0 && events != 0 {
            self.queue.push_back(place);
        }
        *ready |= events;
    }

    /// Forgets the events of an entry that were not delivered.
    fn unqueue(&mut self, place: usize) {
        if std::mem::take(&mut self.entries[place].ready) != 0 {
            self.queue.retain(|one| *one != place);
        }
    }

    fn remove(&mut self, handle: &Handle, place: usize) {
        let service = &mut self.service;
        // The call fails only if the stream has left the poller already.
        let _ = match handle.kind() {
            Kind::Connection(connection) => connection.in_poller(|stage| {
                match stage {
                    PolledStage::Connected(stream) => service.remove(stream)?,
                    PolledStage::Connecting(pending) => service.remove_pending(pending),
                }
                Ok(())
            }),
            Kind::Port(port) => port.in_poller(|listener| {
                service.remove_listener(listener);
                Ok(())
            }),
            Kind::Socket(_) | Kind::Poller(_) => Ok(()),
        };
        unlink(handle);
        self.unqueue(place);
        self.entries.remove(place);
    }
}

/// Has a poller report a listener, if the program is interested in that.
fn set_listener(
    service: &mut ServicePoller,
    listener: &Listener,
    place: usize,
    interest: Interest,
) -> Result<(), Error> {
    match interest.receive {
        true => Ok(service.add_listener(listener, place as u64)?),
        false => {
            service.remove_listener(listener);
            Ok(())
        }
    }
}

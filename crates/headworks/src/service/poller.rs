//! Readiness of many connections without a system call for each: [`Poller`].

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use headworks_client::connection::ConnectionShared;
use headworks_client::{ContractError, WakeSet};
use headworks_net::waiting::PollHistory;
use headworks_net::{WaitPhase, Waiter, WakeReason, clock};
use headworks_shm::{EventCount, fence_after_arms};
use headworks_verbs::Instant;
use rustix::event::{PollFd, PollFlags, epoll};
use slab::Slab;

use super::shared_session::SharedSession;
use super::{Listener, PendingConnection, Service, ServiceError, Stream, system};

#[cfg(feature = "tokio")]
mod for_tasks;
mod poll_state;
mod polled_stream;
mod table;
mod waker;

#[cfg(feature = "tokio")]
pub(crate) use for_tasks::SessionRef;
pub(super) use poll_state::{PollState, Polled};
use polled_stream::PolledStream;
pub(super) use table::PollerTable;
use table::address_of;
pub use waker::PollWaker;
pub(super) use waker::PollerWaker;

/// Calls of [`Poller::wait`] that found something without a system call, after which one looks at the session's socket.
const SOCKET_EVERY: u32 = 64;

/// The directions of a stream that a [`Poller`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interest {
    /// Whether it reports that there is something to receive.
    pub receive: bool,
    /// Whether it reports that there is room for what is sent.
    pub send: bool,
    /// Whether it reports only news ([`Interest::edge_triggered`]).
    pub is_edge_triggered: bool,
}

impl Interest {
    /// Something to receive.
    pub const RECEIVE: Self = Self {
        receive: true,
        send: false,
        is_edge_triggered: false,
    };
    /// Room for what is sent.
    pub const SEND: Self = Self {
        receive: false,
        send: true,
        is_edge_triggered: false,
    };
    /// Something to receive, and room for what is sent.
    pub const BOTH: Self = Self {
        receive: true,
        send: true,
        is_edge_triggered: false,
    };
    /// Neither. The stream stays in the poller; only its reset is reported.
    pub const NONE: Self = Self {
        receive: false,
        send: false,
        is_edge_triggered: false,
    };

    /// The same directions, of which only news are reported, as with EPOLLET: bytes that arrived since the last report,
    /// and room that was made after a call had failed for lack of it.
    #[must_use]
    pub const fn edge_triggered(mut self) -> Self {
        self.is_edge_triggered = true;
        self
    }
}

/// A report of a [`Poller`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PollEvent {
    /// The key that the stream or listener was added with.
    pub key: u64,
    /// Whether there is something to receive, the end of the stream included, or a connection to accept.
    pub is_readable: bool,
    /// Whether there is room for what is sent.
    pub is_writable: bool,
    /// Whether the connection was reset, or the daemon is gone. The calls of the stream or listener tell the reason.
    pub is_hung_up: bool,
}

/// Reports which of many streams and listeners of one session are ready. While there is something ready, a call makes no
/// system call, and takes time only for what is ready. A program with thousands of connections uses this in place of
/// [`Stream::readiness`] and epoll(7).
///
/// ```no_run
/// use headworks::service::{Interest, Poller, Service, ServiceError};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = Service::open("sink")?;
/// let listener = service.listen(7000, 64)?;
/// let mut poller = Poller::new(&service)?;
/// poller.add_listener(&listener, 0)?;
/// let mut streams = slab::Slab::new();
/// let mut events = Vec::new();
/// let mut received = 0;
/// loop {
///     poller.wait(&mut events, None)?;
///     for event in &events {
///         if event.key == 0 {
///             while let Some(mut stream) = listener.try_accept()? {
///                 let place = streams.vacant_entry();
///                 poller.add(&mut stream, 1 + place.key() as u64, Interest::RECEIVE)?;
///                 place.insert(stream);
///             }
///             continue;
///         }
///         let place = event.key as usize - 1;
///         let mut bytes = [0; 4096];
///         match streams[place].recv(&mut bytes) {
///             Ok(0) => drop(streams.remove(place)),
///             Ok(len) => received += len,
///             Err(ServiceError::WouldBlock) => {}
///             Err(_) => drop(streams.remove(place)),
///         }
///     }
/// }
/// # }
/// ```
///
/// # What is reported
///
/// As with epoll(7), a stream is *level-triggered* unless its [`Interest`] says otherwise: it is reported in every call
/// while there is something to receive, and while there is room. A program that does not want to receive for a while
/// takes that direction out of the interest. A report may be spurious: the call then fails with
/// [`ServiceError::WouldBlock`].
///
/// A call that receives fewer bytes than its buffer holds has received everything, so no second call is needed to find
/// that out. Everything that arrives later is reported.
///
/// # Streams in a poller
///
/// The calls of a stream in a poller never wait, whatever [`Stream::set_nonblocking`] says: they fail with
/// [`ServiceError::WouldBlock`], and they make no system call to find that out. A stream that is dropped leaves its
/// poller. A stream is in one poller at a time.
///
/// # Sleeping elsewhere
///
/// [`AsFd`] returns a descriptor for poll(2) and epoll(7): it becomes readable when a [`wait`](Self::wait) with a timeout
/// of zero would report something, after the last such wait reported nothing.
pub struct Poller {
    shared: Arc<SharedSession>,
    /// The session's socket and the waker.
    epoll: Arc<OwnedFd>,
    waker: Arc<PollerWaker>,
    streams: Slab<PolledStream>,
    /// Places in `streams`, by a ready set and the number there.
    by_name: HashMap<(usize, u32), usize>,
    /// The ready sets of all streams that were ever added.
    sets: Vec<WakeSet>,
    /// Streams that may be ready: they are not armed. `is_unsettled` of each tells that it is here.
    unsettled: Vec<usize>,
    /// Streams that were armed, and are looked at once more, and whether they may have been notified before: a buffer.
    armed: Vec<(usize, bool)>,
    listeners: Vec<PolledListener>,
    /// Connections that are not established yet.
    pending: Vec<PolledPending>,
    /// Packets of the session that were handled when the listeners and pending connections were looked at.
    packets_seen: u64,
    are_sets_armed: bool,
    is_gone: bool,
    /// Number of pairs whose peer was gone when the streams were looked at.
    pairs_gone: u64,
    waiter: Waiter,
    history: PollHistory,
    /// Whether waits may keep their core at first.
    may_poll: bool,
    /// Calls that found something since the session's socket was looked at.
    calls: u32,
}

struct PolledListener {
    number: u32,
    key: u64,
    /// If only news are reported: packets of the session that were handled when it was reported last.
    reported_at: Option<u64>,
}

struct PolledPending {
    request: u32,
    key: u64,
    /// Dropped once the connection was finished or abandoned.
    interest: Weak<()>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("streams", &self.streams.len())
            .field("listeners", &self.listeners.len())
            .finish_non_exhaustive()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Poller {
    /// Makes a poller for streams and listeners of the service's current session.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoDaemon`], [`ServiceError::DaemonGone`], [`ServiceError::System`].
    pub fn new(service: &Service) -> Result<Self, ServiceError> {
        Self::of(service.0.session(None)?)
    }

    /// Makes a poller for a session.
    pub(super) fn of(shared: Arc<SharedSession>) -> Result<Self, ServiceError> {
        let waker = Arc::new(PollerWaker::new()?);
        let watch = |errno: rustix::io::Errno| system("epoll")(errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        for fd in [shared.socket_fd(), shared.pairs_fd(), waker.fd.as_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN).map_err(watch)?;
        }
        shared.lock()?.pollers.push(Arc::downgrade(&waker));
        shared.poller_table.enter();
        Ok(Self {
            shared,
            epoll: Arc::new(epoll),
            waker,
            streams: Slab::new(),
            by_name: HashMap::new(),
            sets: Vec::new(),
            unsettled: Vec::new(),
            armed: Vec::new(),
            listeners: Vec::new(),
            pending: Vec::new(),
            packets_seen: 0,
            are_sets_armed: false,
            is_gone: false,
            pairs_gone: 0,
            waiter: Waiter::default(),
            history: PollHistory::default(),
            may_poll: true,
            calls: 0,
        })
    }

    /// Has waits sleep at once, whatever came shortly after earlier ones began.
    pub(super) fn never_polls(&mut self) {
        self.may_poll = false;
    }

    /// Returns a handle by which other threads end a wait.
    pub fn waker(&self) -> PollWaker {
        PollWaker(self.waker.clone())
    }

    /// Adds a stream, whose reports carry `key`. All of its handles are concerned.
    ///
    /// # Errors
    ///
    /// [`ServiceError::OtherSession`]. [`ServiceError::InPoller`]: the stream is in a poller already.
    /// [`ServiceError::HasDescriptor`]: the stream is direct, and [`Stream::readiness`] made a descriptor for it.
    /// [`ServiceError::Busy`]: a call of another handle is in progress. [`ServiceError::Contract`]: the daemon is of an
    /// older version, which serves no pollers. [`ServiceError::Forked`].
    pub fn add(
        &mut self,
        stream: &mut Stream,
        key: u64,
        interest: Interest,
    ) -> Result<(), ServiceError> {
        self.shared.check()?;
        self.check_session(stream.shared())?;
        let known = stream.known()?;
        let names = self.names_of(&known)?;
        let state = stream.connection().polled.enter()?;
        self.insert((known, names), state, key, interest);
        Ok(())
    }

    /// Adds the connection of a stream that has entered this poller already.
    pub(super) fn add_known(
        &mut self,
        known: Arc<ConnectionShared>,
        state: Arc<PollState>,
        key: u64,
        interest: Interest,
    ) -> Result<(), ServiceError> {
        let names = self.names_of(&known)?;
        self.insert((known, names), state, key, interest);
        Ok(())
    }

    fn insert(
        &mut self,
        (known, names): (Arc<ConnectionShared>, Vec<(usize, u32)>),
        state: Arc<PollState>,
        key: u64,
        interest: Interest,
    ) {
        let place = self.streams.insert(PolledStream {
            key,
            interest,
            state,
            known,
            names: names.clone(),
            is_unsettled: true,
            reported: None,
            is_room_reported: false,
        });
        self.unsettled.push(place);
        for name in names {
            let table = &self.shared.poller_table;
            table.add(&self.sets[name.0], &self.waker, name);
            if let Some(before) = self.by_name.insert(name, place) {
                // A stream that was dropped; its number was given to this one.
                self.forget(before);
            }
        }
    }

    /// Changes the interest in a stream.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NotInPoller`].
    pub fn modify(&mut self, stream: &mut Stream, interest: Interest) -> Result<(), ServiceError> {
        let place = self.place_of(stream)?;
        let polled = &mut self.streams[place];
        polled.interest = interest;
        polled.forget_reports();
        self.unsettle(place);
        Ok(())
    }

    /// Removes a stream. Its calls wait again, unless it is nonblocking.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NotInPoller`].
    pub fn remove(&mut self, stream: &mut Stream) -> Result<(), ServiceError> {
        let place = self.place_of(stream)?;
        let polled = &self.streams[place];
        polled.state.leave();
        polled.event_counts().for_each(EventCount::disarm);
        self.forget(place);
        Ok(())
    }

    /// Adds a listener, whose reports carry `key`. Accept with [`Listener::try_accept`].
    ///
    /// # Errors
    ///
    /// [`ServiceError::OtherSession`].
    pub fn add_listener(&mut self, listener: &Listener, key: u64) -> Result<(), ServiceError> {
        self.check_session(listener.shared())?;
        self.add_listener_as(listener, key, false);
        Ok(())
    }

    fn add_listener_as(&mut self, listener: &Listener, key: u64, is_edge_triggered: bool) {
        let number = listener.number();
        self.listeners.retain(|one| one.number != number);
        self.listeners.push(PolledListener {
            number,
            key,
            reported_at: is_edge_triggered.then_some(u64::MAX),
        });
        // A connection may wait already.
        self.packets_seen = u64::MAX;
    }

    /// Removes a listener.
    pub fn remove_listener(&mut self, listener: &Listener) {
        let number = listener.number();
        self.listeners.retain(|one| one.number != number);
    }

    /// Adds a connection that is not established yet, from [`Service::connect_polled`]. It is reported once, as writable,
    /// when [`PendingConnection::finish`] returns the connection or the reason why there is none. It leaves the poller
    /// then, or when it is finished or dropped before. Add the connection itself by [`add`](Self::add).
    ///
    /// # Errors
    ///
    /// [`ServiceError::OtherSession`].
    pub fn add_pending(
        &mut self,
        pending: &PendingConnection,
        key: u64,
    ) -> Result<(), ServiceError> {
        self.check_session(pending.shared())?;
        self.remove_pending(pending);
        self.pending.push(PolledPending {
            request: pending.request(),
            key,
            interest: pending.interest(),
        });
        // The answer may have come already.
        self.packets_seen = u64::MAX;
        Ok(())
    }

    /// Removes a connection that is not established yet.
    pub fn remove_pending(&mut self, pending: &PendingConnection) {
        let request = pending.request();
        self.pending.retain(|one| one.request != request);
    }

    /// Waits until something is ready, no longer than `timeout`, and puts the reports into `events`, which is cleared
    /// before. There are none if the time is over, or if a [`PollWaker`] ended the wait.
    ///
    /// # Errors
    ///
    /// [`ServiceError::System`], [`ServiceError::Contract`], [`ServiceError::Forked`]. That the daemon is gone is no error
    /// of this call: it is reported for each stream and listener.
    pub fn wait(
        &mut self,
        events: &mut Vec<PollEvent>,
        timeout: Option<std::time::Duration>,
    ) -> Result<(), ServiceError> {
        self.shared.check()?;
        events.clear();
        self.wake_up();
        if self.collect(events) {
            self.calls += 1;
            if self.listeners_have_news() || self.calls >= SOCKET_EVERY {
                // The session's socket: connections to accept, memory that the daemon hands over, and the daemon's end.
                self.calls = 0;
                self.exchange()?;
                self.collect_listeners(events)?;
            }
            return Ok(());
        }
        self.calls = 0;
        if timeout == Some(std::time::Duration::ZERO) || self.listeners_have_news() {
            self.fall_asleep(events)?;
            if !events.is_empty() || timeout == Some(std::time::Duration::ZERO) {
                self.waker.is_asked.store(false, Ordering::Relaxed);
                return Ok(());
            }
            self.wake_up();
        }
        let deadline = timeout.map(|timeout| clock::now() + timeout);
        self.wait_by(events, deadline)
    }

    fn wait_by(
        &mut self,
        events: &mut Vec<PollEvent>,
        deadline: Option<Instant>,
    ) -> Result<(), ServiceError> {
        let (began, polls) = (clock::now(), self.may_poll && self.history.polls());
        let mut waiter = match polls {
            true => self.waiter,
            false => Waiter::new(headworks_verbs::Duration::ZERO, Default::default()),
        };
        let epoll = self.epoll.clone();
        let mut fds = [PollFd::new(&*epoll, PollFlags::IN)];
        let ended = loop {
            let mut failed = None;
            let mut look = |phase| match phase {
                WaitPhase::Poll => self.collect(events) || self.waker.is_asked(),
                WaitPhase::Arm => {
                    self.fall_asleep(events)
                        .map_err(|error| failed = Some(error))
                        .is_err()
                        || !events.is_empty()
                        || self.waker.is_asked()
                }
            };
            let woken = waiter.wait_polling(&mut fds, deadline, &mut look);
            if let Some(error) = failed {
                break Err(error);
            }
            match woken.map_err(system("waiting")) {
                Err(error) => break Err(error),
                Ok(WakeReason::Ready | WakeReason::Deadline) => break Ok(()),
                Ok(WakeReason::Fd) => {}
            }
            self.wake_up();
            if let Err(error) = self
                .exchange()
                .and_then(|()| self.collect_listeners(events))
            {
                break Err(error);
            }
            self.collect(events);
            if !events.is_empty() || self.waker.is_asked() {
                break Ok(());
            }
        };
        self.wake_up();
        self.waker.is_asked.store(false, Ordering::Relaxed);
        self.waiter = waiter;
        self.history.ended(polls, clock::now().since(began));
        ended
    }

    /// Arms everything that makes the descriptor readable, and looks once more.
    fn fall_asleep(&mut self, events: &mut Vec<PollEvent>) -> Result<(), ServiceError> {
        self.are_sets_armed = true;
        self.waker.fall_asleep();
        self.sets
            .iter()
            .for_each(|set| set.event_count().arm(false));
        self.exchange()?;
        self.collect_listeners(events)?;
        self.collect(events);
        Ok(())
    }

    /// Disarms what `fall_asleep` armed.
    fn wake_up(&mut self) {
        if std::mem::take(&mut self.are_sets_armed) {
            let is_arm_lost = self.shared.poller_table.disarm(&self.sets);
            self.waker.wake_up();
            if is_arm_lost && let Ok(state) = self.shared.lock() {
                let pollers = state.pollers.iter().filter_map(Weak::upgrade);
                pollers.for_each(|poller| poller.wake_if_asleep());
            }
        }
    }

    /// Handles the packets of the session. All streams have news if the daemon is gone.
    fn exchange(&mut self) -> Result<(), ServiceError> {
        let mut state = self.shared.lock()?;
        let exchanged = self.shared.exchange_now(&mut state);
        let is_gone = state.is_gone;
        drop(state);
        match exchanged {
            Ok(()) | Err(ServiceError::DaemonGone | ServiceError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        self.look_at_pairs()?;
        if is_gone && !std::mem::replace(&mut self.is_gone, true) {
            // Level-triggered for good: a socket that is hung up cannot be slept on.
            let _ = epoll::delete(&*self.epoll, self.shared.socket_fd());
            let all: Vec<usize> = self.streams.iter().map(|(place, _)| place).collect();
            for place in all {
                self.streams[place].forget_reports();
                self.unsettle(place);
            }
            let reported_at = self.listeners.iter_mut().map(|one| &mut one.reported_at);
            reported_at.flatten().for_each(|at| *at = u64::MAX);
        }
        Ok(())
    }

    /// Handles what has come at the sockets of pairs. All streams may have news if a peer is gone.
    fn look_at_pairs(&mut self) -> Result<(), ServiceError> {
        let mut state = self.shared.lock()?;
        self.shared.drain_pairs(&mut state)?;
        let pairs_gone = state.pairs.gone;
        drop(state);
        if pairs_gone != self.pairs_gone {
            self.pairs_gone = pairs_gone;
            let all: Vec<usize> = self.streams.iter().map(|(place, _)| place).collect();
            all.into_iter().for_each(|place| self.unsettle(place));
        }
        Ok(())
    }

    fn listeners_have_news(&self) -> bool {
        !(self.listeners.is_empty() && self.pending.is_empty())
            && self.shared.packets() != self.packets_seen
    }

    /// Reports the listeners that have a connection to accept, and the connections that are established or have failed.
    fn collect_listeners(&mut self, events: &mut Vec<PollEvent>) -> Result<(), ServiceError> {
        if self.listeners.is_empty() && self.pending.is_empty() {
            return Ok(());
        }
        self.packets_seen = self.shared.packets();
        let state = self.shared.lock()?;
        self.pending.retain(|pending| {
            if pending.interest.strong_count() == 0 {
                return false;
            }
            let is_over = self.is_gone || state.answers.contains_key(&pending.request);
            if is_over {
                events.push(PollEvent {
                    key: pending.key,
                    is_readable: false,
                    is_writable: true,
                    is_hung_up: self.is_gone,
                });
            }
            !is_over
        });
        for listener in &mut self.listeners {
            let waiting = state.incoming.get(&listener.number);
            let has_some = waiting.is_some_and(|waiting| !waiting.is_empty());
            let mut is_told = events.iter().any(|event| event.key == listener.key);
            if (has_some || self.is_gone)
                && let Some(reported_at) = &mut listener.reported_at
            {
                is_told |= std::mem::replace(reported_at, self.packets_seen) == self.packets_seen;
            }
            if (has_some || self.is_gone) && !is_told {
                events.push(PollEvent {
                    key: listener.key,
                    is_readable: true,
                    is_writable: false,
                    is_hung_up: self.is_gone,
                });
            }
        }
        Ok(())
    }

    /// Reports the streams that are ready, and arms the others of those that were ready before. Returns whether there are
    /// reports.
    fn collect(&mut self, events: &mut Vec<PollEvent>) -> bool {
        self.take_sets();
        let unsettled = std::mem::take(&mut self.unsettled);
        self.armed.clear();
        for &place in &unsettled {
            let Some(polled) = self.streams.get_mut(place) else {
                continue;
            };
            polled.is_unsettled = false;
            if !polled.state.is_active() {
                let over = self.streams.remove(place);
                self.forget_names(&over, place);
                continue;
            }
            match polled.report(self.is_gone, false) {
                Some(event) => {
                    events.push(event);
                    polled.is_unsettled = true;
                }
                None => {
                    let polled = &*polled;
                    match polled.state.unless_left(|| polled.arm()) {
                        Some(is_notified) => self.armed.push((place, is_notified)),
                        None => self.forget(place),
                    }
                }
            }
        }
        self.unsettled = unsettled;
        if !self.armed.is_empty() {
            fence_after_arms();
            for &(place, is_notified) in &self.armed {
                let polled = &mut self.streams[place];
                if let Some(event) = polled.report(self.is_gone, is_notified) {
                    events.push(event);
                    polled.is_unsettled = true;
                }
            }
        }
        let streams = &self.streams;
        let is_unsettled = |place: &usize| streams.get(*place).is_some_and(|one| one.is_unsettled);
        self.unsettled.retain(is_unsettled);
        !events.is_empty()
    }

    /// Takes the streams that have news out of the ready sets, and passes those of other pollers on to them.
    fn take_sets(&mut self) {
        let (streams, unsettled) = (&mut self.streams, &mut self.unsettled);
        // Returns whether the stream is in this poller.
        let mut take = |name| {
            let place = self.by_name.get(&name).copied();
            let Some(polled) = place.and_then(|place| streams.get_mut(place)) else {
                return false;
            };
            if !std::mem::replace(&mut polled.is_unsettled, true) {
                unsettled.extend(place);
            }
            // The number of a stream that was dropped may be that of another poller's stream.
            polled.state.is_active()
        };
        for (at, set) in self.sets.iter().enumerate() {
            set.drain(|number| {
                if !take((at, number)) {
                    self.shared.poller_table.pass_on(set, number, &self.waker);
                }
            });
        }
        self.waker.take(|name| {
            take(name);
        });
    }

    fn unsettle(&mut self, place: usize) {
        if !std::mem::replace(&mut self.streams[place].is_unsettled, true) {
            self.unsettled.push(place);
        }
    }

    fn forget(&mut self, place: usize) {
        if let Some(over) = self.streams.try_remove(place) {
            self.forget_names(&over, place);
            // Its place may be used again at once.
            self.unsettled.retain(|one| *one != place);
        }
    }

    /// Removes the names of a stream that was at `place`. Another stream may have some of them meanwhile.
    fn forget_names(&mut self, over: &PolledStream, place: usize) {
        for name in &over.names {
            if self.by_name.get(name) == Some(&place) {
                self.by_name.remove(name);
                let table = &self.shared.poller_table;
                table.remove(&self.sets[name.0], &self.waker, name.1);
            }
        }
    }

    fn check_session(&self, of: &Arc<SharedSession>) -> Result<(), ServiceError> {
        match Arc::ptr_eq(of, &self.shared) {
            true => Ok(()),
            false => Err(ServiceError::OtherSession),
        }
    }

    fn place_of(&self, stream: &mut Stream) -> Result<usize, ServiceError> {
        self.shared.check()?;
        let state = stream.connection().polled.current();
        let state = state.ok_or(ServiceError::NotInPoller)?;
        let handle = stream.handle();
        let places = (0..self.sets.len()).filter_map(|set| self.by_name.get(&(set, handle)));
        let mut its = places.filter(|place| {
            let own = self.streams.get(**place);
            own.is_some_and(|own| Arc::ptr_eq(&own.state, &state))
        });
        its.next().copied().ok_or(ServiceError::NotInPoller)
    }

    fn find_set(&self, set: &WakeSet) -> Option<usize> {
        let is_same = |one: &WakeSet| address_of(one) == address_of(set);
        self.sets.iter().position(is_same)
    }

    /// Returns the sets that name a connection, and its number in each.
    fn names_of(&mut self, known: &ConnectionShared) -> Result<Vec<(usize, u32)>, ServiceError> {
        let old = ContractError::Message("the daemon serves no pollers: update it");
        let set = known.ready().ok_or(old)?;
        let mut names = vec![(self.place_of_set(set), known.handle())];
        if let Some(direct) = known.direct() {
            for (set, number) in [direct.arrived(), direct.room()] {
                names.push((self.place_of_set(set), number));
            }
        }
        Ok(names)
    }

    fn place_of_set(&mut self, set: &WakeSet) -> usize {
        if let Some(at) = self.find_set(set) {
            return at;
        }
        self.sets.push(set.clone());
        if self.are_sets_armed {
            set.event_count().arm(false);
        }
        self.sets.len() - 1
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // In a forked child the streams, what the parent sleeps on, and the waker's descriptor are the parent's.
        if self.shared.check().is_err() {
            return;
        }
        let streams = std::mem::take(&mut self.streams);
        for (place, polled) in &streams {
            polled.state.leave();
            self.forget_names(polled, place);
        }
        self.wake_up();
        self.shared.poller_table.leave();
        if let Ok(mut state) = self.shared.lock() {
            let own = Arc::downgrade(&self.waker);
            state.pollers.retain(|one| !one.ptr_eq(&own));
        }
    }
}

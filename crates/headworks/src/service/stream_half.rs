//! One direction of a connection, and waits for data or for room.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use headworks_client::connection::{ConnectionShared, ReceiveHalf, SendHalf, Wake};
use headworks_client::control_block::Room;
use headworks_client::direct::DirectShared;
use headworks_client::slabs::Slabs;
use headworks_net::waiting::PollHistory;
use headworks_net::{WaitPhase, Waiter, WakeReason, clock};
use headworks_shm::WakeBy;
use headworks_verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags};

use super::pair_socket::PairSocket;
use super::poller::{PollState, Polled};
use super::readiness_socket::{Readiness, ReadinessSocket};
use super::shared_session::{LookFor, SharedSession, SleepsOn};
use super::{Refusal, ServiceError, system};

/// Limit on the wait for the reason of a hang-up. The daemon gives it before it hangs up, unless it is dying.
const RESET_REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// Direction of a half, which determines the event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfKind {
    /// The receiving half; waits for data.
    Receive,
    /// The sending half; waits for room, or for the return of lent memory.
    Send,
}

/// One direction of a connection.
pub(super) trait ConnectionHalf: Deref<Target = ConnectionShared> {
    /// Direction of this half.
    const KIND: HalfKind;

    /// Adds the slabs that the session has received since the last call.
    fn refresh(&mut self, slabs: &Slabs);

    /// Whether bytes have arrived that cannot be read yet, or a ring that cannot be written yet, because they lie in a slab
    /// that was not read from the session's socket, or because the daemon is moving the bytes.
    fn is_withheld(&self) -> bool;

    /// Whether nothing more can happen in this direction without the daemon, on a direct connection.
    fn needs_daemon(&self) -> bool;

    /// What the latest call saw of the room for what is sent; `None` of a half that only receives.
    fn room(&self) -> Option<Room>;
}

impl ConnectionHalf for SendHalf {
    const KIND: HalfKind = HalfKind::Send;

    fn refresh(&mut self, slabs: &Slabs) {
        Self::refresh(self, slabs);
    }

    fn is_withheld(&self) -> bool {
        Self::is_withheld(self)
    }

    fn needs_daemon(&self) -> bool {
        Self::needs_daemon(self)
    }

    fn room(&self) -> Option<Room> {
        Some(Self::room(self))
    }
}

impl ConnectionHalf for ReceiveHalf {
    const KIND: HalfKind = HalfKind::Receive;

    fn refresh(&mut self, slabs: &Slabs) {
        Self::refresh(self, slabs);
    }

    fn is_withheld(&self) -> bool {
        Self::is_withheld(self)
    }

    fn needs_daemon(&self) -> bool {
        Self::needs_daemon(self)
    }

    fn room(&self) -> Option<Room> {
        None
    }
}

/// A connection, shared by its two halves and their handles. It is closed when all are dropped.
pub(super) struct ServiceConnection {
    pub(super) shared: Arc<SharedSession>,
    pub(super) handle: u32,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// The descriptor for callers that poll, once it was made.
    pub(super) readiness: OnceLock<Readiness>,
    /// The direct path, if the connection has one, and the socket of its pair.
    pub(super) direct: Option<(Arc<DirectShared>, Option<Arc<PairSocket>>)>,
    /// The poller that the connection is in.
    pub(super) polled: Polled,
}

impl Drop for ServiceConnection {
    fn drop(&mut self) {
        // In a forked child it is the parent's, and a thread that does not exist there may hold a lock.
        if self.shared.check().is_err() {
            return;
        }
        if let Some(state) = self.polled.any() {
            state.leave();
        }
        if self.direct.is_some() && self.readiness.get().is_some() {
            self.shared.descriptor_thread.wake();
        }
        let Ok(mut state) = self.shared.lock() else {
            return;
        };
        state.session.close(self.handle);
        if let Some((direct, _)) = &self.direct {
            // If the daemon is gone, that concerns the next call.
            direct
                .close()
                .into_iter()
                .for_each(|wake| drop(self.wake(wake)));
        }
        let _ = self.shared.exchange(&mut state);
    }
}

impl ServiceConnection {
    /// Wakes whoever must be woken after a call.
    pub(super) fn wake(&self, wake: Wake) -> Result<(), ServiceError> {
        match (wake, &self.direct) {
            (Wake::No, _) => Ok(()),
            (Wake::Needed, None) => self.shared.wake(),
            // A direct connection goes on without the daemon.
            (Wake::Needed, Some(_)) => {
                let _ = self.shared.wake();
                Ok(())
            }
            (Wake::PeerThread { of_room }, Some((direct, _))) => {
                direct.event_count_of_peer(of_room).wake();
                Ok(())
            }
            (Wake::PeerSocket, Some((_, socket))) => {
                socket.iter().for_each(|socket| socket.wake());
                Ok(())
            }
            (Wake::PeerThread { .. } | Wake::PeerSocket, None) => Ok(()),
        }
    }
}

/// Identifies the connection that something was lent to. Does not keep the connection open.
#[derive(Clone, Debug)]
pub(super) struct WeakConnection(Weak<ServiceConnection>);

impl WeakConnection {
    /// Refuses what was lent to another connection: the state of `connection` tells nothing of it.
    pub(super) fn check(&self, connection: &Arc<ServiceConnection>) -> Result<(), ServiceError> {
        // The weak reference keeps the allocation of a dropped connection, so its address is not reused.
        match std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(connection)) {
            true => Ok(()),
            false => Err(ServiceError::Refused(Refusal::Misuse)),
        }
    }
}

impl From<&Arc<ServiceConnection>> for WeakConnection {
    fn from(connection: &Arc<ServiceConnection>) -> Self {
        Self(Arc::downgrade(connection))
    }
}

/// Limits on the waits of one handle's calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallLimits {
    /// Instant until which calls may wait.
    pub(super) deadline: Option<Instant>,
    /// How long each call may wait.
    pub(super) timeout: Option<Duration>,
    /// Whether calls may not wait at all.
    pub(super) is_nonblocking: bool,
}

impl CallLimits {
    /// Returns the instant until which a call that starts to wait now may wait; `None` for no limit.
    pub(super) fn until(&self) -> Option<Instant> {
        let timed_out = self.timeout.map(|timeout| clock::now() + timeout);
        match (self.deadline, timed_out) {
            (Some(deadline), Some(timed_out)) => Some(deadline.min(timed_out)),
            (deadline, timed_out) => deadline.or(timed_out),
        }
    }
}

/// One direction of a connection as its handles share it. As long as there is one handle, its calls take no lock.
pub(super) enum HalfCell<T> {
    /// One handle has it.
    Own(Mutex<T>),
    /// Several handles may have it.
    Shared(Arc<Mutex<T>>),
    /// [`HalfCell::share`] is moving it.
    Moving,
}

impl<T> HalfCell<T> {
    pub(super) fn new(half: T) -> Self {
        Self::Own(Mutex::new(half))
    }

    /// Returns another handle's cell for the same half.
    pub(super) fn share(&mut self) -> Self {
        let shared = match std::mem::replace(self, Self::Moving) {
            Self::Own(half) => Arc::new(half),
            Self::Shared(shared) => shared,
            Self::Moving => unreachable!("only while it is being shared"),
        };
        *self = Self::Shared(shared.clone());
        Self::Shared(shared)
    }

    fn mutex(&self) -> &Mutex<T> {
        match self {
            Self::Own(half) => half,
            Self::Shared(half) => half,
            Self::Moving => unreachable!("only while it is being shared"),
        }
    }

    /// Borrows the half. Waits while another handle has a call in progress.
    pub(super) fn borrow(&mut self) -> HalfGuard<'_, T> {
        match self {
            Self::Own(half) => {
                HalfGuard::Own(half.get_mut().unwrap_or_else(PoisonError::into_inner))
            }
            shared => HalfGuard::Locked(shared.lock()),
        }
    }

    /// Borrows the half as [`HalfCell::borrow`] does, of a handle that several threads may use.
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Borrows the half; `None` if another handle has a call in progress.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.mutex().try_lock() {
            Ok(half) => Some(half),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A borrowed half.
pub(super) enum HalfGuard<'h, T> {
    /// The only handle has it.
    Own(&'h mut T),
    /// Several handles have it.
    Locked(MutexGuard<'h, T>),
}

impl<T> Deref for HalfGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(half) => half,
            Self::Locked(half) => half,
        }
    }
}

impl<T> DerefMut for HalfGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Own(half) => half,
            Self::Locked(half) => half,
        }
    }
}

/// One direction, and how its calls wait.
pub(super) struct StreamHalf<H> {
    pub(super) half: H,
    pub(super) connection: Arc<ServiceConnection>,
    /// How long its waits were.
    history: PollHistory,
    /// The socket by which the daemon or, on the direct path, the session's thread for descriptors signals readiness, once
    /// the stream has a descriptor.
    pub(super) watch: Option<ReadinessSocket>,
}

impl<H: ConnectionHalf> StreamHalf<H> {
    pub(super) fn new(half: H, connection: &Arc<ServiceConnection>) -> Self {
        Self {
            half,
            connection: connection.clone(),
            history: PollHistory::default(),
            watch: None,
        }
    }

    /// Adds the slabs that the session has received.
    pub(super) fn refresh(&mut self) -> Result<(), ServiceError> {
        self.half
            .refresh(self.connection.shared.lock()?.session.slabs());
        Ok(())
    }

    /// Calls `act` until it returns something. `act` also returns whether the daemon must be woken.
    pub(super) fn wait<T>(
        &mut self,
        limits: &CallLimits,
        mut act: impl FnMut(&mut H) -> Result<(Option<T>, Wake), ServiceError>,
    ) -> Result<T, ServiceError> {
        let connection = &*self.connection;
        let shared = &*connection.shared;
        shared.check()?;
        let is_direct = connection.direct.is_some();
        let mut act = |half: &mut H| -> Result<Option<T>, ServiceError> {
            let (done, wake) = act(half)?;
            connection.wake(wake)?;
            if is_direct && done.is_none() && shared.is_hung_up() && half.needs_daemon() {
                return Err(ServiceError::DaemonGone);
            }
            Ok(done)
        };
        let half = &mut self.half;
        if let Some(done) = act(half)? {
            return Ok(done);
        }
        if let Some(poller) = self.connection.polled.current() {
            if half.is_withheld() {
                // The bytes to read, or the ring to write, may lie in a slab that is still in the session's socket.
                let mut state = shared.lock()?;
                shared.exchange_now(&mut state)?;
                half.refresh(state.session.slabs());
                drop(state);
                if let Some(done) = act(half)? {
                    return Ok(done);
                }
            }
            if shared.is_hung_up() && !is_direct {
                return act(half)?.ok_or(ServiceError::DaemonGone);
            }
            if let Some(done) = block_and_look(half, &poller, &mut act)? {
                return Ok(done);
            }
            return Err(ServiceError::WouldBlock);
        }
        if let Some(watch) = self.watch.as_mut().filter(|watch| !watch.is_hung_up()) {
            let mut polled = FdWait {
                connection,
                watch,
                half,
            };
            let done = match limits.is_nonblocking {
                true => polled.look(&mut act)?,
                false => polled.wait(limits.until(), &mut act)?,
            };
            match done {
                Some(done) => return Ok(done),
                None if !watch.is_hung_up() => return Err(ServiceError::WouldBlock),
                // From here on the daemon signals by packets, if it is still there, and the peer as without a descriptor.
                None => {}
            }
        }
        let is_hung_up = self.watch.as_ref().is_some_and(ReadinessSocket::is_hung_up);
        let is_known_why = half.status().reset.is_some();
        if limits.is_nonblocking && (is_direct || !is_hung_up || is_known_why) {
            let mut state = shared.lock()?;
            match shared.exchange(&mut state) {
                Err(ServiceError::DaemonGone | ServiceError::Refused(_)) if is_direct => {
                    shared.drain_pairs(&mut state)?;
                }
                exchanged => exchanged?,
            }
            half.refresh(state.session.slabs());
            let is_gone = state.is_gone && !is_direct;
            drop(state);
            return match act(half)? {
                Some(done) => Ok(done),
                None if is_gone => Err(ServiceError::DaemonGone),
                None => Err(ServiceError::WouldBlock),
            };
        }
        // The reason of the hang-up is on its way. An edge-triggered caller would not call again to get it.
        let deadline = match limits.is_nonblocking {
            true => Some(clock::now() + RESET_REASON_TIMEOUT),
            false => limits.until(),
        };
        let for_room = H::KIND == HalfKind::Send;
        let direct = connection
            .direct
            .as_ref()
            .map(|(direct, _)| match for_room {
                true => direct.outgoing().event_count_ref(true),
                false => direct.incoming().event_count_ref(false),
            });
        let told = half.block().event_count_ref(for_room);
        let on = SleepsOn {
            handle: self.connection.handle,
            event_count: direct.unwrap_or_else(|| told.clone()),
            is_direct,
        };
        let waited = shared.wait_on(&on, &mut self.history, deadline, |look| {
            if let LookFor::Sleep(state, by) = look {
                half.refresh(state.session.slabs());
                if is_direct {
                    // The daemon tells by a packet, which the leader handles.
                    told.arm(false);
                }
                match by {
                    WakeBy::Message | WakeBy::Set => on.event_count.arm(false),
                    WakeBy::Word => on.event_count.arm_to_sleep(),
                }
            }
            act(half)
        });
        match waited {
            Err(ServiceError::Deadline) if limits.is_nonblocking => Err(ServiceError::WouldBlock),
            waited => waited,
        }
    }
}

/// Tells the poller that a call found no room, or bytes that the daemon is moving, and looks once more. The poller may have
/// looked between the call and that.
fn block_and_look<H: ConnectionHalf, T>(
    half: &mut H,
    poller: &PollState,
    act: &mut impl FnMut(&mut H) -> Result<Option<T>, ServiceError>,
) -> Result<Option<T>, ServiceError> {
    if H::KIND == HalfKind::Receive {
        return find_nothing_and_look(half, poller, act);
    }
    while let Some(seen) = half.room() {
        poller.block(seen);
        if let Some(done) = act(half)? {
            return Ok(Some(done));
        }
        if half.room() == Some(seen) {
            break;
        }
    }
    Ok(None)
}

/// Does what [`block_and_look`] does for a call that receives. If the words in shared memory say that there is something, it
/// arrived just now, the daemon is moving it, or the peer wrote these words to keep the poller busy.
fn find_nothing_and_look<H: ConnectionHalf, T>(
    half: &mut H,
    poller: &PollState,
    act: &mut impl FnMut(&mut H) -> Result<Option<T>, ServiceError>,
) -> Result<Option<T>, ServiceError> {
    loop {
        let seen = half.arrived();
        if !seen.is_some {
            return Ok(None);
        }
        let was_withheld = half.is_withheld();
        if was_withheld {
            poller.withhold();
        }
        if let Some(done) = act(half)? {
            return Ok(Some(done));
        }
        match half.is_withheld() {
            true if was_withheld => return Ok(None),
            true => {}
            false => {
                // This call looked after `seen` was read.
                poller.found_nothing(seen.bytes);
                return Ok(None);
            }
        }
    }
}

/// A direction of a stream that has a descriptor.
struct FdWait<'s, H> {
    connection: &'s ServiceConnection,
    watch: &'s mut ReadinessSocket,
    half: &'s mut H,
}

impl<H: ConnectionHalf> FdWait<'_, H> {
    /// Calls `act`; if that returns nothing, arms the descriptor to become ready when it can.
    fn look<T>(
        &mut self,
        act: &mut impl FnMut(&mut H) -> Result<Option<T>, ServiceError>,
    ) -> Result<Option<T>, ServiceError> {
        let shared = &self.connection.shared;
        let mut is_full = false;
        loop {
            if self.half.is_withheld() {
                // The bytes to read, or the ring to write, may lie in a slab that is still in the session's
                // socket.
                let mut state = shared.lock()?;
                shared.exchange(&mut state)?;
                self.half.refresh(state.session.slabs());
            }
            if self.connection.direct.is_some() {
                return self.look_direct(act);
            }
            let (is_there, is_armed_now) = match H::KIND {
                HalfKind::Receive => (true, self.watch.arm(self.half)),
                HalfKind::Send => {
                    // The socket stays full until the daemon notifies the event count.
                    is_full &= self.half.block().room_event_count().is_armed();
                    let is_there = is_full || self.watch.fill();
                    is_full = true;
                    (is_there, ReadinessSocket::arm_room(self.half))
                }
            };
            if let Some(done) = act(self.half)? {
                // The socket was filled although there is room: the daemon empties it, now or at its next
                // look.
                if H::KIND == HalfKind::Send && self.half.nudge() == Wake::Needed {
                    shared.wake()?;
                }
                return Ok(Some(done));
            }
            if is_there && is_armed_now {
                continue;
            }
            let is_there = match H::KIND {
                // The descriptor stays readable until the slab has arrived.
                HalfKind::Receive if self.half.is_withheld() => true,
                HalfKind::Receive => self.watch.empty(),
                HalfKind::Send => is_there,
            };
            if is_there {
                return Ok(None);
            }
            // The daemon gave the reason before it hung up.
            self.watch.hang_up();
            return act(self.half);
        }
    }

    /// Does what [`look`](Self::look) does where the session's thread for descriptors makes the descriptor ready.
    fn look_direct<T>(
        &mut self,
        act: &mut impl FnMut(&mut H) -> Result<Option<T>, ServiceError>,
    ) -> Result<Option<T>, ServiceError> {
        let Some(state) = self.connection.polled.of_descriptor() else {
            self.watch.hang_up();
            return act(self.half);
        };
        match H::KIND {
            HalfKind::Receive => {
                // A byte that the thread writes from here on is for what arrives from here on, or spurious.
                if !self.watch.drain_all() {
                    self.watch.hang_up();
                }
                let done = match act(self.half)? {
                    None => block_and_look(self.half, &state, act)?,
                    done => done,
                };
                let arrived = self.half.arrived();
                if done.is_some() && (arrived.is_some || arrived.status.is_ended) {
                    // The socket was emptied although something is left, which the thread may have reported before.
                    state.wants_bytes.store(true, Ordering::Release);
                    self.connection.shared.descriptor_thread.wake();
                }
                Ok(done)
            }
            HalfKind::Send => {
                if !self.watch.fill() {
                    self.watch.hang_up();
                }
                let done = block_and_look(self.half, &state, act)?;
                if done.is_some() {
                    // The socket was filled although there is room, which the thread may have reported before.
                    state.wants_room.store(true, Ordering::Release);
                    self.connection.shared.descriptor_thread.wake();
                }
                Ok(done)
            }
        }
    }

    /// Waits until `act` returns something; `None` if the descriptor is hung up before.
    fn wait<T>(
        &mut self,
        deadline: Option<Instant>,
        act: &mut impl FnMut(&mut H) -> Result<Option<T>, ServiceError>,
    ) -> Result<Option<T>, ServiceError> {
        let mut waiter = Waiter::default();
        while !self.watch.is_hung_up() {
            let mut found = Ok(None);
            let fd = self.watch.readiness().clone();
            let flags = match H::KIND {
                HalfKind::Receive => PollFlags::IN,
                HalfKind::Send => PollFlags::OUT,
            };
            let mut fds = [PollFd::new(&fd, flags)];
            let mut at = |phase| {
                found = match phase {
                    WaitPhase::Poll => act(self.half),
                    WaitPhase::Arm => self.look(act),
                };
                // A descriptor that is hung up cannot be slept on.
                !matches!(found, Ok(None)) || self.watch.is_hung_up()
            };
            let woken = waiter.wait_polling(&mut fds, deadline, &mut at);
            if let Some(found) = found? {
                return Ok(Some(found));
            }
            match woken.map_err(system("waiting"))? {
                WakeReason::Deadline => return Err(ServiceError::Deadline),
                // Mostly spurious, for something already seen: `look` makes the descriptor unready.
                WakeReason::Fd | WakeReason::Ready => {
                    if let Some(found) = self.look(act)? {
                        return Ok(Some(found));
                    }
                }
            }
        }
        Ok(None)
    }
}

//! A direction of a connection, and waiting for it: until something has come, or there is room.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use headworks_client::connection::{ConnectionShared, ReceiveHalf, SendHalf};
use headworks_client::memory::Slabs;
use headworks_net::{WaitPhase, Waiter, WakeReason, clock};
use headworks_verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags};

use super::readiness_socket::ReadinessSocket;
use super::shared_session::SharedSession;
use super::{Refusal, ServiceError, system};

/// How long a daemon may take to say why it hung up, at most: it says so before it does, or is dying.
const RESET_REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfKind {
    /// Something that comes.
    ReceiveHalf,
    /// Room, or memory that was lent.
    SendHalf,
}

/// A direction of a connection.
pub(super) trait ConnectionHalf: Deref<Target = ConnectionShared> {
    /// Direction of this half.
    const KIND: HalfKind;

    /// Learns of the memory that the session has got since.
    fn refresh(&mut self, slabs: &Slabs);

    /// Whether what has come lies in memory that is still to be taken off the socket.
    fn awaits_slab(&self) -> bool;
}

impl ConnectionHalf for SendHalf {
    const KIND: HalfKind = HalfKind::SendHalf;

    fn refresh(&mut self, slabs: &Slabs) {
        Self::refresh(self, slabs);
    }

    fn awaits_slab(&self) -> bool {
        false
    }
}

impl ConnectionHalf for ReceiveHalf {
    const KIND: HalfKind = HalfKind::ReceiveHalf;

    fn refresh(&mut self, slabs: &Slabs) {
        Self::refresh(self, slabs);
    }

    fn awaits_slab(&self) -> bool {
        Self::awaits_slab(self)
    }
}

/// A connection, for as long as either direction is there: then it is closed.
pub(super) struct ServiceConnection {
    pub(super) shared: Arc<SharedSession>,
    pub(super) handle: u32,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Drop for ServiceConnection {
    fn drop(&mut self) {
        let Ok(mut state) = self.shared.lock() else {
            return;
        };
        state.session.close(self.handle);
        let _ = self.shared.exchange(&mut state);
    }
}

/// Which connection something was given to. It keeps none open.
#[derive(Clone, Debug)]
pub(super) struct WeakConnection(Weak<ServiceConnection>);

impl WeakConnection {
    /// Refuses whoever takes another's for its own: what it knows says nothing of that.
    pub(super) fn check(&self, connection: &Arc<ServiceConnection>) -> Result<(), ServiceError> {
        // The place of one that is gone is no other's while it is known here.
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

/// A direction, and how it is waited for.
pub(super) struct StreamHalf<H> {
    pub(super) half: H,
    pub(super) connection: Arc<ServiceConnection>,
    pub(super) deadline: Option<Instant>,
    pub(super) is_nonblocking: bool,
    /// By which the daemon tells of it, where it is polled.
    pub(super) watch: Option<ReadinessSocket>,
}

impl<H: ConnectionHalf> StreamHalf<H> {
    pub(super) fn new(half: H, connection: &Arc<ServiceConnection>) -> Self {
        Self {
            half,
            connection: connection.clone(),
            deadline: None,
            is_nonblocking: false,
            watch: None,
        }
    }

    /// Learns of memory that has come.
    pub(super) fn refresh(&mut self) -> Result<(), ServiceError> {
        self.half
            .refresh(self.connection.shared.lock()?.session.slabs());
        Ok(())
    }

    /// Does something with the connection once it can be done.
    pub(super) fn wait<T>(
        &mut self,
        mut act: impl FnMut(&mut H) -> Result<(Option<T>, bool), ServiceError>,
    ) -> Result<T, ServiceError> {
        let shared = &*self.connection.shared;
        shared.check()?;
        let mut act = |half: &mut H| -> Result<Option<T>, ServiceError> {
            let (done, wakes) = act(half)?;
            if wakes {
                shared.wake()?;
            }
            Ok(done)
        };
        let half = &mut self.half;
        if let Some(done) = act(half)? {
            return Ok(done);
        }
        if let Some(watch) = self.watch.as_mut().filter(|watch| !watch.is_hung_up()) {
            let mut polled = FdWait {
                shared,
                watch,
                half,
            };
            let done = match self.is_nonblocking {
                true => polled.look(&mut act)?,
                false => polled.wait(self.deadline, &mut act)?,
            };
            match done {
                Some(done) => return Ok(done),
                None if !watch.is_hung_up() => return Err(ServiceError::WouldBlock),
                // From here on the daemon tells of it by packets, if it is there.
                None => {}
            }
        }
        let is_hung_up = self.watch.as_ref().is_some_and(ReadinessSocket::is_hung_up);
        let is_known_why = half.status().reset.is_some();
        if self.is_nonblocking && (!is_hung_up || is_known_why) {
            let mut state = shared.lock()?;
            shared.exchange(&mut state)?;
            half.refresh(state.session.slabs());
            let is_gone = state.is_gone;
            drop(state);
            return match act(half)? {
                Some(done) => Ok(done),
                None if is_gone => Err(ServiceError::DaemonGone),
                None => Err(ServiceError::WouldBlock),
            };
        }
        // Why it is hung up is on its way, and would never be asked for again by who waits for an edge.
        let deadline = match self.is_nonblocking {
            true => Some(clock::now() + RESET_REASON_TIMEOUT),
            false => self.deadline,
        };
        let waited = shared.wait(Some(self.connection.handle), deadline, |state| {
            if let Some(state) = state {
                half.refresh(state.session.slabs());
                match H::KIND {
                    HalfKind::ReceiveHalf => half.block().bell().arm(false),
                    HalfKind::SendHalf => half.block().room_bell().arm(false),
                }
            }
            act(half)
        });
        match waited {
            Err(ServiceError::Deadline) if self.is_nonblocking => Err(ServiceError::WouldBlock),
            waited => waited,
        }
    }
}

/// A direction that the daemon tells of by a descriptor.
struct FdWait<'s, H> {
    shared: &'s SharedSession,
    watch: &'s mut ReadinessSocket,
    half: &'s mut H,
}

impl<H: ConnectionHalf> FdWait<'_, H> {
    /// Does what can be done, or has the descriptor become ready when it can.
    fn look<T>(
        &mut self,
        act: &mut impl FnMut(&mut H) -> Result<Option<T>, ServiceError>,
    ) -> Result<Option<T>, ServiceError> {
        loop {
            if H::KIND == HalfKind::SendHalf || self.half.awaits_slab() {
                // What is to be read or written may lie in memory that is still to be taken off the socket.
                let mut state = self.shared.lock()?;
                self.shared.exchange(&mut state)?;
                self.half.refresh(state.session.slabs());
            }
            let (is_there, is_armed_now) = match H::KIND {
                HalfKind::ReceiveHalf => (true, self.watch.arm(self.half)),
                HalfKind::SendHalf => (self.watch.fill(), ReadinessSocket::arm_room(self.half)),
            };
            if let Some(done) = act(self.half)? {
                // It was filled although there is room: the daemon empties it, now or when it has looked.
                if H::KIND == HalfKind::SendHalf && self.half.nudge() {
                    self.shared.wake()?;
                }
                return Ok(Some(done));
            }
            if is_there && is_armed_now {
                continue;
            }
            let is_there = match H::KIND {
                // It stays readable until that has come.
                HalfKind::ReceiveHalf if self.half.awaits_slab() => true,
                HalfKind::ReceiveHalf => self.watch.empty(),
                HalfKind::SendHalf => is_there,
            };
            if is_there {
                return Ok(None);
            }
            // Before that it was said why.
            self.watch.hang_up();
            return act(self.half);
        }
    }

    /// Waits until it can be done; `None` where the descriptor is hung up before.
    fn wait<T>(
        &mut self,
        deadline: Option<Instant>,
        act: &mut impl FnMut(&mut H) -> Result<Option<T>, ServiceError>,
    ) -> Result<Option<T>, ServiceError> {
        let mut waiter = Waiter::default();
        while !self.watch.is_hung_up() {
            let mut found = Ok(None);
            let fd = self.watch.descriptor();
            let flags = match H::KIND {
                HalfKind::ReceiveHalf => PollFlags::IN,
                HalfKind::SendHalf => PollFlags::OUT,
            };
            let mut fds = [PollFd::new(&fd, flags)];
            let mut at = |phase| {
                found = match phase {
                    WaitPhase::Poll => act(self.half),
                    WaitPhase::Arm => self.look(act),
                };
                // One that is hung up has nothing to sleep on.
                !matches!(found, Ok(None)) || self.watch.is_hung_up()
            };
            let woken = waiter.wait_polling(&mut fds, deadline, &mut at);
            if let Some(found) = found? {
                return Ok(Some(found));
            }
            match woken.map_err(system("waiting"))? {
                WakeReason::Deadline => return Err(ServiceError::Deadline),
                // Mostly in vain, for what was seen before: then it is made unready.
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

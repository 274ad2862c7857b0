//! Waits for a ring, and also for the control stream, the interrupt and the deadline.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_net::{ControlStream, NetError, SpinMode, WaitPhase, Waiter, WakeReason, clock};
use headworks_verbs::{Device, Duration, Instant, PortChange, PortFailure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::BlockingError;

/// Limit on kept messages from the control stream, each of up to 64 KiB. Each side of a pipe sends one or two.
const LINE_MESSAGES_MAX: usize = 16;

/// For `map_err`: the system call named `what` failed.
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> BlockingError {
    move |source| BlockingError::System { what, source }
}

/// The descriptors and the deadline that a waiting end watches, and what it has seen.
pub(crate) struct EndWaiter {
    ring: OwnedFd,
    pub(crate) control: ControlStream,
    interrupt: Option<OwnedFd>,
    /// When all waits end.
    pub(crate) deadline: Option<Instant>,
    /// How long each call may wait.
    pub(crate) timeout: Option<Duration>,
    /// When the current call has waited as long as the timeout allows; `None` before its first wait.
    expires: Option<Instant>,
    /// Messages that arrived over the control stream and were not taken yet, oldest first.
    pub(crate) line_messages: VecDeque<Vec<u8>>,
    /// Whether the control stream has ended.
    pub(crate) line_ended: bool,
    /// Whether the ring's descriptor was readable in a wait and its events are not drained yet.
    pub(crate) ring_readable: bool,
    /// The ring's device, if this end alone reads its events, and the number of its latest failure before the connection.
    device: Option<(Arc<dyn Device>, u64)>,
}

impl EndWaiter {
    pub(crate) fn new(ring: OwnedFd, control: ControlStream) -> Self {
        Self {
            ring,
            control,
            interrupt: None,
            deadline: None,
            timeout: None,
            expires: None,
            line_messages: VecDeque::new(),
            line_ended: false,
            ring_readable: false,
            device: None,
        }
    }

    /// Reads the events of the ring's device from now on, which nobody else may read. Waits end if the port loses what the
    /// connection uses. `before` is the number of the port's latest failure before the connection was begun; 0 for none.
    pub(crate) fn watch_device(&mut self, device: &Arc<dyn Device>, before: u64) {
        self.device = Some((device.clone(), before));
    }

    /// Name of the device that is watched, without options.
    pub(crate) fn device_name(&self) -> String {
        let Some((device, _)) = &self.device else {
            return "the device".to_owned();
        };
        let name = &device.info().name;
        match name.name() {
            Some(own) => format!("{}:{own}", name.kind()),
            None => name.kind().to_owned(),
        }
    }

    /// Returns the failure of the device's port that ends the connection, if there is one.
    pub(crate) fn port_failure(&self) -> Option<PortFailure> {
        let (device, before) = self.device.as_ref()?;
        let failure = device.port_failure()?;
        failure.concerns(*before).then_some(failure)
    }

    /// Reads the device's events. Fails if the port has lost what the connection uses. A port that is down may come up before
    /// the retries are used up, so it is no failure yet.
    fn look_at_device(&self) -> Result<(), BlockingError> {
        let Some((device, _)) = &self.device else {
            return Ok(());
        };
        while device.next_async_event().is_some() {}
        match self.port_failure() {
            None
            | Some(PortFailure {
                change: PortChange::Down { .. },
                ..
            }) => Ok(()),
            Some(failure) => Err(BlockingError::Port(failure)),
        }
    }

    /// Starts a call: its timeout counts from its first wait.
    pub(crate) fn start(&mut self) {
        self.expires = None;
    }

    /// Returns when the current call, which waits now, must end.
    fn until(&mut self) -> Option<Instant> {
        let Some(timeout) = self.timeout else {
            return self.deadline;
        };
        let expires = *self.expires.get_or_insert_with(|| clock::now() + timeout);
        Some(
            self.deadline
                .map_or(expires, |deadline| deadline.min(expires)),
        )
    }

    pub(crate) fn interrupt_on(&mut self, fd: &impl AsFd) -> Result<(), BlockingError> {
        let fd = fd.as_fd().try_clone_to_owned();
        self.interrupt = Some(fd.map_err(system("descriptor"))?);
        Ok(())
    }

    /// Waits until `look` returns true, the ring's descriptor is readable, or a message arrives over the
    /// control stream.
    pub(crate) fn wait(
        &mut self,
        look: impl FnMut(WaitPhase) -> bool,
    ) -> Result<(), BlockingError> {
        self.wait_with_fd(None, true, Waiter::default(), look)
            .map(drop)
    }

    /// Waits until `fd` has one of `events`. Returns whether it has, or something else ended the wait. Does
    /// not watch the ring.
    pub(crate) fn wait_fd(
        &mut self,
        fd: &impl AsFd,
        events: PollFlags,
    ) -> Result<bool, BlockingError> {
        let waiter = Waiter::new(Duration::ZERO, SpinMode::Yield);
        self.wait_with_fd(Some(PollFd::new(fd, events)), false, waiter, |_| false)
    }

    /// Waits until `source` is readable, as [`wait`](Self::wait) does for the ring. Returns whether it is.
    pub(crate) fn wait_source(
        &mut self,
        source: &impl AsFd,
        look: impl FnMut(WaitPhase) -> bool,
    ) -> Result<bool, BlockingError> {
        let waiter = Waiter::new(Duration::ZERO, SpinMode::Yield);
        let source = PollFd::new(source, PollFlags::IN);
        self.wait_with_fd(Some(source), true, waiter, look)
    }

    /// Checks for the interrupt and for the device's events without waiting: for ends that have not had to wait for long.
    pub(crate) fn check_events(&self) -> Result<(), BlockingError> {
        let is_ready = |fd: BorrowedFd<'_>| {
            let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            match poll(&mut polled, Some(&Timespec::default())) {
                Ok(0) | Err(Errno::INTR) => Ok(false),
                Ok(_) => Ok(true),
                Err(error) => Err(system("waiting")(error.into())),
            }
        };
        if let Some(interrupt) = &self.interrupt
            && is_ready(interrupt.as_fd())?
        {
            return Err(BlockingError::Interrupted);
        }
        match &self.device {
            Some((device, _)) if is_ready(device.async_fd())? => self.look_at_device(),
            _ => Ok(()),
        }
    }

    /// Waits for the control stream alone, once the ring is of no more use.
    pub(crate) fn wait_line(&mut self) -> Result<(), BlockingError> {
        let waiter = Waiter::new(Duration::ZERO, SpinMode::Yield);
        self.wait_with_fd(None, false, waiter, |_| false).map(drop)
    }

    fn wait_with_fd(
        &mut self,
        extra: Option<PollFd<'_>>,
        ring: bool,
        mut waiter: Waiter,
        mut look: impl FnMut(WaitPhase) -> bool,
    ) -> Result<bool, BlockingError> {
        let until = self.until();
        let mut fds = Vec::with_capacity(5);
        let has_extra = extra.is_some();
        fds.extend(extra);
        if let Some(interrupt) = &self.interrupt {
            fds.push(PollFd::new(interrupt, PollFlags::IN));
        }
        let ring_at = fds.len();
        if ring {
            fds.push(PollFd::new(&self.ring, PollFlags::IN));
        }
        let line_at = fds.len();
        if !self.line_ended {
            fds.push(PollFd::new(&self.control, PollFlags::IN));
        }
        let device_at = fds.len();
        if let Some((device, _)) = &self.device {
            fds.push(PollFd::from_borrowed_fd(device.async_fd(), PollFlags::IN));
        }
        let woken = waiter
            .wait_polling(&mut fds, until, &mut look)
            .map_err(system("waiting"))?;
        match woken {
            WakeReason::Ready => return Ok(false),
            WakeReason::Deadline => return Err(BlockingError::Deadline),
            WakeReason::Fd => {}
        }
        let has = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (ready, rang) = (has_extra && has(0), ring && has(ring_at));
        let (control, told) = (line_at < device_at && has(line_at), has(device_at));
        if self.interrupt.is_some() && has(has_extra.into()) {
            return Err(BlockingError::Interrupted);
        }
        self.ring_readable |= rang;
        if control {
            self.drain_line()?;
        }
        if told {
            self.look_at_device()?;
        }
        Ok(ready)
    }

    /// Takes the messages that arrived over the control stream. Fails at the first message beyond the limit, so a peer
    /// that never stops sending costs bounded memory and time.
    pub(crate) fn drain_line(&mut self) -> Result<(), BlockingError> {
        while !self.line_ended {
            match self.control.recv_control() {
                Ok(Some(_)) if self.line_messages.len() == LINE_MESSAGES_MAX => {
                    return Err(BlockingError::TooManyMessages {
                        limit: LINE_MESSAGES_MAX,
                    });
                }
                Ok(Some(message)) => self.line_messages.push_back(message),
                Ok(None) => break,
                Err(NetError::PeerGone) => self.line_ended = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

//! A ring's ends for threads that wait.
//!
//! Each end first tries. Then it polls for as long as a wake-up costs, yielding its core meanwhile. Then it
//! arms its completion channel, polls once more and sleeps: on the channel, on the [`ControlStream`] to the other end
//! (whose end of file means that the peer died), and on an interrupt if one was given. It steps its ring
//! whenever it waits.
//!
//! [`BlockingSender::connect`] and [`BlockingReceiver::connect`] connect a ring that can be waited for. A ring that was
//! connected otherwise must be in [`Mode::Notify`] to be wrapped.

mod waiter;

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;

use headworks_net::{ControlStream, NetError, WaitLimit, WaitPhase};
use headworks_ring::{
    HeldMessage, LengthError, Mode, Receiver, Reservation, RingConfig, RingError, SendError, Sender,
};
use headworks_verbs::{Device, Duration, Instant, PortFailure};

use crate::connect::{self, ConnectError};

pub(crate) use waiter::{EndWaiter, system};

/// A wait ended without what was waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockingError {
    /// The ring could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The other end closed or died.
    #[error("the other end is gone")]
    PeerGone,
    /// The ring is broken.
    #[error(transparent)]
    Broken(RingError),
    /// The device's port lost what the connection uses, or is down and the retries are used up.
    #[error("the connection broke: {0}")]
    Port(PortFailure),
    /// The interrupt's descriptor was readable.
    #[error("interrupted")]
    Interrupted,
    /// The deadline passed, or the call waited as long as its timeout allows.
    #[error("waiting for the other end: the deadline passed")]
    Deadline,
    /// The ring is not in [`Mode::Notify`], so a thread cannot sleep on it.
    #[error("this ring cannot be waited for: it must be made with Mode::Notify")]
    NotNotify,
    /// The message can never be sent on this ring.
    #[error(transparent)]
    Length(LengthError),
    /// The control stream to the other end failed.
    #[error(transparent)]
    ControlStream(NetError),
    /// The other end sent too many messages over the control stream, which is not read while the ring is in use.
    #[error(
        "the other end sent more than {limit} messages over the line, which nobody reads while the ring is in use"
    )]
    TooManyMessages {
        /// Number of messages that are kept.
        limit: usize,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Cause of the failure.
        source: std::io::Error,
    },
}

impl From<RingError> for BlockingError {
    fn from(error: RingError) -> Self {
        if error.is_peer_gone() {
            Self::PeerGone
        } else {
            Self::Broken(error)
        }
    }
}

impl From<SendError> for BlockingError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Length(error) => Self::Length(error),
            SendError::Broken(error) => error.into(),
            // Callers wait while the ring is full and never convert that error.
            _ => Self::System {
                what: "sending",
                source: std::io::ErrorKind::WouldBlock.into(),
            },
        }
    }
}

impl From<NetError> for BlockingError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::PeerGone => Self::PeerGone,
            NetError::Interrupted => Self::Interrupted,
            NetError::Deadline { .. } => Self::Deadline,
            error => Self::ControlStream(error),
        }
    }
}

/// Returns `config` for a ring whose ends can sleep.
fn waited_for(config: &RingConfig) -> RingConfig {
    RingConfig {
        mode: Mode::Notify,
        ..config.clone()
    }
}

/// The sending end of a ring, for a thread that waits.
///
/// - *Sending*: [`BlockingSender::send`] copies a message; [`BlockingSender::reserve`] lends its place
///   in the ring to be filled. Both wait for room.
/// - *Before waiting for anything else*: [`BlockingSender::flush`].
/// - *Closing*: [`BlockingSender::close`] waits until everything was consumed.
pub struct BlockingSender {
    sender: Sender,
    waiter: EndWaiter,
}

impl BlockingSender {
    /// Makes the sending end of a ring and waits for the other side of the control stream, which makes the receiver, as
    /// [`connect::sender`] does. The ring is in [`Mode::Notify`], whatever `config` says, so the other end may wait in
    /// any way. A ring that is connected in this way can always be waited for.
    ///
    /// # Errors
    ///
    /// [`BlockingError::Connect`]. [`BlockingError::System`] if a descriptor cannot be copied.
    pub fn connect<'u>(
        device: &Arc<dyn Device>,
        config: &RingConfig,
        mut control: ControlStream,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<Self, BlockingError> {
        let sender = connect::sender(device, &waited_for(config), &mut control, until)?;
        Self::new(sender, control)
    }

    /// Wraps a connected ring and the control stream over which it was connected.
    ///
    /// # Errors
    ///
    /// [`BlockingError::NotNotify`], [`BlockingError::System`].
    pub fn new(sender: Sender, control: ControlStream) -> Result<Self, BlockingError> {
        let fd = match sender.fd() {
            Some(fd) if sender.ring().mode == Mode::Notify => fd.try_clone_to_owned(),
            _ => return Err(BlockingError::NotNotify),
        };
        let waiter = EndWaiter::new(fd.map_err(system("descriptor"))?, control);
        Ok(Self { sender, waiter })
    }

    /// Ends waits with [`BlockingError::Interrupted`] once `fd` is readable.
    pub fn interrupt_on(&mut self, fd: &impl AsFd) -> Result<(), BlockingError> {
        self.waiter.interrupt_on(fd)
    }

    /// Ends waits with [`BlockingError::Deadline`] at this instant; never, if it is `None`.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.waiter.deadline = deadline;
    }

    /// Ends each call with [`BlockingError::Deadline`] once it has waited this long; never, if it is `None`. A
    /// [deadline](Self::set_deadline) ends the call if it is earlier.
    pub fn set_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.waiter.timeout = timeout.map(Duration::from);
    }

    /// Sends a copy of `message` once there is room. [`BlockingError::TooManyMessages`] is returned at once,
    /// even if earlier messages are not delivered yet.
    pub fn send(&mut self, message: &[u8]) -> Result<(), BlockingError> {
        match self.sender.try_send(message) {
            Ok(()) => return Ok(()),
            Err(SendError::Full) => {}
            Err(error) => return Err(error.into()),
        }
        self.waiter.start();
        self.wait_for_room(message.len())?;
        Ok(self.sender.try_send(message)?)
    }

    /// Lends the place of a message of `len` bytes once there is room.
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>, BlockingError> {
        self.waiter.start();
        self.wait_for_room(len)?;
        Ok(self.sender.try_reserve(len)?)
    }

    /// Publishes everything that was sent.
    pub fn flush(&mut self) -> Result<(), BlockingError> {
        self.waiter.start();
        self.flush_started()
    }

    fn flush_started(&mut self) -> Result<(), BlockingError> {
        while !self.sender.flush()? {
            let sender = &mut self.sender;
            self.waiter.wait(|phase| {
                if phase == WaitPhase::Arm {
                    sender.arm();
                }
                !matches!(sender.flush(), Ok(false))
            })?;
            self.on_wake_up()?;
        }
        Ok(())
    }

    /// Publishes everything and waits until the receiver has consumed it. Call it before the sender is dropped.
    ///
    /// # Errors
    ///
    /// The sender stays as it is: [`Sender::consumed`] of [`BlockingSender::ring`] tells how many messages the receiver
    /// has consumed, and the call can be repeated after [`BlockingError::Deadline`] or [`BlockingError::Interrupted`].
    pub fn close(&mut self) -> Result<(), BlockingError> {
        self.waiter.start();
        let flushed = self.flush_started();
        // A receiver that has consumed everything may leave, so a failed flush is then no error.
        if !self.sender.is_drained() {
            flushed?;
        }
        while !self.sender.is_drained() {
            let sender = &mut self.sender;
            self.waiter.wait(|phase| {
                if phase == WaitPhase::Arm {
                    sender.arm();
                }
                sender.step().is_err() || sender.is_drained()
            })?;
            let stepped = self.sender.step();
            if self.sender.is_drained() {
                break;
            }
            stepped?;
            self.on_wake_up()?;
        }
        Ok(())
    }

    /// Returns the ring and the control stream. Dropping the ring ends it after the messages already published.
    pub fn into_parts(self) -> (Sender, ControlStream) {
        (self.sender, self.waiter.control)
    }

    /// Returns the sender itself, for its calls that never wait.
    pub fn ring(&mut self) -> &mut Sender {
        &mut self.sender
    }

    pub(crate) fn waiter(&mut self) -> &mut EndWaiter {
        &mut self.waiter
    }

    /// Waits until `source` is readable. Returns whether it is; if not, something else ended the wait, and nothing has failed. Steps
    /// the ring meanwhile, to notice when it breaks.
    pub(crate) fn wait_for_source(&mut self, source: &impl AsFd) -> Result<bool, BlockingError> {
        let sender = &mut self.sender;
        let is_ready = self.waiter.wait_source(source, |phase| {
            if phase == WaitPhase::Arm {
                sender.arm();
            }
            sender.step().is_err()
        })?;
        self.sender.step()?;
        self.on_wake_up()?;
        Ok(is_ready)
    }

    /// Waits for a message of the other side over the control stream. Steps the ring meanwhile, to notice when it
    /// breaks: a sender that has sent everything makes no other calls on it, and the other side may not
    /// notice.
    pub(crate) fn drain_line(&mut self) -> Result<(), BlockingError> {
        let sender = &mut self.sender;
        self.waiter.wait(|phase| {
            if phase == WaitPhase::Arm {
                sender.arm();
            }
            sender.step().is_err()
        })?;
        // A message over the control stream takes precedence over a later failure of the ring.
        if !self.waiter.line_messages.is_empty() {
            return Ok(());
        }
        self.sender.step()?;
        self.on_wake_up()
    }

    fn wait_for_room(&mut self, len: usize) -> Result<(), BlockingError> {
        loop {
            match self.sender.try_reserve(len) {
                Ok(_) => return Ok(()),
                Err(SendError::Full) => {}
                Err(error) => return Err(error.into()),
            }
            let sender = &mut self.sender;
            self.waiter.wait(|phase| {
                if phase == WaitPhase::Arm {
                    sender.arm();
                }
                sender.step().is_err() || !matches!(sender.try_reserve(len), Err(SendError::Full))
            })?;
            self.on_wake_up()?;
        }
    }

    /// Drains the events that woke the thread, and checks that the peer lives.
    fn on_wake_up(&mut self) -> Result<(), BlockingError> {
        if std::mem::take(&mut self.waiter.ring_readable) {
            self.sender.drain_events();
        }
        if self.waiter.line_ended {
            return Err(BlockingError::PeerGone);
        }
        Ok(())
    }
}

/// The receiving end of a ring, for a thread that waits.
pub struct BlockingReceiver {
    receiver: Receiver,
    waiter: EndWaiter,
}

impl BlockingReceiver {
    /// Makes the receiving end of a ring and waits for the other side of the control stream, which makes the sender, as
    /// [`connect::receiver`] does. The ring is in [`Mode::Notify`], whatever `config` says, so the other end may wait in
    /// any way. A ring that is connected in this way can always be waited for.
    ///
    /// # Errors
    ///
    /// [`BlockingError::Connect`]. [`BlockingError::System`] if a descriptor cannot be copied.
    pub fn connect<'u>(
        device: &Arc<dyn Device>,
        config: &RingConfig,
        mut control: ControlStream,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<Self, BlockingError> {
        let receiver = connect::receiver(device, &waited_for(config), &mut control, until)?;
        Self::new(receiver, control)
    }

    /// Wraps a connected ring and the control stream over which it was connected.
    ///
    /// # Errors
    ///
    /// [`BlockingError::NotNotify`], [`BlockingError::System`].
    pub fn new(receiver: Receiver, control: ControlStream) -> Result<Self, BlockingError> {
        let fd = match receiver.fd() {
            Some(fd) if receiver.ring().mode == Mode::Notify => fd.try_clone_to_owned(),
            _ => return Err(BlockingError::NotNotify),
        };
        let waiter = EndWaiter::new(fd.map_err(system("descriptor"))?, control);
        Ok(Self { receiver, waiter })
    }

    /// Ends waits with [`BlockingError::Interrupted`] once `fd` is readable.
    pub fn interrupt_on(&mut self, fd: &impl AsFd) -> Result<(), BlockingError> {
        self.waiter.interrupt_on(fd)
    }

    /// Ends waits with [`BlockingError::Deadline`] at this instant; never, if it is `None`.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.waiter.deadline = deadline;
    }

    /// Ends each call with [`BlockingError::Deadline`] once it has waited this long; never, if it is `None`. A
    /// [deadline](Self::set_deadline) ends the call if it is earlier.
    pub fn set_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.waiter.timeout = timeout.map(Duration::from);
    }

    /// Waits for the next message and lends it in place; dropping it releases it. Messages published before
    /// the peer left are delivered before [`BlockingError::PeerGone`]. [`BlockingError::TooManyMessages`] is
    /// returned at once, before the messages still in the ring.
    pub fn recv(&mut self) -> Result<Received<'_>, BlockingError> {
        let held = self.take()?;
        Ok(Received::new(&mut self.receiver, held))
    }

    /// Waits as [`BlockingReceiver::recv`] does, no longer than `timeout`, whatever [`set_timeout`](Self::set_timeout)
    /// allows.
    pub fn recv_timeout(
        &mut self,
        timeout: std::time::Duration,
    ) -> Result<Received<'_>, BlockingError> {
        let usual = self.waiter.timeout.replace(timeout.into());
        let taken = self.take();
        self.waiter.timeout = usual;
        Ok(Received::new(&mut self.receiver, taken?))
    }

    /// Like [`BlockingReceiver::recv`], but the caller releases the message on [`BlockingReceiver::ring`].
    pub fn take(&mut self) -> Result<HeldMessage, BlockingError> {
        self.waiter.start();
        loop {
            if let Some(held) = self.receiver.try_take()? {
                return Ok(held);
            }
            if self.waiter.line_ended {
                return Err(BlockingError::PeerGone);
            }
            let receiver = &mut self.receiver;
            self.waiter.wait(|phase| {
                if phase == WaitPhase::Arm {
                    receiver.arm();
                    // A waiting receiver returns all free space to the sender. If that fails, the step
                    // reports it.
                    let _ = receiver.push_head();
                }
                !matches!(receiver.step(), Ok(false))
            })?;
            if std::mem::take(&mut self.waiter.ring_readable) {
                self.receiver.drain_events();
            }
        }
    }

    /// Frees the ring's memory and returns the control stream. Tells the sender what was consumed, but a slow device
    /// may not transmit that before the ring is gone. A caller that must let the sender close keeps receiving
    /// until [`BlockingError::PeerGone`].
    pub fn close(mut self) -> ControlStream {
        // If the ring is broken, the sender cannot be told.
        let _ = self.receiver.push_head();
        self.waiter.control
    }

    /// Returns the ring and the control stream.
    pub fn into_parts(self) -> (Receiver, ControlStream) {
        (self.receiver, self.waiter.control)
    }

    /// Returns the receiver itself, for its calls that never wait.
    pub fn ring(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    pub(crate) fn waiter(&mut self) -> &mut EndWaiter {
        &mut self.waiter
    }

    pub(crate) fn parts(&mut self) -> (&Receiver, &mut EndWaiter) {
        (&self.receiver, &mut self.waiter)
    }
}

/// A message lent in place in the ring; released when dropped.
pub struct Received<'r> {
    receiver: &'r mut Receiver,
    held: Option<HeldMessage>,
}

impl<'r> Received<'r> {
    pub(crate) fn new(receiver: &'r mut Receiver, held: HeldMessage) -> Self {
        let held = Some(held);
        Self { receiver, held }
    }
}

impl Deref for Received<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.held
            .as_ref()
            .map_or(&[], |held| self.receiver.bytes(held))
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // A failed push breaks the ring, which the next call reports.
            let _ = self.receiver.release(held);
        }
    }
}

//! A ring's ends for threads that want to wait.
//!
//! Each end tries first, then looks around for as long as a wake-up costs while it offers its core to
//! others, then arms its completion channel, looks once more and sleeps: on the channel, on the
//! [`Line`] to the other end (whose end is the peer's death), and on an interrupt where one was given.
//! It steps its ring whenever it waits. The ring must be in [`Mode::Notify`].

mod waiter;

use std::ops::Deref;
use std::os::fd::AsFd;

use headworks_net::{Line, NetError, WaitPhase};
use headworks_ring::{
    Held, LengthError, Mode, Receiver, Reservation, RingError, SendError, Sender,
};
use headworks_verbs::Instant;

pub(crate) use waiter::{EndWaiter, system};

/// A wait ended without what was waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockingError {
    /// The other end closed or died.
    #[error("the other end is gone")]
    PeerGone,
    /// The ring is broken.
    #[error(transparent)]
    Broken(RingError),
    /// The interrupt's descriptor was readable.
    #[error("interrupted")]
    Interrupted,
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The ring cannot be slept on.
    #[error("this ring cannot be waited for: it must be made with Mode::Notify")]
    NotNotify,
    /// The message can never be sent on this ring.
    #[error(transparent)]
    Length(LengthError),
    /// The line to the other end failed.
    #[error(transparent)]
    Line(NetError),
    /// The other end talks on over the line, where nobody listens while the ring is in use.
    #[error(
        "the other end sent more than {limit} messages over the line, which nobody reads while the ring is in use"
    )]
    TooManyMessages {
        /// How many are kept.
        limit: usize,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
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
            // Full is waited for.
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
            error => Self::Line(error),
        }
    }
}

/// The sending end of a ring, for a thread that waits.
///
/// - *Sending*: [`BlockingSender::send`] copies a message, [`BlockingSender::reserve`] lends its place
///   to be filled; both wait for room.
/// - *Before waiting for anything else*: [`BlockingSender::flush`].
/// - *The end*: [`BlockingSender::close`] waits until everything was consumed.
pub struct BlockingSender {
    sender: Sender,
    waiter: EndWaiter,
}

impl BlockingSender {
    /// Over a connected ring, and the line it was connected on.
    pub fn new(sender: Sender, line: Line) -> Result<Self, BlockingError> {
        let fd = match sender.fd() {
            Some(fd) if sender.ring().mode == Mode::Notify => fd.try_clone_to_owned(),
            _ => return Err(BlockingError::NotNotify),
        };
        let waiter = EndWaiter::new(fd.map_err(system("descriptor"))?, line);
        Ok(Self { sender, waiter })
    }

    /// Waits end with [`BlockingError::Interrupted`] once `fd` is readable.
    pub fn interrupt_on(&mut self, fd: &impl AsFd) -> Result<(), BlockingError> {
        self.waiter.interrupt_on(fd)
    }

    /// Waits end with [`BlockingError::Deadline`] at this instant; `None` for never.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.waiter.deadline = deadline;
    }

    /// Sends a copy of `message` once there is room. [`BlockingError::TooManyMessages`] comes at once, whatever
    /// of what was sent is not delivered yet.
    pub fn send(&mut self, message: &[u8]) -> Result<(), BlockingError> {
        match self.sender.try_send(message) {
            Ok(()) => return Ok(()),
            Err(SendError::Full) => {}
            Err(error) => return Err(error.into()),
        }
        self.wait_for_room(message.len())?;
        Ok(self.sender.try_send(message)?)
    }

    /// Lends the place of a message of `len` bytes once there is room.
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>, BlockingError> {
        self.wait_for_room(len)?;
        Ok(self.sender.try_reserve(len)?)
    }

    /// Publishes everything that was sent.
    pub fn flush(&mut self) -> Result<(), BlockingError> {
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

    /// Publishes everything and waits until the receiver has consumed it. Gives the line back.
    pub fn close(mut self) -> Result<Line, BlockingError> {
        let flushed = self.flush();
        // A receiver that has consumed everything may go.
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
        Ok(self.waiter.line)
    }

    /// The sender itself, for what never waits.
    pub fn ring(&mut self) -> &mut Sender {
        &mut self.sender
    }

    pub(crate) fn waiter(&mut self) -> &mut EndWaiter {
        &mut self.waiter
    }

    /// Waits for the other side to say something over the line, and sees meanwhile that the ring breaks: whoever
    /// has sent everything asks it for nothing more, and the other side need not notice.
    pub(crate) fn drain_line(&mut self) -> Result<(), BlockingError> {
        let sender = &mut self.sender;
        self.waiter.wait(|phase| {
            if phase == WaitPhase::Arm {
                sender.arm();
            }
            sender.step().is_err()
        })?;
        // What was said counts for more than what became of the ring since.
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

    /// After a wait: the events that woke us, and whether the peer lives.
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
    /// Over a connected ring, and the line it was connected on.
    pub fn new(receiver: Receiver, line: Line) -> Result<Self, BlockingError> {
        let fd = match receiver.fd() {
            Some(fd) if receiver.ring().mode == Mode::Notify => fd.try_clone_to_owned(),
            _ => return Err(BlockingError::NotNotify),
        };
        let waiter = EndWaiter::new(fd.map_err(system("descriptor"))?, line);
        Ok(Self { receiver, waiter })
    }

    /// Waits end with [`BlockingError::Interrupted`] once `fd` is readable.
    pub fn interrupt_on(&mut self, fd: &impl AsFd) -> Result<(), BlockingError> {
        self.waiter.interrupt_on(fd)
    }

    /// Waits end with [`BlockingError::Deadline`] at this instant; `None` for never.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.waiter.deadline = deadline;
    }

    /// The next message where it lies, once it is there; dropping it releases it. What was published
    /// before the peer went is delivered before [`BlockingError::PeerGone`] is; not so with
    /// [`BlockingError::TooManyMessages`], which comes at once, before what is still in the ring.
    pub fn recv(&mut self) -> Result<Received<'_>, BlockingError> {
        let held = self.take()?;
        Ok(Received::new(&mut self.receiver, held))
    }

    /// [`BlockingReceiver::recv`], to be released on [`BlockingReceiver::ring`].
    pub fn take(&mut self) -> Result<Held, BlockingError> {
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
                    // Who waits keeps no space back; what fails here, the step reports.
                    let _ = receiver.push_head();
                }
                !matches!(receiver.step(), Ok(false))
            })?;
            if std::mem::take(&mut self.waiter.ring_readable) {
                self.receiver.drain_events();
            }
        }
    }

    /// Gives the ring's memory back, and the line. Tells the sender what was consumed; a device that is
    /// slow may not get that out before the ring is gone. Who must know that a sender could close waits on
    /// until [`BlockingError::PeerGone`].
    pub fn close(mut self) -> Line {
        // A broken ring has nobody to tell.
        let _ = self.receiver.push_head();
        self.waiter.line
    }

    /// The receiver itself, for what never waits.
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

/// A message where it lies in the ring; released when dropped.
pub struct Received<'r> {
    receiver: &'r mut Receiver,
    held: Option<Held>,
}

impl<'r> Received<'r> {
    pub(crate) fn new(receiver: &'r mut Receiver, held: Held) -> Self {
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

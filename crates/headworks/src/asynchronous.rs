//! A ring's ends for tasks of the tokio runtime. With the cargo feature `tokio`.
//!
//! What [`blocking`](crate::blocking) is for threads this is for tasks: each end tries, and where it
//! has to wait it arms its completion channel, looks once more and leaves the thread to other tasks
//! until the channel's descriptor is readable, or the [`Line`] to the other end says that the peer
//! is gone. The ring must be in [`Mode::Notify`]. The other end may wait in any way, or not at all:
//! the two do not have to be of the same kind.
//!
//! - [`AsyncSender`] has `send` and `reserve`, and is a [`Sink`] of anything that is bytes.
//! - [`AsyncReceiver`] has `recv`, which lends messages where they lie, and is a [`Stream`] of copies.
//!
//! ```
//! use headworks::asynchronous::{AsyncReceiver, AsyncSender};
//! use headworks::blocking::BlockingError;
//! use headworks::connect;
//! use headworks::ring::{Mode, RingConfig};
//! use headworks::net::{Line, clock};
//! use headworks::verbs::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let fabric = headworks::testing::Fabric::new(std::env::temp_dir())?;
//! # let (near, far) = (fabric.open("soft:h1")?, fabric.open("soft:h2")?);
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! runtime.block_on(async {
//!     let config = RingConfig { mode: Mode::Notify, ..RingConfig::variable(128, 256) };
//!     // Two processes have a line each by `net::line`, and this task one end of the ring.
//!     let (mut here, mut there) = Line::pair()?;
//!     // Meeting and connecting wait for the other side: once, and not on a thread of tasks.
//!     let deadline = clock::now() + Duration::from_secs(10);
//!     let ours = config.clone();
//!     let sender = tokio::task::spawn_blocking(move || {
//!         let ring = connect::sender(&near, &ours, &mut here, deadline);
//!         ring.map(|ring| (ring, here))
//!     });
//!     let receiver = tokio::task::spawn_blocking(move || {
//!         let ring = connect::receiver(&far, &config, &mut there, deadline);
//!         ring.map(|ring| (ring, there))
//!     });
//!     let (ring, line) = sender.await??;
//!     let mut sender = AsyncSender::new(ring, line)?;
//!     let (ring, line) = receiver.await??;
//!     let mut receiver = AsyncReceiver::new(ring, line)?;
//!
//!     let sending = tokio::spawn(async move {
//!         for number in 0..10_000u64 {
//!             sender.send(&number.to_le_bytes()).await?;
//!         }
//!         sender.close().await
//!     });
//!     let mut sum = 0;
//!     loop {
//!         match receiver.recv().await {
//!             Ok(message) => sum += u64::from_le_bytes((&*message).try_into()?),
//!             Err(BlockingError::PeerGone) => break,
//!             Err(error) => return Err(error.into()),
//!         }
//!     }
//!     assert_eq!(sum, 49_995_000);
//!     sending.await??;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Waiting
//!
//! A poll does a bounded amount of work and never sleeps, also not shortly: who waits costs nothing
//! until it is woken. Each message counts against tokio's cooperative budget, so that an end that
//! always has something to do leaves other tasks their turn. `send` waits while there is no room; the
//! [`Sink`] is not ready then.
//!
//! As with any ring, what α and β hold back is published by [`AsyncSender::flush`] or
//! [`AsyncSender::close`] (the sink's do the same), or when the ring is full. Flush before waiting
//! for an answer.
//!
//! # Cancellation
//!
//! Every future here may be dropped at any time, as `select!` and timeouts do, and the call repeated:
//!
//! - `recv`, `take`, and the stream: a message is taken in the poll that hands it out, so a future
//!   that was dropped has taken none. What was lent stays until it is dropped.
//! - `send`: the message is in the ring once the future is ready. A future that was dropped before has
//!   sent nothing of it.
//! - `reserve`: a place is taken by [`Reservation::commit`], not before.
//! - `flush`, `close`: nothing is undone; call again.
//! - The sink keeps at most one message, which `start_send` accepted and for which there was no room
//!   after all. It goes first with whatever is called next, and is lost only with the sink.
//!
//! # The end
//!
//! What was published before the peer went is delivered, then [`BlockingError::PeerGone`] is said: by
//! every call of `recv` from then on, once by the stream, which has ended then. A peer that closes and
//! one that dies look alike; a protocol that must tell them apart sends a last message.
//! `BlockingError::Interrupted` and `Deadline` are not said here: `select!` and timeouts end waits.
//!
//! # Why tokio
//!
//! Who sleeps on descriptors needs a reactor, and tokio's is the one that most programs have already;
//! `AsyncFd` takes the two descriptors as they are. Nothing of it is built without the feature. For
//! another reactor, wait as this module does, by what the ring itself offers
//! ([`Sender::fd`], [`Sender::arm`], [`Sender::step`], [`Sender::drain_events`], the receiver's
//! alike): arm, look once more, wait, take the events, look.

mod waiter;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use headworks_net::Line;
#[cfg(doc)]
use headworks_ring::Mode;
use headworks_ring::{Held, Receiver, Reservation, SendError, Sender};
use tokio::task::coop::poll_proceed;

use crate::blocking::{BlockingError, Received};
use waiter::TaskWaiter;

/// How often one poll arms, looks and is rung for before it leaves the thread to others.
const ATTEMPTS_BEFORE_YIELD: u32 = 4;

/// The sending end of a ring, for a task.
///
/// - *Sending*: [`AsyncSender::send`] copies a message, [`AsyncSender::reserve`] lends its place to be
///   filled; both wait for room. Or as a [`Sink`].
/// - *Before waiting for anything else*: [`AsyncSender::flush`].
/// - *The end*: [`AsyncSender::close`] waits until everything was consumed. Dropping it ends the ring
///   behind what was published.
pub struct AsyncSender {
    outbox: UnsentMessage,
    waiter: TaskWaiter,
}

/// The ring, and what is to go before anything else.
struct UnsentMessage {
    sender: Sender,
    /// A message that the sink accepted and the ring had no room for.
    kept: Option<Vec<u8>>,
}

impl UnsentMessage {
    /// Sends `message`, if there is room.
    fn offer(&mut self, message: &[u8]) -> Result<bool, BlockingError> {
        match self.sender.try_send(message) {
            Ok(()) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is room for a message of `len` bytes.
    fn has_room(&mut self, len: usize) -> Result<bool, BlockingError> {
        match self.sender.try_reserve(len) {
            Ok(_) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what was kept. Says whether nothing is kept any more.
    fn clear(&mut self) -> Result<bool, BlockingError> {
        let sent = match &self.kept {
            None => return Ok(true),
            Some(message) => match self.sender.try_send(message) {
                Err(SendError::Full) => return Ok(false),
                sent => sent,
            },
        };
        // What can never be sent is not tried for ever.
        self.kept = None;
        Ok(sent.map(|()| true)?)
    }

    fn flush(&mut self) -> Result<bool, BlockingError> {
        Ok(self.clear()? && self.sender.flush()?)
    }

    /// Whether everything was consumed; publishes it.
    fn drain(&mut self) -> Result<bool, BlockingError> {
        let flushed = self.flush();
        // A peer that has consumed everything may go.
        if self.kept.is_none() && self.sender.is_drained() {
            return Ok(true);
        }
        flushed.map(|_| false)
    }
}

impl AsyncSender {
    /// Over a connected ring, and the line it was connected on.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O is enabled.
    pub fn new(sender: Sender, line: Line) -> Result<Self, BlockingError> {
        let waiter = TaskWaiter::new(sender.fd(), sender.ring().mode, line)?;
        let kept = None;
        let outbox = UnsentMessage { sender, kept };
        Ok(Self { outbox, waiter })
    }

    /// Sends a copy of `message` once there is room.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), BlockingError> {
        poll_fn(|cx| self.poll_until(cx, |outbox| Ok(outbox.clear()? && outbox.offer(message)?)))
            .await
    }

    /// Lends the place of a message of `len` bytes once there is room.
    pub async fn reserve(&mut self, len: usize) -> Result<Reservation<'_>, BlockingError> {
        poll_fn(|cx| self.poll_until(cx, |outbox| Ok(outbox.clear()? && outbox.has_room(len)?)))
            .await?;
        Ok(self.outbox.sender.try_reserve(len)?)
    }

    /// Publishes everything that was sent.
    pub async fn flush(&mut self) -> Result<(), BlockingError> {
        poll_fn(|cx| self.poll_until(cx, UnsentMessage::flush)).await
    }

    /// Publishes everything and waits until the receiver has consumed it.
    pub async fn close(&mut self) -> Result<(), BlockingError> {
        poll_fn(|cx| self.poll_until(cx, UnsentMessage::drain)).await
    }

    /// Gives the ring and the line back. What [`Sink`] kept for want of room is lost: flush before.
    pub fn into_parts(self) -> (Sender, Line) {
        (self.outbox.sender, self.waiter.into_line())
    }

    /// The sender itself, for what never waits.
    pub fn ring(&mut self) -> &mut Sender {
        &mut self.outbox.sender
    }

    /// Ready once `look` says yes; wakes the task when to look again.
    fn poll_until(
        &mut self,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&mut UnsentMessage) -> Result<bool, BlockingError>,
    ) -> Poll<Result<(), BlockingError>> {
        let turn = ready!(poll_proceed(cx));
        for _ in 0..ATTEMPTS_BEFORE_YIELD {
            if look(&mut self.outbox)? {
                turn.made_progress();
                return Poll::Ready(Ok(()));
            }
            self.outbox.sender.arm();
            let stepped = self.outbox.sender.step();
            if look(&mut self.outbox)? {
                turn.made_progress();
                return Poll::Ready(Ok(()));
            }
            stepped?;
            // Only what a step behind it did not find is not there: the peer may have consumed all, and gone.
            if self.waiter.is_gone() {
                return Poll::Ready(Err(BlockingError::PeerGone));
            }
            let sender = &mut self.outbox.sender;
            ready!(self.waiter.poll_wake_up(cx, || sender.drain_events()))?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Ready while there is room for a message of one slot. Closing waits until everything was consumed.
impl<M: AsRef<[u8]>> Sink<M> for AsyncSender {
    type Error = BlockingError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), BlockingError>> {
        let has_room = |outbox: &mut UnsentMessage| Ok(outbox.clear()? && !outbox.sender.is_full());
        self.get_mut().poll_until(cx, has_room)
    }

    fn start_send(self: Pin<&mut Self>, message: M) -> Result<(), BlockingError> {
        let (outbox, message) = (&mut self.get_mut().outbox, message.as_ref());
        if !outbox.clear()? {
            return Err(BlockingError::System {
                what: "a message for a sink that was not ready",
                source: std::io::ErrorKind::WouldBlock.into(),
            });
        }
        if !outbox.offer(message)? {
            outbox.kept = Some(message.to_vec());
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), BlockingError>> {
        self.get_mut().poll_until(cx, UnsentMessage::flush)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), BlockingError>> {
        self.get_mut().poll_until(cx, UnsentMessage::drain)
    }
}

/// The receiving end of a ring, for a task.
///
/// - *Receiving*: [`AsyncReceiver::recv`] lends the next message where it lies, [`AsyncReceiver::take`]
///   hands it out to be released later; both wait for it. Or as a [`Stream`] of copies.
/// - *The end*: [`AsyncReceiver::close`], so that the sender learns what was consumed.
pub struct AsyncReceiver {
    receiver: Receiver,
    waiter: TaskWaiter,
    /// The stream has said why it ended.
    ended: bool,
}

impl AsyncReceiver {
    /// Over a connected ring, and the line it was connected on.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O is enabled.
    pub fn new(receiver: Receiver, line: Line) -> Result<Self, BlockingError> {
        let waiter = TaskWaiter::new(receiver.fd(), receiver.ring().mode, line)?;
        Ok(Self {
            receiver,
            waiter,
            ended: false,
        })
    }

    /// The next message where it lies, once it is there; dropping it releases it. What was published
    /// before the peer went is delivered before [`BlockingError::PeerGone`] is.
    pub async fn recv(&mut self) -> Result<Received<'_>, BlockingError> {
        let held = self.take().await?;
        Ok(Received::new(&mut self.receiver, held))
    }

    /// [`AsyncReceiver::recv`], to be released on [`AsyncReceiver::ring`].
    pub async fn take(&mut self) -> Result<Held, BlockingError> {
        poll_fn(|cx| self.poll_take(cx)).await
    }

    /// Gives the ring and the line back.
    pub fn into_parts(self) -> (Receiver, Line) {
        (self.receiver, self.waiter.into_line())
    }

    /// Gives the ring's memory back, and the line. Tells the sender what was consumed; a device that is
    /// slow may not get that out before the ring is gone. Who must know that a sender could close waits on
    /// until [`BlockingError::PeerGone`].
    pub fn close(mut self) -> Line {
        // A broken ring has nobody to tell.
        let _ = self.receiver.push_head();
        self.waiter.into_line()
    }

    /// The receiver itself, for what never waits.
    pub fn ring(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<Held, BlockingError>> {
        let turn = ready!(poll_proceed(cx));
        for _ in 0..ATTEMPTS_BEFORE_YIELD {
            if let Some(held) = self.receiver.try_take()? {
                turn.made_progress();
                return Poll::Ready(Ok(held));
            }
            if self.waiter.is_gone() {
                return Poll::Ready(Err(BlockingError::PeerGone));
            }
            self.receiver.arm();
            // Who waits keeps no space back; what fails here, the step reports.
            let _ = self.receiver.push_head();
            if self.receiver.step()? {
                continue;
            }
            let receiver = &mut self.receiver;
            ready!(self.waiter.poll_wake_up(cx, || receiver.drain_events()))?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Copies of the messages; the error that ends the ring; then nothing.
impl Stream for AsyncReceiver {
    type Item = Result<Vec<u8>, BlockingError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let taken = ready!(this.poll_take(cx));
        this.ended = taken.is_err();
        let copied = taken.map(|held| Received::new(&mut this.receiver, held).to_vec());
        Poll::Ready(Some(copied))
    }
}

//! A ring's ends, and streams of the service, for tasks of the tokio runtime. Requires the cargo feature `tokio`.
//!
//! This module does for tasks what [`blocking`](crate::blocking) does for threads. Each end first tries. If
//! it has to wait, it arms its completion channel, polls once more and yields the thread to other tasks until
//! the channel's descriptor is readable, or the [`ControlStream`] to the other end shows that the peer is gone. The
//! ring must be in [`Mode::Notify`]. The other end may wait in any way or not at all: the two ends do not
//! have to be of the same kind.
//!
//! - [`AsyncSender`] has `send` and `reserve`, and is a [`Sink`] of anything that is bytes.
//! - [`AsyncReceiver`] has `recv`, which lends messages in place, and is a [`Stream`] of copies.
//!
//! With the feature `daemon`, [`AsyncStream`] and [`AsyncListener`] wrap a stream and a listener of the
//! [`service`](crate::service); [`AsyncReader`] and [`AsyncWriter`] are the two halves of a stream. The rest of this page is about rings.
//!
//! ```
//! use headworks::asynchronous::{AsyncReceiver, AsyncSender};
//! use headworks::blocking::{BlockingError, BlockingReceiver, BlockingSender};
//! use headworks::ring::RingConfig;
//! use headworks::net::ControlStream;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let fabric = headworks::testing::Fabric::new(std::env::temp_dir())?;
//! # let (near, far) = (fabric.open("soft:h1")?, fabric.open("soft:h2")?);
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! runtime.block_on(async {
//!     let config = RingConfig::variable(128, 256);
//!     // In two processes, each gets its control from `net::control`, and a task has one end of the ring.
//!     let (here, there) = ControlStream::pair()?;
//!     // Connecting waits for the other side: do it once, outside the threads that run tasks.
//!     let limit = Duration::from_secs(10);
//!     let ours = config.clone();
//!     let sender = tokio::task::spawn_blocking(move || {
//!         BlockingSender::connect(&near, &ours, here, limit)
//!     });
//!     let receiver = tokio::task::spawn_blocking(move || {
//!         BlockingReceiver::connect(&far, &config, there, limit)
//!     });
//!     let mut sender = AsyncSender::try_from(sender.await??)?;
//!     let mut receiver = AsyncReceiver::try_from(receiver.await??)?;
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
//! A poll does a bounded amount of work and never sleeps, not even briefly: a waiting task costs nothing
//! until it is woken. Each message counts against tokio's cooperative budget, so an end that is always busy
//! leaves time for other tasks. `send` waits while there is no room; the [`Sink`] is not ready then.
//!
//! As with any ring, messages that α and β hold back are published by [`AsyncSender::flush`] or
//! [`AsyncSender::close`] (or the sink's flush and close), or when the ring is full. Flush before waiting for
//! an answer.
//!
//! # Cancellation
//!
//! Every future here may be dropped at any time, as `select!` and timeouts do, and the call repeated:
//!
//! - `recv`, `take`, and the stream: a message is taken in the poll that returns it, so a dropped future has
//!   taken none. A lent message stays valid until it is dropped.
//! - `send`: the message is in the ring once the future is ready. A future dropped before that has sent
//!   nothing of it.
//! - `reserve`: a place is taken only by [`Reservation::commit`].
//! - `flush`, `close`: nothing is undone; call again.
//! - The sink keeps at most one message, which `start_send` accepted although the ring turned out to have no
//!   room. It is sent first by the next call, and is lost only with the sink.
//!
//! # The end
//!
//! Messages published before the peer left are delivered first. Then every call of `recv` fails with
//! [`BlockingError::PeerGone`]; the stream returns that error once and ends. A peer that closes and a peer
//! that dies look alike; a protocol that must tell them apart sends a last message.
//! `BlockingError::Interrupted` and `Deadline` do not occur here: end waits with `select!` and timeouts.
//!
//! # Why tokio
//!
//! Sleeping on descriptors needs a reactor, and most programs already have tokio's; its `AsyncFd` takes the
//! two descriptors as they are. Without the feature, no part of tokio is built. For another reactor, wait as
//! this module does, with the ring's own calls ([`Sender::fd`], [`Sender::arm`], [`Sender::step`],
//! [`Sender::drain_events`], and the same of the receiver): arm, poll once more, wait, drain the events,
//! poll.

#[cfg(feature = "daemon")]
mod driver;
#[cfg(feature = "daemon")]
mod stream;
mod waiter;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use headworks_net::ControlStream;
#[cfg(doc)]
use headworks_ring::Mode;
use headworks_ring::{HeldMessage, Receiver, Reservation, SendError, Sender};
use tokio::task::coop::poll_proceed;

use crate::blocking::{BlockingError, BlockingReceiver, BlockingSender, Received};
#[cfg(feature = "daemon")]
pub use stream::{AsyncListener, AsyncReader, AsyncStream, AsyncWriter};
use waiter::TaskWaiter;

/// How often one poll arms, looks and finds a wake-up pending before it yields the thread to other tasks.
const ATTEMPTS_BEFORE_YIELD: u32 = 4;

/// The sending end of a ring, for a task.
///
/// - *Sending*: [`AsyncSender::send`] copies a message; [`AsyncSender::reserve`] lends its place in the ring
///   to be filled. Both wait for room. It is also a [`Sink`].
/// - *Before waiting for anything else*: [`AsyncSender::flush`].
/// - *Closing*: [`AsyncSender::close`] waits until everything was consumed. Dropping the sender ends the ring
///   after the messages already published.
pub struct AsyncSender {
    outbox: UnsentMessage,
    waiter: TaskWaiter,
}

/// The ring, and a message that must be sent before any other.
struct UnsentMessage {
    sender: Sender,
    /// A message that the sink accepted and the ring had no room for.
    kept: Option<Vec<u8>>,
}

impl UnsentMessage {
    /// Sends `message` if there is room. Returns whether it did.
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

    /// Sends the kept message if there is room. Returns whether none is kept any more.
    fn clear(&mut self) -> Result<bool, BlockingError> {
        let sent = match &self.kept {
            None => return Ok(true),
            Some(message) => match self.sender.try_send(message) {
                Err(SendError::Full) => return Ok(false),
                sent => sent,
            },
        };
        // Drops a message that can never be sent, so that it is not retried for ever.
        self.kept = None;
        Ok(sent.map(|()| true)?)
    }

    fn flush(&mut self) -> Result<bool, BlockingError> {
        Ok(self.clear()? && self.sender.flush()?)
    }

    /// Publishes everything. Returns whether all of it was consumed.
    fn drain(&mut self) -> Result<bool, BlockingError> {
        let flushed = self.flush();
        // A peer that has consumed everything may leave, so a failed flush is then no error.
        if self.kept.is_none() && self.sender.is_drained() {
            return Ok(true);
        }
        flushed.map(|_| false)
    }
}

impl AsyncSender {
    /// Wraps a connected ring and the control stream over which it was connected.
    ///
    /// # Panics
    /// If called outside a tokio runtime whose I/O is enabled.
    pub fn new(sender: Sender, control: ControlStream) -> Result<Self, BlockingError> {
        let waiter = TaskWaiter::new(sender.fd(), sender.ring().mode, control)?;
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

    /// Returns the ring and the control stream. A message that the [`Sink`] kept for lack of room is lost: flush first.
    pub fn into_parts(self) -> (Sender, ControlStream) {
        (self.outbox.sender, self.waiter.into_control())
    }

    /// Returns the sender itself, for its calls that never wait.
    pub fn ring(&mut self) -> &mut Sender {
        &mut self.outbox.sender
    }

    /// Ready once `look` returns true; otherwise registers the task to be woken when to look again.
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
            // The peer's absence is checked only after a step: it may have consumed everything and then left.
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

impl TryFrom<BlockingSender> for AsyncSender {
    type Error = BlockingError;

    /// Converts an end for threads that was connected by [`BlockingSender::connect`]. Its limits and its interrupt end no
    /// waits of tasks.
    ///
    /// # Panics
    /// If called outside a tokio runtime whose I/O is enabled.
    fn try_from(end: BlockingSender) -> Result<Self, BlockingError> {
        let (sender, control) = end.into_parts();
        Self::new(sender, control)
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
/// - *Receiving*: [`AsyncReceiver::recv`] lends the next message in place; [`AsyncReceiver::take`] returns it
///   to be released later. Both wait for it. It is also a [`Stream`] of copies.
/// - *Closing*: [`AsyncReceiver::close`], so that the sender learns what was consumed.
pub struct AsyncReceiver {
    receiver: Receiver,
    waiter: TaskWaiter,
    /// Whether the stream has returned the error that ended it.
    ended: bool,
}

impl AsyncReceiver {
    /// Wraps a connected ring and the control stream over which it was connected.
    ///
    /// # Panics
    /// If called outside a tokio runtime whose I/O is enabled.
    pub fn new(receiver: Receiver, control: ControlStream) -> Result<Self, BlockingError> {
        let waiter = TaskWaiter::new(receiver.fd(), receiver.ring().mode, control)?;
        Ok(Self {
            receiver,
            waiter,
            ended: false,
        })
    }

    /// Waits for the next message and lends it in place; dropping it releases it. Messages published before
    /// the peer left are delivered before [`BlockingError::PeerGone`].
    pub async fn recv(&mut self) -> Result<Received<'_>, BlockingError> {
        let held = self.take().await?;
        Ok(Received::new(&mut self.receiver, held))
    }

    /// Like [`AsyncReceiver::recv`], but the caller releases the message on [`AsyncReceiver::ring`].
    pub async fn take(&mut self) -> Result<HeldMessage, BlockingError> {
        poll_fn(|cx| self.poll_take(cx)).await
    }

    /// Returns the ring and the control stream.
    pub fn into_parts(self) -> (Receiver, ControlStream) {
        (self.receiver, self.waiter.into_control())
    }

    /// Frees the ring's memory and returns the control stream. Tells the sender what was consumed, but a slow device
    /// may not transmit that before the ring is gone. A caller that must let the sender close keeps receiving
    /// until [`BlockingError::PeerGone`].
    pub fn close(mut self) -> ControlStream {
        // If the ring is broken, the sender cannot be told.
        let _ = self.receiver.push_head();
        self.waiter.into_control()
    }

    /// Returns the receiver itself, for its calls that never wait.
    pub fn ring(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<HeldMessage, BlockingError>> {
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
            // A waiting receiver returns all free space to the sender. If that fails, the step reports it.
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

impl TryFrom<BlockingReceiver> for AsyncReceiver {
    type Error = BlockingError;

    /// Converts an end for threads that was connected by [`BlockingReceiver::connect`]. Its limits and its interrupt end no
    /// waits of tasks.
    ///
    /// # Panics
    /// If called outside a tokio runtime whose I/O is enabled.
    fn try_from(end: BlockingReceiver) -> Result<Self, BlockingError> {
        let (receiver, control) = end.into_parts();
        Self::new(receiver, control)
    }
}

/// Yields copies of the messages, then the error that ends the ring, then nothing.
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

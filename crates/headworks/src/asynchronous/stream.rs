//! Streams of the service for tasks.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

use super::driver::{Direction, Registration};
use crate::service::{Listener, Reader, Service, ServiceError, Stream, Writer};

/// A [`Stream`] of the service for tasks of the tokio runtime. It has tokio's [`AsyncRead`] and [`AsyncWrite`], so hyper,
/// tonic and whatever else takes a connection run on it. [`into_split`](Self::into_split) makes a half for each direction,
/// which tasks use without a lock.
///
/// All streams and listeners of one service in one runtime share a [`Poller`](crate::service::Poller) and a task that waits
/// for them. So a stream needs no descriptor, a call that finds nothing makes no system call, and connections between
/// applications of one machine may use the direct path. That task looks for news for 50 µs after the last ones, in turns with
/// the other tasks, before it sleeps.
///
/// Every future of it may be dropped at any time: a call that was not ready has received and sent nothing, except
/// [`send_all`](Self::send_all), which may have sent a part. Dropping the stream closes the connection; what was sent
/// still arrives.
///
/// ```no_run
/// use headworks::asynchronous::{AsyncListener, AsyncStream};
/// use headworks::service::{Service, ServiceError};
///
/// async fn serve(service: Service) -> Result<(), ServiceError> {
///     let listener = AsyncListener::new(service.listen(7000, 128)?)?;
///     loop {
///         let mut stream = listener.accept().await?;
///         tokio::spawn(async move {
///             let mut buffer = vec![0; 64 << 10];
///             loop {
///                 let len = stream.recv(&mut buffer).await?;
///                 if len == 0 {
///                     return Ok::<_, ServiceError>(());
///                 }
///                 stream.send_all(&buffer[..len]).await?;
///             }
///         });
///     }
/// }
///
/// async fn ask(service: &Service, text: &[u8]) -> Result<Vec<u8>, ServiceError> {
///     let mut stream = AsyncStream::connect(service, ([10, 0, 0, 2], 7000).into()).await?;
///     stream.send_all(text).await?;
///     stream.end().await?;
///     let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
///     loop {
///         match stream.recv(&mut buffer).await? {
///             0 => return Ok(answer),
///             len => answer.extend_from_slice(&buffer[..len]),
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct AsyncStream {
    reader: AsyncReader,
    writer: AsyncWriter,
}

/// The receiving half of a connection: see [`AsyncStream::into_split`]. The connection is closed once both halves are
/// dropped.
#[derive(Debug)]
pub struct AsyncReader {
    reader: Reader,
    registration: Arc<Registration>,
}

/// The sending half of a connection: see [`AsyncStream::into_split`]. The connection is closed once both halves are dropped.
#[derive(Debug)]
pub struct AsyncWriter {
    writer: Writer,
    registration: Arc<Registration>,
}

/// Turns a call that would wait into one that has nothing to return yet.
fn unless_it_waits<T>(done: Result<T, ServiceError>) -> Result<Option<T>, ServiceError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(ServiceError::WouldBlock) => Ok(None),
        Err(error) => Err(error),
    }
}

impl AsyncStream {
    /// Wraps a stream. It must not be in a [`Poller`](crate::service::Poller).
    ///
    /// # Errors
    ///
    /// As [`Poller::add`](crate::service::Poller::add); and [`ServiceError::System`] if the reactor refuses the poller's
    /// descriptor.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime whose I/O is enabled.
    pub fn new(mut stream: Stream) -> Result<Self, ServiceError> {
        let registration = Arc::new(Registration::of_stream(&mut stream)?);
        let (reader, writer) = stream.split();
        Ok(Self {
            reader: AsyncReader {
                reader,
                registration: registration.clone(),
            },
            writer: AsyncWriter {
                writer,
                registration,
            },
        })
    }

    /// Connects to the listener at `to`. If the service has to attach again, that blocks the thread.
    ///
    /// # Errors
    ///
    /// As [`Service::connect_polled`], [`PendingConnection::finish`](crate::service::PendingConnection::finish) and
    /// [`AsyncStream::new`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime whose I/O is enabled.
    pub async fn connect(service: &Service, to: SocketAddr) -> Result<Self, ServiceError> {
        let mut connecting = service.connect_polled(to)?;
        let registration = Registration::of_pending(&connecting)?;
        let connected =
            poll_fn(|cx| registration.poll(cx, Direction::Send, || connecting.finish()));
        let stream = connected.await?;
        Self::new(stream)
    }

    /// Receives as [`Stream::recv`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub async fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.reader.recv(into).await
    }

    /// Sends as [`Stream::send`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub async fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        self.writer.send(bytes).await
    }

    /// Sends all of the bytes.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_all`].
    pub async fn send_all(&mut self, bytes: &[u8]) -> Result<(), ServiceError> {
        self.writer.send_all(bytes).await
    }

    /// Ends the stream towards the peer, as [`Stream::end`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::end`].
    pub async fn end(&mut self) -> Result<(), ServiceError> {
        self.writer.end().await
    }

    /// Splits the stream into its two directions, which different tasks may use at the same time.
    pub fn into_split(self) -> (AsyncReader, AsyncWriter) {
        (self.reader, self.writer)
    }

    /// Returns the stream, whose calls wait again.
    pub fn into_inner(self) -> Stream {
        let (reader, writer) = (self.reader.reader, self.writer.writer);
        let mut stream = Stream::from_halves(reader, writer);
        self.writer.registration.leave_stream(&mut stream);
        stream
    }

    /// Returns this end's address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.writer.writer.local_addr()
    }

    /// Returns the other end's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.writer.writer.peer_addr()
    }

    /// Returns whether the connection uses the direct path: see [`Stream::is_direct`].
    pub fn is_direct(&self) -> bool {
        self.writer.writer.is_direct()
    }
}

impl AsyncReader {
    /// Receives as [`Stream::recv`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub async fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        poll_fn(|cx| self.poll_recv(cx, into)).await
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<usize, ServiceError>> {
        let turn = ready!(poll_proceed(cx));
        let Self {
            reader,
            registration,
        } = self;
        let attempt = || unless_it_waits(reader.recv(into));
        let received = ready!(registration.poll(cx, Direction::Receive, attempt));
        turn.made_progress();
        Poll::Ready(received)
    }
}

impl AsyncWriter {
    /// Sends as [`Stream::send`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub async fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        poll_fn(|cx| self.poll_call(cx, |writer| writer.send(bytes))).await
    }

    /// Sends all of the bytes.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_all`].
    pub async fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), ServiceError> {
        while !bytes.is_empty() {
            let sent = self.send(bytes).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Ends the stream towards the peer, as [`Stream::end`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::end`].
    pub async fn end(&mut self) -> Result<(), ServiceError> {
        poll_fn(|cx| self.poll_call(cx, Writer::end)).await
    }

    fn poll_call<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(&mut Writer) -> Result<T, ServiceError>,
    ) -> Poll<Result<T, ServiceError>> {
        let turn = ready!(poll_proceed(cx));
        let Self {
            writer,
            registration,
        } = self;
        let attempt = || unless_it_waits(call(writer));
        let done = ready!(registration.poll(cx, Direction::Send, attempt));
        turn.made_progress();
        Poll::Ready(done)
    }
}

impl AsyncRead for AsyncReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let space = into.initialize_unfilled();
        let received = ready!(self.get_mut().poll_recv(cx, space))?;
        into.advance(received);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AsyncWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = self.get_mut().poll_call(cx, |writer| writer.send(bytes));
        sent.map_err(io::Error::from)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = self
            .get_mut()
            .poll_call(cx, |writer| send_pieces(writer, pieces));
        sent.map_err(io::Error::from)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: written bytes are on their way already.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.get_mut().poll_call(cx, Writer::end);
        ended.map_err(io::Error::from)
    }
}

/// Sends as many bytes of the pieces as there is room for. An error after the first bytes concerns the next call.
fn send_pieces(writer: &mut Writer, pieces: &[IoSlice<'_>]) -> Result<usize, ServiceError> {
    let mut sent = 0;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        match writer.send(piece) {
            Ok(len) => {
                sent += len;
                if len < piece.len() {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
    }
    if sent == 0 && pieces.iter().all(|piece| piece.is_empty()) {
        return writer.send(&[]);
    }
    Ok(sent)
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().reader).poll_read(cx, into)
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().writer).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().writer).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer).poll_shutdown(cx)
    }
}

/// A [`Listener`] of the service for tasks of the tokio runtime.
#[derive(Debug)]
pub struct AsyncListener {
    listener: Listener,
    registration: Registration,
}

impl AsyncListener {
    /// Wraps a listener. Several tasks may wait for a connection at the same time.
    ///
    /// # Errors
    ///
    /// As [`Poller::add_listener`](crate::service::Poller::add_listener); and [`ServiceError::System`] if the reactor
    /// refuses the poller's descriptor.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime whose I/O is enabled.
    pub fn new(listener: Listener) -> Result<Self, ServiceError> {
        let registration = Registration::of_listener(&listener)?;
        Ok(Self {
            listener,
            registration,
        })
    }

    /// Waits for the next connection. A dropped future has accepted none.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`]; and as [`AsyncStream::new`].
    pub async fn accept(&self) -> Result<AsyncStream, ServiceError> {
        AsyncStream::new(poll_fn(|cx| self.poll_accept(cx)).await?)
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Stream, ServiceError>> {
        let turn = ready!(poll_proceed(cx));
        let attempt = || self.listener.try_accept();
        let accepted = ready!(self.registration.poll(cx, Direction::Receive, attempt));
        turn.made_progress();
        Poll::Ready(accepted)
    }

    /// Returns the listener itself, for its calls that never wait.
    pub fn get_ref(&self) -> &Listener {
        &self.listener
    }
}

impl Drop for AsyncListener {
    fn drop(&mut self) {
        self.registration.leave_listener(&self.listener);
    }
}

//! Streams of the service for tasks.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::task::coop::poll_proceed;

use super::waiter::readiness_fd;
use crate::service::{Listener, Readiness, Service, ServiceError, Stream};

/// A [`Stream`] of the service for tasks of the tokio runtime. It also has tokio's [`AsyncRead`] and [`AsyncWrite`], so
/// `tokio::io::split` makes a half for each direction.
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
    stream: Stream,
    fd: AsyncFd<Readiness>,
}

impl AsyncStream {
    /// Wraps a stream, which becomes nonblocking. If the stream has no descriptor yet, this blocks the thread for a round
    /// trip to the daemon on this host.
    ///
    /// # Errors
    ///
    /// As [`Stream::readiness`]; and [`ServiceError::System`] if the reactor refuses the descriptor.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime whose I/O is enabled.
    pub fn new(mut stream: Stream) -> Result<Self, ServiceError> {
        stream.set_nonblocking(true);
        let readiness = stream.readiness()?.clone();
        let fd = readiness_fd(readiness, Interest::READABLE | Interest::WRITABLE);
        Ok(Self {
            stream,
            fd: fd.map_err(reactor)?,
        })
    }

    /// Connects to the listener at `to`. If the service has to attach again, that blocks the thread.
    ///
    /// # Errors
    ///
    /// As [`Service::connect_start`], [`PendingConnection::finish`](crate::service::PendingConnection::finish) and
    /// [`AsyncStream::new`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime whose I/O is enabled.
    pub async fn connect(service: &Service, to: SocketAddr) -> Result<Self, ServiceError> {
        let mut connecting = service.connect_start(to)?;
        let readiness = connecting.readiness().expect("not finished yet").clone();
        let fd = readiness_fd(readiness, Interest::WRITABLE).map_err(reactor)?;
        loop {
            let mut guard = fd.writable().await.map_err(reactor)?;
            match connecting.finish()? {
                Some(stream) => {
                    // The reactor takes a descriptor once.
                    drop(fd);
                    return Self::new(stream);
                }
                None => guard.clear_ready(),
            }
        }
    }

    /// Receives as [`Stream::recv`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub async fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        poll_fn(|cx| self.poll_call(cx, Interest::READABLE, |stream| stream.recv(into))).await
    }

    /// Sends as [`Stream::send`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub async fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        poll_fn(|cx| self.poll_call(cx, Interest::WRITABLE, |stream| stream.send(bytes))).await
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
        poll_fn(|cx| self.poll_call(cx, Interest::WRITABLE, Stream::end)).await
    }

    /// Returns the stream, which is nonblocking.
    pub fn into_inner(self) -> Stream {
        self.stream
    }

    /// Returns this end's address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr()
    }

    /// Returns the other end's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.stream.peer_addr()
    }

    /// Calls `attempt` until it does not have to wait.
    fn poll_call<T>(
        &mut self,
        cx: &mut Context<'_>,
        interest: Interest,
        mut attempt: impl FnMut(&mut Stream) -> Result<T, ServiceError>,
    ) -> Poll<Result<T, ServiceError>> {
        let turn = ready!(poll_proceed(cx));
        match attempt(&mut self.stream) {
            Err(ServiceError::WouldBlock) => {}
            done => {
                turn.made_progress();
                return Poll::Ready(done);
            }
        }
        loop {
            let ready = ready!(match interest.is_readable() {
                true => self.fd.poll_read_ready(cx),
                false => self.fd.poll_write_ready(cx),
            });
            let mut guard = ready.map_err(reactor)?;
            match attempt(&mut self.stream) {
                // The reactor is edge-triggered. It forgets the event that this attempt has served, and no later one.
                // But no event announces memory that bytes have arrived in and that is still under way.
                Err(ServiceError::WouldBlock) if self.stream.awaits_memory() => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Err(ServiceError::WouldBlock) => guard.clear_ready(),
                done => {
                    turn.made_progress();
                    return Poll::Ready(done);
                }
            }
        }
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let space = into.initialize_unfilled();
        let receive = |stream: &mut Stream| stream.recv(space);
        let received = ready!(self.get_mut().poll_call(cx, Interest::READABLE, receive))?;
        into.advance(received);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let send = |stream: &mut Stream| stream.send(bytes);
        let sent = self.get_mut().poll_call(cx, Interest::WRITABLE, send);
        sent.map_err(io::Error::from)
    }

    /// Does nothing: written bytes are on their way already.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self
            .get_mut()
            .poll_call(cx, Interest::WRITABLE, Stream::end);
        ended.map_err(io::Error::from)
    }
}

/// A [`Listener`] of the service for tasks of the tokio runtime.
#[derive(Debug)]
pub struct AsyncListener {
    listener: Listener,
    fd: AsyncFd<Readiness>,
}

impl AsyncListener {
    /// Wraps a listener.
    ///
    /// # Errors
    ///
    /// As [`Listener::readiness`]; and [`ServiceError::System`] if the reactor refuses the descriptor.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime whose I/O is enabled.
    pub fn new(mut listener: Listener) -> Result<Self, ServiceError> {
        let readiness = listener.readiness()?.clone();
        let fd = readiness_fd(readiness, Interest::READABLE).map_err(reactor)?;
        Ok(Self { listener, fd })
    }

    /// Waits for the next connection. A dropped future has accepted none. For the stream's descriptor, it blocks the
    /// thread for a round trip to the daemon on this host.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`]; and as [`AsyncStream::new`].
    pub async fn accept(&self) -> Result<AsyncStream, ServiceError> {
        loop {
            if let Some(stream) = self.listener.try_accept()? {
                return AsyncStream::new(stream);
            }
            let mut guard = self.fd.readable().await.map_err(reactor)?;
            match self.listener.try_accept()? {
                Some(stream) => return AsyncStream::new(stream),
                None => guard.clear_ready(),
            }
        }
    }

    /// Returns the listener itself, for its calls that never wait.
    pub fn get_ref(&self) -> &Listener {
        &self.listener
    }
}

fn reactor(source: io::Error) -> ServiceError {
    ServiceError::System {
        what: "tokio's reactor",
        source,
    }
}

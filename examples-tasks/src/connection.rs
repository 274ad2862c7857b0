//! Connections of the service and of TCP, as hyper and tonic take them.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, Stream};
use headworks::asynchronous::{AsyncListener, AsyncStream};
use headworks::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// A stream of the service that tonic's server takes: tonic wants to know more of its connections than that they can be
/// read and written.
#[derive(Debug)]
pub struct ServedStream(pub AsyncStream);

impl Connected for ServedStream {
    /// The address of the client.
    type ConnectInfo = SocketAddr;

    fn connect_info(&self) -> SocketAddr {
        self.0.peer_addr()
    }
}

impl AsyncRead for ServedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for ServedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Returns the connections of a listener, for tonic's server.
pub fn incoming(listener: AsyncListener) -> impl Stream<Item = io::Result<ServedStream>> {
    stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await;
        Some((
            accepted.map(ServedStream).map_err(io::Error::from),
            listener,
        ))
    })
}

/// A server that a client connects to.
#[derive(Clone, Debug)]
pub enum Server {
    /// By the service.
    Service(Service, SocketAddr),
    /// By TCP.
    Tcp(SocketAddr),
}

impl Server {
    /// Connects tonic's client to it.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn channel(self) -> Result<Channel, tonic::transport::Error> {
        // The name of the host is only sent to the server.
        let endpoint = Endpoint::from_static("http://echo");
        match self {
            Self::Service(service, to) => {
                let connect = service_fn(move |_| {
                    let service = service.clone();
                    async move {
                        let stream = AsyncStream::connect(&service, to).await?;
                        Ok::<_, io::Error>(TokioIo::new(stream))
                    }
                });
                endpoint.connect_with_connector(connect).await
            }
            Self::Tcp(to) => {
                let connect = service_fn(move |_| async move {
                    let stream = TcpStream::connect(to).await?;
                    stream.set_nodelay(true)?;
                    Ok::<_, io::Error>(TokioIo::new(stream))
                });
                endpoint.connect_with_connector(connect).await
            }
        }
    }
}

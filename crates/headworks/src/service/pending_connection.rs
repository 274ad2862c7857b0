//! Connections that are not established yet.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

#[cfg(feature = "tokio")]
use super::readiness_socket::Readiness;
use super::readiness_socket::ReadinessSocket;
use super::shared_session::{Answer, SharedSession};
use super::stream::Stream;
use super::{ServiceError, UNEXPECTED_ANSWER, system};

/// A connection that is not established yet. Its descriptor is writable once it is established, and hung up
/// if it failed; it stays so until this is dropped. [`finish`](Self::finish) tells which. Dropping this
/// before abandons the connection.
#[derive(Debug)]
pub struct PendingConnection {
    shared: Arc<SharedSession>,
    request: u32,
    is_over: bool,
    /// Present until the connection is established.
    watch: Option<ReadinessSocket>,
}

impl PendingConnection {
    pub(super) fn start(shared: &Arc<SharedSession>, to: SocketAddr) -> Result<Self, ServiceError> {
        let (watch, other) = ReadinessSocket::new_pair().map_err(system("a pair of sockets"))?;
        // The daemon empties the socket, and so makes it writable, when the connection is established.
        watch.fill();
        let request = shared.request(Some(other), |session| session.connect_watched(to))?;
        Ok(Self {
            shared: shared.clone(),
            request,
            is_over: false,
            watch: Some(watch),
        })
    }

    /// Returns the connection, in nonblocking mode, if it is established.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`], [`ServiceError::DaemonGone`].
    pub fn finish(&mut self) -> Result<Option<Stream>, ServiceError> {
        if self.is_over {
            return Ok(None);
        }
        let answer = self.shared.answered(self.request);
        if matches!(answer, Ok(None)) {
            return Ok(None);
        }
        self.is_over = true;
        match answer? {
            Some(Answer::Connected(connection)) => {
                let mut stream = Stream::new(&self.shared, connection);
                stream.set_nonblocking(true);
                if let Some(watch) = self.watch.take() {
                    stream.set_readiness_socket(watch);
                }
                Ok(Some(stream))
            }
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }
}

#[cfg(feature = "tokio")]
impl PendingConnection {
    /// Returns the descriptor, if the connection was not returned yet.
    pub(crate) fn readiness(&self) -> Option<&Readiness> {
        self.watch.as_ref().map(ReadinessSocket::readiness)
    }
}

impl AsFd for PendingConnection {
    /// # Panics
    ///
    /// After [`PendingConnection::finish`] has returned the connection, which then owns the descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let watch = self.watch.as_ref().expect("not finished yet");
        watch.readiness().as_fd()
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.abandon_request(self.request);
        }
    }
}

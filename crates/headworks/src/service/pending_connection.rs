//! Connections that are not established yet.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use super::readiness_socket::ReadinessSocket;
use super::shared_session::{Answer, SharedSession};
use super::stream::Stream;
use super::{ServiceError, UNEXPECTED_ANSWER, system};

/// A connection that is not established yet. [`finish`](Self::finish) tells whether it is. Dropping this before abandons
/// the connection.
///
/// - From [`Service::connect_start`](super::Service::connect_start), it has a descriptor, which is writable once the
///   connection is established, and hung up if it failed. It stays so until this is dropped.
/// - From [`Service::connect_polled`](super::Service::connect_polled), it has none: a
///   [`Poller`](super::Poller::add_pending) reports it.
#[derive(Debug)]
pub struct PendingConnection {
    shared: Arc<SharedSession>,
    request: u32,
    is_over: bool,
    /// Present until the connection is established. `None` if a poller reports it.
    watch: Option<ReadinessSocket>,
    /// Present until the connection is finished. A poller keeps a weak reference.
    interest: Option<Arc<()>>,
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
            interest: Some(Arc::new(())),
        })
    }

    /// Starts to connect without a descriptor.
    pub(super) fn start_polled(
        shared: &Arc<SharedSession>,
        to: SocketAddr,
    ) -> Result<Self, ServiceError> {
        let request = shared.request(None, |session| session.connect(to))?;
        Ok(Self {
            shared: shared.clone(),
            request,
            is_over: false,
            watch: None,
            interest: Some(Arc::new(())),
        })
    }

    pub(super) fn shared(&self) -> &Arc<SharedSession> {
        &self.shared
    }

    /// The request that is answered when the connection is established or has failed.
    pub(super) fn request(&self) -> u32 {
        self.request
    }

    /// Returns what a poller keeps to learn that nobody waits for this connection any more.
    pub(super) fn interest(&self) -> Weak<()> {
        self.interest
            .as_ref()
            .map_or_else(Weak::new, Arc::downgrade)
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
        self.interest = None;
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

impl AsFd for PendingConnection {
    /// # Panics
    ///
    /// After [`PendingConnection::finish`] has returned the connection, which then owns the descriptor; and without a
    /// descriptor, as [`Service::connect_polled`](super::Service::connect_polled) returns it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let watch = self
            .watch
            .as_ref()
            .expect("a connection with a descriptor, not finished yet");
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

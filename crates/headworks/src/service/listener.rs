//! Ports to which others connect.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use headworks_client::connection::Connection;
use headworks_net::clock;
use headworks_verbs::Instant;

use super::readiness_socket::{Readiness, ReadinessSocket};
use super::shared_session::{Answer, LookFor, SessionState, SharedSession};
use super::stream::Stream;
use super::{ServiceError, UNEXPECTED_ANSWER, system};

/// A port to which others connect, until it is dropped.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<SharedSession>,
    listener: u32,
    port: u16,
    watch: Option<ReadinessSocket>,
}

impl Listener {
    /// Listens at `port`, 0 for any free one.
    pub(super) fn open(
        shared: &Arc<SharedSession>,
        port: u16,
        backlog: u32,
    ) -> Result<Self, ServiceError> {
        match shared.answer(None, |session| session.listen(port, backlog))? {
            Answer::Listening { listener, port } => Ok(Self {
                shared: shared.clone(),
                listener,
                port,
                watch: None,
            }),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// Returns the address at which others reach it: that of the daemon, with the port. The address is unspecified if
    /// the daemon is too old to tell its own.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Forked`].
    pub fn local_addr(&self) -> Result<SocketAddr, ServiceError> {
        let own = self.shared.address()?;
        let own = own.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Ok(SocketAddr::new(own, self.port))
    }

    pub(super) fn shared(&self) -> &Arc<SharedSession> {
        &self.shared
    }

    /// Number that the daemon gave it.
    pub(super) fn number(&self) -> u32 {
        self.listener
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn accept(&self) -> Result<Stream, ServiceError> {
        self.accept_by(None)
    }

    /// Waits as [`Listener::accept`] does, no later than `deadline`.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`], and [`ServiceError::Deadline`].
    pub fn accept_by(&self, deadline: Option<Instant>) -> Result<Stream, ServiceError> {
        let connection = self.shared.wait(deadline, |look| {
            Ok(match look {
                LookFor::Sleep(state, _) => self.take(state),
                LookFor::Poll => self.take(&mut *self.shared.lock()?),
            })
        })?;
        // Tells the daemon that the connection was accepted.
        self.shared.exchange(&mut *self.shared.lock()?)?;
        Ok(Stream::new(&self.shared, connection))
    }

    /// Waits as [`Listener::accept`] does, no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`], and [`ServiceError::Deadline`].
    pub fn accept_timeout(&self, timeout: std::time::Duration) -> Result<Stream, ServiceError> {
        self.accept_by(Some(clock::now() + timeout))
    }

    fn take(&self, state: &mut SessionState) -> Option<Box<Connection>> {
        let next = state.incoming.get_mut(&self.listener)?.pop_front()?;
        state.session.took(self.listener);
        Some(next)
    }

    /// Accepts the next connection, if there is one.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn try_accept(&self) -> Result<Option<Stream>, ServiceError> {
        let mut state = self.shared.lock()?;
        self.shared.exchange_now(&mut state)?;
        if let Some(connection) = self.take(&mut state) {
            self.shared.exchange_now(&mut state)?;
            // A new stream asks the session for the socket of its pair.
            drop(state);
            return Ok(Some(Stream::new(&self.shared, connection)));
        }
        if state.is_gone {
            return Err(ServiceError::DaemonGone);
        }
        if let Some(watch) = &self.watch {
            // If a connection has arrived since, the daemon makes the descriptor readable again.
            if !watch.drain_all() {
                return Err(ServiceError::DaemonGone);
            }
            state.session.arm(self.listener);
            self.shared.exchange_now(&mut state)?;
        }
        Ok(None)
    }

    /// Returns a descriptor that is readable while a connection waits to be accepted, and hung up once the
    /// daemon is gone. Call [`Listener::try_accept`] until it returns `None`.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`] if the daemon has too few descriptors. [`ServiceError::DaemonGone`],
    /// [`ServiceError::System`].
    pub fn readiness(&mut self) -> Result<&Readiness, ServiceError> {
        if self.watch.is_none() {
            let (watch, other) =
                ReadinessSocket::new_pair().map_err(system("a pair of sockets"))?;
            let listener = self.listener;
            self.shared
                .request_with_fd(other, |session| session.watch_listener(listener))?;
            // Connections that were read from the session's socket before wait here: the daemon must announce
            // them.
            let mut state = self.shared.lock()?;
            state.session.arm(listener);
            self.shared.exchange_now(&mut state)?;
            self.watch = Some(watch);
        }
        Ok(self.watch.as_ref().expect("made above").readiness())
    }

    /// Returns the descriptor of [`Listener::readiness`], borrowed.
    ///
    /// # Errors
    ///
    /// As [`Listener::readiness`].
    pub fn fd(&mut self) -> Result<BorrowedFd<'_>, ServiceError> {
        self.readiness().map(AsFd::as_fd)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Ok(mut state) = self.shared.lock() else {
            return;
        };
        state.unlisten(self.listener);
        let _ = self.shared.exchange(&mut state);
    }
}

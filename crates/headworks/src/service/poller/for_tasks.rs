//! Calls of a poller that the streams for tasks of the tokio runtime use.

use std::sync::Arc;

use super::{PollEvent, Poller};
use crate::service::shared_session::SharedSession;
use crate::service::{Listener, PendingConnection, ServiceError, Stream};

/// The session of a stream, a listener or a pending connection.
#[derive(Clone)]
pub(crate) struct SessionRef(Arc<SharedSession>);

impl SessionRef {
    /// Makes a poller for the session.
    pub(crate) fn poller(&self) -> Result<Poller, ServiceError> {
        Poller::of(self.0.clone())
    }

    /// Identifies the session while it exists.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl Stream {
    /// Returns the stream's session.
    pub(crate) fn session(&self) -> SessionRef {
        SessionRef(self.shared().clone())
    }
}

impl Listener {
    /// Returns the listener's session.
    pub(crate) fn session(&self) -> SessionRef {
        SessionRef(self.shared().clone())
    }
}

impl PendingConnection {
    /// Returns the connection's session.
    pub(crate) fn session(&self) -> SessionRef {
        SessionRef(self.shared().clone())
    }
}

impl Poller {
    /// Reports what is ready, as [`wait`](Poller::wait) does, but does not prepare to sleep. It looks at the session's
    /// socket only if something is expected there.
    pub(crate) fn look(&mut self, events: &mut Vec<PollEvent>) -> Result<(), ServiceError> {
        self.shared.check()?;
        events.clear();
        self.wake_up();
        self.collect(events);
        if self.listeners_have_news() || !self.pending.is_empty() {
            self.exchange()?;
            self.collect_listeners(events)?;
        }
        Ok(())
    }

    /// Adds a listener that is reported only when there may be further connections.
    pub(crate) fn add_listener_for_news(
        &mut self,
        listener: &Listener,
        key: u64,
    ) -> Result<(), ServiceError> {
        self.check_session(listener.shared())?;
        self.add_listener_as(listener, key, true);
        Ok(())
    }
}

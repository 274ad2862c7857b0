//! The current session of a service, and its replacement after the daemon was restarted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use headworks_net::clock;
use headworks_shm::fork::ForkGeneration;
use headworks_verbs::Instant;

use super::ServiceError;
use super::shared_session::{ANSWER_TIMEOUT, SharedSession};

/// A name and a daemon's socket, and the session that was attached there last.
pub(super) struct Attachment {
    path: PathBuf,
    name: String,
    session: Mutex<Arc<SharedSession>>,
    made_by: ForkGeneration,
}

impl Attachment {
    /// Attaches to the daemon whose socket is at `path`.
    pub(super) fn new(path: &Path, name: &str) -> Result<Self, ServiceError> {
        Ok(Self {
            session: Mutex::new(SharedSession::attach(path, name)?),
            path: path.to_owned(),
            name: name.to_owned(),
            made_by: ForkGeneration::current(),
        })
    }

    /// Returns the path of the daemon's socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the session has ended, or this is a forked child.
    pub(super) fn is_gone(&self) -> bool {
        // In a forked child, a thread that does not exist there may hold the lock.
        if self.made_by.is_foreign() {
            return true;
        }
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.is_gone()
    }

    /// Returns the session. Attaches again, no later than `deadline`, if it has ended.
    pub(super) fn session(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Arc<SharedSession>, ServiceError> {
        if self.made_by.is_foreign() {
            return Err(ServiceError::Forked);
        }
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_gone() {
            let left = deadline.map(|deadline| deadline.since(clock::now()));
            let patience = left.map_or(ANSWER_TIMEOUT, |left| left.min(ANSWER_TIMEOUT));
            let attached = SharedSession::attach_within(&self.path, &self.name, patience);
            *session = attached.map_err(|error| match error {
                ServiceError::DaemonSilent { .. } if patience < ANSWER_TIMEOUT => {
                    ServiceError::Deadline
                }
                error => error,
            })?;
        }
        Ok(session.clone())
    }
}

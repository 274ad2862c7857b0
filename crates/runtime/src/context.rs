//! The actor context of worlds in real time, behind [`ActorContext`](crate::ActorContext): mailbox, mail
//! transport and the real clock.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_verbs::Instant;

use crate::actor::{ContextBackend, Mail, MailError};
use crate::mailbox::Mailbox;
use headworks_net::clock;

/// Sends an actor's mail and reports.
pub(crate) trait MailTransport {
    fn send(&mut self, from: &str, to: &str, bytes: &[u8]) -> Result<(), MailError>;
    fn report(&mut self, role: &str, bytes: &[u8]) -> Result<(), MailError>;

    /// Writes what could not be written before.
    fn flush(&mut self) -> io::Result<()>;

    /// Descriptor to poll for writability while something is left to write.
    fn unwritten(&self) -> Option<BorrowedFd<'_>>;
}

pub(crate) struct RealTimeContext<P> {
    pub(crate) role: String,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) post: P,
}

impl<P: MailTransport> ContextBackend for RealTimeContext<P> {
    fn role(&self) -> &str {
        &self.role
    }

    fn now(&mut self) -> Instant {
        clock::now()
    }

    fn send(&mut self, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        self.post.send(&self.role, to, bytes)
    }

    fn receive(&mut self) -> Option<Mail> {
        self.mailbox.take()
    }

    fn report(&mut self, bytes: &[u8]) -> Result<(), MailError> {
        self.post.report(&self.role, bytes)
    }

    fn interrupted(&self) -> bool {
        self.mailbox.interrupted()
    }
}

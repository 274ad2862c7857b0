//! Actors: what they are, what a step says, and all they see of their world.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_verbs::{Duration, Instant};

/// Longest mail or report, in bytes.
pub const MAIL_MAX: usize = 1 << 20;

/// An active thing. It does not block, sleep or read a clock: its world steps it.
pub trait Actor: Send {
    /// Does a bounded amount of work, and says when to do more. A world may step sooner than was
    /// asked for, so an actor looks at what it waits for instead of trusting that it is there.
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError>;
}

impl<A: Actor + ?Sized> Actor for Box<A> {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        (**self).step(cx)
    }
}

/// When an actor wants its next step.
#[derive(Debug)]
pub enum Step {
    /// At once: there is more to do.
    Again,
    /// When the world's clock reads this.
    At(Instant),
    /// When something changes.
    Wait(WakeCondition),
    /// Never: the actor has finished, and is dropped.
    Done,
}

/// What an idle actor waits for: any of the things named.
///
/// ```
/// use headworks_runtime::WakeCondition;
/// use headworks_verbs::Instant;
///
/// let change = WakeCondition::mail().or_memory().until(Instant::from_nanos(5_000));
/// assert!(change.on_mail() && change.on_memory());
/// ```
#[derive(Clone, Debug, Default)]
pub struct WakeCondition {
    mail: bool,
    memory: bool,
    fds: Vec<WakeFd>,
    until: Option<Instant>,
}

impl WakeCondition {
    /// Mail, or mail that was there already.
    pub fn mail() -> Self {
        Self {
            mail: true,
            ..Self::default()
        }
    }

    /// A readable descriptor: a completion channel's, a socket's.
    pub fn fd(fd: WakeFd) -> Self {
        Self {
            fds: vec![fd],
            ..Self::default()
        }
    }

    /// Memory or a queue that a device or a peer writes and that no descriptor tells of. A real world
    /// offers its core to others and steps the actor again; it never sleeps on this.
    pub fn memory() -> Self {
        Self {
            memory: true,
            ..Self::default()
        }
    }

    /// This, or mail.
    pub fn or_mail(self) -> Self {
        Self { mail: true, ..self }
    }

    /// This, or a readable descriptor.
    pub fn or_fd(mut self, fd: WakeFd) -> Self {
        self.fds.push(fd);
        self
    }

    /// This, or memory; see [`WakeCondition::memory`].
    pub fn or_memory(self) -> Self {
        Self {
            memory: true,
            ..self
        }
    }

    /// This, but no later than `deadline`.
    pub fn until(self, deadline: Instant) -> Self {
        let until = Some(self.until.map_or(deadline, |until| until.min(deadline)));
        Self { until, ..self }
    }

    /// Whether mail ends the wait.
    pub fn on_mail(&self) -> bool {
        self.mail
    }

    /// Whether memory ends the wait.
    pub fn on_memory(&self) -> bool {
        self.memory
    }

    /// The descriptors that end the wait.
    pub fn fds(&self) -> &[WakeFd] {
        &self.fds
    }

    /// The deadline, where there is one.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }
}

/// A descriptor to wait on, kept open for as long as somebody may. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct WakeFd(Arc<OwnedFd>);

impl WakeFd {
    /// A duplicate of `fd`. Make it once and clone it for every wait.
    pub fn duplicate(fd: impl AsFd) -> std::io::Result<Self> {
        fd.as_fd().try_clone_to_owned().map(Self::from)
    }
}

impl From<OwnedFd> for WakeFd {
    fn from(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Bytes from another part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The sender's role, or [`COORDINATOR`].
    pub from: String,
    /// What it said.
    pub bytes: Vec<u8>,
}

/// Sender of mail that comes from whoever runs the play.
pub const COORDINATOR: &str = "coordinator";

/// Mail or a report was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MailError {
    /// No part of the play has that role.
    #[error("no actor is called {0:?}")]
    NoSuchRole(String),
    /// Too long.
    #[error("mail of {0} bytes: at most {MAIL_MAX}")]
    TooLong(usize),
    /// The receiver has not read what it got. Try again in a later step, and receive meanwhile.
    #[error("the mailbox of {0:?} is full")]
    Full(String),
    /// The coordinator is gone.
    #[error("the coordinator is gone")]
    NoCoordinator,
}

/// All that an actor sees of its world.
pub struct ActorContext<'a> {
    backend: &'a mut dyn ContextBackend,
}

/// What a world provides to the actor that it steps.
pub trait ContextBackend {
    /// The actor's role.
    fn role(&self) -> &str;
    /// The world's clock.
    fn now(&mut self) -> Instant;
    /// See [`ActorContext::charge`].
    fn charge(&mut self, _cost: Duration) {}
    /// See [`ActorContext::copied`].
    fn copied(&mut self, _bytes: u64) {}
    /// See [`ActorContext::send`]; the length is within [`MAIL_MAX`].
    fn send(&mut self, to: &str, bytes: &[u8]) -> Result<(), MailError>;
    /// See [`ActorContext::receive`].
    fn receive(&mut self) -> Option<Mail>;
    /// See [`ActorContext::report`]; the length is within [`MAIL_MAX`].
    fn report(&mut self, bytes: &[u8]) -> Result<(), MailError>;
    /// See [`ActorContext::interrupted`].
    fn interrupted(&self) -> bool;
}

impl<'a> ActorContext<'a> {
    /// For worlds: the view that `backend` gives.
    pub fn new(backend: &'a mut dyn ContextBackend) -> Self {
        Self { backend }
    }

    /// The actor's role: its mail address.
    pub fn role(&self) -> &str {
        self.backend.role()
    }

    /// The world's clock.
    pub fn now(&mut self) -> Instant {
        self.backend.now()
    }

    /// Computing that costs `cost`: virtual processor time in a simulation, nothing elsewhere.
    pub fn charge(&mut self, cost: Duration) {
        self.backend.charge(cost);
    }

    /// `bytes` were copied: costed in a simulation, nothing elsewhere.
    pub fn copied(&mut self, bytes: u64) {
        self.backend.copied(bytes);
    }

    /// Mails another part. Mail to a part that has ended vanishes; mail between two parts keeps its
    /// order.
    pub fn send(&mut self, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        check_len(bytes)?;
        self.backend.send(to, bytes)
    }

    /// The oldest mail not yet read. Cheap when there is none.
    pub fn receive(&mut self) -> Option<Mail> {
        self.backend.receive()
    }

    /// Tells the caller of the world: results, progress.
    pub fn report(&mut self, bytes: &[u8]) -> Result<(), MailError> {
        check_len(bytes)?;
        self.backend.report(bytes)
    }

    /// Whether the play is to end early: finish what must be finished, then [`Step::Done`].
    pub fn interrupted(&self) -> bool {
        self.backend.interrupted()
    }
}

/// For what steps by itself, in no world: nobody can be mailed.
#[derive(Clone, Copy, Debug)]
pub struct StandaloneContext {
    /// The role.
    pub role: &'static str,
    /// The clock.
    pub clock: fn() -> Instant,
}

impl ContextBackend for StandaloneContext {
    fn role(&self) -> &str {
        self.role
    }
    fn now(&mut self) -> Instant {
        (self.clock)()
    }
    fn send(&mut self, to: &str, _: &[u8]) -> Result<(), MailError> {
        Err(MailError::NoSuchRole(to.to_owned()))
    }
    fn receive(&mut self) -> Option<Mail> {
        None
    }
    fn report(&mut self, _: &[u8]) -> Result<(), MailError> {
        Err(MailError::NoCoordinator)
    }
    fn interrupted(&self) -> bool {
        false
    }
}

pub(crate) fn check_len(bytes: &[u8]) -> Result<(), MailError> {
    if bytes.len() > MAIL_MAX {
        Err(MailError::TooLong(bytes.len()))
    } else {
        Ok(())
    }
}

/// Why an actor gave up: one line, and what it came from. Any error turns into one with `?`.
pub struct ActorError {
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ActorError {
    /// An error with no other behind it.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// `source`, with what was being done in front of it.
    pub fn context(
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// What it came from.
    pub fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

// Not an `Error` itself, so that every error converts into it.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for ActorError {
    fn from(error: E) -> Self {
        Self {
            message: String::new(),
            source: Some(error.into()),
        }
    }
}

impl fmt::Display for ActorError {
    /// The message and its sources on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut separator = if self.message.is_empty() { "" } else { ": " };
        let mut source = self.source();
        let mut last = self.message.clone();
        while let Some(error) = source {
            let text = error.to_string();
            // An error that shows its source already is not followed by it again.
            if !last.ends_with(&text) {
                write!(f, "{separator}{text}")?;
                separator = ": ";
                last = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for ActorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer: {0}")]
    struct Outer(#[source] MailError);

    #[test]
    fn any_error_becomes_one_line() {
        let error: ActorError = MailError::Full("b".into()).into();
        assert_eq!(error.to_string(), "the mailbox of \"b\" is full");
        let error = ActorError::context("round 3", Outer(MailError::NoCoordinator));
        assert_eq!(error.to_string(), "round 3: outer: the coordinator is gone");
        assert_eq!(ActorError::new("no").to_string(), "no");
        assert_eq!(ActorError::from("text").to_string(), "text");
    }

    #[test]
    fn the_earlier_deadline_counts() {
        let at = Instant::from_nanos;
        assert_eq!(
            WakeCondition::mail().until(at(5)).until(at(9)).deadline(),
            Some(at(5))
        );
        assert_eq!(WakeCondition::memory().deadline(), None);
    }
}

//! Actors, the results of their steps, and their view of the world.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_verbs::{Duration, Instant};

/// Longest mail or report, in bytes.
pub const MAIL_MAX: usize = 1 << 20;

/// An active object. It does not block, sleep or read a clock; its world steps it.
pub trait Actor: Send {
    /// Does a bounded amount of work, and returns when to do more. A world may step an actor sooner than it
    /// asked for, so an actor checks what it waits for instead of assuming that it is there.
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
    /// When the world's clock reads this time.
    At(Instant),
    /// When something changes.
    Wait(WakeCondition),
    /// Never: the actor has finished, and is dropped.
    Done,
}

/// The conditions that an idle actor waits for. Any one of them ends the wait.
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
    /// Waits for mail, including mail that is there already.
    pub fn mail() -> Self {
        Self {
            mail: true,
            ..Self::default()
        }
    }

    /// Waits until a descriptor is readable, such as a completion channel's or a socket's.
    pub fn fd(fd: WakeFd) -> Self {
        Self {
            fds: vec![fd],
            ..Self::default()
        }
    }

    /// Waits for memory or a queue that a device or a peer writes, and that no descriptor announces. A real
    /// world yields its core and steps the actor again; it never sleeps on this.
    pub fn memory() -> Self {
        Self {
            memory: true,
            ..Self::default()
        }
    }

    /// Adds mail to the conditions.
    pub fn or_mail(self) -> Self {
        Self { mail: true, ..self }
    }

    /// Adds a readable descriptor to the conditions.
    pub fn or_fd(mut self, fd: WakeFd) -> Self {
        self.fds.push(fd);
        self
    }

    /// Adds memory to the conditions; see [`WakeCondition::memory`].
    pub fn or_memory(self) -> Self {
        Self {
            memory: true,
            ..self
        }
    }

    /// Adds a deadline. The earliest deadline counts.
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

    /// The deadline, if there is one.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }
}

/// A descriptor to wait on. It stays open as long as any clone exists. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct WakeFd(Arc<OwnedFd>);

impl WakeFd {
    /// Duplicates `fd`. Do this once, and clone the result for every wait.
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

/// A message from another actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The sender's role, or [`COORDINATOR`].
    pub from: String,
    /// The message.
    pub bytes: Vec<u8>,
}

/// Sender of mail from the caller that runs the scenario.
pub const COORDINATOR: &str = "coordinator";

/// Mail or a report was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MailError {
    /// No actor of the scenario has that role.
    #[error("no actor is called {0:?}")]
    NoSuchRole(String),
    /// The message is too long.
    #[error("mail of {0} bytes: at most {MAIL_MAX} are allowed")]
    TooLong(usize),
    /// The receiver has not read its earlier mail. Receive your own mail, and try again in a later step.
    #[error("the mailbox of {0:?} is full")]
    Full(String),
    /// The coordinator is gone.
    #[error("the coordinator is gone")]
    NoCoordinator,
}

/// An actor's view of its world.
pub struct ActorContext<'a> {
    backend: &'a mut dyn ContextBackend,
}

/// Backend of [`ActorContext`] that a world provides for the actor that it steps.
pub trait ContextBackend {
    /// The actor's role.
    fn role(&self) -> &str;
    /// The world's clock.
    fn now(&mut self) -> Instant;
    /// See [`ActorContext::charge`].
    fn charge(&mut self, _cost: Duration) {}
    /// See [`ActorContext::copied`].
    fn copied(&mut self, _bytes: u64) {}
    /// See [`ActorContext::models_memory`].
    fn models_memory(&self) -> bool {
        false
    }
    /// See [`ActorContext::reads`] and [`ActorContext::writes`].
    fn accesses(&mut self, _begin: *const u8, _len: usize, _writes: bool) {}
    /// See [`ActorContext::device_reads`].
    fn device_reads(&mut self, _begin: *const u8, _len: usize) {}
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
    /// For worlds: wraps `backend`.
    pub fn new(backend: &'a mut dyn ContextBackend) -> Self {
        Self { backend }
    }

    /// The actor's role, which is its mail address.
    pub fn role(&self) -> &str {
        self.backend.role()
    }

    /// The current time of the world's clock.
    pub fn now(&mut self) -> Instant {
        self.backend.now()
    }

    /// Charges for computation: `cost` of virtual processor time in a simulation, nothing elsewhere.
    pub fn charge(&mut self, cost: Duration) {
        self.backend.charge(cost);
    }

    /// Charges for copying `bytes` bytes in a simulation; does nothing elsewhere.
    pub fn copied(&mut self, bytes: u64) {
        self.backend.copied(bytes);
    }

    /// Returns whether the world models the memory of hosts. If not, [`reads`](Self::reads), [`writes`](Self::writes) and
    /// [`device_reads`](Self::device_reads) do nothing.
    pub fn models_memory(&self) -> bool {
        self.backend.models_memory()
    }

    /// Notes that this actor reads `len` bytes of memory from `begin` on. In a simulation that models the host's
    /// cache, the actor waits for the lines of registered memory that are not cached; elsewhere nothing happens.
    /// Nothing is read here, so any pointer is fine. The processor's own time is charged by
    /// [`charge`](Self::charge) or [`copied`](Self::copied).
    pub fn reads(&mut self, begin: *const u8, len: usize) {
        self.backend.accesses(begin, len, false);
    }

    /// Notes that this actor writes `len` bytes of memory from `begin` on; otherwise as [`reads`](Self::reads).
    pub fn writes(&mut self, begin: *const u8, len: usize) {
        self.backend.accesses(begin, len, true);
    }

    /// Notes that a device other than the RNIC, such as an SSD, reads `len` bytes of memory from `begin` on, by DMA.
    /// Otherwise as [`reads`](Self::reads), except that the actor does not wait.
    pub fn device_reads(&mut self, begin: *const u8, len: usize) {
        self.backend.device_reads(begin, len);
    }

    /// Sends mail to another actor. Mail to an actor that has ended is discarded. Mail between two actors
    /// stays in order.
    pub fn send(&mut self, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        check_len(bytes)?;
        self.backend.send(to, bytes)
    }

    /// Returns the oldest unread mail. Cheap if there is none.
    pub fn receive(&mut self) -> Option<Mail> {
        self.backend.receive()
    }

    /// Reports to the caller of the world, for example results or progress.
    pub fn report(&mut self, bytes: &[u8]) -> Result<(), MailError> {
        check_len(bytes)?;
        self.backend.report(bytes)
    }

    /// Whether the scenario is to end early: finish what must be finished, then return [`Step::Done`].
    pub fn interrupted(&self) -> bool {
        self.backend.interrupted()
    }
}

/// Context of an actor that is stepped outside of any world. It has nobody to mail.
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

/// Failure of an actor: a message of one line, and the source error. Any error converts into it with `?`.
pub struct ActorError {
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ActorError {
    /// Creates an error without a source.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// Puts a message in front of `source` that says what was being done.
    pub fn context(
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// The source error.
    pub fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

// This is not an `Error` itself, so that every error can convert into it.
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
            // Some errors show their source in their own text; then it is not repeated.
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

//! Common code of the examples: arguments, exit codes, the other process, Ctrl-C.

use std::error::Error;
use std::io::{ErrorKind, Stdin, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::LazyLock;
use std::thread::yield_now;

use headworks::connect::ConnectError;
use headworks::net::signals::EXIT_INTERRUPTED;
use headworks::net::{ControlStream, Interrupt, NetError, WaitLimit, clock};
use headworks::ring::{BrokenRing, RingError, SendError};
use headworks::service::{Refusal, ServiceError};
use headworks::verbs::{Duration, Instant};

/// Reason for which a program ends early.
#[derive(Debug)]
pub enum Failure {
    /// An argument is wrong: exit code 2.
    BadInput(String),
    /// The program failed, or the other side died: exit code 1.
    Failed(String),
    /// Ctrl-C: exit code 130.
    Interrupted,
}

/// Result of a step of an example.
pub type Outcome<T = ()> = Result<T, Failure>;

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        of(&error)
    }
}

fn of(error: &(dyn Error + 'static)) -> Failure {
    match error.downcast_ref() {
        Some(NetError::Interrupted) => return Failure::Interrupted,
        Some(NetError::PeerGone) => return gone(),
        // The name is not legal, or another process listens under it.
        Some(NetError::Registry(error)) => return Failure::BadInput(error.to_string()),
        _ => {}
    }
    match error.downcast_ref() {
        Some(
            ServiceError::NoDaemon { .. }
            | ServiceError::Refused(Refusal::PortTaken | Refusal::Denied),
        ) => return Failure::BadInput(error.to_string()),
        Some(ServiceError::Ended) => return gone(),
        _ => {}
    }
    if let Some(ConnectError::ControlStream(error)) = error.downcast_ref() {
        return of(error);
    }
    if let Some(SendError::Broken(error)) = error.downcast_ref() {
        return of(error);
    }
    if let Some(BrokenRing { error, .. }) = error.downcast_ref() {
        return of(error);
    }
    match error.downcast_ref::<RingError>() {
        Some(error) if error.is_peer_gone() => gone(),
        _ => Failure::Failed(error.to_string()),
    }
}

/// The failure of a program whose other side is gone.
pub fn gone() -> Failure {
    Failure::Failed("the other side is gone".to_owned())
}

/// Runs a program with its arguments, and returns its exit code. On failure it prints one line on standard
/// error.
pub fn run(name: &str, program: impl FnOnce(&[&str], &Interrupt) -> Outcome) -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let args: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    let done = Interrupt::install()
        .map_err(Failure::from)
        .and_then(|interrupt| judged(program(&args, &interrupt), &interrupt));
    let (code, line) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::BadInput(line)) => (2, line),
        Err(Failure::Failed(line)) => (1, line),
        Err(Failure::Interrupted) => (EXIT_INTERRUPTED, "interrupted".to_owned()),
    };
    // One write, so that lines of two processes do not mix. If it fails, the exit code still tells the
    // result.
    let _ = std::io::stderr().write_all(format!("{name}: {line}\n").as_bytes());
    code.into()
}

/// Corrects the reason of a failure. Ctrl-C reaches both sides, so a side may fail only because the other was
/// interrupted first. An interrupted wait without Ctrl-C means that the other side is gone.
fn judged(done: Outcome, interrupt: &Interrupt) -> Outcome {
    match done {
        Err(Failure::Failed(_)) if interrupt.is_raised() => Err(Failure::Interrupted),
        Err(Failure::Interrupted) if !interrupt.is_raised() => Err(gone()),
        done => done,
    }
}

/// Prints text on standard output. A closed pipe is no failure; any other error, such as a full disk, is.
pub fn say(text: &[u8]) -> Outcome {
    let mut out = std::io::stdout();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether an argument consists of digits.
pub fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A number of messages, at least 1.
pub fn count(text: &str) -> Outcome<u64> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Failure::BadInput(format!(
            "{text:?} is no count: 1 or more"
        ))),
    }
}

/// Environment variable of a process that an example started. Its standard input ends with its parent.
pub(crate) const STARTED: &str = "HEADWORKS_EXAMPLE_STARTED";

/// Runs both sides: starts this program again with the arguments `listen NAME`, and calls `other` here with
/// the NAME. Both must succeed.
pub fn run_both(program: &str, other: impl FnOnce(&str) -> Outcome) -> Outcome {
    let name = format!("{program}-{}", std::process::id());
    let listener = Command::new(std::env::current_exe()?)
        .args(["listen", &name])
        .env(STARTED, "1")
        .stdin(Stdio::piped())
        .spawn()?;
    let mut listener = Process(listener);
    other(&name)?;
    match listener.0.wait()? {
        status if status.success() => Ok(()),
        status => Err(Failure::Failed(format!("the listening side: {status}"))),
    }
}

/// Another process. Dropping it kills the process.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process has ended already or is no longer needed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The limit of a wait that may never end: no deadline, but Ctrl-C ends it. If [`run_both`] started this
/// process, the end of its parent ends the wait instead, because Ctrl-C reaches the parent too.
pub fn no_deadline(interrupt: &Interrupt) -> WaitLimit<'_> {
    if std::env::var_os(STARTED).is_some() {
        static STARTER: LazyLock<Stdin> = LazyLock::new(std::io::stdin);
        return WaitLimit::deadline(Instant::FAR_FUTURE).or_readable(&*STARTER);
    }
    WaitLimit::deadline(Instant::FAR_FUTURE).or_readable(interrupt)
}

/// The limit of a wait for a peer that should be there already: 10 s, or until Ctrl-C.
pub fn short_deadline(interrupt: &Interrupt) -> WaitLimit<'_> {
    WaitLimit::deadline(clock::now() + Duration::from_secs(10)).or_readable(interrupt)
}

/// The waiting part of a polling loop.
pub struct IdleWait<'a> {
    interrupt: &'a Interrupt,
    looks: u32,
}

impl<'a> IdleWait<'a> {
    /// Makes one whose calls also fail when `interrupt` is raised.
    pub fn new(interrupt: &'a Interrupt) -> Self {
        Self {
            interrupt,
            looks: 0,
        }
    }

    /// Fails after Ctrl-C. Call it for every message, so that a loop that is never idle ends as well.
    pub fn check(&self) -> Outcome {
        match self.interrupt.is_raised() {
            true => Err(Failure::Interrupted),
            false => Ok(()),
        }
    }

    /// Yields the core. Every 256th call checks instead whether the process at the other end of the control
    /// stream is gone, and returns the message it sent there, if any. Fails after Ctrl-C.
    pub fn idle(&mut self, line: &mut ControlStream) -> Outcome<Option<Vec<u8>>> {
        self.looks = self.looks.wrapping_add(1);
        self.check()?;
        if self.looks.is_multiple_of(256) {
            return Ok(line.recv_control()?);
        }
        yield_now();
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn a_busy_program_is_interrupted_and_its_failure_forgiven() {
        let interrupt = Interrupt::install().expect("installs");
        let watch = IdleWait::new(&interrupt);
        assert!(watch.check().is_ok());
        assert!(matches!(
            judged(Err(gone()), &interrupt),
            Err(Failure::Failed(_))
        ));
        kill_process(getpid(), Signal::TERM).expect("signals itself");
        while !interrupt.is_raised() {
            yield_now();
        }
        assert!(matches!(watch.check(), Err(Failure::Interrupted)));
        let gone = judged(Err(gone()), &interrupt);
        assert!(matches!(gone, Err(Failure::Interrupted)));
        assert!(judged(Ok(()), &interrupt).is_ok());
    }
}

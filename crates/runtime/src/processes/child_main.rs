//! Entry point of an actor's process. The coordinator starts the process, which runs one actor and exits.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::actor::{COORDINATOR, MailError};
use crate::context::{MailTransport, RealTimeContext};
use crate::mailbox::Mailbox;
use crate::processes::protocol::{self, FromChild, MESSAGE_MAX, ToChild};
use crate::step_loop::run_actor;
use crate::world::ActorOutcome;
use crate::{ActorInit, ActorRegistry, ActorSpec, DeviceOpener};
use headworks_net::framing::{FrameDecoder, FrameError};

/// Environment variable that marks a process whose standard input is the coordinator's socket. Its value is
/// that socket's inode number, a colon, and the coordinator's process id.
pub(crate) const CHILD_VARIABLE: &str = "HEADWORKS_RUNTIME_CHILD";

/// Maximum number of bytes of mail and reports that wait to be written to the coordinator's socket. Beyond
/// it, sending fails with [`MailError::Full`].
const UNWRITTEN_MAX: usize = 4 << 20;

/// Runs the actor if [`Processes`](crate::Processes) started this process for an actor, and returns the exit
/// code for `main`. Returns `None` in every other process. Call it first in `main`:
///
/// ```no_run
/// use std::process::ExitCode;
/// use headworks_runtime::{ActorRegistry, child_entry, no_device_opener};
///
/// fn main() -> ExitCode {
///     let cast = ActorRegistry::new(); // …with the program's actors
///     if let Some(code) = child_entry(&cast, no_device_opener()) {
///         return code;
///     }
///     // The program proper.
///     ExitCode::SUCCESS
/// }
/// ```
pub fn child_entry(actors: &ActorRegistry, opener: DeviceOpener) -> Option<ExitCode> {
    run_if_child(actors, opener).map(ExitCode::from)
}

/// [`child_entry`] for test programs: does not return in a process that was started for an actor. A test
/// program that uses [`Processes::of_this_test`](crate::Processes::of_this_test) has one test that does only
/// this:
///
/// ```
/// # use headworks_runtime::{ActorRegistry, child_entry_in_test, no_device_opener};
/// # fn cast() -> ActorRegistry { ActorRegistry::new() }
/// // #[test]
/// fn child_process_entry() {
///     child_entry_in_test(&cast(), no_device_opener());
/// }
/// # child_process_entry();
/// ```
pub fn child_entry_in_test(actors: &ActorRegistry, opener: DeviceOpener) {
    if let Some(code) = run_if_child(actors, opener) {
        std::process::exit(code.into());
    }
}

fn run_if_child(actors: &ActorRegistry, opener: DeviceOpener) -> Option<u8> {
    let value = std::env::var(CHILD_VARIABLE).ok()?;
    let (inode, coordinator) = value.split_once(':')?;
    // Programs that an actor starts inherit the variable, but not the socket.
    let stdin = rustix::fs::fstat(rustix::stdio::stdin()).ok()?;
    let is_socket = FileType::from_raw_mode(stdin.st_mode) == FileType::Socket;
    if !is_socket || inode.parse() != Ok(stdin.st_ino) {
        return None;
    }
    match run_child(actors, opener, coordinator.parse().ok()?) {
        Ok(ActorOutcome::Done) => Some(0),
        Ok(_) => Some(1),
        Err(error) => {
            print_error("cannot run the actor", &error);
            Some(1)
        }
    }
}

fn run_child(
    actors: &ActorRegistry,
    opener: DeviceOpener,
    coordinator: i32,
) -> io::Result<ActorOutcome> {
    // When the coordinator dies, the kernel then kills this process, even if it is stopped or stuck. The parent
    // is checked afterwards, in case it died before this call.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != coordinator) {
        return Err(io::Error::other("the coordinator is gone"));
    }
    let socket = Arc::new(rustix::stdio::stdin().try_clone_to_owned()?);
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(null)?;

    let mut stream = MessageReader {
        socket: Arc::clone(&socket),
        deframer: FrameDecoder::new(MESSAGE_MAX),
    };
    let Some(ToChild::Start { spec, roles }) = stream.next()? else {
        return Err(io::Error::other("the coordinator sent no actor to run"));
    };
    let mailbox = Arc::new(Mailbox::new(&spec.role)?);
    let reader = Arc::clone(&mailbox);
    // The thread is started before pinning, so that it does not share the actor's processor.
    std::thread::Builder::new()
        .name("mail".into())
        .spawn(move || read_mail(stream, &reader))?;
    Ok(run_in_this_process(
        actors, spec, opener, roles, mailbox, socket,
    ))
}

fn run_in_this_process(
    actors: &ActorRegistry,
    spec: ActorSpec,
    opener: DeviceOpener,
    roles: Vec<String>,
    mailbox: Arc<Mailbox>,
    socket: Arc<OwnedFd>,
) -> ActorOutcome {
    let parts = roles.len();
    let post = SocketTransport {
        socket,
        roles,
        unwritten: Vec::new(),
    };
    let mut context = RealTimeContext {
        role: spec.role.clone(),
        mailbox,
        post,
    };
    let outcome = run_actor(actors, &ActorInit { spec, opener }, parts, &mut context);
    // The coordinator treats a process that ends without an outcome as dead, so an error needs no handling.
    let _ = context.post.send_outcome(&outcome);
    outcome
}

/// Prints an error to standard error, which the coordinator forwards. There is no other way to report it.
fn print_error(what: &str, error: &io::Error) {
    let _ = writeln!(io::stderr(), "{what}: {error}");
}

/// Delivers the coordinator's messages to the mailbox until the socket closes, and then kills this process.
fn read_mail(mut stream: MessageReader, mailbox: &Mailbox) {
    loop {
        match stream.next() {
            Ok(Some(ToChild::Mail(mail))) => mailbox.put_blocking(mail),
            Ok(Some(ToChild::Interrupt)) => mailbox.interrupt(),
            Ok(Some(ToChild::Cancel)) => mailbox.cancel(),
            Ok(Some(ToChild::Start { .. })) => {}
            Ok(None) => break,
            Err(error) => {
                print_error("cannot read from the coordinator", &error);
                break;
            }
        }
    }
    // The parent-death signal would do the same. An orderly exit could wait for the actor's thread.
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Reads messages from the coordinator.
struct MessageReader {
    socket: Arc<OwnedFd>,
    deframer: FrameDecoder,
}

impl MessageReader {
    /// Waits for the next message; `None` at the end of the stream.
    fn next(&mut self) -> io::Result<Option<ToChild>> {
        let mut bytes = vec![0; 64 << 10];
        loop {
            if let Some(message) = self.deframer.next_message().map_err(io::Error::other)? {
                return ToChild::parse(&message).map(Some).map_err(io::Error::other);
            }
            match rustix::io::retry_on_intr(|| recv(&self.socket, &mut bytes, RecvFlags::empty())) {
                Ok((0, _)) => return Ok(None),
                Ok((got, _)) => self.deframer.feed(&bytes[..got]),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sends mail and reports to the coordinator.
struct SocketTransport {
    socket: Arc<OwnedFd>,
    roles: Vec<String>,
    unwritten: Vec<u8>,
}

impl SocketTransport {
    fn write(
        &mut self,
        receiver: &str,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError>,
    ) -> Result<(), MailError> {
        if self.unwritten.len() > UNWRITTEN_MAX {
            return Err(MailError::Full(receiver.to_owned()));
        }
        // `encode` cannot fail: the callers have checked the length.
        encode(&mut self.unwritten).map_err(|_| MailError::TooLong(crate::MAIL_MAX))?;
        self.flush().map_err(|_| MailError::NoCoordinator)
    }

    fn send_outcome(&mut self, outcome: &ActorOutcome) -> io::Result<()> {
        let why = match outcome {
            ActorOutcome::Done => None,
            failed => Some(failed.to_string()),
        };
        FromChild::Ended(why)
            .encode(&mut self.unwritten)
            .map_err(io::Error::other)?;
        let mut rest = self.unwritten.as_slice();
        while !rest.is_empty() {
            let flags = SendFlags::NOSIGNAL;
            let sent = rustix::io::retry_on_intr(|| send(&self.socket, rest, flags))?;
            rest = &rest[sent..];
        }
        Ok(())
    }
}

impl MailTransport for SocketTransport {
    fn send(&mut self, _from: &str, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        if !self.roles.iter().any(|role| role == to) {
            return Err(MailError::NoSuchRole(to.to_owned()));
        }
        self.write(to, |out| protocol::mail_to(out, to, bytes))
    }

    fn report(&mut self, _role: &str, bytes: &[u8]) -> Result<(), MailError> {
        self.write(COORDINATOR, |out| protocol::report(out, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        super::write_some(&self.socket, &mut self.unwritten)
    }

    fn unwritten(&self) -> Option<BorrowedFd<'_>> {
        (!self.unwritten.is_empty()).then(|| self.socket.as_fd())
    }
}

//! The process of one part: started by the director, it plays and ends.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::actor::{DIRECTOR, MailError};
use crate::cast::{Cast, Opener, Part, PartSpec};
use crate::desk::{Desk, Post};
use crate::frame::{Deframer, FrameError};
use crate::mailbox::Mailbox;
use crate::processes::wire::{self, FromChild, MESSAGE_MAX, ToChild};
use crate::runner::perform;
use crate::world::Outcome;

/// Says to a process that its standard input is the director's socket: that socket's inode number,
/// a colon, and the director's process id.
pub(crate) const CHILD_VARIABLE: &str = "HEADWORKS_STAGE_CHILD";

/// Mail and reports that a part has handed over and the director has not read.
const UNWRITTEN_MAX: usize = 4 << 20;

/// Plays the part if this process was started for one by [`Processes`](crate::Processes), and returns
/// its exit code; `None` in every other process. First thing in `main`:
///
/// ```no_run
/// use std::process::ExitCode;
/// use headworks_stage::{Cast, child_entry, no_devices};
///
/// fn main() -> ExitCode {
///     let cast = Cast::new(); // …with the program's actors
///     if let Some(code) = child_entry(&cast, no_devices()) {
///         return code;
///     }
///     // The program proper.
///     ExitCode::SUCCESS
/// }
/// ```
pub fn child_entry(cast: &Cast, opener: Opener) -> Option<ExitCode> {
    play_if_child(cast, opener).map(ExitCode::from)
}

/// [`child_entry`] for test programs: does not return in a process that was started for a part. A
/// test program that uses [`Processes::of_this_test`](crate::Processes::of_this_test) has one test that
/// does only this:
///
/// ```
/// # use headworks_stage::{Cast, child_entry_in_test, no_devices};
/// # fn cast() -> Cast { Cast::new() }
/// // #[test]
/// fn plays_a_part() {
///     child_entry_in_test(&cast(), no_devices());
/// }
/// # plays_a_part();
/// ```
pub fn child_entry_in_test(cast: &Cast, opener: Opener) {
    if let Some(code) = play_if_child(cast, opener) {
        std::process::exit(code.into());
    }
}

fn play_if_child(cast: &Cast, opener: Opener) -> Option<u8> {
    let value = std::env::var(CHILD_VARIABLE).ok()?;
    let (inode, director) = value.split_once(':')?;
    // Programs that a part starts inherit the variable, not the socket.
    let stdin = rustix::fs::fstat(rustix::stdio::stdin()).ok()?;
    let is_socket = FileType::from_raw_mode(stdin.st_mode) == FileType::Socket;
    if !is_socket || inode.parse() != Ok(stdin.st_ino) {
        return None;
    }
    match play(cast, opener, director.parse().ok()?) {
        Ok(Outcome::Done) => Some(0),
        Ok(_) => Some(1),
        Err(error) => {
            complain("a part's process", &error);
            Some(1)
        }
    }
}

fn play(cast: &Cast, opener: Opener, director: i32) -> io::Result<Outcome> {
    // Also ends a process that is stopped or stuck. The look at the parent comes after, in case it
    // died before.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != director) {
        return Err(io::Error::other("the director is gone"));
    }
    let socket = Arc::new(rustix::stdio::stdin().try_clone_to_owned()?);
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(null)?;

    let mut stream = Incoming {
        socket: Arc::clone(&socket),
        deframer: Deframer::new(MESSAGE_MAX),
    };
    let Some(ToChild::Start { spec, roles }) = stream.next()? else {
        return Err(io::Error::other("the director did not say what to play"));
    };
    let mailbox = Arc::new(Mailbox::new(&spec.role)?);
    let reader = Arc::clone(&mailbox);
    // Before pinning, so that it does not share the part's processor.
    std::thread::Builder::new()
        .name("mail".into())
        .spawn(move || read_mail(stream, &reader))?;
    Ok(perform_here(cast, spec, opener, roles, mailbox, socket))
}

fn perform_here(
    cast: &Cast,
    spec: PartSpec,
    opener: Opener,
    roles: Vec<String>,
    mailbox: Arc<Mailbox>,
    socket: Arc<OwnedFd>,
) -> Outcome {
    let parts = roles.len();
    let post = Wire {
        socket,
        roles,
        unwritten: Vec::new(),
    };
    let mut desk = Desk {
        role: spec.role.clone(),
        mailbox,
        post,
    };
    let outcome = perform(cast, &Part { spec, opener }, parts, &mut desk);
    // The director counts a process that goes without a last word as dead: nothing more to do here.
    let _ = desk.post.say_last(&outcome);
    outcome
}

/// There is no one else to tell: the director forwards it.
fn complain(what: &str, error: &io::Error) {
    let _ = writeln!(io::stderr(), "{what}: {error}");
}

/// Reads until the director's end, which is this process's end.
fn read_mail(mut stream: Incoming, mailbox: &Mailbox) {
    loop {
        match stream.next() {
            Ok(Some(ToChild::Mail(mail))) => mailbox.put_patiently(mail),
            Ok(Some(ToChild::Interrupt)) => mailbox.interrupt(),
            Ok(Some(ToChild::Start { .. })) => {}
            Ok(None) => break,
            Err(error) => {
                complain("from the director", &error);
                break;
            }
        }
    }
    // As the death signal would; an orderly exit could wait for the part's thread.
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Messages from the director.
struct Incoming {
    socket: Arc<OwnedFd>,
    deframer: Deframer,
}

impl Incoming {
    /// Waits for the next one; `None` at the end.
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

/// The way to the director.
struct Wire {
    socket: Arc<OwnedFd>,
    roles: Vec<String>,
    unwritten: Vec<u8>,
}

impl Wire {
    fn write(
        &mut self,
        receiver: &str,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError>,
    ) -> Result<(), MailError> {
        if self.unwritten.len() > UNWRITTEN_MAX {
            return Err(MailError::Full(receiver.to_owned()));
        }
        // The length was checked before.
        encode(&mut self.unwritten).map_err(|_| MailError::TooLong(crate::MAIL_MAX))?;
        self.flush().map_err(|_| MailError::NoDirector)
    }

    fn say_last(&mut self, outcome: &Outcome) -> io::Result<()> {
        let why = match outcome {
            Outcome::Done => None,
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

impl Post for Wire {
    fn send(&mut self, _from: &str, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        if !self.roles.iter().any(|role| role == to) {
            return Err(MailError::NoSuchRole(to.to_owned()));
        }
        self.write(to, |out| wire::mail_to(out, to, bytes))
    }

    fn report(&mut self, _role: &str, bytes: &[u8]) -> Result<(), MailError> {
        self.write(DIRECTOR, |out| wire::report(out, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        super::write_some(&self.socket, &mut self.unwritten)
    }

    fn unwritten(&self) -> Option<BorrowedFd<'_>> {
        (!self.unwritten.is_empty()).then(|| self.socket.as_fd())
    }
}

//! A world of processes: the current program once per part, directed over sockets.
//!
//! Each part's process is this program again, with a socket as its standard input and a variable in
//! its environment that says so; its `main` (or, in a test program, one test) calls [`child_entry`], which
//! plays the part and ends. Mail goes through the director, a thread of the starting process; a part's
//! standard error comes out on ours, with the role in front of each line.
//!
//! No process outlives its play: they are killed when the [`Running`] is dropped, and by the kernel
//! when the director dies in whatever way. They have process groups of their own, so that Ctrl-C is
//! the director's to handle ([`Running::interrupt`]).

mod child;
mod director;
mod troupe;
mod wire;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use headworks_verbs::{Duration, Instant};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::process::{Signal, pidfd_send_signal};

use crate::actor::{DIRECTOR, Mail, MailError, check_len};
use crate::alarm::Alarm;
use crate::cast::Play;
use crate::clock;
use crate::queue::{Audience, Events};
use crate::world::{Event, Outcome, Running, StageError, World};
use director::{Director, Shared};
use wire::ToChild;

pub use child::{child_entry, child_entry_in_test};

/// Runs plays in processes of the current program.
#[derive(Clone, Debug)]
pub struct Processes {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Processes {
    /// For another program, whose `main` calls [`child_entry`] first and has the same actors.
    pub fn of(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().collect(),
        }
    }

    /// For a program whose `main` calls [`child_entry`] first.
    pub fn of_this_program() -> Self {
        // The same program even when its file has been replaced meanwhile.
        Self::of("/proc/self/exe", [])
    }

    /// For a test program whose test `entry` (its full path, as `--exact` takes it) calls
    /// [`child_entry_in_test`].
    pub fn of_this_test(entry: &str) -> Self {
        let args = [entry, "--exact", "--nocapture", "--test-threads=1"];
        Self {
            args: args.map(OsString::from).to_vec(),
            ..Self::of_this_program()
        }
    }
}

impl World for Processes {
    fn start(&self, play: &Play) -> Result<Box<dyn Running>, StageError> {
        let roles = play.check()?;
        let alarm = Alarm::new().map_err(|error| StageError::system("eventfd", error))?;
        let alarm = Arc::new(alarm);
        let events = Arc::new(Events::new(roles.len(), Some(Arc::clone(&alarm))));
        let (program, args, play) = (self.program.clone(), self.args.clone(), play.clone());
        let (started, outcome) = mpsc::channel();
        let heard = Arc::clone(&events);
        // The kernel kills the processes when the *thread* that started them ends, so one thread
        // starts them, routes for them and sees them end.
        let thread = std::thread::Builder::new()
            .name("director".into())
            .spawn(
                move || match Director::start(&program, &args, &play, heard, alarm) {
                    Ok((director, shared)) => {
                        if started.send(Ok(shared)).is_ok() {
                            director.run();
                        }
                    }
                    Err(error) => drop(started.send(Err(error))),
                },
            )
            .map_err(|error| StageError::system("starting a thread", error))?;
        // The sender is dropped unused only if the thread panics.
        let gone = || StageError::system("director", io::Error::other("panicked"));
        let shared = outcome.recv().map_err(|_| gone())??;
        let audience = Audience::new(roles, events);
        Ok(Box::new(Directed {
            audience,
            shared,
            thread: Some(thread),
        }))
    }

    fn can_kill(&self) -> bool {
        true
    }
}

/// The caller's handle of a play in processes.
struct Directed {
    audience: Audience,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Directed {
    fn index(&self, role: &str) -> Result<usize, StageError> {
        let no_such = || MailError::NoSuchRole(role.to_owned()).into();
        self.audience.index(role).ok_or_else(no_such)
    }

    fn signal(&self, role: &str, signal: Signal) -> Result<(), StageError> {
        let port = &self.shared.ports[self.index(role)?];
        match pidfd_send_signal(&port.pidfd, signal) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(StageError::Ended(role.to_owned())),
            Err(error) => Err(StageError::system(format!("signal to {role}"), error)),
        }
    }
}

impl Running for Directed {
    fn roles(&self) -> &[String] {
        &self.audience.roles
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn poll(&mut self, timeout: Duration) -> Option<Event> {
        self.audience.poll(timeout)
    }

    fn send(&mut self, role: &str, bytes: &[u8]) -> Result<(), StageError> {
        check_len(bytes)?;
        let port = &self.shared.ports[self.index(role)?];
        let mail = Mail {
            from: DIRECTOR.to_owned(),
            bytes: bytes.to_vec(),
        };
        match port.post(&ToChild::Mail(mail), false) {
            director::Posted::Yes => {
                self.shared.alarm.ring();
                Ok(())
            }
            director::Posted::Full => Err(MailError::Full(role.to_owned()).into()),
            director::Posted::Ended => Err(StageError::Ended(role.to_owned())),
        }
    }

    fn interrupt(&mut self) {
        for port in &self.shared.ports {
            port.post(&ToChild::Interrupt, true);
        }
        self.shared.alarm.ring();
    }

    fn kill(&mut self, role: &str) -> Result<(), StageError> {
        self.signal(role, Signal::KILL)
    }

    fn stop(&mut self, role: &str) -> Result<(), StageError> {
        self.signal(role, Signal::STOP)
    }

    fn cont(&mut self, role: &str) -> Result<(), StageError> {
        self.signal(role, Signal::CONT)
    }

    fn pid(&self, role: &str) -> Option<u32> {
        let index = self.audience.index(role)?;
        Some(self.shared.ports[index].pid)
    }

    fn outcome(&self, role: &str) -> Option<Outcome> {
        self.audience.outcome(role)
    }
}

impl Drop for Directed {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // It kills and reaps before it ends, also when it panics.
            let _ = thread.join();
        }
    }
}

/// Writes what the socket takes now, and keeps the rest.
fn write_some(socket: &OwnedFd, unwritten: &mut Vec<u8>) -> io::Result<()> {
    let mut done = 0;
    let result = loop {
        if done == unwritten.len() {
            break Ok(());
        }
        match send(
            socket,
            &unwritten[done..],
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => done += sent,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    unwritten.drain(..done);
    if unwritten.is_empty() && unwritten.capacity() > crate::frame::KEPT {
        *unwritten = Vec::new();
    }
    result
}

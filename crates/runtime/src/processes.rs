//! A world of processes: it runs the current program once for each actor and controls it over a socket.
//!
//! The process of an actor is this program again, with a socket as its standard input and an environment
//! variable that marks it. The program's `main` (or, in a test program, one test) calls [`child_entry`],
//! which runs the actor and ends the process. Mail goes through the coordinator, a thread of the starting
//! process. The actor's standard error is copied to ours, with the role in front of each line.
//!
//! No process outlives its scenario: the processes are killed when the [`RunningScenario`] is dropped, and by
//! the kernel when the coordinator dies in whatever way. They have process groups of their own, so that
//! Ctrl-C reaches only the coordinator, which handles it ([`RunningScenario::interrupt`]).

mod child;
mod child_main;
mod coordinator;
pub(crate) mod protocol;

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

use crate::Scenario;
use crate::actor::{COORDINATOR, Mail, MailError, check_len};
use crate::scenario_events::{EventReceiver, ScenarioEvents};
use crate::world::{ActorOutcome, RunningScenario, ScenarioError, ScenarioEvent, World};
use coordinator::{Coordinator, CoordinatorState};
use headworks_net::EventFd;
use headworks_net::clock;
use protocol::ToChild;

pub use child_main::{child_entry, child_entry_in_test};

/// Runs scenarios in processes of the current program.
#[derive(Clone, Debug)]
pub struct Processes {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Processes {
    /// Uses another program, whose `main` calls [`child_entry`] first and registers the same actors.
    pub fn of(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().collect(),
        }
    }

    /// Uses the current program, whose `main` calls [`child_entry`] first.
    pub fn of_this_program() -> Self {
        // This is the same program even if its file has been replaced meanwhile.
        Self::of("/proc/self/exe", [])
    }

    /// Uses the current test program, whose test `entry` (its full path, as `--exact` takes it) calls
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
    fn start(&self, scenario: &Scenario) -> Result<Box<dyn RunningScenario>, ScenarioError> {
        let roles = scenario.check()?;
        let alarm = EventFd::new().map_err(|error| ScenarioError::system("eventfd", error))?;
        let alarm = Arc::new(alarm);
        let events = Arc::new(ScenarioEvents::new(roles.len(), Some(Arc::clone(&alarm))));
        let (program, args, scenario) = (self.program.clone(), self.args.clone(), scenario.clone());
        let (started, outcome) = mpsc::channel();
        let heard = Arc::clone(&events);
        // The kernel kills the processes when the *thread* that started them ends. Therefore one thread
        // starts them, routes their mail and reaps them.
        let thread = std::thread::Builder::new()
            .name("coordinator".into())
            .spawn(
                move || match Coordinator::start(&program, &args, &scenario, heard, alarm) {
                    Ok((coordinator, shared)) => {
                        if started.send(Ok(shared)).is_ok() {
                            coordinator.run();
                        }
                    }
                    Err(error) => drop(started.send(Err(error))),
                },
            )
            .map_err(|error| ScenarioError::system("starting a thread", error))?;
        // The sender is dropped unused only if the thread panics.
        let gone = || ScenarioError::system("coordinator", io::Error::other("panicked"));
        let shared = outcome.recv().map_err(|_| gone())??;
        let audience = EventReceiver::new(roles, events);
        Ok(Box::new(RunningProcesses {
            audience,
            shared,
            thread: Some(thread),
        }))
    }

    fn can_kill(&self) -> bool {
        true
    }
}

/// The caller's handle of a scenario that runs in processes.
struct RunningProcesses {
    audience: EventReceiver,
    shared: Arc<CoordinatorState>,
    thread: Option<JoinHandle<()>>,
}

impl RunningProcesses {
    fn index(&self, role: &str) -> Result<usize, ScenarioError> {
        let no_such = || MailError::NoSuchRole(role.to_owned()).into();
        self.audience.index(role).ok_or_else(no_such)
    }

    fn signal(&self, role: &str, signal: Signal) -> Result<(), ScenarioError> {
        let port = &self.shared.outboxes[self.index(role)?];
        match pidfd_send_signal(&port.pidfd, signal) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(ScenarioError::Ended(role.to_owned())),
            Err(error) => Err(ScenarioError::system(format!("signal to {role}"), error)),
        }
    }
}

impl RunningScenario for RunningProcesses {
    fn roles(&self) -> &[String] {
        &self.audience.roles
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn poll(&mut self, timeout: Duration) -> Option<ScenarioEvent> {
        self.audience.poll(timeout)
    }

    fn send(&mut self, role: &str, bytes: &[u8]) -> Result<(), ScenarioError> {
        check_len(bytes)?;
        let port = &self.shared.outboxes[self.index(role)?];
        let mail = Mail {
            from: COORDINATOR.to_owned(),
            bytes: bytes.to_vec(),
        };
        match port.post(&ToChild::Mail(mail), false) {
            coordinator::PostResult::Queued => {
                self.shared.alarm.signal();
                Ok(())
            }
            coordinator::PostResult::Full => Err(MailError::Full(role.to_owned()).into()),
            coordinator::PostResult::Ended => Err(ScenarioError::Ended(role.to_owned())),
        }
    }

    fn interrupt(&mut self) {
        for port in &self.shared.outboxes {
            port.post(&ToChild::Interrupt, true);
        }
        self.shared.alarm.signal();
    }

    fn kill(&mut self, role: &str) -> Result<(), ScenarioError> {
        self.signal(role, Signal::KILL)
    }

    fn stop(&mut self, role: &str) -> Result<(), ScenarioError> {
        self.signal(role, Signal::STOP)
    }

    fn cont(&mut self, role: &str) -> Result<(), ScenarioError> {
        self.signal(role, Signal::CONT)
    }

    fn pid(&self, role: &str) -> Option<u32> {
        let index = self.audience.index(role)?;
        Some(self.shared.outboxes[index].pid)
    }

    fn outcome(&self, role: &str) -> Option<ActorOutcome> {
        self.audience.outcome(role)
    }
}

impl Drop for RunningProcesses {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // The thread kills and reaps the processes before it ends, even if it panics.
            let _ = thread.join();
        }
    }
}

/// Writes as much as the socket takes now, and keeps the rest.
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
    if unwritten.is_empty() && unwritten.capacity() > headworks_net::framing::RETAINED_CAPACITY {
        *unwritten = Vec::new();
    }
    result
}

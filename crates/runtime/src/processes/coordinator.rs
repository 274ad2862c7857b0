//! The coordinator's thread: routes mail, collects reports, detects deaths.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags};

use crate::Scenario;
use crate::actor::{COORDINATOR, Mail};
use crate::processes::child::ChildProcess;
use crate::processes::protocol::{FromChild, ToChild};
use crate::processes::write_some;
use crate::scenario_events::{MAILBOX_BYTES_MAX, ScenarioEvents, lock};
use crate::world::{ActorOutcome, ScenarioError};
use headworks_net::EventFd;
use headworks_net::framing::FrameError;
use headworks_net::waiting::sleep;

/// State that the coordinator's thread shares with its handle.
pub(crate) struct CoordinatorState {
    pub(crate) outboxes: Vec<ChildOutbox>,
    pub(crate) alarm: Arc<EventFd>,
    closing: AtomicBool,
}

impl CoordinatorState {
    /// Requests the end of the scenario.
    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
        self.alarm.signal();
    }
}

/// Outgoing messages to one actor's process.
pub(crate) struct ChildOutbox {
    pub(crate) pid: u32,
    pub(crate) pidfd: Arc<OwnedFd>,
    /// Bytes that are not written to its socket yet; `None` once the process has ended.
    unwritten: Mutex<Option<Vec<u8>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostResult {
    Queued,
    Full,
    Ended,
}

impl ChildOutbox {
    /// Queues a message. Unless `force`, the bytes that wait are limited.
    pub(crate) fn post(&self, message: &ToChild, force: bool) -> PostResult {
        let mut unwritten = lock(&self.unwritten);
        match unwritten.as_mut() {
            None => PostResult::Ended,
            Some(unwritten) if unwritten.len() > MAILBOX_BYTES_MAX && !force => PostResult::Full,
            Some(unwritten) => {
                // The length of mail was checked before, and other messages are short.
                if let Err(error) = message.encode(unwritten) {
                    tracing::error!(%error, "cannot encode mail");
                }
                PostResult::Queued
            }
        }
    }

    fn has_unwritten(&self) -> bool {
        lock(&self.unwritten)
            .as_ref()
            .is_some_and(|unwritten| !unwritten.is_empty())
    }

    fn close(&self) {
        *lock(&self.unwritten) = None;
    }
}

pub(crate) struct Coordinator {
    children: Vec<ChildProcess>,
    shared: Arc<CoordinatorState>,
    events: Arc<ScenarioEvents>,
}

/// Events of the descriptors of one child.
struct Ready {
    socket: PollFlags,
    death: PollFlags,
    stderr: PollFlags,
}

impl Coordinator {
    /// Starts every actor's process. If one cannot be started, those that were are killed.
    pub(crate) fn start(
        program: &Path,
        args: &[OsString],
        scenario: &Scenario,
        events: Arc<ScenarioEvents>,
        alarm: Arc<EventFd>,
    ) -> Result<(Self, Arc<CoordinatorState>), ScenarioError> {
        let roles: Vec<_> = scenario
            .actors
            .iter()
            .map(|part| part.role.clone())
            .collect();
        let (mut children, mut outboxes) = (Vec::new(), Vec::new());
        for spec in &scenario.actors {
            let mut unwritten = Vec::new();
            let start = ToChild::Start {
                spec: spec.clone(),
                roles: roles.clone(),
            };
            start.encode(&mut unwritten).map_err(|error| {
                ScenarioError::system(
                    format!("actor {:?}", spec.role),
                    std::io::Error::other(error),
                )
            })?;
            let child = ChildProcess::start(program, args, &spec.role).map_err(|error| {
                ScenarioError::system(format!("starting the process of {:?}", spec.role), error)
            })?;
            let (pid, pidfd) = (child.pid(), Arc::clone(&child.pidfd));
            outboxes.push(ChildOutbox {
                pid,
                pidfd,
                unwritten: Mutex::new(Some(unwritten)),
            });
            children.push(child);
        }
        let shared = Arc::new(CoordinatorState {
            outboxes,
            alarm,
            closing: AtomicBool::new(false),
        });
        Ok((
            Self {
                children,
                shared: Arc::clone(&shared),
                events,
            },
            shared,
        ))
    }

    /// Runs until every actor has ended or the handle closes the scenario. Then the children are dropped,
    /// which ends them.
    pub(crate) fn run(mut self) {
        while !self.shared.closing.load(SeqCst) && self.children.iter().any(|p| !p.ended) {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the coordinator cannot wait for events; ending the scenario");
                    break;
                }
            };
            for (index, ready) in ready.into_iter().enumerate() {
                self.serve(index, &ready);
            }
        }
    }

    fn wait(&self) -> std::io::Result<Vec<Ready>> {
        let none = PollFlags::empty();
        let mut fds = vec![PollFd::new(&*self.shared.alarm, PollFlags::IN)];
        // The descriptors of an actor that has ended stay open, but there is nothing to poll them for.
        let alarm = &*self.shared.alarm;
        for (child, port) in self.children.iter().zip(&self.shared.outboxes) {
            if child.ended {
                fds.extend((0..3).map(|_| PollFd::new(alarm, none)));
                continue;
            }
            let input = if child.blocked.is_some() {
                none
            } else {
                PollFlags::IN
            };
            let output = if port.has_unwritten() {
                PollFlags::OUT
            } else {
                none
            };
            // A hang-up cannot be masked, so a socket with nothing to do is left out.
            let wanted = input | output;
            let socket = PollFd::new(&child.socket, wanted);
            fds.push(if wanted.is_empty() {
                PollFd::new(alarm, none)
            } else {
                socket
            });
            fds.push(PollFd::new(&*child.pidfd, PollFlags::IN));
            fds.push(match &child.stderr {
                Some(stderr) => PollFd::new(stderr, PollFlags::IN),
                None => PollFd::new(alarm, none),
            });
        }
        sleep(&mut fds, None)?;
        self.shared.alarm.clear();
        let flags: Vec<_> = fds[1..].iter().map(PollFd::revents).collect();
        let ready = |flags: &[PollFlags]| Ready {
            socket: flags[0],
            death: flags[1],
            stderr: flags[2],
        };
        Ok(flags.chunks_exact(3).map(ready).collect())
    }

    fn serve(&mut self, index: usize, ready: &Ready) {
        if self.children[index].ended {
            return;
        }
        if !ready.stderr.is_empty()
            && let Some(stderr) = &mut self.children[index].stderr
            && !stderr.forward()
        {
            self.children[index].stderr = None;
        }
        self.write(index);
        if ready.socket.intersects(PollFlags::IN | PollFlags::HUP) {
            self.children[index].read();
        }
        self.route_all(index, false);
        if !ready.death.is_empty() {
            self.reap_child(index);
        }
    }

    fn write(&mut self, index: usize) {
        if let Some(unwritten) = lock(&self.shared.outboxes[index].unwritten).as_mut()
            && let Err(error) = write_some(&self.children[index].socket, unwritten)
        {
            // The death of the process is about to be noticed.
            tracing::debug!(role = self.children[index].role, %error, "an actor's process closed its socket");
            unwritten.clear();
        }
    }

    /// Routes messages of an actor until none is left or one must wait for room.
    fn route_all(&mut self, index: usize, force: bool) {
        loop {
            let next = match self.children[index].blocked.take() {
                Some(message) => Ok(Some(message)),
                None => self.children[index].next(),
            };
            match next {
                Ok(None) => return,
                Ok(Some(message)) => {
                    if let Err(message) = self.route(index, message, force) {
                        self.children[index].blocked = message;
                        return;
                    }
                }
                Err(error) => return self.refuse(index, &error),
            }
        }
    }

    /// Delivers a message. Returns it as the error if there is no room.
    fn route(
        &mut self,
        index: usize,
        message: FromChild,
        force: bool,
    ) -> Result<(), Option<FromChild>> {
        let child = &mut self.children[index];
        match message {
            FromChild::Report(bytes) => {
                if !self.events.report(&child.role, &bytes, force) {
                    return Err(Some(FromChild::Report(bytes)));
                }
            }
            FromChild::Ended(why) => child.final_outcome(why),
            FromChild::Mail { to, bytes } => {
                let Some(port) = self.children.iter().position(|other| other.role == to) else {
                    self.refuse(index, &FrameError::Malformed("mail to nobody"));
                    return Ok(());
                };
                let from = self.children[index].role.clone();
                debug_assert_ne!(from, COORDINATOR);
                let mail = ToChild::Mail(Mail { from, bytes });
                if self.shared.outboxes[port].post(&mail, force) == PostResult::Full
                    && let ToChild::Mail(mail) = mail
                {
                    return Err(Some(FromChild::Mail {
                        to,
                        bytes: mail.bytes,
                    }));
                }
                self.write(port);
            }
        }
        Ok(())
    }

    fn refuse(&mut self, index: usize, error: &FrameError) {
        self.children[index].refuse(error);
    }

    /// Reads the last messages of a process that has ended, and reaps it.
    fn reap_child(&mut self, index: usize) {
        while self.children[index].read() {
            self.route_all(index, true);
        }
        self.route_all(index, true);
        self.shared.outboxes[index].close();
        let outcome: ActorOutcome = self.children[index].reap();
        self.events.ended(&self.children[index].role, outcome);
    }
}

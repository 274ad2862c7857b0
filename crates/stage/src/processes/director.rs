//! The director's thread: routes mail, collects reports, notices deaths.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags};

use crate::actor::{DIRECTOR, Mail};
use crate::alarm::Alarm;
use crate::cast::Play;
use crate::frame::FrameError;
use crate::processes::troupe::Player;
use crate::processes::wire::{FromChild, ToChild};
use crate::processes::write_some;
use crate::queue::{Events, WAITING_MAX, lock};
use crate::waiting::sleep;
use crate::world::{Outcome, StageError};

/// What the director's thread shares with its handle.
pub(crate) struct Shared {
    pub(crate) ports: Vec<Port>,
    pub(crate) alarm: Arc<Alarm>,
    closing: AtomicBool,
}

impl Shared {
    /// Everything is to end.
    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
        self.alarm.ring();
    }
}

/// The way to one part.
pub(crate) struct Port {
    pub(crate) pid: u32,
    pub(crate) pidfd: Arc<OwnedFd>,
    /// Not yet written to its socket; `None` when it has ended.
    unwritten: Mutex<Option<Vec<u8>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Yes,
    Full,
    Ended,
}

impl Port {
    /// Queues a message; there is a limit on what waits, unless `force`.
    pub(crate) fn post(&self, message: &ToChild, force: bool) -> Posted {
        let mut unwritten = lock(&self.unwritten);
        match unwritten.as_mut() {
            None => Posted::Ended,
            Some(unwritten) if unwritten.len() > WAITING_MAX && !force => Posted::Full,
            Some(unwritten) => {
                // Mail was checked for its length, and the rest is short.
                if let Err(error) = message.encode(unwritten) {
                    tracing::error!(%error, "mail that cannot be encoded");
                }
                Posted::Yes
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

pub(crate) struct Director {
    players: Vec<Player>,
    shared: Arc<Shared>,
    events: Arc<Events>,
}

/// What the descriptors of one player have.
struct Ready {
    socket: PollFlags,
    death: PollFlags,
    stderr: PollFlags,
}

impl Director {
    /// Starts every part's process; those started are killed if one cannot be.
    pub(crate) fn start(
        program: &Path,
        args: &[OsString],
        play: &Play,
        events: Arc<Events>,
        alarm: Arc<Alarm>,
    ) -> Result<(Self, Arc<Shared>), StageError> {
        let roles: Vec<_> = play.parts.iter().map(|part| part.role.clone()).collect();
        let (mut players, mut ports) = (Vec::new(), Vec::new());
        for spec in &play.parts {
            let mut unwritten = Vec::new();
            let start = ToChild::Start {
                spec: spec.clone(),
                roles: roles.clone(),
            };
            start.encode(&mut unwritten).map_err(|error| {
                StageError::system(
                    format!("part {:?}", spec.role),
                    std::io::Error::other(error),
                )
            })?;
            let player = Player::start(program, args, &spec.role).map_err(|error| {
                StageError::system(format!("starting the process of {:?}", spec.role), error)
            })?;
            let (pid, pidfd) = (player.pid(), Arc::clone(&player.pidfd));
            ports.push(Port {
                pid,
                pidfd,
                unwritten: Mutex::new(Some(unwritten)),
            });
            players.push(player);
        }
        let shared = Arc::new(Shared {
            ports,
            alarm,
            closing: AtomicBool::new(false),
        });
        Ok((
            Self {
                players,
                shared: Arc::clone(&shared),
                events,
            },
            shared,
        ))
    }

    /// Directs until every part has ended or the handle says so; then the players are dropped, which
    /// ends them.
    pub(crate) fn run(mut self) {
        while !self.shared.closing.load(SeqCst) && self.players.iter().any(|p| !p.ended) {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the director cannot wait; ending the play");
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
        // A part that has ended has nothing to poll for; its descriptors are there all the same.
        let alarm = &*self.shared.alarm;
        for (player, port) in self.players.iter().zip(&self.shared.ports) {
            if player.ended {
                fds.extend((0..3).map(|_| PollFd::new(alarm, none)));
                continue;
            }
            let input = if player.blocked.is_some() {
                none
            } else {
                PollFlags::IN
            };
            let output = if port.has_unwritten() {
                PollFlags::OUT
            } else {
                none
            };
            // A hang-up cannot be masked: a socket with nothing to do is left out.
            let wanted = input | output;
            let socket = PollFd::new(&player.socket, wanted);
            fds.push(if wanted.is_empty() {
                PollFd::new(alarm, none)
            } else {
                socket
            });
            fds.push(PollFd::new(&*player.pidfd, PollFlags::IN));
            fds.push(match &player.stderr {
                Some(stderr) => PollFd::new(stderr, PollFlags::IN),
                None => PollFd::new(alarm, none),
            });
        }
        sleep(&mut fds, None)?;
        self.shared.alarm.silence();
        let flags: Vec<_> = fds[1..].iter().map(PollFd::revents).collect();
        let ready = |flags: &[PollFlags]| Ready {
            socket: flags[0],
            death: flags[1],
            stderr: flags[2],
        };
        Ok(flags.chunks_exact(3).map(ready).collect())
    }

    fn serve(&mut self, index: usize, ready: &Ready) {
        if self.players[index].ended {
            return;
        }
        if !ready.stderr.is_empty()
            && let Some(stderr) = &mut self.players[index].stderr
            && !stderr.forward()
        {
            self.players[index].stderr = None;
        }
        self.write(index);
        if ready.socket.intersects(PollFlags::IN | PollFlags::HUP) {
            self.players[index].read();
        }
        self.route_all(index, false);
        if !ready.death.is_empty() {
            self.bury(index);
        }
    }

    fn write(&mut self, index: usize) {
        if let Some(unwritten) = lock(&self.shared.ports[index].unwritten).as_mut()
            && let Err(error) = write_some(&self.players[index].socket, unwritten)
        {
            // It is about to be found dead.
            tracing::debug!(role = self.players[index].role, %error, "a part hung up");
            unwritten.clear();
        }
    }

    /// Routes what a part has sent, until it is all gone or must wait for room.
    fn route_all(&mut self, index: usize, force: bool) {
        loop {
            let next = match self.players[index].blocked.take() {
                Some(message) => Ok(Some(message)),
                None => self.players[index].next(),
            };
            match next {
                Ok(None) => return,
                Ok(Some(message)) => {
                    if let Err(message) = self.route(index, message, force) {
                        self.players[index].blocked = message;
                        return;
                    }
                }
                Err(error) => return self.refuse(index, &error),
            }
        }
    }

    /// Delivers a message, or gives it back when there is no room.
    fn route(
        &mut self,
        index: usize,
        message: FromChild,
        force: bool,
    ) -> Result<(), Option<FromChild>> {
        let player = &mut self.players[index];
        match message {
            FromChild::Report(bytes) => {
                if !self.events.report(&player.role, &bytes, force) {
                    return Err(Some(FromChild::Report(bytes)));
                }
            }
            FromChild::Ended(why) => player.last_word(why),
            FromChild::Mail { to, bytes } => {
                let Some(port) = self.players.iter().position(|other| other.role == to) else {
                    self.refuse(index, &FrameError::Malformed("mail to nobody"));
                    return Ok(());
                };
                let from = self.players[index].role.clone();
                debug_assert_ne!(from, DIRECTOR);
                let mail = ToChild::Mail(Mail { from, bytes });
                if self.shared.ports[port].post(&mail, force) == Posted::Full
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
        self.players[index].refuse(error);
    }

    /// A process has ended: what it said last is still to be heard.
    fn bury(&mut self, index: usize) {
        while self.players[index].read() {
            self.route_all(index, true);
        }
        self.route_all(index, true);
        self.shared.ports[index].close();
        let outcome: Outcome = self.players[index].reap();
        self.events.ended(&self.players[index].role, outcome);
    }
}

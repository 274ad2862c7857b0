//! Waking each other in turn: by a SEND that raises a completion channel, and by bare eventfds. Both ends sleep in `poll`
//! until they are woken, read what woke them, and wake the other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use headworks::verbs::{Completion, Opcode, RemoteAddr};
use headworks_stage::packets::{Came, PacketListener, PacketSocket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::end::{Shape, connected, started};
use super::loaded::{Load, Verb};
use super::meter::Meter;
use super::source::{Source, polled, receive, shape};
use super::work::{Work, Worker};
use super::{Made, Setup, Task, Waker};
use crate::error::WorkloadError;
use crate::pair::PairCx;
use crate::pair::Role;
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Receives posted, each of one word.
const RECEIVES: usize = 16;
/// One SEND in so many is signalled.
const SIGNAL_EVERY: u64 = 32;
/// An end that is not woken for so long looks whether the other end has finished.
const LOOK_AFTER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// One end's two ways.
trait Ends: Send {
    /// Wakes the other end, for the time `number`.
    fn wake(&mut self, number: u64) -> Result<(), WorkloadError>;
    /// Sleeps until it is woken for the time `number`; `false` if nobody did for long.
    fn sleep(&mut self, number: u64) -> Result<bool, WorkloadError>;
}

/// The part that has a role.
pub(super) fn part(waker: Waker, setup: &Setup<'_>) -> Made {
    let (role, task) = (setup.pair.role, setup.task.clone());
    if waker == Waker::EventFd {
        let mut passing = Passing {
            path: task.dir.join("socket"),
            role,
            listener: None,
            socket: None,
        };
        return Ok(started(move |cx| {
            let ends = passing.pass(cx)?;
            Ok(ends.map(|ends| turns(ends, role, &task)))
        }));
    }
    let shape = Shape {
        shared_receives: RECEIVES as u32,
        channel: true,
        ..shape(1, 64)
    };
    let end = setup.open(&shape)?;
    let memory = end.memory(RECEIVES * 8)?;
    connected(end, &[], move |end, _| {
        let send = Load {
            inline: true,
            ..Load::of(Verb::Send, 8)
        };
        let nowhere = RemoteAddr { addr: 0, rkey: 0 };
        let ends = Channelled(Source::new(send, end, memory, nowhere));
        for slot in 0..RECEIVES as u64 {
            ends.receive(slot)?;
        }
        ends.0.end.recv_cq.arm(false);
        Ok(turns(ends, role, &task))
    })
}

fn turns<E: Ends + 'static>(ends: E, role: Role, task: &Task) -> Box<dyn Actor> {
    let meter = Meter::new(task, 100).at_every_one();
    let (count, waits) = (0, false);
    match role {
        Role::Sender => Box::new(Worker::new(Wakes { ends, count, waits }, meter)),
        Role::Receiver => Box::new(Woken { ends, count }),
    }
}

/// Sleeps until `fd` is readable; `false` after long.
fn readable(fd: BorrowedFd<'_>) -> Result<bool, WorkloadError> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, Some(&LOOK_AFTER)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(why) => Err(WorkloadError::at("poll", why)),
    }
}

struct Channelled(Source);

impl Channelled {
    fn receive(&self, slot: u64) -> Result<(), WorkloadError> {
        let Source { end, memory, .. } = &self.0;
        receive::<1>(end, memory, 8, &[slot], |slot| slot as usize % RECEIVES * 8)
    }
}

impl Ends for Channelled {
    fn wake(&mut self, number: u64) -> Result<(), WorkloadError> {
        let signalled = number.is_multiple_of(SIGNAL_EVERY);
        self.0.bytes.copy_from_slice(&number.to_ne_bytes());
        self.0.post::<1>(0, number, |_| 0, |_| signalled)?;
        match signalled {
            true => self.0.wait(),
            false => Ok(()),
        }
    }

    fn sleep(&mut self, number: u64) -> Result<bool, WorkloadError> {
        let end = &self.0.end;
        let Some(channel) = &end.channel else {
            return Err(WorkloadError("no completion channel".into()));
        };
        loop {
            if !readable(channel.fd())? {
                return Ok(false);
            }
            let event = channel.next_event();
            event.map_err(|e| WorkloadError::at("completion channel", e))?;
            end.recv_cq.arm(false);
            let mut found = [Completion::default()];
            let [got] = polled(&*end.recv_cq, &mut found)? else {
                continue;
            };
            let slot = got.wr_id as usize % RECEIVES * 8;
            let word = self.0.memory.word(slot).load(Ordering::Acquire);
            if got.opcode != Opcode::Recv || word != number {
                return Err(WorkloadError(format!(
                    "{word} came for {number}, with completion {got:?}"
                )));
            }
            return self.receive(got.wr_id).map(|()| true);
        }
    }
}

/// What is read wakes this end, what is written the other.
struct EventFds {
    here: OwnedFd,
    there: OwnedFd,
}

impl Ends for EventFds {
    fn wake(&mut self, _: u64) -> Result<(), WorkloadError> {
        let wrote = rustix::io::write(&self.there, &1_u64.to_ne_bytes());
        wrote.map_err(|e| WorkloadError::at("writing an eventfd", e))?;
        Ok(())
    }

    fn sleep(&mut self, number: u64) -> Result<bool, WorkloadError> {
        if !readable(self.here.as_fd())? {
            return Ok(false);
        }
        let mut count = [0; 8];
        let read = rustix::io::read(&self.here, &mut count);
        read.map_err(|e| WorkloadError::at("reading an eventfd", e))?;
        match u64::from_ne_bytes(count) {
            1 => Ok(true),
            n => Err(WorkloadError(format!(
                "woken {n} times at once for {number}"
            ))),
        }
    }
}

/// Passes eventfds to the other end, over a socket in a private directory.
struct Passing {
    path: PathBuf,
    role: Role,
    listener: Option<PacketListener>,
    socket: Option<PacketSocket>,
}

impl Passing {
    /// The eventfds, once both ends have them.
    fn pass(&mut self, cx: &mut Cx<'_>) -> Result<Option<EventFds>, WorkloadError> {
        let failed = |what: &'static str| move |e: std::io::Error| WorkloadError::at(what, e);
        if self.role == Role::Sender {
            if cx.mailed().is_none() {
                return Ok(None);
            }
            let made = || eventfd(0, EventfdFlags::CLOEXEC);
            let made = made().and_then(|here| Ok([here, made()?]));
            let [here, there] = made.map_err(|e| WorkloadError::at("making an eventfd", e))?;
            let socket = PacketSocket::dial(&self.path).map_err(failed("dialling"))?;
            for fd in [&there, &here] {
                let sent = socket.send(b"fd", Some(fd.as_fd()));
                sent.map_err(failed("passing eventfds"))?;
            }
            return Ok(Some(EventFds { here, there }));
        }
        let Some(listener) = &self.listener else {
            let listener = PacketListener::bind(&self.path, 0o600);
            self.listener = Some(listener.map_err(failed("listening"))?);
            cx.mail(b"listening")?;
            return Ok(None);
        };
        let Some(socket) = &self.socket else {
            self.socket = listener.accept().map_err(failed("accepting"))?;
            return Ok(None);
        };
        // The other end sends both at once.
        let received = || match socket.recv().map_err(failed("receiving eventfds"))? {
            Came::Packet(mut packet) => Ok(packet.files.pop()),
            Came::Nothing => Ok(None),
            Came::Ended => Err(WorkloadError("no eventfds came".into())),
        };
        let Some(here) = received()? else {
            return Ok(None);
        };
        let there = received()?.ok_or_else(|| WorkloadError("one eventfd came".into()))?;
        Ok(Some(EventFds { here, there }))
    }
}

/// The end that wakes first: a piece of its work is a round trip.
struct Wakes<E> {
    ends: E,
    /// Round trips.
    count: u64,
    /// It has woken the other end and was not woken since.
    waits: bool,
}

impl<E: Ends> Work for Wakes<E> {
    fn once(&mut self) -> Result<u64, WorkloadError> {
        if !self.waits {
            self.ends.wake(self.count)?;
        }
        self.waits = !self.ends.sleep(self.count)?;
        let woken = u64::from(!self.waits);
        self.count += woken;
        Ok(woken)
    }
}

/// The end that is woken, and wakes the other.
struct Woken<E> {
    ends: E,
    /// Round trips.
    count: u64,
}

impl<E: Ends> Actor for Woken<E> {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if self.ends.sleep(self.count)? {
            self.ends.wake(self.count)?;
            self.count += 1;
            return Ok(Step::Again);
        }
        let (Some(mail), here) = (cx.mailed(), self.count) else {
            return Ok(Step::Again);
        };
        let there = super::number(mail)?;
        if there != here {
            let why = format!("{here} round trips here, {there} there");
            return Err(ActorError::new(why));
        }
        cx.mail(b"counted")?;
        cx.done(&Report::None)
    }
}

//! Waking each other in turn: by a SEND that raises a completion channel, and by bare eventfds. Both
//! ends sleep in `poll` until they are woken, read what woke them, and wake the other.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use headworks::verbs::{
    Completion, Opcode, Payload, QpCaps, RecvWr, SendFlags, SendOp, SendWr, Status,
};
use headworks_baselines::Memory;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, recvmsg, sendmsg,
};

use super::end::{self, End, Shape, connected};
use super::meter::Meter;
use super::{Task, Waker};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::Handed;

/// Receives posted, each of one word.
const RECEIVES: usize = 16;
/// One SEND in so many is signalled.
const SIGNAL_EVERY: u64 = 32;
/// Who is not woken for so long looks whether the other end has finished.
const LOOK_AFTER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// Round trips in one step.
const BATCH: usize = 16;

/// One end's two ways.
trait Ends: Send {
    /// Wakes the other end, for the time `number`.
    fn wake(&mut self, number: u64) -> Result<(), ArmError>;
    /// Sleeps until it is woken for the time `number`; `false` if nobody did for long.
    fn sleep(&mut self, number: u64) -> Result<bool, ArmError>;
}

/// The part of `task` that has `role`.
pub fn part(
    task: &Task,
    waker: Waker,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let meter = Meter::new(task, 100).at_every_one();
    match waker {
        Waker::EventFd => Ok(Box::new(Passing {
            path: task.dir.join("socket"),
            role,
            listener: None,
            meter: Some(meter),
            playing: None,
        })),
        Waker::Channel => {
            let shape = Shape {
                queue_pairs: 1,
                caps: QpCaps::default(),
                cq_depth: 64,
                shared_receives: 0,
                channel: true,
            };
            let mut end = end::open(handed, &shape)?;
            end.populate(&shape)?;
            let memory = end.memory(RECEIVES * 8)?;
            connected(end, &[], move |end, _| {
                let mut ends = Channelled { memory, end };
                for slot in 0..RECEIVES {
                    ends.post(slot)?;
                }
                ends.end.recv_cq.arm(false);
                Ok(Turns::new(ends, role, meter))
            })
        }
    }
}

/// Sleeps until `fd` is readable; `false` after long.
fn readable(fd: BorrowedFd<'_>) -> Result<bool, ArmError> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, Some(&LOOK_AFTER)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(why) => Err(ArmError::at("poll", why)),
    }
}

struct Channelled {
    memory: Memory,
    end: End,
}

impl Channelled {
    fn post(&mut self, slot: usize) -> Result<(), ArmError> {
        let sges = [self.memory.region().sge(slot * 8, 8)];
        let wr = RecvWr {
            wr_id: slot as u64,
            sges: &sges,
        };
        let posted = self.end.queue_pairs[0].post_recv(&[wr]);
        posted.map_err(|e| ArmError::at("posting a receive", e))
    }
}

impl Ends for Channelled {
    fn wake(&mut self, number: u64) -> Result<(), ArmError> {
        let signalled = number.is_multiple_of(SIGNAL_EVERY);
        let posted = self.end.queue_pairs[0].post_send(&[SendWr {
            wr_id: number,
            op: SendOp::Send,
            payload: Payload::Inline(&number.to_ne_bytes()),
            flags: match signalled {
                true => SendFlags::SIGNALED,
                false => SendFlags::NONE,
            },
        }]);
        posted.map_err(|e| ArmError::at("posting", e))?;
        let mut found = [Completion::default()];
        while signalled
            && self
                .end
                .send_cq
                .poll(&mut found)
                .map_err(|e| ArmError::at("polling", e))?
                == 0
        {
            std::hint::spin_loop();
        }
        if found[0].status != Status::Success {
            return Err(ArmError(format!("a SEND completed as {:?}", found[0])));
        }
        Ok(())
    }

    fn sleep(&mut self, number: u64) -> Result<bool, ArmError> {
        let Some(channel) = &self.end.channel else {
            return Err(ArmError("no completion channel".into()));
        };
        loop {
            if !readable(channel.fd())? {
                return Ok(false);
            }
            channel
                .next_event()
                .map_err(|e| ArmError::at("completion channel", e))?;
            self.end.recv_cq.arm(false);
            let mut found = [Completion::default()];
            let count = self
                .end
                .recv_cq
                .poll(&mut found)
                .map_err(|e| ArmError::at("polling", e))?;
            if count == 0 {
                continue;
            }
            let [got] = found;
            let slot = got.wr_id as usize % RECEIVES;
            let word = self.memory.word(slot * 8).load(Ordering::Acquire);
            if got.status != Status::Success || got.opcode != Opcode::Recv || word != number {
                return Err(ArmError(format!(
                    "{word} came for {number}, with completion {got:?}"
                )));
            }
            self.post(slot)?;
            return Ok(true);
        }
    }
}

/// What is read wakes this end, what is written the other.
struct EventFds {
    here: OwnedFd,
    there: OwnedFd,
}

impl Ends for EventFds {
    fn wake(&mut self, _: u64) -> Result<(), ArmError> {
        let wrote = rustix::io::write(&self.there, &1_u64.to_ne_bytes());
        wrote
            .map(drop)
            .map_err(|e| ArmError::at("writing an eventfd", e))
    }

    fn sleep(&mut self, number: u64) -> Result<bool, ArmError> {
        if !readable(self.here.as_fd())? {
            return Ok(false);
        }
        let mut count = [0; 8];
        rustix::io::read(&self.here, &mut count)
            .map_err(|e| ArmError::at("reading an eventfd", e))?;
        match u64::from_ne_bytes(count) {
            1 => Ok(true),
            n => Err(ArmError(format!("woken {n} times at once for {number}"))),
        }
    }
}

/// Passes eventfds to the other end, over a socket in a private directory.
struct Passing {
    path: PathBuf,
    role: Role,
    listener: Option<UnixListener>,
    meter: Option<Meter>,
    playing: Option<Turns<EventFds>>,
}

impl Passing {
    fn pass(&mut self, env: &mut dyn Env) -> Result<Option<EventFds>, ArmError> {
        match (self.role, &self.listener) {
            (Role::Receiver, None) => {
                let listener = UnixListener::bind(&self.path)
                    .map_err(|e| ArmError::at("listening on a Unix socket", e))?;
                self.listener = Some(listener);
                env.mail(b"listening")?;
                Ok(None)
            }
            (Role::Receiver, Some(listener)) => {
                // The other end connects when it has the mail, or dies, which ends this one.
                let (stream, _) = listener
                    .accept()
                    .map_err(|e| ArmError::at("accepting", e))?;
                receive_fds(&stream).map(Some)
            }
            (Role::Sender, _) => {
                if env.mailed().is_none() {
                    return Ok(None);
                }
                let stream = UnixStream::connect(&self.path)
                    .map_err(|e| ArmError::at("connecting a Unix socket", e))?;
                send_fds(&stream).map(Some)
            }
        }
    }
}

fn send_fds(stream: &UnixStream) -> Result<EventFds, ArmError> {
    let make =
        || eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| ArmError::at("making an eventfd", e));
    let (here, there) = (make()?, make()?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [there.as_fd(), here.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = rustix::net::SendFlags::empty();
    sendmsg(stream, &[IoSlice::new(b"fds")], &mut ancillary, flags)
        .map_err(|e| ArmError::at("passing eventfds", e))?;
    Ok(EventFds { here, there })
}

fn receive_fds(stream: &UnixStream) -> Result<EventFds, ArmError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 3];
    let mut into = [IoSliceMut::new(&mut bytes)];
    recvmsg(stream, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| ArmError::at("receiving eventfds", e))?;
    let mut fds = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    match (fds.next(), fds.next()) {
        (Some(here), Some(there)) => Ok(EventFds { here, there }),
        _ => Err(ArmError("no eventfds came".into())),
    }
}

impl Part for Passing {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if let Some(playing) = &mut self.playing {
            return playing.step(env);
        }
        let Some(ends) = self.pass(env)? else {
            return Ok(Turn::Wait);
        };
        self.playing = self
            .meter
            .take()
            .map(|meter| Turns::new(ends, self.role, meter));
        Ok(Turn::Again)
    }
}

struct Turns<E> {
    ends: E,
    role: Role,
    /// Round trips.
    count: u64,
    /// This end has woken the other and was not woken since.
    waits: bool,
    over: bool,
    meter: Meter,
}

impl<E: Ends> Turns<E> {
    fn new(ends: E, role: Role, meter: Meter) -> Self {
        Self {
            ends,
            role,
            count: 0,
            waits: role == Role::Receiver,
            over: false,
            meter,
        }
    }

    /// Up to one round trip; `false` if nobody wakes this end.
    fn turn(&mut self) -> Result<bool, ArmError> {
        if !self.waits {
            self.ends.wake(self.count)?;
            self.waits = true;
        }
        if !self.ends.sleep(self.count)? {
            return Ok(false);
        }
        match self.role {
            Role::Sender => self.waits = false,
            Role::Receiver => self.ends.wake(self.count)?,
        }
        self.count += 1;
        Ok(true)
    }
}

impl<E: Ends> Part for Turns<E> {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if self.over {
            return Ok(match env.mailed() {
                Some(_) => Turn::Done(self.meter.report()),
                None => Turn::Wait,
            });
        }
        for _ in 0..BATCH {
            let woken = self.turn()?;
            match self.role {
                Role::Sender => self.over = woken && self.meter.count(self.count, env),
                Role::Receiver if !woken => {
                    let Some(mail) = env.mailed() else { break };
                    if mail != self.count.to_le_bytes() {
                        return Err(ArmError(format!(
                            "{} round trips here, other than there",
                            self.count
                        )));
                    }
                    env.mail(b"counted")?;
                    return Ok(Turn::Done(Report::None));
                }
                Role::Receiver => {}
            }
            if self.over {
                env.mail(&self.count.to_le_bytes())?;
                break;
            }
        }
        Ok(Turn::Again)
    }
}

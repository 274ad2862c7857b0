//! Two ends wake each other in turn: by SENDs that raise a completion channel, or by bare eventfds. Each end
//! sleeps in `poll` until it is woken, reads what woke it, and wakes the other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use headworks::verbs::{Completion, Opcode};
use headworks_net::packets::{PacketListener, PacketSocket, RecvOutcome};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::endpoint::{EndSizes, acting, started};
use super::rate_meter::RateMeter;
use super::repeated_work::{RepeatedWork, repeating};
use super::requester::{Requester, polled, shape};
use super::{Made, NicTask, Setup, Verb, VerbLoad, WakeMethod};
use crate::actor_pair::{PairMail, Role};
use crate::error::{Result, WorkloadError};
use crate::report::Report;
use headworks_runtime::{ActorContext, ActorError, Step};

/// Number of receives posted, of one word each.
const RECEIVES: usize = 16;
/// One of this many SENDs is signalled.
const SIGNAL_EVERY: u64 = 32;
/// An end that was not woken for this long checks whether the other end has finished.
const LOOK_AFTER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// One end's means to wake and to be woken.
trait Waking: Send {
    /// Wakes the other end, as wake-up `number`.
    fn wake(&mut self, number: u64) -> Result<()>;
    /// Sleeps until wake-up `number`; `false` after [`LOOK_AFTER`] without one.
    fn sleep(&mut self, number: u64) -> Result<bool>;
}

/// Makes the actor for the pair's role.
pub(super) fn part(waker: WakeMethod, setup: &Setup<'_>) -> Made {
    let (role, task) = (setup.pair.role, setup.task.clone());
    if waker == WakeMethod::EventFd {
        let mut passing = passing(role, task.dir.join("socket"));
        return started(move |cx| {
            let ends = passing(cx)?;
            ends.map(|ends| turns(ends, role, &task)).transpose()
        });
    }
    let shape = EndSizes {
        shared_receives: RECEIVES as u32,
        channel: true,
        ..shape(1, 64)
    };
    let send = VerbLoad {
        inline: true,
        ..VerbLoad::of(Verb::Send, 8)
    };
    let source = setup.source(send, &shape, RECEIVES * 8)?;
    let offered = source.offer(0);
    source.connect(offered, move |source| {
        for slot in 0..RECEIVES as u64 {
            source.receive::<1>(&[slot], place)?;
        }
        source.end.recv_cq.arm(false);
        turns(ChannelWaking(source), role, &task)
    })
}

/// Returns the offset of the memory of receive `slot`.
fn place(slot: u64) -> usize {
    slot as usize % RECEIVES * 8
}

/// Makes the actor of one end. The sender wakes first, and repeats round trips; the receiver wakes the other
/// when it is woken.
fn turns<E: Waking + 'static>(mut ends: E, role: Role, task: &NicTask) -> Made {
    // Number of round trips.
    let mut count = 0;
    if role == Role::Sender {
        let meter = RateMeter::new(task, 100).at_every_one();
        let waits = false;
        return repeating(Wakes { ends, count, waits }, meter);
    }
    acting(move |cx| {
        if ends.sleep(count)? {
            ends.wake(count)?;
            count += 1;
            return Ok(Step::Again);
        }
        let Some(mail) = cx.receive_mail() else {
            return Ok(Step::Again);
        };
        let there = super::number(mail)?;
        if there != count {
            let why = format!("{count} round trips here, {there} there");
            return Err(ActorError::new(why));
        }
        cx.send_mail(b"counted")?;
        cx.done(&Report::None)
    })
}

/// Sleeps until `fd` is readable; `false` after [`LOOK_AFTER`].
fn readable(fd: BorrowedFd<'_>) -> Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, Some(&LOOK_AFTER)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(why) => Err(WorkloadError::at("poll", why)),
    }
}

struct ChannelWaking(Requester);

impl Waking for ChannelWaking {
    fn wake(&mut self, number: u64) -> Result<()> {
        let signalled = number.is_multiple_of(SIGNAL_EVERY);
        self.0.bytes.copy_from_slice(&number.to_ne_bytes());
        self.0.post::<1>(0, number, |_| 0, |_| signalled)?;
        match signalled {
            true => self.0.wait(),
            false => Ok(()),
        }
    }

    fn sleep(&mut self, number: u64) -> Result<bool> {
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
            let word = self.0.memory.word(place(got.wr_id));
            let word = word.load(Ordering::Acquire);
            if got.opcode != Opcode::Recv || word != number {
                return Err(WorkloadError(format!(
                    "{word} came for {number}, with completion {got:?}"
                )));
            }
            self.0.receive::<1>(&[got.wr_id], place)?;
            return Ok(true);
        }
    }
}

/// The eventfds of one end: `here` wakes this end, `there` wakes the other.
struct EventFdWaking {
    here: OwnedFd,
    there: OwnedFd,
}

impl Waking for EventFdWaking {
    fn wake(&mut self, _: u64) -> Result<()> {
        let wrote = rustix::io::write(&self.there, &1_u64.to_ne_bytes());
        wrote.map_err(|e| WorkloadError::at("writing an eventfd", e))?;
        Ok(())
    }

    fn sleep(&mut self, number: u64) -> Result<bool> {
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

/// Makes eventfds at the sender and passes them to the receiver, over a socket at `path`. Returns this end's
/// eventfds once it has them.
fn passing(
    role: Role,
    path: PathBuf,
) -> impl FnMut(&mut ActorContext<'_>) -> Result<Option<EventFdWaking>> + Send {
    let failed = |what: &'static str| move |e: std::io::Error| WorkloadError::at(what, e);
    let (mut listens, mut connected) = (None, None::<PacketSocket>);
    move |cx| {
        if role == Role::Sender {
            if cx.receive_mail().is_none() {
                return Ok(None);
            }
            let made = || eventfd(0, EventfdFlags::CLOEXEC);
            let made = made().and_then(|here| Ok([here, made()?]));
            let [here, there] = made.map_err(|e| WorkloadError::at("making an eventfd", e))?;
            let socket = PacketSocket::dial(&path).map_err(failed("dialling"))?;
            for fd in [&there, &here] {
                let sent = socket.send(b"fd", Some(fd.as_fd()));
                sent.map_err(failed("passing eventfds"))?;
            }
            return Ok(Some(EventFdWaking { here, there }));
        }
        let Some(listener) = &listens else {
            let listener = PacketListener::bind(&path, 0o600);
            listens = Some(listener.map_err(failed("listening"))?);
            cx.send_mail(b"listening")?;
            return Ok(None);
        };
        let Some(socket) = &connected else {
            connected = listener.accept().map_err(failed("accepting"))?;
            return Ok(None);
        };
        // The other end sends the two packets together.
        let received = || match socket.recv().map_err(failed("receiving eventfds"))? {
            RecvOutcome::Packet(mut packet) => Ok(packet.files.pop()),
            RecvOutcome::WouldBlock => Ok(None),
            RecvOutcome::Closed => Err(WorkloadError("the other end passed no eventfds".into())),
        };
        let Some(here) = received()? else {
            return Ok(None);
        };
        let there = received()?.ok_or_else(|| WorkloadError("one eventfd is missing".into()))?;
        Ok(Some(EventFdWaking { here, there }))
    }
}

/// Work of the end that wakes first: round trips.
struct Wakes<E> {
    ends: E,
    /// Number of round trips.
    count: u64,
    /// Whether it has woken the other end and was not woken since.
    waits: bool,
}

impl<E: Waking> RepeatedWork for Wakes<E> {
    fn once(&mut self) -> Result<u64> {
        if !self.waits {
            self.ends.wake(self.count)?;
        }
        self.waits = !self.ends.sleep(self.count)?;
        let woken = u64::from(!self.waits);
        self.count += woken;
        Ok(woken)
    }
}

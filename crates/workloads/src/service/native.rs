//! Programs that speak verbs themselves, as the service's applications would without it: a device context, queue pairs,
//! a completion queue, receives and memory of each one's own.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks::stage::clock;
use headworks::stage::exchange::{Line, Listener, dial_by};
use headworks::verbs::bringup::Tuning;
use headworks::verbs::{
    Completion, DeviceName, Duration, Instant, Payload, QpCaps, RecvWr, RemoteAddr, SendFlags,
    SendOp, SendWr,
};
use headworks_baselines::{End, Memory, Shape};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::nic::end::{emit, parse};
use crate::nic::loaded::polled;
use crate::transports::ArmError;

/// How long another program may take to be there.
const PATIENCE: Duration = Duration::from_secs(20);
/// Completions that are taken at once.
const BATCH: usize = 64;

/// A program whose memory another one operates on, without its doing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holding {
    /// Its device.
    pub device: String,
    /// The name that the other calls.
    pub name: String,
    /// Queue pairs between the two.
    pub queue_pairs: usize,
    /// Bytes of its memory.
    pub len: usize,
}

impl Holding {
    /// Until it is ended.
    pub(super) fn play(&self) -> Result<(), ArmError> {
        let shape = Shape {
            queue_pairs: self.queue_pairs,
            caps: QpCaps {
                max_send_wr: 1,
                max_recv_wr: 1,
                ..QpCaps::default()
            },
            cq_depth: 16,
            shared_receives: 0,
            channel: false,
        };
        let mut native = Native::open(&self.device, &shape, self.len, 8)?;
        native.touch(0, self.len);
        let listener = listen(&self.name)?;
        let mut line = accept(&listener)?;
        native.meet(&mut line, 0..self.queue_pairs)?;
        // Whoever started both ends this one.
        loop {
            std::thread::park();
        }
    }
}

/// A program's verbs.
pub(super) struct Native {
    end: End,
    memory: Memory,
    sge: u32,
    found: [Completion; BATCH],
    /// Whether the next receive raises an event.
    is_armed: bool,
}

fn meeting<E: std::fmt::Display>(error: E) -> ArmError {
    ArmError::at("meeting", error)
}

/// A name that others call, in the registry of those that were started together.
pub(super) fn listen(name: &str) -> Result<Listener, ArmError> {
    let fabric = headworks::fabric().map_err(meeting)?;
    Listener::bind(&fabric, name).map_err(meeting)
}

/// Whoever calls next.
pub(super) fn accept(listener: &Listener) -> Result<Line, ArmError> {
    listener.accept(clock::now() + PATIENCE).map_err(meeting)
}

/// Calls a name.
pub(super) fn call(name: &str) -> Result<Line, ArmError> {
    let fabric = headworks::fabric().map_err(meeting)?;
    dial_by(&fabric, name, clock::now() + PATIENCE).map_err(meeting)
}

impl Native {
    /// Everything of its own, `len` bytes of memory among it; requests are of `sge` bytes.
    pub(super) fn open(
        device: &str,
        shape: &Shape,
        len: usize,
        sge: usize,
    ) -> Result<Self, ArmError> {
        let name: DeviceName = device.parse().map_err(|e| ArmError::at("device", e))?;
        let device = headworks::open(&name).map_err(|e| ArmError::at("device", e))?;
        let mut end = End::open(Arc::clone(&device), shape)?;
        end.populate(shape)?;
        let memory = end.memory(len)?;
        Ok(Self {
            end,
            memory,
            sge: sge as u32,
            found: [Completion::default(); BATCH],
            is_armed: false,
        })
    }

    /// Connects some of the queue pairs with as many of the other program's; says where its memory is.
    pub(super) fn meet(
        &mut self,
        line: &mut Line,
        which: Range<usize>,
    ) -> Result<RemoteAddr, ArmError> {
        let ours = emit(&[self.memory.region().remote(0)]);
        let mut theirs = None;
        for at in which {
            let (info, qp) = (self.end.device.info(), &mut self.end.queue_pairs[at]);
            let until = clock::now() + PATIENCE;
            let hello = line.bring_up(info, &mut **qp, Tuning::default(), ours.clone(), until);
            theirs = Some(parse::<1>(&hello.map_err(meeting)?.payload)?[0]);
        }
        theirs.ok_or_else(|| ArmError("connecting no queue pairs".to_owned()))
    }

    /// Writes to its memory, so that it is there.
    pub(super) fn touch(&mut self, at: usize, len: usize) {
        self.memory.fill(at, &vec![7; len]);
    }

    /// The word there.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.memory.word(at).load(Ordering::Acquire)
    }

    /// Posts a receive of so many bytes there, as the one of that number.
    pub(super) fn receive(&mut self, number: u64, at: usize, len: usize) -> Result<(), ArmError> {
        let sges = [self.memory.region().sge(at, len as u32)];
        let wr = RecvWr {
            wr_id: number,
            sges: &sges,
        };
        let srq = self.end.srq.as_ref();
        let srq = srq.ok_or_else(|| ArmError("no receives".to_owned()))?;
        srq.post_recv(&[wr])
            .map_err(|e| ArmError::at("receives", e))
    }

    /// Posts a request on a queue pair, from or to its memory there.
    pub(super) fn post(&mut self, qp: usize, op: SendOp, at: usize) -> Result<(), ArmError> {
        let sges = [self.memory.region().sge(at, self.sge)];
        let wr = SendWr {
            wr_id: at as u64,
            op,
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        };
        let posted = self.end.queue_pairs[qp].post_send(&[wr]);
        posted.map_err(|e| ArmError::at("posting", e))
    }

    /// Takes requests that have ended, none of them in failure.
    pub(super) fn ended(&mut self) -> Result<&[Completion], ArmError> {
        polled(&*self.end.send_cq, &mut self.found)
    }

    /// Takes receives that have ended.
    pub(super) fn received(&mut self) -> Result<&[Completion], ArmError> {
        polled(&*self.end.recv_cq, &mut self.found)
    }

    /// Which queue pair has that number.
    pub(super) fn numbers(&self) -> std::collections::HashMap<u32, usize> {
        let numbers = self.end.queue_pairs.iter().enumerate();
        numbers.map(|(at, qp)| (qp.qpn().raw(), at)).collect()
    }

    /// After nothing was received: has the channel raised by the next receive, and then sleeps on it until then. `true`:
    /// it is to be looked once more.
    pub(super) fn sleep(&mut self, until: Instant) -> Result<bool, ArmError> {
        if !std::mem::replace(&mut self.is_armed, true) {
            self.end.recv_cq.arm(false);
            return Ok(true);
        }
        let channel = self.end.channel.as_ref();
        let channel = channel.ok_or_else(|| ArmError("no channel".to_owned()))?;
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        if !sleep_on(&mut fds, until)? {
            return Ok(false);
        }
        let event = |e| ArmError::at("a channel", e);
        while channel.next_event().map_err(event)?.is_some() {
            self.is_armed = false;
        }
        Ok(true)
    }
}

/// Sleeps until a descriptor is ready; `false` where the time is up before.
pub(super) fn sleep_on(fds: &mut [PollFd<'_>], until: Instant) -> Result<bool, ArmError> {
    let now = clock::now();
    let left = match until > now {
        true => until.since(now),
        false => Duration::ZERO,
    };
    let timeout = Timespec {
        tv_sec: (left.nanos() / 1_000_000_000) as i64,
        tv_nsec: (left.nanos() % 1_000_000_000) as _,
    };
    match poll(fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(ArmError::at("poll", error)),
    }
}

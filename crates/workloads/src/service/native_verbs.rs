//! Verbs as a program uses them without the service: a device context, queue pairs, completion queues,
//! receives and memory of its own. Used in both worlds.

use std::ops::Range;
use std::sync::Arc;

use headworks::net::clock;
use headworks::net::{ControlStream, Listener, dial_wait};
use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{
    Completion, Device, DeviceName, Duration, Instant, Payload, QpCaps, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr,
};
use headworks_baselines::{End, EndSizes, WordMemory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::{Result, failed};
use crate::error::WorkloadError;
use crate::nic::endpoint::{emit, parse};
use crate::nic::requester::polled;

/// How long another program may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(20);
/// The memory of [`IdleQueuePairs`] is a multiple of this many bytes.
const PAGE: usize = 4096;

/// A program whose memory another program accesses one-sidedly.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IdleQueuePairs {
    /// Name of its device.
    pub device: String,
    /// Name under which the other program connects.
    pub name: String,
    /// Number of queue pairs between the two programs.
    pub queue_pairs: usize,
    /// Bytes of its memory, rounded up to whole pages.
    pub len: usize,
}

impl IdleQueuePairs {
    /// Holds the memory until the process is killed.
    pub(super) fn run(&self) -> Result<()> {
        let shape = shape(self.queue_pairs, 1, 16);
        let len = self.len.next_multiple_of(PAGE);
        let mut native = Native::open(open(&self.device)?, &shape, len)?;
        native.memory.fill(0, &vec![0; len]);
        native.meet(&mut line(&self.name, false)?, 0..self.queue_pairs)?;
        loop {
            std::thread::park();
        }
    }
}

/// Returns the sizes of queue pairs that hold `sends` requests each and receive nothing.
pub(super) fn shape(queue_pairs: usize, sends: usize, cq_depth: usize) -> EndSizes {
    EndSizes {
        queue_pairs,
        caps: QpCaps {
            max_send_wr: sends as u32,
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth: cq_depth as u32,
        shared_receives: 0,
        channel: false,
    }
}

pub(super) fn open(device: &str) -> Result<Arc<dyn Device>> {
    let name: DeviceName = device.parse().map_err(failed("device"))?;
    headworks::open(&name).map_err(failed("device"))
}

/// Connects to the program that listens under `name` if `calls`; otherwise accepts a connection under that name.
pub(super) fn line(name: &str, calls: bool) -> Result<ControlStream> {
    let fabric = headworks::registry().map_err(failed("meeting"))?;
    let until = clock::now() + PATIENCE;
    let line = match calls {
        true => dial_wait(&fabric, name, until),
        false => Listener::bind(&fabric, name).and_then(|listener| listener.accept(until)),
    };
    line.map_err(failed("meeting"))
}

/// A program's verbs objects.
pub(super) struct Native {
    pub(super) end: End,
    pub(super) memory: WordMemory,
    /// Whether the next receive raises an event.
    is_armed: bool,
}

impl Native {
    /// Makes queue pairs of the given shape, and `len` bytes of memory.
    pub(super) fn open(device: Arc<dyn Device>, shape: &EndSizes, len: usize) -> Result<Self> {
        let mut end = End::open(device, shape)?;
        end.populate(shape)?;
        let memory = end.memory(len)?;
        Ok(Self {
            end,
            memory,
            is_armed: false,
        })
    }

    /// Connects the queue pairs in the range `which` with the same number of the other program's. Returns the
    /// address of the other program's memory.
    pub(super) fn meet(
        &mut self,
        line: &mut ControlStream,
        which: Range<usize>,
    ) -> Result<RemoteAddr> {
        let ours = emit(self.memory.region().remote(0));
        let mut theirs = None;
        for at in which {
            let (info, qp) = (self.end.device.info(), &mut self.end.queue_pairs[at]);
            let until = clock::now() + PATIENCE;
            let hello = line.bring_up(
                info,
                &mut **qp,
                ConnectionParams::default(),
                ours.clone(),
                until,
            );
            theirs = Some(parse(&hello.map_err(failed("meeting"))?.payload)?);
        }
        theirs.ok_or_else(|| WorkloadError("meeting: no queue pairs".to_owned()))
    }

    /// Posts a receive of `len` bytes at `at`.
    pub(super) fn receive(&mut self, wr_id: u64, at: usize, len: usize) -> Result<()> {
        let sges = [self.memory.region().sge(at, len as u32)];
        let srq = self.end.srq.as_ref();
        let srq = srq.ok_or_else(|| WorkloadError("no receives".to_owned()))?;
        let wr = RecvWr { wr_id, sges: &sges };
        srq.post_recv(&[wr]).map_err(failed("receives"))
    }

    /// Posts a request on queue pair `qp`, from or to `len` bytes at `at`.
    pub(super) fn post(
        &mut self,
        qp: usize,
        (wr_id, op): (u64, SendOp),
        (at, len): (usize, usize),
    ) -> Result<()> {
        let sges = [self.memory.region().sge(at, len as u32)];
        let wr = SendWr {
            wr_id,
            op,
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        };
        let posted = self.end.queue_pairs[qp].post_send(&[wr]);
        posted.map_err(failed("posting"))
    }

    /// Takes completions of requests; a failed one is an error.
    pub(super) fn ended<'f>(&self, found: &'f mut [Completion]) -> Result<&'f [Completion]> {
        polled(&*self.end.send_cq, found)
    }

    /// Takes completions of receives.
    pub(super) fn received<'f>(&self, found: &'f mut [Completion]) -> Result<&'f [Completion]> {
        polled(&*self.end.recv_cq, found)
    }

    /// Waits for receives; call after a poll that found none. The first call arms the completion channel, the
    /// next sleeps on it until `until` at most. Returns whether to poll again.
    pub(super) fn sleep(&mut self, until: Instant) -> Result<bool> {
        if !std::mem::replace(&mut self.is_armed, true) {
            self.end.recv_cq.arm(false);
            return Ok(true);
        }
        let channel = self.end.channel.as_ref();
        let channel = channel.ok_or_else(|| WorkloadError("no channel".to_owned()))?;
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        if !sleep_on(&mut fds, until)? {
            return Ok(false);
        }
        while channel.next_event().map_err(failed("a channel"))?.is_some() {
            self.is_armed = false;
        }
        Ok(true)
    }
}

/// Sleeps until a descriptor is ready. Returns `false` if `until` comes first.
pub(super) fn sleep_on(fds: &mut [PollFd<'_>], until: Instant) -> Result<bool> {
    let left = until.since(clock::now().min(until)).nanos();
    let timeout = Timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as _,
    };
    match poll(fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(WorkloadError::at("poll", error)),
    }
}

//! A byte stream over a connected queue pair, for a control stream to run over. It is sent in pieces by SEND, each of
//! which finds a posted receive.
//!
//! A message is the number that `receive_credits` has it carry (8 bytes, little-endian) and up to
//! `PAYLOAD_MAX` bytes of the stream. The [`QpConnection`], or a request that fails, tells that the other end
//! is gone. If the other host vanishes, no request fails while none is in flight. Therefore the stream probes
//! the peer every few seconds with an empty WRITE, which takes no receive and which no program on the peer
//! sees.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{
    Access, AllocRequest, Completion, CompletionChannel, CompletionQueue, CqInit, Device, Duration,
    Payload, PostError, ProtectionDomain, QpAttr, QpCaps, QpInit, QpState, QpType, QueuePair,
    RecvWr, Region, RemoteAddr, ResourceError, SendFlags, SendOp, SendWr, Status,
};
use rustix::event::{PollFlags, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::EventFd;
use crate::clock;
use crate::{ControlTransport, NetError, WaitLimit};

use receive_credits::ReceiveCredits;

mod receive_credits;
#[allow(unsafe_code, reason = "copies into and out of registered memory")]
mod region_copy;

/// Receives of each side, and the most messages that it may have in flight.
const MESSAGES: usize = 16;
/// Longest message, in bytes.
const MESSAGE: usize = 4096;
const HEADER: usize = 8;
/// Most bytes of the stream in one message.
const PAYLOAD_MAX: usize = MESSAGE - HEADER;
/// Seconds between two probes of the peer.
const PROBE_INTERVAL_S: u32 = 3;
/// How long dropping the stream waits for what was sent to arrive.
const LINGER: Duration = Duration::from_secs(2);
/// Most polls of the completion queue in one step.
const POLLS_PER_STEP: usize = 16;

/// Kind of a completed request, in the upper half of its `wr_id`: a message sent from a place, a message
/// received in a place, or a probe.
const SENT: u64 = 0;
const RECEIVED: u64 = 1 << 32;
const PROBE: u64 = 2 << 32;

/// Tells whether the other end of a queue pair's connection is gone, independently of the queue pair. Its
/// descriptor is readable when this may have changed.
pub trait QpConnection: AsFd + Send {
    /// Whether the other end is gone.
    fn is_disconnected(&mut self) -> bool;

    /// Tells the other end that this end closes.
    fn disconnect(&mut self);
}

/// A stream whose queue pair is not connected yet.
///
/// The order of calls: bring [`QpStreamSetup::queue_pair`] to INIT, [`QpStreamSetup::post_receives`], connect
/// it (the other side may send from then on), [`QpStreamSetup::finish`]. A stream that a forked child
/// finishes is of no use there: it belongs to the parent, as a [`QpStream`] does.
pub struct QpStreamSetup {
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    channel: Arc<dyn CompletionChannel>,
    region: Region,
    _pd: Arc<dyn ProtectionDomain>,
    _device: Arc<dyn Device>,
    made_by: ForkGeneration,
}

impl QpStreamSetup {
    /// Creates the queue pair and its memory (128 KiB, locked) on `device`.
    pub fn new(device: &Arc<dyn Device>) -> Result<Self, ResourceError> {
        let pd = device.alloc_pd()?;
        let channel = device.create_channel()?;
        let count = MESSAGES as u32;
        let cq = device.create_cq(&CqInit {
            depth: 2 * count + 1,
            channel: Some(channel.clone()),
            timestamps: false,
        })?;
        let buffer = device.alloc(&AllocRequest::of(2 * MESSAGES * MESSAGE))?;
        let region = pd.register(&buffer, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_send_wr: count + 1,
                max_recv_wr: count,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
        })?;
        cq.arm(false);
        Ok(Self {
            qp,
            cq,
            channel,
            region,
            _pd: pd,
            _device: device.clone(),
            made_by: ForkGeneration::current(),
        })
    }

    /// The queue pair to connect. It must allow remote WRITEs.
    pub fn queue_pair(&mut self) -> &mut dyn QueuePair {
        &mut *self.qp
    }

    /// Posts the receives. The queue pair must be in INIT.
    pub fn post_receives(&mut self) -> Result<(), PostError> {
        (0..MESSAGES).try_for_each(|place| post_receive(&mut *self.qp, &self.region, place))
    }

    /// Returns the stream. The queue pair must be in RTS.
    pub fn finish(self, connection: Box<dyn QpConnection>) -> Result<QpStream, NetError> {
        QpStream::over(self, connection).map_err(NetError::system("a stream over a queue pair"))
    }
}

fn post_receive(qp: &mut dyn QueuePair, region: &Region, place: usize) -> Result<(), PostError> {
    let sge = [region.sge(recv_offset(place), MESSAGE as u32)];
    qp.post_recv(&[RecvWr {
        wr_id: RECEIVED | place as u64,
        sges: &sge,
    }])
}

/// Offsets of the messages to send; those of received messages are after them.
const fn send_offset(place: usize) -> usize {
    place * MESSAGE
}

const fn recv_offset(place: usize) -> usize {
    (MESSAGES + place) * MESSAGE
}

/// A received message and the range of it that was not handed out yet.
struct Arrived {
    place: usize,
    at: usize,
    end: usize,
}

/// A byte stream over a connected queue pair.
///
/// Dropping it waits for what was sent to arrive, for two seconds at most, as the kernel does for a socket.
/// Then it tells the other end.
///
/// In a forked child the stream has ended, and dropping it does nothing: it belongs to the parent.
pub struct QpStream {
    state: Mutex<State>,
    made_by: ForkGeneration,
    /// Epoll descriptor over everything that a step handles.
    all: OwnedFd,
}

struct State {
    // Declared before `connection`, so that the queue pair is destroyed first.
    parts: QpStreamSetup,
    connection: Box<dyn QpConnection>,
    credits: ReceiveCredits,
    free: Vec<usize>,
    arrived: VecDeque<Arrived>,
    probe_pending: bool,
    is_armed: bool,
    ended: bool,
    /// Whether the last step left something to do.
    has_more: bool,
    /// Readable while there is something to receive, or the stream has ended.
    ready: EventFd,
    is_raised: bool,
    timer: OwnedFd,
}

impl fmt::Debug for QpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QpStream")
    }
}

impl QpStream {
    fn over(parts: QpStreamSetup, connection: Box<dyn QpConnection>) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let every = Timespec {
            tv_sec: PROBE_INTERVAL_S.into(),
            tv_nsec: 0,
        };
        let when = Itimerspec {
            it_interval: every,
            it_value: every,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &when)?;
        let ready = EventFd::new()?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(0);
        let fds = [
            parts.channel.fd(),
            connection.as_fd(),
            ready.as_fd(),
            timer.as_fd(),
        ];
        for fd in fds {
            epoll::add(&all, fd, token, epoll::EventFlags::IN)?;
        }
        let made_by = parts.made_by;
        let state = Mutex::new(State {
            parts,
            connection,
            credits: ReceiveCredits::new(MESSAGES as u64),
            free: (0..MESSAGES).collect(),
            arrived: VecDeque::new(),
            probe_pending: false,
            is_armed: true,
            ended: false,
            has_more: false,
            ready,
            is_raised: false,
            timer,
        });
        Ok(Self {
            state,
            made_by,
            all,
        })
    }

    /// Does a step and returns the locked state; `None` in a forked child. There the lock may be held by a
    /// thread that the child does not have. The descriptors are shared with the parent, so reading a timer
    /// tick or signalling there would affect the parent.
    fn lock_stepped(&self) -> Option<MutexGuard<'_, State>> {
        if self.made_by.is_foreign() {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.step();
        Some(state)
    }
}

impl ControlTransport for QpStream {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.lock_stepped().ok_or(io::ErrorKind::BrokenPipe)?;
        let sent = state.send(bytes);
        state.update_readiness();
        sent
    }

    fn recv(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.lock_stepped().ok_or(io::ErrorKind::BrokenPipe)?;
        let got = state.recv(bytes);
        state.update_readiness();
        got
    }

    fn is_gone(&self) -> bool {
        let Some(mut state) = self.lock_stepped() else {
            return true;
        };
        state.update_readiness();
        state.ended
    }
}

impl AsFd for QpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

impl Drop for QpStream {
    fn drop(&mut self) {
        if self.made_by.is_foreign() {
            return;
        }
        let until = WaitLimit::deadline(clock::now() + LINGER);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_drained() {
            let readable = [(self.all.as_fd(), PollFlags::IN)];
            if until
                .wait("what was sent to arrive", &readable, None)
                .is_err()
            {
                tracing::warn!("a line is closed before everything that was sent has arrived");
                break;
            }
        }
        state.connection.disconnect();
        // The peer may still be sending. In the error state nothing is written to this memory any more.
        let _ = state.parts.qp.modify(&QpAttr::to_state(QpState::Error));
    }
}

impl State {
    /// Does what can be done now without blocking.
    fn step(&mut self) {
        if self.ended {
            return;
        }
        // Checked before polling: what was sent before the disconnect is then in the completion queue.
        let is_cut = self.connection.is_disconnected();
        if rustix::io::read(&self.timer, &mut [0; 8]).is_ok() {
            self.probe_peer();
        }
        self.poll();
        self.send_credit_update();
        self.ended |= is_cut;
    }

    fn poll(&mut self) {
        while let Ok(Some(_)) = self.parts.channel.next_event() {
            self.is_armed = false;
        }
        if !self.is_armed {
            self.parts.cq.arm(false);
            self.is_armed = true;
        }
        let mut completions = [Completion::default(); MESSAGES];
        for _ in 0..POLLS_PER_STEP {
            let count = match self.parts.cq.poll(&mut completions) {
                Ok(0) => {
                    self.has_more = false;
                    return;
                }
                Ok(count) => count,
                Err(error) => return self.end(&error),
            };
            for completion in &completions[..count] {
                self.take(completion);
            }
        }
        self.has_more = true;
    }

    fn take(&mut self, completion: &Completion) {
        if completion.status != Status::Success {
            return self.end(&completion.status);
        }
        let place = completion.wr_id as u32 as usize;
        match completion.wr_id & !u64::from(u32::MAX) {
            SENT => self.free.push(place),
            PROBE => self.probe_pending = false,
            _ => self.on_receive(place, completion.byte_len as usize),
        }
    }

    fn on_receive(&mut self, place: usize, len: usize) {
        let mut number = [0; HEADER];
        if !(HEADER..=MESSAGE).contains(&len) {
            return self.end(&"a message of illegal length");
        }
        region_copy::get(&self.parts.region, recv_offset(place), &mut number);
        if self.credits.on_message(u64::from_le_bytes(number)).is_err() {
            return self.end(&"the other side announced receives that were never posted");
        }
        match len {
            HEADER => self.repost(place),
            end => self.arrived.push_back(Arrived {
                place,
                at: HEADER,
                end,
            }),
        }
    }

    /// Posts a receive again.
    fn repost(&mut self, place: usize) {
        match post_receive(&mut *self.parts.qp, &self.parts.region, place) {
            Ok(()) => self.credits.repost(),
            Err(error) => self.end(&error),
        }
    }

    /// Announces reposted receives by an empty message if one is due.
    fn send_credit_update(&mut self) {
        if !self.ended && self.credits.is_update_due() {
            self.post(&[]);
        }
    }

    /// Sends a message with these bytes, at most `PAYLOAD_MAX`, if there is a free place for it. Returns
    /// whether there was.
    fn post(&mut self, bytes: &[u8]) -> bool {
        let Some(place) = self.free.pop() else {
            return false;
        };
        let number = self.credits.send().to_le_bytes();
        let (region, at) = (&self.parts.region, send_offset(place));
        region_copy::put(region, at, &number);
        region_copy::put(region, at + HEADER, bytes);
        let sge = [region.sge(at, (HEADER + bytes.len()) as u32)];
        let posted = self.parts.qp.post_send(&[SendWr {
            wr_id: SENT | place as u64,
            op: SendOp::Send,
            payload: Payload::Gather(&sge),
            flags: SendFlags::SIGNALED,
        }]);
        if let Err(error) = posted {
            self.end(&error);
        }
        true
    }

    fn probe_peer(&mut self) {
        if self.probe_pending {
            return;
        }
        self.probe_pending = true;
        let posted = self.parts.qp.post_send(&[SendWr {
            wr_id: PROBE,
            op: SendOp::Write(RemoteAddr::default()),
            payload: Payload::Gather(&[]),
            flags: SendFlags::SIGNALED,
        }]);
        if let Err(error) = posted {
            self.end(&error);
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        for piece in bytes.chunks(PAYLOAD_MAX) {
            if self.ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if !self.credits.may_send() || !self.post(piece) {
                break;
            }
            sent += piece.len();
        }
        match sent {
            0 if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            sent => Ok(sent),
        }
    }

    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < bytes.len()
            && let Some(first) = self.arrived.front_mut()
        {
            let count = (bytes.len() - got).min(first.end - first.at);
            let from = recv_offset(first.place) + first.at;
            region_copy::get(&self.parts.region, from, &mut bytes[got..got + count]);
            got += count;
            first.at += count;
            let (place, is_empty) = (first.place, first.at == first.end);
            if is_empty {
                self.arrived.pop_front();
                if !self.ended {
                    self.repost(place);
                }
            }
        }
        self.send_credit_update();
        match got {
            0 if self.ended => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            got => Ok(got),
        }
    }

    /// Keeps the descriptor readable as long as there is something to receive, even if a step has already
    /// polled its completion.
    fn update_readiness(&mut self) {
        let is_ready = self.ended || self.has_more || !self.arrived.is_empty();
        match (is_ready, self.is_raised) {
            (true, false) => self.ready.signal(),
            (false, true) => self.ready.clear(),
            _ => {}
        }
        self.is_raised = is_ready;
    }

    /// For the drop: whether nothing that was sent is in flight. Received messages are discarded, since
    /// nobody will read them.
    fn is_drained(&mut self) -> bool {
        self.step();
        self.arrived.clear();
        self.update_readiness();
        self.ended || self.free.len() == MESSAGES
    }

    fn end(&mut self, why: &dyn fmt::Display) {
        if !self.ended {
            tracing::debug!(%why, "a line over a queue pair ends");
            self.ended = true;
        }
    }
}

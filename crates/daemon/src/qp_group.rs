//! A queue-pair group: the queue pairs that all connections between a domain here and one on another host
//! share (RaaS, section IV.B), their flow control, and the scheduling of their connections.

use std::collections::{BTreeSet, VecDeque};

use headworks_client::Vqpn;
use headworks_ring::group::drr::DeficitRoundRobin;
use headworks_shm::View;
use headworks_verbs::{BringUp, BringUpError, DeviceInfo, PostError, Qpn};
use headworks_wire::{Decoder, Encoder};

use crate::credit::{Credit, FLOOR_MIN, PROMISED_MAX};
use crate::frame::{FRAME_MAX, FRAME_MIN, HEADER, Header, Kind};
use crate::link_rate::LinkRate;
use crate::own_receives::OwnReceives;
use crate::send_queue::{OnCompletion, SendQueue};

/// Version of the frame format.
pub const VERSION: u32 = 3;

/// Role of a queue pair in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpRole {
    /// Carries frames: short messages and control.
    Frames = 0,
    /// Carries READs, and WRITEs of one-sided operations, so that no frame waits for them.
    Bulk = 1,
}

impl QpRole {
    /// Returns the role with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Frames),
            1 => Some(Self::Bulk),
            _ => None,
        }
    }
}

/// A queue-pair group.
pub struct QpGroup {
    pub(crate) frames: SendQueue,
    pub(crate) bulk: SendQueue,
    bringing: [Option<BringUp>; 2],
    pub(crate) credit: Credit,
    /// Receives of the queue pair for frames; none if the domain has a shared receive queue.
    pub(crate) own_receives: OwnReceives,
    /// Decides which connection sends data next. It knows connections by their place.
    pub(crate) drr: DeficitRoundRobin,
    /// Connections that have control frames to send.
    pub(crate) control: VecDeque<Vqpn>,
    /// Connections that wait for room for a one-sided operation.
    pub(crate) waiting: BTreeSet<Vqpn>,
    /// Total number of pieces of streams that were READ from the peer's memory, and of transfers that were announced to
    /// it.
    pub(crate) fetched: u64,
    pub(crate) announced: u64,
    /// READs in flight, and the limit for them.
    pub(crate) reads: u32,
    reads_max: u32,
    /// Whether the peer's receive pool admitted no transfer when its latest frame left.
    pub(crate) is_peer_short: bool,
    /// Bytes after a header that the peer has room for.
    body_max: usize,
    /// Whether a frame was carried, in either direction.
    pub(crate) has_carried: bool,
    /// Whether something was sent that the peer's daemon must react to, and no frame of the peer came since.
    pub(crate) awaits_peer: bool,
    /// Rate of SENDs and WRITEs on the group.
    pub(crate) rate: LinkRate,
    /// Number of times that the peer was told to send more slowly, and that it told this side.
    pub(crate) signals_sent: u64,
    pub(crate) signals_came: u64,
    /// Signals that the rate does not know of.
    pub(crate) signals_pending: u32,
    /// Whether the peer is to be told to send more slowly.
    pub(crate) is_slow_due: bool,
    /// Whether control was told of that, and has not looked since.
    pub(crate) is_watched: bool,
}

impl QpGroup {
    /// Creates a group that is to be brought up. `promised` receives are promised to the peer. `own_receives` is the
    /// account of the receives of `frames`, which is empty if there is a shared receive queue.
    pub fn new(
        frames: SendQueue,
        bulk: SendQueue,
        promised: u32,
        own_receives: OwnReceives,
        quantum: u32,
    ) -> Self {
        Self {
            frames,
            bulk,
            bringing: [None, None],
            credit: Credit::new(promised),
            own_receives,
            drr: DeficitRoundRobin::new(quantum),
            control: VecDeque::new(),
            waiting: BTreeSet::new(),
            fetched: 0,
            announced: 0,
            reads: 0,
            reads_max: 1,
            is_peer_short: false,
            body_max: 0,
            has_carried: false,
            awaits_peer: false,
            rate: LinkRate::default(),
            signals_sent: 0,
            signals_came: 0,
            signals_pending: 0,
            is_slow_due: false,
            is_watched: false,
        }
    }

    /// Starts to connect both queue pairs. Announces `promised` receives of `frame_bytes` each to the peer.
    ///
    /// # Errors
    ///
    /// [`BringUpError`]: the queue pairs cannot be connected.
    pub fn start(
        &mut self,
        device: &DeviceInfo,
        promised: u32,
        frame_bytes: u32,
        seed: u32,
    ) -> Result<(), BringUpError> {
        for qp_role in [QpRole::Frames, QpRole::Bulk] {
            let payload = match qp_role {
                QpRole::Frames => Encoder::new()
                    .u32(VERSION)
                    .u32(promised)
                    .u32(frame_bytes)
                    .finish(),
                QpRole::Bulk => Vec::new(),
            };
            let tuning = headworks_verbs::bringup::ConnectionParams {
                access: headworks_verbs::Access::ALL,
                ..Default::default()
            };
            let qp = self.channel(qp_role).qp();
            let seed = seed.wrapping_mul(2).wrapping_add(qp_role as u32);
            let started = BringUp::start(device, qp, tuning, seed, payload)?;
            self.bringing[qp_role as usize] = Some(started);
        }
        Ok(())
    }

    /// Number of receives that the group counts for in [`ReceiveShares`](crate::receive_shares::ReceiveShares): those that
    /// the peer was promised and has not used, and those that are still to be posted and promised.
    pub fn receives_held(&self) -> u64 {
        self.credit.outstanding() + u64::from(self.own_receives.owed())
    }

    /// Returns one of the queue pairs.
    pub fn channel(&mut self, qp_role: QpRole) -> &mut SendQueue {
        match qp_role {
            QpRole::Frames => &mut self.frames,
            QpRole::Bulk => &mut self.bulk,
        }
    }

    /// Returns the role of the queue pair with this number.
    pub fn qp_role(&self, qpn: Qpn) -> QpRole {
        match self.frames.qpn() == qpn {
            true => QpRole::Frames,
            false => QpRole::Bulk,
        }
    }

    /// Takes the bytes of the bring-up that the peer must be sent.
    pub fn output(&mut self) -> Vec<(QpRole, Vec<u8>)> {
        let each = [QpRole::Frames, QpRole::Bulk].into_iter();
        let output = each.filter_map(|qp_role| {
            let bytes = self.bringing[qp_role as usize].as_mut()?.output();
            (!bytes.is_empty()).then_some((qp_role, bytes))
        });
        output.collect()
    }

    /// Takes bytes of the bring-up that the peer sent. Returns whether the group is up now.
    ///
    /// # Errors
    ///
    /// [`BringUpError`]: the group can never be brought up.
    pub fn input(&mut self, qp_role: QpRole, bytes: &[u8]) -> Result<bool, BringUpError> {
        let Some(mut bringing) = self.bringing[qp_role as usize].take() else {
            return Ok(false);
        };
        let qp = self.channel(qp_role).qp();
        let fed = bringing.input(qp, bytes);
        if fed.is_ok()
            && let Some(hello) = bringing.peer()
        {
            self.reads_max = u32::from(hello.max_rd_atomic.max(1));
            if qp_role == QpRole::Frames {
                let mut of = Decoder::new(&hello.payload);
                if of.u32() != Ok(VERSION) {
                    return Err(BringUpError::Malformed("version of frames"));
                }
                let (promised, frame_bytes) = (of.u32()?, of.u32()?);
                of.end()?;
                if promised < FLOOR_MIN || u64::from(promised) > PROMISED_MAX {
                    return Err(BringUpError::Malformed("receives promised"));
                }
                if !(FRAME_MIN..=FRAME_MAX).contains(&frame_bytes) {
                    return Err(BringUpError::Malformed("length of frames"));
                }
                self.body_max = frame_bytes as usize - HEADER;
                let heard = self.credit.receive(promised.into());
                heard.map_err(|_| BringUpError::Malformed("receives promised"))?;
            }
        }
        self.bringing[qp_role as usize] = Some(bringing);
        fed?;
        Ok(self.is_up())
    }

    /// Whether both queue pairs are connected.
    pub fn is_up(&self) -> bool {
        self.bringing
            .iter()
            .flatten()
            .filter(|bringing| bringing.is_connected())
            .count()
            == 2
    }

    /// Whether the group is up and has carried a frame: the link between the two devices works.
    pub fn is_proven(&self) -> bool {
        self.has_carried && self.is_up()
    }

    /// Sends an empty frame if nothing was sent before, so that both sides learn whether the link works.
    pub fn greet(&mut self) {
        if self.credit.sent() == 0 && self.credit.left() > 0 && self.frames.room() > 0 {
            self.tell_now(false);
        }
    }

    /// Whether another READ may be posted, in a few pieces.
    pub fn may_read(&self) -> bool {
        self.reads < self.reads_max && self.bulk.room() >= 4
    }

    /// Returns where the body of the next frame goes, and how much fits both here and at the peer.
    pub fn body(&self) -> (&View, usize, usize) {
        let (view, at, fits) = self.frames.body();
        (view, at, fits.min(self.body_max))
    }

    /// Whether a frame that is not empty may be sent on the queue pair for frames.
    pub fn may_send(&self) -> bool {
        self.credit.may_send() && self.frames.room() > 0
    }

    /// Sends a frame. There must be room and credit.
    pub fn send(
        &mut self,
        qp_role: QpRole,
        to: Vqpn,
        header: Header,
        body: usize,
        then: OnCompletion,
    ) {
        self.awaits_peer |= header.kind.wants_reaction();
        let header = Header {
            promised: self.credit.send(),
            ..header
        };
        self.channel(qp_role).frame(to, &header, body, then);
    }

    /// Announces promised receives in an empty frame, if that is due.
    pub fn tell(&mut self, is_short: bool) {
        if self.credit.is_update_due() && self.frames.room() > 0 {
            self.tell_now(is_short);
        }
    }

    /// Tells the peer to send more slowly.
    pub(crate) fn slow(&mut self, is_short: bool) {
        self.is_slow_due = false;
        self.signals_sent += 1;
        let header = Header {
            is_short,
            ..Header::of(Kind::Slow)
        };
        let then = OnCompletion::Nothing;
        self.send(QpRole::Frames, Vqpn::default(), header, 0, then);
    }

    fn tell_now(&mut self, is_short: bool) {
        let header = Header {
            is_short,
            ..Header::of(Kind::Tell)
        };
        let then = OnCompletion::Nothing;
        self.send(QpRole::Frames, Vqpn::default(), header, 0, then);
    }

    /// Removes a connection from all queues of the group.
    pub(crate) fn forget(&mut self, number: Vqpn) {
        self.drr.forget(number.place() as u32);
        self.control.retain(|other| *other != number);
        self.waiting.remove(&number);
    }

    /// Whether requests are staged that a queue pair had no room for.
    pub fn has_staged(&self) -> bool {
        self.frames.has_staged() || self.bulk.has_staged()
    }

    /// Posts staged requests, as many as the queue pairs accept.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the group has failed.
    pub fn flush(&mut self) -> Result<(), PostError> {
        let frames = self.frames.flush();
        frames.and_then(|()| self.bulk.flush())
    }
}

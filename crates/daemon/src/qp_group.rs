//! A link: the few queue pairs that all connections between a domain here and one on another host share (RaaS,
//! section IV.B), what may be sent on them, and whose turn it is.

use std::collections::{BTreeSet, VecDeque};

use headworks_client::{Extent, Vqpn};
use headworks_ring::group::drr::DeficitRoundRobin;
use headworks_shm::View;
use headworks_verbs::{BringUp, BringUpError, DeviceInfo, PostError, Qpn, RemoteAddr};

use crate::credit::{Credit, FLOOR_MIN, PROMISED_MAX};
use crate::frame::{FRAME_MAX, FRAME_MIN, HEADER, Header, Kind, Remote};
use crate::send_queue::{OnCompletion, SendQueue};

/// The version of frames.
const VERSION: u32 = 1;

/// Which of a link's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpRole {
    /// Frames: short messages and control.
    Frames = 0,
    /// WRITEs and READs, which nothing short is to wait behind.
    Bulk = 1,
}

impl QpRole {
    /// The queue pair numbered so.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Frames),
            1 => Some(Self::Bulk),
            _ => None,
        }
    }
}

/// What is to be READ for a connection, as a peer offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// For whom.
    pub number: Vqpn,
    /// Where in the stream.
    pub at: u64,
    /// From where.
    pub from: Remote,
    /// Where to, one stretch of memory after the other.
    pub to: Vec<Extent>,
}

impl Fetch {
    /// Bytes that are still to be READ.
    pub(crate) fn left(&self) -> u32 {
        self.to.iter().map(|extent| extent.len).sum()
    }

    /// What is READ next, `most` bytes at most: where to, and from where.
    pub(crate) fn piece(&mut self, most: u32) -> Option<(Extent, RemoteAddr)> {
        let first = self.to.first_mut()?;
        let len = first.len.min(most);
        let piece = first.part(0, len);
        let from = RemoteAddr {
            addr: self.from.addr,
            rkey: self.from.rkey,
        };
        // Whatever the peer says: what is not its memory is refused.
        self.from.addr = from.plus(len.into()).addr;
        *first = first.part(len, first.len - len);
        if first.len == 0 {
            self.to.remove(0);
        }
        Some((piece, from))
    }
}

/// A link.
pub struct QpGroup {
    pub(crate) frames: SendQueue,
    pub(crate) bulk: SendQueue,
    bringing: [Option<BringUp>; 2],
    pub(crate) credit: Credit,
    /// Whose turn it is to send data, by place.
    pub(crate) rota: DeficitRoundRobin,
    /// Who has control frames to send.
    pub(crate) control: VecDeque<Vqpn>,
    pub(crate) fetches: VecDeque<Fetch>,
    /// Who waits for room for a transfer.
    pub(crate) waiting: BTreeSet<Vqpn>,
    /// Pieces of streams that were written to the peer's memory, and that it was offered to read, ever.
    pub(crate) writes: u64,
    pub(crate) offers: u64,
    /// READs under way, and at most.
    pub(crate) reads: u32,
    reads_max: u32,
    pub(crate) peer_load: u8,
    /// Bytes behind a header that the peer has room for.
    body_max: usize,
}

impl QpGroup {
    /// A link that is being brought up: `promised` receives are the peer's.
    pub fn new(frames: SendQueue, bulk: SendQueue, promised: u32, quantum: u32) -> Self {
        Self {
            frames,
            bulk,
            bringing: [None, None],
            credit: Credit::new(promised),
            rota: DeficitRoundRobin::new(quantum),
            control: VecDeque::new(),
            fetches: VecDeque::new(),
            waiting: BTreeSet::new(),
            writes: 0,
            offers: 0,
            reads: 0,
            reads_max: 1,
            peer_load: 0,
            body_max: 0,
        }
    }

    /// Begins to connect both queue pairs: the peer is told of `promised` receives of `frame_bytes` each.
    ///
    /// # Errors
    ///
    /// [`BringUpError`].
    pub fn start(
        &mut self,
        device: &DeviceInfo,
        promised: u32,
        frame_bytes: u32,
        seed: u32,
    ) -> Result<(), BringUpError> {
        for which in [QpRole::Frames, QpRole::Bulk] {
            let payload = match which {
                QpRole::Frames => {
                    let words = [VERSION, promised, frame_bytes].map(u32::to_le_bytes);
                    words.concat()
                }
                QpRole::Bulk => Vec::new(),
            };
            let tuning = headworks_verbs::bringup::ConnectionParams {
                access: headworks_verbs::Access::ALL,
                ..Default::default()
            };
            let qp = self.channel(which).qp();
            let seed = seed.wrapping_mul(2).wrapping_add(which as u32);
            let started = BringUp::start(device, qp, tuning, seed, payload)?;
            self.bringing[which as usize] = Some(started);
        }
        Ok(())
    }

    /// One of its queue pairs.
    pub fn channel(&mut self, which: QpRole) -> &mut SendQueue {
        match which {
            QpRole::Frames => &mut self.frames,
            QpRole::Bulk => &mut self.bulk,
        }
    }

    /// Which of them has this number.
    pub fn which(&self, qpn: Qpn) -> QpRole {
        match self.frames.qpn() == qpn {
            true => QpRole::Frames,
            false => QpRole::Bulk,
        }
    }

    /// What the peer is to be told so that they can be connected.
    pub fn output(&mut self) -> Vec<(QpRole, Vec<u8>)> {
        let each = [QpRole::Frames, QpRole::Bulk].into_iter();
        let output = each.filter_map(|which| {
            let bytes = self.bringing[which as usize].as_mut()?.output();
            (!bytes.is_empty()).then_some((which, bytes))
        });
        output.collect()
    }

    /// What the peer said; whether the link is up now.
    ///
    /// # Errors
    ///
    /// [`BringUpError`]: it never will be.
    pub fn input(&mut self, which: QpRole, bytes: &[u8]) -> Result<bool, BringUpError> {
        let Some(mut bringing) = self.bringing[which as usize].take() else {
            return Ok(false);
        };
        let qp = self.channel(which).qp();
        let fed = bringing.input(qp, bytes);
        if fed.is_ok()
            && let Some(hello) = bringing.peer()
        {
            self.reads_max = u32::from(hello.max_rd_atomic.max(1));
            if which == QpRole::Frames {
                let word = |at: usize| {
                    let word = hello.payload.get(4 * at..4 * at + 4);
                    word.and_then(|word| Some(u32::from_le_bytes(word.try_into().ok()?)))
                };
                let (Some(VERSION), Some(promised), Some(frame_bytes)) =
                    (word(0), word(1), word(2))
                else {
                    return Err(BringUpError::Malformed("version of frames"));
                };
                if promised < FLOOR_MIN || u64::from(promised) > PROMISED_MAX {
                    return Err(BringUpError::Malformed("receives promised"));
                }
                if !(FRAME_MIN..=FRAME_MAX).contains(&frame_bytes) {
                    return Err(BringUpError::Malformed("length of frames"));
                }
                self.body_max = frame_bytes as usize - HEADER;
                let heard = self.credit.hear(promised.into());
                heard.map_err(|_| BringUpError::Malformed("receives promised"))?;
            }
        }
        self.bringing[which as usize] = Some(bringing);
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

    /// Whether another READ may be posted, in a few pieces.
    pub fn may_read(&self) -> bool {
        self.reads < self.reads_max && self.bulk.room() >= 4
    }

    /// Where what is behind the next frame's header goes, and how much fits, here and there.
    pub fn body(&self) -> (&View, usize, usize) {
        let (view, at, fits) = self.frames.body();
        (view, at, fits.min(self.body_max))
    }

    /// Whether a frame with something in it can be sent on a queue pair.
    pub fn may_send(&self) -> bool {
        self.credit.may_send() && self.frames.room() > 0
    }

    /// Sends a frame, for which there is room and credit.
    pub fn send(
        &mut self,
        which: QpRole,
        to: Vqpn,
        header: Header,
        body: usize,
        then: OnCompletion,
    ) {
        let header = Header {
            promised: self.credit.send(),
            ..header
        };
        self.channel(which).frame(to, &header, body, then);
    }

    /// Tells of receives, if that is due.
    pub fn tell(&mut self, load: u8) {
        if self.credit.is_to_tell() && self.frames.room() > 0 {
            let header = Header {
                load,
                ..Header::of(Kind::Tell)
            };
            self.send(
                QpRole::Frames,
                Vqpn::default(),
                header,
                0,
                OnCompletion::Nothing,
            );
        }
    }

    /// Whether something is staged that a queue pair had no room for.
    pub fn has_staged(&self) -> bool {
        self.frames.has_staged() || self.bulk.has_staged()
    }

    /// Posts what was staged, as far as the queue pairs take it.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the link has failed.
    pub fn flush(&mut self) -> Result<(), PostError> {
        let frames = self.frames.flush();
        frames.and_then(|()| self.bulk.flush())
    }
}

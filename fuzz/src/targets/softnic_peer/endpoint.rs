//! One end of a connection, and the actions of its program.

use std::sync::Arc;

use headworks_verbs::bringup::BringUpError;
use headworks_verbs::{
    Access, AddressHandle, AhInit, AhKey, AllocRequest, Buffer, Completion, CompletionChannel,
    CompletionQueue, CqInit, Destination, Device, GRH_BYTES, Payload, ProtectionDomain, Psn,
    QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, Region, RemoteAddr, SendFlags,
    SendOp, SendWr, Sge, SharedReceiveQueue, SrqInit, Status,
};

use super::guarded_buffer::{self, GuardedBuffer};
use crate::input::Input;
use crate::targets::fixtures;

/// Size in bytes of an end's memory. It is enough for requests that are too long to execute while posting.
const MEMORY: usize = 96 << 10;
const QUEUE: u32 = 8;
/// Offset of the memory that honest exchanges send from. `TO` is the offset of their target.
const FROM: usize = 0;
const TO: usize = 1024;

/// Amount that the first of two honest atomics adds; the second one subtracts it.
const ADDED: u64 = 0x11;
/// Q_Key of the attacked pair. `HONEST_QKEY` is that of the honest pair, to which any sender could send.
const QKEY: u32 = 0x1111;
const HONEST_QKEY: u32 = 0x1234_5678;
/// Byte that fills memory that no peer may write.
const KEPT: u8 = 0x3c;

/// Relation of two ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestKind {
    /// Connected. Their memory was allocated by the device.
    Connected,
    /// Connected. Their memory is private, so peers reach it through bounce buffers.
    Bounce,
    /// Not connected. They send datagrams to each other.
    Datagrams,
}

/// Options of an end.
#[derive(Clone, Copy)]
pub(crate) struct EndpointOptions {
    kind: TestKind,
    qkey: u32,
    srq: bool,
    channel: bool,
    timestamps: bool,
    signal_all: bool,
}

impl EndpointOptions {
    /// Returns the options of an end of the honest pair, which is not attacked.
    pub(crate) fn honest(kind: TestKind) -> Self {
        Self {
            qkey: HONEST_QKEY,
            ..Self::from_bits(kind, 0)
        }
    }

    pub(crate) fn from_bits(kind: TestKind, bits: u8) -> Self {
        Self {
            kind,
            qkey: QKEY,
            srq: bits & 1 != 0,
            channel: bits & 2 != 0,
            timestamps: bits & 4 != 0,
            signal_all: bits & 8 != 0,
        }
    }
}

/// A queue pair with all objects that it needs. The queue pair is dropped first.
pub(crate) struct Endpoint {
    qp: Option<Box<dyn QueuePair>>,
    /// Destination of datagrams.
    aim: Option<(Arc<dyn AddressHandle>, Qpn)>,
    extra: Option<Region>,
    pub(crate) memory: Region,
    /// A region without access rights, and its memory.
    kept: Option<(Region, Arc<GuardedBuffer>)>,
    srq: Option<Arc<dyn SharedReceiveQueue>>,
    cq: Arc<dyn CompletionQueue>,
    channel: Option<Arc<dyn CompletionChannel>>,
    pd: Arc<dyn ProtectionDomain>,
    shape: EndpointOptions,
    device: Arc<dyn Device>,
}

impl Endpoint {
    pub(crate) fn new(device: &Arc<dyn Device>, shape: EndpointOptions) -> Self {
        let channel = shape
            .channel
            .then(|| device.create_channel().expect("a channel"));
        let cq = device.create_cq(&CqInit {
            depth: 4 * QUEUE,
            channel: channel.clone(),
            timestamps: shape.timestamps,
        });
        let pd = device.alloc_pd().expect("a domain");
        let srq = shape.srq.then(|| {
            let init = SrqInit {
                max_wr: QUEUE,
                max_sge: 2,
                limit: 2,
            };
            pd.create_srq(&init).expect("an SRQ")
        });
        let memory = memory(device, &*pd, shape.kind, MEMORY).expect("memory");
        let kept = (shape.kind == TestKind::Bounce).then(|| {
            let guarded = GuardedBuffer::new(4096);
            guarded.fill(KEPT);
            let buffer: Arc<dyn Buffer> = guarded.clone();
            let region = pd.register(&buffer, Access::NONE);
            (region.expect("a region"), guarded)
        });
        let mut end = Self {
            qp: None,
            aim: None,
            extra: None,
            memory,
            kept,
            srq,
            cq: cq.expect("a CQ"),
            channel,
            pd,
            shape,
            device: device.clone(),
        };
        end.renew();
        end
    }

    /// Replaces the queue pair by a new one.
    fn renew(&mut self) {
        self.qp = None;
        let made = self.pd.create_qp(&QpInit {
            qp_type: match self.shape.kind {
                TestKind::Datagrams => QpType::Ud,
                _ => QpType::Rc,
            },
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: self.srq.clone(),
            caps: QpCaps {
                max_send_wr: QUEUE,
                max_recv_wr: QUEUE,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline: 64,
            },
            signal_all: self.shape.signal_all,
        });
        self.qp = made.ok();
        if self.shape.kind == TestKind::Datagrams {
            self.bring_up();
        }
    }

    /// Brings a datagram queue pair to the RTS state.
    fn bring_up(&mut self) {
        let steps = [
            QpAttr {
                qkey: Some(self.shape.qkey),
                ..QpAttr::to_state(QpState::Init)
            },
            QpAttr::to_state(QpState::Rtr),
            QpAttr {
                sq_psn: Some(Psn::truncated(1)),
                ..QpAttr::to_state(QpState::Rts)
            },
        ];
        if let Some(qp) = self.qp() {
            let _ = steps.iter().try_for_each(|step| qp.modify(step));
        }
    }

    /// Makes `other` the destination of datagrams.
    fn aim_at(&mut self, other: &Self) {
        let handle = self.pd.create_ah(&AhInit::to(other.device.info().gid));
        let qpn = other.qp.as_ref().map(|qp| qp.qpn());
        self.aim = handle.ok().zip(qpn);
    }

    /// Returns the destination of datagrams to the other end.
    fn destination(&self) -> Destination {
        let (handle, qpn) = self.aim.as_ref().expect("two ends that were connected");
        Destination {
            ah: handle.key(),
            qpn: *qpn,
            qkey: self.shape.qkey,
        }
    }

    fn qp(&mut self) -> Option<&mut dyn QueuePair> {
        match &mut self.qp {
            Some(qp) => Some(&mut **qp),
            None => None,
        }
    }

    /// Connects to `other`. A request fails if the peer is silent for about the encoded time `timeout`.
    pub(crate) fn connect(&mut self, other: &mut Self, timeout: u8) -> Result<(), BringUpError> {
        if self.shape.kind == TestKind::Datagrams {
            self.aim_at(other);
            other.aim_at(self);
            return Ok(());
        }
        let (left, right) = (self.device.clone(), other.device.clone());
        match (self.qp(), other.qp()) {
            (Some(ours), Some(theirs)) => {
                fixtures::connect_for((&*left, ours), (&*right, theirs), timeout)
            }
            _ => Ok(()),
        }
    }

    /// Replaces both queue pairs and connects them again, unless both are in RTS.
    pub(crate) fn restore(&mut self, other: &mut Self, timeout: u8) {
        let is_up = |end: &Self| {
            let qp = end.qp.as_ref();
            qp.is_some_and(|qp| qp.state() == QpState::Rts)
        };
        if !(is_up(self) && is_up(other)) {
            self.renew();
            other.renew();
            let _ = self.connect(other, timeout);
        }
    }

    fn receive(&mut self, sges: &[Sge]) {
        let wrs = [RecvWr { wr_id: 1, sges }];
        let _ = match (&self.srq, &mut self.qp) {
            (Some(srq), _) => srq.post_recv(&wrs),
            (None, Some(qp)) => qp.post_recv(&wrs),
            (None, None) => Ok(()),
        };
    }

    /// Posts four receives.
    pub(crate) fn expect(&mut self) {
        for at in 0..4 {
            self.receive(&[self.memory.sge(TO + at * 256, 256)]);
        }
    }

    /// Polls until a request of this end's queue pair completes. An attack through another queue pair of this
    /// process can put that queue pair's completions into this queue, so they are ignored.
    fn completed(&self) -> Completion {
        let mut one = [Completion::default()];
        let qpn = self.qp.as_ref().map(|qp| qp.qpn());
        fixtures::until("an honest request", || {
            self.cq.poll(&mut one) == Ok(1) && Some(one[0].qpn) == qpn
        });
        one[0]
    }

    /// Sends honest requests of its kind to `other`. All must succeed.
    ///
    /// # Panics
    ///
    /// If a request does not succeed.
    pub(crate) fn exchange(&mut self, other: &mut Self) {
        let done = self.try_exchange(other);
        assert!(done.is_some(), "an honest end does not answer");
    }

    /// Does the work of [`exchange`](Self::exchange). Returns `None` if the other end did not answer in time, which
    /// can happen on a busy machine.
    pub(crate) fn try_exchange(&mut self, other: &mut Self) -> Option<()> {
        let header = match self.shape.kind {
            TestKind::Datagrams => GRH_BYTES,
            _ => 0,
        };
        other.receive(&[other.memory.sge(TO, (64 + header) as u32)]);
        let gather = [self.memory.sge(FROM, 64)];
        match self.shape.kind {
            TestKind::Datagrams => self.succeeds(SendOp::SendTo(self.destination()), &gather)?,
            kind => {
                self.succeeds(SendOp::Write(other.memory.remote(TO)), &gather)?;
                self.succeeds(SendOp::Send, &gather)?;
                if kind == TestKind::Bounce {
                    self.adds(other)?;
                }
            }
        }
        let done = other.completed();
        assert_eq!(
            (done.wr_id, done.status, done.byte_len as usize),
            (1, Status::Success, 64 + header)
        );
        Some(())
    }

    /// Executes an honest request. Returns `None` if it was not answered in time.
    fn succeeds(&mut self, op: SendOp, gather: &[Sge]) -> Option<()> {
        let wr = SendWr {
            wr_id: 2,
            op,
            payload: Payload::Gather(gather),
            flags: SendFlags::SIGNALED,
        };
        let qp = self.qp().expect("an honest queue pair");
        qp.post_send(&[wr]).expect("room for one request");
        let done = self.completed();
        if self.shape.kind == TestKind::Bounce && done.status == Status::RetryExceeded {
            return None;
        }
        assert_eq!((done.wr_id, done.status), (2, Status::Success));
        Some(())
    }

    /// READs the word `TO` of `other` and applies two atomics to it. The word is 0 before and after.
    fn adds(&mut self, other: &Self) -> Option<()> {
        let remote = other.memory.remote(TO);
        for (expect, add) in [(0, ADDED), (ADDED, ADDED.wrapping_neg())] {
            let found = [self.memory.sge(TO, 8)];
            self.succeeds(SendOp::Read(remote), &found)?;
            self.succeeds(SendOp::FetchAdd { remote, add }, &found)?;
            let old = guarded_buffer::word(&**self.memory.buffer(), TO);
            assert_eq!(old, expect, "an honest atomic");
        }
        Some(())
    }

    /// Returns the words with which a call can address this end's memory: a key with an operation, an address, and
    /// a length.
    pub(crate) fn asked(&self) -> Vec<[u64; 3]> {
        let key = |region: &Region| u64::from(region.rkey()) << 32;
        let of = |region: &Region| {
            let (key, addr, len) = (key(region), region.addr(0), region.len() as u64);
            (1..6).map(move |what| [key | what, addr, if what < 3 { 8 } else { len }])
        };
        self.regions().flat_map(of).collect()
    }

    fn regions(&self) -> impl Iterator<Item = &Region> {
        let kept = self.kept.iter().map(|(region, _)| region);
        kept.chain([&self.memory])
    }

    /// # Panics
    ///
    /// If memory was written that no peer may write.
    pub(crate) fn check(&self) {
        if let Some((_, guarded)) = &self.kept {
            guarded.check();
            assert!(guarded.is_all(KEPT), "memory without rights was written");
        }
    }

    /// Executes one action of the input: a request to `other`, or a call on this end's own objects.
    pub(crate) fn act(&mut self, input: &mut Input<'_>, other: &Self) {
        match input.byte() % 16 {
            0..6 => self.post(input, &other.memory),
            6 | 7 => {
                let sges = sges(input, &self.memory);
                self.receive(&sges);
            }
            8 | 9 => {
                let mut some = [Completion::default(); 4];
                let _ = self.cq.poll(&mut some);
            }
            10 => {
                self.cq.arm(input.byte().is_multiple_of(2));
                if let Some(channel) = &self.channel {
                    let _ = channel.next_event();
                }
            }
            11 => {
                let state =
                    input.pick(&[QpState::Error, QpState::Reset, QpState::Sqd, QpState::Rts]);
                let attr = QpAttr::to_state(state);
                let _ = self.qp().map(|qp| qp.modify(&attr));
            }
            12 => match self.extra.take() {
                Some(region) => drop(region),
                // It is so long that it gets a segment of its own, which is freed with the region.
                None => {
                    self.extra = memory(&self.device, &*self.pd, self.shape.kind, 512 << 10);
                }
            },
            13 => {
                if let Some(srq) = &self.srq {
                    let _ = srq.set_limit(u32::from(input.byte()) % (QUEUE + 1));
                }
            }
            14 => drop(self.device.next_async_event()),
            _ => {
                self.renew();
                if self.shape.kind == TestKind::Datagrams {
                    return;
                }
                let device = self.device.clone();
                // Connects to the same peer context, in which no queue pair expects the new queue pair.
                let mut nobody = fixtures::StubQueuePair::new();
                if let Some(qp) = self.qp() {
                    let _ = fixtures::connect((&*device, qp), (&*other.device, &mut nobody));
                }
            }
        }
    }

    /// Posts a request that the input describes.
    pub(crate) fn post(&mut self, input: &mut Input<'_>, theirs: &Region) {
        let remote = remote(input, theirs);
        let value = input.byte().into();
        let op = match input.byte() % 8 {
            kind if self.shape.kind == TestKind::Datagrams && kind > 0 => {
                let to = destination(input, self.destination());
                match kind {
                    7 => SendOp::SendToImm(to, value),
                    _ => SendOp::SendTo(to),
                }
            }
            0 | 1 => SendOp::Send,
            2 => SendOp::SendImm(value),
            3 => SendOp::Write(remote),
            4 => SendOp::WriteImm(remote, value),
            5 => SendOp::Read(remote),
            6 => SendOp::CompareSwap {
                remote,
                expect: 0,
                swap: value.into(),
            },
            _ => SendOp::FetchAdd {
                remote,
                add: value.into(),
            },
        };
        let bytes = [7; 48];
        let memory = self.extra.as_ref().unwrap_or(&self.memory);
        let gather = sges(input, memory);
        let payload = match (op, input.byte() % 4) {
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, _) => {
                Payload::Gather(&[memory.sge(8, 8)])
            }
            (_, 0) => Payload::Inline(&bytes),
            _ => Payload::Gather(&gather),
        };
        let wr = SendWr {
            wr_id: 3,
            op,
            payload,
            flags: SendFlags::SIGNALED,
        };
        if let Some(qp) = &mut self.qp {
            let _ = qp.post_send(&[wr, wr]);
        }
    }
}

/// Returns the destination `right`, in some inputs with a wrong handle, number or Q_Key.
fn destination(input: &mut Input<'_>, right: Destination) -> Destination {
    match input.byte() {
        0..8 => Destination {
            ah: AhKey(input.byte().into()),
            ..right
        },
        8..16 => Destination {
            qpn: Qpn::new(input.word(right.qpn.raw().into()) as u32).unwrap_or(right.qpn),
            ..right
        },
        16..24 => Destination {
            qkey: input.word(right.qkey.into()) as u32,
            ..right
        },
        _ => right,
    }
}

/// Allocates and registers `len` bytes with all access rights, in the way of the kind of end.
fn memory(
    device: &Arc<dyn Device>,
    pd: &dyn ProtectionDomain,
    kind: TestKind,
    len: usize,
) -> Option<Region> {
    let buffer: Arc<dyn Buffer> = match kind {
        TestKind::Bounce => GuardedBuffer::new(len),
        _ => device.alloc(&AllocRequest::of(len)).ok()?,
    };
    pd.register(&buffer, Access::ALL).ok()
}

/// Returns an address that is mostly within the region.
fn remote(input: &mut Input<'_>, region: &Region) -> RemoteAddr {
    let inside = region.remote(8 * input.below(64));
    match input.byte() {
        0..16 => RemoteAddr {
            // Never an address of this process: between contexts of one process, a region of private memory
            // can be reached at any address that its row names.
            addr: input.word(inside.addr) | 1 << 63,
            ..inside
        },
        16..24 => RemoteAddr {
            rkey: input.word(inside.rkey.into()) as u32,
            ..inside
        },
        _ => inside,
    }
}

/// Returns one or two entries. Their lengths are short, long, or more than the region has.
fn sges(input: &mut Input<'_>, region: &Region) -> Vec<Sge> {
    let lengths = [0, 8, 64, 1000, 70 << 10, MEMORY as u32, u32::MAX];
    let piece = |input: &mut Input<'_>| match input.byte() {
        0..8 => Sge {
            addr: input.u64(),
            len: input.pick(&lengths),
            lkey: input.byte().into(),
        },
        8..16 => region.sge(64, input.pick(&lengths)),
        _ => region.sge(8 * input.below(64), input.pick(&lengths[..5])),
    };
    (0..1 + input.below(2)).map(|_| piece(input)).collect()
}

//! Queue pairs by verbs' own objects, in the process of the test itself: for what cannot be a case,
//! as forks.

use std::sync::Arc;

use headworks_net::clock;
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    Access, AllocRequest, BringUp, Completion, CompletionQueue, CqInit, Device, Duration, Payload,
    ProtectionDomain, QpCaps, QpInit, QpType, QueuePair, RecvWr, Region, SendFlags, SendOp, SendWr,
    Sge, SharedReceiveQueue, Status,
};

/// How long anything may take before it counts as never.
pub(crate) const DEADLINE: Duration = Duration::from_millis(10_000);

/// The devices that the cases run on.
pub(crate) struct DevicePair {
    /// One.
    pub(crate) a: Arc<dyn Device>,
    /// The other; may be the same.
    pub(crate) b: Arc<dyn Device>,
}

/// How a side is made.
#[derive(Clone)]
pub(crate) struct EndpointOptions {
    /// Sizes of the queue pair.
    pub(crate) caps: QpCaps,
    /// Completions each CQ holds.
    pub(crate) depth: u32,
    /// Bytes of the buffer.
    pub(crate) len: usize,
    /// What its region allows.
    pub(crate) region: Access,
    /// Timing, and what the queue pair allows.
    pub(crate) tuning: ConnectionParams,
    /// Every send completes.
    pub(crate) signal_all: bool,
    /// Completions carry the time.
    pub(crate) timestamps: bool,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 64,
            },
            depth: 256,
            len: 64 << 10,
            region: Access::ALL,
            tuning: ConnectionParams {
                timeout: 12,
                retry_count: 2,
                ..ConnectionParams::default()
            },
            signal_all: false,
            timestamps: false,
        }
    }
}

/// A queue pair with everything around it.
pub(crate) struct VerbsEndpoint {
    /// Its queue pair; first, so that it goes before what it uses.
    pub(crate) qp: Box<dyn QueuePair>,
    /// Its memory.
    pub(crate) region: Region,
    /// Where its sends complete.
    pub(crate) send_cq: Arc<dyn CompletionQueue>,
    /// Where its receives complete.
    pub(crate) recv_cq: Arc<dyn CompletionQueue>,
    /// Its receives' SRQ, if it has one.
    pub(crate) srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// Its protection domain.
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    /// Its device.
    pub(crate) device: Arc<dyn Device>,
    /// How it was made.
    pub(crate) options: EndpointOptions,
}

/// Any error as the line of a verdict.
pub(crate) fn error_line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl VerbsEndpoint {
    /// A queue pair in RESET, with CQs, a domain and a buffer of its own.
    pub(crate) fn new(device: &Arc<dyn Device>, options: &EndpointOptions) -> Result<Self, String> {
        let pd = device.alloc_pd().map_err(error_line)?;
        Self::new_in_pd(device, &pd, None, options)
    }

    /// A queue pair of `pd` that receives from `srq`, if that is given.
    pub(crate) fn new_in_pd(
        device: &Arc<dyn Device>,
        pd: &Arc<dyn ProtectionDomain>,
        srq: Option<Arc<dyn SharedReceiveQueue>>,
        options: &EndpointOptions,
    ) -> Result<Self, String> {
        let channel = device.create_channel().map_err(error_line)?;
        let cq = CqInit {
            depth: options.depth,
            channel: Some(channel),
            timestamps: options.timestamps,
        };
        let send_cq = device.create_cq(&cq).map_err(error_line)?;
        let recv_cq = device.create_cq(&cq).map_err(error_line)?;
        let buffer = device
            .alloc(&AllocRequest::of(options.len))
            .map_err(error_line)?;
        let region = pd.register(&buffer, options.region).map_err(error_line)?;
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: srq.clone(),
            caps: options.caps,
            signal_all: options.signal_all,
        };
        Ok(Self {
            qp: pd.create_qp(&init).map_err(error_line)?,
            region,
            send_cq,
            recv_cq,
            srq,
            pd: pd.clone(),
            device: device.clone(),
            options: options.clone(),
        })
    }

    /// Starts connecting; the payload is handed to the other side.
    pub(crate) fn start(&mut self, payload: Vec<u8>) -> Result<BringUp, String> {
        let seed = clock::now().nanos() as u32;
        let (info, tuning) = (self.device.info(), self.options.tuning);
        BringUp::start(info, self.qp.as_mut(), tuning, seed, payload).map_err(error_line)
    }

    /// Posts one signalled request without local bytes but those given.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) -> Result<(), String> {
        self.post_flagged(wr_id, op, sges, SendFlags::SIGNALED)
    }

    /// Posts one request.
    pub(crate) fn post_flagged(
        &mut self,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
        flags: SendFlags,
    ) -> Result<(), String> {
        let wr = SendWr {
            wr_id,
            op,
            payload: Payload::Gather(sges),
            flags,
        };
        self.qp.post_send(&[wr]).map_err(error_line)
    }

    /// Posts one receive.
    pub(crate) fn receive(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), String> {
        let wr = RecvWr { wr_id, sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&[wr]).map_err(error_line),
            None => self.qp.post_recv(&[wr]).map_err(error_line),
        }
    }

    /// The next completion of a send.
    pub(crate) fn sent(&self) -> Result<Completion, String> {
        next(&*self.send_cq)
    }

    /// The next completion of a receive.
    pub(crate) fn received(&self) -> Result<Completion, String> {
        next(&*self.recv_cq)
    }

    /// The next send completes with `wr_id` and `status`.
    pub(crate) fn expect_sent(&self, wr_id: u64, status: Status) -> Result<Completion, String> {
        expect(self.sent()?, wr_id, status)
    }

    /// The next receive completes with `wr_id` and `status`.
    pub(crate) fn expect_received(&self, wr_id: u64, status: Status) -> Result<Completion, String> {
        expect(self.received()?, wr_id, status)
    }
}

fn expect(found: Completion, wr_id: u64, status: Status) -> Result<Completion, String> {
    if (found.wr_id, found.status) == (wr_id, status) {
        Ok(found)
    } else {
        Err(format!(
            "completed wr_id {} with {:?} instead of {wr_id} with {status:?}",
            found.wr_id, found.status
        ))
    }
}

/// Calls `look` until it finds something; an error when it does not within [`DEADLINE`].
pub(crate) fn wait<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, String>,
) -> Result<T, String> {
    let until = clock::now() + DEADLINE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if clock::now() > until {
            return Err(format!("no {what} within 10 s"));
        }
        std::thread::yield_now();
    }
}

/// The next completion of `cq`.
pub(crate) fn next(cq: &dyn CompletionQueue) -> Result<Completion, String> {
    let mut out = [Completion::default()];
    wait("completion", || {
        Ok((cq.poll(&mut out).map_err(error_line)? > 0).then_some(out[0]))
    })
}

/// Two sides that are, or will be, connected.
pub(crate) struct ConnectedPair {
    /// One.
    pub(crate) a: VerbsEndpoint,
    /// Second of the two connected endpoints.
    pub(crate) b: VerbsEndpoint,
}

impl DevicePair {
    /// Two connected sides of the usual kind.
    pub(crate) fn connected_pair(&self) -> Result<ConnectedPair, String> {
        self.connected_pair_with(&EndpointOptions::default(), &EndpointOptions::default())
    }

    /// Two connected sides.
    pub(crate) fn connected_pair_with(
        &self,
        a: &EndpointOptions,
        b: &EndpointOptions,
    ) -> Result<ConnectedPair, String> {
        let mut pair = ConnectedPair {
            a: VerbsEndpoint::new(&self.a, a)?,
            b: VerbsEndpoint::new(&self.b, b)?,
        };
        pair.connect()?;
        Ok(pair)
    }
}

impl ConnectedPair {
    /// Brings both up from RESET.
    pub(crate) fn connect(&mut self) -> Result<(), String> {
        connect(&mut self.a, &mut self.b)
    }
}

/// Brings two queue pairs up from RESET.
pub(crate) fn connect(a: &mut VerbsEndpoint, b: &mut VerbsEndpoint) -> Result<(), String> {
    let (mut up_a, mut up_b) = (a.start(b"from a".to_vec())?, b.start(b"from b".to_vec())?);
    while !(up_a.is_connected() && up_b.is_connected()) {
        let (from_a, from_b) = (up_a.output(), up_b.output());
        up_b.input(b.qp.as_mut(), &from_a).map_err(error_line)?;
        up_a.input(a.qp.as_mut(), &from_b).map_err(error_line)?;
    }
    match (up_a.peer(), up_b.peer()) {
        (Some(b), Some(a)) if b.payload == b"from b" && a.payload == b"from a" => Ok(()),
        other => Err(format!("payloads of the exchange: {other:?}")),
    }
}

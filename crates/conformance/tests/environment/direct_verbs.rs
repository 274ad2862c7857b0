//! Queue pairs used directly through verbs, in the process of the test: for tests that cannot be cases, such
//! as forks.

use std::sync::Arc;

use headworks_net::clock;
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    Access, AllocRequest, BringUp, Completion, CompletionQueue, CqInit, Device, Duration, Payload,
    ProtectionDomain, QpCaps, QpInit, QpType, QueuePair, RecvWr, Region, SendFlags, SendOp, SendWr,
    Sge, SharedReceiveQueue, Status,
};

/// Time limit of a wait.
pub(crate) const DEADLINE: Duration = Duration::from_millis(10_000);

/// Devices that a test runs on.
pub(crate) struct DevicePair {
    /// First device.
    pub(crate) a: Arc<dyn Device>,
    /// Second device; may be the first one.
    pub(crate) b: Arc<dyn Device>,
}

/// Options of an endpoint.
#[derive(Clone)]
pub(crate) struct EndpointOptions {
    /// Requested sizes of the queue pair.
    pub(crate) caps: QpCaps,
    /// Depth of each CQ.
    pub(crate) depth: u32,
    /// Length of the buffer in bytes.
    pub(crate) len: usize,
    /// Access that the region allows.
    pub(crate) region: Access,
    /// Timing of the connection, and access that the queue pair allows.
    pub(crate) tuning: ConnectionParams,
    /// Every send request generates a completion.
    pub(crate) signal_all: bool,
    /// Completions carry timestamps.
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
                timeout: Some(12),
                retry_count: 2,
                ..ConnectionParams::default()
            },
            signal_all: false,
            timestamps: false,
        }
    }
}

/// Queue pair with everything around it.
pub(crate) struct VerbsEndpoint {
    /// The queue pair. It is the first field, so that it is dropped before what it uses.
    pub(crate) qp: Box<dyn QueuePair>,
    /// Region of its buffer.
    pub(crate) region: Region,
    /// CQ of its sends.
    pub(crate) send_cq: Arc<dyn CompletionQueue>,
    /// CQ of its receives.
    pub(crate) recv_cq: Arc<dyn CompletionQueue>,
    /// Shared receive queue, if it has one.
    pub(crate) srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// Protection domain.
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    /// Device.
    pub(crate) device: Arc<dyn Device>,
    /// Options that it was made with.
    pub(crate) options: EndpointOptions,
}

/// Converts an error to the error line of a test.
pub(crate) fn error_line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl VerbsEndpoint {
    /// Creates a queue pair in RESET, with its own CQs, protection domain and buffer.
    pub(crate) fn new(device: &Arc<dyn Device>, options: &EndpointOptions) -> Result<Self, String> {
        let pd = device.alloc_pd().map_err(error_line)?;
        Self::new_in_pd(device, &pd, None, options)
    }

    /// Creates a queue pair in `pd` that receives from `srq`, if given.
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

    /// Starts to connect. The other side gets `payload`.
    pub(crate) fn start(&mut self, payload: Vec<u8>) -> Result<BringUp, String> {
        let seed = clock::now().nanos() as u32;
        let (info, tuning) = (self.device.info(), self.options.tuning);
        BringUp::start(info, self.qp.as_mut(), tuning, seed, payload).map_err(error_line)
    }

    /// Posts one signalled request with these local pieces.
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

    /// Waits for the next completion of a send.
    pub(crate) fn sent(&self) -> Result<Completion, String> {
        next(&*self.send_cq)
    }

    /// Waits for the next completion of a receive.
    pub(crate) fn received(&self) -> Result<Completion, String> {
        next(&*self.recv_cq)
    }

    /// Waits for the next send completion and checks that it has this `wr_id` and `status`.
    pub(crate) fn expect_sent(&self, wr_id: u64, status: Status) -> Result<Completion, String> {
        expect(self.sent()?, wr_id, status)
    }

    /// Waits for the next receive completion and checks that it has this `wr_id` and `status`.
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

/// Calls `look` until it finds something. Returns an error after [`DEADLINE`].
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

/// Waits for the next completion of `cq`.
pub(crate) fn next(cq: &dyn CompletionQueue) -> Result<Completion, String> {
    let mut out = [Completion::default()];
    wait("completion", || {
        Ok((cq.poll(&mut out).map_err(error_line)? > 0).then_some(out[0]))
    })
}

/// Two endpoints that are, or will be, connected.
pub(crate) struct ConnectedPair {
    /// First endpoint.
    pub(crate) a: VerbsEndpoint,
    /// Second endpoint.
    pub(crate) b: VerbsEndpoint,
}

impl DevicePair {
    /// Returns two connected endpoints with default options.
    pub(crate) fn connected_pair(&self) -> Result<ConnectedPair, String> {
        self.connected_pair_with(&EndpointOptions::default(), &EndpointOptions::default())
    }

    /// Returns two connected endpoints.
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
    /// Connects both queue pairs, from RESET to RTS.
    pub(crate) fn connect(&mut self) -> Result<(), String> {
        connect(&mut self.a, &mut self.b)
    }
}

/// Connects two queue pairs, from RESET to RTS.
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

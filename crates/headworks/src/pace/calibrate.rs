//! Measures the delays of an idle device: the base delays of its pacing, in the way pacing measures them.
//!
//! One small request is measured at a time, from its doorbell to its completion, minus the time of its bytes
//! on the line. The completion time is the device's timestamp if pacing would use that
//! ([`PaceConfig::timestamps`]). Otherwise it is the time of the poll that finds it; the polls follow each
//! other at once. Nothing else is subtracted: what a request takes on the idle device is its base delay.

use std::sync::Arc;

use headworks_pacing::clock_sync::{ClockSync, between};
use headworks_pacing::monitor::{Class, serialisation};
use headworks_pacing::{Clock, PacingConfig};
use headworks_verbs::bringup::{ConnectionParams, bring_up_ud};
use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, BringUp, Completion, CompletionQueue, CqInit,
    Destination, Device, DeviceName, Duration, Instant, OpenError, Payload, PollError,
    PostErrorKind, ProtectionDomain, QpCaps, QpInit, QpType, QueuePair, RecvWr, Region,
    ResourceError, SendFlags, SendOp, SendWr, Status,
};

use super::{default_config, split};
#[cfg(doc)]
use crate::pace::PaceConfig;
use crate::pace::device_kind::is_simulated;

/// Number of requests of each class that are measured by default.
pub const ROUNDS: u32 = 4000;
/// Limit on the requests of each class. It bounds the memory for samples; more samples would show nothing
/// new.
pub const ROUNDS_MAX: u32 = 1_000_000;
/// Bytes of a request.
pub const BYTES: u32 = 8;
/// Warm-up requests before the measured ones: one in this many of the latter.
const WARM_UP_PART: u32 = 10;
/// A device counts as idle if nine in ten samples are at most this multiple of the shortest tenth.
pub const IDLE_SPREAD: u64 = 3;
/// Requests, and polls that find nothing, between two calls of `go_on`.
const INTERRUPT_CHECK_ROUNDS: u32 = 64;
const INTERRUPT_CHECK_POLLS: u32 = 4096;
/// Number of receives posted for datagrams.
const RECEIVES: u32 = 16;
const QKEY: u32 = 0x6865_6164;
/// Bytes of each end's memory: for the request, and for a datagram after its header.
const MEMORY: usize = 4096;

/// Failure to measure base delays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The number of requests is 0 or above [`ROUNDS_MAX`].
    #[error("{0} requests of each class: 1 to {ROUNDS_MAX} are allowed")]
    Rounds(
        /// Number of requests of each class.
        u32,
    ),
    /// A device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A device could not do a part of the measurement.
    #[error("{what}: {source}")]
    Device {
        /// The part that failed.
        what: &'static str,
        /// Error of the device.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request failed.
    #[error("{} ended with {status:?}", name(*.class))]
    Ended {
        /// Class of the request that failed.
        class: Class,
        /// Status of its completion.
        status: Status,
    },
    /// The caller's `go_on` returned false.
    #[error("interrupted")]
    Interrupted,
}

fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    what: &'static str,
) -> impl FnOnce(E) -> CalibrateError {
    move |source| CalibrateError::Device {
        what,
        source: source.into(),
    }
}

/// Returns the name of a class of requests.
pub fn name(class: Class) -> &'static str {
    match class {
        Class::Write => "SEND, WRITE",
        Class::Read => "READ",
        Class::Atomic => "atomic",
        Class::Datagram => "datagram",
    }
}

/// Measured base delays of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Calibration {
    /// Whether the delays are in virtual time.
    pub is_simulated: bool,
    /// Whether completions were timed by the device's timestamps.
    pub is_stamped: bool,
    /// One entry for each class that the device supports.
    pub measured: Vec<ClassDelay>,
}

/// The base delay of a class of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassDelay {
    /// Class of the requests.
    pub class: Class,
    /// Number of samples.
    pub samples: u32,
    /// Median: the base delay.
    pub median: Duration,
    /// 10th percentile: one sample in ten is no longer.
    pub p10: Duration,
    /// 90th percentile: nine samples in ten are no longer.
    pub p90: Duration,
}

impl ClassDelay {
    fn of(class: Class, mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        let at = |part: f64| samples.get((samples.len() as f64 * part) as usize).copied();
        Some(Self {
            class,
            samples: samples.len() as u32,
            median: at(0.5)?,
            p10: at(0.1)?,
            p90: at(0.9)?,
        })
    }

    /// Whether the samples are as close to each other as on an idle device.
    pub fn is_idle(&self) -> bool {
        self.p90.nanos() <= IDLE_SPREAD.saturating_mul(self.p10.nanos())
    }

    /// Returns the constant to set, and its value in nanoseconds.
    pub fn constant(&self) -> (&'static str, u64) {
        let key = match self.class {
            Class::Write => "base_delay_ns",
            Class::Read => "base_delay_read_ns",
            Class::Atomic => "base_delay_atomic_ns",
            Class::Datagram => "base_delay_ud_ns",
        };
        (key, self.median.nanos())
    }
}

impl Calibration {
    /// Whether the device seems to have been idle during the measurement.
    pub fn is_idle(&self) -> bool {
        self.measured.iter().all(ClassDelay::is_idle)
    }

    /// Returns the options to add to the device's name: `pace_base_delay_ns=2100,…`.
    pub fn options(&self) -> String {
        let each = self.measured.iter().map(|measured| {
            let (key, value) = measured.constant();
            format!("pace_{key}={value}")
        });
        each.collect::<Vec<_>>().join(",")
    }
}

/// Returns the default peer for a device's requests: another soft host, another simulated host of its
/// network, or the device itself for libibverbs.
pub fn default_peer(device: &DeviceName) -> DeviceName {
    let (kind, name) = (device.kind(), device.name());
    let other = |host: &str| if host == "h2" { "h1" } else { "h2" };
    let mut text = match (kind, name) {
        ("soft", host) => format!("soft:{}", other(host.unwrap_or("h1"))),
        (_, Some(name)) => format!("{kind}:{name}"),
        _ => kind.to_owned(),
    };
    let is_simulated = is_simulated(device);
    if is_simulated {
        let host = device.option("host").flatten().unwrap_or("h1");
        text += &format!(",host={}", other(host));
    }
    for (key, value) in device.options() {
        if is_simulated && key == "host" {
            continue;
        }
        text += &value.map_or_else(|| format!(",{key}"), |value| format!(",{key}={value}"));
    }
    // Parsing cannot fail: the text was a legal name before.
    text.parse().unwrap_or_else(|_| device.clone())
}

/// Measures the base delays of a device by requests to `peer`, which may be the device itself: `rounds` of
/// each class, at most [`ROUNDS_MAX`]. Pacing options in its name set constants but pace nothing. Calls
/// `go_on` from time to time with the number of requests done and of all; stops if it returns false.
///
/// # Errors
///
/// [`CalibrateError`]. Classes that the device does not support (atomics, datagrams) are left out.
pub fn calibrate(
    device: &DeviceName,
    peer: &DeviceName,
    rounds: u32,
    go_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Calibration, CalibrateError> {
    if !(1..=ROUNDS_MAX).contains(&rounds) {
        return Err(CalibrateError::Rounds(rounds));
    }
    let (plain, config) = split(device)?;
    let config = config.unwrap_or_else(|| default_config(device));
    let (peer, _) = split(peer)?;
    let is_stamped = config.timestamps;
    let near = ProbeEndpoint::new(&plain, is_stamped)?;
    let far = ProbeEndpoint::new(&peer, false)?;
    let clock: Clock = match is_simulated(device) {
        true => {
            let device = near.device.clone();
            Arc::new(move || device.now())
        }
        false => Arc::new(headworks_net::clock::now),
    };
    let each = u64::from(rounds + rounds / WARM_UP_PART);
    let mut rig = LatencyProbe {
        stamps: is_stamped.then(|| (near.device.clone(), ClockSync::default())),
        cq: near.cq.clone(),
        line_rate: config.line_rate(),
        config,
        clock,
        go_on,
        done: 0,
        all: each * Class::ALL.len() as u64,
    };
    let mut measured = Vec::new();
    let connected = RcPath::new(&near, &far)?;
    let datagrams = UdPath::new(&near, &far)?;
    let mut paths: Vec<Box<dyn ProbePath + '_>> = vec![Box::new(connected)];
    paths.extend(datagrams.map(|path| Box::new(path) as Box<dyn ProbePath>));
    for path in &mut paths {
        for class in Class::ALL {
            if let Some(samples) = rig.measure(&mut **path, class, rounds)? {
                measured.extend(ClassDelay::of(class, samples));
            }
        }
    }
    Ok(Calibration {
        is_simulated: is_simulated(device),
        is_stamped,
        measured,
    })
}

/// State of a measurement.
struct LatencyProbe<'g> {
    stamps: Option<(Arc<dyn Device>, ClockSync)>,
    cq: Arc<dyn CompletionQueue>,
    config: PacingConfig,
    line_rate: u64,
    clock: Clock,
    go_on: &'g mut dyn FnMut(u64, u64) -> bool,
    done: u64,
    all: u64,
}

impl LatencyProbe<'_> {
    /// Measures the delays of requests of a class over a path; `None` if they do not go that way or the
    /// device has none.
    fn measure(
        &mut self,
        path: &mut dyn ProbePath,
        class: Class,
        rounds: u32,
    ) -> Result<Option<Vec<Duration>>, CalibrateError> {
        let Some(op) = path.op(class) else {
            return Ok(None);
        };
        let mut samples = Vec::with_capacity(rounds as usize);
        let warm = rounds / WARM_UP_PART;
        for round in 0..warm + rounds {
            if round.is_multiple_of(INTERRUPT_CHECK_ROUNDS) {
                self.request_reply()?;
            }
            path.prepare()?;
            let sample = match self.round(path, class, op) {
                // Devices without atomics refuse them at the post or at the completion.
                Err(CalibrateError::Device { source, .. })
                    if round == 0 && source.downcast_ref() == Some(&PostErrorKind::Operation) =>
                {
                    return Ok(None);
                }
                Err(CalibrateError::Ended { .. }) if round == 0 && class == Class::Atomic => {
                    return Ok(None);
                }
                sample => sample?,
            };
            if round >= warm {
                samples.extend(sample);
            }
            self.done += 1;
        }
        Ok(Some(samples))
    }

    fn request_reply(&mut self) -> Result<(), CalibrateError> {
        match (self.go_on)(self.done, self.all) {
            true => Ok(()),
            false => Err(CalibrateError::Interrupted),
        }
    }

    /// Measures one request, from doorbell to completion; `None` if the clocks are too far apart to compare.
    fn round(
        &mut self,
        path: &mut dyn ProbePath,
        class: Class,
        op: SendOp,
    ) -> Result<Option<Duration>, CalibrateError> {
        if let Some((device, sync)) = &mut self.stamps
            && sync.is_due(1, (self.clock)(), &self.config)
        {
            let before = (self.clock)();
            let theirs = device.now();
            sync.compare(before, theirs, (self.clock)());
        }
        let (qp, region) = path.parts();
        let request = [SendWr {
            wr_id: 0,
            op,
            payload: Payload::Gather(&[region.sge(0, BYTES)]),
            flags: SendFlags::SIGNALED,
        }];
        let doorbell = (self.clock)();
        let posted = qp.post_send(&request);
        posted.map_err(|error| failed("posting")(error.kind))?;
        let (done, polled) = self.completion()?;
        if done.status != Status::Success {
            let status = done.status;
            return Err(CalibrateError::Ended { class, status });
        }
        let completed = match &self.stamps {
            Some((_, sync)) => sync.on_host(done.timestamp),
            None => Some(polled),
        };
        let delay = completed.and_then(|at| between(doorbell.nanos(), at));
        let cost = u64::from(BYTES) + self.config.overhead_bytes;
        let own = serialisation(cost, self.line_rate);
        let less = |delay: Duration| delay.nanos().saturating_sub(own.nanos()).max(1);
        Ok(delay.map(|delay| Duration::from_nanos(less(delay))))
    }

    /// Waits for the completion of the request. Returns it and the time of the poll that found it.
    fn completion(&mut self) -> Result<(Completion, Instant), CalibrateError> {
        let mut found = [Completion::default(); 1];
        let mut polls = 0_u32;
        while self
            .cq
            .poll(&mut found)
            .map_err(|error: PollError| failed("polling")(error))?
            == 0
        {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(INTERRUPT_CHECK_POLLS) {
                self.request_reply()?;
            }
        }
        Ok((found[0], (self.clock)()))
    }
}

/// The objects of one device.
struct ProbeEndpoint {
    device: Arc<dyn Device>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
    region: Region,
}

impl ProbeEndpoint {
    fn new(name: &DeviceName, timestamps: bool) -> Result<Self, CalibrateError> {
        let device = crate::open(name)?;
        let pd = device.alloc_pd().map_err(failed("a protection domain"))?;
        let init = CqInit {
            depth: 4 * RECEIVES,
            channel: None,
            timestamps,
        };
        let cq = device
            .create_cq(&init)
            .map_err(failed("a completion queue"))?;
        let buffer = device.alloc(&AllocRequest::of(MEMORY));
        let buffer = buffer.map_err(failed("memory"))?;
        let region = pd
            .register(&buffer, Access::ALL)
            .map_err(failed("memory"))?;
        Ok(Self {
            device,
            pd,
            cq,
            region,
        })
    }

    fn queue_pair(&self, qp_type: QpType) -> Result<Box<dyn QueuePair>, ResourceError> {
        self.pd.create_qp(&QpInit {
            qp_type,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps: QpCaps {
                max_recv_wr: RECEIVES,
                ..QpCaps::default()
            },
            signal_all: true,
        })
    }
}

/// A connection, or a pair of datagram queue pairs, over which requests go.
trait ProbePath {
    /// Returns the request of a class, if it can go this way.
    fn op(&self, class: Class) -> Option<SendOp>;
    /// Prepares one request; called before each.
    fn prepare(&mut self) -> Result<(), CalibrateError> {
        Ok(())
    }
    /// Returns the queue pair and the request's memory.
    fn parts(&mut self) -> (&mut dyn QueuePair, &Region);
}

struct RcPath<'e> {
    near: &'e ProbeEndpoint,
    far: &'e ProbeEndpoint,
    qp: Box<dyn QueuePair>,
    _theirs: Box<dyn QueuePair>,
}

impl<'e> RcPath<'e> {
    fn new(near: &'e ProbeEndpoint, far: &'e ProbeEndpoint) -> Result<Self, CalibrateError> {
        let queue_pair =
            |end: &ProbeEndpoint| end.queue_pair(QpType::Rc).map_err(failed("a queue pair"));
        let (mut qp, mut theirs) = (queue_pair(near)?, queue_pair(far)?);
        let start = |end: &ProbeEndpoint, qp: &mut dyn QueuePair, seed| {
            let started = BringUp::start(
                end.device.info(),
                qp,
                ConnectionParams::default(),
                seed,
                Vec::new(),
            );
            started.map_err(failed("connecting"))
        };
        let mut ours = start(near, &mut *qp, 1)?;
        let mut other = start(far, &mut *theirs, 2)?;
        let met = ours.connect_both(&mut *qp, &mut other, &mut *theirs);
        met.map_err(failed("connecting"))?;
        Ok(Self {
            near,
            far,
            qp,
            _theirs: theirs,
        })
    }
}

impl ProbePath for RcPath<'_> {
    fn op(&self, class: Class) -> Option<SendOp> {
        let remote = self.far.region.remote(0);
        match class {
            Class::Write => Some(SendOp::Write(remote)),
            Class::Read => Some(SendOp::Read(remote)),
            Class::Atomic => Some(SendOp::FetchAdd { remote, add: 1 }),
            Class::Datagram => None,
        }
    }

    fn parts(&mut self) -> (&mut dyn QueuePair, &Region) {
        (&mut *self.qp, &self.near.region)
    }
}

struct UdPath<'e> {
    near: &'e ProbeEndpoint,
    far: &'e ProbeEndpoint,
    qp: Box<dyn QueuePair>,
    theirs: Box<dyn QueuePair>,
    to: Arc<dyn AddressHandle>,
    posted: u32,
}

impl<'e> UdPath<'e> {
    /// Returns `None` on devices without datagrams.
    fn new(
        near: &'e ProbeEndpoint,
        far: &'e ProbeEndpoint,
    ) -> Result<Option<Self>, CalibrateError> {
        let mut made = Vec::new();
        for end in [near, far] {
            let mut qp = match end.queue_pair(QpType::Ud) {
                Ok(qp) => qp,
                Err(ResourceError::Unsupported { .. }) => return Ok(None),
                Err(error) => return Err(failed("a queue pair of datagrams")(error)),
            };
            let ready = bring_up_ud(&mut *qp, QKEY, 1);
            ready.map_err(failed("a queue pair of datagrams"))?;
            made.push(qp);
        }
        let (Some(theirs), Some(qp)) = (made.pop(), made.pop()) else {
            return Ok(None);
        };
        let there = far.device.info();
        let init = AhInit {
            dlid: there.lid,
            ..AhInit::to(there.gid)
        };
        let to = near
            .pd
            .create_ah(&init)
            .map_err(failed("an address handle"))?;
        Ok(Some(Self {
            near,
            far,
            qp,
            theirs,
            to,
            posted: 0,
        }))
    }
}

impl ProbePath for UdPath<'_> {
    fn op(&self, class: Class) -> Option<SendOp> {
        let to = Destination {
            ah: self.to.key(),
            qpn: self.theirs.qpn(),
            qkey: QKEY,
        };
        (class == Class::Datagram).then_some(SendOp::SendTo(to))
    }

    /// Reposts receives for the datagrams that have arrived.
    fn prepare(&mut self) -> Result<(), CalibrateError> {
        let mut found = [Completion::default(); RECEIVES as usize];
        let arrived = self.far.cq.poll(&mut found).map_err(failed("polling"))?;
        self.posted = self.posted.saturating_sub(arrived as u32);
        while self.posted < RECEIVES {
            let sges = [self.far.region.sge(0, 256)];
            let receive = [RecvWr {
                wr_id: 0,
                sges: &sges,
            }];
            match self.theirs.post_recv(&receive) {
                Ok(()) => self.posted += 1,
                // A device may at times have less room than it declares, as long as some receives are posted.
                Err(error) if error.kind == PostErrorKind::QueueFull && self.posted > 0 => break,
                Err(error) => return Err(failed("posting a receive")(error.kind)),
            }
        }
        Ok(())
    }

    fn parts(&mut self) -> (&mut dyn QueuePair, &Region) {
        (&mut *self.qp, &self.near.region)
    }
}

#[cfg(all(test, feature = "soft", feature = "sim"))]
mod tests;

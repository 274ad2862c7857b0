//! Applications that measure latency, throughput, or one-sided operations on another application's memory.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::thread;

use headworks::net::clock;
use headworks::service::{Loan, Service, SharedMemory, Stream};
use headworks::verbs::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::one_sided::{
    self, OneSidedLoad, RequestGenerator, RequestTransport, ServiceRequests, VerbsRequests, drive,
};
use super::servers::{ConnectionPurpose, PolledStream, WaitingStream, set_buffers};
use super::{Result, failed};
use crate::error::WorkloadError;
use crate::latency::{Histogram, Schedule};
use crate::random::Random;

/// Bytes after which a sink answers one byte.
const SINK_EACH: u64 = 1 << 20;
/// Maximum multiple of [`SINK_EACH`] that may be under way to a sink.
const SINK_AHEAD: u64 = 16;

/// Transport between the applications.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LoadTransport {
    /// A stream of the service.
    Service {
        /// Socket of the daemon.
        socket: PathBuf,
        /// Address of the other application; for one-sided requests, one address of each host.
        to: Vec<SocketAddr>,
        /// How both sides wait.
        waiting: StreamWaiting,
    },
    /// Queue pairs of its own, for operations on the memory of
    /// [`IdleQueuePairs`](super::native_verbs::IdleQueuePairs).
    Verbs {
        /// Name of the device.
        device: String,
        /// Names of the other programs.
        names: Vec<String>,
    },
    /// A TCP connection.
    Tcp {
        /// Address of the other application.
        to: SocketAddr,
        /// Whether both sides busy-poll; else calls block.
        spinning: bool,
        /// Size of the kernel's buffers of both sides in bytes, of [`LoadKind::Bulk`]; `None`: the kernel chooses.
        buffers: Option<u32>,
    },
}

/// How both sides of a stream of the service wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StreamWaiting {
    /// As streams do by default: they poll for a while, then sleep.
    Adaptive,
    /// They sleep in poll(2) whenever no data is there.
    Asleep,
    /// They never sleep.
    Spinning,
}

/// An application that measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadClient {
    /// Kind of load.
    pub what: LoadKind,
    /// Transport that carries it.
    pub by: LoadTransport,
    /// Duration of the warm-up in nanoseconds.
    pub warm_ns: u64,
    /// Duration of the measurement in nanoseconds.
    pub run_ns: u64,
}

/// Kind of load that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum LoadKind {
    /// Round trips, one message at a time.
    PingPong {
        /// Bytes of a message.
        size: usize,
    },
    /// Round trips in an open loop: messages are sent at a rate, whatever comes back. Latency counts from
    /// each message's intended send time.
    Load {
        /// Bytes of a message.
        size: usize,
        /// Messages per second.
        per_second: f64,
    },
    /// One way, as fast as possible. The receiver looks at the data in place, over TCP after it has copied them.
    Bulk {
        /// Bytes sent at a time.
        size: usize,
        /// Number of pieces of memory that the sender lends in turn; 0: the sender copies, as it does over TCP.
        lent: usize,
    },
    /// One-sided requests. Not over TCP.
    Requests(OneSidedLoad),
}

/// Result of an application that measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadFigure {
    /// The median latency in nanoseconds, or bytes or operations per second.
    pub value: f64,
    /// The 99th percentile of the latency in nanoseconds, of a load whose latency is measured.
    pub p99_ns: Option<f64>,
}

impl LoadFigure {
    fn rate(value: f64) -> Self {
        Self {
            value,
            p99_ns: None,
        }
    }
}

fn not_over(what: &str) -> WorkloadError {
    WorkloadError(format!("this load does not run over {what}"))
}

impl LoadClient {
    /// Returns when to measure, with the warm-up beginning now.
    fn interval(&self) -> Range<Instant> {
        let warm = clock::now() + Duration::from_nanos(self.warm_ns);
        warm..warm + Duration::from_nanos(self.run_ns)
    }

    pub(super) fn measure(&self) -> Result<LoadFigure> {
        match self.what {
            LoadKind::PingPong { size } => {
                let mut stream = self.both()?;
                let (message, mut back) = (vec![7; size], vec![0; size]);
                pingpong(self.interval(), || {
                    stream.write_all(&message)?;
                    Ok(stream.read_exact(&mut back)?)
                })
            }
            LoadKind::Load { size, per_second } => self.load(size, per_second),
            LoadKind::Bulk { size, lent } => self.bulk(size, lent).map(LoadFigure::rate),
            LoadKind::Requests(load) => self.request(load).map(LoadFigure::rate),
        }
    }

    fn service(&self) -> Result<(Service, &[SocketAddr])> {
        match &self.by {
            LoadTransport::Service { socket, to, .. } => {
                Ok((Service::attach(socket, "experiment")?, to))
            }
            _ => Err(WorkloadError("this load needs the service".to_owned())),
        }
    }

    /// Opens a stream of the service to an application, and sends it `wish`: what the connection is for.
    fn connect(&self, wish: &[u8]) -> Result<(Service, Stream)> {
        let (service, to) = self.service()?;
        let mut stream = service.connect(to[0])?;
        stream.send_all(wish)?;
        Ok((service, stream))
    }

    /// Opens a stream to an application that echoes everything.
    fn both(&self) -> Result<Box<dyn ByteStream>> {
        Ok(match &self.by {
            LoadTransport::Service { waiting, .. } => {
                let purpose = match waiting {
                    StreamWaiting::Adaptive => ConnectionPurpose::Echo,
                    StreamWaiting::Asleep => ConnectionPurpose::EchoAsleep,
                    StreamWaiting::Spinning => ConnectionPurpose::EchoSpinning,
                };
                let (service, stream) = self.connect(&[purpose as u8])?;
                match waiting {
                    StreamWaiting::Adaptive => Box::new(stream),
                    StreamWaiting::Asleep => Box::new(WaitingStream::asleep(stream)?),
                    StreamWaiting::Spinning => Box::new(PolledStream::new(&service, stream)?),
                }
            }
            LoadTransport::Tcp {
                to, spinning: true, ..
            } => Box::new(WaitingStream::spinning(tcp(*to, true)?)?),
            LoadTransport::Tcp { to, .. } => Box::new(tcp(*to, false)?),
            LoadTransport::Verbs { .. } => return Err(not_over("verbs")),
        })
    }

    /// Measures [`LoadKind::Load`]. A thread sends each message when it is due, whatever has come back.
    fn load(&self, size: usize, per_second: f64) -> Result<LoadFigure> {
        let (mut reader, mut writer): (Box<dyn Read>, Box<dyn Write + Send>) = match &self.by {
            LoadTransport::Service { .. } => {
                let (_, stream) = self.connect(&[ConnectionPurpose::Echo as u8])?;
                let (reader, writer) = stream.split();
                (Box::new(reader), Box::new(writer))
            }
            LoadTransport::Tcp { to, spinning, .. } => {
                let stream = tcp(*to, *spinning)?;
                let reader = stream.try_clone()?;
                (Box::new(reader), Box::new(stream))
            }
            LoadTransport::Verbs { .. } => return Err(not_over("verbs")),
        };
        let schedule = Schedule::new(self.interval().start, per_second);
        let count = (self.run_ns as f64 * per_second / 1e9) as u64;
        let sender = thread::spawn(move || -> std::io::Result<()> {
            let message = vec![7; size];
            for index in 0..count {
                while clock::now() < schedule.intended(index) {
                    // Yield the processor to others.
                    thread::yield_now();
                }
                writer.write_all(&message)?;
            }
            Ok(())
        });
        let mut found = Histogram::default();
        let mut back = vec![0; size];
        for index in 0..count {
            reader.read_exact(&mut back)?;
            found.record(clock::now().since(schedule.intended(index)));
        }
        sender.join().expect("the thread does not panic")?;
        latencies(&found)
    }

    fn bulk(&self, size: usize, lent: usize) -> Result<f64> {
        let sink = |buffers: u32| {
            let purpose = &[ConnectionPurpose::Sink as u8][..];
            [purpose, &SINK_EACH.to_le_bytes(), &buffers.to_le_bytes()].concat()
        };
        match &self.by {
            LoadTransport::Service { .. } => {
                let (service, mut stream) = self.connect(&sink(0))?;
                let mut source = Source::new(&service, size, lent)?;
                self.send_to_sink(&mut stream, size, |stream| source.send(stream))
            }
            LoadTransport::Tcp { to, buffers, .. } => {
                let mut stream = TcpStream::connect(to)?;
                set_buffers(&stream, *buffers)?;
                stream.set_nodelay(true)?;
                stream.write_all(&sink(buffers.unwrap_or(0)))?;
                let bytes = vec![7; size];
                let send = |stream: &mut TcpStream| Ok(stream.write_all(&bytes)?);
                self.send_to_sink(&mut stream, size, send)
            }
            LoadTransport::Verbs { .. } => Err(not_over("verbs")),
        }
    }

    /// Has `send` send `size` bytes at a time to a sink, as fast as possible. Returns the bytes per second.
    fn send_to_sink<S: Read>(
        &self,
        stream: &mut S,
        size: usize,
        mut send: impl FnMut(&mut S) -> Result<()>,
    ) -> Result<f64> {
        let interval = self.interval();
        let mut answers = [0; 64];
        let (mut sent, mut heard) = (0, 0);
        let mut from: Option<(Instant, u64)> = None;
        loop {
            let now = clock::now();
            if from.is_none() && now >= interval.start {
                from = Some((now, heard));
            }
            if now >= interval.end {
                let (began, before) = from.unwrap_or((interval.start, 0));
                let bytes = (heard - before) * SINK_EACH;
                if bytes == 0 {
                    return Err(nothing());
                }
                return Ok(per_second(bytes, now.since(began).nanos()));
            }
            while sent < (heard + SINK_AHEAD) * SINK_EACH {
                send(stream)?;
                sent += size as u64;
            }
            heard += stream.read(&mut answers)? as u64;
        }
    }

    /// Measures one-sided requests per second, or bytes per second of their answers.
    fn request(&self, mut load: OneSidedLoad) -> Result<f64> {
        if !load.connections.is_multiple_of(load.hosts) {
            return Err(WorkloadError(
                "connections must be a multiple of hosts".to_owned(),
            ));
        }
        if let one_sided::OneSidedOp::Reads { bytes, region } = &mut load.what {
            // Each connection has its own part of the memory.
            *region = (*region / (load.connections / load.hosts)).max(*bytes);
        }
        let mut port: Box<dyn RequestTransport> = match &self.by {
            LoadTransport::Service { .. } => {
                let (service, to) = self.service()?;
                Box::new(ServiceRequests::open(service, to, load)?)
            }
            LoadTransport::Verbs { device, names } => {
                Box::new(VerbsRequests::open(device, names, load)?)
            }
            LoadTransport::Tcp { .. } => return Err(not_over("TCP")),
        };
        let random = Random::new(load.connections as u64);
        let mut work = RequestGenerator::new(load, true, random);
        work.interval = self.interval();
        drive(&mut work, &mut *port)?;
        let size = match load.what {
            one_sided::OneSidedOp::Reads { bytes, .. } => bytes as u64,
            _ => 1,
        };
        Ok(per_second(work.counts.measured * size, self.run_ns))
    }
}

fn per_second(count: u64, nanos: u64) -> f64 {
    count as f64 * 1e9 / nanos.max(1) as f64
}

/// Source of bulk data.
enum Source {
    Copied(Vec<u8>),
    /// Spare pieces of memory, and loans. When none is spare, the oldest loan is reclaimed and sent again.
    Lent(Vec<SharedMemory>, VecDeque<Loan>),
}

impl Source {
    fn new(service: &Service, size: usize, lent: usize) -> Result<Self> {
        if lent == 0 {
            return Ok(Self::Copied(vec![7; size]));
        }
        let mut spare = Vec::new();
        for _ in 0..lent {
            let mut memory = service.alloc(size as u32)?;
            memory.fill(7);
            spare.push(memory);
        }
        Ok(Self::Lent(spare, VecDeque::new()))
    }

    fn send(&mut self, stream: &mut Stream) -> Result<()> {
        match self {
            Self::Copied(bytes) => stream.send_all(bytes)?,
            Self::Lent(spare, lent) => {
                let memory = match spare.pop() {
                    Some(memory) => memory,
                    None => {
                        let oldest = lent.pop_front().expect("every piece is spare or lent");
                        stream.reclaim(oldest).map_err(failed("lent memory"))?
                    }
                };
                let len = memory.len();
                lent.push_back(stream.lend(memory, len)?);
            }
        }
        Ok(())
    }
}

/// A stream that can be read and written.
trait ByteStream: Read + Write {}
impl<T: Read + Write> ByteStream for T {}

fn tcp(to: SocketAddr, spinning: bool) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let purpose = match spinning {
        true => ConnectionPurpose::EchoSpinning,
        false => ConnectionPurpose::Echo,
    };
    stream.write_all(&[purpose as u8])?;
    Ok(stream)
}

fn nothing() -> WorkloadError {
    WorkloadError("no answer came during the measurement".to_owned())
}

fn latencies(found: &Histogram) -> Result<LoadFigure> {
    match found.is_empty() {
        true => Err(nothing()),
        false => {
            let quantiles = found.quantiles(1.0);
            Ok(LoadFigure {
                value: quantiles.p50_ns,
                p99_ns: Some(quantiles.p99_ns),
            })
        }
    }
}

/// Exchanges messages, one at a time; returns the latencies.
pub(super) fn pingpong(
    interval: Range<Instant>,
    mut exchange: impl FnMut() -> Result<()>,
) -> Result<LoadFigure> {
    let mut found = Histogram::default();
    loop {
        let began = clock::now();
        if began >= interval.end {
            return latencies(&found);
        }
        exchange()?;
        if began >= interval.start {
            found.record(clock::now().since(began));
        }
    }
}

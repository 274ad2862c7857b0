//! Applications that measure: how long an answer takes, how much goes, and how many operations on the other's memory.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;

use headworks::service::{Loan, Memory, Service, ServiceError, Stream};
use headworks::stage::clock;
use headworks::verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use super::serving::{SPINNING, Spinning, Wish};
use super::{Found, failed};
use crate::latency::{Histogram, Schedule};
use crate::transports::ArmError;

mod operations;

/// Bytes after which a sink says one.
const SINK_EACH: u64 = 1 << 20;
/// What may be under way to a sink.
const SINK_AHEAD: u64 = 16;

/// By what an application talks to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum By {
    /// A stream of the service's, waiting as they do: looking around for a while, and then asleep.
    Service {
        /// The daemon's socket.
        socket: PathBuf,
        /// The other application.
        to: SocketAddr,
        /// And others, of other hosts, of memory that is operated on.
        others: Vec<SocketAddr>,
        /// Both sides sleep in poll(2) whenever nothing is there.
        asleep: bool,
    },
    /// Queue pairs of its own, for operations on memory of other programs' ([`Holding`](super::native::Holding)).
    Verbs {
        /// The device.
        device: String,
        /// The names of the others.
        names: Vec<String>,
    },
    /// A TCP connection.
    Tcp {
        /// The other application.
        to: SocketAddr,
        /// Both sides look all the time; else calls block.
        spinning: bool,
    },
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asking {
    /// What.
    pub what: What,
    /// By what.
    pub by: By,
    /// Before it is measured.
    pub warm_ns: u64,
    /// How long.
    pub run_ns: u64,
}

/// See [`Asking`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// There and back, one message at a time.
    PingPong {
        /// Bytes of a message.
        size: usize,
    },
    /// There and back at a rate, whatever comes back: from when each should have been sent.
    Load {
        /// Bytes of a message.
        size: usize,
        /// Messages per second.
        per_second: f64,
    },
    /// One way, as much as goes, to who looks at it where it lies. Over the service alone.
    Bulk {
        /// Bytes at a time.
        size: usize,
        /// From memory that is lent, so many pieces of it; none: copied.
        lent: usize,
    },
    /// READs at random places of memory of others, which is spread over connections. Not over TCP.
    Reads {
        /// Bytes of a READ.
        size: usize,
        /// Connections, to one of the others after the other, each with a part of its memory.
        connections: usize,
        /// Bytes of the memory of each of the others.
        region: usize,
        /// READs under way in all.
        outstanding: usize,
    },
    /// 1 is added to one of so many words of the other's, which is drawn; in the end they are counted. Not over TCP.
    Adds {
        /// Words.
        words: usize,
        /// Connections; one over the service, where the words are those of one connection.
        connections: usize,
        /// Additions under way in all.
        outstanding: usize,
    },
}

/// A stream whose calls sleep in poll(2) whenever there is nothing.
pub(super) struct Asleep<'s>(&'s mut Stream);

impl<'s> Asleep<'s> {
    pub(super) fn over(stream: &'s mut Stream) -> std::io::Result<Self> {
        stream.fd()?;
        stream.set_nonblocking(true);
        Ok(Self(stream))
    }

    fn wait<T>(
        &mut self,
        flags: PollFlags,
        mut act: impl FnMut(&mut Stream) -> Result<T, ServiceError>,
    ) -> std::io::Result<T> {
        loop {
            match act(self.0) {
                Err(ServiceError::WouldBlock) => {
                    let fd = self.0.fd()?;
                    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
                    poll(&mut fds, None)?;
                }
                done => return Ok(done?),
            }
        }
    }
}

impl Read for Asleep<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::IN, |stream| stream.recv(into))
    }
}

impl Write for Asleep<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::OUT, |stream| stream.send(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// When it is measured.
struct Times {
    warm: Instant,
    over: Instant,
}

fn io(what: &'static str) -> impl Fn(std::io::Error) -> ArmError {
    move |error| ArmError::at(what, error)
}

impl Asking {
    fn times(&self) -> Times {
        let warm = clock::now() + Duration::from_nanos(self.warm_ns);
        Times {
            warm,
            over: warm + Duration::from_nanos(self.run_ns),
        }
    }

    fn service(&self) -> Result<(Service, SocketAddr), ArmError> {
        match &self.by {
            By::Service { socket, to, .. } => {
                let service = Service::attach(socket, "experiment");
                Ok((service.map_err(failed("attaching"))?, *to))
            }
            By::Tcp { .. } | By::Verbs { .. } => Err(ArmError("not over the service".to_owned())),
        }
    }

    /// Measures it.
    pub(super) fn measure(&self) -> Result<Found, ArmError> {
        match self.what {
            What::PingPong { size } => {
                self.over_any(|stream| pingpong(stream, size, &self.times()))
            }
            What::Load { size, per_second } => self.load(size, per_second),
            What::Bulk { size, lent } => self.bulk(size, lent),
            What::Reads { .. } | What::Adds { .. } => self.operate(),
        }
    }

    fn over_any(
        &self,
        act: impl Fn(&mut dyn Both) -> std::io::Result<Found>,
    ) -> Result<Found, ArmError> {
        let found = match &self.by {
            By::Service { asleep, .. } => {
                let (service, to) = self.service()?;
                let mut stream = service.connect(to).map_err(failed("connecting"))?;
                let wish = if *asleep {
                    Wish::EchoAsleep
                } else {
                    Wish::Echo
                };
                stream.send_all(&[wish as u8]).map_err(failed("asking"))?;
                match asleep {
                    true => Asleep::over(&mut stream).and_then(|mut stream| act(&mut stream)),
                    false => act(&mut stream),
                }
            }
            By::Tcp { to, spinning } => {
                let mut stream = tcp(*to, *spinning)?;
                match spinning {
                    true => Spinning::over(stream).and_then(|mut stream| act(&mut stream)),
                    false => act(&mut stream),
                }
            }
            By::Verbs { .. } => return Err(ArmError("not by verbs".to_owned())),
        };
        found.map_err(io("the other side"))
    }

    /// A thread sends when it is time to, whatever the other has received.
    fn load(&self, size: usize, per_second: f64) -> Result<Found, ArmError> {
        let (reader, writer): (Box<dyn Read + Send>, Box<dyn Write + Send>) = match &self.by {
            By::Service { .. } => {
                let (service, to) = self.service()?;
                let mut stream = service.connect(to).map_err(failed("connecting"))?;
                stream
                    .send_all(&[Wish::Echo as u8])
                    .map_err(failed("asking"))?;
                let reader = stream.take_reader();
                (Box::new(reader.expect("not taken yet")), Box::new(stream))
            }
            By::Tcp { to, spinning } => {
                let stream = tcp(*to, *spinning)?;
                let reader = stream.try_clone().map_err(io("a socket"))?;
                (Box::new(reader), Box::new(stream))
            }
            By::Verbs { .. } => return Err(ArmError("not by verbs".to_owned())),
        };
        let times = self.times();
        let schedule = Schedule::new(times.warm, per_second);
        let count = (self.run_ns as f64 * per_second / 1e9) as u64;
        let sender = thread::spawn(move || send_on_time(writer, size, count, &schedule));
        let found = receive_on_time(reader, size, count, &schedule).map_err(io("receiving"))?;
        let sent = sender.join().map_err(|_| ArmError("a thread".into()))?;
        sent.map_err(io("sending"))?;
        Ok(found)
    }

    fn bulk(&self, size: usize, lent: usize) -> Result<Found, ArmError> {
        let (service, to) = self.service()?;
        let mut stream = service.connect(to).map_err(failed("connecting"))?;
        let wish = [&[Wish::Sink as u8][..], &SINK_EACH.to_le_bytes()].concat();
        stream.send_all(&wish).map_err(failed("asking"))?;
        let mut source = Source::new(&service, size, lent)?;
        let times = self.times();
        let mut answers = [0; 64];
        let (mut sent, mut heard) = (0, 0);
        let mut from: Option<(Instant, u64)> = None;
        loop {
            let now = clock::now();
            if from.is_none() && now >= times.warm {
                from = Some((now, heard));
            }
            if now >= times.over {
                let (began, before) = from.unwrap_or((times.warm, 0));
                return Ok(Found::Moved {
                    bytes: (heard - before) * SINK_EACH,
                    nanos: now.since(began).nanos(),
                });
            }
            while sent < (heard + SINK_AHEAD) * SINK_EACH {
                source.send(&mut stream)?;
                sent += size as u64;
            }
            heard += stream.recv(&mut answers).map_err(failed("the sink"))? as u64;
        }
    }
}

/// What is sent in bulk.
enum Source {
    Copied(Vec<u8>),
    /// Pieces of memory, of which the oldest is sent again once it was returned.
    Lent(Vec<Memory>, VecDeque<Loan>),
}

impl Source {
    fn new(service: &Service, size: usize, lent: usize) -> Result<Self, ArmError> {
        if lent == 0 {
            return Ok(Self::Copied(vec![7; size]));
        }
        let memory = (0..lent).map(|_| service.alloc(size as u32));
        let memory: Result<Vec<Memory>, ServiceError> = memory.collect();
        let mut memory = memory.map_err(failed("memory"))?;
        memory.iter_mut().for_each(|memory| memory.fill(7));
        Ok(Self::Lent(memory, VecDeque::new()))
    }

    fn send(&mut self, stream: &mut Stream) -> Result<(), ArmError> {
        match self {
            Self::Copied(bytes) => stream.send_all(bytes).map_err(failed("sending")),
            Self::Lent(spare, lent) => {
                let memory = match (spare.pop(), lent.is_empty()) {
                    (Some(memory), _) => memory,
                    (None, true) => return Err(ArmError("no memory to lend".to_owned())),
                    (None, false) => {
                        let oldest = lent.pop_front().expect("seen above");
                        let returned = stream.reclaim(oldest);
                        returned.map_err(|error| ArmError::at("lent memory", error))?
                    }
                };
                let len = memory.len();
                lent.push_back(stream.lend(memory, len).map_err(failed("lending"))?);
                Ok(())
            }
        }
    }
}

/// What is both read and written.
trait Both: Read + Write {}
impl<T: Read + Write> Both for T {}

fn tcp(to: SocketAddr, spinning: bool) -> Result<TcpStream, ArmError> {
    let mut stream = TcpStream::connect(to).map_err(io("connecting"))?;
    stream.set_nodelay(true).map_err(io("a socket"))?;
    let wish = if spinning { SPINNING } else { b'.' };
    stream.write_all(&[wish]).map_err(io("asking"))?;
    Ok(stream)
}

fn pingpong(stream: &mut dyn Both, size: usize, times: &Times) -> std::io::Result<Found> {
    let message = vec![7; size];
    let mut back = vec![0; size];
    let mut found = Histogram::default();
    loop {
        let began = clock::now();
        if began >= times.over {
            return Ok(Found::Latency(found.quantiles(1.0)));
        }
        stream.write_all(&message)?;
        stream.read_exact(&mut back)?;
        if began >= times.warm {
            found.record(clock::now().since(began));
        }
    }
}

fn send_on_time(
    mut writer: impl Write,
    size: usize,
    count: u64,
    schedule: &Schedule,
) -> std::io::Result<()> {
    let message = vec![7; size];
    for index in 0..count {
        while clock::now() < schedule.intended(index) {
            // Others are to run meanwhile.
            thread::yield_now();
        }
        writer.write_all(&message)?;
    }
    Ok(())
}

fn receive_on_time(
    mut reader: impl Read,
    size: usize,
    count: u64,
    schedule: &Schedule,
) -> std::io::Result<Found> {
    let mut found = Histogram::default();
    let mut back = vec![0; size];
    for index in 0..count {
        reader.read_exact(&mut back)?;
        found.record(clock::now().since(schedule.intended(index)));
    }
    Ok(Found::Latency(found.quantiles(1.0)))
}

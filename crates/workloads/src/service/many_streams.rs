//! Applications that measure many connections at once, or connections that last for one request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use headworks::net::clock;
use headworks::service::Service;
use headworks::verbs::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::echo::{Context, EchoClient, EchoSocket};
use super::load::LoadTransport;
use super::servers::{ConnectionPurpose, MESSAGE_HEADER};
use super::{Result, failed};
use crate::error::WorkloadError;
use crate::random::Random;

/// Bytes under way on each connection of [`ManyStreamsKind::Echo`].
const WINDOW: u64 = 64 << 10;
/// Longest wait of a client for bytes to come back.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
/// How often a client that waits looks at the time.
const LOOK: std::time::Duration = std::time::Duration::from_millis(20);

/// Kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManyStreamsKind {
    /// One thread sends on all connections and checks what comes back; another echoes. Each waits for all of its
    /// connections at once: in epoll(7), or with a poller of the service.
    Echo {
        /// Number of connections.
        connections: u32,
    },
    /// A thread for each connection, at both ends, with blocking calls: it sends a message, and waits until the
    /// message has come back whole.
    Threads {
        /// Number of threads at each end.
        threads: u32,
        /// Sizes of the messages.
        sizes: MessageSizes,
    },
    /// One thread connects, sends a message, waits for the answer and closes.
    Connect {
        /// Bytes of a message.
        size: usize,
    },
}

/// Sizes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MessageSizes {
    /// All have this many bytes, at least 8.
    Fixed(usize),
    /// Powers of two from the first, at least 8, to the last, each equally often.
    PowersOfTwo(usize, usize),
}

impl MessageSizes {
    fn longest(self) -> usize {
        match self {
            Self::Fixed(size) | Self::PowersOfTwo(_, size) => size,
        }
    }

    fn next(self, random: &mut Random) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::PowersOfTwo(least, most) => {
                let steps = u64::from((most / least).ilog2()) + 1;
                least << random.below(steps)
            }
        }
    }
}

/// An application that measures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManyStreams {
    /// Kind of load.
    pub what: ManyStreamsKind,
    /// Transport that carries it.
    pub by: LoadTransport,
    /// Duration of the warm-up in nanoseconds.
    pub warm_ns: u64,
    /// Duration of the measurement in nanoseconds.
    pub run_ns: u64,
}

/// Result of an application that measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManyStreamsFigure {
    /// Bytes that came back per second, or connections per second.
    pub per_second: f64,
    /// Bytes that came back, warm-up included.
    pub bytes: u64,
    /// Processor time of the application in nanoseconds, warm-up included.
    pub cpu_ns: u64,
}

/// Bytes or connections that came back: in total, and in the measured interval.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u64,
    measured: u64,
}

impl ManyStreams {
    pub(super) fn measure(&self) -> Result<ManyStreamsFigure> {
        let count = match &self.by {
            LoadTransport::Service { socket, to, .. } => {
                let service = Service::attach(socket, "experiment")?;
                let to = to[0];
                self.run(&service, || Ok(service.connect(to)?))?
            }
            LoadTransport::Tcp { to, .. } => self.run(&(), || connect_tcp(*to))?,
            LoadTransport::Verbs { .. } => {
                return Err(WorkloadError(
                    "this load does not run over verbs".to_owned(),
                ));
            }
        };
        if count.measured == 0 {
            return Err(WorkloadError(
                "nothing came back during the measurement".to_owned(),
            ));
        }
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Ok(ManyStreamsFigure {
            per_second: count.measured as f64 * 1e9 / self.run_ns.max(1) as f64,
            bytes: count.all,
            cpu_ns: cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64,
        })
    }

    fn run<S: EchoSocket + Send>(
        &self,
        context: &Context<S>,
        connect: impl Fn() -> Result<S>,
    ) -> Result<Count> {
        match self.what {
            ManyStreamsKind::Echo { connections } => self.echo(context, connections, connect),
            ManyStreamsKind::Threads { threads, sizes } => self.threads(threads, sizes, connect),
            ManyStreamsKind::Connect { size } => self.connect(size, connect),
        }
    }

    /// Returns when the measurement begins and ends, with the warm-up beginning now.
    fn interval(&self) -> (Instant, Instant) {
        let begin = clock::now() + Duration::from_nanos(self.warm_ns);
        (begin, begin + Duration::from_nanos(self.run_ns))
    }

    fn echo<S: EchoSocket>(
        &self,
        context: &Context<S>,
        connections: u32,
        connect: impl Fn() -> Result<S>,
    ) -> Result<Count> {
        let id = std::process::id();
        let wish = [
            &[ConnectionPurpose::EchoPolled as u8][..],
            &id.to_le_bytes(),
            &connections.to_le_bytes(),
        ]
        .concat();
        let sockets = (0..connections).map(|_| {
            let mut socket = connect()?;
            socket.write_all(&wish)?;
            Ok(socket)
        });
        let sockets = sockets.collect::<Result<Vec<S>>>()?;
        let mut client = EchoClient::new(context, sockets, WINDOW)?;
        client.start()?;
        let (begin, end) = self.interval();
        let (mut count, mut heard) = (Count::default(), clock::now());
        loop {
            let (_, back) = client.turn(LOOK, true)?;
            let now = clock::now();
            if now >= end {
                return Ok(count);
            }
            count.all += back;
            if now >= begin {
                count.measured += back;
            }
            if back > 0 {
                heard = now;
            } else if now.since(heard).nanos() > PATIENCE.as_nanos() as u64 {
                return Err(WorkloadError(format!("nothing came back for {PATIENCE:?}")));
            }
        }
    }

    fn threads<S: Read + Write + Send>(
        &self,
        threads: u32,
        sizes: MessageSizes,
        connect: impl Fn() -> Result<S>,
    ) -> Result<Count> {
        let sockets = (0..threads).map(|_| {
            let mut socket = connect()?;
            socket.write_all(&[ConnectionPurpose::Messages as u8])?;
            Ok(socket)
        });
        let sockets = sockets.collect::<Result<Vec<S>>>()?;
        let (begin, end) = self.interval();
        let (all, measured) = (AtomicU64::new(0), AtomicU64::new(0));
        let exchange = |number: u64, mut socket: S| -> Result<()> {
            let mut random = Random::new(number);
            let (mut message, mut back) = (vec![7; sizes.longest()], vec![0; sizes.longest()]);
            loop {
                let size = sizes.next(&mut random);
                message[..MESSAGE_HEADER].copy_from_slice(&(size as u64).to_le_bytes());
                socket.write_all(&message[..size])?;
                socket.read_exact(&mut back[..size])?;
                let now = clock::now();
                if now >= end {
                    return Ok(());
                }
                all.fetch_add(size as u64, Ordering::Relaxed);
                if now >= begin {
                    measured.fetch_add(size as u64, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            let exchange = &exchange;
            let running: Vec<_> = (0..)
                .zip(sockets)
                .map(|(number, socket)| scope.spawn(move || exchange(number, socket)))
                .collect();
            let ended = running.into_iter().map(|thread| thread.join());
            ended
                .map(|ended| ended.expect("the thread does not panic"))
                .collect::<Result<Vec<()>>>()
        })?;
        Ok(Count {
            all: all.into_inner(),
            measured: measured.into_inner(),
        })
    }

    fn connect<S: Read + Write>(
        &self,
        size: usize,
        connect: impl Fn() -> Result<S>,
    ) -> Result<Count> {
        let mut message = vec![7; size];
        message[0] = ConnectionPurpose::Once as u8;
        message[1..5].copy_from_slice(&(size as u32).to_le_bytes());
        let mut back = vec![0; size];
        let (begin, end) = self.interval();
        let mut count = Count::default();
        loop {
            let mut socket = connect()?;
            socket.write_all(&message)?;
            socket.read_exact(&mut back)?;
            drop(socket);
            let now = clock::now();
            if now >= end {
                return Ok(count);
            }
            count.all += 1;
            if now >= begin {
                count.measured += 1;
            }
        }
    }
}

fn connect_tcp(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to).map_err(failed("connecting"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_their_range_and_all_occur() {
        let sizes = MessageSizes::PowersOfTwo(64, 256 << 10);
        let mut random = Random::new(1);
        let mut seen: Vec<usize> = (0..1000).map(|_| sizes.next(&mut random)).collect();
        seen.sort_unstable();
        seen.dedup();
        let expected: Vec<usize> = (6..=18).map(|log| 1 << log).collect();
        assert_eq!(seen, expected);
        assert_eq!(sizes.longest(), 256 << 10);
    }
}

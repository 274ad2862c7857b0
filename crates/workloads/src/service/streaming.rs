//! Applications that send or receive over many streams without a pause, on one thread, and follow commands. Their
//! throughput and their resource use are measured from outside.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use headworks::net::clock;
use headworks::service::{Interest, Service, ServiceError, Stream};
use headworks::verbs::Instant;
use serde::{Deserialize, Serialize};

use super::control::{next_command, reply};
use super::echo::{Context, EchoSocket, is_to_wait};
use super::ready_set::ReadySet;
use super::{Result, failed};
use crate::error::WorkloadError;

/// Rate of a sender that sends as much as it can.
pub const UNLIMITED: u64 = u64::MAX;
/// How often a thread that waits, or has nothing to do, looks at its orders.
const LOOK: Duration = Duration::from_millis(20);
/// How often a sender with a rate looks whether bytes are due. What was due longer ago than [`LATE`] is not sent later.
const DUE: Duration = Duration::from_millis(1);
const LATE: headworks::verbs::Duration = headworks::verbs::Duration::from_millis(20);
/// Bytes of a cache line. A receiver reads a word of each.
const LINE: usize = 64;

/// An application that streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamingApp {
    /// Socket of its daemon; `None`: its streams are TCP connections.
    pub socket: Option<PathBuf>,
    /// Name under which it attaches.
    pub name: String,
    /// Bytes of a message.
    pub message: u32,
    /// Direction of its streams.
    pub side: StreamingSide,
}

/// Direction of an application's streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamingSide {
    /// It connects and sends.
    Sends {
        /// Receiving applications.
        to: Vec<SocketAddr>,
        /// Number of streams to each of them.
        streams: u32,
    },
    /// It accepts and receives. It reads the bytes in place.
    Receives {
        /// Port that it listens on, over TCP of 127.0.0.1. 0: any port.
        port: u16,
        /// Number of streams.
        streams: u32,
    },
}

/// Command to an application that streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamingCommand {
    /// Open the streams.
    Connect,
    /// Send this many bytes per second to each receiver; 0 at first; [`UNLIMITED`]: as many as possible.
    Send(u64),
    /// Begin or stop to read. A receiver begins at once.
    Read(bool),
    /// Report how much was sent or received.
    Count,
}

/// Reply of an application that streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamingReply {
    /// It has attached to its daemon, and listens at this port; 0 if it does not listen.
    Ready(u16),
    /// All streams are open.
    Connected,
    /// The order was given to the thread that streams.
    Ordered,
    /// Answer to [`StreamingCommand::Count`].
    Count(StreamingCount),
}

/// Number of bytes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamingCount {
    /// Bytes sent, or received and read.
    pub bytes: u64,
    /// Time, in nanoseconds of the machine's clock.
    pub at_ns: u64,
}

impl StreamingCount {
    /// Returns the bytes per second since an earlier count of the same application.
    pub fn per_second_since(self, before: Self) -> f64 {
        let nanos = self.at_ns.saturating_sub(before.at_ns).max(1);
        self.bytes.saturating_sub(before.bytes) as f64 * 1e9 / nanos as f64
    }
}

/// Orders of the thread that streams, and its count.
#[derive(Default)]
struct Orders {
    bytes: AtomicU64,
    /// Bytes per second to each receiver.
    rate: AtomicU64,
    does_not_read: AtomicBool,
}

/// A connection of an application that streams.
trait StreamingSocket: EchoSocket + Send + 'static {
    /// Reads bytes: at least as many as a message has, if they are there, which do not wait. Returns their number, and
    /// whether the stream is over. `buffer` has the length of a message.
    fn take(&mut self, buffer: &mut [u8]) -> Result<(u64, bool)>;
}

impl StreamingSocket for Stream {
    /// Reads the bytes in place.
    fn take(&mut self, buffer: &mut [u8]) -> Result<(u64, bool)> {
        let mut taken = 0;
        while taken < buffer.len() {
            let peeked = match self.peek() {
                Ok(peeked) => peeked,
                Err(ServiceError::WouldBlock) => break,
                Err(ServiceError::Reset(_)) => return Ok((taken as u64, true)),
                Err(error) => return Err(failed("receiving")(error)),
            };
            let len = peeked.len();
            if len == 0 {
                return Ok((taken as u64, true));
            }
            read_lines(&peeked);
            peeked.consume(len)?;
            taken += len;
        }
        Ok((taken as u64, false))
    }
}

impl StreamingSocket for TcpStream {
    fn take(&mut self, buffer: &mut [u8]) -> Result<(u64, bool)> {
        match self.read(buffer) {
            Ok(0) => Ok((0, true)),
            Ok(len) => {
                read_lines(&buffer[..len]);
                Ok((len as u64, false))
            }
            Err(error) if is_to_wait(&error) => Ok((0, false)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok((0, true)),
            Err(error) => Err(failed("receiving")(error)),
        }
    }
}

impl StreamingApp {
    pub(super) fn run(self) -> Result<()> {
        let Some(socket) = &self.socket else {
            return self.run_tcp();
        };
        let service = Service::attach(socket, &self.name)?;
        match &self.side {
            StreamingSide::Receives { port, streams } => {
                let listener = service.listen(*port, *streams)?;
                self.follow(&service, *port, || Ok(listener.accept()?))
            }
            StreamingSide::Sends { to, streams } => {
                let mut to = each_of(to, *streams);
                self.follow(&service, 0, || Ok(service.connect(next(&mut to)?)?))
            }
        }
    }

    fn run_tcp(&self) -> Result<()> {
        match &self.side {
            StreamingSide::Receives { port, streams } => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port))?;
                rustix::net::listen(&listener, *streams as i32).map_err(failed("listening"))?;
                let port = listener.local_addr()?.port();
                self.follow(&(), port, || Ok(listener.accept()?.0))
            }
            StreamingSide::Sends { to, streams } => {
                let mut to = each_of(to, *streams);
                self.follow(&(), 0, || Ok(TcpStream::connect(next(&mut to)?)?))
            }
        }
    }

    /// Follows commands. `open` opens the next stream.
    fn follow<S: StreamingSocket>(
        &self,
        context: &Context<S>,
        port: u16,
        mut open: impl FnMut() -> Result<S>,
    ) -> Result<()> {
        let orders = Arc::new(Orders::default());
        reply(&StreamingReply::Ready(port))?;
        while let Some(command) = next_command()? {
            reply(&match command {
                StreamingCommand::Connect => {
                    let streams = (0..self.streams()).map(|_| open());
                    let streams = streams.collect::<Result<Vec<S>>>()?;
                    let (app, orders) = (self.clone(), orders.clone());
                    let context = context.clone();
                    let named = thread::Builder::new().name("experiment-app".to_owned());
                    named.spawn(move || {
                        if let Err(why) = app.stream(&context, streams, &orders) {
                            // The parent process sees the pipe close.
                            crate::progress_bar::tell(format_args!("{}: {why}", app.name));
                            std::process::exit(1);
                        }
                    })?;
                    StreamingReply::Connected
                }
                StreamingCommand::Send(rate) => {
                    orders.rate.store(rate, Ordering::Relaxed);
                    StreamingReply::Ordered
                }
                StreamingCommand::Read(reads) => {
                    orders.does_not_read.store(!reads, Ordering::Relaxed);
                    StreamingReply::Ordered
                }
                StreamingCommand::Count => StreamingReply::Count(StreamingCount {
                    bytes: orders.bytes.load(Ordering::Relaxed),
                    at_ns: clock::now().since(Instant::ZERO).nanos(),
                }),
            })?;
        }
        Ok(())
    }

    /// Returns the number of streams to all receivers.
    fn streams(&self) -> usize {
        match &self.side {
            StreamingSide::Receives { streams, .. } => *streams as usize,
            StreamingSide::Sends { to, streams } => to.len() * *streams as usize,
        }
    }

    fn stream<S: StreamingSocket>(
        &self,
        context: &Context<S>,
        streams: Vec<S>,
        orders: &Orders,
    ) -> Result<()> {
        let mut ready = S::Ready::new(context)?;
        match self.side {
            StreamingSide::Receives { .. } => self.receive(ready, streams, orders),
            StreamingSide::Sends { streams: each, .. } => {
                let mut streams = streams;
                for (number, stream) in (0..).zip(&mut streams) {
                    ready.add(stream, number, Interest::SEND)?;
                }
                Sender::new(ready, streams, each as usize, self.message as usize).run(orders)
            }
        }
    }

    /// Receives until all streams have ended.
    fn receive<S: StreamingSocket>(
        &self,
        mut ready: S::Ready,
        streams: Vec<S>,
        orders: &Orders,
    ) -> Result<()> {
        let mut left = streams.len();
        let mut streams: Vec<Option<S>> = streams.into_iter().map(Some).collect();
        for (number, stream) in (0..).zip(streams.iter_mut().flatten()) {
            ready.add(stream, number, Interest::RECEIVE)?;
        }
        let mut buffer = vec![0; self.message as usize];
        let mut numbers = Vec::new();
        while left > 0 {
            if orders.does_not_read.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                continue;
            }
            numbers.clear();
            ready.wait(Some(LOOK), &mut numbers)?;
            for number in &numbers {
                let Some(slot) = streams.get_mut(*number) else {
                    continue;
                };
                let Some(stream) = slot else { continue };
                let (bytes, is_over) = stream.take(&mut buffer)?;
                orders.bytes.fetch_add(bytes, Ordering::Relaxed);
                if is_over {
                    *slot = None;
                    left -= 1;
                }
            }
        }
        Ok(())
    }
}

/// Returns the address for each stream of a sender, in the order of its receivers.
fn each_of(to: &[SocketAddr], streams: u32) -> impl Iterator<Item = SocketAddr> {
    let each = move |to: &SocketAddr| std::iter::repeat_n(*to, streams as usize);
    to.iter().flat_map(each)
}

fn next(to: &mut impl Iterator<Item = SocketAddr>) -> Result<SocketAddr> {
    to.next()
        .ok_or_else(|| WorkloadError("there is no further address".to_owned()))
}

/// Reads a word of each cache line.
fn read_lines(bytes: &[u8]) {
    let words = bytes
        .chunks(LINE)
        .filter_map(|line| line.first_chunk::<8>());
    let words = words.map(|word| u64::from_ne_bytes(*word));
    std::hint::black_box(words.fold(0, |all, word| all ^ word));
}

/// The streams of an application that sends.
struct Sender<S: EchoSocket> {
    streams: Vec<S>,
    /// For each stream: bytes of its message that were sent.
    part: Vec<usize>,
    /// Number of streams to each receiver.
    each: usize,
    message: Vec<u8>,
    ready: S::Ready,
}

impl<S: StreamingSocket> Sender<S> {
    fn new(ready: S::Ready, streams: Vec<S>, each: usize, message: usize) -> Self {
        Self {
            part: vec![0; streams.len()],
            streams,
            each,
            message: vec![7; message],
            ready,
        }
    }

    fn run(mut self, orders: &Orders) -> Result<()> {
        let mut numbers = Vec::new();
        let mut next = HashMap::new();
        let mut due_at = clock::now();
        loop {
            let rate = orders.rate.load(Ordering::Relaxed);
            if rate == UNLIMITED {
                numbers.clear();
                self.ready.wait(Some(LOOK), &mut numbers)?;
                for number in &numbers {
                    let sent = self.send(*number)?;
                    orders.bytes.fetch_add(sent, Ordering::Relaxed);
                }
                due_at = clock::now();
                continue;
            }
            thread::sleep(if rate == 0 { LOOK } else { DUE });
            let now = clock::now();
            if rate == 0 || now.since(due_at) > LATE {
                due_at = now;
            }
            // Whole messages are sent. What remains of the time counts for the next one.
            let nanos_each = self.message.len() as u64 * 1_000_000_000 / rate.max(1);
            let messages = now.since(due_at).nanos() / nanos_each.max(1);
            due_at += headworks::verbs::Duration::from_nanos(messages * nanos_each);
            for receiver in 0..self.streams.len() / self.each.max(1) {
                let sent = self.send_to(
                    receiver,
                    messages as usize,
                    next.entry(receiver).or_default(),
                )?;
                orders.bytes.fetch_add(sent, Ordering::Relaxed);
            }
        }
    }

    /// Sends messages to a receiver, over its streams in turn from the `next`th on. Returns the number of bytes.
    fn send_to(&mut self, receiver: usize, messages: usize, next: &mut usize) -> Result<u64> {
        let (mut sent, mut full) = (0, 0);
        let due = (messages * self.message.len()) as u64;
        while sent < due && full < self.each {
            let bytes = self.send(receiver * self.each + *next)?;
            *next = (*next + 1) % self.each;
            full = if bytes == 0 { full + 1 } else { 0 };
            sent += bytes;
        }
        Ok(sent)
    }

    /// Sends up to a message on a stream. Returns the number of bytes.
    fn send(&mut self, number: usize) -> Result<u64> {
        let (Some(stream), Some(part)) = (self.streams.get_mut(number), self.part.get_mut(number))
        else {
            return Err(WorkloadError(format!("there is no stream {number}")));
        };
        match stream.write(&self.message[*part..]) {
            Ok(sent) => {
                *part = (*part + sent) % self.message.len();
                Ok(sent as u64)
            }
            Err(error) if is_to_wait(&error) => Ok(0),
            Err(error) => Err(failed("sending")(error)),
        }
    }
}

//! Many connections at once, through two daemons and beside TCP: bytes that go there and back on all of them, each
//! checked, and 64 of them alone.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use headworks::net::{Waiter, WakeReason, clock};
use headworks::service::{Service, Stream};
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;

use super::daemons::{Daemons, address};
use super::small_messages::LEN;
use super::{Demo, PATIENCE, check_interrupt, say, speed};

/// Connections, and of a device of libibverbs, which may be an emulated one.
const CONNECTIONS: usize = 300;
const CONNECTIONS_IBV: usize = 30;
/// Bytes that go there and back, if they do in time.
const BYTES: u64 = 256 << 20;
/// Round trips, in the same way.
const TRIPS: u64 = 10_000;
/// How long the bytes may take, and the round trips.
const BYTES_FOR: Duration = Duration::from_millis(1500);
const TRIPS_FOR: Duration = Duration::from_millis(750);
/// Bytes of a connection that are on their way at most.
const WINDOW: u64 = 64 << 10;
/// How long a call waits before it is looked for Ctrl-C.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes after which what is sent begins anew: no multiple of anything.
const PATTERN: usize = 1_000_003;
/// The number of the descriptor that says that Ctrl-C was pressed.
const INTERRUPT: u64 = u64::MAX;
const EVENTS: usize = 64;

/// A connection of either kind.
pub(super) trait TestSocket: Read + Write {
    /// Readable while there is something to be received, writable while there is room.
    fn fd(&mut self) -> anyhow::Result<BorrowedFd<'_>>;

    /// Whether calls wait, for a [`INTERRUPT_CHECK_INTERVAL`], or do not.
    fn set_waiting(&mut self, waits: bool) -> std::io::Result<()>;
}

impl TestSocket for TcpStream {
    fn fd(&mut self) -> anyhow::Result<BorrowedFd<'_>> {
        Ok(AsFd::as_fd(&*self))
    }

    fn set_waiting(&mut self, waits: bool) -> std::io::Result<()> {
        self.set_nodelay(true)?;
        self.set_read_timeout(Some(INTERRUPT_CHECK_INTERVAL))?;
        self.set_nonblocking(!waits)
    }
}

impl TestSocket for Stream {
    fn fd(&mut self) -> anyhow::Result<BorrowedFd<'_>> {
        Ok(Self::fd(self)?)
    }

    fn set_waiting(&mut self, waits: bool) -> std::io::Result<()> {
        let glance =
            headworks::verbs::Duration::from_millis(INTERRUPT_CHECK_INTERVAL.as_millis() as u64);
        self.set_deadline(Some(clock::now() + glance));
        self.set_nonblocking(!waits);
        Ok(())
    }
}

/// Whether there was nothing, or no room, or no time left.
pub(super) fn is_to_wait(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// What was measured.
struct EchoRates {
    connections: usize,
    bytes: u64,
    gigabytes: f64,
    trip_ns: f64,
}

impl Demo {
    /// The last part.
    pub(super) fn many(&self) -> anyhow::Result<()> {
        let mut devices = [&self.device, &self.peer].into_iter();
        if devices.any(|device| device.option("hostile").is_some()) {
            say(
                "\n4. Many connections through two daemons: not on a hostile device, whose denials break the\n   \
                 connections of daemons, as their applications are told.",
            );
            return Ok(());
        }
        let is_soft = [&self.device, &self.peer].map(|device| device.kind() == "soft");
        let connections = match is_soft {
            [true, true] => CONNECTIONS,
            _ => CONNECTIONS_IBV,
        };
        say(&format!(
            "\n4. {connections} connections between two applications, each on a host with a daemon, at once, beside TCP:\n   \
             bytes there and back on all of them, each checked, and {LEN} bytes there and back alone"
        ));
        self.progress("starting two daemons");
        let hosts = Daemons::start(self)?;
        let socket = hosts.socket(1);
        let many = connections.to_string();
        let mut other = self.spawn(&["echo", &socket.to_string_lossy(), "--pieces", &many])?;
        let (port, port_tcp) = (self.read_number(&mut other)?, self.read_number(&mut other)?);

        self.progress(&format!("measuring {connections} connections"));
        let service = Service::attach(&hosts.socket(0), "demo")?;
        let to = SocketAddr::new(address(1), port);
        let streams = (0..connections).map(|_| self.connect(&service, to));
        let streams = streams.collect::<anyhow::Result<Vec<Stream>>>()?;
        let mut load = EchoLoad::new(streams)?;
        let ours = self.measure_many(&mut load, BYTES)?;
        let queue_pairs = hosts.queue_pairs(0)?;
        drop((load, service));

        self.progress(&format!("measuring {connections} connections of TCP"));
        let to = SocketAddr::new(address(0), port_tcp);
        let streams = (0..connections).map(|_| self.connect_tcp(to));
        let mut load = EchoLoad::new(streams.collect::<anyhow::Result<Vec<TcpStream>>>()?)?;
        // No more than that took.
        let theirs = self.measure_many(&mut load, ours.bytes)?;
        drop(load);
        self.finish(other)?;
        hosts.end(self)?;

        say(&format!(
            "   {:<14}{:>12}{:>13}{:>12}{:>12}{:>18}",
            "", "connections", "queue pairs", "bytes", "rate", "64 B and back"
        ));
        for (name, queue_pairs, found) in [
            ("headworks", queue_pairs.to_string(), ours),
            ("TCP loopback", "–".to_owned(), theirs),
        ] {
            say(&format!(
                "   {name:<14}{:>12}{queue_pairs:>13}{:>12}{:>12}{:>15.1} µs",
                found.connections,
                format!("{:.1} MiB", found.bytes as f64 / f64::from(1 << 20)),
                speed(found.gigabytes),
                found.trip_ns / 1000.0
            ));
        }
        Ok(())
    }

    fn connect(&self, service: &Service, to: SocketAddr) -> anyhow::Result<Stream> {
        let mut connecting = service.connect_start(to)?;
        let until = clock::now() + PATIENCE;
        loop {
            if let Some(stream) = connecting.finish()? {
                return Ok(stream);
            }
            let mut fds = [
                PollFd::new(&connecting, PollFlags::OUT),
                PollFd::new(&self.interrupt, PollFlags::IN),
            ];
            let woken = Waiter::default().wait_polling(&mut fds, Some(until), &mut |_| false);
            self.check_interrupt()?;
            if woken.context("waiting for a connection")? == WakeReason::Deadline {
                return Err(anyhow!("the other host said nothing for {PATIENCE}"));
            }
        }
    }

    fn connect_tcp(&self, to: SocketAddr) -> anyhow::Result<TcpStream> {
        let until = clock::now() + PATIENCE;
        loop {
            self.check_interrupt()?;
            match TcpStream::connect_timeout(&to, INTERRUPT_CHECK_INTERVAL) {
                // Many wait to be accepted.
                Err(error) if is_to_wait(&error) && clock::now() < until => {}
                connected => return connected.context("TCP"),
            }
        }
    }

    fn measure_many<W: TestSocket>(
        &self,
        load: &mut EchoLoad<W>,
        bytes: u64,
    ) -> anyhow::Result<EchoRates> {
        let began = Instant::now();
        let back = load.poll_all(bytes, self)?;
        let took = began.elapsed().as_secs_f64();
        Ok(EchoRates {
            connections: load.connections.len(),
            bytes: back,
            gigabytes: back as f64 / took / 1e9,
            trip_ns: load.trips(self)?,
        })
    }
}

struct Connection<W> {
    wire: W,
    /// Bytes that were sent, and those of them that came back.
    sent: u64,
    back: u64,
}

/// Connections that bytes go over.
struct EchoLoad<W> {
    connections: Vec<Connection<W>>,
    epoll: OwnedFd,
    /// Twice the same, so that it goes on behind its end.
    pattern: Vec<u8>,
}

impl<W: TestSocket> EchoLoad<W> {
    fn new(wires: Vec<W>) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let mut connections = Vec::new();
        for (number, mut wire) in (0..).zip(wires) {
            wire.set_waiting(false).context("a connection")?;
            watch(&epoll, wire.fd()?, number)?;
            connections.push(Connection {
                wire,
                sent: 0,
                back: 0,
            });
        }
        let mut pattern = vec![0; PATTERN];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for byte in &mut pattern {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        pattern.extend_from_within(..);
        Ok(Self {
            connections,
            epoll,
            pattern,
        })
    }

    /// Sends so many bytes, or what goes in time, over all connections, and receives and checks them. Says how many.
    fn poll_all(&mut self, bytes: u64, demo: &Demo) -> anyhow::Result<u64> {
        watch(&self.epoll, demo.interrupt.as_fd(), INTERRUPT)?;
        let began = Instant::now();
        let (mut sent, mut back) = (0, 0);
        for number in 0..self.connections.len() {
            sent += self.fill(number)?;
        }
        let mut buffer = vec![0; WINDOW as usize];
        while back < sent {
            demo.check_interrupt()?;
            for number in self.ready()? {
                back += self.take_back(number, &mut buffer)?;
                if sent < bytes && began.elapsed() < BYTES_FOR {
                    sent += self.fill(number)?;
                }
            }
        }
        // Trips are waited for otherwise.
        epoll::delete(&self.epoll, demo.interrupt.as_fd()).context("epoll")?;
        Ok(back)
    }

    /// Those that have something.
    fn ready(&self) -> anyhow::Result<Vec<usize>> {
        let mut events = Vec::with_capacity(EVENTS);
        let patience = rustix::event::Timespec {
            tv_sec: PATIENCE.nanos() as i64 / 1_000_000_000,
            tv_nsec: 0,
        };
        let into = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, into, Some(&patience)) {
            Ok(0) => return Err(anyhow!("the other process said nothing for {PATIENCE}")),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("epoll"),
        }
        let numbers = events.iter().map(|event| event.data.u64());
        let numbers = numbers.filter(|number| *number != INTERRUPT);
        Ok(numbers.map(|number| number as usize).collect())
    }

    /// Sends what there is room for and may be on its way. If that is nothing, something comes back, and makes room.
    fn fill(&mut self, number: usize) -> anyhow::Result<u64> {
        let connection = &mut self.connections[number];
        let before = connection.sent;
        // In large pieces, or not yet.
        if WINDOW - (before - connection.back) < WINDOW / 2 {
            return Ok(0);
        }
        while connection.sent - connection.back < WINDOW {
            let room = WINDOW - (connection.sent - connection.back);
            let bytes = right(&self.pattern, number, connection.sent, room as usize);
            match connection.wire.write(bytes) {
                Ok(sent) => connection.sent += sent as u64,
                Err(error) if is_to_wait(&error) => break,
                Err(error) => return Err(error).context("sending on a connection"),
            }
        }
        Ok(connection.sent - before)
    }

    /// Receives what is there, and checks it.
    fn take_back(&mut self, number: usize, buffer: &mut [u8]) -> anyhow::Result<u64> {
        let connection = &mut self.connections[number];
        let before = connection.back;
        loop {
            match connection.wire.read(buffer) {
                Ok(0) => return Err(anyhow!("the other process is gone")),
                Ok(len) => {
                    let right = right(&self.pattern, number, connection.back, len);
                    if buffer[..len] != *right {
                        let at = connection.back;
                        return Err(anyhow!("connection {number} is wrong behind byte {at}"));
                    }
                    connection.back += len as u64;
                }
                Err(error) if is_to_wait(&error) => return Ok(connection.back - before),
                Err(error) => return Err(error).context("receiving on a connection"),
            }
        }
    }

    /// Nanoseconds of a round trip, one at a time over all connections by turns.
    fn trips(&mut self, demo: &Demo) -> anyhow::Result<f64> {
        for connection in &mut self.connections {
            connection.wire.set_waiting(true).context("a connection")?;
        }
        let began = Instant::now();
        let mut trips = 0;
        let mut buffer = [0; LEN];
        let many = self.connections.len();
        // At least one over each, so that a slow device has an average, too.
        while trips < many as u64 || trips < TRIPS && began.elapsed() < TRIPS_FOR {
            let number = trips as usize % many;
            let wire = &mut self.connections[number].wire;
            let message = right(&self.pattern, number, trips, LEN);
            let mut sent = 0;
            while sent < LEN {
                check_interrupt(Some(&demo.interrupt))?;
                sent += done(wire, |wire| wire.write(&message[sent..]))?;
            }
            let mut got = 0;
            while got < LEN {
                demo.check_interrupt()?;
                got += done(wire, |wire| match wire.read(&mut buffer[got..]) {
                    Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                    read => read,
                })?;
            }
            if buffer != *message {
                return Err(anyhow!("{LEN} bytes came back changed"));
            }
            trips += 1;
        }
        Ok(began.elapsed().as_nanos() as f64 / trips as f64)
    }
}

/// What a call did; 0 where its time was up, so that it can be looked for Ctrl-C.
fn done<W: TestSocket>(
    wire: &mut W,
    act: impl FnOnce(&mut W) -> std::io::Result<usize>,
) -> anyhow::Result<usize> {
    match act(wire) {
        Ok(done) => Ok(done),
        Err(error) if is_to_wait(&error) => {
            wire.set_waiting(true).context("a connection")?;
            Ok(0)
        }
        Err(error) => Err(error).context("a connection"),
    }
}

/// What a connection's bytes are from a position on.
fn right(pattern: &[u8], number: usize, at: u64, len: usize) -> &[u8] {
    let at = (at + number as u64 * 4099) % PATTERN as u64;
    &pattern[at as usize..][..len]
}

pub(super) fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, number: u64) -> anyhow::Result<()> {
    let data = epoll::EventData::new_u64(number);
    epoll::add(epoll, fd, data, epoll::EventFlags::IN).context("epoll")
}

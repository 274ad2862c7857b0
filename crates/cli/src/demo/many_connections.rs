//! Many connections at once, through two daemons and, for comparison, over TCP: bytes there and back on all
//! of them, each checked, then single messages of 64 bytes there and back.

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
use super::{Demo, PATIENCE, check_interrupt, print_line, speed};

/// Connections if both devices are `soft`.
const CONNECTIONS: usize = 300;
/// Connections otherwise: devices of libibverbs may be emulated.
const CONNECTIONS_IBV: usize = 30;
/// Bytes sent there and back; fewer if time runs out.
const BYTES: u64 = 256 << 20;
/// Round trips; fewer if time runs out.
const TRIPS: u64 = 10_000;
/// Time limit for the bytes.
const BYTES_FOR: Duration = Duration::from_millis(1500);
/// Time limit for the round trips.
const TRIPS_FOR: Duration = Duration::from_millis(750);
/// Most bytes in flight on a connection.
const WINDOW: u64 = 64 << 10;
/// Longest wait of a call before the next check for Ctrl-C.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes after which the sent pattern repeats. No other size here divides it.
const PATTERN: usize = 1_000_003;
/// Event number of the descriptor that reports Ctrl-C.
const INTERRUPT: u64 = u64::MAX;
const EVENTS: usize = 64;

/// A connection of the service or of TCP.
pub(super) trait TestSocket: Read + Write {
    /// Returns a descriptor that is readable while there is something to receive, writable while there is
    /// room.
    fn fd(&mut self) -> anyhow::Result<BorrowedFd<'_>>;

    /// Sets whether calls wait for up to [`INTERRUPT_CHECK_INTERVAL`] or return at once.
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

/// Whether a call failed because there was nothing to receive, no room to send, or no time left.
pub(super) fn is_to_wait(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Result over one kind of connection.
struct EchoRates {
    connections: usize,
    bytes: u64,
    gigabytes: f64,
    trip_ns: f64,
}

impl Demo {
    /// Runs the last part.
    pub(super) fn many(&self) -> anyhow::Result<()> {
        let mut devices = [&self.device, &self.peer].into_iter();
        if devices.any(|device| device.option("hostile").is_some()) {
            print_line(
                "\n4. Many connections through two daemons: not on a hostile device, whose faults break the\n   \
                 connections of daemons, as their applications are told.",
            );
            return Ok(());
        }
        let is_soft = [&self.device, &self.peer].map(|device| device.kind() == "soft");
        let connections = match is_soft {
            [true, true] => CONNECTIONS,
            _ => CONNECTIONS_IBV,
        };
        print_line(&format!(
            "\n4. {connections} connections between two applications, each on a host with a daemon, at once, compared with TCP:\n   \
             bytes there and back on all of them, each checked, and {LEN} bytes there and back alone"
        ));
        self.progress("starting two daemons");
        let hosts = Daemons::start(self)?;
        let socket = hosts.socket(1);
        let many = connections.to_string();
        let mut other = self.spawn(&["echo", &socket.to_string_lossy(), "--pieces", &many])?;
        let mut port = || self.read_number(&mut other, "starting the other application");
        let (port, port_tcp) = (port()?, port()?);

        self.progress(&format!("measuring {connections} connections"));
        let service = Service::attach(&hosts.socket(0), "demo")?;
        let to = SocketAddr::new(address(1), port);
        let streams = (0..connections).map(|_| self.connect(&service, to));
        let streams = streams.collect::<anyhow::Result<Vec<Stream>>>()?;
        let mut load = EchoLoad::new(streams)?;
        let ours = self.measure_many(&mut load, BYTES)?;
        let queue_pairs = hosts.queue_pairs(self, 0)?;
        drop((load, service));

        self.progress(&format!("measuring {connections} connections of TCP"));
        let to = SocketAddr::new(address(0), port_tcp);
        let streams = (0..connections).map(|_| self.connect_tcp(to));
        let mut load = EchoLoad::new(streams.collect::<anyhow::Result<Vec<TcpStream>>>()?)?;
        // TCP carries no more bytes than the service did.
        let theirs = self.measure_many(&mut load, ours.bytes)?;
        drop(load);
        self.finish(other, "the many connections")?;
        hosts.end(self)?;

        print_line(&format!(
            "   {:<14}{:>12}{:>13}{:>12}{:>12}{:>18}",
            "", "connections", "queue pairs", "bytes", "rate", "64 B and back"
        ));
        for (name, queue_pairs, found) in [
            ("headworks", queue_pairs.to_string(), ours),
            ("TCP loopback", "–".to_owned(), theirs),
        ] {
            print_line(&format!(
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
                let seconds = PATIENCE.as_secs_f64();
                return Err(anyhow!(
                    "connecting through the daemons: the other host did not answer for {seconds} s"
                ));
            }
        }
    }

    fn connect_tcp(&self, to: SocketAddr) -> anyhow::Result<TcpStream> {
        let until = clock::now() + PATIENCE;
        loop {
            self.check_interrupt()?;
            match TcpStream::connect_timeout(&to, INTERRUPT_CHECK_INTERVAL) {
                // Timeouts are retried, because many connections wait to be accepted.
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
    /// Bytes sent.
    sent: u64,
    /// Bytes of those that came back.
    back: u64,
}

/// Connections that carry the load.
struct EchoLoad<W> {
    connections: Vec<Connection<W>>,
    epoll: OwnedFd,
    /// The pattern twice, so that a slice may extend past the end of the first copy.
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

    /// Sends `bytes` bytes, or as many as time allows, over all connections, and receives and checks them.
    /// Returns how many came back.
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
        // Round trips check for the interrupt by themselves.
        epoll::delete(&self.epoll, demo.interrupt.as_fd()).context("epoll")?;
        Ok(back)
    }

    /// Returns the numbers of the connections that have something to receive.
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

    /// Sends as much as the window and the connection have room for. If that is nothing, bytes that come back
    /// will make room.
    fn fill(&mut self, number: usize) -> anyhow::Result<u64> {
        let connection = &mut self.connections[number];
        let before = connection.sent;
        // Waits until half of the window is free, so that pieces are large.
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

    /// Receives and checks what is there. Returns how many bytes.
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
                        return Err(anyhow!(
                            "connection {number} carried wrong bytes after byte {at}"
                        ));
                    }
                    connection.back += len as u64;
                }
                Err(error) if is_to_wait(&error) => return Ok(connection.back - before),
                Err(error) => return Err(error).context("receiving on a connection"),
            }
        }
    }

    /// Returns the mean nanoseconds of a round trip; one message at a time, over each connection in turn.
    fn trips(&mut self, demo: &Demo) -> anyhow::Result<f64> {
        for connection in &mut self.connections {
            connection.wire.set_waiting(true).context("a connection")?;
        }
        let began = Instant::now();
        let mut trips = 0;
        let mut buffer = [0; LEN];
        let many = self.connections.len();
        // At least one round trip over each connection, so that a slow device has an average, too.
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

/// Performs a call. Returns 0 if its time was up, so that the caller can check for Ctrl-C.
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

/// Returns the bytes that a connection must carry from a position on.
fn right(pattern: &[u8], number: usize, at: u64, len: usize) -> &[u8] {
    let at = (at + number as u64 * 4099) % PATTERN as u64;
    &pattern[at as usize..][..len]
}

pub(super) fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, number: u64) -> anyhow::Result<()> {
    let data = epoll::EventData::new_u64(number);
    epoll::add(epoll, fd, data, epoll::EventFlags::IN).context("epoll")
}

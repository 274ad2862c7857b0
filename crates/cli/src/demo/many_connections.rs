//! Many connections at once, through two daemons, on the direct path and, for comparison, over TCP: bytes there and back on
//! all of them, each checked, then single messages of 64 bytes there and back.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use headworks::net::clock;
use headworks::service::{Poller, Service, Stream};
use headworks_workloads::service::echo::{Context, EchoClient, EchoSocket, Pattern, is_to_wait};

use super::daemons::{Daemons, address};
use super::small_messages::LEN;
use super::{Demo, PATIENCE, print_line, speed};

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

/// A connection of the service or of TCP.
trait TestSocket: EchoSocket {
    /// Has calls wait for up to [`INTERRUPT_CHECK_INTERVAL`].
    fn set_waiting(&mut self) -> std::io::Result<()>;
}

impl TestSocket for TcpStream {
    fn set_waiting(&mut self) -> std::io::Result<()> {
        self.set_read_timeout(Some(INTERRUPT_CHECK_INTERVAL))?;
        self.set_nonblocking(false)
    }
}

impl TestSocket for Stream {
    fn set_waiting(&mut self) -> std::io::Result<()> {
        let glance =
            headworks::verbs::Duration::from_millis(INTERRUPT_CHECK_INTERVAL.as_millis() as u64);
        self.set_deadline(Some(clock::now() + glance));
        self.set_nonblocking(false);
        Ok(())
    }
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
            "\n4. {connections} connections between two applications at once: through the daemons of two hosts, direct as on one host,\n   \
             and over TCP: bytes there and back on all of them, each checked, and {LEN} bytes there and back alone"
        ));
        let (ours, queue_pairs) = self.many_by_daemons(connections)?;
        let (direct, theirs) = self.many_direct(connections, ours.bytes)?;
        print_line(&format!(
            "   {:<14}{:>12}{:>13}{:>12}{:>12}{:>18}",
            "", "connections", "queue pairs", "bytes", "rate", "64 B and back"
        ));
        for (name, queue_pairs, found) in [
            ("by daemons", queue_pairs.to_string(), ours),
            ("direct", "–".to_owned(), direct),
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

    /// Measures connections between two hosts. Returns the number of queue pairs too.
    fn many_by_daemons(&self, connections: usize) -> anyhow::Result<(EchoRates, u64)> {
        self.progress("starting two daemons");
        let hosts = Daemons::start(self, false)?;
        let many = connections.to_string();
        let socket = hosts.socket(1);
        let args = ["echo-service", &socket.to_string_lossy(), "--pieces", &many];
        let mut other = self.spawn(&args)?;
        let mut port = || self.read_number(&mut other, "starting the other application");
        let (port, _) = (port()?, port()?);
        self.progress(&format!("measuring {connections} connections"));
        let service = Service::attach(hosts.socket(0), "demo")?;
        let (ours, streams) = self.measure_service(&service, connections, port, BYTES)?;
        let queue_pairs = hosts.queue_pairs(self, 0)?;
        drop((streams, service));
        self.finish(other, "the many connections")?;
        hosts.end(self)?;
        Ok((ours, queue_pairs))
    }

    /// Measures connections between two applications of one machine, on the direct path and then over TCP, with `bytes`
    /// at most.
    fn many_direct(
        &self,
        connections: usize,
        bytes: u64,
    ) -> anyhow::Result<(EchoRates, EchoRates)> {
        self.progress("starting two daemons");
        let hosts = Daemons::start(self, true)?;
        let many = connections.to_string();
        let socket = hosts.socket(1);
        let mut other = self.spawn(&["echo", &socket.to_string_lossy(), "--pieces", &many])?;
        let mut port = || self.read_number(&mut other, "starting the other application");
        let (port, port_tcp) = (port()?, port()?);
        self.progress(&format!("measuring {connections} direct connections"));
        let service = Service::attach(hosts.socket(0), "demo")?;
        let (direct, streams) = self.measure_service(&service, connections, port, bytes)?;
        let is_direct = streams.iter().all(Stream::is_direct);
        drop((streams, service));
        if !is_direct {
            return Err(anyhow!("some connections did not use the direct path"));
        }
        self.progress(&format!("measuring {connections} connections of TCP"));
        let to = SocketAddr::new(address(0), port_tcp);
        let streams = (0..connections).map(|_| self.connect_tcp(to));
        let streams = streams.collect::<anyhow::Result<Vec<TcpStream>>>()?;
        let (theirs, streams) = self.measure_many(&(), streams, bytes)?;
        drop(streams);
        self.finish(other, "the many connections")?;
        hosts.end(self)?;
        Ok((direct, theirs))
    }

    fn measure_service(
        &self,
        service: &Service,
        connections: usize,
        port: u16,
        bytes: u64,
    ) -> anyhow::Result<(EchoRates, Vec<Stream>)> {
        let to = SocketAddr::new(address(1), port);
        let streams = (0..connections).map(|_| self.connect(service, to));
        let streams = streams.collect::<anyhow::Result<Vec<Stream>>>()?;
        self.measure_many(service, streams, bytes)
    }

    fn connect(&self, service: &Service, to: SocketAddr) -> anyhow::Result<Stream> {
        let mut connecting = service.connect_polled(to)?;
        let mut poller = Poller::new(service)?;
        poller.add_pending(&connecting, 0)?;
        let until = clock::now() + PATIENCE;
        loop {
            if let Some(stream) = connecting.finish()? {
                return Ok(stream);
            }
            poller.wait(&mut Vec::new(), Some(INTERRUPT_CHECK_INTERVAL))?;
            self.check_interrupt()?;
            if clock::now() >= until {
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
        context: &Context<W>,
        sockets: Vec<W>,
        bytes: u64,
    ) -> anyhow::Result<(EchoRates, Vec<W>)> {
        let connections = sockets.len();
        let mut load = EchoClient::new(context, sockets, WINDOW)?;
        let began = Instant::now();
        let (mut sent, mut back) = (load.start()?, 0);
        let mut heard = began;
        while back < sent {
            self.check_interrupt()?;
            let sends = sent < bytes && began.elapsed() < BYTES_FOR;
            let (more, came) = load.turn(INTERRUPT_CHECK_INTERVAL, sends)?;
            (sent, back) = (sent + more, back + came);
            if came > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > Duration::from_nanos(PATIENCE.nanos()) {
                return Err(anyhow!("the other process said nothing for {PATIENCE}"));
            }
        }
        let took = began.elapsed().as_secs_f64();
        let mut sockets = load.into_sockets();
        let rates = EchoRates {
            connections,
            bytes: back,
            gigabytes: back as f64 / took / 1e9,
            trip_ns: self.trips(&mut sockets)?,
        };
        Ok((rates, sockets))
    }

    /// Returns the mean nanoseconds of a round trip; one message at a time, over each connection in turn.
    fn trips<W: TestSocket>(&self, sockets: &mut [W]) -> anyhow::Result<f64> {
        for socket in &mut *sockets {
            socket.set_waiting().context("a connection")?;
        }
        let began = Instant::now();
        let pattern = Pattern::default();
        let mut trips = 0;
        let mut buffer = [0; LEN];
        let many = sockets.len();
        // At least one round trip over each connection, so that a slow device has an average, too.
        while trips < many as u64 || trips < TRIPS && began.elapsed() < TRIPS_FOR {
            let number = trips as usize % many;
            let socket = &mut sockets[number];
            let message = pattern.at(number, trips, LEN);
            let mut sent = 0;
            while sent < LEN {
                self.check_interrupt()?;
                sent += done(socket, |socket| socket.write(&message[sent..]))?;
            }
            let mut got = 0;
            while got < LEN {
                self.check_interrupt()?;
                got += done(socket, |socket| match socket.read(&mut buffer[got..]) {
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
    socket: &mut W,
    act: impl FnOnce(&mut W) -> std::io::Result<usize>,
) -> anyhow::Result<usize> {
    match act(socket) {
        Ok(done) => Ok(done),
        Err(error) if is_to_wait(&error) => {
            socket.set_waiting().context("a connection")?;
            Ok(0)
        }
        Err(error) => Err(error).context("a connection"),
    }
}

//! Applications that are told what to do: they ask each other short questions at a rate, or hold connections over which
//! nothing goes. By the service, and with queue pairs of their own. What they take is looked at from outside.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use headworks::net::clock;
use headworks::service::{Listener, Service, ServiceError, Stream};
use headworks::verbs::{Completion, Duration, Instant, SendOp};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use super::Result;
use super::control::{next_command, reply};
use super::native_verbs::{Native, line, open, shape, sleep_on};
use crate::error::WorkloadError;
use crate::latency::Schedule;

/// Bytes of a question, and of an answer.
const SIZE: usize = 64;
/// Questions of an application that are not answered, at most.
const WINDOW: u64 = 64;
/// Bytes of a queue pair's memory to send from, as the service has at first for a connection.
const SENDS: usize = 4096;
/// Receives of a program without the service, as many as a connection of it has at first.
pub const RECEIVES: usize = 256;
/// Bytes of each of them.
pub const RECEIVE: usize = 8192;
/// How long answers may take once nobody asks any more.
const LAST: Duration = Duration::from_millis(500);
/// How long an application sleeps that waits for questions.
const LONG: Duration = Duration::from_secs(3600);

/// An application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ControlledApp {
    /// What it speaks by.
    pub by: AppTransport,
    /// Its number among those of its host; the one of that number on the other host is its peer.
    pub number: u16,
    /// Whether it connects and asks, or accepts and answers.
    pub asks: bool,
    /// Connections between the two.
    pub connections: usize,
    /// If set, it neither asks nor answers but holds connections of the service, made by so many threads.
    pub holds: Option<usize>,
}

/// What an application speaks by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AppTransport {
    /// The service. To ask or answer, it sleeps in poll(2) whenever there is nothing to do.
    Service {
        /// Its daemon's socket.
        socket: PathBuf,
        /// Where application 0 of the other host answers; the others at the ports behind.
        first: SocketAddr,
    },
    /// Verbs of its own.
    Verbs {
        /// The device.
        device: String,
        /// A thread polls its completion queue all the time, offering its processor to others; else it sleeps on a
        /// completion channel whenever there is nothing to do.
        polls: bool,
    },
    /// Nothing: it is there for what a program takes that does nothing.
    Nothing,
}

/// What an application says that it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppReply {
    /// It has attached, or opened its device.
    Ready,
    /// All connections are open.
    Connected,
    /// So many of its questions were answered.
    Answered(u64),
    /// A byte went each way over each connection.
    Used,
    /// All connections were dropped.
    Closed,
}

/// What it is told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum AppCommand {
    /// To connect.
    Connect,
    /// To ask, for so long.
    Ask {
        /// Questions per second.
        per_second: f64,
        /// Nanoseconds.
        for_ns: u64,
    },
    /// To send and receive a byte over each connection that it holds.
    Use,
    /// To drop the connections that it holds.
    Close,
}

/// Its connections.
trait AppConnections: Send {
    /// Connects them.
    fn connect(&mut self) -> Result<()>;

    /// Sends a message over a connection.
    fn send(&mut self, connection: usize) -> Result<()>;

    /// Takes messages that have come: over which connections. Waits for one no longer than until then.
    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<()>;

    /// Whether it looks all the time.
    fn polls(&self) -> bool {
        false
    }

    /// Sends and receives a byte over each.
    fn use_all(&mut self) -> Result<()> {
        Ok(())
    }

    /// Drops them.
    fn close(&mut self) {}
}

impl ControlledApp {
    pub(super) fn run(self) -> Result<()> {
        let ends: Option<Box<dyn AppConnections>> = match &self.by {
            AppTransport::Service { socket, first } => {
                Some(Box::new(ServiceStreams::attach(&self, socket, *first)?))
            }
            AppTransport::Verbs { device, polls } => {
                Some(Box::new(OwnQueuePairs::open(&self, device, *polls)?))
            }
            AppTransport::Nothing => None,
        };
        reply(&AppReply::Ready)?;
        let Some(ends) = ends else {
            while let Some(AppCommand::Connect) = next_command()? {
                reply(&AppReply::Connected)?;
            }
            return Ok(());
        };
        let (give, commands) = channel();
        let run = move || {
            if let Err(why) = self.run_commands(ends, &commands) {
                // Whoever listens sees the pipe close.
                crate::progress_bar::tell(format_args!("{why}"));
                std::process::exit(1);
            }
        };
        let named = thread::Builder::new().name("experiment-app".to_owned());
        named.spawn(run)?;
        while let Some(order) = next_command::<AppCommand>()? {
            // The thread ends with the process.
            let _ = give.send(order);
        }
        Ok(())
    }

    /// Does what it is told; once connected, an application that answers does only that.
    fn run_commands(
        &self,
        mut ends: Box<dyn AppConnections>,
        commands: &Receiver<AppCommand>,
    ) -> Result<()> {
        let mut came = Vec::new();
        loop {
            // A polling thread polls, whether it asks or not.
            let order = match ends.polls() {
                false => commands.recv().ok(),
                true => match commands.try_recv() {
                    Ok(order) => Some(order),
                    Err(TryRecvError::Disconnected) => None,
                    Err(TryRecvError::Empty) => {
                        ends.take(clock::now(), &mut came)?;
                        continue;
                    }
                },
            };
            let Some(order) = order else { return Ok(()) };
            reply(&match order {
                AppCommand::Connect => {
                    ends.connect()?;
                    AppReply::Connected
                }
                AppCommand::Ask { per_second, for_ns } => {
                    AppReply::Answered(ask(&mut *ends, per_second, Duration::from_nanos(for_ns))?)
                }
                AppCommand::Use => {
                    ends.use_all()?;
                    AppReply::Used
                }
                AppCommand::Close => {
                    ends.close();
                    AppReply::Closed
                }
            })?;
            while !self.asks && self.holds.is_none() {
                came.clear();
                ends.take(clock::now() + LONG, &mut came)?;
                came.iter().try_for_each(|at| ends.send(*at))?;
            }
        }
    }
}

/// Asks at a rate for some time, over one connection after the other. Answers how many questions were answered.
fn ask(ends: &mut dyn AppConnections, per_second: f64, time: Duration) -> Result<u64> {
    let mut came = Vec::new();
    let began = clock::now();
    let schedule = Schedule::new(began, per_second);
    let over = began + time;
    let (mut asked, mut answered) = (0, 0);
    loop {
        let now = clock::now();
        let is_over = now >= over;
        if is_over && (asked == answered || now >= over + LAST) {
            return Ok(answered);
        }
        while !is_over && asked < answered + WINDOW && now >= schedule.intended(asked) {
            ends.send(asked as usize)?;
            asked += 1;
        }
        let until = match asked < answered + WINDOW {
            _ if is_over => over + LAST,
            true => schedule.intended(asked).min(over),
            false => over,
        };
        came.clear();
        ends.take(until, &mut came)?;
        answered += came.len() as u64;
    }
}

/// Streams of the service.
struct ServiceStreams {
    service: Service,
    /// Set if it accepts.
    listener: Option<Listener>,
    peer: SocketAddr,
    connections: usize,
    holds: Option<usize>,
    streams: Vec<Stream>,
    /// Bytes of each that are no whole message yet.
    part: Vec<usize>,
}

impl ServiceStreams {
    fn attach(app: &ControlledApp, socket: &Path, mut peer: SocketAddr) -> Result<Self> {
        let service = Service::attach(socket, "app")?;
        peer.set_port(peer.port() + app.number);
        let listen = || service.listen(peer.port(), app.connections as u32);
        Ok(Self {
            listener: (!app.asks).then(listen).transpose()?,
            service,
            peer,
            connections: app.connections,
            holds: app.holds,
            streams: Vec::new(),
            part: Vec::new(),
        })
    }
}

impl AppConnections for ServiceStreams {
    fn connect(&mut self) -> Result<()> {
        self.streams.reserve_exact(self.connections);
        if let Some(listener) = &self.listener {
            for _ in 0..self.connections {
                self.streams.push(listener.accept()?);
            }
        } else {
            // Each thread opens one after the other.
            let (service, peer, threads) = (&self.service, self.peer, self.holds.unwrap_or(1));
            let open = |at| {
                (at..self.connections)
                    .step_by(threads)
                    .map(|_| service.connect(peer))
            };
            let opened: Vec<_> = thread::scope(|scope| {
                let start = |at| scope.spawn(move || open(at).collect::<Result<Vec<_>, _>>());
                let opening: Vec<_> = (0..threads).map(start).collect();
                let joined = opening.into_iter().map(|thread| thread.join());
                joined
                    .map(|opened| opened.expect("it does not panic"))
                    .collect()
            });
            for opened in opened {
                self.streams.extend(opened?);
            }
        }
        if self.holds.is_none() {
            self.part = vec![0; self.connections];
            for stream in &mut self.streams {
                stream.fd()?;
                stream.set_nonblocking(true);
            }
        }
        Ok(())
    }

    fn send(&mut self, connection: usize) -> Result<()> {
        let at = connection % self.connections;
        Ok(self.streams[at].send_all(&[7; SIZE])?)
    }

    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<()> {
        let mut fds = Vec::with_capacity(self.connections);
        for stream in &mut self.streams {
            fds.push(PollFd::from_borrowed_fd(stream.fd()?, PollFlags::IN));
        }
        sleep_on(&mut fds, until)?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut bytes = [0; SIZE * WINDOW as usize];
        for (at, _) in ready.into_iter().enumerate().filter(|(_, ready)| *ready) {
            match self.streams[at].recv(&mut bytes) {
                Ok(0) => return Err(WorkloadError("the other application is gone".to_owned())),
                Ok(len) => {
                    let all = self.part[at] + len;
                    self.part[at] = all % SIZE;
                    came.extend(std::iter::repeat_n(at, all / SIZE));
                }
                Err(ServiceError::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Both ends send before they receive, since each has its connections in an order of its own.
    fn use_all(&mut self) -> Result<()> {
        for stream in &mut self.streams {
            stream.send_all(&[1])?;
        }
        for stream in &mut self.streams {
            stream.recv(&mut [0])?;
        }
        Ok(())
    }

    fn close(&mut self) {
        self.streams = Vec::new();
    }
}

/// Queue pairs of its own.
struct OwnQueuePairs {
    native: Native,
    /// The name that the two programs meet under.
    name: String,
    calls: bool,
    polls: bool,
    found: [Completion; WINDOW as usize],
}

impl OwnQueuePairs {
    fn open(app: &ControlledApp, device: &str, polls: bool) -> Result<Self> {
        let mut shape = shape(app.connections, WINDOW as usize, RECEIVES + 1);
        shape.caps.max_inline = 0;
        shape.shared_receives = RECEIVES as u32;
        shape.channel = !polls;
        let sends = app.connections * SENDS;
        let mut native = Native::open(open(device)?, &shape, sends + RECEIVES * RECEIVE)?;
        for at in 0..app.connections {
            native.memory.fill(at * SENDS, &[7; SIZE]);
        }
        for number in 0..RECEIVES {
            native.receive(number as u64, sends + number * RECEIVE, RECEIVE)?;
        }
        Ok(Self {
            native,
            name: format!("app-{}", app.number),
            calls: app.asks,
            polls,
            found: [Completion::default(); WINDOW as usize],
        })
    }
}

impl AppConnections for OwnQueuePairs {
    fn connect(&mut self) -> Result<()> {
        let all = 0..self.native.end.queue_pairs.len();
        let met = self.native.meet(&mut line(&self.name, self.calls)?, all);
        met.map(drop)
    }

    fn send(&mut self, connection: usize) -> Result<()> {
        let at = connection % self.native.end.queue_pairs.len();
        while !self.native.ended(&mut self.found)?.is_empty() {}
        let place = (at * SENDS, SIZE);
        self.native.post(at, (0, SendOp::Send), place)
    }

    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<()> {
        loop {
            let found = self.native.received(&mut self.found)?;
            for one in found {
                let queue_pairs = &self.native.end.queue_pairs;
                came.extend(queue_pairs.iter().position(|qp| qp.qpn() == one.qpn));
                let at = queue_pairs.len() * SENDS + one.wr_id as usize * RECEIVE;
                self.native.receive(one.wr_id, at, RECEIVE)?;
            }
            if found.is_empty() && !self.polls && self.native.sleep(until)? {
                continue;
            }
            if found.is_empty() && self.polls {
                thread::yield_now();
            }
            return Ok(());
        }
    }

    fn polls(&self) -> bool {
        self.polls
    }
}

//! Applications that follow commands: they ask each other short questions at a rate, or hold idle
//! connections. They use the service, or queue pairs of their own. Their resource use is measured from
//! outside.

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

/// Bytes of a question and of an answer.
const SIZE: usize = 64;
/// Maximum number of an application's unanswered questions.
const WINDOW: u64 = 64;
/// Bytes of memory to send from for each queue pair: as many as the service has at first for a connection.
const SENDS: usize = 4096;
/// Receives of a program without the service: as many as the service has at first for a connection.
pub const RECEIVES: usize = 256;
/// Bytes of each such receive.
pub const RECEIVE: usize = 8192;
/// How long the last answers may take after the last question.
const LAST: Duration = Duration::from_millis(500);
/// How long an application sleeps at most when it waits for questions.
const LONG: Duration = Duration::from_secs(3600);

/// An application that follows commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ControlledApp {
    /// Transport of the application.
    pub by: AppTransport,
    /// Number among the applications of its host. Its peer has the same number on the other host.
    pub number: u16,
    /// Whether it connects and asks, or accepts and answers.
    pub asks: bool,
    /// Number of connections between the two peers.
    pub connections: usize,
    /// If set, the application only holds connections of the service, opened by this many threads.
    pub holds: Option<usize>,
}

/// Transport of an application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AppTransport {
    /// The service. An application that asks or answers sleeps in poll(2) whenever it has nothing to do.
    Service {
        /// Socket of its daemon.
        socket: PathBuf,
        /// Address of application 0 on the other host; application `n` listens `n` ports higher.
        first: SocketAddr,
    },
    /// Queue pairs of its own.
    Verbs {
        /// Name of the device.
        device: String,
        /// If set, a thread polls the completion queue all the time and yields its processor to others. Else
        /// the thread sleeps on a completion channel whenever it has nothing to do.
        polls: bool,
    },
    /// None. Shows what a program costs that does nothing.
    Nothing,
}

/// Reply of an application: what it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppReply {
    /// The application has attached to its daemon, or opened its device.
    Ready,
    /// All connections are open.
    Connected,
    /// Number of its questions that were answered.
    Answered(u64),
    /// A byte was sent each way over each connection.
    Used,
    /// All connections were dropped.
    Closed,
}

/// Command to an application.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum AppCommand {
    /// Connect.
    Connect,
    /// Ask questions for some time.
    Ask {
        /// Questions per second.
        per_second: f64,
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// Send and receive a byte over each connection.
    Use,
    /// Drop all connections.
    Close,
}

/// An application's connections.
trait AppConnections: Send {
    /// Opens the connections.
    fn connect(&mut self) -> Result<()>;

    /// Sends a message over connection `connection` modulo their number.
    fn send(&mut self, connection: usize) -> Result<()>;

    /// Takes messages that have come, and appends the connection of each to `came`. Waits for the first no
    /// longer than until `until`.
    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<()>;

    /// Whether [`take`](Self::take) busy-polls.
    fn polls(&self) -> bool {
        false
    }

    /// Sends and receives a byte over each connection.
    fn use_all(&mut self) -> Result<()> {
        Ok(())
    }

    /// Drops the connections.
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
                // The parent process sees the pipe close.
                crate::progress_bar::tell(format_args!("{why}"));
                std::process::exit(1);
            }
        };
        let named = thread::Builder::new().name("experiment-app".to_owned());
        named.spawn(run)?;
        while let Some(order) = next_command::<AppCommand>()? {
            // This fails only if the thread has ended, which it does with the process.
            let _ = give.send(order);
        }
        Ok(())
    }

    /// Follows commands. Once connected, an application that answers does only that.
    fn run_commands(
        &self,
        mut ends: Box<dyn AppConnections>,
        commands: &Receiver<AppCommand>,
    ) -> Result<()> {
        let mut came = Vec::new();
        loop {
            // A busy-polling thread polls between commands as well.
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

/// Asks at a rate for some time, over the connections in turn. Returns how many questions were answered.
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
    /// Set if the application accepts.
    listener: Option<Listener>,
    peer: SocketAddr,
    connections: usize,
    holds: Option<usize>,
    streams: Vec<Stream>,
    /// For each stream: bytes received of an incomplete message.
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
            // Each thread opens its connections one after the other.
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
                    .map(|opened| opened.expect("the thread does not panic"))
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

    /// Sends on all streams before it receives on any, since each end has its connections in an order of its
    /// own.
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

/// Queue pairs of the application's own.
struct OwnQueuePairs {
    native: Native,
    /// Name under which the two programs meet.
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

//! Applications that are told what to do: they ask each other short questions at a rate, or hold connections over which
//! nothing goes. By the service, and with queue pairs of their own. What they take is looked at from outside.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use headworks::service::{Listener, Service, ServiceError, Stream};
use headworks::stage::clock;
use headworks::verbs::{Completion, Duration, Instant, QpCaps, SendOp};
use headworks_baselines::Shape;
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use super::control::{say, told};
use super::native::{Native, line, open, shape, sleep_on};
use super::{Result, failed};
use crate::latency::Schedule;
use crate::transports::ArmError;

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
pub struct App {
    /// What it speaks by.
    pub by: By,
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
pub enum By {
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
pub enum Said {
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
pub enum Order {
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
trait Ends: Send {
    /// Connects them.
    fn connect(&mut self) -> Result<()>;
    /// Sends a message over a connection.
    fn send(&mut self, connection: usize) -> Result<()>;
    /// Takes messages that have come: over which connections. Waits for one no longer than until then.
    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<()>;
    /// Whether it looks all the time.
    fn polls(&self) -> bool;
}

impl App {
    pub(super) fn play(self) -> Result<()> {
        let mut ends: Option<Box<dyn Ends>> = match &self.by {
            By::Service { socket, first } if self.holds.is_some() => {
                return self.hold(socket, *first);
            }
            By::Service { socket, first } => {
                Some(Box::new(Streams::attach(&self, socket, *first)?))
            }
            By::Verbs { device, polls } => Some(Box::new(Own::open(&self, device, *polls)?)),
            By::Nothing => None,
        };
        say(&Said::Ready)?;
        let Some(Order::Connect) = told()? else {
            return Ok(());
        };
        ends.iter_mut().try_for_each(|ends| ends.connect())?;
        say(&Said::Connected)?;
        let (give, orders) = channel();
        if let Some(ends) = ends {
            let run = move || {
                let done = match self.asks {
                    true => ask(ends, &orders),
                    false => answer(ends),
                };
                if let Err(why) = done {
                    // Whoever listens sees the pipe close.
                    crate::progress::tell(format_args!("{why}"));
                    std::process::exit(1);
                }
            };
            let named = thread::Builder::new().name("experiment-app".to_owned());
            named.spawn(run).map_err(failed("a thread"))?;
        }
        while let Some(order) = told::<Order>()? {
            // The thread ends with the process.
            let _ = give.send(order);
        }
        Ok(())
    }

    /// Holds connections, as it is told to.
    fn hold(&self, socket: &Path, first: SocketAddr) -> Result<()> {
        let mut streams = Streams::attach(self, socket, first)?;
        say(&Said::Ready)?;
        while let Some(order) = told()? {
            say(&match order {
                Order::Connect => {
                    streams.open()?;
                    Said::Connected
                }
                Order::Ask { .. } => return Err(ArmError("it asks nothing".to_owned())),
                Order::Use => {
                    use_all(&mut streams.streams).map_err(failed("a byte"))?;
                    Said::Used
                }
                Order::Close => {
                    streams.streams.clear();
                    Said::Closed
                }
            })?;
        }
        Ok(())
    }
}

/// A byte each way. Both ends send before they receive, since each has its connections in an order of its own.
fn use_all(streams: &mut [Stream]) -> Result<(), ServiceError> {
    for stream in &mut *streams {
        stream.send_all(&[1])?;
    }
    for stream in streams {
        stream.recv(&mut [0])?;
    }
    Ok(())
}

/// Asks as it is ordered to.
fn ask(mut ends: Box<dyn Ends>, orders: &Receiver<Order>) -> Result<()> {
    let mut came = Vec::new();
    loop {
        let order = match ends.polls() {
            false => orders.recv().ok(),
            // A polling thread polls, whether anybody asks or not.
            true => loop {
                match orders.try_recv() {
                    Ok(order) => break Some(order),
                    Err(TryRecvError::Disconnected) => break None,
                    Err(TryRecvError::Empty) => ends.take(clock::now(), &mut came)?,
                }
            },
        };
        let (per_second, for_ns) = match order {
            Some(Order::Ask { per_second, for_ns }) => (per_second, for_ns),
            Some(_) => continue,
            None => return Ok(()),
        };
        let began = clock::now();
        let schedule = Schedule::new(began, per_second);
        let over = began + Duration::from_nanos(for_ns);
        let (mut asked, mut answered, mut next) = (0, 0, 0);
        loop {
            let now = clock::now();
            let is_over = now >= over;
            if is_over && (asked == answered || now >= over + LAST) {
                break;
            }
            while !is_over && asked < answered + WINDOW && now >= schedule.intended(asked) {
                ends.send(next)?;
                asked += 1;
                next += 1;
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
        say(&Said::Answered(answered))?;
    }
}

/// Answers, until the process ends.
fn answer(mut ends: Box<dyn Ends>) -> Result<()> {
    let mut came = Vec::new();
    loop {
        came.clear();
        ends.take(clock::now() + LONG, &mut came)?;
        for connection in &came {
            ends.send(*connection)?;
        }
    }
}

/// Streams of the service.
struct Streams {
    service: Service,
    /// Set if it accepts.
    listener: Option<Listener>,
    peer: SocketAddr,
    connections: usize,
    threads: usize,
    streams: Vec<Stream>,
    /// Bytes of each that are no whole message yet.
    part: Vec<usize>,
}

impl Streams {
    fn attach(app: &App, socket: &Path, mut peer: SocketAddr) -> Result<Self> {
        let service = Service::attach(socket, "app").map_err(failed("attaching"))?;
        peer.set_port(peer.port() + app.number);
        let listen = || service.listen(peer.port(), app.connections as u32);
        let listener = (!app.asks).then(listen).transpose();
        Ok(Self {
            listener: listener.map_err(failed("listening"))?,
            service,
            peer,
            connections: app.connections,
            threads: app.holds.unwrap_or(1),
            streams: Vec::new(),
            part: vec![0; app.connections],
        })
    }

    /// Opens all streams: of those that connect, each thread opens one after the other.
    fn open(&mut self) -> Result<()> {
        let (service, peer) = (&self.service, self.peer);
        let opened: Result<Vec<Stream>, ServiceError> = match &self.listener {
            Some(listener) => (0..self.connections).map(|_| listener.accept()).collect(),
            None => thread::scope(|scope| {
                let share = |at| (self.connections + at) / self.threads;
                let open = |count| move || (0..count).map(|_| service.connect(peer)).collect();
                let opening = (0..self.threads).map(|at| scope.spawn(open(share(at))));
                let opening: Vec<_> = opening.collect();
                let joined = opening.into_iter().map(|thread| thread.join());
                let opened = joined.map(|opened| opened.expect("it does not panic"));
                let opened: Result<Vec<Vec<Stream>>, ServiceError> = opened.collect();
                Ok(opened?.into_iter().flatten().collect())
            }),
        };
        self.streams = opened.map_err(failed("connecting"))?;
        Ok(())
    }
}

impl Ends for Streams {
    fn connect(&mut self) -> Result<()> {
        self.open()?;
        for stream in &mut self.streams {
            stream.fd().map_err(failed("a descriptor"))?;
            stream.set_nonblocking(true);
        }
        Ok(())
    }

    fn send(&mut self, connection: usize) -> Result<()> {
        let at = connection % self.streams.len();
        let sent = self.streams[at].send_all(&[7; SIZE]);
        sent.map_err(failed("sending"))
    }

    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<()> {
        let mut fds = Vec::with_capacity(self.streams.len());
        for stream in &mut self.streams {
            let fd = stream.fd().map_err(failed("a descriptor"))?;
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        sleep_on(&mut fds, until)?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut bytes = [0; SIZE * WINDOW as usize];
        for (at, _) in ready.into_iter().enumerate().filter(|(_, ready)| *ready) {
            match self.streams[at].recv(&mut bytes) {
                Ok(0) => return Err(ArmError("the other application is gone".to_owned())),
                Ok(len) => {
                    let all = self.part[at] + len;
                    self.part[at] = all % SIZE;
                    came.extend(std::iter::repeat_n(at, all / SIZE));
                }
                Err(ServiceError::WouldBlock) => {}
                Err(error) => return Err(ArmError::at("receiving", error)),
            }
        }
        Ok(())
    }

    fn polls(&self) -> bool {
        false
    }
}

/// Queue pairs of its own.
struct Own {
    native: Native,
    /// The name that the two programs meet under.
    name: String,
    calls: bool,
    polls: bool,
    connections: usize,
    numbers: HashMap<u32, usize>,
}

impl Own {
    fn open(app: &App, device: &str, polls: bool) -> Result<Self> {
        let connections = app.connections;
        let plain = shape(connections, WINDOW as usize, RECEIVES + 1);
        let shape = Shape {
            caps: QpCaps {
                max_inline: 0,
                ..plain.caps
            },
            shared_receives: RECEIVES as u32,
            channel: !polls,
            ..plain
        };
        let sends = connections * SENDS;
        let mut native = Native::open(open(device)?, &shape, sends + RECEIVES * RECEIVE)?;
        for at in 0..connections {
            native.memory.fill(at * SENDS, &[7; SIZE]);
        }
        for number in 0..RECEIVES {
            native.receive(number as u64, sends + number * RECEIVE, RECEIVE)?;
        }
        Ok(Self {
            name: format!("app-{}", app.number),
            calls: app.asks,
            numbers: native.numbers(),
            native,
            polls,
            connections,
        })
    }
}

impl Ends for Own {
    fn connect(&mut self) -> Result<()> {
        let mut line = line(&self.name, self.calls)?;
        self.native.meet(&mut line, 0..self.connections)?;
        Ok(())
    }

    fn send(&mut self, connection: usize) -> Result<()> {
        let at = connection % self.connections;
        let mut found = [Completion::default(); WINDOW as usize];
        while !self.native.ended(&mut found)?.is_empty() {}
        let place = (at * SENDS, SIZE);
        self.native.post(at, (0, SendOp::Send), place)
    }

    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<()> {
        let mut found = [Completion::default(); WINDOW as usize];
        loop {
            let found = self.native.received(&mut found)?;
            for one in found {
                let at = self.connections * SENDS + one.wr_id as usize * RECEIVE;
                self.native.receive(one.wr_id, at, RECEIVE)?;
                came.extend(self.numbers.get(&one.qpn.raw()));
            }
            if !found.is_empty() {
                return Ok(());
            }
            if self.polls {
                thread::yield_now();
                return Ok(());
            }
            if !self.native.sleep(until)? {
                return Ok(());
            }
        }
    }

    fn polls(&self) -> bool {
        self.polls
    }
}

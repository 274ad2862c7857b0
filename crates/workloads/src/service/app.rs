//! Applications that ask each other short questions now and then, over several connections: by the service, and with
//! queue pairs of each one's own. What they take is looked at from outside.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use headworks::service::{Service, ServiceError, Stream};
use headworks::stage::clock;
use headworks::verbs::{Duration, Instant, QpCaps, SendOp};
use headworks_baselines::Shape;
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use super::control::{say, told};
use super::failed;
use super::native::{self, Native, sleep_on};
use crate::latency::Schedule;
use crate::transports::ArmError;

/// Bytes of a question, and of an answer.
const SIZE: usize = 64;
/// Questions of an application that are not answered, at most.
const WINDOW: u64 = 64;
/// A queue pair's memory to send from, and receives of a program's, with the bytes of each: as the service has them at
/// first for a connection's stream each way, and in a daemon.
const SENDS: usize = 4096;
/// Receives of a program without the service, as many as a connection of it has at first.
pub const RECEIVES: usize = 256;
/// Bytes of each of them.
pub const RECEIVE: usize = 8192;
/// How long answers may take that nobody asks for any more.
const LAST: Duration = Duration::from_millis(500);
/// How long somebody sleeps who waits for questions.
const LONG: Duration = Duration::from_secs(3600);

/// An application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct App {
    /// What it speaks by.
    pub by: By,
    /// Its number among those of its host; the one of that number on the other is its peer.
    pub number: u16,
    /// Whether it asks, or answers.
    pub asks: bool,
    /// Connections between the two.
    pub connections: usize,
}

/// What an application speaks by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum By {
    /// The service: it sleeps in poll(2) whenever there is nothing to do.
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
    /// Nothing: it is there, for what a program takes that does nothing.
    Nothing,
}

/// What it says that it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// It has attached, or opened its device, and can be called.
    Ready,
    /// It is connected.
    Connected,
    /// So many of its questions were answered.
    Answered(u64),
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
}

/// Its connections.
trait Ends: Send {
    /// Sends a message over a connection.
    fn send(&mut self, connection: usize) -> Result<(), ArmError>;
    /// Takes messages that have come, each of which says over which connection; waits for one no longer than until then.
    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<(), ArmError>;
    /// Whether it looks all the time.
    fn polls(&self) -> bool;
}

impl App {
    pub(super) fn play(self) -> Result<(), ArmError> {
        let asks = self.asks;
        let connect = self.prepare()?;
        say(&Said::Ready)?;
        let Some(Order::Connect) = told()? else {
            return Ok(());
        };
        let ends = connect()?;
        say(&Said::Connected)?;
        let (give, orders) = channel();
        if let Some(ends) = ends {
            let run = move || match asks {
                true => ask(ends, &orders),
                false => answer(ends),
            };
            let run = move || {
                if let Err(why) = run() {
                    // Whoever listens hears that nothing more comes.
                    crate::progress::tell(format_args!("{why}"));
                    std::process::exit(1);
                }
            };
            let named = thread::Builder::new().name("experiment-app".to_owned());
            named.spawn(run).map_err(|e| ArmError::at("a thread", e))?;
        }
        while let Some(order) = told::<Order>()? {
            // The thread ends with the process.
            let _ = give.send(order);
        }
        Ok(())
    }

    /// Everything before it connects, and how that is done.
    #[expect(
        clippy::type_complexity,
        reason = "a way to go on, of one of three kinds"
    )]
    fn prepare(
        self,
    ) -> Result<Box<dyn FnOnce() -> Result<Option<Box<dyn Ends>>, ArmError>>, ArmError> {
        let Self {
            number,
            asks,
            connections,
            ..
        } = self;
        match self.by {
            By::Nothing => Ok(Box::new(|| Ok(None))),
            By::Service { socket, mut first } => {
                let service = Service::attach(&socket, "app").map_err(failed("attaching"))?;
                first.set_port(first.port() + number);
                let listener = match asks {
                    true => None,
                    false => {
                        let listener = service.listen(first.port(), connections as u32);
                        Some(listener.map_err(failed("listening"))?)
                    }
                };
                Ok(Box::new(move || {
                    let one = |_| match &listener {
                        None => service.connect(first),
                        Some(listener) => listener.accept(),
                    };
                    let streams: Result<Vec<_>, _> = (0..connections).map(one).collect();
                    let streams = streams.map_err(failed("connecting"))?;
                    Ok(Some(Box::new(Streams::new(streams)?)))
                }))
            }
            By::Verbs { device, polls } => {
                let name = format!("app-{number}");
                let own = Own::open(&device, polls, connections)?;
                let listener = match asks {
                    true => None,
                    false => Some(native::listen(&name)?),
                };
                Ok(Box::new(move || {
                    let mut own = own;
                    let mut line = match &listener {
                        None => native::call(&name)?,
                        Some(listener) => native::accept(listener)?,
                    };
                    own.native.meet(&mut line, 0..connections)?;
                    Ok(Some(Box::new(own)))
                }))
            }
        }
    }
}

/// Asks as it is ordered to.
fn ask(mut ends: Box<dyn Ends>, orders: &Receiver<Order>) -> Result<(), ArmError> {
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
            Some(Order::Connect) => continue,
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
fn answer(mut ends: Box<dyn Ends>) -> Result<(), ArmError> {
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
    streams: Vec<Stream>,
    /// Bytes of each that are no whole message yet.
    part: Vec<usize>,
}

impl Streams {
    fn new(mut streams: Vec<Stream>) -> Result<Self, ArmError> {
        for stream in &mut streams {
            stream.fd().map_err(failed("a descriptor"))?;
            stream.set_nonblocking(true);
        }
        Ok(Self {
            part: vec![0; streams.len()],
            streams,
        })
    }
}

impl Ends for Streams {
    fn send(&mut self, connection: usize) -> Result<(), ArmError> {
        let at = connection % self.streams.len();
        let sent = self.streams[at].send_all(&[7; SIZE]);
        sent.map_err(failed("sending"))
    }

    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<(), ArmError> {
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
    polls: bool,
    connections: usize,
    numbers: std::collections::HashMap<u32, usize>,
}

impl Own {
    fn open(device: &str, polls: bool, connections: usize) -> Result<Self, ArmError> {
        let shape = Shape {
            queue_pairs: connections,
            caps: QpCaps {
                max_send_wr: WINDOW as u32,
                max_recv_wr: 1,
                max_inline: 0,
                ..QpCaps::default()
            },
            cq_depth: (RECEIVES + 1) as u32,
            shared_receives: RECEIVES as u32,
            channel: !polls,
        };
        let sends = connections * SENDS;
        let len = sends + RECEIVES * RECEIVE;
        let mut native = Native::open(device, &shape, len, SIZE)?;
        for at in 0..connections {
            native.touch(at * SENDS, SIZE);
        }
        for number in 0..RECEIVES {
            native.receive(number as u64, sends + number * RECEIVE, RECEIVE)?;
        }
        Ok(Self {
            numbers: native.numbers(),
            native,
            polls,
            connections,
        })
    }
}

impl Ends for Own {
    fn send(&mut self, connection: usize) -> Result<(), ArmError> {
        let at = connection % self.connections;
        while !self.native.ended()?.is_empty() {}
        self.native.post(at, SendOp::Send, at * SENDS)
    }

    fn take(&mut self, until: Instant, came: &mut Vec<usize>) -> Result<(), ArmError> {
        loop {
            let found = self.native.received()?;
            let found: Vec<_> = found.iter().map(|one| (one.wr_id, one.qpn.raw())).collect();
            for (number, qpn) in &found {
                let at = self.connections * SENDS + *number as usize * RECEIVE;
                self.native.receive(*number, at, RECEIVE)?;
                came.extend(self.numbers.get(qpn));
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

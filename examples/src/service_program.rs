//! Common code of the examples that use a daemon: startup, arguments, and blocking calls that end at Ctrl-C.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;

use headworks::net::{Interrupt, Waiter, WakeReason, clock};
use headworks::service::{Listener, Reader, Service, ServiceError, Stream, Writer};
use headworks::verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags};

use crate::local_hosts::{self, DAEMON, ParentWatch};
use crate::program::{self, Failure, Outcome};

/// How long a call waits before it checks for Ctrl-C.
const GLANCE: Duration = Duration::from_millis(100);
/// How long a server may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a program, as [`program::run`] does. If an example started it, it may run a daemon instead, and it
/// ends silently when its parent does.
pub fn run(name: &str, program: impl FnOnce(&[&str], &Interrupt) -> Outcome) -> ExitCode {
    program::run(name, |args, interrupt| {
        let starter = ParentWatch::watch()?;
        let done = match *args {
            [DAEMON, host, port, socket] => local_hosts::run_daemon(host, port, socket, interrupt),
            _ => program(args, interrupt),
        };
        let is_gone = starter.is_gone();
        if is_gone || done.is_err() {
            // A daemon that ended before this process makes its calls fail, perhaps before the parent's end is noticed.
            starter.leave();
        }
        if !is_gone {
            return done;
        }
        // Its parent is gone, so nobody needs its result, and what it uses may be gone as well.
        Ok(())
    })
}

/// Command line arguments: words, and options with a value each.
pub struct Args<'a> {
    /// The arguments that are not options.
    pub words: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Args<'a> {
    /// Parses the arguments. Fails with `usage` if an option is not in `known` or has no value.
    pub fn of(args: &[&'a str], known: &[&str], usage: &str) -> Outcome<Self> {
        let mut all = Self {
            words: Vec::new(),
            options: BTreeMap::new(),
        };
        let mut rest = args.iter().copied();
        while let Some(arg) = rest.next() {
            if !arg.starts_with("--") {
                all.words.push(arg);
            } else if let (true, Some(value)) = (known.contains(&arg), rest.next()) {
                all.options.insert(arg, value);
            } else {
                return Err(Failure::BadInput(usage.to_owned()));
            }
        }
        Ok(all)
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        self.options.get(name).copied()
    }

    /// The value of option `name`, a count from 1 to `most`.
    pub fn count(&self, name: &str, default: u64, most: u64) -> Outcome<u64> {
        match self.option(name).map_or(Ok(default), program::count)? {
            count if count <= most => Ok(count),
            count => Err(Failure::BadInput(format!("{name} {count}: 1 to {most}"))),
        }
    }

    /// The value of `--port`; 0, which stands for any free port, if it is not given.
    pub fn port(&self) -> Outcome<u16> {
        let Some(port) = self.option("--port") else {
            return Ok(0);
        };
        port.parse()
            .map_err(|_| Failure::BadInput(format!("{port:?} is no port: 0 to 65535")))
    }

    /// The value of `--to`: addresses with ports, separated by commas.
    pub fn to(&self) -> Outcome<Vec<SocketAddr>> {
        let all = self.option("--to").unwrap_or_default().split(',');
        all.map(|one| {
            one.parse()
                .map_err(|_| Failure::BadInput(format!("--to {one:?}: no IP:PORT")))
        })
        .collect()
    }

    /// Attaches to the daemon at `--socket`, or to the daemon of this host if it is not given.
    pub fn service(&self, name: &str) -> Outcome<Service> {
        Ok(match self.option("--socket") {
            Some(socket) => Service::attach(Path::new(socket), name)?,
            None => Service::open(name)?,
        })
    }
}

/// A stream, or a half of one, whose calls give up at a deadline.
pub trait WithDeadline {
    /// Sets when waiting calls give up.
    fn set_deadline(&mut self, deadline: Option<Instant>);
}

/// A stream, or its receiving half.
pub trait RecvWithDeadline: WithDeadline {
    /// Receives bytes, as [`Reader::recv`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::recv`].
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError>;
}

/// A stream, or its sending half.
pub trait SendWithDeadline: WithDeadline {
    /// Sends bytes, as [`Writer::send`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Writer::send`].
    fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError>;
}

impl WithDeadline for Stream {
    fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.set_deadline(deadline);
    }
}

impl WithDeadline for Reader {
    fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.set_deadline(deadline);
    }
}

impl WithDeadline for Writer {
    fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.set_deadline(deadline);
    }
}

impl RecvWithDeadline for Stream {
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.recv(into)
    }
}

impl RecvWithDeadline for Reader {
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.recv(into)
    }
}

impl SendWithDeadline for Stream {
    fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        self.send(bytes)
    }
}

impl SendWithDeadline for Writer {
    fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        self.send(bytes)
    }
}

/// Calls `act` until it succeeds, fails or Ctrl-C is pressed. `act` is called again after its deadline, so it
/// must be a single call, or safe to repeat.
pub fn retry_until_interrupted<S: WithDeadline, T>(
    side: &mut S,
    interrupt: &Interrupt,
    mut act: impl FnMut(&mut S) -> Result<T, ServiceError>,
) -> Outcome<T> {
    loop {
        // Checked before every call, because a call that never waits would not end at Ctrl-C otherwise.
        check_interrupt(interrupt)?;
        match act(side) {
            Err(ServiceError::Deadline) => side.set_deadline(Some(clock::now() + GLANCE)),
            done => return Ok(done?),
        }
    }
}

/// Fails after Ctrl-C.
pub fn check_interrupt(interrupt: &Interrupt) -> Outcome {
    match interrupt.is_raised() {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}

/// Joins the threads of a scope and collects their results.
pub fn join_all<T>(threads: Vec<ScopedJoinHandle<'_, Outcome<T>>>) -> Outcome<Vec<T>> {
    let ended = threads.into_iter().map(ScopedJoinHandle::join);
    let done = ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)));
    done.collect()
}

/// Waits for the next connection.
pub fn accept(listener: &Listener, interrupt: &Interrupt) -> Outcome<Stream> {
    loop {
        check_interrupt(interrupt)?;
        match listener.accept_by(Some(clock::now() + GLANCE)) {
            Err(ServiceError::Deadline) => {}
            accepted => return Ok(ready(accepted?)),
        }
    }
}

/// Connects to the listener at `to`.
pub fn connect(service: &Service, to: SocketAddr, interrupt: &Interrupt) -> Outcome<Stream> {
    let mut connecting = service.connect_start(to)?;
    let until = clock::now() + PATIENCE;
    loop {
        if let Some(mut stream) = connecting.finish()? {
            stream.set_nonblocking(false);
            return Ok(ready(stream));
        }
        let mut fds = [
            PollFd::new(&connecting, PollFlags::OUT),
            PollFd::new(interrupt, PollFlags::IN),
        ];
        let woken = Waiter::default().wait_polling(&mut fds, Some(until), &mut |_| false)?;
        check_interrupt(interrupt)?;
        if woken == WakeReason::Deadline {
            return Err(Failure::Failed(format!("{to} does not answer")));
        }
    }
}

/// Gives the stream a deadline, so that its calls return often enough to check for Ctrl-C.
fn ready(mut stream: Stream) -> Stream {
    stream.set_deadline(Some(clock::now() + GLANCE));
    stream
}

/// Sends all of the bytes.
pub fn send(
    stream: &mut impl SendWithDeadline,
    mut bytes: &[u8],
    interrupt: &Interrupt,
) -> Outcome {
    while !bytes.is_empty() {
        let sent = retry_until_interrupted(stream, interrupt, |stream| stream.send(bytes))?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Fills `into`. Returns `false` if the stream had ended before the first byte.
pub fn receive(
    from: &mut impl RecvWithDeadline,
    into: &mut [u8],
    interrupt: &Interrupt,
) -> Outcome<bool> {
    let mut got = 0;
    while got < into.len() {
        match retry_until_interrupted(from, interrupt, |from| from.recv(&mut into[got..]))? {
            0 if got == 0 => return Ok(false),
            0 => return Err(program::gone()),
            len => got += len,
        }
    }
    Ok(true)
}

/// Fills `into`; fails if the stream ends first.
pub fn receive_exact(
    from: &mut impl RecvWithDeadline,
    into: &mut [u8],
    interrupt: &Interrupt,
) -> Outcome {
    match receive(from, into, interrupt)? || into.is_empty() {
        true => Ok(()),
        false => Err(program::gone()),
    }
}

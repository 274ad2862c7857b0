//! Around the examples that use a daemon: how they are started, their arguments, and calls that wait and end at Ctrl-C.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;

use headworks::net::{Interrupt, Waiter, WakeReason, clock};
use headworks::service::{Listener, Reader, Service, ServiceError, Stream};
use headworks::verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags};

use crate::local_hosts::{self, DAEMON, ParentWatch};
use crate::program::{self, Failure, Outcome};

/// How long a call waits before it is looked for Ctrl-C.
const GLANCE: Duration = Duration::from_millis(100);
/// How long whoever is called may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a program, as [`program::run`] does. Started by itself it may be a daemon, and ends without a word when whoever
/// started it does.
pub fn run(name: &str, program: impl FnOnce(&[&str], &Interrupt) -> Outcome) -> ExitCode {
    program::run(name, |args, interrupt| {
        let starter = ParentWatch::watch()?;
        let done = match *args {
            [DAEMON, host, port, socket] => local_hosts::run_daemon(host, port, socket, interrupt),
            _ => program(args, interrupt),
        };
        if !starter.is_gone() {
            return done;
        }
        starter.leave();
        // Nobody has any use for it, and what it uses may be gone as well.
        Ok(())
    })
}

/// Arguments: words, and options with a value each.
pub struct Args<'a> {
    /// The words.
    pub words: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Args<'a> {
    /// Takes them apart. An option that is none of the `known` ones, or has no value, is answered with `usage`.
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

    /// A number of something, from 1 to `most`.
    pub fn count(&self, name: &str, default: u64, most: u64) -> Outcome<u64> {
        match self.option(name).map_or(Ok(default), program::count)? {
            count if count <= most => Ok(count),
            count => Err(Failure::BadInput(format!("{name} {count}: 1 to {most}"))),
        }
    }

    /// `--port`; 0, for any that is free, where there is none.
    pub fn port(&self) -> Outcome<u16> {
        let Some(port) = self.option("--port") else {
            return Ok(0);
        };
        port.parse()
            .map_err(|_| Failure::BadInput(format!("{port:?} is no port: 0 to 65535")))
    }

    /// `--to`: addresses and ports, with commas between them.
    pub fn to(&self) -> Outcome<Vec<SocketAddr>> {
        let all = self.option("--to").unwrap_or_default().split(',');
        all.map(|one| {
            one.parse()
                .map_err(|_| Failure::BadInput(format!("--to {one:?}: no IP:PORT")))
        })
        .collect()
    }

    /// The daemon at `--socket`, or the one that serves this host.
    pub fn service(&self, name: &str) -> Outcome<Service> {
        Ok(match self.option("--socket") {
            Some(socket) => Service::attach(Path::new(socket), name)?,
            None => Service::open(name)?,
        })
    }
}

/// A connection, or what comes over one.
pub trait RecvWithDeadline {
    /// Calls wait no longer than until then.
    fn set_deadline(&mut self, deadline: Option<Instant>);

    /// As [`Reader::recv`].
    ///
    /// # Errors
    ///
    /// As there.
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError>;
}

impl RecvWithDeadline for Stream {
    fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.set_deadline(deadline);
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.recv(into)
    }
}

impl RecvWithDeadline for Reader {
    fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.set_deadline(deadline);
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.recv(into)
    }
}

/// Does something with a connection once it can be done, or until Ctrl-C. `act` is called again where its time was up,
/// and must be one call, or as good as one.
pub fn retry_until_interrupted<S: RecvWithDeadline, T>(
    side: &mut S,
    interrupt: &Interrupt,
    mut act: impl FnMut(&mut S) -> Result<T, ServiceError>,
) -> Outcome<T> {
    loop {
        // Also for one who never waits.
        check_interrupt(interrupt)?;
        match act(side) {
            Err(ServiceError::Deadline) => side.set_deadline(Some(clock::now() + GLANCE)),
            done => return Ok(done?),
        }
    }
}

/// Fails once Ctrl-C was pressed.
pub fn check_interrupt(interrupt: &Interrupt) -> Outcome {
    match interrupt.is_raised() {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}

/// What the threads of a scope come to.
pub fn join_all<T>(threads: Vec<ScopedJoinHandle<'_, Outcome<T>>>) -> Outcome<Vec<T>> {
    let ended = threads.into_iter().map(ScopedJoinHandle::join);
    let done = ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)));
    done.collect()
}

/// The next connection, whenever it comes.
pub fn accept(listener: &Listener, interrupt: &Interrupt) -> Outcome<Stream> {
    loop {
        check_interrupt(interrupt)?;
        match listener.accept_by(Some(clock::now() + GLANCE)) {
            Err(ServiceError::Deadline) => {}
            accepted => return Ok(ready(accepted?)),
        }
    }
}

/// A connection to whoever listens there.
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

/// One whose calls come back now and then.
fn ready(mut stream: Stream) -> Stream {
    stream.set_deadline(Some(clock::now() + GLANCE));
    stream
}

/// Sends all of the bytes.
pub fn send(stream: &mut Stream, mut bytes: &[u8], interrupt: &Interrupt) -> Outcome {
    while !bytes.is_empty() {
        let sent = retry_until_interrupted(stream, interrupt, |stream| stream.send(bytes))?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Receives as many bytes as fit; none, and `false`, where the stream has ended.
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

/// The same, of which there must be that much.
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

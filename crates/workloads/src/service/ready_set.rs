//! Which of many connections are ready: with epoll(7) for TCP, with a [`Poller`] for streams of the service.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use headworks::service::{Interest, PollEvent, Poller, Service, Stream};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::{Result, failed};

/// Events taken at a time.
const EVENTS: usize = 64;

/// Connections that a thread waits for, each with a number.
pub trait ReadySet<S>: Sized {
    /// The service that streams belong to; nothing for TCP connections.
    type Context: Clone + Send + 'static;

    /// Makes an empty set.
    ///
    /// # Errors
    ///
    /// The kernel or the service refuses it.
    fn new(context: &Self::Context) -> Result<Self>;

    /// Adds a connection. Its calls return at once from now on.
    ///
    /// # Errors
    ///
    /// The connection cannot be watched.
    fn add(&mut self, socket: &mut S, number: usize, interest: Interest) -> Result<()>;

    /// Changes what a connection is watched for.
    ///
    /// # Errors
    ///
    /// The connection is not watched.
    fn modify(&mut self, socket: &mut S, number: usize, interest: Interest) -> Result<()>;

    /// Appends the numbers of the ready connections, after waiting for up to `limit` for the first.
    ///
    /// # Errors
    ///
    /// The wait fails.
    fn wait(&mut self, limit: Option<Duration>, numbers: &mut Vec<usize>) -> Result<()>;
}

/// TCP connections, in an epoll(7) instance.
pub struct EpollSet {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl ReadySet<TcpStream> for EpollSet {
    type Context = ();

    fn new((): &()) -> Result<Self> {
        let made = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Self {
            epoll: made.map_err(failed("epoll"))?,
            events: Vec::with_capacity(EVENTS),
        })
    }

    fn add(&mut self, socket: &mut TcpStream, number: usize, interest: Interest) -> Result<()> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(number as u64);
        let added = epoll::add(&self.epoll, socket.as_fd(), data, flags(interest));
        added.map_err(failed("epoll"))
    }

    fn modify(&mut self, socket: &mut TcpStream, number: usize, interest: Interest) -> Result<()> {
        let data = epoll::EventData::new_u64(number as u64);
        let changed = epoll::modify(&self.epoll, socket.as_fd(), data, flags(interest));
        changed.map_err(failed("epoll"))
    }

    fn wait(&mut self, limit: Option<Duration>, numbers: &mut Vec<usize>) -> Result<()> {
        self.events.clear();
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let into = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, into, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed("epoll")(error)),
        }
        numbers.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.receive);
    flags.set(epoll::EventFlags::OUT, interest.send);
    flags
}

/// Streams of the service, in a [`Poller`].
pub struct PollerSet {
    poller: Poller,
    events: Vec<PollEvent>,
}

impl ReadySet<Stream> for PollerSet {
    type Context = Service;

    fn new(service: &Service) -> Result<Self> {
        Ok(Self {
            poller: Poller::new(service)?,
            events: Vec::new(),
        })
    }

    fn add(&mut self, stream: &mut Stream, number: usize, interest: Interest) -> Result<()> {
        Ok(self.poller.add(stream, number as u64, interest)?)
    }

    fn modify(&mut self, stream: &mut Stream, _: usize, interest: Interest) -> Result<()> {
        Ok(self.poller.modify(stream, interest)?)
    }

    fn wait(&mut self, limit: Option<Duration>, numbers: &mut Vec<usize>) -> Result<()> {
        self.poller.wait(&mut self.events, limit)?;
        numbers.extend(self.events.iter().map(|event| event.key as usize));
        Ok(())
    }
}

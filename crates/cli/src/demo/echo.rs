//! The other application of the many connections: it sends back what it receives.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, anyhow};
use headworks::net::{Waiter, clock};
use headworks::service::Service;
use rustix::event::epoll;
use rustix::io::Errno;

use super::PATIENCE;
use super::daemons::print_number;
use super::many_connections::{TestSocket, is_to_wait, watch};

const EVENTS: usize = 64;
/// Bytes received at a time.
const PIECE: usize = 64 << 10;

/// Echoes over `connections` connections of the service, and, when those have ended, over as many of TCP.
pub(super) fn run(socket: &str, connections: usize) -> anyhow::Result<()> {
    let service = Service::attach(Path::new(socket), "demo-echo")?;
    let listener = service.listen(0, connections as u32)?;
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("TCP")?;
    print_number(listener.port())?;
    print_number(tcp.local_addr().context("TCP")?.port())?;
    // The wait is limited: the process that is to connect, or its daemon, may be gone.
    let until = || clock::now() + PATIENCE;
    let streams = (0..connections).map(|_| Ok(listener.accept_by(Some(until()))?));
    echo(streams.collect::<anyhow::Result<Vec<_>>>()?)?;
    let accept = |_| {
        let stdin = std::io::stdin();
        let fds = [tcp.as_fd(), stdin.as_fd()];
        let woken = Waiter::default().wait(&fds, Some(until()), |_| false);
        woken.context("waiting for a connection")?;
        tcp.set_nonblocking(true).context("TCP")?;
        let accepted = tcp.accept();
        Ok(accepted.context("nobody connects")?.0)
    };
    echo(
        (0..connections)
            .map(accept)
            .collect::<anyhow::Result<Vec<_>>>()?,
    )
}

struct Echo<W> {
    wire: W,
    /// Bytes received, of which the first `sent` were sent back.
    pending: Vec<u8>,
    sent: usize,
}

/// Echoes until all connections have ended.
fn echo<W: TestSocket>(wires: Vec<W>) -> anyhow::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
    let mut all = Vec::new();
    for (number, mut wire) in (0..).zip(wires) {
        wire.set_waiting(false).context("a connection")?;
        watch(&epoll, wire.fd()?, number)?;
        all.push(Some(Echo {
            wire,
            pending: Vec::new(),
            sent: 0,
        }));
    }
    let mut left = all.len();
    let mut piece = vec![0; PIECE];
    let mut events = Vec::with_capacity(EVENTS);
    while left > 0 {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("epoll"),
        }
        for event in &events {
            let number = event.data.u64();
            let slot = all.get_mut(number as usize);
            let slot = slot.ok_or_else(|| anyhow!("an event of an unknown connection"))?;
            let Some(one) = slot else {
                continue;
            };
            let was_full = !one.pending.is_empty();
            if !one.pass(&mut piece)? {
                *slot = None;
                left -= 1;
                continue;
            }
            let is_full = !one.pending.is_empty();
            if is_full != was_full {
                one.rewatch(&epoll, number, is_full)?;
            }
        }
    }
    Ok(())
}

impl<W: TestSocket> Echo<W> {
    /// Sends back as much as possible. Returns `false` if the connection has ended.
    fn pass(&mut self, piece: &mut [u8]) -> anyhow::Result<bool> {
        loop {
            while self.sent < self.pending.len() {
                match self.wire.write(&self.pending[self.sent..]) {
                    Ok(sent) => self.sent += sent,
                    Err(error) if is_to_wait(&error) => return Ok(true),
                    Err(error) => return Err(error).context("sending back"),
                }
            }
            self.pending.clear();
            self.sent = 0;
            match self.wire.read(piece) {
                Ok(0) => return Ok(false),
                Ok(len) => self.pending.extend_from_slice(&piece[..len]),
                Err(error) if is_to_wait(&error) => return Ok(true),
                Err(error) => return Err(error).context("receiving"),
            }
        }
    }

    /// Watches for room if bytes wait to be sent back, else for bytes to receive.
    fn rewatch(&mut self, epoll: &OwnedFd, number: u64, is_full: bool) -> anyhow::Result<()> {
        let flags = match is_full {
            true => epoll::EventFlags::OUT,
            false => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(number);
        epoll::modify(epoll, self.wire.fd()?, data, flags).context("epoll")
    }
}

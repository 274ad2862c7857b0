//! Sockets of pairs: by them two applications of one machine wake each other, and learn of each other's death.
//!
//! The bytes that go through such a socket mean nothing: whoever reads them looks at everything that may have changed.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::fork::CloseOnFork;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{ServiceError, system};

/// Maximum number of reads of a socket in a row.
const READS: usize = 16;

/// This application's end of the socket of a pair.
#[derive(Debug)]
pub(super) struct PairSocket {
    /// A forked child does not keep it, so the peer notices this process's death even if a child lives on.
    fd: CloseOnFork<OwnedFd>,
    is_peer_gone: Arc<AtomicBool>,
}

impl PairSocket {
    /// Wakes the thread of the peer that sleeps on its end.
    pub(super) fn wake(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // A full socket is readable already. A failed one is noticed by whoever listens.
        let _ = send(&self.fd, &[0], flags);
    }

    /// Reads what has come. Returns whether the peer is still there.
    fn drain(&self) -> bool {
        let mut bytes = [0; 256];
        // A hostile peer may fill the socket faster than it is read. What is left is reported again.
        for _ in 0..READS {
            match recv(&self.fd, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((len, _)) if len < bytes.len() => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        true
    }
}

/// The sockets of all pairs of a session.
#[derive(Debug)]
pub(super) struct PairSockets {
    epoll: OwnedFd,
    all: BTreeMap<u32, Arc<PairSocket>>,
    /// Number of pairs whose peer was found gone.
    pub(super) gone: u64,
}

impl PairSockets {
    pub(super) fn new() -> Result<Self, ServiceError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Self {
            epoll: epoll.map_err(|errno| system("epoll")(errno.into()))?,
            all: BTreeMap::new(),
            gone: 0,
        })
    }

    /// Adds the socket of a pair. `is_peer_gone` is set when the peer's process has ended.
    pub(super) fn add(
        &mut self,
        pair: u32,
        fd: OwnedFd,
        is_peer_gone: Arc<AtomicBool>,
    ) -> Result<(), ServiceError> {
        let data = epoll::EventData::new_u64(pair.into());
        let added = epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN);
        added.map_err(|errno| system("epoll")(errno.into()))?;
        let socket = PairSocket {
            fd: CloseOnFork::new(fd),
            is_peer_gone,
        };
        self.all.insert(pair, Arc::new(socket));
        Ok(())
    }

    pub(super) fn get(&self, pair: u32) -> Option<Arc<PairSocket>> {
        self.all.get(&pair).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Reads what has come at all sockets. Returns whether there was anything, and the pairs whose peer is gone.
    pub(super) fn drain(&mut self) -> (bool, Vec<u32>) {
        let mut events = Vec::with_capacity(64);
        let none = rustix::event::Timespec::default();
        let into = rustix::buffer::spare_capacity(&mut events);
        // An error is as good as nothing: the sockets are looked at again.
        let _ = epoll::wait(&self.epoll, into, Some(&none));
        let mut gone = Vec::new();
        for event in &events {
            let pair = event.data.u64() as u32;
            if let Some(socket) = self.all.get(&pair)
                && !socket.drain()
            {
                socket.is_peer_gone.store(true, Ordering::Release);
                // It stays readable for good.
                let _ = epoll::delete(&self.epoll, &socket.fd);
                self.all.remove(&pair);
                gone.push(pair);
                self.gone += 1;
            }
        }
        (!events.is_empty(), gone)
    }
}

impl AsFd for PairSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

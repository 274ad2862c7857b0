//! The side of a process that hands its descriptors to others of its user, over its socket in the registry.
//!
//! A client sends a [`Request`] and gets one reply: a status, and the descriptors if there are any. The socket is
//! in a directory that only this user can reach, so a client is not asked who it is.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use headworks_wire::{Decoder, Encoder, Malformed};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::descriptor_passing::{self, SENT_MAX};
use crate::fork::CloseOnFork;

/// Most clients served at a time. Others wait to be accepted.
const CLIENTS_MAX: usize = 64;
/// How long a client may be silent.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// What a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorRequest {
    /// Kind of the descriptors; the object decides what it means.
    pub kind: u32,
    /// Number of what is asked for, among those of its kind.
    pub number: u32,
    /// Generation of the number.
    pub generation: u32,
}

/// An object whose descriptors other processes may have.
pub trait DescriptorSource: Send + Sync {
    /// Returns new descriptors for what is asked, at most [`SENT_MAX`]; `None` if there is no such thing (any
    /// more). Must not wait for another process.
    ///
    /// # Errors
    ///
    /// No more descriptors can be opened.
    fn descriptors(&self, request: DescriptorRequest) -> io::Result<Option<Vec<OwnedFd>>>;
}

/// Bytes of a request: object, kind, number, generation, and the constant [`MAGIC`].
pub(super) const REQUEST_BYTES: usize = 24;
/// Bytes of a reply: its status, and how many descriptors come with it.
pub(super) const REPLY_BYTES: usize = 8;
const MAGIC: &[u8; 4] = b"HWd1";
/// Object that stands for the process itself: its only descriptor is its pidfd.
const PROCESS: u64 = 0;

/// Status of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyStatus {
    /// This many descriptors come with it. A receiver that has no room for them gets fewer.
    Here(u32),
    /// There is no such thing.
    Gone,
    /// The process has it and cannot hand it out; the error is an errno.
    Failed(i32),
}

impl ReplyStatus {
    pub(super) fn encode(self) -> [u8; REPLY_BYTES] {
        let (word, count) = match self {
            Self::Here(count) => (0, count),
            Self::Gone => (-1, 0),
            Self::Failed(errno) => (errno.max(1), 0),
        };
        Encoder::fixed()
            .u32(word.cast_unsigned())
            .u32(count)
            .finish()
    }

    pub(super) fn decode(bytes: [u8; REPLY_BYTES]) -> Self {
        let mut of = Decoder::new(&bytes);
        match (of.u32().map(u32::cast_signed), of.u32()) {
            (Ok(0), Ok(count)) => Self::Here(count),
            (Ok(errno @ 1..), _) => Self::Failed(errno),
            _ => Self::Gone,
        }
    }
}

/// What a request names: this process, or part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The pidfd of the process.
    Process,
    /// Descriptors of an object.
    Object(u64, DescriptorRequest),
}

impl Request {
    pub(super) fn encode(self) -> [u8; REQUEST_BYTES] {
        let (object, request) = match self {
            Self::Process => (PROCESS, DescriptorRequest::default()),
            Self::Object(object, request) => (object, request),
        };
        let to = Encoder::fixed().u64(object).u32(request.kind);
        to.u32(request.number)
            .u32(request.generation)
            .raw(MAGIC)
            .finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut of = Decoder::new(bytes);
        let object = of.u64()?;
        let request = DescriptorRequest {
            kind: of.u32()?,
            number: of.u32()?,
            generation: of.u32()?,
        };
        if of.array()? != *MAGIC {
            return Err(Malformed("its magic"));
        }
        of.end()?;
        match object {
            PROCESS if request == DescriptorRequest::default() => Ok(Self::Process),
            PROCESS => Err(Malformed("a process has no such descriptor")),
            object => Ok(Self::Object(object, request)),
        }
    }
}

/// The sources by object.
type Sources = Mutex<HashMap<u64, Weak<dyn DescriptorSource>>>;

/// The thread that answers, until dropped.
pub(super) struct DescriptorServer {
    shared: Arc<Shared>,
}

struct Shared {
    listener: CloseOnFork<UnixListener>,
    /// Readable when the thread is to end.
    stop: OwnedFd,
    pidfd: Option<OwnedFd>,
    sources: Sources,
}

impl std::fmt::Debug for DescriptorServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DescriptorServer").finish_non_exhaustive()
    }
}

impl DescriptorServer {
    pub(super) fn start(
        listener: CloseOnFork<UnixListener>,
        pidfd: Option<OwnedFd>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            listener,
            stop,
            pidfd,
            sources: Mutex::default(),
        });
        let served = shared.clone();
        std::thread::Builder::new()
            .name("headworks-fds".into())
            .spawn(move || served.run())?;
        Ok(Self { shared })
    }

    pub(super) fn add(&self, object: u64, source: Weak<dyn DescriptorSource>) {
        let mut sources = self.shared.sources();
        sources.retain(|_, known| known.strong_count() > 0);
        sources.insert(object, source);
    }

    pub(super) fn source(&self, object: u64) -> Option<Arc<dyn DescriptorSource>> {
        self.shared.sources().get(&object)?.upgrade()
    }
}

impl Drop for DescriptorServer {
    fn drop(&mut self) {
        // The thread is not waited for: it may be the one that drops the last source, and this with it.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
    }
}

/// A connected client.
struct Client {
    socket: OwnedFd,
    heard: Instant,
}

impl Shared {
    fn sources(&self) -> MutexGuard<'_, HashMap<u64, Weak<dyn DescriptorSource>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let is_full = clients.len() >= CLIENTS_MAX;
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
            let listened = match is_full {
                true => PollFlags::empty(),
                false => PollFlags::IN,
            };
            fds.push(PollFd::new(&self.listener, listened));
            fds.extend(
                clients
                    .iter()
                    .map(|client| PollFd::new(&client.socket, PollFlags::IN)),
            );
            let longest = Timespec {
                tv_sec: IDLE_MAX.as_secs() as i64,
                tv_nsec: 0,
            };
            // An idle server with no client sleeps until somebody comes.
            let wait = (!clients.is_empty()).then_some(&longest);
            match poll(&mut fds, wait) {
                Ok(_) | Err(Errno::INTR) => {}
                // No memory for the call. Nothing else can be done about it.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            let came: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if came[0] {
                return;
            }
            let now = Instant::now();
            let mut looked = came[2..].iter();
            clients.retain_mut(|client| match looked.next() {
                Some(true) => {
                    client.heard = now;
                    self.answer(client.socket.as_fd())
                }
                _ => now - client.heard < IDLE_MAX,
            });
            if came[1] && !is_full {
                match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(socket) => clients.push(Client { socket, heard: now }),
                    Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                    // No more descriptors. The client stays in the backlog.
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        }
    }

    /// Answers one request. Returns whether the client may send more.
    fn answer(&self, socket: BorrowedFd<'_>) -> bool {
        let mut bytes = [0; REQUEST_BYTES];
        let came = match descriptor_passing::receive(socket, &mut bytes) {
            Ok(came) => came,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        let Ok(request) = Request::decode(&bytes[..came.len]) else {
            return false;
        };
        let found = match request {
            Request::Process => match &self.pidfd {
                Some(pidfd) => pidfd.try_clone().map(|fd| Some(vec![fd])),
                None => Ok(None),
            },
            Request::Object(object, request) => {
                let source = self.sources().get(&object).and_then(Weak::upgrade);
                source.map_or(Ok(None), |source| source.descriptors(request))
            }
        };
        let (status, descriptors) = match found {
            Ok(Some(mut descriptors)) => {
                descriptors.truncate(SENT_MAX);
                (ReplyStatus::Here(descriptors.len() as u32), descriptors)
            }
            Ok(None) => (ReplyStatus::Gone, Vec::new()),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                (ReplyStatus::Failed(errno), Vec::new())
            }
        };
        let handed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        descriptor_passing::send(socket, &status.encode(), &handed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_and_replies_are_read_as_they_were_written() {
        let part = DescriptorRequest {
            kind: 1,
            number: u32::MAX,
            generation: 7,
        };
        for request in [Request::Process, Request::Object(u64::MAX - 1, part)] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for status in [
            ReplyStatus::Here(3),
            ReplyStatus::Gone,
            ReplyStatus::Failed(24),
        ] {
            assert_eq!(ReplyStatus::decode(status.encode()), status);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_request_of_another_form(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(&request.encode()[..], &bytes[..]);
            }
        }
    }
}

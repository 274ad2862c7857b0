//! The side of a process that asks another one for descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::descriptor_server::{
    DescriptorRequest, REPLY_BYTES, REQUEST_BYTES, ReplyStatus, Request,
};
use super::member::{self, Member};
use super::named_sockets::connect_now;
use super::{Registry, RegistryError};
use crate::descriptor_passing::{self, peer_credentials};
use crate::liveness::ProcessId;

/// How long a process has to answer. A living one answers in microseconds; one that does not is stopped.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Interval at which a silent process's entry is looked at: it may be dead, with a child that keeps its socket.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// A connection over which another process hands out descriptors.
#[derive(Debug)]
pub struct DescriptorClient {
    registry: Arc<Registry>,
    process: ProcessId,
    path: Path,
    limit: Duration,
}

/// How the process is reached.
enum Path {
    /// It is this one.
    Own(Arc<Member>),
    Socket(OwnedFd),
    /// It did not answer. A late answer must not be taken for that to another question.
    Unanswered,
}

/// Why there is no answer.
enum AskError {
    /// The process closed the connection: it is dead, or it lost patience while this process was stopped.
    Closed,
    /// It did not answer in time.
    Unanswered,
    Failed(io::Error),
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Socket(_) => "Socket",
            Self::Unanswered => "Unanswered",
        })
    }
}

impl DescriptorClient {
    /// Connects to a process. Returns `None` if it is dead, or serves nothing.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Unanswered`] if it does not accept within [`ANSWER_LIMIT`], and errors of the system.
    pub fn connect(
        registry: &Arc<Registry>,
        process: ProcessId,
    ) -> Result<Option<Self>, RegistryError> {
        Self::connect_within(registry, process, ANSWER_LIMIT)
    }

    /// [`connect`](Self::connect), with a limit of its own for connecting, and for each answer.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    pub fn connect_within(
        registry: &Arc<Registry>,
        process: ProcessId,
        limit: Duration,
    ) -> Result<Option<Self>, RegistryError> {
        let path = match registry.own_member().filter(|own| own.id() == process) {
            Some(own) => Some(Path::Own(own)),
            None => dial(registry, process, limit)?.map(Path::Socket),
        };
        Ok(path.map(|path| Self {
            registry: registry.clone(),
            process,
            path,
            limit,
        }))
    }

    /// Returns a pidfd of the process; `None` if the process has none, or is dead.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Unanswered`] if it does not answer in time, and errors of the system.
    pub fn pidfd(&mut self) -> Result<Option<OwnedFd>, RegistryError> {
        // This process outlives its own questions.
        if self.is_own() {
            return Ok(None);
        }
        let found = self.ask(Request::Process)?;
        Ok(found.and_then(|descriptors| descriptors.into_iter().next()))
    }

    /// Returns the descriptors of a part of `object`; `None` if there is no such thing, or the process is dead.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Unanswered`] if it does not answer in time, and errors of the system on either side.
    pub fn descriptors(
        &mut self,
        object: u64,
        request: DescriptorRequest,
    ) -> Result<Option<Vec<OwnedFd>>, RegistryError> {
        match &self.path {
            Path::Own(member) => match member.source(object) {
                None => Ok(None),
                Some(source) => source
                    .descriptors(request)
                    .map_err(|error| self.failed(error)),
            },
            Path::Socket(_) | Path::Unanswered => self.ask(Request::Object(object, request)),
        }
    }

    /// Returns whether it is connected to this process itself.
    pub fn is_own(&self) -> bool {
        matches!(self.path, Path::Own(_))
    }

    /// Returns the process's id in this process's PID namespace; `None` if that namespace does not have it.
    pub fn pid(&self) -> Option<u32> {
        match &self.path {
            Path::Own(_) => Some(std::process::id()),
            Path::Socket(socket) => peer_credentials(socket).ok()?.pid,
            Path::Unanswered => None,
        }
    }

    fn ask(&mut self, request: Request) -> Result<Option<Vec<OwnedFd>>, RegistryError> {
        for _ in 0..2 {
            let Path::Socket(socket) = &self.path else {
                break;
            };
            match self.ask_once(socket, request) {
                Ok(found) => return Ok(found),
                Err(AskError::Failed(error)) => return Err(self.failed(error)),
                Err(AskError::Unanswered) => break,
                Err(AskError::Closed) if !self.registry.is_alive(self.process) => return Ok(None),
                Err(AskError::Closed) => match dial(&self.registry, self.process, self.limit)? {
                    Some(socket) => self.path = Path::Socket(socket),
                    None => return Ok(None),
                },
            }
        }
        self.path = Path::Unanswered;
        Err(self.registry.unanswered(self.process, self.limit))
    }

    fn ask_once(
        &self,
        socket: &OwnedFd,
        request: Request,
    ) -> Result<Option<Vec<OwnedFd>>, AskError> {
        match descriptor_passing::send(socket, &request.encode(), &[]) {
            Ok(REQUEST_BYTES) => {}
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                return Err(AskError::Closed);
            }
            Err(errno) => return Err(AskError::Failed(errno.into())),
        }
        let begin = Instant::now();
        let mut bytes = [0; REPLY_BYTES];
        loop {
            match descriptor_passing::receive(socket, &mut bytes) {
                Ok(came) if came.len == REPLY_BYTES => {
                    return match ReplyStatus::decode(bytes) {
                        ReplyStatus::Here(count) if came.descriptors.len() == count as usize => {
                            Ok(Some(came.descriptors))
                        }
                        // The kernel leaves out those that this process has no room for.
                        ReplyStatus::Here(_) => Err(AskError::Failed(Errno::MFILE.into())),
                        ReplyStatus::Gone => Ok(None),
                        ReplyStatus::Failed(errno) => {
                            Err(AskError::Failed(io::Error::from_raw_os_error(errno)))
                        }
                    };
                }
                Ok(_) | Err(Errno::CONNRESET) => return Err(AskError::Closed),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(AskError::Failed(errno.into())),
            }
            let left = self.limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(AskError::Unanswered);
            }
            wait_readable(socket, left.min(LOOK_EVERY));
            // A child that was made by a raw system call may keep a dead process's socket.
            if begin.elapsed() > LOOK_EVERY && !self.registry.is_alive(self.process) {
                return Ok(None);
            }
        }
    }

    fn failed(&self, source: io::Error) -> RegistryError {
        RegistryError::io("getting a descriptor in", self.registry.path(), source)
    }
}

impl Registry {
    /// Returns the error of a process that did not answer within `limit`.
    fn unanswered(&self, process: ProcessId, limit: Duration) -> RegistryError {
        let who = match self.process_record(process) {
            Ok(Some(record)) => record.to_string(),
            _ => "a process".to_owned(),
        };
        RegistryError::Unanswered {
            who,
            millis: limit.as_millis() as u64,
        }
    }
}

/// Connects to a process's socket. Returns `None` if it is dead, or serves nothing.
fn dial(
    registry: &Arc<Registry>,
    process: ProcessId,
    limit: Duration,
) -> Result<Option<OwnedFd>, RegistryError> {
    let Some(dir) = registry.open_existing_directory()? else {
        return Ok(None);
    };
    let socket = member::socket_name(process.slot);
    let address = registry.socket_address(&dir, &socket)?;
    let begin = Instant::now();
    loop {
        match connect_now(&address) {
            Ok(stream) => {
                // The slot may have another holder by now. Its sources would not know our objects, but its
                // pidfd would be taken for the other's.
                let lives = registry.is_alive_in(&dir, process);
                return Ok(lives.then(|| stream.into()));
            }
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if !registry.is_alive_in(&dir, process) => return Ok(None),
            Err(Errno::AGAIN) if begin.elapsed() < limit => thread::sleep(RETRY_EVERY),
            Err(Errno::AGAIN) => return Err(registry.unanswered(process, limit)),
            Err(errno) => return Err(registry.failed(&socket, errno)),
        }
    }
}

/// Waits until `socket` is readable, at most `limit`.
fn wait_readable(socket: &OwnedFd, limit: Duration) {
    let limit = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    if poll(&mut fds, Some(&limit)).is_err() {
        thread::sleep(RETRY_EVERY);
    }
}

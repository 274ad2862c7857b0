//! Rendezvous by name: a process listens under a name, and others connect to it.
//!
//! The owner of a name is recorded in a file beside its socket, because the socket alone does not show
//! whether the owner lives, and a test connection would disturb a live owner.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, renameat, stat, unlinkat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::record::{owner, parse_prefix, prefix};
use super::{Entry, Member, Registry, RegistryError, check_name, temporary};
use crate::ProcessId;
use crate::fork::{CloseOnFork, ForkGeneration};

/// How long a connecting process waits while the listener's queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(5);
/// Most connections that may wait to be accepted; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Size in bytes of a socket address's path, including its NUL (`sun_path`).
const SOCKET_PATH_BYTES_MAX: usize = 108;

/// A name that this process listens under, until dropped.
#[derive(Debug)]
pub struct NameClaim {
    listener: CloseOnFork<UnixListener>,
    path: PathBuf,
    socket: String,
    owner: Entry,
    member: Arc<Member>,
    generation: ForkGeneration,
}

impl Registry {
    /// Listens under `name`, unless a live process does. Replaces the socket of a dead one.
    pub fn bind_name(self: &Arc<Self>, name: &str) -> Result<NameClaim, RegistryError> {
        check_name(name)?;
        let member = self.join()?;
        let locked = self.lock()?;
        let claim = self.bind_locked(&locked.dir, name, &member);
        if claim.is_err() {
            self.remove_if_empty(&locked);
        }
        claim
    }

    /// Connects to the live process that listens under `name`.
    pub fn connect_name(&self, name: &str) -> Result<UnixStream, RegistryError> {
        self.connect_name_within(name, CONNECT_TIMEOUT)
    }

    /// [`connect_name`](Self::connect_name), with a limit of its own for a listener that accepts nothing.
    pub fn connect_name_within(
        &self,
        name: &str,
        limit: Duration,
    ) -> Result<UnixStream, RegistryError> {
        check_name(name)?;
        let nobody = || RegistryError::NobodyListening {
            name: name.to_owned(),
            registry: self.path.clone(),
        };
        let dir = self.open_existing_directory()?.ok_or_else(nobody)?;
        let entry = owner_file(name);
        let bytes = self.read_entry(&dir, &entry)?.ok_or_else(nobody)?;
        if !owner(&bytes).is_some_and(|process| self.is_alive_in(&dir, process)) {
            return Err(nobody());
        }
        parse_prefix(&entry, &bytes)?;
        let socket = socket_file(name);
        let address = self.socket_address(&dir, &socket)?;
        let start = Instant::now();
        loop {
            match connect_now(&address) {
                Ok(stream) => return Ok(stream),
                Err(Errno::NOENT | Errno::CONNREFUSED) => return Err(nobody()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if start.elapsed() < limit => thread::sleep(RETRY_EVERY),
                Err(Errno::AGAIN) => {
                    let what = format!("the listener under the name {name} accepted no connection");
                    return Err(RegistryError::Busy {
                        what,
                        seconds: limit.as_secs(),
                    });
                }
                Err(errno) => return Err(self.failed(&socket, errno)),
            }
        }
    }

    fn bind_locked(
        self: &Arc<Self>,
        dir: &OwnedFd,
        name: &str,
        member: &Arc<Member>,
    ) -> Result<NameClaim, RegistryError> {
        if let Some(process) = self.clean_name(dir, name)? {
            return Err(RegistryError::NameInUse {
                name: name.to_owned(),
                who: self.describe(process),
            });
        }
        let owner = self.write_entry(dir, &owner_file(name), &owner_bytes(member.id()))?;
        let socket = socket_file(name);
        let listener = self.listen_renamed(dir, &socket).inspect_err(|_| {
            let _ = unlinkat(dir, &socket, AtFlags::empty());
            self.remove_entry(dir, &owner);
        })?;
        Ok(NameClaim {
            listener,
            path: self.path.join(&socket),
            socket,
            owner,
            member: member.clone(),
            generation: ForkGeneration::current(),
        })
    }

    /// Returns a description of a process for people.
    pub(super) fn describe(&self, process: ProcessId) -> String {
        match self.process_record(process) {
            Ok(Some(record)) => record.to_string(),
            _ => "another process".to_owned(),
        }
    }

    /// Makes a socket that appears only once it is listened on, so that a process that sees it may connect.
    fn listen_renamed(
        &self,
        dir: &OwnedFd,
        socket: &str,
    ) -> Result<CloseOnFork<UnixListener>, RegistryError> {
        let temporary = temporary(dir);
        let listener = self.listen(dir, &temporary)?;
        renameat(dir, &temporary, dir, socket).map_err(|errno| {
            let _ = unlinkat(dir, &temporary, AtFlags::empty());
            self.failed(socket, errno)
        })?;
        Ok(listener)
    }

    /// Makes a socket in the directory and listens on it.
    pub(super) fn listen(
        &self,
        dir: &OwnedFd,
        socket: &str,
    ) -> Result<CloseOnFork<UnixListener>, RegistryError> {
        let address = self.socket_address(dir, socket)?;
        let listen = || -> Result<_, Errno> {
            let listener = CloseOnFork::open(|| {
                socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
                    .map(UnixListener::from)
            })?;
            bind(&listener, &address)?;
            listen(&listener, BACKLOG)?;
            ioctl_fionbio(&listener, false)?;
            Ok(listener)
        };
        listen().map_err(|errno| {
            let _ = unlinkat(dir, socket, AtFlags::empty());
            self.failed(socket, errno)
        })
    }

    /// Returns the address of a socket in the directory. Its own path is used if that fits, because tools such as
    /// `ss` show it to users, and it works without `/proc`.
    pub(super) fn socket_address(
        &self,
        dir: &OwnedFd,
        socket: &str,
    ) -> Result<SocketAddrUnix, RegistryError> {
        let path = self.path.join(socket);
        if path.as_os_str().len() < SOCKET_PATH_BYTES_MAX {
            return SocketAddrUnix::new(path).map_err(|errno| self.failed(socket, errno));
        }
        // By way of the open directory: short, however deep the directory is.
        let by_number = format!("/proc/self/fd/{}", dir.as_raw_fd());
        if stat(&by_number).is_err() {
            return Err(RegistryError::PathTooLong {
                path: self.path.clone(),
                max: SOCKET_PATH_BYTES_MAX
                    - 1
                    - (path.as_os_str().len() - self.path.as_os_str().len()),
            });
        }
        let path = Path::new(&by_number).join(socket);
        SocketAddrUnix::new(path).map_err(|errno| self.failed(socket, errno))
    }

    /// Returns the live process that listens under `name`. If there is none, removes the name's files. The
    /// caller holds the lock.
    pub(super) fn clean_name(
        &self,
        dir: &OwnedFd,
        name: &str,
    ) -> Result<Option<ProcessId>, RegistryError> {
        let bytes = self.read_entry(dir, &owner_file(name))?.unwrap_or_default();
        let lives = |process: &ProcessId| self.is_alive_in(dir, *process);
        if let Some(process) = owner(&bytes).filter(lives) {
            return Ok(Some(process));
        }
        let _ = unlinkat(dir, socket_file(name), AtFlags::empty());
        let _ = unlinkat(dir, owner_file(name), AtFlags::empty());
        Ok(None)
    }
}

impl NameClaim {
    /// Returns the listener to accept connections from.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        let registry = self.member.registry();
        if let Ok(Some(locked)) = registry.lock_existing() {
            // The socket is ours as long as the owner file is: a process that replaces one replaces both.
            if registry.remove_entry(&locked.dir, &self.owner) {
                let _ = unlinkat(&locked.dir, &self.socket, AtFlags::empty());
            }
            registry.remove_if_empty(&locked);
        }
    }
}

/// Connects without waiting for room in the listener's queue.
pub(super) fn connect_now(address: &SocketAddrUnix) -> Result<UnixStream, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    connect(&socket, address)?;
    ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

/// Returns the owner file's content: the process, and a number that is different for each claim that the
/// process makes.
fn owner_bytes(us: ProcessId) -> Vec<u8> {
    static CLAIMS: AtomicU64 = AtomicU64::new(0);
    let claim = CLAIMS.fetch_add(1, Ordering::Relaxed);
    prefix(us).u64(claim).finish()
}

fn socket_file(name: &str) -> String {
    format!("n.{name}")
}

fn owner_file(name: &str) -> String {
    format!("o.{name}")
}

//! Rendezvous by name: a process listens under a name, and others connect to it.
//!
//! The owner of a name is recorded in a file beside its socket, because the socket alone does not show
//! whether the owner lives. A child forked by a dead owner keeps the socket open, and a test connection
//! would disturb a live owner.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::record::{owner, parse_prefix, prefix};
use super::{Entry, Registry, RegistryError, check_name, path_in, temporary};
use crate::ProcessId;
use crate::fork::ForkGeneration;

/// How long a connecting process waits while the listener's queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// Size in bytes of a socket address's path, including its NUL (`sun_path`).
const SOCKET_PATH_BYTES_MAX: usize = 108;

/// A name that this process listens under, until dropped.
#[derive(Debug)]
pub struct NameClaim {
    listener: UnixListener,
    path: PathBuf,
    registry: Arc<Registry>,
    socket: String,
    owner: Entry,
    generation: ForkGeneration,
}

impl Registry {
    /// Listens under `name`, unless a live process does. Replaces the socket of a dead one.
    pub fn bind_name(self: &Arc<Self>, name: &str) -> Result<NameClaim, RegistryError> {
        check_name(name)?;
        let locked = self.lock()?;
        let claim = self.bind_locked(&locked.dir, name);
        if claim.is_err() {
            self.remove_if_empty(&locked);
        }
        claim
    }

    /// Connects to the live process that listens under `name`.
    pub fn connect_name(&self, name: &str) -> Result<UnixStream, RegistryError> {
        check_name(name)?;
        let nobody = || RegistryError::NobodyListening {
            name: name.to_owned(),
        };
        let dir = self.open_existing_directory()?.ok_or_else(nobody)?;
        let entry = owner_file(name);
        let bytes = self.read_entry(&dir, &entry)?.ok_or_else(nobody)?;
        if !owner(&bytes).is_some_and(|process| process.is_alive()) {
            return Err(nobody());
        }
        parse_prefix(&entry, &bytes)?;
        let socket = socket_file(name);
        let address = SocketAddrUnix::new(path_in(&dir, &socket));
        let address = address.map_err(|errno| self.failed(&socket, errno))?;
        let start = Instant::now();
        loop {
            match connect_now(&address) {
                Ok(stream) => return Ok(stream),
                Err(Errno::NOENT | Errno::CONNREFUSED) => return Err(nobody()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if start.elapsed() < CONNECT_TIMEOUT => {
                    thread::sleep(RETRY_EVERY)
                }
                Err(Errno::AGAIN) => {
                    let what = format!("the listener under the name {name} accepted no connection");
                    return Err(RegistryError::Busy {
                        what,
                        seconds: CONNECT_TIMEOUT.as_secs(),
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
    ) -> Result<NameClaim, RegistryError> {
        if let Some(process) = self.clean_name(dir, name)? {
            return Err(RegistryError::NameInUse {
                name: name.to_owned(),
                pid: process.pid,
            });
        }
        let io = |source| RegistryError::io("listening at", &self.path.join(name), source);
        let us = ProcessId::current().map_err(io)?;
        let owner = self.write_entry(dir, &owner_file(name), &owner_bytes(us))?;
        let socket = socket_file(name);
        let listener = self.listen(dir, &socket).map_err(|error| {
            let _ = unlinkat(dir, &socket, AtFlags::empty());
            self.remove_entry(dir, &owner);
            match Errno::from_io_error(&error) {
                Some(errno) => self.failed(&socket, errno),
                None => io(error),
            }
        })?;
        Ok(NameClaim {
            listener,
            path: self.path.join(&socket),
            registry: self.clone(),
            socket,
            owner,
            generation: ForkGeneration::current(),
        })
    }

    /// Makes a socket that appears only once it is listened on, so that a process that sees it may connect.
    fn listen(&self, dir: &OwnedFd, socket: &str) -> io::Result<UnixListener> {
        let temporary = temporary(dir);
        let path = self.path.join(&temporary);
        // Bind under the directory's own path if it fits, because tools such as `ss` show that path to users.
        let listener = if path.as_os_str().len() < SOCKET_PATH_BYTES_MAX {
            UnixListener::bind(path)
        } else {
            UnixListener::bind(path_in(dir, &temporary))
        };
        let renamed = listener.and_then(|listener| {
            renameat(dir, &temporary, dir, socket)?;
            Ok(listener)
        });
        if renamed.is_err() {
            let _ = unlinkat(dir, &temporary, AtFlags::empty());
        }
        renamed
    }

    /// Returns the live process that listens under `name`. If there is none, removes the name's files. The
    /// caller holds the lock.
    pub(super) fn clean_name(
        &self,
        dir: &OwnedFd,
        name: &str,
    ) -> Result<Option<ProcessId>, RegistryError> {
        let bytes = self.read_entry(dir, &owner_file(name))?.unwrap_or_default();
        if let Some(process) = owner(&bytes).filter(ProcessId::is_alive) {
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
        if let Ok(Some(locked)) = self.registry.lock_existing() {
            // The socket is ours as long as the owner file is: a process that replaces one replaces both.
            if self.registry.remove_entry(&locked.dir, &self.owner) {
                let _ = unlinkat(&locked.dir, &self.socket, AtFlags::empty());
            }
            self.registry.remove_if_empty(&locked);
        }
    }
}

/// Connects without waiting for room in the listener's queue.
fn connect_now(address: &SocketAddrUnix) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, address)?;
    ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

/// Returns the owner file's content: the process id, and a number that is different for each claim that the
/// process makes.
fn owner_bytes(us: ProcessId) -> Vec<u8> {
    static CLAIMS: AtomicU64 = AtomicU64::new(0);
    let mut bytes = prefix(us);
    bytes.extend(CLAIMS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    bytes
}

fn socket_file(name: &str) -> String {
    format!("n.{name}")
}

fn owner_file(name: &str) -> String {
    format!("o.{name}")
}

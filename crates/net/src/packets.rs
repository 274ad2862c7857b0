//! Packets between processes of one machine, with an open file where one is needed, over a Unix socket under
//! a path. Only dialing blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use headworks_shm::descriptor_passing::{self, ReceivedMessage, peer_credentials};
use headworks_shm::fork::CloseOnFork;
use headworks_verbs::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use crate::clock;

/// Longest packet in bytes.
pub const PACKET_MAX: usize = 4096;
/// Most connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long [`PacketSocket::dial`] waits for a place in a full backlog.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// One end of a packet connection. Readable ([`AsFd`]) when a packet waits or the other end is gone. A forked child
/// does not keep it, so the other end notices this process's death even if a child lives on.
#[derive(Debug)]
pub struct PacketSocket(CloseOnFork<OwnedFd>);

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// The packet's data.
    pub bytes: Vec<u8>,
    /// The files that came with it; an honest sender sends at most one.
    pub files: Vec<OwnedFd>,
}

/// Result of [`PacketSocket::recv`].
#[derive(Debug)]
pub enum RecvOutcome {
    /// A packet.
    Packet(Packet),
    /// No packet yet.
    WouldBlock,
    /// The other end is gone, and no packet is left.
    Closed,
}

fn socket() -> io::Result<CloseOnFork<OwnedFd>> {
    let make = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None);
    Ok(CloseOnFork::open(make)?)
}

impl PacketSocket {
    /// Connects as [`PacketSocket::dial_within`] does, within 10 seconds.
    ///
    /// # Errors
    ///
    /// As [`PacketSocket::dial_within`].
    pub fn dial(path: &Path) -> io::Result<Self> {
        Self::dial_within(path, DIAL_TIMEOUT)
    }

    /// Connects to the process that listens at `path`. While too many others wait to be accepted, waits for
    /// `patience`.
    ///
    /// # Errors
    ///
    /// The errors of connect(2): nobody listens, the path does not exist, permission is denied.
    /// [`io::ErrorKind::WouldBlock`]: too many others waited all the time.
    pub fn dial_within(path: &Path, patience: Duration) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let make = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = CloseOnFork::open(make)?;
        let address = SocketAddrUnix::new(path)?;
        let until = clock::now() + patience;
        loop {
            // A timeout of zero would mean none.
            let left = until.since(clock::now()).nanos().max(1_000_000);
            let left = std::time::Duration::from_nanos(left);
            set_socket_timeout(&socket, Timeout::Send, Some(left))?;
            match connect(&socket, &address) {
                Err(Errno::INTR) => {}
                connected => break connected?,
            }
        }
        set_socket_timeout(&socket, Timeout::Send, None)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(socket))
    }

    /// User id of the process at the other end, as the kernel recorded it when the connection was made.
    ///
    /// # Errors
    ///
    /// The errors of getsockopt(2).
    pub fn user(&self) -> io::Result<u32> {
        Ok(peer_credentials(&self.0)?.user)
    }

    /// Process id of the other end, as the kernel recorded it when the connection was made; `None` if this process's
    /// PID namespace does not have it.
    ///
    /// # Errors
    ///
    /// The errors of getsockopt(2).
    pub fn pid(&self) -> io::Result<Option<u32>> {
        Ok(peer_credentials(&self.0)?.pid)
    }

    /// Sends a packet, with a file if there is one. Returns `false` if there is no room for it now.
    ///
    /// # Errors
    ///
    /// The other end is gone, and the other errors of sendmsg(2).
    pub fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        match descriptor_passing::send(&self.0, bytes, file.as_slice()) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives the next packet. A packet longer than [`PACKET_MAX`], which no honest sender sends, is
    /// returned without its data.
    ///
    /// All files that came with the packet are returned, and none is closed here: the last close of a file
    /// may block.
    ///
    /// # Errors
    ///
    /// The errors of recvmsg(2).
    pub fn recv(&self) -> io::Result<RecvOutcome> {
        let mut bytes = [0; PACKET_MAX];
        let mut receive = || match descriptor_passing::receive(&self.0, &mut bytes) {
            // The other end closed before it had received everything. The kernel reports this once, ahead of
            // what the other end had sent.
            Err(Errno::CONNRESET) => descriptor_passing::receive(&self.0, &mut bytes),
            came => came,
        };
        let came = match receive() {
            // The kernel looks at the queue first and at the shutdown then. A packet that was sent in between is still
            // to come.
            Ok(end) if end.len == 0 && end.descriptors.is_empty() => receive(),
            came => came,
        };
        let ReceivedMessage {
            len,
            descriptors: files,
            is_cut,
        } = match came {
            Ok(came) => came,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(RecvOutcome::WouldBlock),
            Err(Errno::CONNRESET) => return Ok(RecvOutcome::Closed),
            Err(error) => return Err(error.into()),
        };
        if len == 0 && files.is_empty() {
            return Ok(RecvOutcome::Closed);
        }
        let len = if is_cut { 0 } else { len };
        let bytes = bytes[..len].to_vec();
        Ok(RecvOutcome::Packet(Packet { bytes, files }))
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.0.into_inner()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Accepts connections at a path. The path is removed when this is dropped.
#[derive(Debug)]
pub struct PacketListener {
    socket: CloseOnFork<OwnedFd>,
    path: PathBuf,
    /// Held as long as this listens. The kernel releases it if the process dies.
    _lock: CloseOnFork<OwnedFd>,
}

impl PacketListener {
    /// Listens at `path`, with `mode` as its permissions: a process that may write to the path may connect. A
    /// socket that a dead process left there is replaced. The file `path.lock` beside it marks a living
    /// listener.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] if a living process listens there, and the errors of bind(2).
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let lock_path = lock_of(path);
        let lock = lock(&lock_path)?;
        let socket = Self::bound(path, &address, mode).inspect_err(|_| {
            let _ = std::fs::remove_file(&lock_path);
        })?;
        let path = path.to_owned();
        Ok(Self {
            socket,
            path,
            _lock: lock,
        })
    }

    fn bound(path: &Path, address: &SocketAddrUnix, mode: u32) -> io::Result<CloseOnFork<OwnedFd>> {
        // Only a socket is removed, never another file.
        match std::fs::symlink_metadata(path) {
            Ok(left) if left.file_type().is_socket() => std::fs::remove_file(path)?,
            Ok(_) => {
                let why = "the path exists and is not a socket; remove it or choose another path";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = socket()?;
        bind(&socket, address)?;
        // The permissions are set before `listen`, while nobody can connect.
        rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// The path at which it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next connection, if one waits.
    ///
    /// # Errors
    ///
    /// The errors of accept(2), for example too many open files.
    pub fn accept(&self) -> io::Result<Option<PacketSocket>> {
        match CloseOnFork::open(|| accept_with(&self.socket, FLAGS)) {
            Ok(socket) => Ok(Some(PacketSocket(socket))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for PacketListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // Removed while it is locked: a process that opened it before notices, once it has the lock, that the
        // file is gone.
        let _ = std::fs::remove_file(lock_of(&self.path));
    }
}

fn lock_of(path: &Path) -> PathBuf {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    lock_path.into()
}

/// Creates and locks the lock file of a path. The file exists as long as the lock is held.
fn lock(path: &Path) -> io::Result<CloseOnFork<OwnedFd>> {
    loop {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = || rustix::fs::open(path, flags, Mode::from_raw_mode(0o600));
        let lock = CloseOnFork::open(open)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => return Err(error.into()),
        }
        // The last holder may have removed the file since it was opened.
        let held = rustix::fs::fstat(&lock)?;
        match rustix::fs::stat(path) {
            Ok(there) if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino) => {
                return Ok(lock);
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn packets_come_whole_and_with_their_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = PacketListener::bind(&path, 0o600).unwrap();
        let again = PacketListener::bind(&path, 0o600).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        assert!(listener.accept().unwrap().is_none());
        let one = PacketSocket::dial(&path).unwrap();
        let other = listener.accept().unwrap().expect("a caller");
        assert_eq!(other.user().unwrap(), rustix::process::geteuid().as_raw());
        assert_eq!(other.pid().unwrap(), Some(std::process::id()));
        assert!(matches!(other.recv().unwrap(), RecvOutcome::WouldBlock));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"inside").unwrap();
        assert!(one.send(b"first", None).unwrap());
        assert!(one.send(b"second", Some(file.as_fd())).unwrap());
        drop(file);
        let packet = |came| match came {
            RecvOutcome::Packet(packet) => packet,
            other => panic!("{other:?}"),
        };
        let first = packet(other.recv().unwrap());
        assert_eq!(&first.bytes[..], b"first");
        assert!(first.files.is_empty());
        let second = packet(other.recv().unwrap());
        assert_eq!(&second.bytes[..], b"second");
        let mut file = std::fs::File::from(second.files.into_iter().next().expect("a file"));
        let mut inside = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut inside).unwrap();
        assert_eq!(inside, "inside");
        one.send(&[7; PACKET_MAX + 1], None).unwrap();
        assert!(packet(other.recv().unwrap()).bytes.is_empty(), "too long");
        drop(one);
        assert!(matches!(other.recv().unwrap(), RecvOutcome::Closed));
        drop(listener);
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(PacketSocket::dial(&path).is_err());
    }

    #[test]
    fn packets_arrive_from_a_peer_closed_with_unread_input() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = PacketListener::bind(&path, 0o600).unwrap();
        let one = PacketSocket::dial(&path).unwrap();
        let other = listener.accept().unwrap().expect("a caller");
        assert!(other.send(b"unread", None).unwrap());
        assert!(one.send(b"first", None).unwrap());
        assert!(one.send(b"last", None).unwrap());
        drop(one);
        for said in [&b"first"[..], b"last"] {
            match other.recv().unwrap() {
                RecvOutcome::Packet(packet) => assert_eq!(packet.bytes, said),
                came => panic!("{came:?}"),
            }
        }
        assert!(matches!(other.recv().unwrap(), RecvOutcome::Closed));
    }

    #[test]
    fn a_dead_listeners_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = PacketListener::bind(&path, 0o600).unwrap();
        assert!(PacketSocket::dial(&path).is_ok());
        drop(listener);
    }
}

//! Packets between processes of one machine, with an open file where one is needed: a Unix socket under a path.
//! Nothing here blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

/// Longest packet in bytes.
pub const PACKET_MAX: usize = 4096;
/// Callers that may wait to be accepted.
const BACKLOG: i32 = 128;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// One end of a way for packets. Readable ([`AsFd`]) when a packet waits, or the other end is gone.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// A packet that came.
#[derive(Debug)]
pub struct Packet {
    /// What it says.
    pub bytes: Vec<u8>,
    /// The file that came with it.
    pub file: Option<OwnedFd>,
}

/// What [`PacketSocket::recv`] found.
#[derive(Debug)]
pub enum Came {
    /// A packet.
    Packet(Packet),
    /// None yet.
    Nothing,
    /// None ever: the other end is gone.
    Ended,
}

fn socket() -> io::Result<OwnedFd> {
    let made = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None);
    Ok(made?)
}

impl PacketSocket {
    /// Calls whoever listens at `path`.
    ///
    /// # Errors
    ///
    /// As connect(2) has them: nobody listens, there is no such path, not allowed.
    pub fn dial(path: &Path) -> io::Result<Self> {
        let socket = socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// The user whose process is at the other end, as the kernel knew it when they met.
    ///
    /// # Errors
    ///
    /// As getsockopt(2) has them.
    pub fn user(&self) -> io::Result<u32> {
        Ok(socket_peercred(&self.0)?.uid.as_raw())
    }

    /// Sends a packet, with a file if there is one. `false`: there is no room for it now.
    ///
    /// # Errors
    ///
    /// The other end is gone, and what else sendmsg(2) has.
    pub fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        if !files.is_empty() && !with.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::Error::other("no room for a file"));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&self.0, &[io::IoSlice::new(bytes)], &mut with, flags) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The next packet. One that is longer than [`PACKET_MAX`] is an error, as nobody honest sends it.
    ///
    /// # Errors
    ///
    /// As recvmsg(2) has them.
    pub fn recv(&self) -> io::Result<Came> {
        let mut bytes = [0; PACKET_MAX];
        // For more files than one may send, so that none is left open unseen.
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut into = [io::IoSliceMut::new(&mut bytes)];
        let came = match recvmsg(&self.0, &mut into, &mut with, flags) {
            Ok(came) => came,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Came::Nothing),
            Err(Errno::CONNRESET) => return Ok(Came::Ended),
            Err(error) => return Err(error.into()),
        };
        let mut file = None;
        for message in with.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                // All but one are closed.
                file = files.fold(file, |first, next| first.or(Some(next)));
            }
        }
        if came.bytes == 0 {
            return Ok(Came::Ended);
        }
        if came.flags.contains(ReturnFlags::TRUNC) {
            let error = format!("a packet of more than {PACKET_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        let bytes = bytes[..came.bytes].to_vec();
        Ok(Came::Packet(Packet { bytes, file }))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where others call; the path is removed when it is dropped.
#[derive(Debug)]
pub struct PacketListener {
    socket: OwnedFd,
    path: PathBuf,
    /// Held for as long as somebody listens; the kernel releases it on death.
    _lock: std::fs::File,
}

impl PacketListener {
    /// Listens at `path`; what a dead one has left there is replaced. A file `path.lock` beside it says that somebody
    /// listens.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] where a living process listens there; and as bind(2) has them.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(lock_path)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => return Err(error.into()),
        }
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = socket()?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        let path = path.to_owned();
        Ok(Self {
            socket,
            path,
            _lock: lock,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next caller, if one waits.
    ///
    /// # Errors
    ///
    /// As accept(2) has them; too many files are open, for one.
    pub fn accept(&self) -> io::Result<Option<PacketSocket>> {
        match accept_with(&self.socket, FLAGS) {
            Ok(socket) => Ok(Some(PacketSocket(socket))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for PacketListener {
    fn drop(&mut self) {
        // The lock's file stays: removed, two could hold what each takes for it.
        let _ = std::fs::remove_file(&self.path);
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
        let listener = PacketListener::bind(&path).unwrap();
        let again = PacketListener::bind(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        assert!(listener.accept().unwrap().is_none());
        let one = PacketSocket::dial(&path).unwrap();
        let other = listener.accept().unwrap().expect("a caller");
        assert_eq!(other.user().unwrap(), rustix::process::geteuid().as_raw());
        assert!(matches!(other.recv().unwrap(), Came::Nothing));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"inside").unwrap();
        assert!(one.send(b"first", None).unwrap());
        assert!(one.send(b"second", Some(file.as_fd())).unwrap());
        drop(file);
        let packet = |came| match came {
            Came::Packet(packet) => packet,
            other => panic!("{other:?}"),
        };
        let first = packet(other.recv().unwrap());
        assert_eq!(
            (&first.bytes[..], first.file.is_none()),
            (&b"first"[..], true)
        );
        let second = packet(other.recv().unwrap());
        let mut file = std::fs::File::from(second.file.expect("a file"));
        let mut inside = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut inside).unwrap();
        assert_eq!((&second.bytes[..], &inside[..]), (&b"second"[..], "inside"));
        one.send(&[7; PACKET_MAX + 1], None).unwrap();
        assert!(other.recv().is_err(), "too long");
        drop(one);
        assert!(matches!(other.recv().unwrap(), Came::Ended));
        drop(listener);
        assert!(!path.exists());
        assert!(PacketSocket::dial(&path).is_err());
    }

    #[test]
    fn what_a_dead_listener_left_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        std::fs::write(&path, "left").unwrap();
        let listener = PacketListener::bind(&path).unwrap();
        assert!(PacketSocket::dial(&path).is_ok());
        drop(listener);
    }
}

//! Descriptors passed over Unix sockets (`SCM_RIGHTS`), and what the kernel says about the process at the
//! other end. Nothing here blocks.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors in one message; the kernel's limit.
const RECEIVED_MAX: usize = 253;
/// Most descriptors that are sent in one message.
pub const SENT_MAX: usize = 4;

/// A received message.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// Number of bytes received; 0 at the end of the stream.
    pub len: usize,
    /// The descriptors that came with the bytes. All are given to the caller, because the last close of a
    /// file may block.
    pub descriptors: Vec<OwnedFd>,
    /// Whether bytes of the message were cut off.
    pub is_cut: bool,
}

/// Sends `bytes` with at most [`SENT_MAX`] descriptors, without waiting.
///
/// # Errors
///
/// The errors of sendmsg(2): `AGAIN` if there is no room now.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let has_room = descriptors.len() <= SENT_MAX
        && (descriptors.is_empty() || with.push(SendAncillaryMessage::ScmRights(descriptors)));
    if !has_room {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut with, flags)
}

/// Receives into `bytes`, without waiting. Received descriptors are closed on exec.
///
/// # Errors
///
/// The errors of recvmsg(2): `AGAIN` if nothing has arrived.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> Result<ReceivedMessage, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_MAX))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let came = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut with, flags)?;
    let mut descriptors = Vec::new();
    for message in with.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    Ok(ReceivedMessage {
        len: came.bytes,
        descriptors,
        is_cut: came.flags.contains(ReturnFlags::TRUNC),
    })
}

/// What the kernel recorded about the process at the other end of a Unix socket, when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id, as this process's PID namespace numbers it; `None` if that namespace does not have it.
    pub pid: Option<u32>,
    /// Its effective user id, as this process's user namespace numbers it.
    pub user: u32,
}

/// Returns the credentials of the other end of a Unix socket.
///
/// # Errors
///
/// The errors of getsockopt(2).
pub fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials, Errno> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` is valid for writes of `len` bytes, and any bytes are a valid `ucred`. (The function of
    // `rustix` takes no process id of 0, which is what another PID namespace's process has.)
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(PeerCredentials {
        pid: u32::try_from(found.pid).ok().filter(|pid| *pid != 0),
        user: found.uid,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn bytes_and_descriptors_arrive_together() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let mut bytes = [0; 8];
        assert_eq!(
            receive(&other, &mut bytes).expect_err("nothing yet"),
            Errno::AGAIN
        );
        let files = [(); 3].map(|()| tempfile::tempfile().expect("a file"));
        let sent = send(&one, b"abc", &[files[0].as_fd(), files[1].as_fd()]);
        assert_eq!(sent, Ok(3));
        let came = receive(&other, &mut bytes).expect("arrived");
        assert_eq!(
            (came.len, &bytes[..3], came.is_cut),
            (3, &b"abc"[..], false)
        );
        let inode = |file: BorrowedFd<'_>| fstat(file).expect("open").st_ino;
        let inodes: Vec<_> = came
            .descriptors
            .iter()
            .map(|fd| inode(fd.as_fd()))
            .collect();
        assert_eq!(inodes, [inode(files[0].as_fd()), inode(files[1].as_fd())]);
        let too_many = [files[2].as_fd(); SENT_MAX + 1];
        assert_eq!(send(&one, b"x", &too_many), Err(Errno::INVAL));
        drop(one);
        assert_eq!(receive(&other, &mut bytes).expect("the end").len, 0);
    }

    #[test]
    fn the_other_end_is_known() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let found = peer_credentials(&one).expect("credentials");
        let us = PeerCredentials {
            pid: Some(std::process::id()),
            user: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(found, us);
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(peer_credentials(&file), Err(Errno::NOTSOCK));
    }
}

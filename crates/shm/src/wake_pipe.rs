//! Wake pipe: a pipe that other processes of the user write to, to wake a sleeping process.
//!
//! The sleeper makes a [`WakePipe`] and publishes its process and
//! [`write_fd_number`](WakePipe::write_fd_number); others open that descriptor through `/proc`. (An eventfd
//! cannot be opened from another process.) The bytes sent are only hints: a full pipe drops them, and the
//! sleeper looks at shared memory anyway.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PIPE_BUF, PipeFlags, pipe_with};

use crate::ProcessId;

/// The sleeper's end.
#[derive(Debug)]
pub struct WakePipe {
    reader: OwnedFd,
    writer: Arc<OwnedFd>,
}

impl WakePipe {
    /// Makes a new, empty pipe. It holds both ends, so it never reports the end of file.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let writer = Arc::new(writer);
        Ok(Self { reader, writer })
    }

    /// Returns the descriptor to poll for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Returns the descriptor number by which other processes open the pipe.
    pub fn write_fd_number(&self) -> i32 {
        self.writer.as_raw_fd()
    }

    /// Reads what was sent into `buffer` and returns the number of bytes. Fewer than the buffer's length mean
    /// that the pipe was emptied.
    pub fn drain(&self, buffer: &mut [u8]) -> usize {
        let mut taken = 0;
        while taken < buffer.len() {
            match read(&self.reader, &mut buffer[taken..]) {
                Ok(0) => break,
                Ok(got) => taken += got,
                Err(Errno::INTR) => {}
                // The pipe is empty: a pipe of our own has no other errors.
                Err(_) => break,
            }
        }
        taken
    }

    /// Returns a sender to this pipe within this process. It shares the descriptor instead of opening
    /// another. It is to be used only while the pipe lives.
    pub fn sender(&self) -> WakeSender {
        let fd = Arc::clone(&self.writer);
        WakeSender { fd }
    }
}

/// The waker's end.
#[derive(Clone, Debug)]
pub struct WakeSender {
    fd: Arc<OwnedFd>,
}

impl WakeSender {
    /// Opens the pipe that `process` published as `write_fd_number`. Fails if the process is dead.
    ///
    /// The descriptor holds both ends, so that a write after the sleeper's death does not raise SIGPIPE,
    /// which kills a C program. Deaths are noticed by other means ([`ProcessId::open_pidfd`]).
    pub fn open(process: ProcessId, write_fd_number: i32) -> io::Result<Self> {
        let fd = process.open_fd(write_fd_number)?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::Fifo {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pipe"));
        }
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Sends at most [`PIPE_BUF`] bytes, whole or not at all. A full pipe counts as success, because it has
    /// woken its reader already. Returns false if the pipe is gone.
    pub fn send(&self, bytes: &[u8]) -> bool {
        debug_assert!(bytes.len() <= PIPE_BUF, "longer messages would be torn");
        loop {
            match write(&*self.fd, bytes) {
                Ok(_) | Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_arrive_and_a_full_pipe_succeeds() {
        let pipe = WakePipe::new().expect("pipe");
        let us = ProcessId::current().expect("stat");
        let sender = WakeSender::open(us, pipe.write_fd_number()).expect("open");
        let mut buffer = [0; 16];
        assert_eq!(pipe.drain(&mut buffer), 0);
        assert!(sender.send(b"ab"));
        assert!(pipe.sender().send(b"c"));
        assert_eq!(pipe.drain(&mut buffer), 3);
        assert_eq!(&buffer[..3], b"abc");
        for _ in 0..100 {
            assert!(sender.send(&[7; PIPE_BUF]));
        }
        let mut taken = 0;
        while pipe.drain(&mut buffer) == buffer.len() {
            taken += buffer.len();
        }
        assert_eq!(taken, 65536, "whole messages until it was full");
        drop(pipe);
        assert!(sender.send(b"x"), "no signal, no error");
    }

    #[test]
    fn only_pipes_are_opened() {
        let us = ProcessId::current().expect("stat");
        let file = tempfile::tempfile().expect("file");
        assert!(WakeSender::open(us, file.as_raw_fd()).is_err());
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("pair");
        assert!(WakeSender::open(us, socket.as_raw_fd()).is_err());
        assert!(WakeSender::open(us, 1_000_000).is_err());
        assert!(WakeSender::open(us, -1).is_err());
    }
}

//! Wake pipe: a pipe that other processes of the user write to, to wake a sleeping process.
//!
//! The sleeper makes a [`WakePipe`] and hands [its descriptors](WakePipe::descriptors) to others over a Unix
//! socket. The bytes sent are only hints: a full pipe drops them, and the sleeper looks at shared memory anyway.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PIPE_BUF, PipeFlags, pipe_with};

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

    /// Returns what another process needs for a [`WakeSender`]: new descriptors of both ends.
    pub fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![self.reader.try_clone()?, self.writer.try_clone()?])
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
        WakeSender {
            writer: Arc::clone(&self.writer),
            _reader: None,
        }
    }
}

/// The waker's end.
#[derive(Clone, Debug)]
pub struct WakeSender {
    writer: Arc<OwnedFd>,
    /// Kept so that a write after the sleeper's death does not raise SIGPIPE, which kills a C program. Deaths are
    /// noticed by other means.
    _reader: Option<Arc<OwnedFd>>,
}

impl WakeSender {
    /// Makes a sender of the descriptors that the sleeper handed out. Fails unless they are the ends of a pipe.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let not_a_pipe = || io::Error::new(io::ErrorKind::InvalidInput, "not a pipe");
        let ends: [OwnedFd; 2] = descriptors.try_into().map_err(|_| not_a_pipe())?;
        for end in &ends {
            if FileType::from_raw_mode(fstat(end)?.st_mode) != FileType::Fifo {
                return Err(not_a_pipe());
            }
        }
        let [reader, writer] = ends;
        // A write must not wait for the sleeper to read.
        fcntl_setfl(&writer, fcntl_getfl(&writer)? | OFlags::NONBLOCK)?;
        Ok(Self {
            writer: Arc::new(writer),
            _reader: Some(Arc::new(reader)),
        })
    }

    /// Sends at most [`PIPE_BUF`] bytes, whole or not at all. A full pipe counts as success, because it has
    /// woken its reader already. Returns false if the pipe is gone.
    pub fn send(&self, bytes: &[u8]) -> bool {
        debug_assert!(bytes.len() <= PIPE_BUF, "longer messages would be torn");
        loop {
            match write(&*self.writer, bytes) {
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
        let handed = pipe.descriptors().expect("descriptors");
        let sender = WakeSender::from_descriptors(handed).expect("a pipe");
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
    fn only_pipes_are_taken() {
        let pipe = WakePipe::new().expect("pipe");
        let file = || OwnedFd::from(tempfile::tempfile().expect("file"));
        let ends = || pipe.descriptors().expect("descriptors");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("pair");
        let socket = OwnedFd::from(socket);
        let mut three = ends();
        three.push(file());
        for wrong in [
            Vec::new(),
            vec![file()],
            vec![file(), file()],
            vec![ends().remove(0), socket],
            three,
        ] {
            WakeSender::from_descriptors(wrong).expect_err("no pipe");
        }
    }
}

//! The kernel's byte streams as arms: TCP, Unix sockets and pipes.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::job::{Buffering, Job, Waiting};
use super::{Arm, Fill, Sink, Taken, WorkloadError};

/// Bytes that the application gathers where it buffers.
const BUFFER: usize = 64 * 1024;

/// One end of a byte stream that carries messages of one size.
#[derive(Debug)]
pub struct Stream {
    incoming: OwnedFd,
    /// Where there is one descriptor for both ways, none.
    outgoing: Option<OwnedFd>,
    finished: bool,
    size: usize,
    blocking: bool,
    buffered: bool,
    /// Messages on their way out; `out[out_from..out_to]` is not written yet.
    out: Vec<u8>,
    out_from: usize,
    out_to: usize,
    /// Bytes that came in; `inward[in_from..in_to]` is not taken yet.
    inward: Vec<u8>,
    in_from: usize,
    in_to: usize,
}

impl Stream {
    /// Over one descriptor for both ways, or one each.
    pub fn new(
        job: &Job,
        waiting: Waiting,
        buffering: Buffering,
        incoming: OwnedFd,
        outgoing: Option<OwnedFd>,
    ) -> Self {
        let buffered = buffering == Buffering::Buffered;
        let capacity = if buffered {
            (BUFFER / job.size).max(1) * job.size
        } else {
            job.size
        };
        Self {
            incoming,
            outgoing,
            finished: false,
            size: job.size,
            blocking: waiting == Waiting::Blocking,
            buffered,
            out: vec![0; capacity],
            out_from: 0,
            out_to: 0,
            inward: vec![0; capacity],
            in_from: 0,
            in_to: 0,
        }
    }

    /// Writes what is pending; answers whether nothing is left.
    fn write_out(&mut self) -> Result<bool, WorkloadError> {
        while self.out_from < self.out_to {
            let fd = self.outgoing.as_ref().unwrap_or(&self.incoming);
            match rustix::io::write(fd, &self.out[self.out_from..self.out_to]) {
                Ok(n) => self.out_from += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(why) => return Err(WorkloadError::at("write", why)),
            }
        }
        (self.out_from, self.out_to) = (0, 0);
        Ok(true)
    }

    /// Reads once; `None` at the end of the stream.
    fn read_in(&mut self) -> Result<Option<usize>, WorkloadError> {
        if self.in_from > 0 {
            self.inward.copy_within(self.in_from..self.in_to, 0);
            self.in_to -= self.in_from;
            self.in_from = 0;
        }
        loop {
            match rustix::io::read(&self.incoming, &mut self.inward[self.in_to..]) {
                Ok(0) if self.in_to > 0 => {
                    return Err(WorkloadError("cut off in a message".into()));
                }
                Ok(0) => return Ok(None),
                Ok(n) => {
                    self.in_to += n;
                    return Ok(Some(n));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Some(0)),
                Err(Errno::CONNRESET) => return Ok(None),
                Err(why) => return Err(WorkloadError::at("read", why)),
            }
        }
    }
}

impl Arm for Stream {
    fn offer<F: Fill>(&mut self, n: usize, fill: &mut F) -> Result<usize, WorkloadError> {
        for accepted in 0..n {
            let full = self.out_to + self.size > self.out.len();
            if (full || self.out_from > 0) && !self.write_out()? {
                return Ok(accepted);
            }
            fill.fill(&mut self.out[self.out_to..self.out_to + self.size]);
            self.out_to += self.size;
            if !self.buffered && !self.write_out()? {
                return Ok(accepted + 1);
            }
        }
        Ok(n)
    }

    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<Taken, WorkloadError> {
        let mut taken = 0;
        while taken < max {
            if self.in_to - self.in_from >= self.size {
                sink.take(&self.inward[self.in_from..self.in_from + self.size]);
                self.in_from += self.size;
                taken += 1;
                continue;
            }
            // Once it has something, an end that blocks must not wait for more.
            if taken > 0 && (self.blocking || self.buffered) {
                break;
            }
            match self.read_in()? {
                None if taken == 0 => return Ok(Taken::Ended),
                None | Some(0) => break,
                Some(_) => {}
            }
        }
        Ok(Taken::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool, WorkloadError> {
        self.write_out()
    }

    fn finish(&mut self) -> Result<(), WorkloadError> {
        if self.finished {
            return Ok(());
        }
        self.finished = true;
        if self.outgoing.take().is_none() {
            // The peer may be gone already.
            let _ = rustix::net::shutdown(&self.incoming, rustix::net::Shutdown::Write);
        }
        Ok(())
    }
}

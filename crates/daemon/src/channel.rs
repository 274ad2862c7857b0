//! A queue pair of a link, its requests in order, and the memory that frames are sent from.
//!
//! Requests of a queue pair complete in order, so the place of a frame is its number modulo the depth, and one
//! completion frees everything before it. What is staged is posted by [`Channel::flush`] as one chain, of which the
//! last is signalled, and enough of the others.

use std::collections::VecDeque;

use headworks_client::Vqpn;
use headworks_ring::view_of;
use headworks_shm::View;
use headworks_verbs::{
    Access, AllocRequest, Device, Payload, PostError, ProtectionDomain, Qpn, QueuePair, Region,
    RemoteAddr, ResourceError, SendFlags, SendOp, SendWr, Sge,
};

use crate::frame::{HEADER, Header};

/// Requests that are posted with one call.
const CHAIN: usize = 16;

/// What is to be done when a request has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// A transfer from the memory of a connection was made: of the record that ends there.
    Sent(Vqpn, u64),
    /// A piece of what was READ for a connection has come, of the transfer at this position: so many bytes.
    Fetched(Vqpn, u64, u32),
    /// A piece of what a connection's application READs has come, for the record that ends there.
    Got(Vqpn, u64),
    /// The other end of a connection has been told of memory.
    Exported(Vqpn),
}

/// What is to be posted.
#[derive(Clone, Copy, Debug)]
struct Staged {
    op: SendOp,
    sge: Sge,
}

/// A queue pair, and what is under way on it.
pub struct Channel {
    qp: Box<dyn QueuePair>,
    frames: Region,
    memory: View,
    frame_bytes: usize,
    depth: u64,
    /// Requests staged, posted and retired, ever.
    staged_to: u64,
    retired: u64,
    thens: VecDeque<Then>,
    staged: Vec<Staged>,
}

impl Channel {
    /// Requests in a channel of this depth, each of which may be a frame of so many bytes.
    ///
    /// # Errors
    ///
    /// [`ResourceError`]: no memory for frames.
    pub fn new(
        device: &dyn Device,
        pd: &dyn ProtectionDomain,
        qp: Box<dyn QueuePair>,
        depth: u32,
        frame_bytes: u32,
    ) -> Result<Self, ResourceError> {
        let frame_bytes = frame_bytes.next_multiple_of(64) as usize;
        let buffer = device.alloc(&AllocRequest::of(frame_bytes * depth as usize))?;
        let frames = pd.register(&buffer, Access::NONE)?;
        Ok(Self {
            memory: view_of(&frames, 0),
            qp,
            frames,
            frame_bytes,
            depth: depth.into(),
            staged_to: 0,
            retired: 0,
            thens: VecDeque::new(),
            staged: Vec::new(),
        })
    }

    /// The queue pair, to be connected.
    pub fn qp(&mut self) -> &mut dyn QueuePair {
        &mut *self.qp
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Requests that may be staged.
    pub fn room(&self) -> u64 {
        self.depth - (self.staged_to - self.retired)
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.staged_to == self.retired
    }

    fn offset(&self) -> usize {
        (self.staged_to % self.depth) as usize * self.frame_bytes
    }

    /// Where what is behind the next frame's header goes, and how much fits.
    pub fn body(&self) -> (&View, usize, usize) {
        let at = self.offset() + HEADER;
        (&self.memory, at, self.frame_bytes - HEADER)
    }

    /// Stages a frame, of which the first `body` bytes behind the header were written to [`Channel::body`].
    pub fn frame(&mut self, to: Vqpn, header: &Header, body: usize, then: Then) {
        let at = self.offset();
        let written = self.memory.write(at, &header.emit());
        debug_assert_eq!(written, Ok(()));
        let staged = Staged {
            op: SendOp::SendImm(to.bits()),
            sge: self.frames.sge(at, (HEADER + body) as u32),
        };
        self.stage(staged, then);
    }

    /// Stages a WRITE of memory of a session.
    pub fn write(&mut self, from: Sge, to: RemoteAddr, then: Then) {
        let op = SendOp::Write(to);
        self.stage(Staged { op, sge: from }, then);
    }

    /// Stages a READ into memory of a session.
    pub fn read(&mut self, to: Sge, from: RemoteAddr, then: Then) {
        let op = SendOp::Read(from);
        self.stage(Staged { op, sge: to }, then);
    }

    fn stage(&mut self, staged: Staged, then: Then) {
        debug_assert!(self.room() > 0);
        self.staged.push(staged);
        self.thens.push_back(then);
        self.staged_to += 1;
    }

    /// Posts what was staged.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the queue pair has failed, and nothing more is to be had of it.
    pub fn flush(&mut self) -> Result<(), PostError> {
        let mut number = self.staged_to - self.staged.len() as u64;
        let staged = std::mem::take(&mut self.staged);
        let chains = staged.chunks(CHAIN).map(|chain| {
            let nothing = SendWr {
                wr_id: 0,
                op: SendOp::Send,
                payload: Payload::Inline(&[]),
                flags: SendFlags::NONE,
            };
            let mut wrs = [nothing; CHAIN];
            for (at, (wr, one)) in wrs.iter_mut().zip(chain).enumerate() {
                *wr = SendWr {
                    wr_id: number,
                    op: one.op,
                    payload: Payload::Gather(std::slice::from_ref(&one.sge)),
                    flags: match at + 1 == chain.len() {
                        true => SendFlags::SIGNALED,
                        false => SendFlags::NONE,
                    },
                };
                number += 1;
            }
            self.qp.post_send(&wrs[..chain.len()])
        });
        let posted = chains.into_iter().collect();
        // Its memory again.
        self.staged = staged;
        self.staged.clear();
        posted
    }

    /// The request of this number has completed, and so have all before it: what is to be done then. A number that
    /// is under way nowhere does nothing.
    pub fn retire(&mut self, number: u64, mut each: impl FnMut(Then)) {
        while self.retired <= number
            && let Some(then) = self.thens.pop_front()
        {
            self.retired += 1;
            each(then);
        }
    }
}

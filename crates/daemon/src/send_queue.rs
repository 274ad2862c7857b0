//! Send queue of a queue pair: its requests in order, and the memory that frames are sent from.
//!
//! Requests of a queue pair complete in order. So a frame's slot is its number modulo the depth, and one
//! completion frees everything before it. [`SendQueue::flush`] posts the staged requests in chains, and the
//! last request of each chain is signalled. Requests that a full queue pair refuses stay staged, in order.

use std::collections::VecDeque;

use headworks_client::Vqpn;
use headworks_ring::view_of;
use headworks_shm::View;
use headworks_verbs::{
    Access, AllocRequest, Device, Payload, PostError, PostErrorKind, ProtectionDomain, Qpn,
    QueuePair, Region, RemoteAddr, ResourceError, SendFlags, SendOp, SendWr, Sge,
};

use crate::frame::{HEADER, Header};

/// Number of requests that are posted with one call.
const CHAIN: usize = 16;
/// Consecutive refusals after which a full queue pair counts as failed. A working one never refuses as often.
const REFUSALS: u32 = 1 << 20;

/// Action on the completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCompletion {
    /// No further action.
    Nothing,
    /// A piece of an application's one-sided WRITE was made: number of the connection, end of the record.
    Sent(Vqpn, u64),
    /// A piece of a transfer was READ: number of the connection.
    Fetched(Vqpn),
    /// A piece of an application's one-sided READ was made: number of the connection, end of the record.
    Got(Vqpn, u64),
    /// The other end of this connection has been told of exported memory.
    Exported(Vqpn),
}

/// A request that is to be posted.
#[derive(Clone, Copy, Debug)]
struct StagedRequest {
    op: SendOp,
    sge: Sge,
}

/// A queue pair and its requests in flight.
pub struct SendQueue {
    qp: Box<dyn QueuePair>,
    frames: Region,
    memory: View,
    frame_bytes: usize,
    depth: u64,
    /// Total number of requests staged, and total number retired.
    staged_to: u64,
    retired: u64,
    thens: VecDeque<OnCompletion>,
    staged: Vec<StagedRequest>,
    /// Consecutive times that the queue pair accepted no request.
    refusals: u32,
}

impl SendQueue {
    /// Creates the send queue of a queue pair for `depth` requests, each of which may be a frame of
    /// `frame_bytes`.
    ///
    /// # Errors
    ///
    /// [`ResourceError`]: there is no memory for frames.
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
            refusals: 0,
        })
    }

    /// The queue pair, for the caller to connect.
    pub fn qp(&mut self) -> &mut dyn QueuePair {
        &mut *self.qp
    }

    /// Number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Number of requests that may be staged.
    pub fn room(&self) -> u64 {
        self.depth - (self.staged_to - self.retired)
    }

    /// Whether no request is in flight or staged.
    pub fn is_idle(&self) -> bool {
        self.staged_to == self.retired
    }

    fn offset(&self) -> usize {
        (self.staged_to % self.depth) as usize * self.frame_bytes
    }

    /// Returns where the body of the next frame goes, and how much fits.
    pub fn body(&self) -> (&View, usize, usize) {
        let at = self.offset() + HEADER;
        (&self.memory, at, self.frame_bytes - HEADER)
    }

    /// Stages a frame. The caller has written the first `body` bytes after the header to
    /// [`SendQueue::body`].
    pub fn frame(&mut self, to: Vqpn, header: &Header, body: usize, then: OnCompletion) {
        let at = self.offset();
        let written = self.memory.write(at, &header.emit());
        debug_assert_eq!(written, Ok(()));
        let staged = StagedRequest {
            op: SendOp::SendImm(to.bits()),
            sge: self.frames.sge(at, (HEADER + body) as u32),
        };
        self.stage(staged, then);
    }

    /// Stages a WRITE from a session's memory.
    pub fn write(&mut self, from: Sge, to: RemoteAddr, then: OnCompletion) {
        let op = SendOp::Write(to);
        self.stage(StagedRequest { op, sge: from }, then);
    }

    /// Stages a READ into a session's memory.
    pub fn read(&mut self, to: Sge, from: RemoteAddr, then: OnCompletion) {
        let op = SendOp::Read(from);
        self.stage(StagedRequest { op, sge: to }, then);
    }

    fn stage(&mut self, staged: StagedRequest, then: OnCompletion) {
        debug_assert!(self.room() > 0);
        self.staged.push(staged);
        self.thens.push_back(then);
        self.staged_to += 1;
    }

    /// Whether requests are staged that another [`SendQueue::flush`] must post.
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Posts staged requests, as many as the queue pair accepts. A device may report a full queue although no
    /// more requests are in flight than the queue was made for, so the next call tries again.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the queue pair has failed, or has refused requests for too long. It cannot be used any
    /// more.
    pub fn flush(&mut self) -> Result<(), PostError> {
        let mut number = self.staged_to - self.staged.len() as u64;
        let mut posted = 0;
        let mut refused = None;
        while let Some(chain) = self.staged[posted..].chunks(CHAIN).next() {
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
            if let Err(error) = self.qp.post_send(&wrs[..chain.len()]) {
                posted += error.index.min(chain.len());
                refused = Some(error);
                break;
            }
            posted += chain.len();
        }
        self.staged.drain(..posted);
        let Some(error) = refused else {
            self.refusals = 0;
            return Ok(());
        };
        self.refusals = if posted > 0 { 0 } else { self.refusals + 1 };
        match error.kind {
            PostErrorKind::QueueFull if self.refusals < REFUSALS => Ok(()),
            _ => Err(error),
        }
    }

    /// Handles the completion of the request with this number and of all before it: passes their actions to
    /// `each`. A number that is not in flight is ignored.
    pub fn retire(&mut self, number: u64, mut each: impl FnMut(OnCompletion)) {
        while self.retired <= number
            && let Some(then) = self.thens.pop_front()
        {
            self.retired += 1;
            each(then);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    use headworks_shm::Registry;
    use headworks_softnic::SoftProvider;
    use headworks_verbs::{ModifyError, Provider, QpAttr, QpCaps, QpState, RecvWr};

    /// Number of requests that the queue pair accepts next, and those that it accepted: number, whether
    /// signalled.
    #[derive(Default)]
    struct ScriptedQp {
        takes: usize,
        took: Vec<(u64, bool)>,
    }

    struct FlakyQp {
        says: Arc<Mutex<ScriptedQp>>,
        caps: QpCaps,
    }

    impl QueuePair for FlakyQp {
        fn qpn(&self) -> Qpn {
            Qpn::default()
        }

        fn state(&self) -> QpState {
            QpState::Rts
        }

        fn caps(&self) -> &QpCaps {
            &self.caps
        }

        fn modify(&mut self, _: &QpAttr) -> Result<(), ModifyError> {
            Ok(())
        }

        fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
            let mut says = self.says.lock().unwrap();
            for (index, wr) in wrs.iter().enumerate() {
                if says.takes == 0 {
                    return Err(PostErrorKind::QueueFull.at(index));
                }
                says.takes -= 1;
                let is_signalled = wr.flags == SendFlags::SIGNALED;
                says.took.push((wr.wr_id, is_signalled));
            }
            Ok(())
        }

        fn post_recv(&mut self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
            Err(PostErrorKind::HasSrq.at(0))
        }
    }

    fn channel(says: &Arc<Mutex<ScriptedQp>>) -> SendQueue {
        let directory = tempfile::tempdir().unwrap();
        let fabric = Registry::open_at(directory.path().join("fabric")).unwrap();
        let name = "soft:h1".parse().unwrap();
        let device = SoftProvider::on(fabric).open(&name).unwrap();
        let pd = device.alloc_pd().unwrap();
        let fickle = FlakyQp {
            says: says.clone(),
            caps: QpCaps::default(),
        };
        SendQueue::new(&*device, &*pd, Box::new(fickle), 64, 256).unwrap()
    }

    #[test]
    fn work_a_full_queue_refuses_is_posted_in_order() {
        for takes in [1, 3, 15, 16, 17, 40] {
            let says = Arc::default();
            let mut channel = channel(&says);
            let header = Header::of(crate::frame::Kind::Tell);
            for _ in 0..40 {
                channel.frame(Vqpn::default(), &header, 0, OnCompletion::Nothing);
            }
            assert_eq!(channel.flush(), Ok(()));
            assert!(channel.has_staged(), "the queue pair accepts nothing");
            let mut flushed = 0;
            while channel.has_staged() {
                says.lock().unwrap().takes = takes;
                assert_eq!(channel.flush(), Ok(()));
                flushed += 1;
            }
            assert_eq!(flushed, 40usize.div_ceil(takes));
            let took = &says.lock().unwrap().took;
            let numbers: Vec<u64> = took.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers, (0..40).collect::<Vec<_>>());
            assert_eq!(took.last(), Some(&(39, true)));
            assert_eq!(channel.room(), 24);
            channel.retire(39, |_| {});
            assert!(channel.is_idle());
        }
    }

    #[test]
    fn a_queue_pair_that_is_full_for_ever_has_failed() {
        let says = Arc::default();
        let mut channel = channel(&says);
        channel.frame(
            Vqpn::default(),
            &Header::of(crate::frame::Kind::Tell),
            0,
            OnCompletion::Nothing,
        );
        let flushed = (0..=REFUSALS).find(|_| channel.flush().is_err());
        assert_eq!(flushed, Some(REFUSALS - 1));
    }
}

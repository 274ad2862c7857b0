//! A queue pair of a link, its requests in order, and the memory that frames are sent from.
//!
//! Requests of a queue pair complete in order, so the place of a frame is its number modulo the depth, and one
//! completion frees everything before it. What is staged is posted by [`SendQueue::flush`] as one chain, of which the
//! last is signalled, and enough of the others. What a full queue pair refuses stays staged, and in order.

use std::collections::VecDeque;

use headworks_client::Vqpn;
use headworks_ring::view_of;
use headworks_shm::View;
use headworks_verbs::{
    Access, AllocRequest, Device, Payload, PostError, PostErrorKind, ProtectionDomain, Qpn,
    QueuePair, Region, RemoteAddr, ResourceError, SendFlags, SendOp, SendWr, Sge,
};

use crate::frame::{HEADER, Header};

/// Requests that are posted with one call.
const CHAIN: usize = 16;
/// How often in a row a queue pair may be full before it counts as failed: more often than one that works ever is.
const REFUSALS: u32 = 1 << 20;

/// What is to be done when a request has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCompletion {
    /// No further action.
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
struct StagedRequest {
    op: SendOp,
    sge: Sge,
}

/// A queue pair, and what is under way on it.
pub struct SendQueue {
    qp: Box<dyn QueuePair>,
    frames: Region,
    memory: View,
    frame_bytes: usize,
    depth: u64,
    /// Requests staged, posted and retired, ever.
    staged_to: u64,
    retired: u64,
    thens: VecDeque<OnCompletion>,
    staged: Vec<StagedRequest>,
    /// How often in a row the queue pair took none of it.
    refusals: u32,
}

impl SendQueue {
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
            refusals: 0,
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

    /// Stages a frame, of which the first `body` bytes behind the header were written to [`SendQueue::body`].
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

    /// Stages a WRITE of memory of a session.
    pub fn write(&mut self, from: Sge, to: RemoteAddr, then: OnCompletion) {
        let op = SendOp::Write(to);
        self.stage(StagedRequest { op, sge: from }, then);
    }

    /// Stages a READ into memory of a session.
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

    /// Whether something is staged that is to be posted by another [`SendQueue::flush`].
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Posts what was staged, as far as the queue pair takes it: one that is full, as a device may say although no more
    /// is under way than it was made for, is asked again.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the queue pair has failed, or takes nothing any more, and nothing more is to be had of it.
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

    /// The request of this number has completed, and so have all before it: what is to be done then. A number that
    /// is under way nowhere does nothing.
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

    /// What a queue pair takes next, and the numbers that it took, with whether they are signalled.
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
    fn what_a_full_queue_pair_refuses_is_posted_later_and_in_order() {
        for takes in [1, 3, 15, 16, 17, 40] {
            let says = Arc::default();
            let mut channel = channel(&says);
            let header = Header::of(crate::frame::Kind::Tell);
            for _ in 0..40 {
                channel.frame(Vqpn::default(), &header, 0, OnCompletion::Nothing);
            }
            assert_eq!(channel.flush(), Ok(()));
            assert!(channel.has_staged(), "it took none");
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

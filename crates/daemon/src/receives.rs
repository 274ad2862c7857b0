//! Receives of a domain and their buffers. All queue-pair groups take them from one shared receive queue (RaaS, section
//! IV.C). If the device has no shared receive queues, each queue pair for frames has a receive queue of its own, and the
//! domain posts receives to it as the peer is promised more ([`OwnReceives`]).

use std::sync::Arc;

use headworks_ring::view_of;
use headworks_shm::View;
use headworks_verbs::{
    Access, AllocRequest, Device, DeviceLimits, PostError, PostErrorKind, ProtectionDomain,
    QueuePair, RecvWr, Region, ResourceError, Sge, SharedReceiveQueue, SrqInit,
};

use crate::own_receives::OwnReceives;

/// Number of receives whose memory is allocated at once.
const BLOCK: u32 = 256;
/// Number of receives that are posted with one call.
const CHAIN: usize = 16;
/// Bit of a `wr_id` that distinguishes receives from send requests.
const MARK: u64 = 1 << 63;
/// Bits of a `wr_id` from this one on, except [`MARK`], are the number of the receive queue; 0 for the shared one.
const QUEUE_SHIFT: u32 = 32;
/// Largest number of a receive queue.
const QUEUE_MAX: u32 = (1 << 31) - 1;
/// Consecutive refusals after which [`Receives::fill`] gives up.
const FILL_REFUSALS: u32 = 64;

/// Where the receives of a domain are posted.
enum Posting {
    /// To the shared receive queue.
    Shared(Arc<dyn SharedReceiveQueue>),
    /// To queue pairs, each of which has a receive queue of its own.
    Own {
        /// Number of the last receive queue that was made.
        last_queue: u32,
    },
}

/// A receive that a completion names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveId {
    /// Number of the receive.
    pub number: u32,
    /// Number of the receive queue that it was posted to; 0 for the shared one.
    pub queue: u32,
}

/// The receives of a domain and their buffers.
pub struct Receives {
    posting: Posting,
    blocks: Vec<(Region, View)>,
    bytes: usize,
    /// Number of receives, and the maximum.
    count: u32,
    most: u32,
    /// Receives that are to be posted to the shared queue, or that no queue pair holds.
    idle: Vec<u32>,
}

/// Returns whether a device has shared receive queues.
fn has_shared_queues(limits: &DeviceLimits) -> bool {
    limits.has_srqs()
}

/// Returns the maximum number of receives of a domain on a device, if `wanted` are wanted.
pub fn most_on(limits: &DeviceLimits, wanted: u32) -> u32 {
    match has_shared_queues(limits) {
        true => wanted.min(limits.max_srq_wr),
        false => wanted,
    }
}

/// Error: there cannot be more receives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// The maximum is reached.
    #[error("the limit of {0} receives is reached")]
    Limit(u32),
    /// There is no memory.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The receives cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Receives {
    /// Creates a shared receive queue without receives, if the device has such queues. Each receive will have `bytes`,
    /// and there may be `most`, or as many as [`most_on`] says.
    ///
    /// # Errors
    ///
    /// [`ResourceError`]: the device cannot create the queue.
    pub fn new(
        limits: &DeviceLimits,
        pd: &dyn ProtectionDomain,
        bytes: u32,
        most: u32,
    ) -> Result<Self, ResourceError> {
        let most = most_on(limits, most);
        let posting = match has_shared_queues(limits) {
            true => {
                let init = SrqInit {
                    max_wr: most,
                    max_sge: 1,
                    limit: 0,
                };
                Posting::Shared(pd.create_srq(&init)?)
            }
            false => Posting::Own { last_queue: 0 },
        };
        Ok(Self {
            posting,
            blocks: Vec::new(),
            bytes: bytes.next_multiple_of(64) as usize,
            count: 0,
            most,
            idle: Vec::new(),
        })
    }

    /// The shared receive queue; `None` if each queue pair has a receive queue of its own.
    pub fn srq(&self) -> Option<&Arc<dyn SharedReceiveQueue>> {
        match &self.posting {
            Posting::Shared(srq) => Some(srq),
            Posting::Own { .. } => None,
        }
    }

    /// Returns the account of a new queue pair, which is owed `owed` receives. It is empty where there is a shared receive
    /// queue.
    pub fn own(&mut self, owed: u32) -> OwnReceives {
        match &mut self.posting {
            Posting::Shared(_) => OwnReceives::default(),
            Posting::Own { last_queue } => {
                *last_queue = last_queue.wrapping_add(1) & QUEUE_MAX;
                OwnReceives::new(*last_queue, owed)
            }
        }
    }

    /// Adds up to `more` receives, and posts them if there is a shared receive queue. Returns how many.
    ///
    /// # Errors
    ///
    /// [`GrowError`]: no receives were added, or they could not be posted.
    pub fn grow(
        &mut self,
        device: &dyn Device,
        pd: &dyn ProtectionDomain,
        more: u32,
    ) -> Result<u32, GrowError> {
        let more = more.min(self.most - self.count);
        if more == 0 {
            return Err(GrowError::Limit(self.count));
        }
        while (self.blocks.len() as u32) < (self.count + more).div_ceil(BLOCK) {
            let buffer = device.alloc(&AllocRequest::of(self.bytes * BLOCK as usize))?;
            let region = pd.register(&buffer, Access::LOCAL_WRITE)?;
            let view = view_of(&region, 0);
            self.blocks.push((region, view));
        }
        self.idle.extend(self.count..self.count + more);
        self.count += more;
        self.flush()?;
        Ok(more)
    }

    fn place(&self, number: u32) -> Option<(&(Region, View), usize)> {
        let block = self.blocks.get((number / BLOCK) as usize)?;
        Some((block, (number % BLOCK) as usize * self.bytes))
    }

    /// Returns the receive that a completion's `wr_id` names. Returns `None` if the completion is of another request.
    pub fn of(&self, wr_id: u64) -> Option<ReceiveId> {
        let rest = wr_id.checked_sub(MARK)?;
        let number = rest as u32;
        let queue = (rest >> QUEUE_SHIFT) as u32;
        (number < self.count).then_some(ReceiveId { number, queue })
    }

    /// Returns the memory that holds a receive's buffer, and the buffer's offset in it.
    pub fn memory(&self, number: u32) -> Option<(View, usize)> {
        let ((_, view), at) = self.place(number)?;
        Some((view.clone(), at))
    }

    /// Takes back a receive that has completed. With a shared receive queue, the next [`Receives::flush`] posts it again.
    /// Otherwise any queue pair may get it.
    pub fn again(&mut self, number: u32) {
        self.idle.push(number);
    }

    /// Takes back the receives that a destroyed queue pair held.
    pub fn reclaim(&mut self, own: OwnReceives) {
        self.idle.extend(own.into_posted());
    }

    /// Posts all receives that are to be posted to the shared receive queue, if there is one.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the device has failed.
    pub fn flush(&mut self) -> Result<(), PostError> {
        let Posting::Shared(srq) = &self.posting else {
            return Ok(());
        };
        if self.idle.is_empty() {
            return Ok(());
        }
        let idle = std::mem::take(&mut self.idle);
        let mut posted = Ok(());
        for chain in idle.chunks(CHAIN) {
            let chain = self.with_chain(chain, 0, |wrs| srq.post_recv(wrs));
            posted = posted.and(chain);
        }
        self.idle = idle;
        self.idle.clear();
        posted
    }

    /// Posts receives that a queue pair is owed, as many as it accepts. Returns how many. It is an error if the queue pair
    /// has failed, or has refused receives for too long; some may have been posted before.
    pub fn post(
        &mut self,
        qp: &mut dyn QueuePair,
        own: &mut OwnReceives,
    ) -> (u32, Result<(), PostError>) {
        let mut total = 0;
        while own.owed() > 0 {
            let count = (own.owed() as usize).min(CHAIN).min(self.idle.len());
            let from = self.idle.len() - count;
            let mut chain = [0; CHAIN];
            let chain = &mut chain[..count];
            chain.copy_from_slice(&self.idle[from..]);
            let posted = self.with_chain(chain, own.queue(), |wrs| qp.post_recv(wrs));
            let done = posted.map_or_else(|error| error.index.min(count), |()| count);
            self.idle.truncate(from);
            self.idle.extend(&chain[done..]);
            total += done as u32;
            let is_working = own.post(&chain[..done]);
            match posted {
                Ok(()) if count > 0 => {}
                Err(error) if error.kind != PostErrorKind::QueueFull || !is_working => {
                    return (total, Err(error));
                }
                // A later call tries again.
                _ => break,
            }
        }
        (total, Ok(()))
    }

    /// Posts all receives that a new queue pair is owed.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the queue pair has failed, or does not accept them.
    pub fn fill(&mut self, qp: &mut dyn QueuePair, own: &mut OwnReceives) -> Result<(), PostError> {
        let mut refusals = 0;
        while own.owed() > 0 {
            let (posted, outcome) = self.post(qp, own);
            outcome?;
            refusals = if posted > 0 { 0 } else { refusals + 1 };
            if refusals > FILL_REFUSALS {
                return Err(PostErrorKind::QueueFull.at(0));
            }
        }
        Ok(())
    }

    /// Passes the requests that post the receives with these numbers, at most [`CHAIN`], to `post`.
    fn with_chain<T>(&self, chain: &[u32], queue: u32, post: impl FnOnce(&[RecvWr<'_>]) -> T) -> T {
        let sges: [Sge; CHAIN] = std::array::from_fn(|at| {
            let place = chain.get(at).and_then(|number| self.place(*number));
            place.map_or_else(Sge::default, |((region, _), at)| {
                region.sge(at, self.bytes as u32)
            })
        });
        let mark = MARK | u64::from(queue) << QUEUE_SHIFT;
        let wrs: [RecvWr<'_>; CHAIN] = std::array::from_fn(|at| RecvWr {
            wr_id: mark | u64::from(chain.get(at).copied().unwrap_or(0)),
            sges: std::slice::from_ref(&sges[at]),
        });
        post(&wrs[..chain.len().min(CHAIN)])
    }

    /// Number of receives that no queue pair holds.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Bytes of each receive.
    pub fn frame_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK as usize * self.bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use headworks_shm::Registry;
    use headworks_softnic::SoftProvider;
    use headworks_verbs::{ModifyError, Provider, QpAttr, QpCaps, QpState, Qpn, SendWr};

    /// A queue pair that takes a number of receives, and then fails or is full.
    struct ScriptedQp {
        takes: usize,
        then: PostErrorKind,
        took: Vec<u64>,
        caps: QpCaps,
    }

    impl ScriptedQp {
        fn new(takes: usize, then: PostErrorKind) -> Self {
            let (took, caps) = (Vec::new(), QpCaps::default());
            Self {
                takes,
                then,
                took,
                caps,
            }
        }
    }

    impl QueuePair for ScriptedQp {
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

        fn post_send(&mut self, _: &[SendWr<'_>]) -> Result<(), PostError> {
            Err(PostErrorKind::Device.at(0))
        }

        fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
            for (index, wr) in wrs.iter().enumerate() {
                if self.takes == 0 {
                    return Err(self.then.at(index));
                }
                self.takes -= 1;
                self.took.push(wr.wr_id);
            }
            Ok(())
        }
    }

    /// Receives of a domain without a shared receive queue, all of them in stock.
    fn stock(count: u32) -> Receives {
        let directory = tempfile::tempdir().unwrap();
        let fabric = Registry::open_at(directory.path().join("fabric")).unwrap();
        let name = "soft:h1".parse().unwrap();
        let device = SoftProvider::on(fabric).open(&name).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mut limits = device.info().limits;
        limits.max_srq_wr = 0;
        let mut receives = Receives::new(&limits, &*pd, 256, count).unwrap();
        assert_eq!(receives.grow(&*device, &*pd, count).unwrap(), count);
        receives
    }

    #[test]
    fn a_full_queue_pair_gets_the_rest_later() {
        let mut receives = stock(60);
        for takes in [1, 3, 15, 16, 17, 40] {
            let mut own = receives.own(40);
            let mut qp = ScriptedQp::new(0, PostErrorKind::QueueFull);
            assert_eq!(receives.post(&mut qp, &mut own), (0, Ok(())));
            assert_eq!((own.owed(), receives.idle()), (40, 60));
            let mut posted = 0;
            while own.owed() > 0 {
                qp.takes = takes;
                let (more, outcome) = receives.post(&mut qp, &mut own);
                assert_eq!(outcome, Ok(()));
                assert!((1..=takes).contains(&(more as usize)));
                posted += more as usize;
                assert_eq!((own.held(), receives.idle()), (posted, 60 - posted));
            }
            for wr_id in qp.took {
                let id = receives.of(wr_id).unwrap();
                assert!(own.complete(id.queue, id.number));
                receives.again(id.number);
            }
            assert_eq!((own.held(), receives.idle()), (0, 60));
        }
    }

    #[test]
    fn a_queue_pair_that_fails_keeps_what_it_took_until_it_is_destroyed() {
        let mut receives = stock(60);
        let mut own = receives.own(40);
        let mut qp = ScriptedQp::new(20, PostErrorKind::Device);
        let (posted, outcome) = receives.post(&mut qp, &mut own);
        assert_eq!((posted, outcome), (20, Err(PostErrorKind::Device.at(4))));
        assert_eq!((own.held(), own.owed(), receives.idle()), (20, 20, 40));
        receives.reclaim(own);
        assert_eq!(receives.idle(), 60);
    }

    #[test]
    fn a_new_queue_pair_that_accepts_too_few_receives_cannot_be_used() {
        let mut receives = stock(60);
        let mut own = receives.own(40);
        let mut qp = ScriptedQp::new(20, PostErrorKind::QueueFull);
        let full = Err(PostErrorKind::QueueFull.at(0));
        assert_eq!(receives.fill(&mut qp, &mut own), full);
        let mut own = receives.own(40);
        let mut qp = ScriptedQp::new(40, PostErrorKind::QueueFull);
        assert_eq!(receives.fill(&mut qp, &mut own), Ok(()));
    }
}

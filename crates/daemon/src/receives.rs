//! Receives of a domain: one shared receive queue for all of its queue-pair groups (RaaS, section IV.C), and
//! its buffers.

use std::sync::Arc;

use headworks_ring::view_of;
use headworks_shm::View;
use headworks_verbs::{
    Access, AllocRequest, Device, PostError, ProtectionDomain, RecvWr, Region, ResourceError, Sge,
    SharedReceiveQueue, SrqInit,
};

/// Number of receives whose memory is allocated at once.
const BLOCK: u32 = 256;
/// Number of receives that are posted with one call.
const CHAIN: usize = 16;
/// Bit of a `wr_id` that distinguishes receives from send requests.
const MARK: u64 = 1 << 63;

/// The shared receive queue and its buffers.
pub struct Receives {
    srq: Arc<dyn SharedReceiveQueue>,
    blocks: Vec<(Region, View)>,
    bytes: usize,
    /// Number of receives, and the maximum.
    count: u32,
    most: u32,
    /// Receives that are to be posted.
    idle: Vec<u32>,
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
    /// Creates a queue without receives. Each will have `bytes`, and there may be `most`.
    ///
    /// # Errors
    ///
    /// [`ResourceError`]: the device cannot create the queue.
    pub fn new(pd: &dyn ProtectionDomain, bytes: u32, most: u32) -> Result<Self, ResourceError> {
        let init = SrqInit {
            max_wr: most,
            max_sge: 1,
            limit: 0,
        };
        Ok(Self {
            srq: pd.create_srq(&init)?,
            blocks: Vec::new(),
            bytes: bytes.next_multiple_of(64) as usize,
            count: 0,
            most,
            idle: Vec::new(),
        })
    }

    /// The shared receive queue.
    pub fn srq(&self) -> &Arc<dyn SharedReceiveQueue> {
        &self.srq
    }

    /// Adds and posts up to `more` receives. Returns how many.
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

    /// Returns the receive of a completion's `wr_id`, if that is the number of a receive.
    pub fn of(&self, wr_id: u64) -> Option<u32> {
        let number = u32::try_from(wr_id.checked_sub(MARK)?).ok()?;
        (number < self.count).then_some(number)
    }

    /// Returns the memory that holds a receive's buffer, and the buffer's offset in it.
    pub fn memory(&self, number: u32) -> Option<(View, usize)> {
        let ((_, view), at) = self.place(number)?;
        Some((view.clone(), at))
    }

    /// Marks a receive to be posted again by the next [`Receives::flush`].
    pub fn again(&mut self, number: u32) {
        self.idle.push(number);
    }

    /// Posts all receives that are to be posted.
    ///
    /// # Errors
    ///
    /// [`PostError`]: the device has failed.
    pub fn flush(&mut self) -> Result<(), PostError> {
        if self.idle.is_empty() {
            return Ok(());
        }
        let idle = std::mem::take(&mut self.idle);
        let mut posted = Ok(());
        for chain in idle.chunks(CHAIN) {
            let sges: [Sge; CHAIN] = std::array::from_fn(|at| {
                let place = chain.get(at).and_then(|number| self.place(*number));
                place.map_or_else(Sge::default, |((region, _), at)| {
                    region.sge(at, self.bytes as u32)
                })
            });
            let wrs: [RecvWr<'_>; CHAIN] = std::array::from_fn(|at| RecvWr {
                wr_id: MARK | u64::from(chain.get(at).copied().unwrap_or(0)),
                sges: std::slice::from_ref(&sges[at]),
            });
            let chain = self.srq.post_recv(&wrs[..chain.len()]);
            posted = posted.and(chain);
        }
        self.idle = idle;
        self.idle.clear();
        posted
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

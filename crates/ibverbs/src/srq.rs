//! Shared receive queues.

use std::sync::{Arc, Mutex, PoisonError};

use headworks_verbs::{
    PostError, PostErrorKind, RecvWr, ResourceError, SharedReceiveQueue, SrqId, SrqInit,
};

use crate::abi;
use crate::device::{CountTicket, Pd, refused};
use crate::post_chain::{Receives, RecvChain};
use crate::raw::{Object, ObjectRef};

/// A shared receive queue of libibverbs.
pub(crate) struct IbvSrq {
    chain: Mutex<RecvChain>,
    pub(crate) srq: Arc<Object<abi::Srq>>,
    id: SrqId,
    max_wr: u32,
    pub(crate) pd: Arc<Pd>,
    _ticket: CountTicket,
}

impl IbvSrq {
    pub(crate) fn create(pd: &Arc<Pd>, init: &SrqInit) -> Result<Self, ResourceError> {
        let context = &pd.context;
        let limits = &context.info().limits;
        if !limits.has_srqs() {
            let what = "shared receive queues";
            return Err(ResourceError::Unsupported { what });
        }
        ResourceError::check("receives", init.max_wr, 1..=limits.max_srq_wr)?;
        let what = "scatter/gather entries of a receive";
        ResourceError::check(what, init.max_sge, 0..=limits.max_sge)?;
        ResourceError::check("limit of the receive queue", init.limit, 0..=init.max_wr)?;
        let what = "shared receive queues";
        let ticket = context.counts.srqs.take(what, limits.max_srq)?;
        let post = context.raw.ops().post_srq_recv;
        let post = post.ok_or(ResourceError::Unsupported { what })?;
        let id = SrqId(context.next_id());
        let attr = abi::SrqAttr {
            max_wr: init.max_wr,
            max_sge: init.max_sge.max(1),
            srq_limit: 0,
        };
        let made = pd.object.create_srq(id, attr);
        let (srq, got) = made.map_err(|error| refused("making a shared receive queue", error))?;
        let srq = Arc::new(srq);
        // Some devices return the size on creation, some only when asked, and some do not report it.
        let said = srq.query().map_or(0, |said| said.max_wr);
        let max_wr = match said {
            0 => got.max_wr.max(init.max_wr),
            said => said,
        };
        let receives = Receives::Shared(ObjectRef::of(&srq), post);
        let made = Self {
            chain: Mutex::new(RecvChain::new(receives, max_wr, init.max_sge)),
            srq,
            id,
            max_wr,
            pd: pd.clone(),
            _ticket: ticket,
        };
        if init.limit > 0 {
            made.set_limit(init.limit)?;
        }
        Ok(made)
    }
}

impl SharedReceiveQueue for IbvSrq {
    fn id(&self) -> SrqId {
        self.id
    }

    fn max_wr(&self) -> u32 {
        self.max_wr
    }

    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.pd.context.raw.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let mut chain = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        chain.post(wrs)
    }

    fn set_limit(&self, limit: u32) -> Result<(), ResourceError> {
        self.pd.context.usable()?;
        ResourceError::check("limit of the receive queue", limit, 0..=self.max_wr)?;
        let armed = self.srq.set_limit(limit);
        armed.map_err(|error| refused("arming a shared receive queue's limit", error))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{
    Completion, CompletionChannel, CompletionQueue, CqId, CqInit, Instant, PollError,
    ResourceError, Status,
};

use crate::abi;
use crate::completion_channel::IbvChannel;
use crate::device::{Context, CountTicket, clock, coarse_ms, refused};
use crate::options::Moderation;
use crate::poll::Poller;
use crate::raw::{Object, ObjectRef};

/// A completion queue of libibverbs.
pub(crate) struct IbvCq {
    poller: Poller,
    made_by: ForkGeneration,
    pub(crate) cq: Arc<Object<abi::Cq>>,
    id: CqId,
    arm: abi::ReqNotifyCq,
    /// Whether timestamps are wanted and the device has none.
    reads_clock: bool,
    /// Whether the device reported that the queue overran.
    pub(crate) overran: AtomicBool,
    _channel: Option<Arc<dyn CompletionChannel>>,
    context: Arc<Context>,
    _ticket: CountTicket,
}

impl IbvCq {
    pub(crate) fn create(context: &Arc<Context>, init: &CqInit) -> Result<Self, ResourceError> {
        let limits = &context.info().limits;
        ResourceError::check("completions", init.depth, 1..=limits.max_cqe)?;
        let channel = match &init.channel {
            None => None,
            Some(channel) => {
                let ours = channel.as_any().downcast_ref::<IbvChannel>();
                let ours = ours.filter(|ours| Arc::ptr_eq(&ours.context, context));
                Some(ours.ok_or(ResourceError::Foreign("the completion channel"))?)
            }
        };
        let ticket = context
            .counts
            .cqs
            .take("completion queues", limits.max_cq)?;
        let (Some(poll), Some(arm)) = (context.raw.ops().poll_cq, context.raw.ops().req_notify_cq)
        else {
            let what = "completion queues";
            return Err(ResourceError::Unsupported { what });
        };
        let id = CqId(context.next_id());
        let stamps = context.khz.filter(|_| init.timestamps);
        let channel = channel.map(|channel| (&channel.channel, context.next_vector()));
        let has_lid = context.port().lid.is_some();
        let fields = match has_lid {
            true => abi::WC_EX_WITH | abi::WC_EX_WITH_SLID,
            false => abi::WC_EX_WITH,
        };
        let made = context
            .raw
            .create_cq(id, init.depth, channel, stamps.map(|_| fields));
        let cq = Arc::new(made.map_err(|error| refused("making a completion queue", error))?);
        if let (Some(Moderation { count, micros }), true) =
            (context.port().options.cq_moderation, channel.is_some())
        {
            let moderated = context.raw.moderate(&cq, count, micros);
            moderated.map_err(|error| refused("setting cq_moderation", error))?;
        }
        Ok(Self {
            poller: match stamps {
                Some(khz) => Poller::Stamped(cq.clone().into(), khz, has_lid),
                None if has_lid => Poller::WithLids(ObjectRef::of(&cq), poll),
                None => Poller::Plain(ObjectRef::of(&cq), poll),
            },
            made_by: context.raw.made_by(),
            cq,
            id,
            arm,
            reads_clock: init.timestamps && stamps.is_none(),
            overran: AtomicBool::new(false),
            _channel: init.channel.clone(),
            context: context.clone(),
            _ticket: ticket,
        })
    }
}

impl CompletionQueue for IbvCq {
    fn id(&self) -> CqId {
        self.id
    }

    fn depth(&self) -> u32 {
        self.cq.depth()
    }

    #[inline]
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        if self.made_by.is_foreign() {
            return Err(PollError::Forked);
        }
        let now = || match self.reads_clock {
            true => clock(),
            false => Instant::ZERO,
        };
        let polled = self.poller.poll(out, now);
        let count = polled.count as usize;
        if polled.failed {
            self.some_failed(&out[..count]);
        }
        if count == 0 {
            return self.nothing(polled.broken);
        }
        Ok(count)
    }

    fn arm(&self, solicited_only: bool) {
        if self.context.raw.is_foreign() {
            return;
        }
        self.cq.arm(self.arm, solicited_only);
    }
}

impl IbvCq {
    /// Reports the failed requests among the polled completions.
    #[cold]
    fn some_failed(&self, polled: &[Completion]) {
        let failed = polled
            .iter()
            .filter(|completion| completion.status != Status::Success);
        failed.for_each(|completion| self.context.failed(completion));
    }

    /// Result of a poll that brought nothing. A queue that overran may simply return no more completions;
    /// then only an asynchronous event reports it.
    #[inline(never)]
    fn nothing(&self, is_broken: bool) -> Result<usize, PollError> {
        self.context.glance(coarse_ms());
        if is_broken || self.overran.load(Ordering::Relaxed) {
            return Err(self.broken());
        }
        Ok(0)
    }

    #[cold]
    fn broken(&self) -> PollError {
        self.context.pump();
        if self.overran.load(Ordering::Relaxed) {
            PollError::Overrun
        } else {
            PollError::Corrupt
        }
    }
}

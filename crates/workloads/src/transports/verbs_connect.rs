//! Connects channels on verbs: the ring and the designs that it is compared with. Mail brings up the queue
//! pairs. The channel back exists only for workloads that send something back: a second array of large slots
//! is a lot of memory.

use std::iter;
use std::sync::Arc;

use headworks::ring::{EndSetup, MessageReceiver, MessageSender, SetupError, Unconnected};
use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{Device, QueuePair};
use headworks_baselines::counting::{Counts, Tally, counted};
use headworks_runtime::ActorContext;

use super::channel_pair::{ChannelEnds, ChannelPair};
use super::cpu_cost::MessageCost;
use super::job::Job;
use crate::actor_pair::{PairContext, Role};
use crate::connecting_actor::Connect;
use crate::error::{Result, WorkloadError};
use crate::mail_bring_up::MailBringUp;

/// The sending end that a design's setup becomes.
pub type Sender<K> = <<K as ChannelDesign>::Sending as EndSetup>::End;
/// The receiving end that a design's setup becomes.
pub type Receiver<K> = <<K as ChannelDesign>::Receiving as EndSetup>::End;
/// The ends of one actor.
pub type ChannelEndsOf<K> = ChannelEnds<Sender<K>, Receiver<K>>;

/// A channel design: types of its two ends, and how to make them.
pub trait ChannelDesign: Send + 'static {
    /// A sending end that is not connected yet.
    type Sending: EndSetup<End: MessageSender + Send> + Send;
    /// A receiving end that is not connected yet.
    type Receiving: EndSetup<End: MessageReceiver + Send> + Send;

    /// Makes a sending end.
    fn sender(&self, device: &Arc<dyn Device>) -> Result<Self::Sending, SetupError>;

    /// Makes a receiving end.
    fn receiver(&self, device: &Arc<dyn Device>) -> Result<Self::Receiving, SetupError>;

    /// Sets up the work other than sending and receiving messages of `size` bytes.
    fn adjust(&self, _: &mut ChannelEndsOf<Self>, _size: usize)
    where
        Self: Sized,
    {
    }
}

/// One of the two ends of a channel.
enum End<K: ChannelDesign> {
    Out(K::Sending),
    In(K::Receiving),
}

impl<K: ChannelDesign> Unconnected for End<K> {
    fn greeting(&self) -> Vec<u8> {
        match self {
            Self::Out(end) => end.greeting(),
            Self::In(end) => end.greeting(),
        }
    }

    fn queue_pair(&mut self) -> &mut dyn QueuePair {
        match self {
            Self::Out(end) => end.queue_pair(),
            Self::In(end) => end.queue_pair(),
        }
    }

    fn connection_params(&self) -> ConnectionParams {
        match self {
            Self::Out(end) => end.connection_params(),
            Self::In(end) => end.connection_params(),
        }
    }
}

/// Connects the ends of the actor with `role`. `there` is the channel from the sending actor, `back` the one
/// to it; it is unset where nothing is sent back.
pub fn meet<K: ChannelDesign>(
    device: Arc<dyn Device>,
    role: Role,
    there: &K,
    back: Option<&K>,
) -> Result<impl Connect<Connected = ChannelEndsOf<K>> + use<K>> {
    let failed = |why| WorkloadError::at("ring", why);
    let out = |kind: &K| kind.sender(&device).map(End::Out);
    let inward = |kind: &K| kind.receiver(&device).map(End::In);
    // Both actors list the channel from the sending actor first.
    let ends: Result<Vec<End<K>>, _> = match role {
        Role::Sender => iter::once(out(there)).chain(back.map(inward)).collect(),
        Role::Receiver => iter::once(inward(there)).chain(back.map(out)).collect(),
    };
    let ends = ends.map_err(failed)?;
    MailBringUp::start(device, ends, move |ends| {
        let mut met = ChannelEnds::new(None, None);
        for (end, greeting) in ends {
            match end {
                End::Out(end) => met.sender = Some(end.finish(&greeting).map_err(failed)?),
                End::In(end) => met.receiver = Some(end.finish(&greeting).map_err(failed)?),
            }
        }
        Ok(met)
    })
}

/// Connects a channel for a workload.
struct VerbsConnect<K, M> {
    job: Job,
    kind: K,
    tally: Option<(Arc<Tally>, Counts)>,
    price: Option<MessageCost>,
    meet: M,
}

/// Connects a channel of `kind` for `job`, on the actor's device.
pub fn connect<K: ChannelDesign>(
    job: Job,
    kind: K,
    pair: &PairContext,
) -> Result<impl Connect<Connected = ChannelPair<Sender<K>, Receiver<K>>> + use<K>> {
    let mut device = pair.open_device()?;
    let mut tally = None;
    if job.counted {
        let (counting, its) = counted(device);
        tally = Some((its, Counts::default()));
        device = counting;
    }
    let back = job.is_two_way().then_some(&kind);
    let price = |prices| MessageCost::of(job.channel, job.size, prices);
    Ok(VerbsConnect {
        meet: meet(device, pair.role, &kind, back)?,
        price: pair.prices.map(price),
        job,
        kind,
        tally,
    })
}

impl<K: ChannelDesign, M: Connect<Connected = ChannelEndsOf<K>>> Connect for VerbsConnect<K, M> {
    type Connected = ChannelPair<Sender<K>, Receiver<K>>;

    fn counts(&self) -> Option<Counts> {
        let (tally, before) = self.tally.as_ref()?;
        Some(tally.counts().since(*before))
    }

    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Option<Self::Connected>> {
        let Some(mut ends) = self.meet.step(cx)? else {
            return Ok(None);
        };
        if let Some((tally, before)) = &mut self.tally {
            *before = tally.counts();
        }
        self.kind.adjust(&mut ends, self.job.size);
        Ok(Some(ChannelPair::new(&self.job, ends, self.price)))
    }
}

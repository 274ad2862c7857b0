//! Connecting channels on verbs, the ring and the designs that it is compared with. The queue pairs are brought up by
//! mail. The channel back is made only for workloads that send something back: two arrays of large slots are a lot of
//! memory.

use std::sync::Arc;

use headworks::ring::{EndSetup, MessageReceiver, MessageSender, SetupError, Unconnected};
use headworks::verbs::{Device, QueuePair};
use headworks_baselines::counting::{Counts, Tally, counted};
use headworks_stage::Cx;

use super::cpu_cost::Price;
use super::job::Job;
use super::rings::{After, Ends, Rings};
use crate::driven::Connect;
use crate::error::WorkloadError;
use crate::meeting::{Meeting, opening};
use crate::pair::{PairContext, Role};

/// The sending end that a kind's setup becomes.
pub type Sender<K> = <<K as Kind>::Sending as EndSetup>::End;
/// The receiving end that a kind's setup becomes.
pub type Receiver<K> = <<K as Kind>::Receiving as EndSetup>::End;
/// The two ends of one actor.
pub type EndsOf<K> = Ends<Sender<K>, Receiver<K>>;

/// A channel's two kinds of ends, and how they are made.
pub trait Kind: Send + 'static {
    /// A sending end that is not connected yet.
    type Sending: EndSetup<End: MessageSender + Send> + Send;
    /// A receiving end that is not connected yet.
    type Receiving: EndSetup<End: MessageReceiver + Send> + Send;

    /// Makes a sending end.
    fn sender(&self, device: &Arc<dyn Device>) -> Result<Self::Sending, SetupError>;

    /// Makes a receiving end.
    fn receiver(&self, device: &Arc<dyn Device>) -> Result<Self::Receiving, SetupError>;

    /// Whether what is received is copied out before it is read.
    fn copies_out(&self) -> bool {
        false
    }

    /// What is done with an end after each message, if anything.
    fn after(&self) -> Option<After<Sender<Self>, Receiver<Self>>>
    where
        Self: Sized,
    {
        None
    }
}

/// Connects an actor's ends of the channel there, from the sending actor, and of the channel back.
pub struct Meet<K: Kind> {
    role: Role,
    sending: Option<K::Sending>,
    receiving: Option<K::Receiving>,
    meeting: Option<Meeting>,
    device: Arc<dyn Device>,
}

impl<K: Kind> Meet<K> {
    /// Makes the ends of the actor with `role` on its device; `back` is unset where nothing is sent back.
    pub fn start(
        device: Arc<dyn Device>,
        role: Role,
        there: &K,
        back: Option<&K>,
    ) -> Result<Self, WorkloadError> {
        let (sends, receives) = match role {
            Role::Sender => (Some(there), back),
            Role::Receiver => (back, Some(there)),
        };
        let sending = sends.map(|kind| kind.sender(&device)).transpose();
        let receiving = receives.map(|kind| kind.receiver(&device)).transpose();
        let mut meet = Self {
            role,
            sending: sending.map_err(failed)?,
            receiving: receiving.map_err(failed)?,
            meeting: None,
            device,
        };
        let out = meet.sending.as_mut().map(opening);
        let from = meet.receiving.as_mut().map(opening);
        let ends = in_order(role, out, from);
        meet.meeting = Some(Meeting::start(meet.device.info(), ends)?);
        Ok(meet)
    }
}

/// What there is of the end there and of the end back, in this order for both actors.
fn in_order<T>(role: Role, out: Option<T>, from: Option<T>) -> impl Iterator<Item = T> {
    let [there, back] = match role {
        Role::Sender => [out, from],
        Role::Receiver => [from, out],
    };
    there.into_iter().chain(back)
}

fn failed(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("ring", why)
}

impl<K: Kind> Connect for Meet<K> {
    type Arm = EndsOf<K>;

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<EndsOf<K>>, WorkloadError> {
        let met_before = || failed("the ends met before");
        let meeting = self.meeting.as_mut().ok_or_else(met_before)?;
        let out = self.sending.as_mut().map(|end| end.queue_pair());
        let from = self.receiving.as_mut().map(|end| end.queue_pair());
        let mut qps: Vec<&mut dyn QueuePair> = in_order(self.role, out, from).collect();
        let Some(greetings) = meeting.step(&mut qps, cx)? else {
            return Ok(None);
        };
        self.meeting = None;
        let [out, from] = match (self.role, &greetings[..]) {
            (Role::Sender, [there, back @ ..]) => [Some(there), back.first()],
            (Role::Receiver, [there, back @ ..]) => [back.first(), Some(there)],
            _ => [None; 2],
        };
        let sender = self.sending.take().zip(out);
        let sender = sender.map(|(end, greeting)| end.finish(greeting));
        let receiver = self.receiving.take().zip(from);
        let receiver = receiver.map(|(end, greeting)| end.finish(greeting));
        Ok(Some(Ends {
            device: Some(self.device.clone()),
            ..Ends::new(
                sender.transpose().map_err(failed)?,
                receiver.transpose().map_err(failed)?,
            )
        }))
    }
}

/// Connects a channel for a workload.
pub struct VerbsConnect<K: Kind> {
    job: Job,
    kind: K,
    tally: Option<(Arc<Tally>, Counts)>,
    price: Option<Price>,
    meet: Meet<K>,
}

impl<K: Kind> VerbsConnect<K> {
    /// Makes the ends on the actor's device.
    pub fn new(job: Job, kind: K, pair: &PairContext) -> Result<Self, WorkloadError> {
        let mut device = pair.open_device()?;
        let mut tally = None;
        if job.counted {
            let (counting, its) = counted(device);
            tally = Some((its, Counts::default()));
            device = counting;
        }
        let back = job.is_two_way().then_some(&kind);
        let price = |prices| Price::of(job.channel, job.size, prices);
        Ok(Self {
            meet: Meet::start(device, pair.role, &kind, back)?,
            price: pair.prices.map(price),
            job,
            kind,
            tally,
        })
    }
}

impl<K: Kind> Connect for VerbsConnect<K> {
    type Arm = Rings<Sender<K>, Receiver<K>>;

    fn counts(&self) -> Option<Counts> {
        let (tally, before) = self.tally.as_ref()?;
        Some(tally.counts().since(*before))
    }

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Self::Arm>, WorkloadError> {
        let Some(mut ends) = self.meet.step(cx)? else {
            return Ok(None);
        };
        if let Some((tally, before)) = &mut self.tally {
            *before = tally.counts();
        }
        if self.kind.copies_out() && ends.receiver.is_some() {
            ends.copy = vec![0; self.job.size];
        }
        ends.after = self.kind.after();
        Ok(Some(Rings::new(&self.job, ends, self.price)))
    }
}

//! Connects bare rings. Each actor makes the memory of its incoming ring and mails where it is. As on verbs,
//! the ring back exists only for workloads that send something back.

use headworks_baselines::{BareReceiver, BareSegment, BareSender};
use headworks_runtime::ActorContext;

use super::channel_pair::{ChannelEnds, ChannelPair};
use super::job::Job;
use crate::actor_pair::{PairMail, Role};
use crate::connecting_actor::Connect;
use crate::error::{Result, WorkloadError};

/// Connects the ring there and, if the workload needs it, the one back.
pub struct BareConnect {
    job: Job,
    role: Role,
    /// Memory of the incoming ring, once it is made.
    inward: Option<BareSegment>,
}

impl BareConnect {
    /// Connects for `job`.
    pub fn new(job: Job, role: Role) -> Self {
        let inward = None;
        Self { job, role, inward }
    }
}

fn failed(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("bare ring", why)
}

impl Connect for BareConnect {
    type Connected = ChannelPair<BareSender, BareReceiver>;

    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Option<Self::Connected>> {
        let (slots, slot) = (self.job.slots as usize, self.job.size.next_multiple_of(64));
        // The ring's defaults: α and γ are a quarter of the slots, β is an eighth.
        let (quarter, eighth) = ((slots / 4).max(1) as u64, (slots / 8).max(1));
        let both = self.job.is_two_way();
        if self.inward.is_none() && (both || self.role == Role::Receiver) {
            let (mut segment, _) = BareSegment::create(slots, slot).map_err(failed)?;
            let offer = segment.offer().map_err(failed)?;
            cx.send_mail(&serde_json::to_vec(&offer).map_err(failed)?)?;
            self.inward = Some(segment);
        }
        let mut sender = None;
        if both || self.role == Role::Sender {
            let Some(mail) = cx.receive_mail() else {
                return Ok(None);
            };
            let offer = serde_json::from_slice(&mail).map_err(failed)?;
            let outward = BareSegment::join(offer, slots, slot).map_err(failed)?;
            sender = Some(BareSender::new(outward, quarter, eighth).map_err(failed)?);
        }
        let receiver = self.inward.take();
        let receiver =
            receiver.map(|memory| BareReceiver::new(memory, quarter).of_length(self.job.size));
        Ok(Some(ChannelPair::new(
            &self.job,
            ChannelEnds::new(sender, receiver),
            None,
        )))
    }
}

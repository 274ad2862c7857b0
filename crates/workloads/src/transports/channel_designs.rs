//! The ring's settings and the baseline designs, as designs on verbs.

use std::sync::Arc;

use headworks::ring::{Mode, Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup, SetupError};
use headworks::verbs::{Device, Pages};
use headworks_baselines::paper_baselines::{
    BaselineSetup, Design, Head, Plan, Receives, Sends, SyncVariant, Tail,
};

use super::channel_pair::{ChannelEnds, PerMessageWork};
use super::job::{Combination, Job, RingMode, Variant};
use super::verbs_connect::ChannelDesign;

/// The ring.
pub struct RingDesign {
    config: RingConfig,
    variant: Variant,
}

impl RingDesign {
    /// Makes the ring of `job`: with the papers' framing, and α, β and γ of the mode.
    pub fn new(job: &Job, mode: RingMode) -> Self {
        let variant = match mode {
            RingMode::Default => Variant::Full,
            RingMode::Unbatched => Variant::Unbatched,
            RingMode::Latency => Variant::Latency,
            RingMode::Paper(variant) => variant,
        };
        Self::of(RingConfig::fixed(job.slots, job.size), variant)
    }

    /// Makes a ring of `config` with `variant` applied.
    pub fn of(mut config: RingConfig, variant: Variant) -> Self {
        vary(&mut config, variant);
        Self { config, variant }
    }
}

/// Applies `variant`: everything in which its row differs from M1.
fn vary(config: &mut RingConfig, variant: Variant) {
    if variant.is_huge() {
        config.pages = Pages::PreferHuge;
    }
    let mut batch =
        |slots| (config.publish_every, config.transmit_every) = (Some(slots), Some(slots));
    match variant {
        Variant::Full | Variant::OrdinaryPages | Variant::Copies => {}
        Variant::HugePages | Variant::Huge => {}
        Variant::NoBatching => {
            batch(1);
            config.push_every = Some(1);
            config.elastic = Some(false);
        }
        // By default β follows α only up to N/8. A larger β has to be set.
        Variant::NoEarlyTransmission => batch((config.slots / 4).max(1)),
        Variant::NoElasticThreshold => config.elastic = Some(false),
        Variant::NoLazyPush => config.push_every = Some(1),
        Variant::Unaligned | Variant::NotCacheFriendly => config.misaligned_by = 8,
        Variant::WrongNode(node) | Variant::WrongThreads(node) => config.numa_node = Some(node),
        Variant::Unbatched => batch(1),
        Variant::Latency => config.mode = Mode::Latency,
    }
}

impl ChannelDesign for RingDesign {
    type Sending = SenderSetup;
    type Receiving = ReceiverSetup;

    fn sender(&self, device: &Arc<dyn Device>) -> Result<SenderSetup, SetupError> {
        SenderSetup::new(device, &self.config)
    }

    fn receiver(&self, device: &Arc<dyn Device>) -> Result<ReceiverSetup, SetupError> {
        ReceiverSetup::new(device, &self.config)
    }

    fn adjust(&self, ends: &mut ChannelEnds<Sender, Receiver>, size: usize) {
        ends.extra = match self.variant {
            Variant::Copies => Some(PerMessageWork::Copy(vec![0; size])),
            Variant::NotCacheFriendly => Some(PerMessageWork::After(
                Sender::store_pointers_beside_cursor,
                Receiver::store_pointers_beside_cursor,
            )),
            _ => None,
        };
    }
}

/// A baseline design.
pub struct BaselineDesign<D>(pub D);

impl<D: Design> ChannelDesign for BaselineDesign<D> {
    type Sending = BaselineSetup<D, Sends>;
    type Receiving = BaselineSetup<D, Receives>;

    fn sender(&self, device: &Arc<dyn Device>) -> Result<Self::Sending, SetupError> {
        BaselineSetup::sender(device, self.0.clone())
    }

    fn receiver(&self, device: &Arc<dyn Device>) -> Result<Self::Receiving, SetupError> {
        BaselineSetup::receiver(device, self.0.clone())
    }
}

/// Returns the plan of a design that uses a ring for messages of `job`.
pub fn plan(job: &Job) -> Plan {
    Plan {
        messages: job.slots,
        longest: job.size,
    }
}

/// Makes the design of a combination, with slots like the ring's.
pub fn sync_variant(job: &Job, of: Combination) -> SyncVariant {
    let most = job.slots.saturating_sub(1).max(1);
    SyncVariant {
        head: if of.pull { Head::Pull } else { Head::Push },
        tail: if of.cq {
            Tail::PollCq
        } else {
            Tail::WriteTwice
        },
        ring: RingConfig {
            publish_every: Some(of.batch.min(most)),
            transmit_every: Some(of.batch.min(most)),
            push_every: Some(of.lazy.min(most)),
            ..RingConfig::fixed(job.slots, job.size)
        },
    }
}

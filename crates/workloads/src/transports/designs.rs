//! What the ring's settings and the rival designs stand for on verbs.

use std::sync::Arc;

use headworks::ring::{Mode, Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup, SetupError};
use headworks::verbs::{Device, Pages};
use headworks_baselines::paper_baselines::{
    BaselineSetup, Design, Head, Plan, Receives, Sends, SyncVariant, Tail,
};

use super::job::{Combination, Job, RingMode, Variant};
use super::rings::After;
use super::verbs::Kind;
use crate::error::WorkloadError;

/// Slots of the ring, as its configuration has them.
fn slots(job: &Job) -> Result<u32, WorkloadError> {
    let slots = job.slots.try_into();
    slots.map_err(|_| WorkloadError(format!("ring: {} slots", job.slots)))
}

/// The ring.
#[derive(Debug)]
pub struct RingKind {
    config: RingConfig,
    copies_out: bool,
    shares_line: bool,
}

impl RingKind {
    /// For `job`: the papers' framing; α, β and γ as the mode says.
    pub fn new(job: &Job, mode: RingMode) -> Result<Self, WorkloadError> {
        let mut config = RingConfig::fixed(slots(job)?, job.size);
        match mode {
            RingMode::Default => {}
            RingMode::Unbatched => {
                config.publish_every = Some(1);
                config.transmit_every = Some(1);
            }
            RingMode::Latency => config.mode = Mode::Latency,
            RingMode::Paper(variant) => return Ok(Self::of(config, variant)),
        }
        Ok(Self {
            config,
            copies_out: false,
            shares_line: false,
        })
    }

    /// This ring, without what `variant` is without.
    pub fn of(mut config: RingConfig, variant: Variant) -> Self {
        vary(&mut config, variant);
        Self {
            config,
            copies_out: variant == Variant::Copies,
            shares_line: variant == Variant::NotCacheFriendly,
        }
    }
}

/// Switches off what `variant` is without.
fn vary(config: &mut RingConfig, variant: Variant) {
    // What is switched off is all that a row differs by from M1.
    if variant.is_huge() {
        config.pages = Pages::PreferHuge;
    }
    match variant {
        Variant::Full | Variant::OrdinaryPages | Variant::Copies => {}
        Variant::HugePages | Variant::Huge => {}
        Variant::NoBatching => {
            config.publish_every = Some(1);
            config.transmit_every = Some(1);
            config.push_every = Some(1);
            config.elastic = Some(false);
        }
        // β follows α up to N/8: a β that is larger has to be named.
        Variant::NoEarlyTransmission => {
            let alpha = (config.slots / 4).max(1);
            config.publish_every = Some(alpha);
            config.transmit_every = Some(alpha);
        }
        Variant::NoElasticThreshold => config.elastic = Some(false),
        Variant::NoLazyPush => config.push_every = Some(1),
        Variant::Unaligned | Variant::NotCacheFriendly => config.misaligned_by = 8,
        Variant::WrongNode(node) | Variant::WrongThreads(node) => config.numa_node = Some(node),
        Variant::Unbatched => {
            config.publish_every = Some(1);
            config.transmit_every = Some(1);
        }
        Variant::Latency => config.mode = Mode::Latency,
    }
}

impl Kind for RingKind {
    type Sending = SenderSetup;
    type Receiving = ReceiverSetup;

    fn sender(&self, device: &Arc<dyn Device>) -> Result<SenderSetup, SetupError> {
        SenderSetup::new(device, &self.config)
    }

    fn receiver(&self, device: &Arc<dyn Device>) -> Result<ReceiverSetup, SetupError> {
        ReceiverSetup::new(device, &self.config)
    }

    fn copies_out(&self) -> bool {
        self.copies_out
    }

    fn after(&self) -> Option<After<Sender, Receiver>> {
        self.shares_line.then_some(After {
            sent: Sender::store_pointers_beside_cursor,
            received: Receiver::store_pointers_beside_cursor,
        })
    }
}

/// A rival design.
#[derive(Debug)]
pub struct RivalKind<D>(pub D);

impl<D: Design> Kind for RivalKind<D> {
    type Sending = BaselineSetup<D, Sends>;
    type Receiving = BaselineSetup<D, Receives>;

    fn sender(&self, device: &Arc<dyn Device>) -> Result<Self::Sending, SetupError> {
        BaselineSetup::sender(device, self.0.clone())
    }

    fn receiver(&self, device: &Arc<dyn Device>) -> Result<Self::Receiving, SetupError> {
        BaselineSetup::receiver(device, self.0.clone())
    }
}

/// As many messages of `job`'s size as the ring has slots.
pub fn plan(job: &Job) -> Result<Plan, WorkloadError> {
    Ok(Plan {
        messages: slots(job)?,
        longest: job.size,
    })
}

/// A combination on slots as the ring's.
pub fn points(job: &Job, combination: Combination) -> Result<SyncVariant, WorkloadError> {
    let most = slots(job)?.saturating_sub(1).max(1);
    let ring = RingConfig {
        publish_every: Some(combination.batch.min(most)),
        transmit_every: Some(combination.batch.min(most)),
        push_every: Some(combination.lazy.min(most)),
        ..RingConfig::fixed(slots(job)?, job.size)
    };
    Ok(SyncVariant {
        head: match combination.pull {
            true => Head::Pull,
            false => Head::Push,
        },
        tail: match combination.cq {
            true => Tail::PollCq,
            false => Tail::WriteTwice,
        },
        ring,
    })
}

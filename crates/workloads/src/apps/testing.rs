//! Channels for the tests of applications: rings of two soft hosts of one process.

use std::sync::Arc;

use headworks::connect;
use headworks::ring::ends::meet;
use headworks::ring::{EndSetup, Framing, Mode, Receiver, RingConfig, Sender, Unconnected};
use headworks::testing::Fabric;
use headworks::verbs::Device;
use headworks_baselines::rivals::{Design, RivalSetup};

/// Two hosts on a fabric of their own.
pub(crate) struct Hosts {
    here: Arc<dyn Device>,
    there: Arc<dyn Device>,
    _fabric: Fabric,
}

/// Which way a ring goes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Way {
    There,
    Back,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        let fabric = Fabric::new(std::env::temp_dir()).expect("a fabric");
        Self {
            here: fabric.open("soft:h1").expect("opens"),
            there: fabric.open("soft:h2").expect("opens"),
            _fabric: fabric,
        }
    }

    /// A ring that goes that way.
    pub(crate) fn ring(&self, config: &RingConfig, way: Way) -> (Sender, Receiver) {
        let (from, to) = match way {
            Way::There => (&self.here, &self.there),
            Way::Back => (&self.there, &self.here),
        };
        connect::pair(from, to, config).expect("connects")
    }

    /// A channel of a rival design that goes that way.
    pub(crate) fn rival<D: Design>(&self, design: &D, way: Way) -> Rival<D> {
        let (from, to) = match way {
            Way::There => (&self.here, &self.there),
            Way::Back => (&self.there, &self.here),
        };
        let mut tx = RivalSetup::sender(from, design.clone()).expect("a sender");
        let mut rx = RivalSetup::receiver(to, design.clone()).expect("a receiver");
        let (greeting, peers) = (tx.greeting(), rx.greeting());
        let ends = ((from.info(), &mut tx), (to.info(), &mut rx));
        meet(ends.0, ends.1, [1, 2]).expect("meets");
        let sender = tx.finish(&peers).expect("a sender");
        (sender, rx.finish(&greeting).expect("a receiver"))
    }
}

/// Both ends of such a channel.
type Rival<D> = (<D as Design>::Sender, <D as Design>::Receiver);

/// Rings from the smallest there is to the default, batched and not, for messages of `len` bytes.
pub(crate) fn rings(len: usize) -> Vec<RingConfig> {
    let mut all: Vec<_> = [2, 3, 8, 128]
        .map(|slots| RingConfig::fixed(slots, len))
        .into();
    let unbatched = |slots| RingConfig {
        publish_every: Some(1),
        transmit_every: Some(1),
        ..RingConfig::fixed(slots, len)
    };
    all.extend([unbatched(2), unbatched(16)]);
    for slots in [2, 128] {
        all.push(RingConfig {
            mode: Mode::Latency,
            ..RingConfig::fixed(slots, len)
        });
    }
    // As long as the longest message may be, so that most messages wrap.
    let slots = len as u32 / 64 + 3;
    all.push(RingConfig {
        framing: Framing::Variable(len),
        ..RingConfig::variable(slots, 64)
    });
    all
}

/// A bound for loops that a bug would make endless.
pub(crate) const STEPS_MAX: u64 = 50_000_000;

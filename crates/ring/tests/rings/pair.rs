//! Two connected ends on a private fabric.

use std::sync::Arc;

use headworks_ibverbs::IbvProvider;
pub(crate) use headworks_ring::oracle::{self, fill, holds};
use headworks_ring::{
    Framing, Mode, Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup, SetupError,
};
use headworks_shm::FabricDir;
use headworks_softnic::SoftProvider;
use headworks_softnic::hostile::Rules;
use headworks_verbs::bringup::{BringUp, Tuning};
use headworks_verbs::{Device, Provider, QueuePair};
use tempfile::TempDir;

/// Two hosts.
pub(crate) struct Hosts {
    pub(crate) left: Arc<dyn Device>,
    pub(crate) right: Arc<dyn Device>,
    /// The registry of soft hosts.
    _dir: Option<TempDir>,
}

impl Hosts {
    /// Two soft hosts, or the two devices of `HEADWORKS_IBV`, separated by a semicolon.
    pub(crate) fn new() -> Self {
        let Ok(names) = std::env::var("HEADWORKS_IBV") else {
            return Self::named("soft:h1", "soft:h2");
        };
        let (left, right) = names.split_once(';').expect("two devices");
        let provider = IbvProvider::new();
        let open = |name: &str| provider.open(&name.parse().unwrap()).unwrap();
        Self {
            left: open(left),
            right: open(right),
            _dir: None,
        }
    }

    /// Two devices of these names.
    pub(crate) fn named(left: &str, right: &str) -> Self {
        Self::on(left, right, |provider| provider)
    }

    /// Two devices of these names that misbehave by these rules.
    pub(crate) fn by(rules: Rules, left: &str, right: &str) -> Self {
        Self::on(left, right, |provider| provider.with_rules(rules))
    }

    fn on(left: &str, right: &str, make: impl FnOnce(SoftProvider) -> SoftProvider) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fabric = FabricDir::at(dir.path().join("fabric")).unwrap();
        let provider = make(SoftProvider::on(fabric));
        let open = |name: &str| provider.open(&name.parse().unwrap()).unwrap();
        Self {
            left: open(left),
            right: open(right),
            _dir: Some(dir),
        }
    }

    /// A ring from left to right.
    pub(crate) fn ring(&self, config: &RingConfig) -> (Sender, Receiver) {
        self.connect(config, config).unwrap()
    }

    /// A ring from left to right whose ends were made differently.
    pub(crate) fn connect(
        &self,
        sending: &RingConfig,
        receiving: &RingConfig,
    ) -> Result<(Sender, Receiver), SetupError> {
        let (tx, rx) = connect(&self.left, sending, &self.right, receiving)?;
        Ok((tx?, rx?))
    }
}

/// What both ends made of each other's greeting.
pub(crate) type Ends = oracle::Ends<SenderSetup, ReceiverSetup>;

/// Brings up a ring between two devices.
pub(crate) fn connect(
    from: &Arc<dyn Device>,
    sending: &RingConfig,
    to: &Arc<dyn Device>,
    receiving: &RingConfig,
) -> Result<Ends, SetupError> {
    let (tx, rx) = (
        SenderSetup::new(from, sending)?,
        ReceiverSetup::new(to, receiving)?,
    );
    Ok(oracle::connect(&**from, tx, &**to, rx))
}

/// Connects two queue pairs.
pub(crate) fn raise(
    left: &Arc<dyn Device>,
    left_qp: &mut dyn QueuePair,
    right: &Arc<dyn Device>,
    right_qp: &mut dyn QueuePair,
) {
    let tuning = Tuning::default();
    let mut a = BringUp::start(left.info(), left_qp, tuning, 1, Vec::new()).unwrap();
    let mut b = BringUp::start(right.info(), right_qp, tuning, 2, Vec::new()).unwrap();
    a.meet(left_qp, &mut b, right_qp).unwrap();
}

/// A ring of slots of 64 bytes.
pub(crate) fn config(slots: u32, framing: Framing, mode: Mode) -> RingConfig {
    RingConfig {
        slots,
        framing,
        mode,
        ..RingConfig::default()
    }
}

/// Longest variable message that N−1 slots of 64 bytes hold.
pub(crate) fn longest(slots: u32, mode: Mode) -> usize {
    let slots = slots as usize - 1;
    match mode {
        Mode::Latency if slots > 1 => (slots - 1) * 64,
        _ => slots * 64 - 8,
    }
}

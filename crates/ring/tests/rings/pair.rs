//! Two connected ends on a private fabric.

use std::sync::Arc;

use headworks_ring::{
    Framing, Mode, Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup, SetupError,
};
use headworks_shm::FabricDir;
use headworks_softnic::SoftProvider;
use headworks_softnic::hostile::Rules;
use headworks_verbs::bringup::{BringUp, Tuning};
use headworks_verbs::{Device, Provider, QueuePair};
use tempfile::TempDir;

/// Two soft hosts.
pub(crate) struct Hosts {
    pub(crate) left: Arc<dyn Device>,
    pub(crate) right: Arc<dyn Device>,
    _dir: TempDir,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        Self::named("soft:h1", "soft:h2")
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
            _dir: dir,
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
pub(crate) type Ends = (Result<Sender, SetupError>, Result<Receiver, SetupError>);

/// Brings up a ring between two devices.
pub(crate) fn connect(
    from: &Arc<dyn Device>,
    sending: &RingConfig,
    to: &Arc<dyn Device>,
    receiving: &RingConfig,
) -> Result<Ends, SetupError> {
    let mut tx = SenderSetup::new(from, sending)?;
    let mut rx = ReceiverSetup::new(to, receiving)?;
    let (from_tx, from_rx) = (tx.greeting(), rx.greeting());
    raise(from, tx.queue_pair(), to, rx.queue_pair());
    Ok((tx.finish(&from_rx), rx.finish(&from_tx)))
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

/// Fills `bytes` with the contents of message `number`.
pub(crate) fn fill(number: u64, bytes: &mut [u8]) {
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = pattern(number, at as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Whether `bytes` are the contents of message `number`.
pub(crate) fn holds(number: u64, bytes: &[u8]) -> bool {
    bytes.chunks(8).enumerate().all(|(at, chunk)| {
        let word = pattern(number, at as u64).to_le_bytes();
        chunk == &word[..chunk.len()]
    })
}

fn pattern(number: u64, at: u64) -> u64 {
    (number ^ at << 40)
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

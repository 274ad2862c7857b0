//! Two connected ends, on a private fabric of soft hosts or on the devices of `HEADWORKS_IBV`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_ibverbs::IbvProvider;
pub(crate) use headworks_ring::oracle::{self, fill, holds};
use headworks_ring::oracle::{Checked, Ring};
use headworks_ring::{
    Framing, Mode, Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup, SetupError,
};
pub(crate) use headworks_runtime::poll_expr;
use headworks_runtime::testing::{self, PollBudget};
pub(crate) use headworks_runtime::testing::{
    case_count, is_slow_device, limit, message_count, poll_until, poll_until_within,
};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_softnic::hostile::Rules;
use headworks_verbs::bringup::{BringUp, ConnectionParams};
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Device, Provider, QueuePair};
use tempfile::TempDir;

/// The devices of two hosts.
pub(crate) struct Hosts {
    pub(crate) left: Arc<dyn Device>,
    pub(crate) right: Arc<dyn Device>,
    /// The registry of soft hosts.
    _dir: Option<TempDir>,
}

impl Hosts {
    /// Opens two soft hosts, or the two devices of `HEADWORKS_IBV`.
    pub(crate) fn new() -> Self {
        let Some(names) = testing::devices() else {
            return Self::soft();
        };
        let provider = IbvProvider::new();
        let open = |name: &str| provider.open(&name.parse().unwrap()).unwrap();
        let [left, right] = names.map(|name| open(&name));
        Self {
            left,
            right,
            _dir: None,
        }
    }

    /// Returns whether cursors can be polled on these devices. If not, all rings announce them by completion.
    pub(crate) fn can_poll(&self) -> bool {
        let promises = self.left.info().promises;
        promises.ordered_between_writes && promises.atomic_aligned_8
    }

    /// Opens two soft hosts, for tests that write to an end's memory as its peer would.
    pub(crate) fn soft() -> Self {
        Self::named("soft:h1", "soft:h2")
    }

    /// Opens two devices by name.
    pub(crate) fn named(left: &str, right: &str) -> Self {
        Self::on(left, right, |provider| provider)
    }

    /// Opens two devices by name that misbehave by these rules.
    pub(crate) fn by(rules: Rules, left: &str, right: &str) -> Self {
        Self::on(left, right, |provider| provider.with_rules(rules))
    }

    fn on(left: &str, right: &str, make: impl FnOnce(SoftProvider) -> SoftProvider) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fabric = Registry::open_at(dir.path().join("fabric")).unwrap();
        let provider = make(SoftProvider::on(fabric));
        let open = |name: &str| provider.open(&name.parse().unwrap()).unwrap();
        Self {
            left: open(left),
            right: open(right),
            _dir: Some(dir),
        }
    }

    /// Connects a ring from left to right.
    pub(crate) fn ring(&self, config: &RingConfig) -> (Sender, Receiver) {
        self.connect(config, config).unwrap()
    }

    /// Connects a ring from left to right whose ends have different configurations.
    pub(crate) fn connect(
        &self,
        sending: &RingConfig,
        receiving: &RingConfig,
    ) -> Result<(Sender, Receiver), SetupError> {
        let (tx, rx) = connect(&self.left, sending, &self.right, receiving)?;
        Ok((tx?, rx?))
    }
}

/// The result of each end's setup with the other's greeting.
pub(crate) type Ends = oracle::Ends<SenderSetup, ReceiverSetup>;

/// Connects a ring between two devices.
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

/// Wraps a ring in the oracle's check, with the patience that the devices need.
pub(crate) fn checked(tx: Sender, rx: Receiver, framing: Framing) -> Checked<Ring> {
    match is_slow_device() {
        true => {
            let mut patience = PollBudget::of(1);
            Checked::slow(tx, rx, framing, move || {
                patience.wait();
                true
            })
        }
        false => Checked::new(tx, rx, framing),
    }
}

/// Connects two queue pairs.
pub(crate) fn raise(
    left: &Arc<dyn Device>,
    left_qp: &mut dyn QueuePair,
    right: &Arc<dyn Device>,
    right_qp: &mut dyn QueuePair,
) {
    let tuning = ConnectionParams::default();
    let mut a = BringUp::start(left.info(), left_qp, tuning, 1, Vec::new()).unwrap();
    let mut b = BringUp::start(right.info(), right_qp, tuning, 2, Vec::new()).unwrap();
    a.connect_both(left_qp, &mut b, right_qp).unwrap();
}

/// Counts the completions that are polled on a device.
#[derive(Default)]
pub(crate) struct Counting(AtomicU64);

impl Interposer for Counting {
    fn on_polled(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl Counting {
    /// Wraps `device`. Returns it with its counter.
    pub(crate) fn around(device: &Arc<dyn Device>) -> (Arc<dyn Device>, Arc<Self>) {
        let counting = Arc::new(Self::default());
        let around = InterposedDevice::new(device.clone(), counting.clone());
        (Arc::new(around), counting)
    }
}

/// Waits until all published messages have arrived, so that the sender may be dropped: on a slow device,
/// messages in flight would be lost with it. The ring must signal every tail and be the only one on the
/// device of `counting`. `heads` is the number of heads pushed to the sender.
pub(crate) fn quiet(tx: &mut Sender, heads: u64, counting: &Counting) {
    let heads = match tx.ring().mode {
        Mode::Notify => heads,
        _ => 0,
    };
    if is_slow_device() {
        assert!(tx.ring().elastic, "not every tail is signalled");
        stepped(tx, |tx| {
            let due = tx.stats().tail_writes + heads;
            (counting.0.load(Ordering::Relaxed) >= due).then_some(())
        });
    }
}

/// Publishes all sent messages.
#[track_caller]
pub(crate) fn flush(tx: &mut Sender) {
    poll_until(|| tx.flush().unwrap().then_some(()));
}

/// Steps the sender until `look` finds something.
#[track_caller]
pub(crate) fn stepped<T>(tx: &mut Sender, mut look: impl FnMut(&Sender) -> Option<T>) -> T {
    poll_until(|| {
        tx.step().unwrap();
        look(tx)
    })
}

/// Returns the configuration of a ring with slots of 64 bytes.
pub(crate) fn config(slots: u32, framing: Framing, mode: Mode) -> RingConfig {
    RingConfig {
        slots,
        framing,
        mode,
        ..RingConfig::default()
    }
}

/// Returns the longest variable message that N−1 slots of 64 bytes hold.
pub(crate) fn longest(slots: u32, mode: Mode) -> usize {
    let slots = slots as usize - 1;
    match mode {
        Mode::Latency if slots > 1 => (slots - 1) * 64,
        _ => slots * 64 - 8,
    }
}

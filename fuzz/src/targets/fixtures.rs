//! Devices, queue pairs and other helpers that several targets use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::bringup::{BringUpError, ConnectionParams};
use headworks_verbs::{
    BringUp, Device, ModifyError, PostError, PostErrorKind, Provider, QpAttr, QpCaps, QpState,
    QpType, Qpn, QueuePair, RecvWr, SendWr, qp_state,
};

/// Time limit for a call between honest ends; many times what such a call takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the registry of this run.
pub(super) fn registry() -> Arc<Registry> {
    Registry::open_default().expect("the registry of this run")
}

/// Opens a device on the registry of this run.
pub(super) fn open(name: &str) -> Arc<dyn Device> {
    let name = name.parse().expect("a device's name");
    SoftProvider::on(registry()).open(&name).expect("a device")
}

/// Acknowledgement timeout, as encoded in a queue pair's attributes: a request to a silent peer fails after a
/// few milliseconds.
pub(super) const SHORT_TIMEOUT: u8 = 8;
/// Acknowledgement timeout, as encoded: a request to a silent peer fails after a few seconds.
pub(super) const LONG_TIMEOUT: u8 = 19;

/// Connects two queue pairs that are in the RESET state, with [`SHORT_TIMEOUT`].
pub(super) fn connect(
    left: (&dyn Device, &mut dyn QueuePair),
    right: (&dyn Device, &mut dyn QueuePair),
) -> Result<(), BringUpError> {
    connect_for(left, right, SHORT_TIMEOUT)
}

/// Connects two queue pairs that are in the RESET state, with the encoded acknowledgement timeout `timeout`.
pub(super) fn connect_for(
    left: (&dyn Device, &mut dyn QueuePair),
    right: (&dyn Device, &mut dyn QueuePair),
    timeout: u8,
) -> Result<(), BringUpError> {
    let tuning = ConnectionParams {
        timeout: Some(timeout),
        retry_count: 1,
        rnr_retry: 1,
        ..ConnectionParams::default()
    };
    let mut a = BringUp::start(left.0.info(), left.1, tuning, 1, Vec::new())?;
    let mut b = BringUp::start(right.0.info(), right.1, tuning, 2, Vec::new())?;
    a.connect_both(left.1, &mut b, right.1)
}

/// Calls `done` until it returns true.
///
/// # Panics
///
/// If `done` does not return true within [`LIMIT`].
pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

/// A queue pair without a device. It checks state transitions and does nothing else.
pub(super) struct StubQueuePair {
    state: QpState,
    caps: QpCaps,
}

impl StubQueuePair {
    pub(super) fn new() -> Self {
        Self {
            state: QpState::Reset,
            caps: QpCaps::default(),
        }
    }
}

impl QueuePair for StubQueuePair {
    fn qpn(&self) -> Qpn {
        Qpn::default()
    }

    fn state(&self) -> QpState {
        self.state
    }

    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.state = qp_state::check_transition(QpType::Rc, self.state, attr)?;
        Ok(())
    }

    fn post_send(&mut self, _: &[SendWr<'_>]) -> Result<(), PostError> {
        Err(PostErrorKind::Device.at(0))
    }

    fn post_recv(&mut self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        Err(PostErrorKind::Device.at(0))
    }
}

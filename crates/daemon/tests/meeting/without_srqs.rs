//! A device without shared receive queues.

use std::sync::Arc;

use headworks_verbs::Device;
use headworks_verbs::interpose::{InterposedDevice, Interposer};

/// Changes nothing.
struct Unwatched;

impl Interposer for Unwatched {}

/// Returns the device as one that has no shared receive queues.
pub(crate) fn without_srqs(inner: Arc<dyn Device>) -> Arc<dyn Device> {
    let mut info = inner.info().clone();
    (info.limits.max_srq, info.limits.max_srq_wr) = (0, 0);
    let unwatched = Arc::new(Unwatched);
    Arc::new(InterposedDevice::with_info(inner, info, unwatched))
}

//! A device that promises more than its kind does, or less.

use std::sync::Arc;

use headworks::verbs::around::{Around, Watch};
use headworks::verbs::{Device, Promises};

/// Nothing is to be seen: what the device says of itself is all that differs.
struct Unwatched;

impl Watch for Unwatched {}

/// `inner` with these promises.
pub(super) fn promised(inner: Arc<dyn Device>, promises: Promises) -> Arc<dyn Device> {
    let mut info = inner.info().clone();
    info.promises = promises;
    Arc::new(Around::saying(inner, info, Arc::new(Unwatched)))
}

//! A look at a live fabric from outside: hosts, processes, queue pairs and what they count.

pub use headworks_softnic::inspect::{
    CompletionQueueCensus, ContextSnapshot, Held, PeerCensus, QueuePairCensus, RegistrySnapshot,
    SharedReceiveQueueCensus, Unreadable,
};

use headworks_shm::Registry;
use headworks_verbs::OpenError;

use crate::devices::DEFAULT_DEVICE;

/// Looks at the processes of the user's own fabric that have devices of `host`, or any, open. Joins
/// nothing and makes no registry: where there is none, nobody is there.
pub fn snapshot(host: Option<&str>) -> Result<RegistrySnapshot, OpenError> {
    let failed = |error: headworks_shm::RegistryError| OpenError::Provider {
        what: DEFAULT_DEVICE.to_owned(),
        source: error.into(),
    };
    match Registry::open_existing_default().map_err(failed)? {
        None => Ok(RegistrySnapshot::default()),
        Some(fabric) => headworks_softnic::inspect::look(&fabric, host).map_err(failed),
    }
}

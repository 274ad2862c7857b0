//! Takes a snapshot of a live fabric from outside: hosts, processes, queue pairs and their counters.

pub use headworks_softnic::inspect::{
    CompletionQueueSnapshot, ContextSnapshot, CountAndBytes, PeerSnapshot, QueuePairSnapshot,
    RegistrySnapshot, SharedReceiveQueueSnapshot, UnreadableContext,
};

pub use headworks_shm::ProcessId;
use headworks_shm::Registry;
use headworks_verbs::OpenError;

use crate::devices::DEFAULT_DEVICE;

/// Lists the processes of the user's own fabric that have devices of `host`, or of any host, open. Joins
/// nothing and creates no registry; without a registry the snapshot is empty.
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

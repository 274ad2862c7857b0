//! Software RNICs in a registry of their own.

use std::path::Path;
use std::sync::Arc;

use headworks_runtime::DeviceOpener;
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{OpenError, Provider};

/// Returns an opener of the software RNICs in the registry at `fabric`.
pub(crate) fn soft_opener(fabric: &Path) -> DeviceOpener {
    let fabric = fabric.to_owned();
    Arc::new(move |name| {
        let fabric = Registry::open_at(&fabric).map_err(|error| OpenError::Provider {
            what: name.to_string(),
            source: error.into(),
        })?;
        SoftProvider::on(fabric).open(name)
    })
}

//! What processes of this user pace, seen from outside.

use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_pacing::{Config, SharedPacing, Status};
use headworks_shm::{CommonSegmentRecord, Registry, View};
use headworks_verbs::{DeviceInfo, OpenError};

use super::{KEY, registry_key};
use crate::devices::DEFAULT_DEVICE;

/// An RNIC that processes of this user pace. It shows the same as [`status`](super::status) as long as one of the
/// processes lives, and then what was last.
pub struct Observer {
    share: SharedPacing,
    pids: Vec<u32>,
    key: String,
}

impl Observer {
    /// What the RNIC is called: a device's name without options, as those who pace it say it.
    pub fn rnic(&self) -> String {
        self.share.rnic().unwrap_or_else(|| self.key.clone())
    }

    /// The processes that have it open and pace it, from the lowest number on.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// By which constants, as far as observers need them: rates and thresholds. Of processes with different ones, those of
    /// the last to open it.
    pub fn constants(&self) -> Config {
        self.share.said().unwrap_or_default()
    }

    /// What its pacing says now.
    pub fn status(&self) -> Status {
        let now = headworks_net::clock::now();
        self.share.status(&self.constants(), now)
    }

    /// Whether it is the RNIC of this device.
    pub fn is_of(&self, info: &DeviceInfo) -> bool {
        self.key == registry_key(info)
    }
}

/// The RNICs that processes of this user pace now. Looks only: maps what they share for reading. Simulated RNICs are
/// paced each within its process, and not seen here.
///
/// # Errors
///
/// Those of the registry.
pub fn observers() -> Result<Vec<Observer>, OpenError> {
    let failed = |error: headworks_shm::RegistryError| OpenError::Provider {
        what: DEFAULT_DEVICE.to_owned(),
        source: error.into(),
    };
    let Some(fabric) = Registry::open_existing_default().map_err(failed)? else {
        return Ok(Vec::new());
    };
    let mut found: BTreeMap<String, Observer> = BTreeMap::new();
    for (key, record) in fabric.common_segments().map_err(failed)? {
        if !key.starts_with(KEY) {
            continue;
        }
        match found.get_mut(&key) {
            Some(observer) => observer.pids.push(record.process.pid),
            // Who ends meanwhile is not there.
            None => {
                if let Some(observer) = observe(&key, &record) {
                    found.insert(key, observer);
                }
            }
        }
    }
    let mut all: Vec<_> = found.into_values().collect();
    for observer in &mut all {
        observer.pids.sort_unstable();
        observer.pids.dedup();
    }
    all.sort_by_cached_key(Observer::rnic);
    Ok(all)
}

fn observe(key: &str, record: &CommonSegmentRecord) -> Option<Observer> {
    let is_ours = record.layout_version == headworks_pacing::shared_state::LAYOUT_VERSION;
    let segment = is_ours
        .then(|| record.attach_read_only().ok().flatten())
        .flatten()?;
    Some(Observer {
        share: SharedPacing::over(View::from(Arc::new(segment))).ok()?,
        pids: vec![record.process.pid],
        key: key.to_owned(),
    })
}

//! Observes from outside which RNICs the processes of this user pace.

use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_pacing::{PacingConfig, SharedPacing, Status};
use headworks_shm::{CommonSegmentRecord, Registry, View};
use headworks_verbs::{DeviceInfo, OpenError};

use super::{KEY, registry_key};
use crate::devices::DEFAULT_DEVICE;

/// An RNIC that processes of this user pace. It shows the same as [`status`](super::status) while one of the
/// processes lives, and the last state after that.
pub struct Observer {
    share: SharedPacing,
    pids: Vec<u32>,
    key: String,
}

impl Observer {
    /// Returns the RNIC's name as the pacing processes published it: a device's name without options.
    pub fn rnic(&self) -> String {
        self.share.rnic().unwrap_or_else(|| self.key.clone())
    }

    /// Returns the processes that have it open and pace it, in ascending order.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Returns the constants that observers need: rates and thresholds. If the processes set different ones,
    /// those of the last to open it are returned.
    pub fn constants(&self) -> PacingConfig {
        self.share.published().unwrap_or_default()
    }

    /// Returns the present status of its pacing.
    pub fn status(&self) -> Status {
        let now = headworks_net::clock::now();
        self.share.status(&self.constants(), now)
    }

    /// Whether this is the RNIC of the device.
    pub fn is_of(&self, info: &DeviceInfo) -> bool {
        self.key == registry_key(info)
    }
}

/// Lists the RNICs that processes of this user pace now. Only maps their shared memory for reading. Simulated
/// RNICs are paced within a process and not visible here.
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
        // A process that ends meanwhile is skipped.
        let Ok(Some(process)) = fabric.process_record(record.process) else {
            continue;
        };
        match found.get_mut(&key) {
            Some(observer) => observer.pids.push(process.pid),
            None => {
                if let Some(observer) = observe(&fabric, &key, &record, process.pid) {
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

fn observe(
    fabric: &Arc<Registry>,
    key: &str,
    record: &CommonSegmentRecord,
    pid: u32,
) -> Option<Observer> {
    let is_ours = record.layout_version == headworks_pacing::shared_state::LAYOUT_VERSION;
    let segment = is_ours
        .then(|| {
            fabric
                .attach_common_segment_read_only(record)
                .ok()
                .flatten()
        })
        .flatten()?;
    let share = SharedPacing::over(View::from(Arc::new(segment))).ok()?;
    Some(Observer {
        share: share.observed_in(fabric.clone()),
        pids: vec![pid],
        key: key.to_owned(),
    })
}

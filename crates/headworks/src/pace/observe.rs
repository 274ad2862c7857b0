//! Observes from outside which RNICs the processes of this user pace.

use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_pacing::shared_state::LAYOUT_VERSION;
use headworks_pacing::{PacingConfig, SharedPacing, Status};
use headworks_shm::{CommonSegmentRecord, ProcessId, ProcessRecord, Registry, RegistryError, View};
use headworks_verbs::{DeviceInfo, OpenError};

use super::{KEY, registry_key};
use crate::devices::DEFAULT_DEVICE;

/// The RNICs that processes of this user pace, as [`observers`] finds them.
#[derive(Default)]
pub struct Observers {
    /// The RNICs, in the order of their names.
    pub rnics: Vec<Observer>,
    /// One reason in one line for each process whose pacing cannot be read: it is stopped, or it runs another version
    /// of this software.
    pub unreadable: Vec<String>,
}

/// An RNIC that processes of this user pace. It shows the same as [`status`](super::status) while one of the
/// processes lives, and the last state after that.
pub struct Observer {
    share: SharedPacing,
    /// The constants that were published when the RNIC was found.
    constants: PacingConfig,
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
        // Another process may be publishing its own now: then they are legal again in a moment.
        let published = self.share.published();
        published.unwrap_or_else(|| self.constants.clone())
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
/// RNICs are paced within a process and not visible here. A stopped process delays the call by its limit for answers,
/// two seconds, unless another process that paces the same RNIC answers first.
///
/// # Errors
///
/// Those of the registry.
pub fn observers() -> Result<Observers, OpenError> {
    let failed = |error: RegistryError| OpenError::Provider {
        what: DEFAULT_DEVICE.to_owned(),
        source: error.into(),
    };
    match Registry::open_existing_default().map_err(failed)? {
        None => Ok(Observers::default()),
        Some(fabric) => observers_in(&fabric).map_err(failed),
    }
}

/// A process's hold on the pacing state of an RNIC.
struct Hold {
    record: CommonSegmentRecord,
    process: ProcessRecord,
}

fn observers_in(fabric: &Arc<Registry>) -> Result<Observers, RegistryError> {
    let listing = fabric.common_segments()?;
    let mut all = Observers::default();
    for (key, error) in listing.unreadable {
        if key.starts_with(KEY) {
            all.unreadable.push(error.to_string());
        }
    }
    let mut holds: BTreeMap<String, Vec<Hold>> = BTreeMap::new();
    for (key, record) in listing.entries {
        if !key.starts_with(KEY) {
            continue;
        }
        match fabric.process_record(record.process) {
            Ok(Some(process)) => holds.entry(key).or_default().push(Hold { record, process }),
            // A process that ends meanwhile is skipped.
            Ok(None) => {}
            Err(error) => all.unreadable.push(error.to_string()),
        }
    }
    let mut silent = BTreeMap::new();
    for (key, holds) in holds {
        observe(fabric, key, holds, &mut silent, &mut all);
    }
    all.rnics.sort_by_cached_key(Observer::rnic);
    Ok(all)
}

/// Adds an RNIC to `all`: its state, which any of its holders has, or the reasons why none gives it. `silent` holds the
/// processes that did not answer: each is waited for once.
fn observe(
    fabric: &Arc<Registry>,
    key: String,
    holds: Vec<Hold>,
    silent: &mut BTreeMap<ProcessId, String>,
    all: &mut Observers,
) {
    let (mut share, mut pids, mut reasons) = (None, Vec::new(), Vec::new());
    for hold in &holds {
        if share.is_none() {
            match attach(fabric, hold, silent) {
                Ok(Some(found)) => share = Some(found),
                Ok(None) => continue,
                Err(reason) => reasons.push(reason),
            }
        }
        pids.push(hold.process.pid);
    }
    let Some(share) = share else {
        all.unreadable.extend(reasons);
        return;
    };
    pids.sort_unstable();
    pids.dedup();
    match share.published() {
        Some(constants) => all.rnics.push(Observer {
            share: share.observed_in(fabric.clone()),
            constants,
            pids,
            key,
        }),
        None => {
            let reason = |hold: &Hold| format!("{} has published no legal constants", hold.process);
            all.unreadable.extend(holds.iter().map(reason));
        }
    }
}

/// Maps the pacing state that a process holds. Returns `None` if the process has released it, or the reason why it
/// cannot be read.
fn attach(
    fabric: &Arc<Registry>,
    Hold { record, process }: &Hold,
    silent: &mut BTreeMap<ProcessId, String>,
) -> Result<Option<SharedPacing>, String> {
    let found = record.layout_version;
    if found != LAYOUT_VERSION {
        return Err(format!(
            "the pacing state of {process} has layout version {found}, this program reads version {LAYOUT_VERSION}"
        ));
    }
    if let Some(reason) = silent.get(&record.process) {
        return Err(reason.clone());
    }
    let segment = match fabric.attach_common_segment_read_only(record) {
        Ok(Some(segment)) => segment,
        Ok(None) => return Ok(None),
        Err(error) => {
            let reason = error.to_string();
            silent.insert(record.process, reason.clone());
            return Err(reason);
        }
    };
    let share = SharedPacing::over(View::from(Arc::new(segment)));
    let share = share.map_err(|error| format!("the pacing state of {process}: {error}"))?;
    Ok(Some(share))
}

#[cfg(test)]
mod tests {
    use headworks_pacing::shared_state::BYTES;
    use headworks_shm::CommonSegmentClaim;

    use super::*;

    #[test]
    fn processes_whose_pacing_cannot_be_read_are_listed_with_the_reason() {
        let parent = tempfile::tempdir().unwrap();
        let fabric = Registry::open_at(parent.path().join("fabric")).unwrap();
        let claim = |key: &str, version| fabric.claim_common_segment(key, BYTES, version).unwrap();
        let share = |claim: &CommonSegmentClaim| {
            SharedPacing::over(View::from(claim.segment().clone())).unwrap()
        };
        let other = claim("other", LAYOUT_VERSION + 1);
        let found = || observers_in(&fabric).unwrap();
        assert!(found().rnics.is_empty() && found().unreadable.is_empty());

        // Nobody has published constants yet: those of the defaults are not shown in their place.
        let paced = claim("pace-1", LAYOUT_VERSION);
        let unreadable = found().unreadable;
        assert!(found().rnics.is_empty());
        assert_eq!(unreadable.len(), 1);
        assert!(
            unreadable[0].contains("published no legal constants"),
            "{unreadable:?}"
        );
        let mut config = PacingConfig::default();
        config.set("line_rate_gbps", "25").unwrap();
        share(&paced).publish("soft:h1", &config);
        let all = found();
        assert_eq!(all.unreadable, [""; 0]);
        assert_eq!(all.rnics.len(), 1);
        assert_eq!(all.rnics[0].rnic(), "soft:h1");
        assert_eq!(all.rnics[0].constants(), config);
        assert_eq!(all.rnics[0].pids(), [std::process::id()]);

        let newer = claim("pace-2", LAYOUT_VERSION + 1);
        let unreadable = found().unreadable;
        assert_eq!((found().rnics.len(), unreadable.len()), (1, 1));
        assert!(
            unreadable[0].contains("this program reads version"),
            "{unreadable:?}"
        );
        drop(newer);

        // An entry of another version of this software.
        let entries = std::fs::read_dir(fabric.path()).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let is_hold = |path: &std::path::PathBuf| path.to_string_lossy().contains("s.pace-1");
        let path = paths.find(is_hold).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4] = 9;
        std::fs::write(&path, bytes).unwrap();
        let all = found();
        assert!(all.rnics.is_empty());
        assert!(
            all.unreadable.len() == 1 && all.unreadable[0].contains("has version 9"),
            "{:?}",
            all.unreadable
        );
        drop((paced, other));
    }
}

//! Doorbell pacing, requested in a device's name: `soft:h1,pace`, `ibv:mlx5_0,pace,pace_base_delay_ns=2100`.
//!
//! A paced device behaves as the device it wraps, except for when its requests are posted; the crate
//! [`crate::pacing`] implements it. Its constants are options, `pace_KEY=VALUE`; any of them turns pacing on.
//! All processes of a user that pace one RNIC share one rate. They share it through the user's registry; a
//! simulated RNIC's rate is shared within the process only.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = headworks::open("soft:h1,pace")?;
//! // … queue pairs as of any device …
//! let status = headworks::pace::status(device.info()).ok_or("not paced by this process")?;
//! println!("{} B/s, {} queue pairs active", status.rate_bytes_per_s, status.active);
//! # Ok(())
//! # }
//! ```
//!
//! [`observers`] shows what all processes of the user pace. [`calibrate()`] measures the delays of an idle
//! device. The command `headworks pace` does both. The guide is docs/pacing.md.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use headworks_pacing::shared_state::{BYTES, LAYOUT_VERSION};
use headworks_pacing::{Clock, PacedDevice, Pacing, PacingConfig, SetError, SharedPacing, Status};
use headworks_shm::fork::ForkGeneration;
use headworks_shm::{
    CommonSegmentClaim, HugePages, Registry, SegmentRequest, SharedSegment, View, fnv1a,
};
use headworks_verbs::{Device, DeviceInfo, DeviceName, DeviceOpener, Instant, OpenError};

use device_kind::{first_ibv_device, is_simulated, simulated_link_gbps};

pub mod calibrate;
mod device_kind;
mod observe;

pub use calibrate::calibrate;
pub use headworks_pacing::monitor::Class;
pub use headworks_pacing::{CONSTANTS, Constant, Counts};
pub use headworks_pacing::{PacingConfig as PaceConfig, Status as PaceStatus};
pub use observe::{Observer, Observers, observers};

/// Option that turns pacing on.
const OPTION: &str = "pace";
/// Prefix of the options that set constants.
const PREFIX: &str = "pace_";
/// Prefix of the registry keys of shared rates.
const KEY: &str = "pace-";

/// Splits a device's name into the name without pacing options and the configuration that those options set;
/// `None` if they do not ask for pacing.
///
/// # Errors
///
/// [`OpenError::BadOption`] if `pace` has a value; [`OpenError::Provider`] if a constant cannot be set so.
pub fn split(name: &DeviceName) -> Result<(DeviceName, Option<PacingConfig>), OpenError> {
    let is_ours = |key: &str| key == OPTION || key.starts_with(PREFIX);
    if !name.options().any(|(key, _)| is_ours(key)) {
        return Ok((name.clone(), None));
    }
    let mut plain = name.kind().to_owned();
    if let Some(name) = name.name() {
        plain += &format!(":{name}");
    }
    let mut config = default_config(name);
    let mut has_least = false;
    for (key, value) in name.options() {
        let text = value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"));
        if let Some(constant) = key.strip_prefix(PREFIX) {
            let set = config.set(constant, value.unwrap_or_default());
            set.map_err(|error| bad_option(&text, error))?;
            has_least |= constant == "min_rate_gbps";
        } else if key == OPTION {
            if value.is_some() {
                return Err(OpenError::BadOption {
                    option: text,
                    kind: "pacing",
                    legal: "pace takes no value; pace_KEY=VALUE sets a constant, as in soft:h1,pace_window=1",
                });
            }
        } else {
            plain += &format!(",{text}");
        }
    }
    if !has_least {
        config.min_rate_gbps = config.min_rate_gbps.min(config.line_rate_gbps);
    }
    config
        .check()
        .map_err(|error| bad_option(&name.to_string(), error))?;
    let plain = plain.parse().map_err(OpenError::Name)?;
    Ok((plain, Some(config)))
}

fn bad_option(what: &str, error: SetError) -> OpenError {
    OpenError::Provider {
        what: what.to_owned(),
        source: error.into(),
    }
}

/// Whether an error is about a constant of pacing.
pub(crate) fn is_bad_constant(source: &(dyn Error + 'static)) -> bool {
    source.is::<SetError>()
}

/// Returns the default constants of a kind of device.
fn default_config(name: &DeviceName) -> PacingConfig {
    let mut config = PacingConfig::default();
    if is_simulated(name) {
        let plain = name.name().map_or_else(
            || name.kind().to_owned(),
            |preset| format!("{}:{preset}", name.kind()),
        );
        // A wrong name is refused when the device is opened.
        let plain = plain.parse().ok();
        if let Some(link_gbps) = plain.as_ref().and_then(simulated_link_gbps) {
            config.line_rate_gbps = link_gbps;
        }
    }
    // A timestamp of the software RNIC costs a clock read, as polling does.
    if name.kind() == "soft" {
        config.timestamps = false;
    }
    config
}

/// Wraps `inner` into an opener that understands pacing options; `inner` itself need not.
pub fn opener(inner: DeviceOpener) -> DeviceOpener {
    Arc::new(move |name| match split(name)? {
        (_, None) => inner(name),
        (plain, Some(config)) => paced(inner(&plain)?, name, config),
    })
}

/// Wraps `inner` into a paced device under the name `name`.
pub(crate) fn paced(
    inner: Arc<dyn Device>,
    name: &DeviceName,
    config: PacingConfig,
) -> Result<Arc<dyn Device>, OpenError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| OpenError::Provider {
        what: name.to_string(),
        source,
    };
    let mut info = inner.info().clone();
    info.name = name.clone();
    let is_real = !is_simulated(name);
    let shared = shared(&info, is_real).map_err(failed)?;
    let clock: Clock = match is_real {
        true => Arc::new(headworks_net::clock::now),
        false => {
            let device = inner.clone();
            Arc::new(move || device.now())
        }
    };
    let config = Arc::new(config);
    shared.share.publish(&rnic(name), &config);
    remember(&info, &shared, &config, &clock);
    let pacing = Pacing {
        share: shared.share.clone(),
        config,
        clock,
        is_real,
        keeper: Some(shared),
    };
    Ok(Arc::new(PacedDevice::new(inner, info, pacing)))
}

/// The rate shared by all processes that pace an RNIC; kept while this process paces it.
struct SharedRate {
    share: SharedPacing,
    /// Registry entry by which other processes find the shared memory.
    _claim: Option<CommonSegmentClaim>,
}

/// An RNIC that this process paces.
struct PacedRnic {
    shared: Weak<SharedRate>,
    config: Arc<PacingConfig>,
    clock: Clock,
    /// The process that paces it. A forked child must not use this: it does not hold the claim that keeps the
    /// shared memory.
    made_by: ForkGeneration,
}

impl PacedRnic {
    fn shared(&self) -> Option<Arc<SharedRate>> {
        match self.made_by.is_foreign() {
            true => None,
            false => self.shared.upgrade(),
        }
    }
}

/// The RNICs that this process paces, by registry key.
static PACED_RNICS: LazyLock<Mutex<BTreeMap<String, PacedRnic>>> = LazyLock::new(Mutex::default);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Returns the name of a device's RNIC, however the device is named: kind and name without options. A name
/// that was left out is filled in: `h1` of `soft`, and the first device of libibverbs. [`Observer::rnic`]
/// returns the same.
pub fn rnic(device: &DeviceName) -> String {
    let kind = device.kind();
    match (kind, device.name()) {
        (_, Some(name)) => format!("{kind}:{name}"),
        ("soft", None) => "soft:h1".to_owned(),
        ("ibv", None) => {
            let first = first_ibv_device().map(|first| format!("ibv:{first}"));
            first.unwrap_or_else(|| kind.to_owned())
        }
        _ => kind.to_owned(),
    }
}

/// Returns the RNIC's key in the registry.
fn registry_key(info: &DeviceInfo) -> String {
    let rnic = match info.name.kind() {
        // Ports of different devices can have the same address.
        "ibv" => rnic(&info.name),
        kind => format!("{kind} {:x} {:x?}", info.network, info.gid),
    };
    format!("{KEY}{:016x}", fnv1a(rnic.as_bytes()))
}

fn shared(info: &DeviceInfo, is_real: bool) -> Result<Arc<SharedRate>, BoxError> {
    let key = registry_key(info);
    // The lock is held until the memory exists: if two threads open at once, only one creates it.
    let paced = PACED_RNICS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = paced.get(&key).and_then(PacedRnic::shared) {
        return Ok(shared);
    }
    let (segment, claim) = if is_real {
        let fabric = Registry::open_default()?;
        let claim = fabric.claim_common_segment(&key, BYTES, LAYOUT_VERSION)?;
        (claim.segment().clone(), Some(claim))
    } else {
        let request = SegmentRequest {
            name: "headworks-pace",
            len: BYTES,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        (Arc::new(SharedSegment::create(&request)?), None)
    };
    let share = SharedPacing::over(View::from(segment))?;
    let share = match &claim {
        Some(claim) => share.shared_by(claim.member().clone()),
        None => share,
    };
    Ok(Arc::new(SharedRate {
        share,
        _claim: claim,
    }))
}

fn remember(
    info: &DeviceInfo,
    shared: &Arc<SharedRate>,
    config: &Arc<PacingConfig>,
    clock: &Clock,
) {
    let mut paced = PACED_RNICS.lock().unwrap_or_else(PoisonError::into_inner);
    paced.retain(|_, paced| paced.shared.strong_count() > 0);
    paced.insert(
        registry_key(info),
        PacedRnic {
            shared: Arc::downgrade(shared),
            config: config.clone(),
            clock: clock.clone(),
            made_by: ForkGeneration::current(),
        },
    );
}

/// Returns the pacing status of the RNIC of a device of this process; `None` if this process does not pace
/// it.
pub fn status(info: &DeviceInfo) -> Option<Status> {
    with(info, |share, config, now| share.status(config, now))
}

/// Cuts the rate of the RNIC for all its processes: a receiver calls it to signal congestion. Returns whether
/// the rate was cut; `None` if this process does not pace the RNIC.
pub fn cut_rate(info: &DeviceInfo) -> Option<bool> {
    with(info, |share, config, now| share.cut(config, now))
}

fn with<R>(
    info: &DeviceInfo,
    ask: impl FnOnce(&SharedPacing, &PacingConfig, Instant) -> R,
) -> Option<R> {
    let (shared, config, clock) = {
        let paced = PACED_RNICS.lock().unwrap_or_else(PoisonError::into_inner);
        let paced = paced.get(&registry_key(info))?;
        let shared = paced.shared()?;
        (shared, paced.config.clone(), paced.clock.clone())
    };
    Some(ask(&shared.share, &config, clock()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> Result<Option<PacingConfig>, OpenError> {
        Ok(split(&name.parse().expect("a name"))?.1)
    }

    #[test]
    fn a_slower_line_lowers_the_default_minimum_rate() {
        let rates = |name| {
            let config = config(name).expect("legal").expect("paced");
            (config.line_rate_gbps, config.min_rate_gbps)
        };
        assert_eq!(rates("soft:h1,pace"), (100.0, 5.0));
        assert_eq!(rates("soft:h1,pace_line_rate_gbps=1"), (1.0, 1.0));
        assert_eq!(rates("soft,pace_line_rate_gbps=6"), (6.0, 5.0));
        let both = "soft,pace_min_rate_gbps=0.5,pace_line_rate_gbps=1";
        assert_eq!(rates(both), (1.0, 0.5));
        let refused = config("soft,pace_line_rate_gbps=1,pace_min_rate_gbps=2");
        assert!(matches!(refused, Err(OpenError::Provider { .. })));
        assert!(matches!(config("soft:h1,hostile"), Ok(None)));
    }
}

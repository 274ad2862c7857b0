//! Doorbell pacing by a device's name: `soft:h1,pace`, `ibv:mlx5_0,pace,pace_base_delay_ns=2100`.
//!
//! A paced device is as the one it is around, but for when its requests are posted; [`crate::pacing`] is the crate that
//! does it. Its constants are options, `pace_KEY=VALUE`; any of them paces. All processes of a user that pace one RNIC
//! share one rate: through the user's registry, or, where the RNIC is simulated, through this process.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = headworks::open(&"soft:h1,pace".parse()?)?;
//! // … queue pairs as of any device …
//! let status = headworks::pace::status(device.info()).ok_or("not paced by this process")?;
//! println!("{} B/s, {} queue pairs active", status.rate_bytes_per_s, status.active);
//! # Ok(())
//! # }
//! ```
//!
//! [`observers`] shows what all processes of the user pace, and [`calibrate()`] what delays an idle device has; the command
//! has both: `headworks pace`. docs/pacing.md is the guide.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use headworks_ibverbs::IbvProvider;
use headworks_pacing::shared_state::{BYTES, LAYOUT_VERSION};
use headworks_pacing::{Clock, Config, PacedDevice, Pacing, SetError, SharedPacing, Status};
use headworks_runtime::DeviceOpener;
use headworks_shm::fork::ForkGeneration;
use headworks_shm::{
    CommonSegmentClaim, HugePages, Registry, SegmentRequest, SharedSegment, View, fnv1a,
};
use headworks_simnic::{Preset, is_simulated, provider};
use headworks_verbs::{Device, DeviceInfo, DeviceName, Instant, OpenError};

pub mod calibrate;
mod observe;

pub use calibrate::calibrate;
pub use headworks_pacing::monitor::Class;
pub use headworks_pacing::{CONSTANTS, Constant, Counts};
pub use headworks_pacing::{Config as PaceConfig, Status as PaceStatus};
pub use observe::{Observer, observers};

/// The option that paces.
const OPTION: &str = "pace";
/// What options begin with that are constants.
const PREFIX: &str = "pace_";
/// What keys of shares begin with.
const KEY: &str = "pace-";

/// A name without what it says of pacing, and that: `None` where it is not to be paced.
///
/// # Errors
///
/// [`OpenError::BadOption`] where a constant is not to be set so.
pub fn split(name: &DeviceName) -> Result<(DeviceName, Option<Config>), OpenError> {
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

/// The constants of a kind of devices, where nothing is said.
fn default_config(name: &DeviceName) -> Config {
    let mut config = Config::default();
    if is_simulated(name) {
        let plain = name.name().map_or_else(
            || name.kind().to_owned(),
            |preset| format!("{}:{preset}", name.kind()),
        );
        // A name that is wrong is refused when it is opened.
        let preset = plain
            .parse()
            .ok()
            .and_then(|name| provider::machine(&name).ok());
        if let Some((Preset { link_gbps, .. }, _)) = preset {
            config.line_rate_gbps = link_gbps;
        }
    }
    // A timestamp of the software RNIC costs a look at the clock, as polling does.
    if name.kind() == "soft" {
        config.timestamps = 0.0;
    }
    config
}

/// An opener that understands what names say of pacing, around one that need not.
pub fn opener(inner: DeviceOpener) -> DeviceOpener {
    Arc::new(move |name| match split(name)? {
        (_, None) => inner(name),
        (plain, Some(config)) => paced(inner(&plain)?, name, config),
    })
}

/// `inner`, paced, under the name `name`.
pub(crate) fn paced(
    inner: Arc<dyn Device>,
    name: &DeviceName,
    config: Config,
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
    shared.share.say(&rnic(name), &config);
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

/// What is shared of an RNIC, as long as somebody here paces it.
struct SharedRate {
    share: SharedPacing,
    /// Others find it by this.
    _claim: Option<CommonSegmentClaim>,
}

/// An RNIC that this process paces.
struct PacedRnic {
    shared: Weak<SharedRate>,
    config: Arc<Config>,
    clock: Clock,
    /// A forked child has none of them: not even the claim that keeps the memory there.
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

/// The RNICs that this process paces, by key.
static PACED_RNICS: LazyLock<Mutex<BTreeMap<String, PacedRnic>>> = LazyLock::new(Mutex::default);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What the RNIC of a device of that name is called, however the device is named: without options, and with the name of
/// the only one there is where none is given. [`Observer::rnic`] is that.
pub fn rnic(device: &DeviceName) -> String {
    let kind = device.kind();
    match (kind, device.name()) {
        (_, Some(name)) => format!("{kind}:{name}"),
        ("soft", None) => "soft:h1".to_owned(),
        ("ibv", None) => {
            let there = IbvProvider::names().unwrap_or_default();
            let only = there.first().map(|only| format!("ibv:{only}"));
            only.unwrap_or_else(|| kind.to_owned())
        }
        _ => kind.to_owned(),
    }
}

/// A name for the RNIC in the registry.
fn registry_key(info: &DeviceInfo) -> String {
    let rnic = match info.name.kind() {
        // One port's address is another's on another device.
        "ibv" => rnic(&info.name),
        kind => format!("{kind} {:x} {:x?}", info.network, info.gid),
    };
    format!("{KEY}{:016x}", fnv1a(rnic.as_bytes()))
}

fn shared(info: &DeviceInfo, is_real: bool) -> Result<Arc<SharedRate>, BoxError> {
    let key = registry_key(info);
    // Held meanwhile: of two that open at once, one makes it.
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
        };
        (Arc::new(SharedSegment::create(&request)?), None)
    };
    Ok(Arc::new(SharedRate {
        share: SharedPacing::over(View::from(segment))?,
        _claim: claim,
    }))
}

fn remember(info: &DeviceInfo, shared: &Arc<SharedRate>, config: &Arc<Config>, clock: &Clock) {
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

/// What the pacing of the RNIC says now that a device of this process is of; `None` where it paces none.
pub fn status(info: &DeviceInfo) -> Option<Status> {
    with(info, |share, config, now| share.status(config, now))
}

/// A receiver signals congestion: cuts the rate of the RNIC, for all its processes. Says whether it did; `None` where
/// this process does not pace it.
pub fn cut_rate(info: &DeviceInfo) -> Option<bool> {
    with(info, |share, config, now| share.cut(config, now))
}

fn with<R>(info: &DeviceInfo, ask: impl FnOnce(&SharedPacing, &Config, Instant) -> R) -> Option<R> {
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

    fn config(name: &str) -> Result<Option<Config>, OpenError> {
        Ok(split(&name.parse().expect("a name"))?.1)
    }

    #[test]
    fn a_slower_line_has_a_lower_minimum_unless_that_is_said() {
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

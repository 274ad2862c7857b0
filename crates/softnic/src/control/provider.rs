//! Devices `soft[:HOST][,…]`: their names, options and promises.
//!
//! | option | effect |
//! |---|---|
//! | `hostile` | injects faults, within what the device declares: see [`hostile`](crate::hostile) |
//! | `seed=N` | selects the faults; 1 by default. Only with `hostile` |
//! | `losses=N` | loses about one datagram, or message of an unreliable connection, in N; `no`, the default: none. Only with `hostile` |
//! | `kills=N` | about one request in N kills its queue pair; `no`, the default: none. Only with `hostile` |
//! | `ordered_between_writes=no` | does not declare ordered WRITEs; with `hostile`, they are not ordered |
//! | `atomic_aligned_8=no` | does not declare that aligned words stay whole; with `hostile`, some do not |
//! | `silent_deaths=yes` | a peer's death fails no queue pair without pending requests, as on an RNIC; only the next request to that peer fails |
//! | `non_temporal=no` | never writes with stores that bypass the processor's caches; for measurements |

use std::path::PathBuf;
use std::sync::Arc;

use headworks_shm::Registry;
use headworks_verbs::{
    Device, DeviceInfo, DeviceName, Gid, Mtu, OpenError, Promises, Provider, Tuning,
};

use crate::control::device::SoftDevice;
use crate::datapath::context::{Context, ContextMode};
use crate::datapath::non_temporal;
use crate::hostile::Rules;
use crate::hostile::options::Options;
pub use crate::table::addresses::DEFAULT_HOST;
use crate::table::addresses::{gid_of, host_key, ipv4_gid};
use crate::table::limits::LIMITS;

/// Returns the path of the registry in which [`SoftProvider::new`] finds peers.
pub fn registry_path() -> PathBuf {
    Registry::user_path()
}

/// The provider of the software RNIC. All soft devices that one user opens with the same registry directory
/// form one fabric.
#[derive(Default)]
pub struct SoftProvider {
    registry: Option<Arc<Registry>>,
    rules: Option<Rules>,
}

impl SoftProvider {
    /// Makes a provider on the user's default fabric (`HEADWORKS_FABRIC` overrides its directory).
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a provider on the given fabric, such as a private one of a test.
    pub fn on(registry: Arc<Registry>) -> Self {
        Self {
            registry: Some(registry),
            rules: None,
        }
    }

    /// Opens every device with fault injection by these rules, in place of those that its name selects.
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Checks the options of a name as opening it does, and opens nothing.
    pub fn check(name: &DeviceName) -> Result<(), OpenError> {
        Options::of(name).map(drop)
    }

    /// Returns the fault rules that the options of a name select; `None` if the name does not say `hostile`.
    ///
    /// # Errors
    ///
    /// [`OpenError::BadOption`] as when the device is opened.
    pub fn rules(name: &DeviceName) -> Result<Option<Rules>, OpenError> {
        Ok(Options::of(name)?.rules)
    }

    fn registry(&self, name: &DeviceName) -> Result<Arc<Registry>, OpenError> {
        match &self.registry {
            Some(registry) => Ok(registry.clone()),
            None => Registry::open_default().map_err(|error| OpenError::Provider {
                what: name.to_string(),
                source: error.into(),
            }),
        }
    }
}

/// Returns the GID of the soft host `name`.
pub fn host_gid(name: &str) -> Gid {
    gid_of(host_key(name))
}

/// Returns the GID with the IPv4 address that stands for the soft host `name`. Only `h1` to `h255` have one.
pub fn host_ipv4_gid(name: &str) -> Option<Gid> {
    ipv4_gid(name)
}

pub(crate) fn info(name: &DeviceName) -> DeviceInfo {
    let host = name.name().unwrap_or(DEFAULT_HOST);
    DeviceInfo {
        name: name.clone(),
        description: format!("software RNIC of soft host {host}, shared memory of this machine"),
        driver: None,
        // Set when the device is opened.
        network: 0,
        gid: host_gid(host),
        lid: None,
        roce: None,
        abilities: headworks_verbs::Abilities::ALL,
        tuning: Tuning::default(),
        pkey: None,
        mtu: Mtu::B4096,
        numa_node: None,
        limits: LIMITS,
        promises: Promises {
            // One thread at a time executes a queue pair's requests, one after the other. `copy` fences
            // them where the processor does not keep stores in order.
            ordered_between_writes: true,
            atomic_aligned_8: true,
            in_order_within_write: if headworks_shm::ordered_copy::IN_ORDER {
                non_temporal::IN_ORDER_MAX
            } else {
                0
            },
        },
    }
}

/// Describes a device with these options: what it is and promises.
fn info_as(name: &DeviceName, options: &Options) -> DeviceInfo {
    let mut info = info(name);
    info.promises.ordered_between_writes &= options.ordered_between_writes;
    info.promises.atomic_aligned_8 &= options.atomic_aligned_8;
    info.tuning = options.tuning;
    if let Some(rules) = &options.rules {
        info.promises.in_order_within_write = 0;
        let seed = rules.seed();
        info.description += &format!("; misbehaves on purpose, seed {seed}");
    }
    info
}

impl Provider for SoftProvider {
    fn kind(&self) -> &'static str {
        "soft"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, OpenError> {
        let mut hosts = vec![DEFAULT_HOST.to_owned()];
        let registry = match &self.registry {
            Some(registry) => Some(registry.clone()),
            // Listing devices must not create a registry.
            None => Registry::open_existing_default().ok().flatten(),
        };
        if let Some(registry) = registry
            && let Ok(contexts) = registry.list_contexts()
        {
            let contexts = contexts.entries.into_iter();
            hosts.extend(contexts.map(|(_, record)| record.host_name));
        }
        hosts.sort_unstable();
        hosts.dedup();
        // A host name in the registry that is no valid device name is a mistake, not a device.
        let devices = hosts
            .iter()
            .filter_map(|h| format!("soft:{h}").parse().ok());
        let hostile = format!("soft:{DEFAULT_HOST},hostile,seed=1").parse().ok();
        let described = |name: DeviceName| Ok(info_as(&name, &Options::of(&name)?));
        devices.chain(hostile).map(described).collect()
    }

    fn open(&self, name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
        let mut options = Options::of(name)?;
        if let Some(rules) = &self.rules {
            options.rules = Some(rules.clone());
        }
        let registry = self.registry(name)?;
        let info = info_as(name, &options);
        let mode = ContextMode {
            rules: options.rules,
            non_temporal: options.non_temporal,
            silent_deaths: options.silent_deaths,
        };
        let context = Context::open_as(registry.clone(), info, mode);
        // The directory may have been made for this device alone.
        let context = context.inspect_err(|_| {
            let _ = registry.remove_dead();
        })?;
        Ok(Arc::new(SoftDevice::over(context)))
    }
}

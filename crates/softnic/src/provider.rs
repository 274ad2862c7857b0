//! Devices `soft[:HOST][,…]`: their names, options and promises.
//!
//! | option | what |
//! |---|---|
//! | `hostile` | misbehaves on purpose, within what it declares: see [`hostile`](crate::hostile) |
//! | `seed=N` | which misbehaviour; 1 without it. Only with `hostile` |
//! | `losses=N` | about one datagram in N is lost; `no`, the default: none is. Only with `hostile` |
//! | `kills=N` | about one request in N kills its queue pair; `no`, the default: none does. Only with `hostile` |
//! | `ordered_between_writes=no` | does not declare that WRITEs keep their order; hostile, they do not |
//! | `atomic_aligned_8=no` | does not declare that aligned words are placed whole; hostile, they are not |

use std::sync::Arc;

use headworks_shm::{HostKey, Registry, fnv1a};
use headworks_verbs::{Device, DeviceInfo, DeviceName, Mtu, OpenError, Promises, Provider};

use crate::device::{Context, LIMITS, SoftDevice, gid_of};
use crate::hostile::Rules;
use crate::hostile::options::Options;
use crate::non_temporal;

/// The soft host of a device named just `soft`.
pub const DEFAULT_HOST: &str = "h1";

/// The provider of the software RNIC. All soft devices that one user opens with one registry
/// directory are one fabric.
#[derive(Default)]
pub struct SoftProvider {
    fabric: Option<Arc<Registry>>,
    rules: Option<Rules>,
}

impl SoftProvider {
    /// On the user's own fabric (`HEADWORKS_FABRIC` overrides where it is).
    pub fn new() -> Self {
        Self::default()
    }

    /// On a fabric of the caller's choosing: private ones for tests.
    pub fn on(fabric: Arc<Registry>) -> Self {
        Self {
            fabric: Some(fabric),
            rules: None,
        }
    }

    /// Opens every device as a hostile one, by these rules instead of those of its name.
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Refuses what the options of a name must not be, as opening it does, and opens nothing.
    pub fn check(name: &DeviceName) -> Result<(), OpenError> {
        Options::of(name).map(drop)
    }

    fn fabric(&self, name: &DeviceName) -> Result<Arc<Registry>, OpenError> {
        match &self.fabric {
            Some(fabric) => Ok(fabric.clone()),
            None => Registry::open_default().map_err(|error| OpenError::Provider {
                what: name.to_string(),
                source: error.into(),
            }),
        }
    }
}

/// The key of a soft host is the hash of its name.
fn host_key(name: &str) -> HostKey {
    HostKey(fnv1a(name.as_bytes()))
}

pub(crate) fn info(name: &DeviceName) -> DeviceInfo {
    let host = name.name().unwrap_or(DEFAULT_HOST);
    DeviceInfo {
        name: name.clone(),
        description: format!("software RNIC of soft host {host}, shared memory of this machine"),
        driver: None,
        // Known once it is open.
        network: 0,
        gid: gid_of(host_key(host)),
        lid: None,
        mtu: Mtu::B4096,
        numa_node: None,
        limits: LIMITS,
        promises: Promises {
            // Requests of a queue pair are executed one after the other, by one thread at a time,
            // and `copy` fences them where the processor does not keep stores in order.
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

/// What a device is and promises with these options.
fn info_as(name: &DeviceName, options: &Options) -> DeviceInfo {
    let mut info = info(name);
    info.promises.ordered_between_writes &= options.ordered_between_writes;
    info.promises.atomic_aligned_8 &= options.atomic_aligned_8;
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
        let fabric = match &self.fabric {
            Some(fabric) => Some(fabric.clone()),
            // Looking makes none.
            None => Registry::open_existing_default().ok().flatten(),
        };
        if let Some(fabric) = fabric
            && let Ok(contexts) = fabric.list_contexts()
        {
            hosts.extend(contexts.into_iter().map(|(_, _, record)| record.host_name));
        }
        hosts.sort_unstable();
        hosts.dedup();
        // A host name in the registry that is no device name is somebody's mistake, not a device.
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
        let fabric = self.fabric(name)?;
        let info = info_as(name, &options);
        let context = match options.rules {
            None => Context::open(fabric, info)?,
            rules => Context::open_as(fabric, info, rules)?,
        };
        Ok(Arc::new(SoftDevice::over(context)))
    }
}

//! Devices `sim:PRESET[,host=NAME][,seed=N]`: names, options, limits, promises.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::{
    Device, DeviceInfo, DeviceLimits, DeviceName, Duration, Instant, Mtu, OpenError, Promises,
    Provider,
};

use crate::device::{SharedModel, SimDevice};
use crate::faults::Rules;
use crate::hardware_units::NS;
use crate::model::{Counters, Host, Model};
use crate::preset::Preset;
use crate::receiving_host::HostCounters;

/// Longest message, in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
const LEGAL: &str = "host=NAME, seed=N";
/// Longest host name, in bytes.
const HOST_MAX: usize = 64;
const HOST: &str = "host=NAME, 1 to 64 of [A-Za-z0-9._-]";
const SEED: &str = "seed=N, a number from 0 to 18446744073709551615";
/// Kind of these devices, with which their names begin.
pub const KIND: &str = "sim";
const DEFAULT_PRESET: &str = "cx5-100g";
const DEFAULT_HOST: &str = "h1";

/// Provider of simulated RNICs. Those of the same preset and seed are on one network. Outside of a world,
/// time advances with the calls that are made.
#[derive(Default)]
pub struct SimProvider {
    networks: Mutex<Networks>,
    /// Overrides the preset that a name says.
    preset: Option<Preset>,
    rules: Option<Rules>,
}

/// Networks by preset and seed.
type Networks = BTreeMap<(&'static str, u64), SharedModel>;

/// Options in a device's name.
pub(crate) struct SimDeviceOptions {
    pub(crate) preset: Preset,
    pub(crate) seed: u64,
    pub(crate) host: String,
}

impl SimProvider {
    /// Creates a provider with networks of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a provider whose machines have this preset, whatever preset a name says.
    pub fn of(preset: Preset) -> Self {
        Self {
            preset: Some(preset),
            ..Self::default()
        }
    }

    /// Returns this provider with faults injected by `rules`.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        let rules = Some(rules);
        Self { rules, ..self }
    }

    /// Returns a digest of the run on each network, as
    /// [`SimWorld::run_digest`](crate::SimWorld::run_digest) does.
    pub fn run_digests(&self) -> Vec<(u64, u64)> {
        let networks = self.networks();
        let all = networks
            .values()
            .filter_map(|network| network.lock().run_digest());
        all.collect()
    }

    /// Lets time pass on all networks, for callers outside of a world.
    pub fn advance(&self, by: Duration) {
        for network in self.networks().values() {
            network.lock().advance(by);
        }
    }

    /// Returns the latest time of any network; zero if there is none.
    pub fn now(&self) -> Instant {
        let networks = self.networks();
        let times = networks.values().map(|network| network.lock().time());
        Instant::from_nanos(times.max().unwrap_or(0) / NS)
    }

    /// Returns the RNICs' counters, by host.
    pub fn counters(&self) -> Vec<(String, Counters)> {
        let networks = self.networks();
        let hosts = networks.values().flat_map(|network| {
            let model = network.lock();
            let of = |host: &Host| (host.name.clone(), host.counters);
            model.hosts.iter().map(of).collect::<Vec<_>>()
        });
        hosts.collect()
    }

    /// Returns the counters of the hosts' memory and of congestion, by host, for hosts whose preset models them.
    pub fn host_counters(&self) -> Vec<(String, HostCounters)> {
        let networks = self.networks();
        let hosts = networks.values().flat_map(|network| {
            let mut model = network.lock();
            let now = model.time();
            let of = |host: &mut Host| {
                let side = host.receiving.as_deref_mut()?;
                Some((host.name.clone(), side.counters(now)))
            };
            model.hosts.iter_mut().filter_map(of).collect::<Vec<_>>()
        });
        hosts.collect()
    }

    fn networks(&self) -> MutexGuard<'_, Networks> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimDeviceOptions {
    pub(crate) fn of(name: &DeviceName) -> Result<Self, OpenError> {
        let called = name.name().unwrap_or(DEFAULT_PRESET);
        let preset = Preset::named(called).ok_or_else(|| OpenError::NotFound {
            name: name.to_string(),
            hint: format!("presets are {}", Preset::NAMES.join(", ")),
        })?;
        let (mut seed, mut host) = (1, DEFAULT_HOST.to_owned());
        for (key, value) in name.options() {
            let refused = |legal| OpenError::BadOption {
                option: value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")),
                kind: KIND,
                legal,
            };
            match key {
                "seed" => {
                    let digits = value.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                    let number = digits.and_then(|text| text.parse().ok());
                    seed = number.ok_or_else(|| refused(SEED))?;
                }
                "host" => {
                    let legal = value.filter(|name| is_host(name));
                    host = legal.ok_or_else(|| refused(HOST))?.to_owned();
                }
                _ => return Err(refused(LEGAL)),
            }
        }
        Ok(Self { preset, seed, host })
    }
}

/// Whether a host's name is legal. The rules are those of device names.
fn is_host(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=HOST_MAX).contains(&name.len()) && name.bytes().all(legal)
}

/// Returns whether a device called `name` is simulated in virtual time.
pub fn is_simulated(name: &DeviceName) -> bool {
    name.kind() == KIND
}

/// Returns the preset and the seed that a device's name asks for.
///
/// # Errors
///
/// As [`Provider::open`], if the name has an unknown preset or an illegal option.
pub fn machine(name: &DeviceName) -> Result<(Preset, u64), OpenError> {
    SimDeviceOptions::of(name).map(|asked| (asked.preset, asked.seed))
}

/// Opens the device of a host in this network.
pub(crate) fn open(
    model: &SharedModel,
    name: &DeviceName,
    host: &str,
) -> Result<Arc<dyn Device>, OpenError> {
    let mut locked = model.lock();
    let failed = |source: std::io::Error| OpenError::Provider {
        what: name.to_string(),
        source: source.into(),
    };
    let host = locked.host(host).map_err(failed)?;
    let state = &locked.hosts[host as usize];
    let (gid, alarm) = (state.gid, state.async_alarm.clone());
    let mut info = info(name, &locked.preset);
    (info.gid, info.network) = (gid, locked.network);
    locked.opened += 1;
    Ok(Arc::new(SimDevice {
        opened: locked.opened,
        model: model.clone(),
        host,
        info,
        alarm,
    }))
}

fn info(name: &DeviceName, preset: &Preset) -> DeviceInfo {
    let mtu = match preset.mtu_bytes as u32 {
        ..512 => Mtu::B256,
        512..1024 => Mtu::B512,
        1024..2048 => Mtu::B1024,
        2048..4096 => Mtu::B2048,
        _ => Mtu::B4096,
    };
    DeviceInfo {
        tuning: headworks_verbs::Tuning::default(),
        name: name.clone(),
        description: format!("simulated RNIC, preset {}, in virtual time", preset.name),
        driver: None,
        network: 0,
        gid: headworks_verbs::Gid::default(),
        lid: None,
        roce: None,
        abilities: headworks_verbs::Abilities::ALL,
        pkey: None,
        mtu,
        numa_node: None,
        limits: DeviceLimits {
            max_qp: 1 << 17,
            max_qp_wr: 1 << 15,
            max_sge: 30,
            max_inline: preset.max_inline as u32,
            max_cq: 1 << 17,
            max_cqe: 1 << 22,
            max_mr: 1 << 22,
            max_ah: 1 << 16,
            max_srq: 1 << 16,
            max_srq_wr: 1 << 15,
            max_rd_atomic: preset.max_reads as u8,
            max_message: MAX_MESSAGE,
        },
        promises: Promises {
            ordered_between_writes: true,
            atomic_aligned_8: true,
            // RB², section IV-A: RNICs of these generations do not place a WRITE in order. The model does, so a setting
            // may declare it.
            in_order_within_write: preset.write_order_bytes as u32,
        },
    }
}

impl Provider for SimProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, OpenError> {
        let named = |preset: &&str| {
            let name: DeviceName = format!("sim:{preset}").parse()?;
            let asked = SimDeviceOptions::of(&name)?;
            Ok(info(&name, &asked.preset))
        };
        Preset::NAMES.iter().map(named).collect()
    }

    fn open(&self, name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
        let mut asked = SimDeviceOptions::of(name)?;
        if let Some(preset) = &self.preset {
            asked.preset = preset.clone();
        }
        let mut networks = self.networks();
        let network = networks
            .entry((asked.preset.name, asked.seed))
            .or_insert_with(|| {
                let mut model = Model::new(asked.preset.clone(), asked.seed);
                if let Some(rules) = &self.rules {
                    model.set_fault_rules(rules.clone());
                }
                SharedModel::new(model)
            });
        open(network, name, &asked.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_illegal_option_is_reported_with_the_legal_ones() {
        let refused = |option: &str| {
            let name = format!("sim:cx5-100g,{option}").parse().expect("a name");
            match SimDeviceOptions::of(&name).map(|_| ()) {
                Err(OpenError::BadOption {
                    option: named,
                    legal,
                    ..
                }) if named == option => legal,
                other => panic!("{option}: {other:?}"),
            }
        };
        let long = format!("host={}", "a".repeat(HOST_MAX + 1));
        for host in ["host", "host=../x", "host=a b", "host=é", &long] {
            assert_eq!(refused(host), HOST);
        }
        for seed in [
            "seed",
            "seed=-1",
            "seed=+1",
            "seed=1.5",
            "seed=18446744073709551616",
        ] {
            assert_eq!(refused(seed), SEED);
        }
        assert_eq!(refused("frob=1"), LEGAL);
        assert!(
            HOST.contains(&format!("1 to {HOST_MAX} ")) && SEED.contains(&u64::MAX.to_string())
        );
        let longest = "a.B_-".repeat(13)[..HOST_MAX].to_owned();
        let name = format!("sim,host={longest},seed={}", u64::MAX);
        let asked = SimDeviceOptions::of(&name.parse().expect("a name")).expect("legal");
        assert_eq!((asked.host, asked.seed), (longest, u64::MAX));
    }
}

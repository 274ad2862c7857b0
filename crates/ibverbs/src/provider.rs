//! Devices `ibv:NAME[,…]`: finding them, their limits, their promises.
//!
//! | option | what | without it |
//! |---|---|---|
//! | `port=N` | the port to use | the first that is up, else the first |
//! | `gid_index=N`, `gid=ADDRESS` | entry of the port's GID table to use, by its number or its address | RoCE v2 over IPv4, then over IPv6, then any other; on InfiniBand the first |
//! | `subnet=ADDRESS/BITS` | use an address of this subnet | any |
//! | `mtu=BYTES` | the longest packet; more than the port's active MTU is refused | the port's active MTU |
//! | `traffic_class=N`, `service_level=N` | for connections, and for datagrams that give none | on RoCE the class in `/sys/class/infiniband/NAME/tc/PORT/traffic_class`, if there is such a file; else 0 |
//! | `timeout=N`, `retry_count=N`, `rnr_retry=N` | for connections; overrides the program's value | the program's value; at most 6 retries on rxe, which retries without end at 7 |
//! | `pkey_index=N` | entry of the port's partition key table; one beyond the table is refused | on InfiniBand the first key of full membership, else the first; elsewhere 0 |
//! | `comp_vector=N` | the interrupt of completion queues with a channel | each queue takes the next |
//! | `cq_moderation=COUNT:MICROSECONDS` | a completion queue with a channel raises an event after COUNT completions, or MICROSECONDS after the first | the device's own |
//! | `ordered_between_writes=yes\|no`, `atomic_aligned_8=yes\|no`, `in_order_within_write=all\|no\|BYTES` | the declared promises | the promises known of the driver |
//!
//! `ibv` without a name opens the machine's only device.
//!
//! A port of an InfiniBand network is addressed by LID as well as by GID ([`DeviceInfo::lid`]). Both ends
//! must be in one subnet, or librdmacm must resolve the route between them. Some devices are refused
//! ([`Refusal`]): iWARP devices, which are connected in another way; devices without reliable connections (EFA); and `mlx5`
//! devices if `MLX5_SINGLE_THREADED=1` is set, because their library then takes no locks.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headworks_verbs::{
    Abilities, Atomics, Device, DeviceInfo, DeviceLimits, DeviceName, OpenError, Provider,
};

use crate::abi;
use crate::attributes::Port;
use crate::device::{Context, DeviceTraits, IbvDevice};
use crate::library::{self, Api, LibraryError};
use crate::options::Options;
use crate::port_selection::{Choice, Refusal};
use crate::port_tables::{PortTables, Selected, active_mtu};
use crate::probe::{self, Findings, ProbeError};
use crate::quirks::{self, Circumstances, DataInOrder};
use crate::raw::{self, Raw};

const KIND: &str = "ibv";
/// Where the kernel describes its RDMA devices.
const SYSFS: &str = "/sys/class/infiniband";

/// The provider of RDMA NICs.
#[derive(Default)]
pub struct IbvProvider {
    /// Replaces the machine's libibverbs in tests.
    stand_in: Option<Api>,
    /// Replaces [`SYSFS`] in tests.
    sysfs: Option<PathBuf>,
}

/// A device, opened, and the choice of its port.
struct FoundDevice {
    info: DeviceInfo,
    choice: Choice,
    port: Port,
    traits: DeviceTraits,
    raw: Arc<Raw>,
}

impl IbvProvider {
    /// Creates a provider of the machine's libibverbs, which is loaded when a call first needs it.
    pub const fn new() -> Self {
        Self {
            stand_in: None,
            sysfs: None,
        }
    }

    #[cfg(test)]
    pub(crate) const fn with(api: Api) -> Self {
        Self {
            stand_in: Some(api),
            sysfs: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn with_sysfs(api: Api, sysfs: &Path) -> Self {
        Self {
            sysfs: Some(sysfs.to_owned()),
            ..Self::with(api)
        }
    }

    /// The error if libibverbs cannot be loaded, so that there are no devices. It is one line that says what
    /// to install.
    pub fn missing() -> Option<LibraryError> {
        library::api().err()
    }

    /// Names of all devices that libibverbs finds, whether they can be used or not. If a device of the kernel
    /// is missing, its provider library is missing. The error is one line that says what to install, or the
    /// system's error.
    pub fn names() -> Result<Vec<String>, OpenError> {
        let api = library::api().map_err(|error| failed(KIND, error))?;
        raw::names(api).map_err(|error| failed(KIND, error))
    }

    /// Checks the options of a name as opening does, without opening the device.
    pub fn check(name: &DeviceName) -> Result<(), OpenError> {
        Options::of(name).map(drop)
    }

    /// The choices that [`open`](Provider::open) makes for the device called `name`, or its error. The
    /// error's source is a [`Refusal`] if the device exists and cannot be used.
    pub fn choice(&self, name: &DeviceName) -> Result<Choice, OpenError> {
        Ok(self.found(name)?.choice)
    }

    fn found(&self, name: &DeviceName) -> Result<FoundDevice, OpenError> {
        // An illegal name is an error even on a machine without libibverbs.
        Options::of(name)?;
        let api = self
            .api()
            .map_err(|error| failed(&name.to_string(), error))?;
        find(&api, self.sysfs(), name)
    }

    fn sysfs(&self) -> &Path {
        self.sysfs.as_deref().unwrap_or_else(|| Path::new(SYSFS))
    }

    fn api(&self) -> Result<Api, LibraryError> {
        match self.stand_in {
            Some(api) => Ok(api),
            None => library::api().copied(),
        }
    }
}

impl Provider for IbvProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    /// Returns an empty list without libibverbs ([`IbvProvider::missing`] has the error). A device that
    /// cannot be opened is left out, with a warning.
    fn devices(&self) -> Result<Vec<DeviceInfo>, OpenError> {
        let Ok(api) = self.api() else {
            return Ok(Vec::new());
        };
        let mut devices = Vec::new();
        for name in raw::names(&api).map_err(|error| failed(KIND, error))? {
            let found = format!("{KIND}:{name}")
                .parse()
                .map_err(OpenError::Name)
                .and_then(|name| find(&api, self.sysfs(), &name));
            match found {
                Ok(found) => devices.push(found.info),
                Err(error) => tracing::warn!(%error, "device left out: it cannot be opened"),
            }
        }
        Ok(devices)
    }

    fn open(&self, name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
        let found = self.found(name)?;
        let context = Context::new(found.raw, found.info, found.port, found.traits);
        let context = context.map_err(|error| failed(&name.to_string(), error))?;
        Ok(Arc::new(IbvDevice::over(context)))
    }
}

fn failed(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OpenError {
    OpenError::Provider {
        what: what.to_owned(),
        source: source.into(),
    }
}

fn not_found(name: &DeviceName, there: &[String]) -> OpenError {
    let hint = match there {
        [] => "this machine has no RDMA device that libibverbs knows of".to_owned(),
        there => format!("there is ibv:{}", there.join(", ibv:")),
    };
    let name = name.to_string();
    OpenError::NotFound { name, hint }
}

fn find(api: &Api, sysfs: &Path, name: &DeviceName) -> Result<FoundDevice, OpenError> {
    let mut options = Options::of(name)?;
    let system = |error| failed(&name.to_string(), error);
    let there = raw::names(api).map_err(system)?;
    let called = match (name.name(), &*there) {
        (Some(called), _) => called,
        (None, [only]) => only,
        (None, _) => return Err(not_found(name, &there)),
    };
    let raw = Raw::open(api, called).map_err(system)?;
    let raw = raw.ok_or_else(|| not_found(name, &there))?;
    let refused = |refusal: Refusal| failed(&name.to_string(), refusal);
    if raw.transport() == abi::TRANSPORT_IWARP {
        return Err(refused(Refusal::Iwarp));
    }
    let device = raw.device_attr().map_err(system)?;
    let sysfs = sysfs.join(called);
    let driver = quirks::driver(pci_driver(&sysfs), device.vendor_id);
    let quirks = quirks::of(&driver, device.vendor_id);
    let single_threaded = std::env::var_os("MLX5_SINGLE_THREADED");
    if let Some(what) = quirks::refusal(&driver, device.vendor_id, single_threaded.as_deref()) {
        return Err(refused(Refusal::NoLocks(what)));
    }
    let ports = device.phys_port_cnt;
    let asked = options.port.map_or(0, u64::from);
    within("port", asked, ports.into(), || format!("{called} has"))?;
    let (number, attr) = port_of(&raw, &options, ports).map_err(system)?;
    let last_pkey = attr.pkey_tbl_len.saturating_sub(1);
    let asked = options.pkey_index.map_or(0, u64::from);
    within("pkey_index", asked, last_pkey.into(), || {
        format!("port {number} of {called} has in its table")
    })?;
    let active = active_mtu(&attr);
    let mtu = options.mtu.unwrap_or(active);
    within("mtu", mtu.bytes().into(), active.bytes().into(), || {
        format!("port {number} of {called} has active")
    })?;
    let last_vector = u64::from(raw.vectors()) - 1;
    let asked = options.comp_vector.map_or(0, u64::from);
    within("comp_vector", asked, last_vector, || {
        format!("{called} has")
    })?;
    let tables = PortTables::read(&raw, number, attr);
    let selected = tables
        .select(&options, None, |index| raw.pkey(number, index))
        .map_err(refused)?;
    let Selected { network, entry, .. } = selected;
    if network.is_roce() && options.traffic_class.is_none() {
        options.traffic_class = traffic_class(&sysfs, number);
    }
    let choice = Choice {
        port: number,
        is_up: tables.attr.state == abi::PORT_ACTIVE,
        network,
        gid_index: entry.index,
        gid: entry.gid,
        mtu,
        pkey_index: selected.pkey_index,
        pkey: selected.pkey,
        traffic_class: options.traffic_class.unwrap_or(0),
    };
    let port = Port {
        number,
        mtu,
        gid_index: entry.index,
        gid: entry.gid,
        gid_type: entry.gid_type,
        lid: network.lid(),
        pkey_index: selected.pkey_index,
        pkey: selected.pkey,
        needs_grh: tables.attr.flags & abi::GRH_REQUIRED != 0,
        has_atomics: device.atomic_cap != abi::ATOMIC_NONE,
        most_retries: quirks.most_retries,
        options,
        version: 0,
    };
    let findings = match probe::examine(&raw, &port, quirks) {
        Ok(findings) => findings,
        Err(ProbeError::NoConnections) => {
            return Err(refused(Refusal::NoConnections { driver }));
        }
        Err(ProbeError::System(error)) => {
            tracing::warn!(
                "{name}: a queue pair that shows the longest inline payload cannot be made, so nothing is sent \
                 inline: {error}"
            );
            Findings {
                max_inline: 0,
                has: [true; 2],
                registers_relaxed: false,
                data_in_order: quirks.answers_data_in_order.then_some(DataInOrder::No),
            }
        }
    };
    let relaxes = std::env::var_os("MLX5_RELAXED_PACKET_ORDERING_ON");
    let known = quirks.promises(Circumstances {
        architecture: ARCH,
        is_infiniband: network.lid().is_some(),
        registers_relaxed: findings.registers_relaxed,
        is_told_to_relax: relaxes.is_some_and(|value| !value.is_empty() && value != "0"),
        data_in_order: findings.data_in_order,
    });
    let promises = port.options.promises(known);
    if findings.registers_relaxed && promises.ordered_between_writes {
        return Err(refused(Refusal::OnlyRelaxed));
    }
    let limits = limits_of(&device, &tables.attr, findings.max_inline);
    let tuning = port.options.tuning();
    if tuning.relaxed_ordering && !raw.knows_relaxed() {
        return Err(OpenError::BadOption {
            option: "relaxed_ordering=yes".to_owned(),
            kind: "ibv",
            legal: "this libibverbs cannot register memory so; update rdma-core to version 28 or later",
        });
    }
    let (asked, highest) = (tuning.inline_up_to.into(), limits.max_inline.into());
    within("inline_up_to", asked, highest, || {
        format!("{called} sends inline")
    })?;
    let info = DeviceInfo {
        name: name.clone(),
        description: format!("RDMA device {called} ({driver}), {choice}"),
        network: 0,
        gid: entry.gid,
        lid: network.lid(),
        roce: network.roce(),
        pkey: selected.pkey,
        mtu,
        driver: (driver != quirks::UNKNOWN).then(|| driver.clone()),
        numa_node: numa_node(&sysfs),
        limits,
        promises,
        abilities: Abilities {
            uc: findings.has[0],
            ud: findings.has[1],
            atomics: match device.atomic_cap {
                abi::ATOMIC_NONE => Atomics::None,
                abi::ATOMIC_GLOB => Atomics::Global,
                _ => Atomics::Device,
            },
        },
        tuning,
    };
    let traits = DeviceTraits {
        is_active: choice.is_up,
        region_bytes: device.max_mr_size,
        pds: positive(device.max_pd),
        registers_relaxed: findings.registers_relaxed,
        registers_huge_pages: raw.registers_huge_pages(),
        inflates_sizes: quirks.inflates_sizes,
        reports_failures: quirks.reports_failures,
    };
    Ok(FoundDevice {
        info,
        choice,
        port,
        traits,
        raw,
    })
}

/// Refuses a value of an option that exceeds what the device has.
fn within(
    option: &'static str,
    asked: u64,
    highest: u64,
    what: impl FnOnce() -> String,
) -> Result<(), OpenError> {
    if asked <= highest {
        return Ok(());
    }
    Err(OpenError::OptionLimit {
        option,
        asked,
        what: what(),
        highest,
    })
}

/// Returns the requested port, else the first that is up, else the first.
fn port_of(raw: &Raw, options: &Options, ports: u8) -> std::io::Result<(u8, abi::PortAttr)> {
    if let Some(port) = options.port {
        return Ok((port, raw.port_attr(port)?));
    }
    for port in 1..=ports {
        let attr = raw.port_attr(port)?;
        if attr.state == abi::PORT_ACTIVE {
            return Ok((port, attr));
        }
    }
    Ok((1, raw.port_attr(1)?))
}

/// Name of the driver of the function behind the device, as sysfs has it.
fn pci_driver(sysfs: &Path) -> Option<String> {
    let target = fs::read_link(sysfs.join("device/driver")).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

fn numa_node(sysfs: &Path) -> Option<u32> {
    let text = fs::read_to_string(sysfs.join("device/numa_node")).ok()?;
    text.trim().parse().ok()
}

/// The traffic class that the administrator set for a port. Only drivers that are not the kernel's own have the file; it has a
/// number, or a line such as `Global tclass=106`.
fn traffic_class(sysfs: &Path, port: u8) -> Option<u8> {
    let file = sysfs.join(format!("tc/{port}/traffic_class"));
    let text = fs::read_to_string(file).ok()?;
    let number = text.lines().next()?.rsplit('=').next()?;
    number.trim().parse().ok()
}

fn positive(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn limits_of(device: &abi::DeviceAttr, port: &abi::PortAttr, max_inline: u32) -> DeviceLimits {
    let reads = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom);
    // The limit holds for both kinds of receive queues.
    let max_sge = match device.max_srq {
        1.. => device.max_sge.min(device.max_srq_sge),
        _ => device.max_sge,
    };
    DeviceLimits {
        max_qp: positive(device.max_qp),
        max_qp_wr: positive(device.max_qp_wr),
        max_sge: positive(max_sge),
        max_inline,
        max_cq: positive(device.max_cq),
        max_cqe: positive(device.max_cqe),
        max_mr: positive(device.max_mr),
        max_ah: positive(device.max_ah),
        max_srq: positive(device.max_srq),
        max_srq_wr: positive(device.max_srq_wr),
        max_rd_atomic: u8::try_from(reads.clamp(0, 255)).unwrap_or(u8::MAX),
        max_message: port.max_msg_sz,
    }
}

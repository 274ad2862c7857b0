//! Devices `ibv:NAME[,…]`: finding them, their limits, their promises.
//!
//! | option | what | without it |
//! |---|---|---|
//! | `port=N` | the port to use | the first that is up, else the first |
//! | `gid_index=N` | entry of the port's GID table to use | RoCE v2 over IPv4, then over IPv6, then any other; on InfiniBand the first |
//! | `mtu=BYTES` | the longest packet; more than the port's active MTU is refused | the port's active MTU |
//! | `traffic_class=N`, `service_level=N` | for connections, and for datagrams that give none | 0 |
//! | `timeout=N`, `retry_count=N`, `rnr_retry=N` | for connections; overrides the program's value | the program's value; at most 6 retries on rxe, which retries without end at 7 |
//! | `pkey_index=N` | entry of the port's partition key table; one beyond the table is refused | 0 |
//! | `ordered_between_writes=yes\|no`, `atomic_aligned_8=yes\|no`, `in_order_within_write=all\|no\|BYTES` | the declared promises | the promises known of the driver |
//!
//! `ibv` without a name opens the machine's only device.
//!
//! A port of an InfiniBand network is addressed by LID as well as by GID ([`DeviceInfo::lid`]). Both ends
//! must be in one subnet, or librdmacm must resolve the route between them. Two kinds of devices are refused
//! ([`Refusal`]): iWARP devices, which are connected in another way, and `mlx5` devices if
//! `MLX5_SINGLE_THREADED=1` is set, because their library then takes no locks.

use std::env::consts::ARCH;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use headworks_verbs::{
    Device, DeviceInfo, DeviceLimits, DeviceName, Lid, Mtu, OpenError, Provider,
};

use crate::abi;
use crate::attributes::Port;
use crate::device::{Context, ExtraLimits, IbvDevice};
use crate::gid::{self, Entry};
use crate::library::{self, Api, LibraryError};
use crate::options::Options;
use crate::port_selection::{Choice, Network, Refusal};
use crate::quirks;
use crate::raw::{self, Raw};

const KIND: &str = "ibv";
/// Sizes of inline payloads to try, longest first. Every device has queue pairs for the last.
const INLINES: [u32; 10] = [1024, 512, 384, 256, 192, 128, 64, 32, 16, 0];

/// The provider of RDMA NICs.
#[derive(Default)]
pub struct IbvProvider {
    /// Replaces the machine's libibverbs in tests.
    stand_in: Option<Api>,
}

/// A device, opened, and the choice of its port.
struct FoundDevice {
    info: DeviceInfo,
    choice: Choice,
    port: Port,
    most: ExtraLimits,
    raw: Arc<Raw>,
}

impl IbvProvider {
    /// Creates a provider of the machine's libibverbs, which is loaded when a call first needs it.
    pub const fn new() -> Self {
        Self { stand_in: None }
    }

    #[cfg(test)]
    pub(crate) const fn with(api: Api) -> Self {
        Self {
            stand_in: Some(api),
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
        find(&api, name)
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
                .and_then(|name| find(&api, &name));
            match found {
                Ok(found) => devices.push(found.info),
                Err(error) => tracing::warn!(%error, "device left out: it cannot be opened"),
            }
        }
        Ok(devices)
    }

    fn open(&self, name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
        let found = self.found(name)?;
        let context = Context::new(found.raw, found.info, found.port, found.most);
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

fn find(api: &Api, name: &DeviceName) -> Result<FoundDevice, OpenError> {
    let options = Options::of(name)?;
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
    let driver = quirks::driver(in_sysfs(called, "driver"), device.vendor_id);
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
    let is_infiniband = is_infiniband(raw.transport(), &attr);
    let entry = entry_of(&raw, &options, number, &attr, is_infiniband).map_err(refused)?;
    let network = match (is_infiniband, Lid::new(attr.lid)) {
        // On other transports the types of GIDs have no meaning.
        (false, _) if raw.transport() != abi::TRANSPORT_IB => Network::Other,
        (false, _) => Network::of_ethernet(entry.gid_type),
        (true, Some(lid)) => Network::Infiniband(lid),
        (true, None) => {
            let (port, lid) = (number, attr.lid);
            return Err(refused(Refusal::NoLid { port, lid }));
        }
    };
    let choice = Choice {
        port: number,
        is_up: attr.state == abi::PORT_ACTIVE,
        network,
        gid_index: entry.index,
        gid: entry.gid,
        mtu,
    };
    let inline = max_inline(&raw).unwrap_or_else(|error| {
        tracing::warn!(
            "{name}: a queue pair that shows the longest inline payload cannot be made, so nothing is sent \
             inline: {error}"
        );
        0
    });
    let limits = limits_of(&device, &attr, inline);
    let info = DeviceInfo {
        name: name.clone(),
        description: format!("RDMA device {called} ({driver}), {choice}"),
        network: 0,
        gid: entry.gid,
        lid: network.lid(),
        mtu,
        driver: (driver != quirks::UNKNOWN).then(|| driver.clone()),
        numa_node: in_sysfs(called, "numa_node").and_then(|node| node.parse().ok()),
        limits,
        promises: options.promises(quirks::promises(&driver, device.vendor_id, ARCH)),
    };
    let port = Port {
        number,
        gid_index: entry.index,
        gid: entry.gid,
        lid: network.lid(),
        needs_grh: attr.flags & abi::GRH_REQUIRED != 0,
        has_atomics: device.atomic_cap != abi::ATOMIC_NONE,
        most_retries: quirks::most_retries(&driver),
        options,
    };
    let most = ExtraLimits {
        region_bytes: device.max_mr_size,
        pds: positive(device.max_pd),
    };
    Ok(FoundDevice {
        info,
        choice,
        port,
        most,
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

/// The active MTU of a port.
pub(crate) fn active_mtu(port: &abi::PortAttr) -> Mtu {
    let active = u8::try_from(port.active_mtu).ok();
    active.and_then(Mtu::from_code).unwrap_or(Mtu::B1024)
}

/// Returns whether a port is on an InfiniBand network. A port that does not say is if the transport is.
pub(crate) fn is_infiniband(transport: i32, port: &abi::PortAttr) -> bool {
    match port.link_layer {
        abi::LINK_INFINIBAND => true,
        abi::LINK_UNSPECIFIED => transport == abi::TRANSPORT_IB,
        _ => false,
    }
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

/// Returns the requested GID, else the best one.
fn entry_of(
    raw: &Raw,
    options: &Options,
    port: u8,
    attr: &abi::PortAttr,
    is_infiniband: bool,
) -> Result<Entry, Refusal> {
    let count = usize::try_from(attr.gid_tbl_len).unwrap_or(0);
    let entries = raw.gids(port, count);
    let Some(index) = options.gid_index else {
        let chosen = match is_infiniband {
            true => gid::choose_infiniband(&entries),
            false => gid::choose(&entries),
        };
        return chosen.ok_or(Refusal::NoAddress { port });
    };
    let found = entries.iter().find(|entry| entry.index == index);
    found.copied().ok_or_else(|| {
        let there: Vec<_> = entries
            .iter()
            .map(|entry| entry.index.to_string())
            .collect();
        let there = if there.is_empty() {
            "none".to_owned()
        } else {
            there.join(", ")
        };
        Refusal::GidIndex { index, port, there }
    })
}

/// Reads what sysfs says about the device behind the RDMA device `name`.
fn in_sysfs(name: &str, of: &str) -> Option<String> {
    let path = Path::new("/sys/class/infiniband")
        .join(name)
        .join("device")
        .join(of);
    match of {
        "driver" => {
            let target = fs::read_link(path).ok()?;
            Some(target.file_name()?.to_string_lossy().into_owned())
        }
        _ => Some(fs::read_to_string(path).ok()?.trim().to_owned()),
    }
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

/// Returns the longest inline payload. A device reports it only for a queue pair, so this creates queue pairs.
///
/// # Errors
///
/// The device has no room for one, or the limit of locked memory is too low.
fn max_inline(raw: &Arc<Raw>) -> io::Result<u32> {
    let pd = raw.alloc_pd()?;
    let cq = raw.create_cq(headworks_verbs::CqId(0), 4, None, None)?;
    let longest = |qp_type| {
        let mut refused = io::Error::from(io::ErrorKind::Other);
        for asked in INLINES {
            let mut caps = abi::QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: asked,
            };
            match pd.create_qp(qp_type, (&cq, &cq), None, &mut caps, false) {
                Ok(_) => return Ok(caps.max_inline_data),
                // Mostly the payload is too long for the device.
                Err(error) => refused = error,
            }
        }
        Err(refused)
    };
    longest(abi::QPT_RC).or_else(|error| longest(abi::QPT_UD).map_err(|_| error))
}

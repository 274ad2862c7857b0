//! Devices `ibv:NAME[,…]`: what there is, what it is, what it promises.
//!
//! | option | what | without it |
//! |---|---|---|
//! | `port=N` | which port | the first that is up, else the first |
//! | `gid_index=N` | which of the port's addresses | RoCE v2 over IPv4, then over IPv6, then what there is |
//! | `mtu=BYTES` | the longest packet, at most what the port has active | what the port has active |
//! | `traffic_class=N`, `service_level=N` | of connections, and of datagrams that say none | 0 |
//! | `timeout=N`, `retry_count=N`, `rnr_retry=N` | of connections, whatever the program says | what the program says; at most 6 retries on rxe, which takes 7 for ever |
//! | `pkey_index=N` | which partition key of the port's table | 0 |
//! | `ordered_between_writes=yes\|no`, `atomic_aligned_8=yes\|no`, `in_order_within_write=all\|no\|BYTES` | what is declared | what is known of the driver |
//!
//! `ibv` with no name is the only device there is.
//!
//! Refused are ports of InfiniBand networks and devices of iWARP, which are addressed and connected in other
//! ways, and `mlx5` devices where `MLX5_SINGLE_THREADED=1` is set: their library takes no locks then.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use headworks_verbs::{Device, DeviceInfo, DeviceName, Limits, Mtu, OpenError, Provider};

use crate::abi;
use crate::attributes::Port;
use crate::device::{Context, IbvDevice};
use crate::gid::{self, Entry, GidType};
use crate::known;
use crate::library::{self, Api, LibraryError};
use crate::options::Options;
use crate::raw::{self, Raw};

const KIND: &str = "ibv";
/// Inline payloads that are tried for, longest first.
const INLINES: [u32; 9] = [1024, 512, 384, 256, 192, 128, 64, 32, 16];

/// The provider of RDMA NICs.
#[derive(Default)]
pub struct IbvProvider {
    /// Instead of the machine's libibverbs.
    stand_in: Option<Api>,
}

/// A device, and which of its ports is used how.
struct Found {
    info: DeviceInfo,
    port: Port,
    /// Bytes of the largest region; 0 where the device does not say.
    max_region: u64,
    raw: Arc<Raw>,
}

impl IbvProvider {
    /// The devices of the machine's libibverbs, which is loaded when the first call needs it.
    pub const fn new() -> Self {
        Self { stand_in: None }
    }

    #[cfg(test)]
    pub(crate) const fn with(api: Api) -> Self {
        Self {
            stand_in: Some(api),
        }
    }

    /// Why there are no devices, where that is because libibverbs is not there: one line that says what
    /// to install.
    pub fn missing() -> Option<LibraryError> {
        library::api().err()
    }

    /// The names that libibverbs has for devices, whether they can be used from here or not. A device of the
    /// kernel that is not among them lacks its provider library. The error is one line that says what to
    /// install, or what the system says.
    pub fn names() -> Result<Vec<String>, OpenError> {
        let api = library::api().map_err(|error| failed(KIND, error))?;
        raw::names(api).map_err(|error| failed(KIND, error))
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

    /// None without libibverbs ([`IbvProvider::missing`] says so). A device that cannot be opened is left
    /// out, with a warning.
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
                Err(error) => tracing::warn!(%error, "a device that is left out"),
            }
        }
        Ok(devices)
    }

    fn open(&self, name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
        // What is wrong with the name is wrong on any machine.
        Options::of(name)?;
        let api = self
            .api()
            .map_err(|error| failed(&name.to_string(), error))?;
        let found = find(&api, name)?;
        let context = Context::new(found.raw, found.info, found.port, found.max_region);
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

fn find(api: &Api, name: &DeviceName) -> Result<Found, OpenError> {
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
    if raw.transport() == abi::TRANSPORT_IWARP {
        let what = "the device speaks iWARP: only RoCE is known how to connect";
        return Err(failed(&name.to_string(), what));
    }
    let device = raw.device_attr().map_err(system)?;
    let driver = known::driver(in_sysfs(called, "driver"), device.vendor_id);
    let single_threaded = std::env::var_os("MLX5_SINGLE_THREADED");
    if let Some(what) = known::refusal(&driver, device.vendor_id, single_threaded.as_deref()) {
        return Err(failed(&name.to_string(), what));
    }
    let ports = device.phys_port_cnt;
    if options.port.is_some_and(|port| port > ports) {
        let what = format!("the device has {ports} ports, from 1 on");
        return Err(failed(&name.to_string(), what));
    }
    let (number, attr) = port_of(&raw, &options, ports).map_err(system)?;
    if attr.link_layer == abi::LINK_INFINIBAND {
        let what = format!(
            "port {number} is of an InfiniBand network: only Ethernet (RoCE) is known how to address"
        );
        return Err(failed(&name.to_string(), what));
    }
    let entry = entry_of(&raw, &options, number, &attr);
    let entry = entry.map_err(|what| failed(&name.to_string(), what))?;
    let active = u8::try_from(attr.active_mtu).ok().and_then(Mtu::from_code);
    let active = active.unwrap_or(Mtu::B1024);
    let limits = limits_of(&device, &attr, max_inline(&raw));
    let info = DeviceInfo {
        name: name.clone(),
        description: described(called, &driver, number, &attr, &entry),
        gid: entry.gid,
        mtu: options.mtu.map_or(active, |mtu| mtu.min(active)),
        driver: (driver != known::UNKNOWN).then(|| driver.clone()),
        numa_node: in_sysfs(called, "numa_node").and_then(|node| node.parse().ok()),
        limits,
        promises: options.promises(known::promises(&driver, device.vendor_id)),
    };
    let port = Port {
        number,
        gid_index: entry.index,
        has_atomics: device.atomic_cap != abi::ATOMIC_NONE,
        most_retries: known::most_retries(&driver),
        options,
    };
    let max_region = device.max_mr_size;
    Ok(Found {
        info,
        port,
        max_region,
        raw,
    })
}

/// The port that was asked for, or the first that is up, or the first.
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

/// The GID that was asked for, or the best.
fn entry_of(raw: &Raw, options: &Options, port: u8, attr: &abi::PortAttr) -> Result<Entry, String> {
    let count = usize::try_from(attr.gid_tbl_len).unwrap_or(0);
    let entries = raw.gids(port, count);
    let Some(index) = options.gid_index else {
        return gid::choose(&entries).ok_or_else(|| {
            format!("port {port} has no address: give its network interface an IP address")
        });
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
        format!("gid_index={index} is not in use on port {port}: in use are {there}")
    })
}

fn described(name: &str, driver: &str, port: u8, attr: &abi::PortAttr, entry: &Entry) -> String {
    let up = match attr.state {
        abi::PORT_ACTIVE => "up",
        _ => "down",
    };
    let network = match entry.gid_type {
        GidType::RoceV2 => "RoCE v2",
        GidType::Local => "RoCE v1",
        GidType::Unknown => "RoCE",
    };
    let index = entry.index;
    format!("RDMA device {name} ({driver}), port {port} ({up}), {network}, GID index {index}")
}

/// What sysfs says of the device behind the RDMA device `name`.
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

fn limits_of(device: &abi::DeviceAttr, port: &abi::PortAttr, max_inline: u32) -> Limits {
    let reads = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom);
    // One number for both kinds of receive queue.
    let max_sge = match device.max_srq {
        1.. => device.max_sge.min(device.max_srq_sge),
        _ => device.max_sge,
    };
    Limits {
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

/// The longest inline payload: no device says it but of a queue pair that was made, so some are made.
fn max_inline(raw: &Arc<Raw>) -> u32 {
    let Ok(pd) = raw.alloc_pd() else { return 0 };
    let Ok(cq) = raw.create_cq(headworks_verbs::CqId(0), 4, None, false) else {
        return 0;
    };
    let longest = |qp_type| {
        INLINES.iter().find_map(|&asked| {
            let mut caps = abi::QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: asked,
            };
            let made = pd.create_qp(qp_type, (&cq, &cq), None, &mut caps, false);
            made.ok().map(|_| caps.max_inline_data)
        })
    };
    longest(abi::QPT_RC)
        .or_else(|| longest(abi::QPT_UD))
        .unwrap_or(0)
}

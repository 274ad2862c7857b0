//! `headworks devices`.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use headworks::rdma;
use headworks::verbs::DeviceInfo;
use serde_json::{Value, json};

use crate::exit_status::print;
use port::PortReport;

mod port;

/// Lists the available devices; with `all`, all that they declare.
pub(crate) fn list(all: bool, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let list: Vec<_> = devices()?.iter().map(in_json).collect();
        return print(&format!("{:#}\n", Value::Array(list)));
    }
    print(&text(all)?)
}

/// Describes the available devices; with `all`, says all that they declare.
pub(crate) fn text(all: bool) -> anyhow::Result<String> {
    let devices = devices()?;
    let described = if all { in_full } else { in_short };
    let mut text: String = devices.iter().map(described).collect();
    for kind in headworks::devices::missing_libraries() {
        let _ = writeln!(text, "{kind}");
    }
    Ok(text)
}

/// Returns how the port of a device of libibverbs is used; `None` for other devices, and if it vanished.
fn port_report(device: &DeviceInfo) -> Option<PortReport> {
    if device.name.kind() != rdma::KIND {
        return None;
    }
    let choice = headworks::devices::choice(&device.name).ok()?;
    Some(PortReport::read(Path::new("/"), &device.name, choice))
}

fn devices() -> anyhow::Result<Vec<DeviceInfo>> {
    headworks::devices().context("listing the devices")
}

fn in_short(device: &DeviceInfo) -> String {
    let (promises, limits) = (&device.promises, &device.limits);
    let in_order = match promises.in_order_within_write {
        0 => None,
        u32::MAX => Some("bytes of a WRITE in address order".to_owned()),
        up_to => Some(format!("bytes of WRITEs up to {up_to} in address order")),
    };
    let promised: Vec<_> = [
        promises
            .ordered_between_writes
            .then(|| "WRITEs in order".to_owned()),
        promises
            .atomic_aligned_8
            .then(|| "aligned 8-byte words whole".to_owned()),
        in_order,
    ]
    .into_iter()
    .flatten()
    .collect();
    let promised = if promised.is_empty() {
        "nothing beyond the specification".to_owned()
    } else {
        promised.join(", ")
    };
    format!(
        "{}\n    {}\n    promises: {promised}\n    limits: {} queue pairs, {} requests on a queue, {} completions on a queue, {} regions, {} bytes inline\n",
        device.name,
        device.description,
        limits.max_qp,
        limits.max_qp_wr,
        limits.max_cqe,
        limits.max_mr,
        limits.max_inline,
    )
}

/// Returns every limit: its name in the library, its value, its meaning.
fn limits(device: &DeviceInfo) -> [(&'static str, u64, &'static str); 12] {
    let limits = &device.limits;
    [
        ("max_qp", limits.max_qp.into(), "queue pairs"),
        (
            "max_qp_wr",
            limits.max_qp_wr.into(),
            "requests outstanding on a send or receive queue",
        ),
        (
            "max_sge",
            limits.max_sge.into(),
            "scatter/gather entries of a request",
        ),
        (
            "max_inline",
            limits.max_inline.into(),
            "bytes of an inline payload",
        ),
        ("max_cq", limits.max_cq.into(), "completion queues"),
        (
            "max_cqe",
            limits.max_cqe.into(),
            "completions of a completion queue",
        ),
        ("max_mr", limits.max_mr.into(), "registered regions"),
        ("max_ah", limits.max_ah.into(), "address handles"),
        ("max_srq", limits.max_srq.into(), "shared receive queues"),
        (
            "max_srq_wr",
            limits.max_srq_wr.into(),
            "receives of a shared receive queue",
        ),
        (
            "max_rd_atomic",
            limits.max_rd_atomic.into(),
            "READs and atomics outstanding on a queue pair",
        ),
        (
            "max_message",
            limits.max_message.into(),
            "bytes of one message",
        ),
    ]
}

fn in_full(device: &DeviceInfo) -> String {
    let promises = &device.promises;
    let yes = |promised| if promised { "yes" } else { "no" }.to_owned();
    let in_order = match promises.in_order_within_write {
        0 => "no".to_owned(),
        u32::MAX => "every WRITE".to_owned(),
        up_to => format!("up to {up_to} bytes"),
    };
    let node = device
        .numa_node
        .map_or_else(|| "not known".to_owned(), |node| node.to_string());
    let mut text = format!("{}\n    {}\n", device.name, device.description);
    let mut line = |name: &str, value: String, what: &str| {
        let _ = writeln!(text, "    {name:<24}{value:>12}  {what}");
    };
    let said = [
        ("gid", gid(device), ""),
        (
            "lid",
            device
                .lid
                .map_or_else(|| "none".to_owned(), |lid| lid.to_string()),
            "of an InfiniBand network",
        ),
        (
            "mtu",
            device.mtu.bytes().to_string(),
            "bytes of a packet's payload",
        ),
        ("numa_node", node, ""),
        (
            "ordered_between_writes",
            yes(promises.ordered_between_writes),
            "a later WRITE of a queue pair is placed after an earlier one",
        ),
        (
            "atomic_aligned_8",
            yes(promises.atomic_aligned_8),
            "an aligned 8-byte word is placed whole",
        ),
        (
            "in_order_within_write",
            in_order,
            "the bytes of a WRITE are placed in address order",
        ),
    ];
    for (name, value, what) in said {
        line(name, value, what);
    }
    for (name, value, what) in port_report(device).iter().flat_map(PortReport::lines) {
        line(name, value, &what);
    }
    for (name, value, what) in limits(device) {
        line(name, value.to_string(), what);
    }
    text
}

fn gid(device: &DeviceInfo) -> String {
    std::net::Ipv6Addr::from(device.gid.0).to_string()
}

fn in_json(device: &DeviceInfo) -> Value {
    let promises = &device.promises;
    let limits: serde_json::Map<_, _> = limits(device)
        .into_iter()
        .map(|(name, value, _)| (name.to_owned(), value.into()))
        .collect();
    json!({
        "name": device.name.to_string(),
        "description": device.description,
        "gid": gid(device),
        // Null unless the network is InfiniBand.
        "lid": device.lid.map(headworks::verbs::Lid::raw),
        "mtu": device.mtu.bytes(),
        "numa_node": device.numa_node,
        // Null unless it is a device of libibverbs.
        "port": port_report(device).map(|port| port.in_json()),
        "limits": limits,
        "promises": {
            "ordered_between_writes": promises.ordered_between_writes,
            "atomic_aligned_8": promises.atomic_aligned_8,
            // Longest WRITE, in bytes, that the promise holds for: 4294967295 for any, 0 for none.
            "in_order_within_write": promises.in_order_within_write,
        },
    })
}

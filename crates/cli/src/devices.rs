//! `headworks devices`.

use anyhow::Context;
use headworks::verbs::DeviceInfo;

use crate::fail::print;

/// Lists every device that is there.
pub(crate) fn list() -> anyhow::Result<()> {
    let devices = headworks::devices().context("listing the devices")?;
    let mut text = String::new();
    for device in &devices {
        text.push_str(&described(device));
    }
    print(&text)
}

fn described(device: &DeviceInfo) -> String {
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

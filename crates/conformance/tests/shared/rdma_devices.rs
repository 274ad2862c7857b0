//! RDMA devices of this machine, for the tests that run on them.

use std::sync::Arc;

use headworks_conformance::{DeviceBehaviour, KnownDeviations, known_deviations};
use headworks_ibverbs::IbvProvider;
use headworks_runtime::{DeviceOpener, testing};
use headworks_verbs::Provider;

/// Returns an opener of libibverbs devices.
pub(crate) fn opener() -> DeviceOpener {
    let provider = IbvProvider::new();
    Arc::new(move |name| provider.open(name))
}

/// Behaviour of any RDMA NIC: it works asynchronously, and does only what the specification demands.
pub(crate) const RDMA_NIC_BEHAVIOUR: DeviceBehaviour = DeviceBehaviour {
    completes_in_call: false,
    spurious_refusals: 0,
    empty_polls_max: 0,
    checks_before_copying: false,
    reports_failure_twice: false,
    detects_peer_death: false,
    frees_slots_when_polled: false,
    refuses_bad_datagrams: true,
    // Creating an object takes a system call or two, which is slow on an emulated machine.
    objects_max: 10_000,
    sizes_queues_exactly: false,
    progresses_without_calls: true,
    defers_requests: false,
    polls_after_overrun: false,
};

/// Returns the names of two devices: those that the environment names, or else the first two.
pub(crate) fn devices() -> Option<[String; 2]> {
    testing::devices_or(|| {
        let listed = IbvProvider::new().devices();
        let listed = listed.map_err(|error| error.to_string())?;
        let why = || match IbvProvider::missing() {
            Some(error) => error.to_string(),
            None => "libibverbs knows of no device here".to_owned(),
        };
        match listed.is_empty() {
            true => Err(why()),
            false => Ok(listed.iter().map(|info| info.name.to_string()).collect()),
        }
    })
}

/// Returns the known deviations of the devices, if all have the same driver.
pub(crate) fn known_deviations(names: &[String]) -> KnownDeviations {
    let driver = |name: &String| {
        let name = name.parse().expect("the name of a device");
        let opened = IbvProvider::new().open(&name);
        let opened = opened.unwrap_or_else(|error| panic!("{error}"));
        opened.info().driver.clone()
    };
    let drivers: Vec<_> = names.iter().map(driver).collect();
    let first = drivers.first().cloned().flatten();
    let one = first.filter(|first| drivers.iter().all(|other| other.as_ref() == Some(first)));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let release = release.expect("the kernel says its release");
    let known_deviations = known_deviations::of_driver(one.as_deref(), release.trim());
    if !known_deviations.all.is_empty() && !known_deviations.is_certain {
        println!(
            "kernel {}: the known deviations were found on another kernel",
            release.trim()
        );
    }
    known_deviations
}

//! The machine's own RDMA devices, for the tests that run on them.

use std::sync::Arc;

use headworks_conformance::{Knowledge, Manners, known};
use headworks_ibverbs::IbvProvider;
use headworks_runtime::{DeviceOpener, testing};
use headworks_verbs::Provider;

/// Opens devices of libibverbs.
pub(crate) fn opener() -> DeviceOpener {
    let provider = IbvProvider::new();
    Arc::new(move |name| provider.open(name))
}

/// Whatever a device does in its own time, and says only as far as the specification makes it.
pub(crate) const PLAIN: Manners = Manners {
    at_once: false,
    refusals: 0,
    late: 0,
    checks_first: false,
    tells_twice: false,
    notices_deaths: false,
    holds_unpolled: false,
    refuses_datagrams: true,
    // Each is a system call or two, and slow where the machine is emulated.
    many: 10_000,
    sizes_exactly: false,
    by_itself: true,
    holds_back: false,
    keeps_what_overran: false,
};

/// The names of two devices, those that are named or the first two that there are.
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

/// What is known of devices, if all of them are of one driver.
pub(crate) fn knowledge(names: &[String]) -> Knowledge {
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
    let knowledge = known::of(one.as_deref(), release.trim());
    if !knowledge.all.is_empty() && !knowledge.is_certain {
        println!(
            "kernel {}: what is known was found on another",
            release.trim()
        );
    }
    knowledge
}

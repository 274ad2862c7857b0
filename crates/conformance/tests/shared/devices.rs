//! The machine's own RDMA devices, for the tests that run on them.

use std::sync::Arc;

use headworks_conformance::{Deviation, Manners, known};
use headworks_ibverbs::IbvProvider;
use headworks_stage::Opener;
use headworks_verbs::Provider;

/// Opens devices of libibverbs.
pub(crate) fn opener() -> Opener {
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
    keeps_what_overran: false,
};

/// The names of two devices: those of `HEADWORKS_IBV`, separated by a semicolon, or the first two that
/// there are. One twice, if there is no other.
pub(crate) fn devices() -> Option<[String; 2]> {
    let names: Vec<String> = match std::env::var("HEADWORKS_IBV") {
        Ok(names) => names.split(';').map(str::to_owned).collect(),
        Err(_) => {
            let listed = IbvProvider::new().devices();
            let listed = listed.expect("the devices can be listed");
            listed.iter().map(|info| info.name.to_string()).collect()
        }
    };
    let (Some(first), second) = (names.first(), names.get(1)) else {
        let why = IbvProvider::missing().map_or_else(
            || "libibverbs knows of no device here".to_owned(),
            |error| error.to_string(),
        );
        let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
        let is_required = required.split(',').any(|name| name == "ibv");
        assert!(!is_required, "ibv is required, but {why}");
        println!("skipped: {why}");
        return None;
    };
    Some([first.clone(), second.unwrap_or(first).clone()])
}

/// What is known of a device that its driver alone tells.
pub(crate) fn deviations(name: &str) -> &'static [Deviation] {
    let name = name.parse().expect("the name of a device");
    let opened = IbvProvider::new().open(&name);
    let opened = opened.unwrap_or_else(|error| panic!("{error}"));
    match opened.info().description.contains("(rxe)") {
        true => known::RXE,
        false => &[],
    }
}

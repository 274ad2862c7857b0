//! Properties of device kinds that pacing depends on. A kind that is not in this build never reaches pacing.

use headworks_verbs::DeviceName;

/// Whether a device called `name` is simulated in virtual time.
pub(super) fn is_simulated(name: &DeviceName) -> bool {
    name.kind() == "sim"
}

/// Returns the rate of all links of the simulated device called `name`; `None` if there is no such device.
pub(super) fn simulated_link_gbps(name: &DeviceName) -> Option<f64> {
    #[cfg(feature = "sim")]
    if let Ok((preset, _)) = headworks_simnic::provider::machine(name) {
        return Some(preset.all_links_gbps());
    }
    let _ = name;
    None
}

/// Returns the name of the first device of libibverbs, which is opened if none is named.
pub(super) fn first_ibv_device() -> Option<String> {
    #[cfg(feature = "ibv")]
    return headworks_ibverbs::IbvProvider::names()
        .ok()?
        .into_iter()
        .next();
    #[cfg(not(feature = "ibv"))]
    None
}

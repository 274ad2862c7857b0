//! The one place that opens devices by name.

use std::sync::{Arc, LazyLock};

use headworks_ibverbs::{IbvProvider, cm};
use headworks_pacing::SetError;
use headworks_runtime::DeviceOpener;
use headworks_shm::{Registry, RegistryError};
use headworks_simnic::provider::machine;
use headworks_simnic::{SimProvider, is_simulated};
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, DeviceInfo, DeviceName, OpenError, Provider};

use crate::pace;

pub use headworks_ibverbs::library::{
    INSTALL as INSTALL_LIBIBVERBS, INSTALL_MANAGER as INSTALL_LIBRDMACM,
};
pub use headworks_ibverbs::port_selection::{Choice, Network, Refusal};

/// What a queue pair of a soft device has in shared memory, beyond the slots of its receive queue.
pub const SOFT_SHARED_BYTES_PER_QP: usize = headworks_softnic::SHARED_BYTES_PER_QP;

/// The device that is used when none is named.
pub const DEFAULT_DEVICE: &str = "soft";

/// Simulated devices of one process are on one network.
static SIM_PROVIDER: LazyLock<SimProvider> = LazyLock::new(SimProvider::new);

fn providers() -> Vec<Box<dyn Provider>> {
    vec![
        Box::new(SoftProvider::new()),
        Box::new(IbvProvider::new()),
        Box::new(&*SIM_PROVIDER),
    ]
}

/// Opens the device called `name`: `KIND[:NAME][,key=value…]`, paced where it says so ([`crate::pace`]).
pub fn open(name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
    let (plain, pacing) = pace::split(name)?;
    let device = open_plain(&plain)?;
    match pacing {
        Some(config) => pace::paced(device, name, config),
        None => Ok(device),
    }
}

fn open_plain(name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
    let providers = providers();
    match providers
        .iter()
        .find(|provider| provider.kind() == name.kind())
    {
        Some(provider) => provider.open(name),
        None => Err(unknown_kind(name)),
    }
}

fn unknown_kind(name: &DeviceName) -> OpenError {
    let known: Vec<_> = providers().iter().map(|each| each.kind()).collect();
    OpenError::UnknownKind {
        kind: name.kind().to_owned(),
        known: known.join(", "),
    }
}

/// Refuses what a name must not say, its kind, its options, its pacing, as [`open`] does, and opens nothing: for those
/// who only look at a device. Whether there is such a device it does not say.
pub fn check(name: &DeviceName) -> Result<(), OpenError> {
    let (plain, _) = pace::split(name)?;
    match plain.kind() {
        "soft" => SoftProvider::check(&plain),
        "ibv" => IbvProvider::check(&plain),
        _ if is_simulated(&plain) => machine(&plain).map(drop),
        _ => Err(unknown_kind(&plain)),
    }
}

/// Every device that is there now. None can be opened with a registry that is not ours to use: that is
/// an error here too.
pub fn devices() -> Result<Vec<DeviceInfo>, OpenError> {
    // Looking makes none.
    if let Err(error) = Registry::open_existing_default()
        && is_wrong_registry(&error)
    {
        return Err(OpenError::Provider {
            what: DEFAULT_DEVICE.to_owned(),
            source: error.into(),
        });
    }
    let mut all = Vec::new();
    for provider in providers() {
        all.extend(provider.devices()?);
    }
    Ok(all)
}

/// Kinds of devices of which [`devices`] names none because something is not installed: one line each,
/// which says what.
pub fn missing_libraries() -> Vec<String> {
    let ibv = IbvProvider::missing().map(|error| format!("ibv: {error}"));
    ibv.into_iter().collect()
}

/// The RDMA devices that libibverbs knows of, by its own names and whether they can be opened or not; or,
/// in one line, why it cannot be asked. A device of the kernel that is not among them has no provider
/// library here.
pub fn libibverbs_devices() -> Result<Vec<String>, String> {
    match IbvProvider::missing() {
        Some(error) => Err(error.to_string()),
        None => IbvProvider::names().map_err(|error| error.to_string()),
    }
}

/// Which port and address the device of libibverbs called `name`, `ibv:NAME[,key=value…]`, is used by, or the
/// error of opening it. Its source is a [`Refusal`] where the device is there and is not used.
pub fn choice(name: &DeviceName) -> Result<Choice, OpenError> {
    IbvProvider::new().choice(name)
}

/// Whether librdmacm is there, for meetings over RDMA ([`crate::rdma`]): if not, one line that says what to
/// install.
pub fn connection_manager() -> Result<(), String> {
    match cm::missing() {
        Some(error) => Err(error.to_string()),
        None => Ok(()),
    }
}

/// Whether what was asked for was wrong, a name, an option or a registry, rather than something having
/// failed.
pub fn is_bad_input(error: &OpenError) -> bool {
    match error {
        OpenError::Name(_)
        | OpenError::UnknownKind { .. }
        | OpenError::NotFound { .. }
        | OpenError::BadOption { .. }
        | OpenError::OptionLimit { .. } => true,
        OpenError::Provider { source, .. } => {
            // An option named what the port has not in use.
            let is_option = matches!(source.downcast_ref(), Some(Refusal::GidIndex { .. }));
            let is_constant = source.is::<SetError>();
            is_option || is_constant || source.downcast_ref().is_some_and(is_wrong_registry)
        }
        _ => false,
    }
}

/// Whether it says that this registry, or this name in it, cannot be used: by this user, by this version.
pub(crate) fn is_wrong_registry(error: &RegistryError) -> bool {
    matches!(
        error,
        RegistryError::BadName { .. }
            | RegistryError::NameInUse { .. }
            | RegistryError::Layout { .. }
            | RegistryError::Unlike { .. }
            | RegistryError::Owner { .. }
            | RegistryError::Mode { .. }
            | RegistryError::NotDirectory { .. }
    )
}

/// [`open`], as the runtime hands it to actors.
pub fn opener() -> DeviceOpener {
    Arc::new(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_no_bad_input() {
        let (path, what) = (std::path::PathBuf::from("/x"), || "soft".to_owned());
        let of = |source: Box<dyn std::error::Error + Send + Sync>| {
            let what = what();
            is_bad_input(&OpenError::Provider { what, source })
        };
        let (owner, us) = (1, 2);
        assert!(of(RegistryError::Owner { path, owner, us }.into()));
        let (what, seconds) = (what(), 5);
        assert!(!of(RegistryError::Busy { what, seconds }.into()));
        assert!(!of(RegistryError::Full { limit: 9 }.into()));
        let there = "0, 1".to_owned();
        let (index, port) = (77, 1);
        assert!(of(Refusal::GidIndex { index, port, there }.into()));
        assert!(!of(Refusal::NoAddress { port }.into()));
        assert!(!of("no memory".into()));
        let (option, what) = ("mtu", "port 1 has active".to_owned());
        let (asked, highest) = (4096, 1024);
        assert!(is_bad_input(&OpenError::OptionLimit {
            option,
            asked,
            what,
            highest
        }));
        let bad = |name: &str| {
            let name = name.parse().expect("a name");
            let refused = check(&name).expect_err("no such name");
            assert_eq!(
                open(&name).map(drop).unwrap_err().to_string(),
                refused.to_string()
            );
            refused
        };
        for name in [
            "hard",
            "soft:h1,a=b",
            "ibv:x,a=b",
            "ibv:x,mtu=1500",
            "sim:nope",
            "sim,hostile",
            "soft,pace=1",
            "soft,pace_x=1",
            "soft,pace_slice_bytes=1",
        ] {
            assert!(is_bad_input(&bad(name)), "{name}");
        }
        for name in [
            "soft:h1,hostile,seed=3",
            "ibv:x,mtu=1024,pace",
            "sim,host=h2",
        ] {
            check(&name.parse().expect("a name")).expect("legal");
        }
    }
}

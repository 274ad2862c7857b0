//! Opens devices by name; no other module does.

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

/// Bytes of shared memory that a queue pair of a soft device takes, without the slots of its receive queue.
pub const SOFT_SHARED_BYTES_PER_QP: usize = headworks_softnic::SHARED_BYTES_PER_QP;

/// The device that is used when the caller names none.
pub const DEFAULT_DEVICE: &str = "soft";

/// One provider for the process, so that all its simulated devices are on one network.
static SIM_PROVIDER: LazyLock<SimProvider> = LazyLock::new(SimProvider::new);

fn providers() -> Vec<Box<dyn Provider>> {
    vec![
        Box::new(SoftProvider::new()),
        Box::new(IbvProvider::new()),
        Box::new(&*SIM_PROVIDER),
    ]
}

/// Opens the device called `name`: `KIND[:NAME][,key=value…]`. Paces it if the name says so
/// ([`crate::pace`]).
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

/// Refuses an illegal kind, option or pacing in a name, as [`open`] does, but opens nothing: for callers that
/// only observe a device. Does not check that the device exists.
pub fn check(name: &DeviceName) -> Result<(), OpenError> {
    let (plain, _) = pace::split(name)?;
    match plain.kind() {
        "soft" => SoftProvider::check(&plain),
        "ibv" => IbvProvider::check(&plain),
        _ if is_simulated(&plain) => machine(&plain).map(drop),
        _ => Err(unknown_kind(&plain)),
    }
}

/// Lists every device that is present now.
///
/// # Errors
///
/// Fails also if this user or version cannot use the registry: no device could be opened then.
pub fn devices() -> Result<Vec<DeviceInfo>, OpenError> {
    // Listing devices must not create a registry.
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

/// Returns one line for each kind of device that [`devices`] cannot list because a library is not installed;
/// the line says what to install.
pub fn missing_libraries() -> Vec<String> {
    let ibv = IbvProvider::missing().map(|error| format!("ibv: {error}"));
    ibv.into_iter().collect()
}

/// Lists the RDMA devices known to libibverbs by its own names, whether or not they can be opened. A device
/// of the kernel that is absent from the list has no provider library here.
///
/// # Errors
///
/// One line that says why libibverbs cannot be asked.
pub fn libibverbs_devices() -> Result<Vec<String>, String> {
    match IbvProvider::missing() {
        Some(error) => Err(error.to_string()),
        None => IbvProvider::names().map_err(|error| error.to_string()),
    }
}

/// Returns the port and address through which the device of libibverbs called `name`
/// (`ibv:NAME[,key=value…]`) is used.
///
/// # Errors
///
/// The error of opening it. Its source is a [`Refusal`] if the device exists but is not usable.
pub fn choice(name: &DeviceName) -> Result<Choice, OpenError> {
    IbvProvider::new().choice(name)
}

/// Checks that librdmacm, which [`crate::rdma`] needs, is installed.
///
/// # Errors
///
/// One line that says what to install.
pub fn connection_manager() -> Result<(), String> {
    match cm::missing() {
        Some(error) => Err(error.to_string()),
        None => Ok(()),
    }
}

/// Whether the error is in the request (a name, an option or a registry) and not a failure of the system.
pub fn is_bad_input(error: &OpenError) -> bool {
    match error {
        OpenError::Name(_)
        | OpenError::UnknownKind { .. }
        | OpenError::NotFound { .. }
        | OpenError::BadOption { .. }
        | OpenError::OptionLimit { .. } => true,
        OpenError::Provider { source, .. } => {
            // The option named a GID index that the port does not use.
            let is_option = matches!(source.downcast_ref(), Some(Refusal::GidIndex { .. }));
            let is_constant = source.is::<SetError>();
            is_option || is_constant || source.downcast_ref().is_some_and(is_wrong_registry)
        }
        _ => false,
    }
}

/// Whether the error is one of using the registry.
pub fn is_registry_error(error: &OpenError) -> bool {
    match error {
        OpenError::Provider { source, .. } => source.is::<RegistryError>(),
        _ => false,
    }
}

/// Whether this user or version cannot use the registry, or a name in it.
pub(crate) fn is_wrong_registry(error: &RegistryError) -> bool {
    matches!(
        error,
        RegistryError::BadName { .. }
            | RegistryError::NameInUse { .. }
            | RegistryError::Layout { .. }
            | RegistryError::Unlike { .. }
            | RegistryError::Owner { .. }
            | RegistryError::Mode { .. }
            | RegistryError::Make { .. }
            | RegistryError::DanglingLink { .. }
            | RegistryError::NotDirectory { .. }
            | RegistryError::PathTooLong { .. }
    )
}

/// Wraps [`open`] as the [`DeviceOpener`] that the runtime passes to actors.
pub fn opener() -> DeviceOpener {
    Arc::new(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operational_failures_are_not_bad_input() {
        let (path, what) = (std::path::PathBuf::from("/x"), || "soft".to_owned());
        let of = |source: Box<dyn std::error::Error + Send + Sync>| {
            let what = what();
            is_bad_input(&OpenError::Provider { what, source })
        };
        let (owner, us) = (1, 2);
        let source = RegistryError::Owner { path, owner, us }.into();
        let owner = OpenError::Provider {
            what: what(),
            source,
        };
        assert!(is_bad_input(&owner) && is_registry_error(&owner));
        let source = "no memory".into();
        let memory = OpenError::Provider {
            what: what(),
            source,
        };
        assert!(!is_registry_error(&memory));
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

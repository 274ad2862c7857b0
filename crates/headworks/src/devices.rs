//! Opens devices by name; no other module does.

use std::error::Error;
use std::sync::Arc;
#[cfg(feature = "sim")]
use std::sync::LazyLock;

#[cfg(feature = "ibv")]
use headworks_ibverbs::IbvProvider;
use headworks_shm::{Registry, RegistryError};
#[cfg(feature = "sim")]
use headworks_simnic::SimProvider;
#[cfg(feature = "soft")]
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, DeviceInfo, DeviceName, DeviceOpener, OpenError, Provider};

use crate::pace;

#[cfg(feature = "ibv")]
mod libibverbs;

#[cfg(feature = "ibv")]
pub use libibverbs::{
    Choice, INSTALL_LIBIBVERBS, INSTALL_LIBRDMACM, Network, Refusal, choice, connection_manager,
    libibverbs_devices, missing_libraries,
};

/// Bytes of shared memory that a queue pair of a soft device takes, without the slots of its receive queue.
#[cfg(feature = "soft")]
pub const SOFT_SHARED_BYTES_PER_QP: usize = headworks_softnic::SHARED_BYTES_PER_QP;

/// The device that is used when the caller names none.
pub const DEFAULT_DEVICE: &str = "soft";

/// One provider for the process, so that all its simulated devices are on one network.
#[cfg(feature = "sim")]
static SIM_PROVIDER: LazyLock<SimProvider> = LazyLock::new(SimProvider::new);

/// A kind of device whose provider is in this build.
struct Kind {
    name: &'static str,
    provider: fn() -> Box<dyn Provider>,
    /// Refuses an illegal option in a name, as opening does, but opens nothing.
    check: fn(&DeviceName) -> Result<(), OpenError>,
}

/// The kinds of device in this build.
const KINDS: &[Kind] = &[
    #[cfg(feature = "soft")]
    Kind {
        name: "soft",
        provider: || Box::new(SoftProvider::new()),
        check: SoftProvider::check,
    },
    #[cfg(feature = "ibv")]
    Kind {
        name: "ibv",
        provider: || Box::new(IbvProvider::new()),
        check: IbvProvider::check,
    },
    #[cfg(feature = "sim")]
    Kind {
        name: "sim",
        provider: || Box::new(&*SIM_PROVIDER),
        check: |name| headworks_simnic::provider::machine(name).map(drop),
    },
];

/// The features that add a kind of device. Each is called as its kind.
const FEATURES: [&str; 3] = ["soft", "ibv", "sim"];

/// Opens the device called `name`: `KIND[:NAME][,key=value…]`, as text or as a [`DeviceName`]. Paces it if the name
/// says so (module `pace`).
///
/// ```
/// # #[cfg(feature = "soft")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = headworks::open("soft:h1")?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`OpenError::Name`] if the text is not a device name, [`OpenError::MissingFeature`] if it asks for something whose
/// cargo feature is off, and all others.
pub fn open<N>(name: N) -> Result<Arc<dyn Device>, OpenError>
where
    N: TryInto<DeviceName>,
    OpenError: From<N::Error>,
{
    let name = name.try_into()?;
    let (plain, pacing) = pace::split(&name)?;
    let device = (kind(&plain)?.provider)().open(&plain)?;
    match pacing {
        Some(config) => pace::paced(device, &name, config),
        None => Ok(device),
    }
}

/// Returns the kind of the device called `name`.
fn kind(name: &DeviceName) -> Result<&'static Kind, OpenError> {
    let found = KINDS.iter().find(|kind| kind.name == name.kind());
    found.ok_or_else(|| unknown_kind(name.kind(), KINDS.iter().map(|kind| kind.name)))
}

/// Returns the error of opening a device of a kind that is not among those in this build, `known`.
fn unknown_kind(kind: &str, known: impl Iterator<Item = &'static str>) -> OpenError {
    match FEATURES.into_iter().find(|feature| *feature == kind) {
        Some(feature) => OpenError::MissingFeature {
            what: format!("devices of the kind {kind}"),
            feature,
        },
        None => OpenError::UnknownKind {
            kind: kind.to_owned(),
            known: known.collect::<Vec<_>>().join(", "),
        },
    }
}

/// Refuses an illegal kind, option or pacing in a name, as [`open`] does, but opens nothing: for callers that
/// only observe a device. Does not check that the device exists.
pub fn check(name: &DeviceName) -> Result<(), OpenError> {
    let (plain, _) = pace::split(name)?;
    (kind(&plain)?.check)(&plain)
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
    for kind in KINDS {
        all.extend((kind.provider)().devices()?);
    }
    Ok(all)
}

/// Whether the error is in the request (a name, an option or a registry) and not a failure of the system.
pub fn is_bad_input(error: &OpenError) -> bool {
    match error {
        OpenError::Name(_)
        | OpenError::UnknownKind { .. }
        | OpenError::MissingFeature { .. }
        | OpenError::NotFound { .. }
        | OpenError::BadOption { .. }
        | OpenError::OptionLimit { .. } => true,
        OpenError::Provider { source, .. } => {
            is_bad_option(&**source)
                || pace::is_bad_constant(&**source)
                || source.downcast_ref().is_some_and(is_wrong_registry)
        }
        _ => false,
    }
}

/// Whether a provider failed because of an option's value.
fn is_bad_option(source: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "ibv")]
    // The option named a GID that the port does not have, or an index that it does not use.
    if let Some(Refusal::GidIndex { .. } | Refusal::NoSuchAddress { .. }) = source.downcast_ref() {
        return true;
    }
    let _ = source;
    false
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
    Arc::new(|name: &DeviceName| open(name))
}

#[cfg(all(
    test,
    feature = "soft",
    feature = "ibv",
    feature = "sim",
    feature = "pacing"
))]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_was_not_compiled_in_is_refused_with_its_feature() {
        let refused = |kind| unknown_kind(kind, ["soft"].into_iter());
        for kind in FEATURES {
            let error = refused(kind);
            assert!(is_bad_input(&error));
            let said = error.to_string();
            let (named, feature) = (format!("kind {kind}"), format!("feature {kind:?}"));
            assert!(said.contains(&named) && said.contains(&feature), "{said}");
        }
        assert!(matches!(
            refused("hard"),
            OpenError::UnknownKind { known, .. } if known == "soft"
        ));
        for kind in KINDS {
            assert!(FEATURES.contains(&kind.name));
            assert_eq!((kind.provider)().kind(), kind.name);
        }
    }

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

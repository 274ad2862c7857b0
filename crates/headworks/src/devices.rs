//! The one place that opens devices by name.

use std::sync::Arc;

use headworks_softnic::SoftProvider;
use headworks_stage::Opener;
use headworks_verbs::{Device, DeviceInfo, DeviceName, OpenError, Provider};

/// The device that is used when none is named.
pub const DEFAULT_DEVICE: &str = "soft";

fn providers() -> Vec<Box<dyn Provider>> {
    vec![Box::new(SoftProvider::new())]
}

/// Opens the device called `name`: `KIND[:NAME][,key=value…]`.
pub fn open(name: &DeviceName) -> Result<Arc<dyn Device>, OpenError> {
    let providers = providers();
    match providers
        .iter()
        .find(|provider| provider.kind() == name.kind())
    {
        Some(provider) => provider.open(name),
        None => Err(OpenError::UnknownKind {
            kind: name.kind().to_owned(),
            known: providers
                .iter()
                .map(|p| p.kind())
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

/// Every device that is there now.
pub fn devices() -> Result<Vec<DeviceInfo>, OpenError> {
    let mut all = Vec::new();
    for provider in providers() {
        all.extend(provider.devices()?);
    }
    Ok(all)
}

/// [`open`], as the stage hands it to actors.
pub fn opener() -> Opener {
    Arc::new(open)
}

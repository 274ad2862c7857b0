//! Queries of libibverbs and librdmacm besides opening a device: whether the libraries are installed, and which devices
//! they list.

use headworks_ibverbs::{IbvProvider, cm};
use headworks_verbs::{DeviceName, OpenError};

pub use headworks_ibverbs::library::{
    INSTALL as INSTALL_LIBIBVERBS, INSTALL_MANAGER as INSTALL_LIBRDMACM,
};
pub use headworks_ibverbs::port_selection::{Choice, Network, Refusal};

/// Returns one line for each kind of device that [`devices`](super::devices()) cannot list because a library is not installed;
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

//! Worlds whose hosts are executors in this process, or processes of their own.

pub mod in_process;
pub mod processes;

pub use in_process::InProcessWorld;
pub use processes::ProcessWorld;

use crate::deviation::KnownDeviations;
use crate::executor::DeviceNames;
use crate::world::{DeviceBehaviour, HostRole};

/// Devices of a world, by role.
#[derive(Clone, Debug)]
pub struct WorldLayout {
    /// Device name of each role.
    pub names: DeviceNames,
    /// All roles share one device, opened once.
    pub one_device: bool,
    /// Behaviour of the devices.
    pub behaviour: DeviceBehaviour,
    /// Known deviations of the devices from the specification.
    pub known_deviations: KnownDeviations,
}

impl WorldLayout {
    /// Returns a layout with one device for each role, each opened separately.
    ///
    /// # Panics
    ///
    /// If a name is not a valid device name.
    pub fn of(names: [&str; 3]) -> Self {
        let parse = |name: &str| name.parse().expect("the name of a device");
        Self {
            names: HostRole::ALL.into_iter().zip(names.map(parse)).collect(),
            one_device: false,
            behaviour: DeviceBehaviour::default(),
            known_deviations: KnownDeviations::default(),
        }
    }

    /// Returns the layout with this behaviour.
    #[must_use]
    pub fn with(self, behaviour: DeviceBehaviour) -> Self {
        Self { behaviour, ..self }
    }

    /// Returns the layout with these known deviations.
    #[must_use]
    pub fn with_known_deviations(self, known_deviations: KnownDeviations) -> Self {
        Self {
            known_deviations,
            ..self
        }
    }

    /// Returns a layout with one device that is its own peer.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid device name.
    pub fn loopback(name: &str) -> Self {
        Self {
            one_device: true,
            ..Self::of([name; 3])
        }
    }
}

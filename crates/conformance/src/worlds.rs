//! Worlds: hosts as executors of this process, or in processes of their own.

pub mod in_process;
pub mod processes;

pub use in_process::InProcessWorld;
pub use processes::ProcessWorld;

use crate::deviation::KnownDeviations;
use crate::executor::DeviceNames;
use crate::world::{DeviceBehaviour, HostRole};

/// Which devices stand at the ends.
#[derive(Clone, Debug)]
pub struct WorldLayout {
    /// By end.
    pub names: DeviceNames,
    /// All ends are one device, opened once.
    pub one_device: bool,
    /// How they behave.
    pub behaviour: DeviceBehaviour,
    /// What they are known to do otherwise than the specification has it.
    pub known_deviations: KnownDeviations,
}

impl WorldLayout {
    /// A device for each end, each opened for itself.
    ///
    /// # Panics
    ///
    /// If a name is none.
    pub fn of(names: [&str; 3]) -> Self {
        let parse = |name: &str| name.parse().expect("the name of a device");
        Self {
            names: HostRole::ALL.into_iter().zip(names.map(parse)).collect(),
            one_device: false,
            behaviour: DeviceBehaviour::default(),
            known_deviations: KnownDeviations::default(),
        }
    }

    /// Devices that behave so.
    #[must_use]
    pub fn with(self, behaviour: DeviceBehaviour) -> Self {
        Self { behaviour, ..self }
    }

    /// Devices of which this is known.
    #[must_use]
    pub fn with_known_deviations(self, known_deviations: KnownDeviations) -> Self {
        Self {
            known_deviations,
            ..self
        }
    }

    /// One device that is its own peer.
    ///
    /// # Panics
    ///
    /// If the name is none.
    pub fn loopback(name: &str) -> Self {
        Self {
            one_device: true,
            ..Self::of([name; 3])
        }
    }
}

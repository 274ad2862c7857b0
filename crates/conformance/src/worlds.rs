//! Worlds: hosts as puppets of this process, or in processes of their own.

pub mod apart;
pub mod local;

pub use apart::Apart;
pub use local::Local;

use crate::deviation::Knowledge;
use crate::puppet::Names;
use crate::world::{End, Manners};

/// Which devices stand at the ends.
#[derive(Clone, Debug)]
pub struct Layout {
    /// By end.
    pub names: Names,
    /// All ends are one device, opened once.
    pub one_device: bool,
    /// How they behave.
    pub manners: Manners,
    /// What they are known to do otherwise than the specification has it.
    pub knowledge: Knowledge,
}

impl Layout {
    /// A device for each end, each opened for itself.
    ///
    /// # Panics
    ///
    /// If a name is none.
    pub fn of(names: [&str; 3]) -> Self {
        let parse = |name: &str| name.parse().expect("the name of a device");
        Self {
            names: End::ALL.into_iter().zip(names.map(parse)).collect(),
            one_device: false,
            manners: Manners::default(),
            knowledge: Knowledge::default(),
        }
    }

    /// Devices that behave so.
    #[must_use]
    pub fn with(self, manners: Manners) -> Self {
        Self { manners, ..self }
    }

    /// Devices of which this is known.
    #[must_use]
    pub fn knowing(self, knowledge: Knowledge) -> Self {
        Self { knowledge, ..self }
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

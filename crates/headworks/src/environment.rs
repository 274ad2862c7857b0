//! The system calls and files that the software RNIC needs, and whether this process has them. `headworks doctor` shows
//! it.
//!
//! ```
//! use headworks::environment::{SystemCall, refused_calls};
//!
//! println!("processes meet in {}", headworks::environment::registry_path().display());
//! for (call, error) in refused_calls() {
//!     println!("{} is refused: {error}", call.name());
//!     assert_ne!(call, SystemCall::MemfdCreate, "no soft device can be opened");
//! }
//! ```

use std::io;
use std::path::PathBuf;

use headworks_shm::{Registry, liveness};
use headworks_softnic::check_cross_process_copy;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::thread::{MembarrierCommand, membarrier};

pub use headworks_shm::control_group::{MemoryLimit, memory_limits};
pub use headworks_shm::process_limits::{
    ResourceLimit, file_size, locked_memory_limit, open_files_limit,
};

/// Returns the path of the user's registry, in which processes meet. The directory need not exist.
pub fn registry_path() -> PathBuf {
    Registry::user_path()
}

/// A system call that a sandbox may forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SystemCall {
    /// Makes shared memory. No device can be opened without it.
    MemfdCreate,
    /// Opens a descriptor that tells of the death of a process. Without it, others ask every quarter of a second.
    PidfdOpen,
    /// Makes other processors execute a memory fence. Without it, each request executes one.
    Membarrier,
    /// Copies between the memory of processes. Without it, the owner of private memory copies it.
    ProcessVmWritev,
}

impl SystemCall {
    const ALL: [Self; 4] = [
        Self::MemfdCreate,
        Self::PidfdOpen,
        Self::Membarrier,
        Self::ProcessVmWritev,
    ];

    /// Returns its name in the manual pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemfdCreate => "memfd_create",
            Self::PidfdOpen => "pidfd_open",
            Self::Membarrier => "membarrier",
            Self::ProcessVmWritev => "process_vm_writev",
        }
    }

    fn check(self) -> io::Result<()> {
        match self {
            Self::MemfdCreate => {
                Ok(memfd_create("headworks-check", MemfdFlags::CLOEXEC).map(drop)?)
            }
            Self::PidfdOpen => liveness::open_own_pidfd().map(drop),
            Self::Membarrier => {
                membarrier(MembarrierCommand::RegisterGlobalExpedited)?;
                Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
            }
            Self::ProcessVmWritev => check_cross_process_copy(),
        }
    }
}

/// Makes each call of [`SystemCall`] once, to no effect. Returns those that fail, and the errors.
pub fn refused_calls() -> Vec<(SystemCall, io::Error)> {
    let failed = |call: SystemCall| Some((call, call.check().err()?));
    SystemCall::ALL.into_iter().filter_map(failed).collect()
}

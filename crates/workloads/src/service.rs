//! The service as it is used: daemons and applications, as processes of this program and in virtual time.
//!
//! | module | what |
//! |---|---|
//! | `one_sided` | one-sided requests of a caller: what is asked for, and whether the answer is right; in both worlds |
//! | [`native_verbs`] | programs that speak verbs themselves; in both worlds |
//! | [`virtual_time`] | the daemon's core and its applications on simulated hosts, and threads that share queue pairs |
//! | [`daemon_hosts`] | two daemons, and the processes beside them, until they are dropped |
//! | [`load`] | applications that measure: messages, and one-sided requests |
//! | `servers` | applications that are asked: over the service, and over TCP |
//! | [`controlled_app`] | applications that are told what to do: they ask each other now and then, or hold connections |
//! | [`control`] | processes that are told what to do |
//! | [`rusage`] | what processes take of this machine |
//! | [`shm_relay`] | four processes that hand a message on through shared memory: what a way over two daemons takes at least |

pub mod control;
pub mod controlled_app;
pub mod daemon_hosts;
pub mod load;
pub mod native_verbs;
pub mod rusage;
pub mod shm_relay;
pub mod virtual_time;

mod one_sided;
mod servers;

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use headworks::service::ServiceError;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::error::WorkloadError;

/// What a process of this program is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// A daemon.
    Daemon {
        /// Its device.
        device: String,
        /// The address that it serves.
        address: SocketAddr,
        /// The socket that applications attach to.
        socket: PathBuf,
    },
    /// An application of the daemon at that socket that others connect to.
    Serving {
        /// The socket.
        socket: PathBuf,
        /// The port.
        port: u16,
    },
    /// A TCP server, which says its port.
    ServingTcp,
    /// An application that measures, and says what.
    Load(load::LoadClient),
    /// An application that is told what to do.
    App(controlled_app::ControlledApp),
    /// A program with verbs of its own, whose memory others use.
    IdleQueuePairs(native_verbs::IdleQueuePairs),
    /// A link of a chain.
    RelayHop(shm_relay::RelayHop),
}

type Result<T, E = WorkloadError> = std::result::Result<T, E>;

impl From<ServiceError> for WorkloadError {
    fn from(error: ServiceError) -> Self {
        Self(error.to_string())
    }
}

impl From<std::io::Error> for WorkloadError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Makes an error of a cause, with what was being done in front of it.
fn failed<E: Display>(what: &str) -> impl Fn(E) -> WorkloadError {
    move |error| WorkloadError::at(what, error)
}

/// Does what this process was started for.
pub(crate) fn run_role(role: &str) -> Result<()> {
    // If the process that started it is killed, nothing else ends it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("the parent's death"))?;
    let role: Role = serde_json::from_str(role).map_err(failed("role"))?;
    match role {
        Role::Daemon {
            device,
            address,
            socket,
        } => daemon_hosts::serve(&device, address, socket),
        Role::Serving { socket, port } => servers::serve(&socket, port),
        Role::ServingTcp => servers::serve_tcp(),
        Role::Load(asking) => control::reply(&asking.measure()?),
        Role::App(app) => app.run(),
        Role::IdleQueuePairs(holding) => holding.run(),
        Role::RelayHop(link) => control::reply(&link.run()?),
    }
}

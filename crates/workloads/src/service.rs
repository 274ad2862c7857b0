//! The service in use: daemons and applications, as processes of this program and in virtual time.
//!
//! | module | what |
//! |---|---|
//! | `one_sided` | one-sided requests of a client, and a check of their results; in both worlds |
//! | [`native_verbs`] | programs that use verbs directly; in both worlds |
//! | [`virtual_time`] | the daemon's core and its applications on simulated hosts, and threads that share queue pairs |
//! | [`daemon_hosts`] | two daemons, and the processes beside them, which end when they are dropped |
//! | [`load`] | applications that measure: messages, and one-sided requests |
//! | [`many_streams`], [`echo`] | applications that measure many connections at once, or short ones; echo over many connections |
//! | [`ready_set`] | which of many connections are ready |
//! | `servers` | applications that answer: over the service, and over TCP |
//! | [`controlled_app`] | applications that follow commands: they send occasional requests, or hold connections |
//! | [`streaming`] | applications that send or receive over many streams without a pause |
//! | [`control`] | processes that follow commands |
//! | [`rusage`] | resources of this machine that processes use |
//! | [`shm_relay`] | a message through four processes by shared memory: lower bound of a path over two daemons |

pub mod control;
pub mod controlled_app;
pub mod daemon_hosts;
pub mod echo;
pub mod load;
pub mod many_streams;
pub mod native_verbs;
pub mod ready_set;
pub mod rusage;
pub mod shm_relay;
pub mod streaming;
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

/// Role of a process of this program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// A daemon.
    Daemon {
        /// Name of its device.
        device: String,
        /// Address that it listens at.
        address: SocketAddr,
        /// Path of the socket that applications attach to.
        socket: PathBuf,
        /// Its settings.
        options: daemon_hosts::DaemonOptions,
    },
    /// An application that others connect to.
    Serving {
        /// Path of its daemon's socket.
        socket: PathBuf,
        /// Port that it listens on.
        port: u16,
    },
    /// A TCP server, which prints its port.
    ServingTcp,
    /// An application that measures and reports.
    Load(load::LoadClient),
    /// An application that measures many connections and reports.
    ManyStreams(many_streams::ManyStreams),
    /// An application that follows commands.
    App(controlled_app::ControlledApp),
    /// An application that sends or receives without a pause, and follows commands.
    Streaming(streaming::StreamingApp),
    /// A program that uses verbs directly, and whose memory others access.
    IdleQueuePairs(native_verbs::IdleQueuePairs),
    /// A process of a chain that forwards messages.
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

/// Makes an error that names what was being done before the cause.
fn failed<E: Display>(what: &str) -> impl Fn(E) -> WorkloadError {
    move |error| WorkloadError::at(what, error)
}

/// Runs the role that this process was started for.
pub(crate) fn run_role(role: &str) -> Result<()> {
    // If the process that started this one is killed, nothing else ends it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("the parent's death"))?;
    let role: Role = serde_json::from_str(role).map_err(failed("role"))?;
    match role {
        Role::Daemon {
            device,
            address,
            socket,
            options,
        } => daemon_hosts::serve(&device, address, socket, &options),
        Role::Serving { socket, port } => servers::serve(&socket, port),
        Role::ServingTcp => servers::serve_tcp(),
        Role::Load(asking) => control::reply(&asking.measure()?),
        Role::ManyStreams(load) => control::reply(&load.measure()?),
        Role::App(app) => app.run(),
        Role::Streaming(app) => app.run(),
        Role::IdleQueuePairs(holding) => holding.run(),
        Role::RelayHop(link) => control::reply(&link.run()?),
    }
}

//! The service as it is used: daemons and applications, each a process of this program that is kept on one processor.
//!
//! | module | what |
//! |---|---|
//! | [`hosts`] | two daemons, and the processes beside them, until they are dropped |
//! | [`serving`] | applications that are asked: over the service, and over TCP |
//! | [`asking`] | applications that measure |
//! | [`app`] | applications that ask each other now and then, also without the service |
//! | [`native`] | programs that speak verbs themselves |
//! | [`idle`] | applications with many connections over which nothing goes |
//! | [`control`] | processes that are told what to do when |
//! | [`rusage`] | what processes take of this machine |
//! | [`simulated`] | the same in virtual time: the daemon's core and applications on simulated hosts |
//! | [`chain`] | four processes that hand a message on through shared memory: what a way over two daemons takes at least |

pub mod app;
pub mod asking;
pub mod chain;
pub mod control;
pub mod hosts;
pub mod idle;
pub mod native;
pub mod rusage;
pub mod serving;
pub mod simulated;

use std::net::SocketAddr;
use std::path::PathBuf;

use headworks::service::ServiceError;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::latency::Quantiles;
use crate::transports::ArmError;

/// What a process of this program is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// A daemon.
    Daemon {
        /// Its device.
        device: String,
        /// What it serves at.
        address: SocketAddr,
        /// Where applications attach.
        socket: PathBuf,
    },
    /// An application of the daemon at that socket that others connect to.
    Serving {
        /// The socket.
        socket: PathBuf,
        /// The port.
        port: u16,
    },
    /// The same over TCP, which leaves its port in a file.
    ServingTcp {
        /// The file.
        port: PathBuf,
    },
    /// An application that measures, and says what.
    Asking(asking::Asking),
    /// An application that asks others now and then, or answers.
    App(app::App),
    /// A program with verbs of its own, whose memory others use.
    Holding(native::Holding),
    /// An application that holds connections.
    Idle(idle::Idle),
    /// A link of a chain.
    Link(chain::Link),
}

/// What a measurement found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Found {
    /// Latencies.
    Latency(Quantiles),
    /// So many bytes in so many nanoseconds.
    Moved {
        /// Bytes.
        bytes: u64,
        /// Nanoseconds.
        nanos: u64,
    },
    /// So many operations in so many nanoseconds.
    Ended {
        /// Operations.
        count: u64,
        /// Nanoseconds.
        nanos: u64,
    },
}

impl Found {
    /// Of latencies the median in nanoseconds; else bytes, or operations, in a second.
    pub fn figure(self) -> f64 {
        match self {
            Self::Latency(quantiles) => quantiles.p50_ns,
            Self::Moved {
                bytes: count,
                nanos,
            }
            | Self::Ended { count, nanos } => count as f64 * 1e9 / nanos.max(1) as f64,
        }
    }
}

fn failed(what: &str) -> impl Fn(ServiceError) -> ArmError {
    move |error| ArmError::at(what, error)
}

/// What this process was started for.
pub(crate) fn play(role: &str) -> Result<(), ArmError> {
    // Whoever started it may be killed, and nobody else ends it.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| ArmError::at("the parent's death", error))?;
    let role: Role = serde_json::from_str(role).map_err(|error| ArmError::at("role", error))?;
    match role {
        Role::Daemon {
            device,
            address,
            socket,
        } => hosts::serve(&device, address, socket),
        Role::Serving { socket, port } => serving::serve(&socket, port),
        Role::ServingTcp { port } => serving::serve_tcp(&port),
        Role::Asking(asking) => control::say(&asking.measure()?),
        Role::App(app) => app.play(),
        Role::Holding(holding) => holding.play(),
        Role::Idle(idle) => idle.play(),
        Role::Link(link) => match link.play()? {
            Some(found) => control::say(&found),
            None => Ok(()),
        },
    }
}

//! Why a run of experiments ends early.

use std::path::PathBuf;

use headworks::verbs::DeviceName;

use crate::report::WriteError;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no experiment of that name.
    #[error("no experiment is called {name:?} (known: {known})")]
    Unknown {
        /// The name.
        name: String,
        /// The names of all experiments.
        known: String,
    },
    /// It is about devices of another kind than the one it was to run on.
    #[error(
        "{name} is about devices {kind}:NAME, and not {device}: name one with --device, as `headworks devices` lists them"
    )]
    OtherKind {
        /// The experiment.
        name: &'static str,
        /// The kind that it is about.
        kind: &'static str,
        /// The device.
        device: DeviceName,
    },
    /// What it measures is not there on simulated devices.
    #[error(
        "{name} does not run on {device}, which is simulated: {why} (name another with --device: soft or ibv:NAME)"
    )]
    NotSimulated {
        /// The experiment.
        name: &'static str,
        /// The device.
        device: DeviceName,
        /// Why it does not.
        why: &'static str,
    },
    /// It compares paced devices with plain ones, and was given a paced one.
    #[error("{name} paces devices itself: name {device} without pace and pace_KEY")]
    Paced {
        /// The experiment.
        name: &'static str,
        /// The device.
        device: DeviceName,
    },
    /// The two hosts cannot be on one network: one is simulated and the other is not, or is another machine.
    #[error(
        "--peer-device {peer}: not on one network with --device {device}: the two hosts of a simulated one have the \
         same preset and seed (host=NAME tells them apart)"
    )]
    OtherMachine {
        /// The one host's device.
        device: String,
        /// The other's.
        peer: String,
    },
    /// The capture to replay cannot be read, or nothing replays it.
    #[error("--trace: {0}")]
    Trace(String),
    /// Where the results are to go is no directory.
    #[error("--out: {} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// No results can be written where they are to go, as was seen before anything was measured.
    #[error("--out: {0}")]
    Unwritable(WriteError),
    /// An interrupt was asked for. What was finished before it is written.
    #[error("interrupted")]
    Interrupted,
    /// Results could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The experiment could not measure what it is about.
    #[error("{0}")]
    Failed(String),
}

impl RunError {
    /// The exit code of a program that ends with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unknown { .. }
            | Self::OtherKind { .. }
            | Self::NotSimulated { .. }
            | Self::Paced { .. }
            | Self::OtherMachine { .. }
            | Self::Trace(_)
            | Self::NoDirectory(_)
            | Self::Unwritable(_) => 2,
            Self::Interrupted => 130,
            Self::Write(_) | Self::Failed(_) => 1,
        }
    }
}

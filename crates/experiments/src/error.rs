//! Why a run of experiments ends early.

use crate::report::WriteError;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The options are invalid; nothing was measured.
    #[error("{0}")]
    BadInput(String),
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
            Self::BadInput(_) => 2,
            Self::Interrupted => 130,
            Self::Write(_) | Self::Failed(_) => 1,
        }
    }
}

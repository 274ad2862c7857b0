//! The error of a run of experiments.

use crate::report::WriteError;

/// The reason why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The options are invalid; nothing was measured.
    #[error("{0}")]
    BadInput(String),
    /// An interrupt was requested. The results of experiments that had finished are written.
    #[error("interrupted")]
    Interrupted,
    /// Results could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The experiment could not measure its subject.
    #[error("{0}")]
    Failed(String),
}

impl RunError {
    /// Returns the exit code of a program that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BadInput(_) => 2,
            Self::Interrupted => 130,
            Self::Write(_) | Self::Failed(_) => 1,
        }
    }
}

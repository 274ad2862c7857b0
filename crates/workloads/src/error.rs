//! The error of a workload.

/// Reason why a workload cannot go on, in one clear line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

/// A result whose error is a [`WorkloadError`].
pub type Result<T, E = WorkloadError> = std::result::Result<T, E>;

impl WorkloadError {
    /// Makes an error that names what was being done before the cause.
    pub fn at(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl From<headworks_baselines::EndError> for WorkloadError {
    fn from(why: headworks_baselines::EndError) -> Self {
        Self(why.to_string())
    }
}

//! The error type of workloads.

/// Error that ends a workload, as one line of text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

/// A result whose error is a [`WorkloadError`].
pub type Result<T, E = WorkloadError> = std::result::Result<T, E>;

impl WorkloadError {
    /// Makes the error `what: why`, where `what` names the operation that failed.
    pub fn at(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl From<headworks_baselines::EndError> for WorkloadError {
    fn from(why: headworks_baselines::EndError) -> Self {
        Self(why.to_string())
    }
}

//! Why a workload cannot go on.

/// A workload cannot go on; the text is one clear line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

/// A result whose error is a [`WorkloadError`].
pub type Result<T, E = WorkloadError> = std::result::Result<T, E>;

impl WorkloadError {
    /// With what was being done in front of the cause.
    pub fn at(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl From<headworks_baselines::EndError> for WorkloadError {
    fn from(why: headworks_baselines::EndError) -> Self {
        Self(why.to_string())
    }
}

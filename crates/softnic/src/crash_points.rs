//! Crash-injection points of tests: places in a request at which tests have the process killed or stopped.
//! Each is named after the step just done. Outside of tests they compile to nothing.

/// Crash-injection point; empty outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn at(_done: &'static str) {}

#[cfg(test)]
pub(crate) use crate::tests::child::at;

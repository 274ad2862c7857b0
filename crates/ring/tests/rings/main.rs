//! The ring's two ends over the software RNIC, in one process.
#![cfg(not(loom))]

mod death;
mod edges;
mod hostile;
mod mismatch;
mod oracle;
mod pair;
mod threads;

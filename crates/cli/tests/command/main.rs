//! The command as real processes.

mod common;
mod daemon;
mod death;
mod demo;
mod experiment;
mod hosts;
mod library;
mod pace;
mod rdma;
mod repeatable;
mod simulated;
mod soak;
mod stream;
mod surroundings;
mod top;
mod wrong;

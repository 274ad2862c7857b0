//! The command as real processes.

mod c;
mod casualties;
mod common;
mod daemon;
mod datagrams;
mod death;
mod demo;
mod experiment;
mod guests;
mod hosts;
mod library;
mod misuse;
mod operate;
mod pace;
mod polled;
mod rdma;
mod remote;
mod repeatable;
mod simulated;
mod soak;
mod stream;
mod surroundings;
mod top;
mod wrong;

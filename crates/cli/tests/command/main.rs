//! The command as real processes.

mod common;
mod death;
mod demo;
mod hosts;
mod stream;
mod surroundings;
mod top;
mod wrong;

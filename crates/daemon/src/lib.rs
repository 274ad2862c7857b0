//! x
#![deny(unsafe_code)]
pub mod channel;
pub mod config;
mod connection;
pub mod control;
pub mod credit;
pub mod daemon;
pub mod domain;
pub mod frame;
pub mod grants;
mod inlet;
pub mod link;
pub mod memory;
pub mod order;
mod outlet;
pub mod pool;
pub mod receives;
mod session;
pub mod table;

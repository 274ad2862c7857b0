//! Programs on the `headworks` crate alone, and the code of the README, compiled and run as tests of
//! this documentation.
//!
//! | program (`examples/examples/`) | what it shows |
//! |---|---|
//! | `flow_meter` | messages of one length, filled and read where they lie; a stream that polls |
//! | `key_value` | requests and responses on two rings that cross, many on their way at a time |
//! | `http_server` | messages of any length, one at a time, as soon as they can be there |
//!
//! Each is two processes: started without arguments it starts itself as the other one. Two rings that
//! cross are in [`crossing`]; what has nothing to do with rings is in [`shell`] (exit codes, the other
//! process) and [`pcap`].
//!
#![doc = include_str!("../../README.md")]

pub mod crossing;
pub mod pcap;
pub mod shell;

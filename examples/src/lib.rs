//! Programs on the `headworks` crate alone, and the code of the guides in `docs/`, which is compiled and run
//! as doc tests of this crate.
//!
//! | program (`examples/examples/`) | what it shows |
//! |---|---|
//! | `flow_meter` | messages of one length, written and read in place; a polling stream |
//! | `key_value` | requests and responses on two opposite rings, many in flight at a time |
//! | `http_server` | messages of any length, one at a time, with low latency |
//! | `service_key_value` | one thread that polls many connections; separate sending and receiving threads |
//! | `parameter_server` | requests to many servers at once, over daemons, and their answers |
//! | `service_echo`, `service_echo_poll`, `service_echo_client` | the programs of docs/services.md |
//! | `migration` | lent memory, and received bytes that are used in place |
//!
//! Each program, except the echo programs, is two processes. Started without arguments, it starts itself
//! again as the other process, and as the daemons if it uses any. [`duplex_rings`] connects two opposite rings,
//! [`service_program`] calls of the service that end at Ctrl-C, and [`local_hosts`] two hosts on this
//! machine. [`program`] (exit codes, the other process) and [`pcap`] have the rest.
//!
#![doc = include_str!("../../docs/rings.md")]
#![doc = include_str!("../../docs/services.md")]
#![doc = include_str!("../../docs/testing-your-rdma-code.md")]

pub mod duplex_rings;
pub mod local_hosts;
pub mod pcap;
pub mod program;
pub mod service_program;

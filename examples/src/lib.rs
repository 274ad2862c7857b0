//! Programs on the `headworks` crate alone, and the code of the guides in `docs/`, compiled and run as
//! tests of this documentation.
//!
//! | program (`examples/examples/`) | what it shows |
//! |---|---|
//! | `flow_meter` | messages of one length, filled and read where they lie; a stream that polls |
//! | `key_value` | requests and responses on two rings that cross, many on their way at a time |
//! | `http_server` | messages of any length, one at a time, as soon as they can be there |
//!
//! | `service_key_value` | a server that polls many connections of the service's in one thread; sending and receiving in two |
//! | `parameter_server` | requests to many servers at once, over daemons, and answers |
//! | `service_echo`, `service_echo_poll`, `service_echo_client` | the programs of docs/services.md |
//! | `migration` | memory that is lent, and bytes that are used where they came to lie |
//!
//! Each is two processes: started without arguments it starts itself as the other one, and where it uses daemons as
//! those, too. Two rings that cross are in [`duplex_rings`], calls of the service's that end at Ctrl-C in [`service_program`],
//! two hosts on this machine in [`local_hosts`]; what has nothing to do with either is in [`program`] (exit codes, the other
//! process) and [`pcap`].
//!
#![doc = include_str!("../../docs/rings.md")]
#![doc = include_str!("../../docs/services.md")]
#![doc = include_str!("../../docs/testing-your-rdma-code.md")]

pub mod duplex_rings;
pub mod local_hosts;
pub mod pcap;
pub mod program;
pub mod service_program;

//! A network function that measures traffic (RB² section V-C, case 1). The side that sees the packets sends a
//! [`Record`] of 40 bytes for each of them; the function counts packets and bytes of every flow.
//!
//! | module | what |
//! |---|---|
//! | [`record`] | the record and its layout |
//! | [`packet`] | parsing the bytes of a packet into its flow |
//! | [`capture`], `pcap` | packets of a file in pcap or pcapng format |
//! | [`synthetic`] | synthetic traffic: a heavy-tailed mix of flows |
//! | [`flow_counts`] | the counts, and how they are checked |
//! | [`tap_and_monitor`] | the two sides: [`Tap`] sends records, [`Monitor`] counts |
//!
//! The paper replays a minute of CAIDA 2019, 30 million packets. CAIDA gives those files on request only, so
//! a run is given a capture file, or makes synthetic traffic.

pub mod capture;
pub mod flow_counts;
pub mod packet;
mod pcap;
pub mod record;
pub mod synthetic;
pub mod tap_and_monitor;

pub use capture::{Capture, Replay};
pub use flow_counts::{Digest, FlowCount, FlowCounts};
pub use record::{FlowKey, RECORD, Record};
pub use synthetic::FLOWS;
pub use tap_and_monitor::{Monitor, Tap};

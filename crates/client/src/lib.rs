//! Both ends of the contract between an application and the daemon that carries its connections (RaaS,
//! sections IV and V): the layout of the memory that they share, and the messages on the socket between them.
//!
//! Nothing here does I/O, reads a clock or blocks. The daemon's ends read every value that an application
//! wrote only once, and check it. If it is invalid they return a [`ContractError`]. An application trusts its
//! daemon to do its work, but does not trust it to keep to the layout.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`vqpn`] | numbers of connections (vQPN) |
//! | [`slabs`] | slabs, ranges of bytes in them ([`Extent`]), byte rings |
//! | [`control_block`] | control block of one connection: shared words, status, reason of a reset |
//! | [`egress`] | egress ring: records that an application wants sent; writer and reader |
//! | [`one_sided`] | one-sided operations on memory that the peer exports |
//! | [`ingress`] | received bytes, in the ingress ring and behind descriptors; writer and reader |
//! | [`descriptors`] | descriptors of received bytes that do not lie in the ring |
//! | [`direct`] | the direct path: applications of one machine exchange bytes without their daemons |
//! | [`doorbell`] | doorbell: which connections the application touched, and the wake-up of the daemon's worker that carries them |
//! | [`socket_message`] | messages on the Unix socket: attach, connect, listen, close |
//! | [`connection`] | an application's end of one connection, with a half for each direction |
//! | [`wake_set`] | a dirty set with the event count of the one who reads it |
//! | [`session`] | an application's session with its daemon |
//! | [`error`] | errors of the contract |
//! | [`testing`] | memory and direct connections for tests |
#![deny(unsafe_code)]

pub mod connection;
pub mod control_block;
pub mod descriptors;
pub mod direct;
pub mod doorbell;
pub mod egress;
pub mod error;
pub mod ingress;
pub mod one_sided;
pub mod session;
pub mod slabs;
pub mod socket_message;
pub mod testing;
pub mod vqpn;
pub mod wake_set;

pub use control_block::{BLOCK_BYTES, ControlBlock, DIRECT_BLOCK_BYTES, Reset, Status};
pub use descriptors::{DESCRIPTORS, KeptDescriptor};
pub use doorbell::Doorbell;
pub use egress::{EgressReader, EgressRecord, EgressWriter, LendTicket, RecordKind};
pub use error::ContractError;
pub use ingress::{ConsumeNotice, Freed, IngressReader, IngressWriter};
pub use one_sided::{Op, Operation, Outcome, Outcomes, Rights};
pub use session::Session;
pub use slabs::{ByteRing, Extent, Slabs};
pub use vqpn::Vqpn;
pub use wake_set::WakeSet;

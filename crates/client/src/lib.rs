//! Both ends of the contract between an application and the daemon that carries its connections (RaaS, sections
//! IV and V): what lies in the memory that they share, and what they say on the socket between them.
//!
//! Nothing here does I/O, reads a clock or blocks. What an application writes is read once by the daemon's ends,
//! checked, and answered with a [`ContractError`]; an application trusts its daemon to do its work, not to keep
//! to the layout.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`vqpn`] | numbers of connections |
//! | [`memory`] | slabs, stretches of them ([`Extent`]), rings of bytes |
//! | [`control_block`] | the words of one connection, its status, why it was reset |
//! | [`egress`] | what an application wants sent: both ends |
//! | [`one_sided`] | one-sided operations on memory of the other end's |
//! | [`ingress`] | what has come for it: both ends |
//! | [`doorbell`] | which connections an application touched, and the bell of its daemon |
//! | [`socket_message`] | what is said on the socket: attaching, connecting, listening, closing |
//! | [`connection`] | an application's end of one: a direction each |
//! | [`session`] | an application's side of all of it |
//! | [`error`] | what cannot be |
//! | [`testing`] | memory for tests |
#![deny(unsafe_code)]

pub mod connection;
pub mod control_block;
pub mod doorbell;
pub mod egress;
pub mod error;
pub mod ingress;
pub mod memory;
pub mod one_sided;
pub mod session;
pub mod socket_message;
pub mod testing;
pub mod vqpn;

pub use control_block::{BLOCK_BYTES, ControlBlock, Reset, Status};
pub use doorbell::Doorbell;
pub use egress::{EgressReader, EgressWriter, Lent, Record, What};
pub use error::ContractError;
pub use ingress::{IngressReader, IngressWriter};
pub use memory::{ByteRing, Extent, Slabs};
pub use one_sided::{Op, Operation, Outcome, Outcomes, Rights};
pub use session::Session;
pub use vqpn::Vqpn;

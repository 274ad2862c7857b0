//! Request and response over RDMA verbs, after *RDMA Communication Patterns* (Ziegler, Leis and Binnig, 2020).
//!
//! A requester sends a request of 64 bytes and waits for a response, which the responder sends from a region
//! that it filled beforehand. The request and the response each travel by one of two verbs (section 4.1). A
//! design is a pair of verbs, and a pair of type parameters: the compiler generates each design, and no loop
//! branches on it.
//!
//! | type | verb of the sender | how the receiver learns of a message |
//! |---|---|---|
//! | [`Write`](verb::Write) of [`InMessage`](verb::InMessage) | WRITE | polls the last byte of a mailbox, which the WRITE places last |
//! | `Write` of [`SecondWrite`](verb::SecondWrite) | WRITE, then a WRITE of a flag | polls the flag behind a mailbox |
//! | [`DenseWrite`](verb::DenseWrite), requests only | WRITE, then a WRITE of one byte | polls an area of flags, eight by one load |
//! | [`Send`](verb::Send) to [`SharedReceives`](verb::SharedReceives) | SEND | polls completions of tagged receives of a shared receive queue |
//! | `Send` to [`OwnReceives`](verb::OwnReceives) | SEND | polls completions of tagged receives of each queue pair |
//!
//! The paper's WriteSend, for example, is `Requester<Write<_>, Send<OwnReceives>, _>` with
//! `Responder<Write<_>, Send<OwnReceives>>`.
//!
//! A requester connects to each responder itself (*private connection*), or its server has a
//! [`Dispatcher`] that connects to each responder once for all its workers.
//!
//! # Map
//!
//! | module | what it is |
//! |---|---|
//! | [`config`] | sizes of a run, their checks, and the layout of registered memory |
//! | [`message`] | content of requests and responses |
//! | [`ports`] | the device objects of a requester or responder: queue pairs, memory, room in send queues |
//! | [`bring_up`] | connecting to the peers, and the areas that the two sides give each other |
//! | [`verb`] | sending and receiving by WRITE and by SEND |
//! | [`requester`], [`responder`] | the two loops, generic over the verbs |
//! | [`dispatcher`] | one connection per responder for all workers of a server, and the workers |
//! | [`topology`] | the responder of each request: one, or one of many at random |
//! | [`error`] | why a run cannot start, or go on |
//!
//! # Partially placed messages
//!
//! A receiver must not read a message of which bytes are missing. With `Write<InMessage>` the last byte of the
//! message is its flag, and the device must promise to place the bytes of a WRITE in address order
//! ([`in_order_within_write`](headworks_verbs::Promises::in_order_within_write)); the paper relies on it.
//! With `Write<SecondWrite>` the device must promise only that a later WRITE follows an earlier one
//! ([`ordered_between_writes`](headworks_verbs::Promises::ordered_between_writes)).
//! [`PatternConfig::check`](config::PatternConfig::check) refuses a design whose promise the device lacks.
#![forbid(unsafe_code)]

pub mod bring_up;
pub mod config;
pub mod dispatcher;
pub mod error;
pub mod message;
pub mod ports;
pub mod requester;
pub mod responder;
pub mod topology;
pub mod verb;

pub use bring_up::{Area, PeerBringUps, connect};
pub use config::PatternConfig;
pub use dispatcher::{Dispatcher, Worker};
pub use error::PatternError;
pub use ports::Ports;
pub use requester::{RequestLoad, Requester};
pub use responder::Responder;

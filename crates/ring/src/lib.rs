//! A one-to-one distributed ring buffer on one-sided WRITE, after RB² ("RB²: Narrow the Gap
//! between RDMA Abstraction and Performance via a Middle Layer", sections III and IV).
//!
//! Two circular arrays of N slots, one at each end. The sender fills a slot of its own array,
//! WRITEs groups of slots into the receiver's array before they are announced (every β slots), and
//! announces them by WRITing its tail (every α slots, later while an earlier announcement is under
//! way). The receiver WRITEs its head back every γ slots.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`config`] | [`RingConfig`]: N, slot size, α, β, γ, framing, mode; legal ranges |
//! | [`window`] | the sender's decisions, pure: room, skips, when to transmit and when to publish |
//! | [`drain`] | the receiver's decisions, pure: order of release, when to push the head |
//! | [`header`] | the word in front of a message, or behind it in latency mode |
//! | [`setup`] | making an end and connecting it: what the two ends tell each other |
//! | [`sender`], [`receiver`] | the two ends: decisions put to work on verbs |
//! | [`group`] | rings that one thread serves together |
//! | `wire` | one end's queue pair, completions and cursors |
//! | `slots` | the array in registered memory (the only unsafe code here) |
//!
//! # Calls
//!
//! Nothing blocks. `try_*` do what can be done now; [`Sender::step`] and [`Receiver::step`] must be
//! called by a thread that has nothing to send or receive: they publish what is held back, notice
//! errors and deaths. To sleep until something changes use [`Mode::Notify`] and
//! [`Sender::arm`]/[`Receiver::arm`] with their channel's descriptor.
//!
//! # Trust
//!
//! The two ends of a ring trust each other with the ring's memory: a peer that breaks the protocol
//! can hand out garbage as messages. Cursors and headers from the peer are range-checked, so that it
//! cannot do more than that.
#![deny(unsafe_code)]

pub mod config;
pub mod drain;
pub mod error;
pub mod group;
pub mod header;
pub mod receiver;
pub mod sender;
pub mod setup;
mod slots;
pub mod window;
mod wire;

pub use config::{ConfigError, Framing, Mode, RingConfig};
pub use error::{RingError, SendError};
pub use group::Group;
pub use receiver::{Held, Message, Receiver};
pub use sender::{Reservation, Sender};
pub use setup::{ReceiverSetup, SenderSetup, SetupError};

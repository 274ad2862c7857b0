//! A one-to-one distributed ring buffer on one-sided WRITE, after RB² ("RB²: Narrow the Gap
//! between RDMA Abstraction and Performance via a Middle Layer", sections III and IV).
//!
//! Two circular arrays of N slots, one at each end. The sender fills slots of its own array and
//! transmits them in groups: every β slots it WRITEs a group into the receiver's array, where it is
//! not visible yet. Every α slots it publishes them by WRITing its tail; while an earlier tail is in
//! flight, it publishes later. The receiver WRITEs its head back every γ slots.
//!
//! This page is the map of the crate. To use a ring, read the documentation of `headworks::ring`,
//! which re-exports all of this and has a guide: sizes, modes, errors, polling, sleeping.
//!
//! # Map
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | [`RingConfig`]: N, slot size, α, β, γ, framing, mode; legal ranges |
//! | [`send_policy`] | when a sender transmits and publishes, room, wrap: pure |
//! | [`receive_policy`] | when a receiver returns its head, order of release: pure |
//! | [`header`] | message header: in front of a message, or after it in latency mode |
//! | [`setup`] | handshake: makes an end and connects it |
//! | [`sender`], [`receiver`] | the two ends on verbs |
//! | [`group`] | rings that one thread serves; deficit round robin among them |
//! | [`message_channel`] | traits of the ends of any message channel |
//! | `oracle` | test oracle: compares any message channel with a queue (feature `oracle`, for tests) |
//! | [`endpoint`] | queue pair, completion queue and posting of one end; cursors of a ring |
//! | `slot_array` | array of slots in registered memory (the only unsafe code here) |
//!
//! # Calls
//!
//! No call blocks; a `try_*` call does what is possible now. A thread that has nothing to send or
//! receive must call [`Sender::step`] and [`Receiver::step`]: they publish what is held back, and
//! detect errors and deaths. To sleep until something changes, use [`Mode::Notify`], and
//! [`Sender::arm`] or [`Receiver::arm`] with their channel's descriptor.
//!
//! ```
//! use headworks_ring::{ReceiverSetup, RingConfig, SenderSetup};
//! use headworks_verbs::{Provider, bringup::BringUp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let registry = headworks_shm::Registry::open_at(dir.path().join("registry"))?;
//! # let provider = headworks_softnic::SoftProvider::on(registry);
//! let (here, there) = (provider.open(&"soft:h1".parse()?)?, provider.open(&"soft:h2".parse()?)?);
//! let config = RingConfig::variable(128, 64);
//! let mut tx = SenderSetup::new(&here, &config)?;
//! let mut rx = ReceiverSetup::new(&there, &config)?;
//!
//! // What the two ends tell each other goes over any byte stream; here from hand to hand.
//! let (tuning, hello) = (tx.connection_params(), tx.greeting());
//! let mut a = BringUp::start(here.info(), tx.queue_pair(), tuning, 1, hello)?;
//! let (tuning, hello) = (rx.connection_params(), rx.greeting());
//! let mut b = BringUp::start(there.info(), rx.queue_pair(), tuning, 2, hello)?;
//! a.connect_both(tx.queue_pair(), &mut b, rx.queue_pair())?;
//! let mut tx = tx.finish(&a.peer().ok_or("no peer")?.payload)?;
//! let mut rx = rx.finish(&b.peer().ok_or("no peer")?.payload)?;
//!
//! tx.try_send(b"over the weir")?;
//! tx.flush()?;
//! let message = rx.try_recv()?.ok_or("nothing came")?;
//! assert_eq!(&*message, b"over the weir");
//! # Ok(())
//! # }
//! ```
//!
//! # Trust
//!
//! The two ends of a ring trust each other with the ring's memory: a peer that breaks the protocol
//! can deliver garbage as messages. It can do nothing worse, because each end range-checks the
//! cursors and headers that its peer wrote.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

pub mod config;
pub mod endpoint;
pub mod error;
pub mod group;
pub mod header;
pub mod message_channel;
#[cfg(all(test, loom))]
mod model;
#[cfg(feature = "oracle")]
pub mod oracle;
pub mod receive_policy;
pub mod receiver;
pub mod send_policy;
pub mod sender;
pub mod setup;
mod slot_array;

pub use config::{ConfigError, Framing, Mode, RingConfig};
pub use error::{LengthError, RingError, SendError};
pub use group::{AfterStep, BrokenRing, Group, GroupConfig, Membership, OutOfOrder, RingId};
pub use message_channel::{EndSetup, MessageReceiver, MessageSender, Unconnected};
pub use receiver::{HeldMessage, Message, Receiver};
pub use sender::{Reservation, Sender};
pub use setup::{ReceiverSetup, SenderSetup, SetupError};
pub use slot_array::{view_of, view_of_buffer};

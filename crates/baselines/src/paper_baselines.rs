//! The designs that RB² is compared with, on the same verbs as the ring: ring buffers after published ones,
//! as Table I of "RB²: Narrow the Gap between RDMA Abstraction and Performance via a Middle Layer" lists
//! them, and the four combinations of its Figure 3.
//!
//! | | [`farm`] | [`socksdirect`] | [`l5`] | [`variants`] |
//! |---|---|---|---|---|
//! | message layout | packed | packed | packed | in slots |
//! | array | at the receiver | at both ends | at both ends | at both ends |
//! | a message takes | WRITE of the bytes, WRITE of the length | part of a WRITE with immediate | WRITE of the bytes, WRITE of the tail | part of a WRITE, part of a WRITE of the tail or of its immediate |
//! | the receiver polls | the length word | its CQ | the tail | the tail, or its CQ |
//! | head | pushed lazily | pushed lazily | pushed lazily | pushed or pulled lazily |
//! | batches | no | while ten requests are in flight | no | of a fixed number of slots |
//! | copies at the sender, at the receiver | 0, 1 | 1, 1 | 1, 1 | 0, 0 |
//!
//! The designs share the ring's [`SendPolicy`](headworks_ring::send_policy::SendPolicy), which decides where
//! the next message goes, and [`ReceivePolicy`](headworks_ring::receive_policy::ReceivePolicy), which
//! decides when to push a head. Designs that pack messages use slots of 8 bytes. [`sender`] and [`receiver`]
//! have the loops. Each design is a [`SendProtocol`] (the requests it posts) and a [`ReceiveProtocol`] (how
//! it notices that they arrived) in its own file. [`setup`] creates and connects the ends of any [`Design`].
//!
//! Receivers have the ring receiver's optimisations wherever the design permits them. After an unsuccessful
//! poll the receiver prefetches the next message's cache line; after a header, the message's other lines.
//! Messages of fixed framing that need no action take a short path. A header is read and checked once.
//!
//! [`raw`] is not a channel: it posts WRITEs without a protocol, which shows what the verbs cost.
//!
//! Where a publication leaves a choice open, the cheapest way is taken: chains are posted with one doorbell,
//! only as many requests are signalled as the design needs, and cursors are sent inline. All designs rely
//! on the promises that [`needs`] checks.

pub mod farm;
pub mod l5;
mod link;
pub mod raw;
pub mod receiver;
pub mod sender;
pub mod setup;
pub mod socksdirect;
pub mod variants;

pub use link::ConnectedEnd;
pub use receiver::{BaselineReceiver, ReceiveProtocol};
pub use sender::{BaselineSender, SendProtocol};
pub use setup::{BaselineSetup, Design, Plan, Receives, Sends, needs};
pub use variants::{Head, SyncVariant, Tail};

//! The channels that the paper on RB² compares RB² with, built on the same verbs as the ring of this
//! project. They are published ring buffers, as listed in Table I of "RB²: Narrow the Gap between RDMA
//! Abstraction and Performance via a Middle Layer", and the four combinations of its Figure 3.
//!
//! | | [`farm`] | [`socksdirect`] | [`l5`] | [`variants`] |
//! |---|---|---|---|---|
//! | message layout | packed | packed | packed | in slots |
//! | array | at the receiver | at both ends | at both ends | at both ends |
//! | requests of a message | WRITE of the bytes, WRITE of the length | part of a WRITE with immediate | WRITE of the bytes, WRITE of the tail | part of a WRITE, part of a WRITE of the tail or of its immediate |
//! | the receiver polls | the length word | its CQ | the tail | the tail, or its CQ |
//! | head | pushed lazily | pushed lazily | pushed lazily | pushed or pulled lazily |
//! | batches | no | while ten requests are in flight | no | of a fixed number of slots |
//! | copies at the sender, at the receiver | 0, 1 | 1, 1 | 1, 1 | 0, 0 |
//!
//! The designs share the ring's [`SendPolicy`](headworks_ring::send_policy::SendPolicy), which decides where
//! the next message goes, and [`ReceivePolicy`](headworks_ring::receive_policy::ReceivePolicy), which
//! decides when to push a head. Designs that pack messages use slots of 8 bytes. [`sender`] and [`receiver`]
//! contain the code that all designs share. Each design is a [`SendProtocol`] (the requests it posts) and a
//! [`ReceiveProtocol`] (how it notices that they arrived) in its own file. [`setup`] creates and connects the
//! ends of any [`Design`].
//!
//! Receivers have the ring receiver's optimisations wherever the design permits them. After an unsuccessful
//! poll the receiver prefetches the next message's cache line. After reading a header it prefetches the
//! message's other lines. A message of fixed framing takes a short path unless the receiver must act on it
//! (for example push its head). The receiver reads and checks a header once.
//!
//! [`raw`] is not a channel: it posts WRITEs without a protocol, which shows what the verbs cost.
//!
//! Where a publication leaves a choice open, the implementation takes the cheapest way: it posts a chain with
//! one doorbell, signals only as many requests as the design needs, and sends cursors inline. All designs
//! rely on the promises that [`needs`] checks.

mod connected_end;
pub mod farm;
pub mod l5;
pub mod raw;
pub mod receiver;
pub mod sender;
pub mod setup;
pub mod socksdirect;
pub mod variants;

pub use connected_end::ConnectedEnd;
pub use receiver::{BaselineReceiver, ReceiveProtocol};
pub use sender::{BaselineSender, SendProtocol};
pub use setup::{BaselineSetup, Design, Plan, Receives, Sends, needs};
pub use variants::{Head, SyncVariant, Tail};

//! The designs that RB² is compared with, on the same verbs: distributed ring buffers after the
//! published ones, as Table I of "RB²: Narrow the Gap between RDMA Abstraction and Performance via
//! a Middle Layer" sorts them, and the four combinations of its Figure 3.
//!
//! | | [`farm`] | [`socksdirect`] | [`l5`] | [`variants`] |
//! |---|---|---|---|---|
//! | messages lie | back to back | back to back | back to back | in slots |
//! | array | at the receiver | at both | at both | at both |
//! | a message takes | WRITE of the bytes, WRITE of the length | part of a WRITE with immediate | WRITE of the bytes, WRITE of the tail | part of a WRITE, part of a WRITE of the tail or of its immediate |
//! | the receiver polls | the length's word | its CQ | the tail | the tail, or its CQ |
//! | head | pushed lazily | pushed lazily | pushed lazily | pushed or pulled lazily |
//! | batches | no | while ten are in flight | no | of a fixed number |
//! | copies at the sender, at the receiver | 0, 1 | 1, 1 | 1, 1 | 0, 0 |
//!
//! What they share is shared: where the next message goes and when a head is pushed is decided by
//! the ring's own [`SendPolicy`](headworks_ring::send_policy::SendPolicy) and
//! [`ReceivePolicy`](headworks_ring::receive_policy::ReceivePolicy), in slots of 8 bytes for those that pack their messages;
//! [`sender`] and [`receiver`] have the loops. What makes a design, the requests that it posts and
//! how their arrival is noticed, is a [`SendProtocol`] and a [`ReceiveProtocol`] in a file of its
//! own; [`setup`] makes and connects the ends of any [`Design`].
//!
//! Receivers have the help that the ring's has, wherever the design leaves room for it: after a look in
//! vain the next message's line is asked for, and of a message behind a header its other lines; messages
//! of fixed framing of which nothing is due take the short way; a header is read and judged once.
//!
//! [`raw`] is no channel at all: WRITEs without a protocol, which shows what the verbs cost.
//!
//! What a publication leaves open is done as cheaply as it can be: chains are posted with one doorbell,
//! only as many requests are signalled as the design needs, cursors travel inline. All rely on what
//! [`needs`] says.

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

//! Doorbell pacing, after Weir ("Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA
//! Networks"): an RNIC's cache of work requests is kept from overflowing by posting them no faster than it is
//! done with them.
//!
//! Of each request it is measured how long it takes from the doorbell to the completion. When that grows, requests
//! wait in the RNIC, and the rate of doorbells falls; when not, it rises. The rate is per RNIC, shared by all
//! processes that use it. What is not due waits here, in the order in which it was posted.
//!
//! # Map
//!
//! | module | what | paper |
//! |---|---|---|
//! | [`config`] | every constant: meaning, unit, range, default | |
//! | [`monitor`] | delays of requests and their moving averages, pure | IV-B, Eq. 1 and 2 |
//! | [`clock_sync`] | synchronisation of the device's clock with the host's, pure | IV-B |
//! | [`controller`] | rate controller: thresholds and the rate, pure | IV-C, IV-D, Algorithm 1 |
//! | [`slices`] | cuts long requests, pure | IV-D |
//! | [`post_checks`] | checks of a request when it is posted, pure |
//! | `request_queue` | requests of one queue pair, waiting and in flight; merges completions, pure | IV-B |
//! | [`virtual_clock`] | virtual clock that processes share, from which credit comes | IV-D, credit |
//! | [`shared_state`] | memory that processes share: clock, rate, active queue pairs | IV-C |
//! | `rate_feedback`, `token_bucket` | feedback from completions to the rate; token bucket of one completion queue |
//! | [`paced_sq`] | paced send queues of one completion queue | Algorithm 1 |
//! | [`device`] | paced device around another |
//! | `completion_channel` | its completion channels |
//! | `background` | background thread that posts what is due while the program makes no call |
//!
//! # Differences from the paper
//!
//! The paper sits in the RNIC's driver; this is outside of any, so pacing a doorbell means putting off the post.
//! Requests are refused when they are posted, as verbs have it, not later. β is printed so that it falls below
//! α; see [`controller::Thresholds::of`]. A WRITE with immediate is cut only if asked to be
//! ([`config::PacingConfig::slice_imm`]): its receiver is told a length.
//!
//! Also: what a request's own bytes take on the line is taken off its delay (Eq. 1 does not); where nothing waits one
//! request in [`sample_every`](config::PacingConfig::sample_every) is measured, and of a chain the last, every one if that is 1;
//! outliers are left out;
//! a queue pair counts as active until somebody looks, not until its completion; an idle clock gives a burst; what one
//! completion queue has in flight is bounded, and queue pairs with nothing under way go first. Of its constants the paper
//! states the first rate, the line's, and a synchronisation every 1,000 requests: all others are ours.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

mod background;
pub mod clock_sync;
mod completion_channel;
pub mod config;
pub mod controller;
pub mod device;
mod fifo;
pub mod monitor;
pub mod paced_sq;
pub mod post_checks;
mod rate_feedback;
mod request_queue;
pub mod shared_state;
pub mod slices;
mod token_bucket;
pub mod virtual_clock;

pub use config::{CONSTANTS, Constant, PacingConfig, SetError};
pub use device::{PacedDevice, PacedQp, Pacing};
pub use paced_sq::{Clock, Counts};
pub use shared_state::{ShareError, SharedPacing, Status};

//! Doorbell pacing, after Weir ("Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA
//! Networks"): keeps an RNIC's cache of work requests from overflowing by posting requests no faster than the
//! RNIC completes them.
//!
//! Pacing measures the delay of requests from the doorbell to the completion. A growing delay means that
//! requests queue in the RNIC, so the rate of doorbells falls; otherwise it rises. The rate is per RNIC and
//! shared by all processes that use it. Requests that are not due yet wait here, in the order in which they
//! were posted.
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
//! | [`device`] | device that wraps another one and paces its doorbells |
//! | `completion_channel` | completion channels of the paced device |
//! | `background` | background thread that posts requests that become due while the program makes no call |
//!
//! # Differences from the paper
//!
//! - The paper's pacing sits in the RNIC's driver. This crate is outside of any driver, so pacing a doorbell
//!   means deferring the post.
//! - Illegal requests are refused when they are posted, as verbs require, not later.
//! - As printed, β falls below α; see [`controller::Thresholds::of`].
//! - A WRITE with immediate is cut only on request ([`config::PacingConfig::slice_imm`]), because the
//!   completion at the receiver would report only the length of the last slice.
//! - The time that a request's own bytes take on the line is subtracted from its delay (Eq. 1 does not do
//!   this).
//! - While no request waits, one request in [`sample_every`](config::PacingConfig::sample_every) is measured,
//!   and only the last request of a chain. If `sample_every` is 1, every request is measured.
//! - The moving averages leave outliers out.
//! - A queue pair counts as active until the next scan for idle queue pairs, not until its completion.
//! - After a pause, the virtual clock allows a burst.
//! - The requests that one completion queue has in flight are bounded.
//! - Queue pairs with nothing in flight are served first.
//! - The paper states three constants: the initial rate, the line rate, and a synchronisation every 1,000
//!   requests. The values of all others are ours.
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

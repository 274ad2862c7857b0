//! "Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA Networks" on simulated RNICs: its
//! motivation (sections II-B and III-C), which is the cache misses of an RNIC with many queue pairs; and its evaluation
//! (section V), with and without paced doorbells.
//!
//! | module | what |
//! |---|---|
//! | [`scale`] | figures 2 and 7 to 9: throughput and misses against the number of queue pairs |
//! | [`delay`] | figures 4 and 10: from the doorbell to the completion, within a batch and against time |
//! | [`cost`] | figure 11: completion times of flows, and processor time of pacing |
//! | `arms` | the arms, the base delay, and one load over many queue pairs |

pub(crate) mod arms;
pub mod cost;
pub mod delay;
pub mod scale;

pub use arms::{COUNTED, DEPTH, PAIRS};
pub use delay::{BATCH, PAUSE_NS};

use super::prelude::*;

/// How a figure of the paper presents itself, which is of simulated devices.
const fn about(
    name: &'static str,
    figure: &'static str,
    line: &'static str,
    measures: &'static str,
) -> About {
    About {
        paper: Some(Paper {
            title: "Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA Networks",
            year: 2025,
            figure,
        }),
        runs_on: RunsOn::Simulated,
        ..About::new(name, line, measures)
    }
}

/// A sweep that a simulated device takes as long over as its own time says.
const fn sweep(x: &'static str, n: &'static str) -> Sweep {
    Sweep {
        n,
        ..Sweep::over(x, Wall::ZERO, Wall::ZERO)
    }
}

/// The name of a size in metrics: 512, 4k.
fn word(bytes: u64) -> String {
    match bytes {
        1024.. => format!("{}k", bytes / 1024),
        _ => bytes.to_string(),
    }
}

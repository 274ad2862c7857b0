//! "Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA Networks" on simulated RNICs:
//! its motivation (sections II-B and III-C), which is the cache misses of an RNIC with many queue pairs, and
//! its evaluation (section V), with and without paced doorbells.
//!
//! | module | content |
//! |---|---|
//! | [`scale`] | figures 2 and 7 to 9: throughput and misses over the number of queue pairs |
//! | [`delay`] | figures 4 and 10: delay from the doorbell to the completion, within a batch and over time |
//! | [`cost`] | figure 11: completion times of flows, and processor time of pacing |
//! | `arms` | the arms, the base delay, and one load over many queue pairs |

pub(crate) mod arms;
pub mod cost;
pub mod delay;
pub mod scale;

pub use arms::{COUNTED, DEPTH, PAIRS};
pub use delay::{BATCH, PAUSE_NS};

use super::prelude::*;

/// Describes an experiment that reproduces a figure of the paper, on simulated devices.
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

/// Returns a size as it is written in metrics: 512, 4k.
fn word(bytes: u64) -> String {
    match bytes {
        1024.. => format!("{}k", bytes / 1024),
        _ => bytes.to_string(),
    }
}

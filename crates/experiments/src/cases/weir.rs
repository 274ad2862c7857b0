//! The motivation of "Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA Networks"
//! (sections II-B and III-C): what many queue pairs do to an RNIC's caches, on simulated RNICs.
//!
//! | module | what |
//! |---|---|
//! | [`fig2`] | throughput and misses against the number of queue pairs |
//! | [`fig4`] | from the doorbell to the completion, within a batch |

pub mod fig2;
pub mod fig4;

use crate::experiment::Paper;

/// The paper, with what is repeated of it.
const fn paper(figure: &'static str) -> Paper {
    Paper {
        title: "Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA Networks",
        year: 2025,
        figure,
    }
}

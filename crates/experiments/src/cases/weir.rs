//! "Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA Networks" on simulated RNICs: its
//! motivation (sections II-B and III-C), what many queue pairs do to an RNIC's caches; and its evaluation (section V),
//! what pacing doorbells makes of that.
//!
//! | module | what |
//! |---|---|
//! | [`fig2`] | throughput and misses against the number of queue pairs |
//! | [`fig4`] | from the doorbell to the completion, within a batch |
//! | [`scale`] | figures 7 to 9: the same with fewer requests outstanding, and with paced doorbells, by size |
//! | [`fig10a`] | where the delay settles, by the base delay |
//! | [`fig10b`] | how the rate comes to what the link carries |
//! | [`fig11a`] | how long flows take, paced and not |
//! | [`overhead`] | figure 11(b): what pacing costs the processor |
//! | `timeline` | a paced load against time |
//! | `arm` | how requests come to the RNIC: what is compared |
//! | `point` | one load on many queue pairs, and the misses meanwhile |

mod arm;
pub mod fig10a;
pub mod fig10b;
pub mod fig11a;
pub mod fig2;
pub mod fig4;
pub mod overhead;
pub(crate) mod point;
pub mod scale;
mod timeline;

use crate::experiment::Paper;

/// The paper, with what is repeated of it.
const fn paper(figure: &'static str) -> Paper {
    Paper {
        title: "Weir: Delay-based RNIC Cache Control Software Middleware for Scalable RDMA Networks",
        year: 2025,
        figure,
    }
}

//! Limits of every soft device.

use headworks_verbs::DeviceLimits;

use crate::table::rows::{MAX_CQ, MAX_QP, MAX_REGION, MAX_SGE, MAX_SRQ};

/// Maximum number of READs and atomics outstanding on a queue pair. They execute in order, so any limit could
/// be kept.
const MAX_RD_ATOMIC: u8 = 16;
/// Maximum length of a message in bytes, from the specification.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The limits of every soft device.
pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    max_qp: MAX_QP as u32,
    max_qp_wr: 32_768,
    max_sge: MAX_SGE as u32,
    max_inline: 1024,
    max_cq: MAX_CQ as u32,
    max_cqe: 1 << 20,
    max_mr: MAX_REGION as u32,
    max_ah: 65_536,
    max_srq: MAX_SRQ as u32,
    max_srq_wr: 32_768,
    max_rd_atomic: MAX_RD_ATOMIC,
    max_message: MAX_MESSAGE,
};

//! Checks of requests whose posting is deferred, pure. A request that verbs refuse is refused when it is
//! posted, not when it reaches the device.

use headworks_verbs::{Payload, PostErrorKind, QpCaps, QpState, QpType, SendOp, SendWr};

/// Limits and state of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpLimits<'a> {
    /// Transport of the queue pair.
    pub qp_type: QpType,
    /// Capacities of the queue pair.
    pub caps: &'a QpCaps,
    /// State of the queue pair.
    pub state: QpState,
    /// Limit of outstanding READs and atomics; 0 allows none.
    pub max_rd_atomic: u8,
    /// Longest message of the device, in bytes.
    pub max_message: u32,
}

impl QpLimits<'_> {
    /// Refuses a request that the device would refuse.
    ///
    /// # Errors
    ///
    /// The errors of [`QueuePair::post_send`](headworks_verbs::QueuePair::post_send).
    pub fn check(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        use QpState::{Error, Rts, Sqd, Sqe};
        if !matches!(self.state, Rts | Sqd | Sqe | Error) {
            return Err(PostErrorKind::State(self.state));
        }
        let is_inline = match wr.payload {
            Payload::Gather(sges) if sges.len() > self.caps.max_send_sge as usize => {
                return Err(PostErrorKind::TooManySges(self.caps.max_send_sge));
            }
            Payload::Gather(_) => false,
            Payload::Inline(bytes) if bytes.len() > self.caps.max_inline as usize => {
                return Err(PostErrorKind::InlineTooLong(self.caps.max_inline));
            }
            Payload::Inline(_) => true,
        };
        let len = wr.payload.len();
        if len > u64::from(self.max_message) {
            return Err(PostErrorKind::MessageTooLong(self.max_message));
        }
        let is_connected = self.qp_type.is_connected();
        let reads = self.qp_type.is_reliable() && !is_inline && self.max_rd_atomic > 0;
        let is_legal = match wr.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::Write(_) | SendOp::WriteImm(..) => {
                is_connected
            }
            SendOp::SendTo(_) | SendOp::SendToImm(..) => self.qp_type == QpType::Ud,
            SendOp::Read(_) => reads,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => reads && len == 8,
            _ => false,
        };
        match is_legal {
            true => Ok(()),
            false => Err(PostErrorKind::Operation),
        }
    }
}

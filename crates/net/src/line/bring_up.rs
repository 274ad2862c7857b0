//! Bring-up of a queue pair over a line, in steps that never block.

use headworks_verbs::bringup::{ConnectionParams, Hello};
use headworks_verbs::{BringUp, DeviceInfo, QueuePair};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{Line, NetError};

/// A connection in progress. Call [`BringUpOnLine::step`] until it returns the peer's hello, whenever the
/// line's descriptor is readable (or writable, while [`Line::flush`] returns `false`).
#[derive(Debug)]
pub struct BringUpOnLine(BringUp);

impl BringUpOnLine {
    /// Starts connecting `qp`, which is in RESET or INIT. Nothing is sent before the first step.
    pub fn start(
        device: &DeviceInfo,
        qp: &mut dyn QueuePair,
        tuning: ConnectionParams,
        payload: Vec<u8>,
    ) -> Result<Self, NetError> {
        let mut seed = [0; 4];
        getrandom(&mut seed, GetRandomFlags::empty())
            .map_err(NetError::system("random numbers"))?;
        let seed = u32::from_ne_bytes(seed);
        Ok(Self(BringUp::start(device, qp, tuning, seed, payload)?))
    }

    /// Does what can be done now. Returns the peer's hello once both ends can send and receive. After an
    /// error neither the line nor the queue pair can be used any more.
    pub fn step(
        &mut self,
        line: &mut Line,
        qp: &mut dyn QueuePair,
    ) -> Result<Option<Hello>, NetError> {
        line.restore_inbox();
        loop {
            line.write(&self.0.output());
            let written = match line.flush() {
                // The peer may have sent the reason before it went.
                Err(NetError::PeerGone) if !self.0.is_connected() => false,
                written => written?,
            };
            if self.0.is_connected() {
                return Ok(self.0.peer().filter(|_| written).cloned());
            }
            if line.inbox.is_empty() && !line.read()? {
                return if line.has_ended() {
                    Err(NetError::PeerGone)
                } else {
                    Ok(None)
                };
            }
            let used = self.0.input(qp, &line.inbox)?;
            line.inbox.drain(..used);
        }
    }
}

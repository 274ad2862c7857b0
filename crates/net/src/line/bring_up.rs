//! A queue pair's bring-up over a line, in steps that never block.

use headworks_verbs::bringup::{ConnectionParams, Hello};
use headworks_verbs::{BringUp, DeviceInfo, QueuePair};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{Line, NetError};

/// A connection being made: call [`BringUpOnLine::step`] until it says who the peer is, whenever the
/// line's descriptor is readable (or writable, while [`Line::flush`] says `false`).
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

    /// Does what can be done now; the peer's greeting once both ends can send and receive. After an
    /// error both the line and the queue pair are of no further use.
    pub fn step(
        &mut self,
        line: &mut Line,
        qp: &mut dyn QueuePair,
    ) -> Result<Option<Hello>, NetError> {
        line.restore_inbox();
        loop {
            line.write(&self.0.output());
            let written = match line.flush() {
                // It may have said why before it went.
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

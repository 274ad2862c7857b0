//! Bring-up of a queue pair over a control stream, in steps that never block.

use headworks_verbs::bringup::{ConnectionParams, Hello};
use headworks_verbs::{BringUp, DeviceInfo, QueuePair};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{ControlStream, NetError};

/// A connection in progress. Call [`BringUpOverStream::step`] until it returns the peer's hello, whenever the
/// control stream's descriptor is readable (or writable, while [`ControlStream::flush`] returns `false`).
#[derive(Debug)]
pub struct BringUpOverStream(BringUp);

impl BringUpOverStream {
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
    /// error neither the control stream nor the queue pair can be used any more.
    pub fn step(
        &mut self,
        control: &mut ControlStream,
        qp: &mut dyn QueuePair,
    ) -> Result<Option<Hello>, NetError> {
        control.restore_inbox();
        loop {
            control.write(&self.0.output());
            let written = match control.flush() {
                // The peer may have sent the reason before it went.
                Err(NetError::PeerGone) if !self.0.is_connected() => false,
                written => written?,
            };
            if self.0.is_connected() {
                return Ok(self.0.peer().filter(|_| written).cloned());
            }
            if control.inbox.is_empty() && !control.read()? {
                return if control.has_ended() {
                    Err(NetError::PeerGone)
                } else {
                    Ok(None)
                };
            }
            let used = self.0.input(qp, &control.inbox)?;
            control.inbox.drain(..used);
        }
    }
}

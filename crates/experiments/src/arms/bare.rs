//! The bare ring as an arm: each part makes the memory of the ring that comes in and mails where
//! it is.

use headworks_baselines::{BareReceiver, BareSegment, BareSender};

use super::connect::Connect;
use super::job::Job;
use super::rings::{Ends, Rings};
use super::{ArmError, Env, Fill, Sink};

/// Connects a pair of bare rings.
#[derive(Debug)]
pub struct BareConnect {
    job: Job,
    /// The memory that was made here, once it is.
    inward: Option<BareSegment>,
}

impl BareConnect {
    /// For `job`.
    pub fn new(job: Job) -> Self {
        Self { job, inward: None }
    }
}

impl Connect for BareConnect {
    type Arm = Rings<BareEnds>;

    fn step(&mut self, env: &mut dyn Env) -> Result<Option<Self::Arm>, ArmError> {
        let failed = |e| ArmError::at("bare ring", e);
        let slots = self.job.slots;
        let size = self.job.size.next_multiple_of(64);
        let Some(inward) = &self.inward else {
            let (segment, _) = BareSegment::create(slots, size).map_err(failed)?;
            let (pid, fd) = segment.offer();
            env.mail(&[pid.to_le_bytes(), fd.to_le_bytes()].concat())?;
            self.inward = Some(segment);
            return Ok(None);
        };
        let Some(mail) = env.mailed() else {
            return Ok(None);
        };
        let (pid, fd) = match mail.as_chunks::<4>() {
            ([pid, fd], []) => (u32::from_le_bytes(*pid), i32::from_le_bytes(*fd)),
            _ => return Err(ArmError("bare ring: no descriptor in the mail".into())),
        };
        let outward = BareSegment::join(pid, fd, slots, size).map_err(failed)?;
        // As the ring's defaults.
        let (alpha, beta) = ((slots / 4).max(1), (slots / 8).max(1));
        let sender = BareSender::new(outward, alpha as u64, beta).map_err(failed)?;
        let receiver = BareReceiver::new(inward.clone(), alpha as u64);
        Ok(Some(Rings::new(&self.job, BareEnds { sender, receiver })))
    }
}

/// Both bare rings of one part.
pub struct BareEnds {
    sender: BareSender,
    receiver: BareReceiver,
}

impl Ends for BareEnds {
    #[inline]
    fn put(&mut self, message: &[u8]) -> Result<bool, ArmError> {
        Ok(self.sender.try_send(message))
    }

    #[inline]
    fn put_in_place<F: Fill>(&mut self, len: usize, fill: &mut F) -> Result<bool, ArmError> {
        Ok(self.sender.try_send_with(len, |place| fill.fill(place)))
    }

    #[inline]
    fn get<S: Sink>(&mut self, len: usize, sink: &mut S) -> Result<bool, ArmError> {
        let taken = self.receiver.try_recv(len, |message| sink.take(message));
        Ok(taken.is_some())
    }

    #[inline]
    fn publish(&mut self) -> Result<bool, ArmError> {
        self.sender.flush();
        Ok(true)
    }

    fn look(&mut self) -> Result<(), ArmError> {
        Ok(())
    }
}

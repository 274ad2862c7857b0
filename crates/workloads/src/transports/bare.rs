//! The bare ring as an arm. A part makes the memory of the ring that comes in and mails where it is.
//! As with the ring on verbs, there is a ring back only for workloads that send something back.

use headworks_baselines::{BareReceiver, BareSegment, BareSender};

use super::connect::Connect;
use super::job::Job;
use super::rings::{Ends, Rings};
use super::{Fill, Sink};
use crate::error::WorkloadError;
use crate::pair::{PairCx, Role};
use headworks_stage::Cx;

/// Connects the ring there and, where the workload needs it, the one back.
#[derive(Debug)]
pub struct BareConnect {
    job: Job,
    role: Role,
    /// The memory of the ring that comes in, once it is made.
    inward: Option<BareSegment>,
}

impl BareConnect {
    /// For `job`.
    pub fn new(job: Job, role: Role) -> Self {
        Self {
            job,
            role,
            inward: None,
        }
    }

    /// Bytes of a slot, as the ring has them.
    fn slot(&self) -> usize {
        self.job.size.next_multiple_of(64)
    }

    /// The end that sends into the memory that `mail` tells of.
    fn sender(&self, mail: &[u8]) -> Result<BareSender, WorkloadError> {
        let (pid, fd) = match mail.as_chunks::<4>() {
            ([pid, fd], []) => (u32::from_le_bytes(*pid), i32::from_le_bytes(*fd)),
            _ => return Err(WorkloadError("bare ring: no descriptor in the mail".into())),
        };
        let slots = self.job.slots;
        let outward = BareSegment::join(pid, fd, slots, self.slot()).map_err(failed)?;
        // As the ring's defaults.
        let (alpha, beta) = ((slots / 4).max(1), (slots / 8).max(1));
        BareSender::new(outward, alpha as u64, beta).map_err(failed)
    }
}

fn failed(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("bare ring", why)
}

#[cold]
fn one_way() -> WorkloadError {
    WorkloadError("bare ring: this workload goes the other way".into())
}

impl Connect for BareConnect {
    type Arm = Rings<BareEnds>;

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Self::Arm>, WorkloadError> {
        let both = self.job.is_two_way();
        if self.inward.is_none() && (both || self.role == Role::Receiver) {
            let (segment, _) = BareSegment::create(self.job.slots, self.slot()).map_err(failed)?;
            let (pid, fd) = segment.offer();
            cx.mail(&[pid.to_le_bytes(), fd.to_le_bytes()].concat())?;
            self.inward = Some(segment);
        }
        let mut sender = None;
        if both || self.role == Role::Sender {
            let Some(mail) = cx.mailed() else {
                return Ok(None);
            };
            sender = Some(self.sender(&mail)?);
        }
        let gamma = (self.job.slots / 4).max(1) as u64;
        let receiver = self.inward.take();
        let receiver = receiver.map(|memory| BareReceiver::new(memory, gamma));
        Ok(Some(Rings::new(&self.job, BareEnds { sender, receiver })))
    }
}

/// The bare rings of one part.
pub struct BareEnds {
    sender: Option<BareSender>,
    receiver: Option<BareReceiver>,
}

impl Ends for BareEnds {
    #[inline]
    fn put(&mut self, message: &[u8]) -> Result<bool, WorkloadError> {
        let sender = self.sender.as_mut().ok_or_else(one_way)?;
        Ok(sender.try_send(message))
    }

    #[inline]
    fn put_in_place<F: Fill>(&mut self, len: usize, fill: &mut F) -> Result<bool, WorkloadError> {
        let sender = self.sender.as_mut().ok_or_else(one_way)?;
        Ok(sender.try_send_with(len, |place| fill.fill(place)))
    }

    #[inline]
    fn get<S: Sink>(&mut self, len: usize, sink: &mut S) -> Result<bool, WorkloadError> {
        let receiver = self.receiver.as_mut().ok_or_else(one_way)?;
        let taken = receiver.try_recv(len, |message| sink.take(message));
        Ok(taken.is_some())
    }

    #[inline]
    fn publish(&mut self) -> Result<bool, WorkloadError> {
        if let Some(sender) = &mut self.sender {
            sender.flush();
        }
        Ok(true)
    }

    fn look(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }
}

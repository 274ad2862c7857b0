//! The receiving ends.

use std::sync::Arc;

use headworks::ring::{Group, GroupConfig, Receiver, ReceiverSetup, Seat};
use headworks::verbs::Device;

use super::meeting::Meeting;
use super::{BURST, Ends, SIZE, Task, config};
use crate::error::WorkloadError;
use headworks_stage::Cx;

/// Messages taken before the clock is looked at, at most.
const MANY: u64 = 1024;

/// Ends that are not connected yet.
pub(super) enum Rising {
    Group(Box<Group>, Meeting<Seat>),
    Separate(Meeting<ReceiverSetup>),
}

/// Connected ends.
pub(super) enum Receivers {
    Group(Box<Group>),
    Separate(Vec<Receiver>),
}

/// What came, by ring.
#[derive(Default)]
pub(super) struct Counts(pub(super) Vec<u64>);

impl Counts {
    /// Reads a message: its number in its ring is in its first word and its last.
    #[inline(always)]
    fn take(&mut self, ring: usize, message: &[u8]) -> Result<(), WorkloadError> {
        let word = |at: usize| message.get(at..at + 8).map(<[u8; 8]>::try_from);
        let expected = self.0[ring].to_le_bytes();
        let is_there = |at: usize| matches!(word(at), Some(Ok(found)) if found == expected);
        if !(is_there(0) && is_there(SIZE - 8)) {
            return Err(wrong(ring, self.0[ring]));
        }
        self.0[ring] += 1;
        Ok(())
    }
}

#[cold]
fn wrong(ring: usize, number: u64) -> WorkloadError {
    WorkloadError(format!(
        "message {number} of ring {ring} is not what was sent"
    ))
}

impl Rising {
    pub(super) fn new(task: &Task, device: &Arc<dyn Device>) -> Result<Self, WorkloadError> {
        let failed = |e| WorkloadError::at("ring", e);
        Ok(match task.ends {
            Ends::Group => {
                let mut with = GroupConfig::new(config(), task.rings);
                with.quantum = BURST;
                let mut group =
                    Group::receiving(device, &with).map_err(|e| WorkloadError::at("group", e))?;
                let seats = (0..task.rings).map(|_| group.seat().map_err(failed));
                let meeting = Meeting::start(device.info(), seats)?;
                Self::Group(group.into(), meeting)
            }
            Ends::Separate => {
                let ends =
                    (0..task.rings).map(|_| ReceiverSetup::new(device, &config()).map_err(failed));
                Self::Separate(Meeting::start(device.info(), ends)?)
            }
        })
    }

    pub(super) fn step(&mut self, cx: &mut Cx<'_>) -> Result<bool, WorkloadError> {
        match self {
            Self::Group(_, meeting) => meeting.step(cx),
            Self::Separate(meeting) => meeting.step(cx),
        }
    }

    pub(super) fn finish(self) -> Result<Receivers, WorkloadError> {
        let failed = |e| WorkloadError::at("ring", e);
        Ok(match self {
            Self::Group(mut group, meeting) => {
                for (number, (seat, peer)) in meeting.finish()?.into_iter().enumerate() {
                    let ring = group.admit(seat, &peer).map_err(failed)?;
                    if ring.index() != number {
                        return Err(WorkloadError(format!("{ring} is number {number}")));
                    }
                }
                Receivers::Group(group)
            }
            Self::Separate(meeting) => {
                let ends = meeting.finish()?.into_iter();
                let ends = ends.map(|(end, peer)| end.finish(&peer).map_err(failed));
                Receivers::Separate(ends.collect::<Result<_, _>>()?)
            }
        })
    }
}

impl Receivers {
    /// Looks at all rings, and takes what is there, in turns of [`BURST`] messages; says how many.
    #[inline]
    pub(super) fn take(&mut self, counts: &mut Counts) -> Result<u64, WorkloadError> {
        let failed = |e| WorkloadError::at("receiving", e);
        let mut taken = 0;
        match self {
            Self::Group(group) => {
                while taken < MANY {
                    match group
                        .try_recv()
                        .map_err(|e| WorkloadError::at("receiving", e))?
                    {
                        Some((ring, message)) => counts.take(ring.index(), &message)?,
                        None => break,
                    }
                    taken += 1;
                }
            }
            Self::Separate(receivers) => {
                for (ring, receiver) in receivers.iter_mut().enumerate() {
                    for _ in 0..BURST {
                        match receiver.try_recv().map_err(failed)? {
                            Some(message) => counts.take(ring, &message)?,
                            None => break,
                        }
                        taken += 1;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// What a thread with nothing to receive does now and then.
    pub(super) fn look(&mut self) -> Result<(), WorkloadError> {
        match self {
            Self::Group(group) => {
                let stepped = group.step(false);
                stepped.map_err(|e| WorkloadError::at("receiving", e))?;
            }
            Self::Separate(receivers) => {
                for receiver in receivers {
                    receiver
                        .step()
                        .map_err(|e| WorkloadError::at("receiving", e))?;
                }
            }
        }
        Ok(())
    }
}

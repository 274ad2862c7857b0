//! The thread that receives from all rings.

use headworks::ring::{AfterStep, Group, GroupConfig, Receiver, ReceiverSetup};
use headworks::verbs::Instant;
use headworks_runtime::{Actor, ActorContext, ActorError, Step};

use super::{BURST, FaninLoad, FaninTask, PhaseResult, RingLayout, SIZE, config, failed};
use crate::actor_pair::{PairContext, PairMail};
use crate::connecting_actor::{WorkloadDriver, connecting_actor};
use crate::error::{Result, WorkloadError};
use crate::mail_bring_up::MailBringUp;
use crate::report::Report;
use crate::stats::Shares;

/// Maximum number of messages taken from a group at once, so that the clock is read often enough.
const MANY: u64 = 1024;
/// The clock is read after this many messages, or after [`LOOKS`] checks that found none.
const CLOCK_EVERY: u64 = 256;
const LOOKS: u64 = 64;

/// The receiving ends: a group, or separate receivers.
enum Receivers {
    Group(Box<Group>),
    Separate(Vec<Receiver>),
}

/// Makes the receiving actor.
pub(super) fn actor(task: &FaninTask, pair: &PairContext) -> Result<Box<dyn Actor>> {
    let device = pair.open_device()?;
    let receiving = Receiving {
        task: task.clone(),
        stage: ReceiverState::Begin,
        found: Vec::new(),
        counts: vec![0; task.rings],
        vain: 0,
    };
    Ok(match task.ends {
        RingLayout::Group => {
            let mut with = GroupConfig::new(config(), task.rings);
            with.quantum = BURST;
            let group = Group::receiving(&device, &with);
            let mut group = group.map_err(|e| WorkloadError::at("group", e))?;
            let seats = (0..task.rings).map(|_| group.seat().map_err(failed));
            let seats = seats.collect::<Result<_, _>>()?;
            let meet = MailBringUp::start(device, seats, move |seats| {
                for (number, (seat, peer)) in seats.into_iter().enumerate() {
                    let ring = group.admit(seat, &peer).map_err(failed)?;
                    if ring.index() != number {
                        return Err(WorkloadError(format!("{ring} is number {number}")));
                    }
                }
                Ok(Receivers::Group(group.into()))
            })?;
            connecting_actor(meet, false, receiving)
        }
        RingLayout::Separate => {
            let ends = (0..task.rings).map(|_| ReceiverSetup::new(&device, &config()));
            let ends = ends.collect::<Result<_, _>>().map_err(failed)?;
            let meet = MailBringUp::start(device, ends, |ends| {
                let ends = ends.into_iter().map(|(end, peer)| end.finish(&peer));
                let ends = ends.collect::<Result<_, _>>().map_err(failed)?;
                Ok(Receivers::Separate(ends))
            })?;
            connecting_actor(meet, false, receiving)
        }
    })
}

/// Checks the next message of ring `ring`, and counts it. Its first and last words hold its number.
#[inline(always)]
fn count(counts: &mut [u64], ring: usize, message: &[u8]) -> Result<()> {
    let word = |at: usize| message.get(at..at + 8).map(<[u8; 8]>::try_from);
    let expected = counts[ring].to_le_bytes();
    let is_there = |at: usize| matches!(word(at), Some(Ok(found)) if found == expected);
    if !(is_there(0) && is_there(SIZE - 8)) {
        return Err(wrong(ring, counts[ring]));
    }
    counts[ring] += 1;
    Ok(())
}

#[cold]
fn wrong(ring: usize, number: u64) -> WorkloadError {
    WorkloadError(format!(
        "message {number} of ring {ring} is not what was sent"
    ))
}

#[cold]
fn broken(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("receiving", why)
}

impl Receivers {
    /// Checks all rings and takes what is there, in turns of [`BURST`] messages. Returns how many were taken.
    #[inline]
    fn take(&mut self, counts: &mut [u64]) -> Result<u64> {
        let mut taken = 0;
        match self {
            Self::Group(group) => {
                while taken < MANY {
                    match group.try_recv().map_err(broken)? {
                        Some((ring, message)) => count(counts, ring.index(), &message)?,
                        None => break,
                    }
                    taken += 1;
                }
            }
            Self::Separate(receivers) => {
                for (ring, receiver) in receivers.iter_mut().enumerate() {
                    for _ in 0..BURST {
                        match receiver.try_recv().map_err(broken)? {
                            Some(message) => count(counts, ring, &message)?,
                            None => break,
                        }
                        taken += 1;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// Drives the rings, as a thread with nothing to receive does now and then.
    fn look(&mut self) -> Result<()> {
        match self {
            Self::Group(group) => _ = group.step(AfterStep::Poll).map_err(broken)?,
            Self::Separate(receivers) => {
                for receiver in receivers {
                    receiver.step().map_err(broken)?;
                }
            }
        }
        Ok(())
    }
}

/// Progress of the receiver within a phase.
enum ReceiverState {
    /// The sender has not been told the load of this phase.
    Begin,
    Warming(Instant),
    /// Measuring since this time, at which the counts were these.
    Measuring(Instant, Vec<u64>),
    /// The sender was told to stop. Holds how many messages it sent, once it has said so.
    Ending(Option<u64>),
}

struct Receiving {
    task: FaninTask,
    stage: ReceiverState,
    found: Vec<PhaseResult>,
    /// Number of messages received, by ring.
    counts: Vec<u64>,
    /// Number of checks of all rings that found no message.
    vain: u64,
}

impl Receiving {
    /// Receives until the clock is due to be read.
    fn receive(&mut self, ends: &mut Receivers, load: FaninLoad) -> Result<()> {
        let (mut taken, mut vain) = (0, 0);
        while taken < CLOCK_EVERY && vain < LOOKS {
            match ends.take(&mut self.counts)? {
                0 => vain += 1,
                some => taken += some,
            }
        }
        self.vain += vain;
        // The idle load measures the bare checks, so nothing is added to them.
        if load != FaninLoad::Idle && vain == LOOKS {
            ends.look()?;
        }
        Ok(())
    }

    /// Returns the number of checks that found no message, followed by the messages of each ring.
    fn counted(&self) -> Vec<u64> {
        [&[self.vain], &self.counts[..]].concat()
    }

    fn phase(&self, load: FaninLoad, nanos: u64, before: &[u64]) -> PhaseResult {
        let after = self.counted();
        let grown: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        let rings = &grown[1..];
        let (count, shares) = match load {
            FaninLoad::Idle => (grown[0], None),
            FaninLoad::All => (rings.iter().sum(), Shares::of(rings)),
            FaninLoad::One => (rings.iter().sum(), None),
            FaninLoad::Flood => (rings.iter().sum(), Shares::of(&rings[1..])),
        };
        PhaseResult {
            count,
            nanos,
            shares,
        }
    }
}

impl WorkloadDriver<Receivers> for Receiving {
    fn step(
        &mut self,
        ends: &mut Receivers,
        cx: &mut ActorContext<'_>,
    ) -> Result<Step, ActorError> {
        if let ReceiverState::Ending(sent) = &mut self.stage {
            if let (None, Some(mail)) = (&sent, cx.receive_mail()) {
                let number = <[u8; 8]>::try_from(&*mail);
                let number = number.map_err(|_| WorkloadError("the mail holds no count".into()))?;
                *sent = Some(u64::from_le_bytes(number));
            }
            let sent = *sent;
            self.receive(ends, FaninLoad::All)?;
            if sent == Some(self.counts.iter().sum()) {
                self.stage = ReceiverState::Begin;
            }
            return Ok(Step::Again);
        }
        let Some(&load) = FaninLoad::ALL.get(self.found.len()) else {
            cx.send_mail(&[u8::MAX])?;
            return Ok(Step::Done);
        };
        if let ReceiverState::Begin = self.stage {
            cx.send_mail(&[self.found.len() as u8])?;
            self.stage = ReceiverState::Warming(cx.now());
        }
        self.receive(ends, load)?;
        let now = cx.now();
        match &mut self.stage {
            ReceiverState::Warming(since) if now.since(*since).nanos() >= self.task.warm_ns => {
                self.stage = ReceiverState::Measuring(now, self.counted());
            }
            ReceiverState::Measuring(since, before)
                if now.since(*since).nanos() >= self.task.run_ns =>
            {
                let (nanos, before) = (now.since(*since).nanos(), std::mem::take(before));
                self.found.push(self.phase(load, nanos, &before));
                cx.send_mail(b"stop")?;
                self.stage = ReceiverState::Ending(None);
            }
            _ => {}
        }
        Ok(Step::Again)
    }

    fn report(&mut self) -> Result<Report> {
        Ok(Report::Phases(std::mem::take(&mut self.found)))
    }
}

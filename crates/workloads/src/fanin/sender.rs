//! The process that holds all sending ends.

use std::sync::Arc;

use headworks::ring::{SendError, Sender, SenderSetup};
use headworks::verbs::Device;

use super::meeting::Meeting;
use super::{BURST, Load, SIZE, Task, config};
use crate::error::WorkloadError;
use crate::pair::PairContext;
use crate::pair::{PairCx, wait};
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Bursts between two looks at the mail.
const BURSTS: usize = 64;

/// A ring, and how many messages went into it.
struct Ring {
    sender: Sender,
    sent: u64,
}

impl Ring {
    /// Sends one message if there is room.
    #[inline(always)]
    fn send(&mut self) -> Result<bool, WorkloadError> {
        let mut message = [0; SIZE];
        message[..8].copy_from_slice(&self.sent.to_le_bytes());
        message[SIZE - 8..].copy_from_slice(&self.sent.to_le_bytes());
        match self.sender.try_send(&message) {
            Ok(()) => {
                self.sent += 1;
                Ok(true)
            }
            Err(SendError::Full) => Ok(false),
            Err(why) => Err(WorkloadError::at("sending", why)),
        }
    }

    #[inline]
    fn burst(&mut self) -> Result<(), WorkloadError> {
        for _ in 0..BURST {
            if !self.send()? {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<bool, WorkloadError> {
        let failed = |e| WorkloadError::at("sending", e);
        if self.sender.flush().map_err(failed)? {
            return Ok(true);
        }
        self.sender.step().map_err(failed)?;
        Ok(false)
    }
}

enum State {
    Rising(Meeting<SenderSetup>),
    /// Waits to be told what to do.
    Waiting,
    Sending(Load),
    /// Publishes what is held back, then says how much that is in all.
    Ending,
    Gone,
}

/// The sending part.
pub(super) struct Sending {
    state: State,
    rings: Vec<Ring>,
    /// Whose turn it is.
    next: usize,
    _device: Arc<dyn Device>,
}

impl Sending {
    pub(super) fn new(task: &Task, pair: &PairContext) -> Result<Self, WorkloadError> {
        let device = pair.open_device()?;
        let ends = (0..task.rings).map(|_| {
            let end = SenderSetup::new(&device, &config());
            end.map_err(|e| WorkloadError::at("ring", e))
        });
        let meeting = Meeting::start(device.info(), ends)?;
        Ok(Self {
            state: State::Rising(meeting),
            rings: Vec::new(),
            next: 0,
            _device: device,
        })
    }

    fn send(&mut self, load: Load) -> Result<(), WorkloadError> {
        for _ in 0..BURSTS {
            match load {
                Load::Idle => return Ok(()),
                Load::One => self.rings[0].burst()?,
                Load::All => {
                    let at = self.turn(0);
                    self.rings[at].burst()?;
                }
                Load::Flood => {
                    self.rings[0].burst()?;
                    if self.rings.len() > 1 {
                        let at = self.turn(1);
                        self.rings[at].send()?;
                        self.rings[at].flush()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whose turn it is, from ring `first` on.
    fn turn(&mut self, first: usize) -> usize {
        if self.next < first || self.next >= self.rings.len() {
            self.next = first;
        }
        self.next += 1;
        self.next - 1
    }
}

impl Actor for Sending {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Rising(mut meeting) => {
                if !meeting.step(cx)? {
                    self.state = State::Rising(meeting);
                    return Ok(wait());
                }
                for (end, peer) in meeting.finish()? {
                    let sender = end
                        .finish(&peer)
                        .map_err(|e| WorkloadError::at("ring", e))?;
                    self.rings.push(Ring { sender, sent: 0 });
                }
                self.state = State::Waiting;
            }
            State::Waiting => match cx.mailed() {
                None => {
                    self.state = State::Waiting;
                    return Ok(wait());
                }
                Some(mail) => match mail.first().map(|load| Load::ALL.get(usize::from(*load))) {
                    Some(Some(load)) => self.state = State::Sending(*load),
                    _ => return cx.done(&Report::None),
                },
            },
            State::Sending(load) => {
                if cx.mailed().is_some() {
                    self.state = State::Ending;
                    return Ok(Step::Again);
                }
                self.send(load)?;
                self.state = State::Sending(load);
                if load == Load::Idle {
                    return Ok(wait());
                }
            }
            State::Ending => {
                let mut all = true;
                for ring in &mut self.rings {
                    all &= ring.flush()?;
                }
                self.state = State::Ending;
                if all {
                    let sent: u64 = self.rings.iter().map(|ring| ring.sent).sum();
                    cx.mail(&sent.to_le_bytes())?;
                    self.state = State::Waiting;
                }
            }
            State::Gone => return Err(ActorError::new("it failed before")),
        }
        Ok(Step::Again)
    }
}

//! The sending end.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use headworks::ring::{Framing, Mode, RingError, SendError, Sender, SenderSetup, SetupError};
use headworks::sim::Census;
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Cx, Part, Step, WakeFd};

use super::actor::{open, rests, tell, wait};
use super::ledger::{Ledger, SenderEnd};
use super::lock;
use super::messages::Messages;
use super::plan::{Plan, RECEIVER};
use super::single::{Duty, Single, Told};

/// The actor that sends on a ring.
pub(super) fn new(
    part: &Part,
    ring: usize,
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
) -> Result<Box<dyn Actor>, ActorError> {
    let device = open(part, &plan)?;
    let setup = SenderSetup::new(&device, &plan.configs[0])?;
    let with = (ring, RECEIVER.to_owned());
    let duty = Sending {
        out: Outgoing::new(ring, RECEIVER, &plan, &ledger),
        fds: Vec::new(),
    };
    let single = Single::new(&*device, setup, with, duty, (plan, ledger))?;
    Ok(Box::new(single))
}

/// The messages of a ring, on their way out, and what is written down of them.
pub(super) struct Outgoing {
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
    ring: usize,
    /// Who receives them.
    to: String,
    messages: Messages,
    chance: Chance,
    next: u64,
}

impl Outgoing {
    pub(super) fn new(
        ring: usize,
        to: &str,
        plan: &Arc<Plan>,
        ledger: &Arc<Mutex<Ledger>>,
    ) -> Self {
        Self {
            messages: Messages::new(plan.seed, ring, &plan.configs[0]),
            chance: Chance::of(plan.seed, &[4, ring as u64]),
            plan: plan.clone(),
            ledger: ledger.clone(),
            ring,
            to: to.to_owned(),
            next: 0,
        }
    }

    pub(super) fn is_all_sent(&self) -> bool {
        self.next == self.plan.messages
    }

    /// Sends a batch: whether the ring was full.
    pub(super) fn send(&mut self, sender: &mut Sender, cx: &mut Cx<'_>) -> Result<bool, RingError> {
        let pace = self.plan.sending;
        let mut full = false;
        for _ in 0..pace.batch {
            if self.is_all_sent() {
                break;
            }
            cx.charge(pace.cost);
            match self.send_one(sender) {
                Ok(()) => {
                    let mut ledger = lock(&self.ledger);
                    ledger.moved += 1;
                    ledger.rings[self.ring].tails.push(sender.sent());
                    drop(ledger);
                    cx.copied(self.messages.len(self.next) as u64);
                    self.next += 1;
                }
                Err(SendError::Full) => {
                    full = true;
                    break;
                }
                Err(SendError::Broken(error)) => {
                    lock(&self.ledger).rings[self.ring].in_doubt = true;
                    return Err(error);
                }
                Err(error) => unreachable!("a message that the ring takes: {error}"),
            }
        }
        if self.chance.once_in(16) {
            sender.flush()?;
        }
        Ok(full)
    }

    /// Sends the next message, in one of the ways there are.
    fn send_one(&mut self, sender: &mut Sender) -> Result<(), SendError> {
        let len = self.messages.len(self.next);
        if self.chance.once_in(8) {
            // Another thought: a place that is filled and let go of is nobody's message.
            let mut place = sender.try_reserve(len)?;
            place.fill(0xee);
        }
        match self.chance.below(3) {
            0 => sender.try_send(&self.messages.bytes(self.next)),
            1 => {
                let mut place = sender.try_reserve(len)?;
                self.messages.fill(self.next, &mut place);
                place.commit()
            }
            _ => {
                let config = &self.plan.configs[0];
                let movable = config.mode != Mode::Latency;
                let room = match config.framing {
                    Framing::Variable(most) if movable => {
                        self.chance.within(len as u64, most as u64) as usize
                    }
                    _ => len,
                };
                let mut place = sender.try_reserve(room)?;
                self.messages.fill(self.next, &mut place[..len]);
                place.commit_len(len)
            }
        }
    }

    /// Writes down how the end ended, and tells the other.
    pub(super) fn ended(
        &self,
        sender: &Sender,
        error: Option<RingError>,
        told: bool,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        let end = SenderEnd {
            sent: sender.sent(),
            published: sender.published(),
            consumed: sender.consumed(),
            error,
            told,
        };
        let mut ledger = lock(&self.ledger);
        ledger.moved += 1;
        ledger.rings[self.ring].sender = Some(end);
        drop(ledger);
        let is_done = error.is_none() && !told;
        tell(cx, &self.to, self.ring, is_done)
    }
}

/// A descriptor to sleep on, if the end has one and is to sleep.
pub(super) fn to_sleep_on(
    sleeps: bool,
    fd: Option<BorrowedFd<'_>>,
) -> Result<Option<WakeFd>, ActorError> {
    Ok(fd.filter(|_| sleeps).map(WakeFd::duplicate).transpose()?)
}

struct Sending {
    out: Outgoing,
    fds: Vec<WakeFd>,
}

impl Duty for Sending {
    type Setup = SenderSetup;
    type End = Sender;
    const OBJECTS: fn(&Plan) -> Census = |plan| plan.objects_of_end(0);

    fn finish(setup: SenderSetup, payload: &[u8]) -> Result<Sender, SetupError> {
        setup.finish(payload)
    }

    fn begin(&mut self, sender: &Sender) -> Result<(), ActorError> {
        let sleeps = self.out.plan.sending.sleeps;
        self.fds.extend(to_sleep_on(sleeps, sender.fd())?);
        Ok(())
    }

    fn act(
        &mut self,
        sender: &mut Sender,
        told: Told,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Step>, RingError> {
        let step = self.send(sender, cx)?;
        Ok(step.filter(|_| !told.gone))
    }

    fn ended(
        &mut self,
        sender: Option<&Sender>,
        error: Option<RingError>,
        told: Told,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        match sender {
            Some(sender) => self.out.ended(sender, error, told.gone, cx),
            None => Ok(()),
        }
    }
}

impl Sending {
    /// Sends a batch, or does what who has nothing to send does. `None`: all is consumed.
    fn send(&mut self, sender: &mut Sender, cx: &mut Cx<'_>) -> Result<Option<Step>, RingError> {
        let full = self.out.send(sender, cx)?;
        let pace = self.out.plan.sending;
        if let Some(rest) = rests(&pace, &mut self.out.chance, cx) {
            return Ok(Some(rest));
        }
        if !full && !self.out.is_all_sent() {
            return Ok(Some(Step::Again));
        }
        // Nothing to send, or no room.
        let changed = sender.step()?;
        if self.out.is_all_sent() && sender.is_drained() {
            return Ok(None);
        }
        // The flush may have seen that there is room.
        if changed || (full && !sender.is_full()) {
            return Ok(Some(Step::Again));
        }
        if !self.fds.is_empty() {
            sender.drain_events();
            sender.arm();
            if sender.step()? {
                return Ok(Some(Step::Again));
            }
        }
        Ok(Some(wait(&self.fds)))
    }
}

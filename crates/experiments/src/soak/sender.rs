//! The sending end.

use std::sync::{Arc, Mutex};

use headworks::ring::{Framing, Mode, RingError, SendError, Sender, SenderSetup};
use headworks::sim::Census;
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Change, Cx, Part, Step, WakeFd};

use super::actor::{Heard, Meeting, hear, lingers, open, rests, tell, wait};
use super::ledger::{Ledger, SenderEnd};
use super::lock;
use super::messages::Messages;
use super::plan::{Plan, RECEIVER};

/// The actor that sends on a ring.
pub(super) fn new(
    part: &Part,
    ring: usize,
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
) -> Result<Box<dyn Actor>, ActorError> {
    let device = open(part, &plan)?;
    let config = &plan.configs[0];
    let mut setup = SenderSetup::new(&device, config)?;
    let (tuning, greeting) = (setup.tuning(), setup.greeting());
    let with = (ring, RECEIVER.to_owned());
    let meeting = Meeting::start(device.info(), setup.queue_pair(), tuning, greeting, with)?;
    Ok(Box::new(Sending {
        ring,
        messages: Messages::new(plan.seed, ring, config),
        chance: Chance::of(plan.seed, &[4, ring as u64]),
        state: State::Meeting(Box::new((meeting, setup))),
        fd: None,
        next: 0,
        gone: false,
        leaves: false,
        plan,
        ledger,
    }))
}

struct Sending {
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
    ring: usize,
    messages: Messages,
    chance: Chance,
    state: State,
    fd: Option<WakeFd>,
    next: u64,
    /// The other end is.
    gone: bool,
    leaves: bool,
}

enum State {
    Meeting(Box<(Meeting, SenderSetup)>),
    Connected(Box<Sender>),
    /// It stays, and what it has, until everybody goes.
    Lingers(Option<Box<Sender>>),
    Over,
}

impl Actor for Sending {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if let State::Meeting(meeting) = &mut self.state {
            meeting.0.say(cx)?;
        }
        while let Some(heard) = hear(cx) {
            self.hear(heard, cx)?;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Connected(mut sender) => {
                let error = match self.send(&mut sender, cx) {
                    Ok(Some(step)) if !self.gone => {
                        self.state = State::Connected(sender);
                        return Ok(step);
                    }
                    sent => sent.err(),
                };
                self.end(&sender, error, cx)?;
                Ok(self.stay(Some(sender), cx))
            }
            State::Meeting(meeting) if !self.gone => {
                self.state = State::Meeting(meeting);
                Ok(wait(None))
            }
            State::Meeting(meeting) => {
                drop(meeting);
                Ok(self.stay(None, cx))
            }
            State::Lingers(sender) if !self.leaves => {
                self.state = State::Lingers(sender);
                Ok(Step::OnChange(Change::mail()))
            }
            State::Lingers(_) | State::Over => Ok(Step::Done),
        }
    }
}

impl Sending {
    fn stay(&mut self, sender: Option<Box<Sender>>, cx: &Cx<'_>) -> Step {
        let objects = match &sender {
            Some(_) => self.plan.objects_of_end(),
            None => Census::default(),
        };
        let step = lingers(&self.plan, &self.ledger, cx.role(), objects);
        self.state = State::Lingers(sender);
        step.unwrap_or(Step::Done)
    }

    fn hear(&mut self, heard: Heard, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        match heard {
            Heard::Connecting(_, bytes) => {
                let State::Meeting(mut both) = std::mem::replace(&mut self.state, State::Over)
                else {
                    return Err(ActorError::new("mail of the bring-up when that is over"));
                };
                let (meeting, setup) = &mut *both;
                match meeting.hear(setup.queue_pair(), &bytes, cx)? {
                    None => self.state = State::Meeting(both),
                    Some(payload) => {
                        let sender = both.1.finish(&payload)?;
                        let sleeps = self.plan.sending.sleeps;
                        if let Some(fd) = sender.fd().filter(|_| sleeps) {
                            self.fd = Some(WakeFd::duplicate(fd)?);
                        }
                        self.state = State::Connected(Box::new(sender));
                    }
                }
            }
            Heard::Gone(_) => self.gone = true,
            // Other senders' deaths are not ours.
            Heard::Died(role) => self.gone |= role == RECEIVER,
            Heard::Leave => self.leaves = true,
            Heard::Done(_) => {}
        }
        Ok(())
    }

    /// Sends a batch, or does what who has nothing to send does. `None`: all is consumed.
    fn send(&mut self, sender: &mut Sender, cx: &mut Cx<'_>) -> Result<Option<Step>, RingError> {
        let pace = self.plan.sending;
        let mut full = false;
        for _ in 0..pace.batch {
            if self.next == self.plan.messages {
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
        if let Some(rest) = rests(&pace, &mut self.chance, cx) {
            return Ok(Some(rest));
        }
        if !full && self.next < self.plan.messages {
            return Ok(Some(Step::Again));
        }
        // Nothing to send, or no room.
        let changed = sender.step()?;
        if self.next == self.plan.messages && sender.is_drained() {
            return Ok(None);
        }
        // The flush may have seen that there is room.
        if changed || (full && !sender.is_full()) {
            return Ok(Some(Step::Again));
        }
        if self.fd.is_some() {
            sender.drain_events();
            sender.arm();
            if sender.step()? {
                return Ok(Some(Step::Again));
            }
        }
        Ok(Some(wait(self.fd.as_ref())))
    }

    /// Sends the next message, in one of the ways there are.
    fn send_one(&mut self, sender: &mut Sender) -> Result<(), SendError> {
        let len = self.messages.len(self.next);
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

    fn end(
        &mut self,
        sender: &Sender,
        error: Option<RingError>,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        let end = SenderEnd {
            sent: sender.sent(),
            published: sender.published(),
            consumed: sender.consumed(),
            error,
            told: self.gone,
        };
        let mut ledger = lock(&self.ledger);
        ledger.moved += 1;
        ledger.rings[self.ring].sender = Some(end);
        drop(ledger);
        let is_done = error.is_none() && !self.gone;
        tell(cx, RECEIVER, self.ring, is_done)
    }
}

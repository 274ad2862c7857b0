//! The receiving end: of one ring, or (`group`) of all.

use std::sync::{Arc, Mutex};

use headworks::ring::{Held, Receiver, ReceiverSetup, RingError};
use headworks::sim::Census;
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Change, Cx, Part, Step, WakeFd};

use super::actor::{Heard, Meeting, hear, lingers, open, rests, tell, wait};
use super::ledger::{Ledger, ReceiverEnd};
use super::lock;
use super::messages::Messages;
use super::plan::Plan;

mod group;

/// Messages that are held at most.
const HELD: usize = 8;

/// The actor that receives.
pub(super) fn new(
    part: &Part,
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
) -> Result<Box<dyn Actor>, ActorError> {
    let device = open(part, &plan)?;
    let book = Book::new(plan.clone(), ledger);
    if plan.is_group {
        return group::new(&device, book);
    }
    let mut setup = ReceiverSetup::new(&device, &plan.configs[1])?;
    let (tuning, greeting) = (setup.tuning(), setup.greeting());
    let with = (0, plan.sender(0));
    let meeting = Meeting::start(device.info(), setup.queue_pair(), tuning, greeting, with)?;
    Ok(Box::new(Receiving {
        chance: Chance::of(plan.seed, &[5]),
        state: State::Meeting(Box::new((meeting, setup))),
        fd: None,
        held: Vec::new(),
        gone: false,
        done: false,
        leaves: false,
        plan,
        book,
    }))
}

/// Where a receiving end writes down what came.
pub(super) struct Book {
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
    messages: Vec<Messages>,
}

impl Book {
    fn new(plan: Arc<Plan>, ledger: Arc<Mutex<Ledger>>) -> Self {
        let config = &plan.configs[1];
        let of = |ring| Messages::new(plan.seed, ring, config);
        let messages = (0..plan.rings).map(of).collect();
        Self {
            plan,
            ledger,
            messages,
        }
    }

    /// A message came.
    fn came(&self, ring: usize, bytes: &[u8]) {
        let mut ledger = lock(&self.ledger);
        ledger.moved += 1;
        let record = &mut ledger.rings[ring];
        let wrong = self.messages[ring].wrong(record.received, bytes);
        record.received += 1;
        // What follows is wrong as well, and says no more.
        if record.wrong.is_empty() {
            record.wrong.extend(wrong);
        }
    }

    /// So many slots are consumed.
    fn consumed(&self, ring: usize, slots: u64) {
        lock(&self.ledger).rings[ring].consumed = Some(slots);
    }

    fn received(&self, ring: usize) -> u64 {
        lock(&self.ledger).rings[ring].received
    }

    /// The ring is ended on purpose.
    fn removed(&self, ring: usize) {
        lock(&self.ledger).rings[ring].removed = true;
    }

    fn has_all(&self, ring: usize) -> bool {
        lock(&self.ledger).rings[ring].received >= self.plan.messages
    }

    fn ended(
        &self,
        ring: usize,
        error: Option<RingError>,
        told: bool,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        let mut ledger = lock(&self.ledger);
        ledger.moved += 1;
        ledger.rings[ring].receiver = Some(ReceiverEnd { error, told });
        drop(ledger);
        match error.is_some() || told {
            true => tell(cx, &self.plan.sender(ring), ring, false),
            false => Ok(()),
        }
    }
}

struct Receiving {
    plan: Arc<Plan>,
    book: Book,
    chance: Chance,
    state: State,
    fd: Option<WakeFd>,
    held: Vec<Held>,
    /// The other end is.
    gone: bool,
    done: bool,
    leaves: bool,
}

enum State {
    Meeting(Box<(Meeting, ReceiverSetup)>),
    Connected(Box<Receiver>),
    /// It stays, and what it has, until everybody goes.
    Lingers(Option<Box<Receiver>>),
    Over,
}

impl Actor for Receiving {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if let State::Meeting(meeting) = &mut self.state {
            meeting.0.say(cx)?;
        }
        while let Some(heard) = hear(cx) {
            self.hear(heard, cx)?;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Connected(mut receiver) => {
                let step = self.receive(&mut receiver, cx);
                self.book.consumed(0, receiver.consumed());
                match step {
                    Ok(Some(step)) => {
                        self.state = State::Connected(receiver);
                        return Ok(step);
                    }
                    Ok(None) => self.book.ended(0, None, self.gone, cx)?,
                    Err(error) => self.book.ended(0, Some(error), self.gone, cx)?,
                }
                Ok(self.stay(Some(receiver), cx))
            }
            State::Meeting(meeting) if !self.gone => {
                self.state = State::Meeting(meeting);
                Ok(wait(None))
            }
            State::Meeting(meeting) => {
                drop(meeting);
                self.book.ended(0, None, true, cx)?;
                Ok(self.stay(None, cx))
            }
            State::Lingers(receiver) if !self.leaves => {
                self.state = State::Lingers(receiver);
                Ok(Step::OnChange(Change::mail()))
            }
            State::Lingers(_) | State::Over => Ok(Step::Done),
        }
    }
}

impl Receiving {
    fn stay(&mut self, receiver: Option<Box<Receiver>>, cx: &Cx<'_>) -> Step {
        let objects = match &receiver {
            Some(_) => self.plan.objects_of_end(),
            None => Census::default(),
        };
        let step = lingers(&self.plan, &self.book.ledger, cx.role(), objects);
        self.state = State::Lingers(receiver);
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
                        let receiver = both.1.finish(&payload)?;
                        let sleeps = self.plan.receiving.sleeps;
                        if let Some(fd) = receiver.fd().filter(|_| sleeps) {
                            self.fd = Some(WakeFd::duplicate(fd)?);
                        }
                        self.state = State::Connected(Box::new(receiver));
                    }
                }
            }
            Heard::Gone(_) | Heard::Died(_) => self.gone = true,
            Heard::Done(_) => self.done = true,
            Heard::Leave => self.leaves = true,
        }
        Ok(())
    }

    /// Receives a batch, or does what who finds nothing does. `None`: nothing more will come.
    fn receive(
        &mut self,
        receiver: &mut Receiver,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Step>, RingError> {
        let pace = self.plan.receiving;
        let mut found = true;
        for _ in 0..pace.batch {
            cx.charge(pace.cost);
            found = self.receive_one(receiver)?;
            if !found {
                break;
            }
        }
        if found {
            let rest = rests(&pace, &mut self.chance, cx);
            return Ok(Some(rest.unwrap_or(Step::Again)));
        }
        for held in std::mem::take(&mut self.held) {
            receiver.release(held)?;
        }
        if self.gone || (self.done && self.book.has_all(0)) {
            return Ok(None);
        }
        if receiver.step()? {
            return Ok(Some(Step::Again));
        }
        // The sender is to see that it is done: before that, the ring pushes what it must by itself.
        if self.book.has_all(0) {
            receiver.push_head()?;
        }
        if self.fd.is_some() {
            receiver.drain_events();
            receiver.arm();
            if self.receive_one(receiver)? || receiver.step()? {
                return Ok(Some(Step::Again));
            }
        }
        Ok(Some(wait(self.fd.as_ref())))
    }

    /// Receives a message, in one of the ways there are: whether one was there.
    fn receive_one(&mut self, receiver: &mut Receiver) -> Result<bool, RingError> {
        if !self.plan.receiving.holds || self.chance.once_in(3) {
            let Some(message) = receiver.try_recv()? else {
                return Ok(false);
            };
            self.book.came(0, &message);
            return Ok(true);
        }
        if self.held.len() == HELD {
            let any = self.chance.below(HELD as u64) as usize;
            let held = self.held.swap_remove(any);
            receiver.release(held)?;
        }
        let Some(held) = receiver.try_take()? else {
            return Ok(false);
        };
        self.book.came(0, receiver.bytes(&held));
        self.held.push(held);
        Ok(true)
    }
}

//! The receiving end: of one ring, or (`group`) of all.

use std::sync::{Arc, Mutex};

use headworks::ring::{Held, Receiver, ReceiverSetup, RingError, SetupError};
use headworks::sim::Census;
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Cx, Part, Step, WakeFd};

use super::actor::{open, rests, tell, wait};
use super::ledger::{Ledger, ReceiverEnd};
use super::lock;
use super::messages::Messages;
use super::plan::Plan;
use super::sender::to_sleep_on;
use super::single::{Duty, Single, Told};

mod group;
pub(super) mod hand;

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
    let setup = ReceiverSetup::new(&device, &plan.configs[1])?;
    let (with, ledger) = ((0, plan.sender(0)), book.ledger.clone());
    let duty = Receiving {
        chance: Chance::of(plan.seed, &[5]),
        fds: Vec::new(),
        held: Vec::new(),
        book,
    };
    let single = Single::new(&*device, setup, with, duty, (plan, ledger))?;
    Ok(Box::new(single))
}

/// Where a receiving end writes down what came.
pub(super) struct Book {
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
    messages: Vec<Messages>,
}

impl Book {
    pub(super) fn new(plan: Arc<Plan>, ledger: Arc<Mutex<Ledger>>) -> Self {
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
    pub(super) fn came(&self, ring: usize, bytes: &[u8]) {
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
    pub(super) fn consumed(&self, ring: usize, slots: u64) {
        lock(&self.ledger).rings[ring].consumed = Some(slots);
    }

    pub(super) fn received(&self, ring: usize) -> u64 {
        lock(&self.ledger).rings[ring].received
    }

    /// The ring is ended on purpose.
    fn removed(&self, ring: usize) {
        lock(&self.ledger).rings[ring].removed = true;
    }

    pub(super) fn has_all(&self, ring: usize) -> bool {
        lock(&self.ledger).rings[ring].received >= self.plan.messages
    }

    /// An end that receives from `from` is over.
    pub(super) fn ended(
        &self,
        (ring, from): (usize, &str),
        error: Option<RingError>,
        told: bool,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        let mut ledger = lock(&self.ledger);
        ledger.moved += 1;
        ledger.rings[ring].receiver = Some(ReceiverEnd { error, told });
        drop(ledger);
        match error.is_some() || told {
            true => tell(cx, from, ring, false),
            false => Ok(()),
        }
    }
}

struct Receiving {
    book: Book,
    chance: Chance,
    fds: Vec<WakeFd>,
    held: Vec<Held>,
}

impl Duty for Receiving {
    type Setup = ReceiverSetup;
    type End = Receiver;
    const OBJECTS: fn(&Plan) -> Census = |plan| plan.objects_of_end(1);

    fn finish(setup: ReceiverSetup, payload: &[u8]) -> Result<Receiver, SetupError> {
        setup.finish(payload)
    }

    fn begin(&mut self, receiver: &Receiver) -> Result<(), ActorError> {
        let sleeps = self.book.plan.receiving.sleeps;
        self.fds.extend(to_sleep_on(sleeps, receiver.fd())?);
        Ok(())
    }

    fn act(
        &mut self,
        receiver: &mut Receiver,
        told: Told,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Step>, RingError> {
        let step = self.receive(receiver, told, cx);
        self.book.consumed(0, receiver.consumed());
        step
    }

    fn ended(
        &mut self,
        _: Option<&Receiver>,
        error: Option<RingError>,
        told: Told,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        let sender = self.book.plan.sender(0);
        self.book.ended((0, &sender), error, told.gone, cx)
    }
}

impl Receiving {
    /// Receives a batch, or does what who finds nothing does. `None`: nothing more will come.
    fn receive(
        &mut self,
        receiver: &mut Receiver,
        told: Told,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Step>, RingError> {
        let pace = self.book.plan.receiving;
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
        if told.gone || (told.done && self.book.has_all(0)) {
            return Ok(None);
        }
        if receiver.step()? {
            return Ok(Some(Step::Again));
        }
        // The sender is to see that it is done: before that, the ring pushes what it must by itself.
        if self.book.has_all(0) {
            receiver.push_head()?;
        }
        if !self.fds.is_empty() {
            receiver.drain_events();
            receiver.arm();
            if self.receive_one(receiver)? || receiver.step()? {
                return Ok(Some(Step::Again));
            }
        }
        Ok(Some(wait(&self.fds)))
    }

    /// Receives a message, in one of the ways there are: whether one was there.
    fn receive_one(&mut self, receiver: &mut Receiver) -> Result<bool, RingError> {
        if !self.book.plan.receiving.holds || self.chance.once_in(3) {
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

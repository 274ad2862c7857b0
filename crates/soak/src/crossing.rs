//! An end of two rings that cross each other, in one group: it sends on one and receives from the other.

use std::sync::{Arc, Mutex};

use headworks::ring::{Broken, Group, ReceiverSetup, RingError, RingId, Sender, SenderSetup};
use headworks::sim::Census;
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Change, Cx, Part, Step, WakeFd};

use super::actor::{Heard, hear, lingers, open, rests, wait};
use super::ledger::Ledger;
use super::plan::{Plan, RECEIVER};
use super::receiver::Book;
use super::receiver::hand::Hand;
use super::sender::{Outgoing, to_sleep_on};
use super::single::{State, Told};

/// The actor that sends on ring `sends` of the two, and receives from the other.
pub(super) fn new(
    part: &Part,
    sends: usize,
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
) -> Result<Box<dyn Actor>, ActorError> {
    let device = open(part, &plan)?;
    let receives = 1 - sends;
    let with = match sends {
        0 => RECEIVER.to_owned(),
        _ => plan.sender(0),
    };
    let (out, back) = (
        SenderSetup::new(&device, &plan.configs[0])?,
        ReceiverSetup::new(&device, &plan.configs[1])?,
    );
    Ok(Box::new(Crossing {
        out: Outgoing::new(sends, &with, &plan, &ledger),
        chance: Chance::of(plan.seed, &[7, sends as u64]),
        sending: State::start(&*device, out, (sends, with.clone()))?,
        receiving: State::start(&*device, back, (receives, with.clone()))?,
        told: [Told::default(); 2],
        fds: [None, None],
        group: Group::default(),
        hand: Hand::default(),
        kept: None,
        stays: false,
        leaves: false,
        book: Book::new(plan.clone(), ledger.clone()),
        plan,
        ledger,
        with,
        receives,
    }))
}

struct Crossing {
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
    out: Outgoing,
    book: Book,
    chance: Chance,
    /// The other end's role.
    with: String,
    /// Which ring it receives from; it sends on the other.
    receives: usize,
    // The ends that are not in the group yet.
    sending: State<SenderSetup, RingId>,
    receiving: State<ReceiverSetup, RingId>,
    group: Group,
    hand: Hand,
    /// Of each ring.
    told: [Told; 2],
    /// Of the end that sends and of the one that receives, where they sleep.
    fds: [Option<WakeFd>; 2],
    /// The end that sent, until everybody goes.
    kept: Option<Sender>,
    /// It has all it wanted, and said so.
    stays: bool,
    leaves: bool,
}

impl Actor for Crossing {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        self.sending.say(cx)?;
        self.receiving.say(cx)?;
        while let Some(heard) = hear(cx) {
            self.hear(heard, cx)?;
        }
        if self.leaves {
            return Ok(Step::Done);
        }
        self.part(cx)?;
        if self.is_over() {
            return Ok(self.stay(cx));
        }
        // Both have their turn, whatever the other finds.
        let (sends, receives) = (self.send(cx)?, self.receive(cx)?);
        if let Some(rest) = rests(&self.plan.sending, &mut self.chance, cx) {
            return Ok(rest);
        }
        match sends || receives {
            true => Ok(Step::Again),
            false => self.idle(cx),
        }
    }
}

impl Crossing {
    fn sends(&self) -> usize {
        1 - self.receives
    }

    fn is_over(&self) -> bool {
        self.sending.is_over() && self.receiving.is_over()
    }

    fn hear(&mut self, heard: Heard, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let group = &mut self.group;
        match heard {
            Heard::Connecting(ring, bytes) if ring == self.receives => {
                self.receiving.hear(&bytes, cx, |setup, payload| {
                    Ok(group.add_receiver(setup.finish(payload)?))
                })?;
                if let State::Connected(id) = self.receiving
                    && let Some(receiver) = group.receiver(id)
                {
                    self.fds[1] = to_sleep_on(self.plan.receiving.sleeps, receiver.fd())?;
                }
            }
            Heard::Connecting(_, bytes) => {
                self.sending.hear(&bytes, cx, |setup, payload| {
                    Ok(group.add_sender(setup.finish(payload)?))
                })?;
                if let State::Connected(id) = self.sending
                    && let Some(sender) = group.sender(id)
                {
                    // One that sleeps on one ring sleeps on both.
                    self.fds[0] = to_sleep_on(self.plan.receiving.sleeps, sender.fd())?;
                }
            }
            Heard::Gone(ring) => self.told[ring].gone = true,
            Heard::Done(ring) => self.told[ring].done = true,
            // There is one other, and it is at both rings.
            Heard::Died(_) => self.told.iter_mut().for_each(|told| told.gone = true),
            Heard::Leave => self.leaves = true,
        }
        Ok(())
    }

    /// Lets go of rings whose other end went before they met.
    fn part(&mut self, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        if self.told[self.sends()].gone && matches!(self.sending, State::Meeting(_)) {
            self.sending = State::Over;
        }
        if self.told[self.receives].gone && matches!(self.receiving, State::Meeting(_)) {
            self.receiving = State::Over;
            self.book
                .ended((self.receives, &self.with), None, true, cx)?;
        }
        Ok(())
    }

    /// Sends a batch: whether there is more to send, and room for it.
    fn send(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        let State::Connected(id) = self.sending else {
            return Ok(false);
        };
        let Some(sender) = self.group.sender(id) else {
            return Ok(false);
        };
        match self.out.send(sender, cx) {
            Ok(full) => Ok(!full && !self.out.is_all_sent()),
            Err(error) => self.end_sending(Some(error), cx).map(|()| true),
        }
    }

    /// Receives a batch: whether there may be more.
    fn receive(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        let pace = self.plan.receiving;
        for _ in 0..pace.batch {
            cx.charge(pace.cost);
            if !self.receive_one(cx)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Receives a message: whether there was one, or something else to tell of.
    fn receive_one(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        if self.plan.receiving.holds
            && self.chance.once_in(2)
            && let State::Connected(id) = self.receiving
            && let Some(mut receiver) = self.group.receiver(id)
        {
            let came = |bytes: &[u8]| self.book.came(self.receives, bytes);
            match self.hand.take(&mut receiver, &mut self.chance, came) {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(error) => return self.end_receiving(Some(error), cx).map(|()| true),
            }
        }
        let found = match self.group.try_recv() {
            Ok(None) => Ok(false),
            Ok(Some((_, message))) => {
                self.book.came(self.receives, &message);
                Ok(true)
            }
            Err(broken) => Err(broken),
        };
        match found {
            Ok(found) => Ok(found),
            Err(broken) => self.broke(broken, cx).map(|()| true),
        }
    }

    fn broke(&mut self, broken: Broken, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let is = |ring: Option<RingId>| ring == Some(broken.ring);
        if is(connected(&self.sending)) {
            return self.end_sending(Some(broken.error), cx);
        }
        match is(connected(&self.receiving)) {
            true => self.end_receiving(Some(broken.error), cx),
            false => Err(ActorError::new(format!("{broken}, which is none"))),
        }
    }

    fn end_sending(&mut self, error: Option<RingError>, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let State::Connected(id) = std::mem::replace(&mut self.sending, State::Over) else {
            return Ok(());
        };
        self.fds[0] = None;
        let told = self.told[self.sends()].gone;
        let sender = self.group.remove_sender(id);
        let sender = sender.ok_or_else(|| ActorError::new(format!("{id} is not given back")))?;
        self.out.ended(&sender, error, told, cx)?;
        self.kept = Some(sender);
        Ok(())
    }

    fn end_receiving(
        &mut self,
        error: Option<RingError>,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        let State::Connected(id) = std::mem::replace(&mut self.receiving, State::Over) else {
            return Ok(());
        };
        self.fds[1] = None;
        if let Some(receiver) = self.group.receiver(id) {
            self.book.consumed(self.receives, receiver.consumed());
        }
        self.hand.clear();
        self.group.remove(id);
        let told = self.told[self.receives].gone;
        self.book
            .ended((self.receives, &self.with), error, told, cx)
    }

    /// There is nothing to be received, and nothing to send or no room.
    fn idle(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if let State::Connected(id) = self.receiving
            && let Some(mut receiver) = self.group.receiver(id)
            && let Err(error) = self.hand.release(&mut receiver)
        {
            self.end_receiving(Some(error), cx)?;
        }
        let changed = self.tend(cx)?;
        if self.told[self.sends()].gone || (self.out.is_all_sent() && self.is_drained()) {
            self.end_sending(None, cx)?;
        }
        let told = self.told[self.receives];
        if told.gone || (told.done && self.book.has_all(self.receives)) {
            self.end_receiving(None, cx)?;
        }
        if self.is_over() {
            return Ok(self.stay(cx));
        }
        if changed || self.has_room() {
            return Ok(Step::Again);
        }
        let fds = self.to_wait_for();
        if !fds.is_empty() {
            self.arm();
            if self.tend(cx)? || self.has_room() || self.receive_one(cx)? {
                return Ok(Step::Again);
            }
        }
        Ok(wait(&fds))
    }

    /// It has all it wanted of both rings.
    fn stay(&mut self, cx: &Cx<'_>) -> Step {
        if std::mem::replace(&mut self.stays, true) {
            return Step::OnChange(Change::mail());
        }
        let objects = match &self.kept {
            Some(_) => self.plan.objects_of_end(0),
            None => Census::default(),
        };
        let step = lingers(&self.plan, &self.ledger, cx.role(), objects);
        step.unwrap_or(Step::Done)
    }

    fn tend(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        match self.group.step(true) {
            Ok(changed) => Ok(changed),
            Err(broken) => self.broke(broken, cx).map(|()| true),
        }
    }

    fn is_drained(&mut self) -> bool {
        let sender = connected(&self.sending).and_then(|id| self.group.sender(id));
        sender.is_some_and(|sender| sender.is_drained())
    }

    /// Whether there is more to send, and room for it.
    fn has_room(&mut self) -> bool {
        let sender = connected(&self.sending).and_then(|id| self.group.sender(id));
        !self.out.is_all_sent() && sender.is_some_and(|sender| !sender.is_full())
    }

    /// The descriptors of its ends, if all that are connected have one: otherwise it looks at memory.
    fn to_wait_for(&self) -> Vec<WakeFd> {
        let connected = [connected(&self.sending), connected(&self.receiving)];
        let ends = connected.iter().flatten().count();
        let fds: Vec<_> = self.fds.iter().flatten().cloned().collect();
        match fds.len() == ends {
            true => fds,
            false => Vec::new(),
        }
    }

    fn arm(&mut self) {
        if let State::Connected(id) = self.sending
            && let Some(sender) = self.group.sender(id)
        {
            sender.drain_events();
            sender.arm();
        }
        if let State::Connected(id) = self.receiving
            && let Some(mut receiver) = self.group.receiver(id)
        {
            receiver.drain_events();
            receiver.arm();
        }
    }
}

/// Which ring of the group it is, while it is connected.
fn connected<S>(state: &State<S, RingId>) -> Option<RingId> {
    match state {
        State::Connected(ring) => Some(*ring),
        _ => None,
    }
}

//! One end that receives on all rings.

use std::sync::Arc;

use headworks::ring::{Broken, Group, GroupConfig, RingError, RingId, Seat};
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Cx, Step, WakeFd};
use headworks::verbs::Device;

use super::super::actor::{Heard, hear, lingers, rests, wait};
use super::super::sender::to_sleep_on;
use super::super::single::{State, Told};
use super::Book;
use super::hand::Hand;

pub(super) fn new(device: &Arc<dyn Device>, book: Book) -> Result<Box<dyn Actor>, ActorError> {
    let plan = book.plan.clone();
    let mut chance = Chance::of(plan.seed, &[6]);
    let mut config = GroupConfig::new(plan.configs[1].clone(), plan.rings);
    config.quantum = chance.one_of(&[1, 3, 32]);
    let mut group = Group::receiving(device, &config)?;
    let mut places = Vec::new();
    for ring in 0..plan.rings {
        let with = (ring, plan.sender(ring));
        places.push(Place {
            state: State::start(&**device, group.seat()?, with)?,
            told: Told::default(),
            hand: Hand::default(),
        });
    }
    let fd = to_sleep_on(plan.receiving.sleeps, group.fd())?;
    Ok(Box::new(Receiving {
        fds: fd.into_iter().collect(),
        book,
        chance,
        places,
        group,
        removes: plan.removes,
        leaves: false,
    }))
}

struct Receiving {
    book: Book,
    chance: Chance,
    // The ends that are not admitted go before the group.
    places: Vec<Place>,
    group: Group,
    fds: Vec<WakeFd>,
    /// Ends this ring once so many of its messages came.
    removes: Option<(usize, u64)>,
    leaves: bool,
}

/// A ring of the group.
struct Place {
    state: State<Seat, RingId>,
    told: Told,
    hand: Hand,
}

impl Place {
    fn is(&self, ring: RingId) -> bool {
        matches!(self.state, State::Connected(own) if own == ring)
    }
}

impl Actor for Receiving {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        for place in &mut self.places {
            place.state.say(cx)?;
        }
        while let Some(heard) = hear(cx) {
            self.hear(heard, cx)?;
        }
        if self.leaves {
            return Ok(Step::Done);
        }
        let pace = self.book.plan.receiving;
        for _ in 0..pace.batch {
            cx.charge(pace.cost);
            if !self.receive_one(cx)? {
                return self.idle(cx);
            }
        }
        let rest = rests(&pace, &mut self.chance, cx);
        Ok(rest.unwrap_or(Step::Again))
    }
}

impl Receiving {
    fn hear(&mut self, heard: Heard, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        match heard {
            Heard::Connecting(ring, bytes) => {
                let group = &mut self.group;
                let admit = |seat, payload: &[u8]| group.admit(seat, payload);
                self.places[ring].state.hear(&bytes, cx, admit)?;
            }
            Heard::Gone(ring) => self.places[ring].told.gone = true,
            Heard::Done(ring) => self.places[ring].told.done = true,
            Heard::Leave => self.leaves = true,
            Heard::Died(role) => {
                for ring in 0..self.places.len() {
                    self.places[ring].told.gone |= self.book.plan.sender(ring) == role;
                }
            }
        }
        Ok(())
    }

    fn ring_of(&self, id: RingId) -> Option<usize> {
        self.places.iter().position(|place| place.is(id))
    }

    /// Receives a message: whether there was one, or something else to tell of.
    fn receive_one(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        if self.book.plan.receiving.holds && self.chance.once_in(2) {
            let ring = self.chance.below(self.places.len() as u64) as usize;
            match self.hold_one(ring) {
                Ok(false) => {}
                Ok(true) => return self.may_remove(ring, cx).map(|()| true),
                Err(error) => return self.end(ring, Some(error), cx).map(|()| true),
            }
        }
        let found = match self.group.try_recv() {
            Ok(None) => return Ok(false),
            Ok(Some((id, message))) => {
                let Some(ring) = self.places.iter().position(|place| place.is(id)) else {
                    return Err(ActorError::new(format!("a message of {id}, which is none")));
                };
                self.book.came(ring, &message);
                Ok(ring)
            }
            Err(broken) => Err(broken),
        };
        match found {
            Ok(ring) => self.may_remove(ring, cx)?,
            Err(broken) => self.broke(broken, cx)?,
        }
        Ok(true)
    }

    /// Takes a message of a ring by hand, and holds it: whether there was one.
    fn hold_one(&mut self, ring: usize) -> Result<bool, RingError> {
        let place = &mut self.places[ring];
        let State::Connected(id) = place.state else {
            return Ok(false);
        };
        let Some(mut receiver) = self.group.receiver(id) else {
            return Ok(false);
        };
        let came = |bytes: &[u8]| self.book.came(ring, bytes);
        place.hand.take(&mut receiver, &mut self.chance, came)
    }

    /// Lets go of all messages that are held.
    fn release(&mut self, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        for ring in 0..self.places.len() {
            let place = &mut self.places[ring];
            if let State::Connected(id) = place.state
                && let Some(mut receiver) = self.group.receiver(id)
                && let Err(error) = place.hand.release(&mut receiver)
            {
                self.end(ring, Some(error), cx)?;
            }
        }
        Ok(())
    }

    fn broke(&mut self, broken: Broken, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        match self.ring_of(broken.ring) {
            Some(ring) => self.end(ring, Some(broken.error), cx),
            None => Err(ActorError::new(format!("{broken}, which is none"))),
        }
    }

    fn end(
        &mut self,
        ring: usize,
        error: Option<RingError>,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError> {
        let place = &mut self.places[ring];
        if let State::Connected(id) = std::mem::replace(&mut place.state, State::Over) {
            self.group.remove(id);
        }
        place.hand.clear();
        let (told, sender) = (place.told.gone, self.book.plan.sender(ring));
        self.book.ended((ring, &sender), error, told, cx)
    }

    /// A message of a ring came: ends that ring if this was to be its last, whatever its sender is doing.
    fn may_remove(&mut self, ring: usize, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let is_last =
            |&(which, after): &(usize, u64)| which == ring && self.book.received(ring) >= after;
        if self.removes.take_if(|removes| is_last(removes)).is_some() {
            self.book.removed(ring);
            self.places[ring].told.gone = true;
            self.end(ring, None, cx)?;
        }
        Ok(())
    }

    /// Nothing is there to be received.
    fn idle(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        self.release(cx)?;
        for ring in 0..self.places.len() {
            let place = &self.places[ring];
            let is_over = place.told.gone || (place.told.done && self.book.has_all(ring));
            if is_over && !place.state.is_over() {
                self.end(ring, None, cx)?;
            }
        }
        if self.places.iter().all(|place| place.state.is_over()) {
            let objects = self.book.plan.objects_of_group();
            let stays = lingers(&self.book.plan, &self.book.ledger, cx.role(), objects);
            return Ok(stays.unwrap_or(Step::Done));
        }
        if self.tend(cx)? {
            return Ok(Step::Again);
        }
        if !self.fds.is_empty() {
            self.group.drain_events();
            self.group.arm();
            if self.tend(cx)? || self.receive_one(cx)? {
                return Ok(Step::Again);
            }
        }
        Ok(wait(&self.fds))
    }

    fn tend(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        match self.group.step(true) {
            Ok(changed) => Ok(changed),
            Err(broken) => self.broke(broken, cx).map(|()| true),
        }
    }
}

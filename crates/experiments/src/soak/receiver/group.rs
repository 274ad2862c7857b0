//! One end that receives on all rings.

use std::sync::Arc;

use headworks::ring::{Broken, Group, GroupConfig, RingError, RingId, Seat};
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Cx, Step, WakeFd};
use headworks::verbs::Device;

use super::super::actor::{Heard, Meeting, hear, lingers, rests, wait};
use super::Book;

pub(super) fn new(device: &Arc<dyn Device>, book: Book) -> Result<Box<dyn Actor>, ActorError> {
    let plan = book.plan.clone();
    let mut chance = Chance::of(plan.seed, &[6]);
    let mut config = GroupConfig::new(plan.configs[1].clone(), plan.rings);
    config.quantum = chance.one_of(&[1, 3, 32]);
    let mut group = Group::receiving(device, &config)?;
    let mut places = Vec::new();
    for ring in 0..plan.rings {
        let mut seat = group.seat()?;
        let (tuning, greeting) = (seat.tuning(), seat.greeting());
        let with = (ring, plan.sender(ring));
        let meeting = Meeting::start(device.info(), seat.queue_pair(), tuning, greeting, with)?;
        places.push(Place {
            state: State::Meeting(Box::new((meeting, seat))),
            gone: false,
            done: false,
        });
    }
    let sleeps = plan.receiving.sleeps;
    let fd = group.fd().filter(|_| sleeps).map(WakeFd::duplicate);
    Ok(Box::new(Receiving {
        fd: fd.transpose()?,
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
    fd: Option<WakeFd>,
    /// Ends this ring once so many of its messages came.
    removes: Option<(usize, u64)>,
    leaves: bool,
}

/// A ring of the group.
struct Place {
    state: State,
    /// The other end is.
    gone: bool,
    done: bool,
}

enum State {
    Meeting(Box<(Meeting, Seat)>),
    Connected(RingId),
    Over,
}

impl Actor for Receiving {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        for place in &mut self.places {
            if let State::Meeting(meeting) = &mut place.state {
                meeting.0.say(cx)?;
            }
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
                let place = &mut self.places[ring];
                let State::Meeting(mut both) = std::mem::replace(&mut place.state, State::Over)
                else {
                    return Err(ActorError::new("mail of the bring-up when that is over"));
                };
                let (meeting, seat) = &mut *both;
                place.state = match meeting.hear(seat.queue_pair(), &bytes, cx)? {
                    None => State::Meeting(both),
                    Some(payload) => State::Connected(self.group.admit(both.1, &payload)?),
                };
            }
            Heard::Gone(ring) => self.places[ring].gone = true,
            Heard::Done(ring) => self.places[ring].done = true,
            Heard::Leave => self.leaves = true,
            Heard::Died(role) => {
                for ring in 0..self.places.len() {
                    self.places[ring].gone |= self.book.plan.sender(ring) == role;
                }
            }
        }
        Ok(())
    }

    fn ring_of(&self, id: RingId) -> Option<usize> {
        let is_it = |place: &Place| matches!(place.state, State::Connected(own) if own == id);
        self.places.iter().position(is_it)
    }

    /// Receives a message: whether there was one, or something else to tell of.
    fn receive_one(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        let found = match self.group.try_recv() {
            Ok(None) => return Ok(false),
            Ok(Some((id, message))) => {
                let is_it =
                    |place: &Place| matches!(place.state, State::Connected(own) if own == id);
                let Some(ring) = self.places.iter().position(is_it) else {
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
        let told = place.gone;
        self.book.ended(ring, error, told, cx)
    }

    /// A message of a ring came: ends that ring if this was to be its last, whatever its sender is doing.
    fn may_remove(&mut self, ring: usize, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let is_last =
            |&(which, after): &(usize, u64)| which == ring && self.book.received(ring) >= after;
        if self.removes.take_if(|removes| is_last(removes)).is_some() {
            self.book.removed(ring);
            self.places[ring].gone = true;
            self.end(ring, None, cx)?;
        }
        Ok(())
    }

    /// Nothing is there to be received.
    fn idle(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        for ring in 0..self.places.len() {
            let place = &self.places[ring];
            let is_over = place.gone || (place.done && self.book.has_all(ring));
            if is_over && !matches!(place.state, State::Over) {
                self.end(ring, None, cx)?;
            }
        }
        if self
            .places
            .iter()
            .all(|place| matches!(place.state, State::Over))
        {
            let objects = self.book.plan.objects_of_group();
            let stays = lingers(&self.book.plan, &self.book.ledger, cx.role(), objects);
            return Ok(stays.unwrap_or(Step::Done));
        }
        if self.tend(cx)? {
            return Ok(Step::Again);
        }
        if self.fd.is_some() {
            self.group.drain_events();
            self.group.arm();
            if self.tend(cx)? || self.receive_one(cx)? {
                return Ok(Step::Again);
            }
        }
        Ok(wait(self.fd.as_ref()))
    }

    fn tend(&mut self, cx: &mut Cx<'_>) -> Result<bool, ActorError> {
        match self.group.step(true) {
            Ok(changed) => Ok(changed),
            Err(broken) => self.broke(broken, cx).map(|()| true),
        }
    }
}

//! An end of one ring as an actor, whichever end it is: it meets the other, does its part until it has all it wanted
//! or the ring broke, stays to be looked at, and goes.

use std::sync::{Arc, Mutex};

use headworks::ring::{ReceiverSetup, RingError, Seat, SenderSetup, SetupError};
use headworks::sim::Census;
use headworks::stage::{Actor, ActorError, Change, Cx, Step};
use headworks::verbs::bringup::Tuning;
use headworks::verbs::{Device, QueuePair};

use super::actor::{Heard, Meeting, hear, lingers, wait};
use super::ledger::Ledger;
use super::plan::Plan;

/// An end that is not connected yet.
pub(super) trait Meets: Send {
    fn tuning(&self) -> Tuning;
    fn greeting(&self) -> Vec<u8>;
    fn queue_pair(&mut self) -> &mut dyn QueuePair;
}

macro_rules! meets {
    ($($setup:ident),*) => {$(
        impl Meets for $setup {
            fn tuning(&self) -> Tuning {
                $setup::tuning(self)
            }
            fn greeting(&self) -> Vec<u8> {
                $setup::greeting(self)
            }
            fn queue_pair(&mut self) -> &mut dyn QueuePair {
                $setup::queue_pair(self)
            }
        }
    )*};
}

meets!(SenderSetup, ReceiverSetup, Seat);

/// How far an end is.
pub(super) enum State<S, E> {
    Meeting(Box<(Meeting, S)>),
    Connected(E),
    Over,
}

impl<S: Meets, E> State<S, E> {
    /// It begins to meet that role, for that ring.
    pub(super) fn start(
        device: &dyn Device,
        mut setup: S,
        with: (usize, String),
    ) -> Result<Self, ActorError> {
        let (tuning, greeting) = (setup.tuning(), setup.greeting());
        let meeting = Meeting::start(device.info(), setup.queue_pair(), tuning, greeting, with)?;
        Ok(Self::Meeting(Box::new((meeting, setup))))
    }

    /// Says what is to be said.
    pub(super) fn say(&mut self, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        match self {
            Self::Meeting(both) => both.0.say(cx),
            _ => Ok(()),
        }
    }

    /// Hears what the other end says; `finish` makes an end of it once both are connected.
    pub(super) fn hear(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_>,
        finish: impl FnOnce(S, &[u8]) -> Result<E, SetupError>,
    ) -> Result<(), ActorError> {
        let Self::Meeting(mut both) = std::mem::replace(self, Self::Over) else {
            return Err(ActorError::new("mail of the bring-up when that is over"));
        };
        let (meeting, setup) = &mut *both;
        *self = match meeting.hear(setup.queue_pair(), bytes, cx)? {
            None => Self::Meeting(both),
            Some(payload) => Self::Connected(finish(both.1, &payload)?),
        };
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }
}

/// What was heard of the other end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// It is gone.
    pub(super) gone: bool,
    /// It has all it wanted.
    pub(super) done: bool,
}

/// What is an end's own.
pub(super) trait Duty: Send {
    type Setup: Meets;
    type End: Send;

    /// What a connected end has.
    const OBJECTS: fn(&Plan) -> Census;

    /// Both ends are connected.
    fn finish(setup: Self::Setup, payload: &[u8]) -> Result<Self::End, SetupError>;

    /// They are, and nothing was done yet.
    fn begin(&mut self, end: &Self::End) -> Result<(), ActorError>;

    /// Does some of it. `None`: it has all it wanted, or will get no more.
    fn act(
        &mut self,
        end: &mut Self::End,
        told: Told,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Step>, RingError>;

    /// It is over; `None`: it never met the other.
    fn ended(
        &mut self,
        end: Option<&Self::End>,
        error: Option<RingError>,
        told: Told,
        cx: &mut Cx<'_>,
    ) -> Result<(), ActorError>;
}

pub(super) struct Single<D: Duty> {
    duty: D,
    plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
    /// The other end's role.
    with: String,
    state: State<D::Setup, Box<D::End>>,
    told: Told,
    /// What it has when it stays, until everybody goes.
    kept: Option<Box<D::End>>,
    leaves: bool,
}

impl<D: Duty> Single<D> {
    pub(super) fn new(
        device: &dyn Device,
        setup: D::Setup,
        with: (usize, String),
        duty: D,
        (plan, ledger): (Arc<Plan>, Arc<Mutex<Ledger>>),
    ) -> Result<Self, ActorError> {
        Ok(Self {
            duty,
            plan,
            ledger,
            with: with.1.clone(),
            state: State::start(device, setup, with)?,
            told: Told::default(),
            kept: None,
            leaves: false,
        })
    }

    fn hear(&mut self, heard: Heard, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        match heard {
            Heard::Connecting(_, bytes) => {
                let finish = |setup, payload: &[u8]| D::finish(setup, payload).map(Box::new);
                self.state.hear(&bytes, cx, finish)?;
                if let State::Connected(end) = &self.state {
                    self.duty.begin(end)?;
                }
            }
            Heard::Gone(_) => self.told.gone = true,
            // The deaths of other rings' ends are not ours.
            Heard::Died(role) => self.told.gone |= role == self.with,
            Heard::Done(_) => self.told.done = true,
            Heard::Leave => self.leaves = true,
        }
        Ok(())
    }

    fn stay(&mut self, cx: &Cx<'_>) -> Step {
        let objects = match &self.kept {
            Some(_) => (D::OBJECTS)(&self.plan),
            None => Census::default(),
        };
        let step = lingers(&self.plan, &self.ledger, cx.role(), objects);
        step.unwrap_or(Step::Done)
    }
}

impl<D: Duty> Actor for Single<D> {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        self.state.say(cx)?;
        while let Some(heard) = hear(cx) {
            self.hear(heard, cx)?;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Connected(mut end) => {
                let acted = self.duty.act(&mut end, self.told, cx);
                if let Ok(Some(step)) = acted {
                    self.state = State::Connected(end);
                    return Ok(step);
                }
                self.duty.ended(Some(&end), acted.err(), self.told, cx)?;
                self.kept = Some(end);
                Ok(self.stay(cx))
            }
            State::Meeting(meeting) if !self.told.gone => {
                self.state = State::Meeting(meeting);
                Ok(wait(&[]))
            }
            State::Meeting(meeting) => {
                drop(meeting);
                self.duty.ended(None, None, self.told, cx)?;
                Ok(self.stay(cx))
            }
            State::Over if self.leaves => Ok(Step::Done),
            State::Over => Ok(Step::OnChange(Change::mail())),
        }
    }
}

//! What both ends have in common: meeting by mail, hearing of the end of the other, resting.

use std::sync::{Arc, Mutex};

use headworks::sim::Census;
use headworks::sim::faults::Chance;
use headworks::stage::{Actor, ActorError, Change, Cx, Part, Step, WakeFd};
use headworks::verbs::bringup::Tuning;
use headworks::verbs::{BringUp, Device, DeviceInfo, Duration, QueuePair};

use super::ledger::Ledger;
use super::lock;
use super::plan::{Pace, Plan};
use super::promised::promised;

/// What mail from an end says: of which ring, and what.
const CONNECTING: u8 = 0;
const DONE: u8 = 1;
const GONE: u8 = 2;

/// What was heard of a ring.
pub(super) enum Heard {
    /// Bytes of the bring-up.
    Connecting(usize, Vec<u8>),
    /// The other end has all it wanted.
    Done(usize),
    /// The other end is gone.
    Gone(usize),
    /// An actor died.
    Died(String),
    /// Everybody is to go.
    Leave,
}

/// The next mail.
pub(super) fn hear(cx: &mut Cx<'_>) -> Option<Heard> {
    let mail = cx.receive()?;
    if mail.from == headworks::stage::actor::DIRECTOR {
        if mail.bytes.is_empty() {
            return Some(Heard::Leave);
        }
        return Some(Heard::Died(
            String::from_utf8_lossy(&mail.bytes).into_owned(),
        ));
    }
    match *mail.bytes.as_slice() {
        [ring, CONNECTING, ref bytes @ ..] => Some(Heard::Connecting(ring.into(), bytes.to_vec())),
        [ring, DONE] => Some(Heard::Done(ring.into())),
        [ring, ..] => Some(Heard::Gone(ring.into())),
        [] => None,
    }
}

/// Tells the other end of a ring that this one has all it wanted, or is gone.
pub(super) fn tell(
    cx: &mut Cx<'_>,
    to: &str,
    ring: usize,
    is_done: bool,
) -> Result<(), ActorError> {
    let what = if is_done { DONE } else { GONE };
    Ok(cx.send(to, &[ring as u8, what])?)
}

/// The device of a part, with what the plan has it promise.
pub(super) fn open(part: &Part, plan: &Plan) -> Result<Arc<dyn Device>, ActorError> {
    let part = Part {
        opener: headworks::pace::opener(part.opener.clone()),
        ..part.clone()
    };
    let device = promised(part.open_device()?, plan.promises);
    Ok((plan.around)(&part.role, device))
}

/// An actor on a paced device: in virtual time nothing but its own calls lets go what is held back there, so it makes
/// some now and then.
pub(super) struct Calling(pub(super) Box<dyn Actor>);

/// So often.
const CALLS_EVERY: Duration = Duration::from_micros(20);

impl Actor for Calling {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let step = self.0.step(cx)?;
        Ok(match step {
            Step::OnChange(change) => Step::OnChange(change.until(cx.now() + CALLS_EVERY)),
            step => step,
        })
    }
}

/// An end has all it wanted. It stays, with all that it has, until the director has looked: `None` where this plan
/// has ends go at once.
pub(super) fn lingers(
    plan: &Plan,
    ledger: &Mutex<Ledger>,
    role: &str,
    objects: Census,
) -> Option<Step> {
    let mut ledger = lock(ledger);
    ledger.moved += 1;
    let stays = plan.lingers;
    stays.then(|| {
        ledger.lingering.insert(role.to_owned(), objects);
        Step::OnChange(Change::mail())
    })
}

/// A bring-up by mail.
pub(super) struct Meeting {
    ring: usize,
    with: String,
    up: BringUp,
}

impl Meeting {
    pub(super) fn start(
        info: &DeviceInfo,
        qp: &mut dyn QueuePair,
        tuning: Tuning,
        greeting: Vec<u8>,
        (ring, with): (usize, String),
    ) -> Result<Self, ActorError> {
        let up = BringUp::start(info, qp, tuning, 7 + ring as u32, greeting)?;
        Ok(Self { ring, with, up })
    }

    /// Says what is to be said.
    pub(super) fn say(&mut self, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let bytes = self.up.output();
        if !bytes.is_empty() {
            let mail = [&[self.ring as u8, CONNECTING], &bytes[..]].concat();
            cx.send(&self.with, &mail)?;
        }
        Ok(())
    }

    /// Hears what the other end says: its greeting, once both are connected.
    pub(super) fn hear(
        &mut self,
        qp: &mut dyn QueuePair,
        bytes: &[u8],
        cx: &mut Cx<'_>,
    ) -> Result<Option<Vec<u8>>, ActorError> {
        self.up.input(qp, bytes)?;
        self.say(cx)?;
        if !self.up.is_connected() {
            return Ok(None);
        }
        Ok(self.up.peer().map(|peer| peer.payload.clone()))
    }
}

/// After a batch: whether the end does something else now, and until when.
pub(super) fn rests(pace: &Pace, chance: &mut Chance, cx: &mut Cx<'_>) -> Option<Step> {
    if !chance.once_in(pace.rests) {
        return None;
    }
    let most = pace.rest.nanos();
    let span = headworks::verbs::Duration::from_nanos(chance.within(1, most.max(1)));
    Some(Step::At(cx.now() + span))
}

/// Waits for mail, or for what these descriptors tell of, or, if there are none, for what is to be seen in memory.
pub(super) fn wait(fds: &[WakeFd]) -> Step {
    let change = match fds {
        [] => Change::memory(),
        fds => fds.iter().cloned().fold(Change::mail(), Change::or_fd),
    };
    Step::OnChange(change.or_mail())
}

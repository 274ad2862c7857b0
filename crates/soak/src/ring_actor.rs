//! Actor at one side of the rings. It connects the rings by mail. Then it sends and receives until it has
//! everything or the rings break. At the end it keeps its objects for an inspection, if the plan wants one,
//! and leaves.
//!
//! A side is a sender, a receiver, a group of receivers, or a group of a sender and a receiver of
//! crossing rings.

use std::mem::replace;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks::ring::{
    AfterStep, Framing, Group, GroupConfig, HeldMessage, Membership, Mode, Receiver, ReceiverSetup,
    RingError, RingId, SendError, Sender, SenderSetup, Unconnected,
};
use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step, WakeCondition, WakeFd};
use headworks::runtime::{COORDINATOR, Mail};
use headworks::sim::ObjectCounts;
use headworks::sim::faults::Random;
use headworks::verbs::interpose::{InterposedDevice, Interposer};
use headworks::verbs::{BringUp, Device, Duration};

use crate::oracle::{EndResult, SoakRun};
use crate::plan::{Plan, RECEIVER};

/// Maximum number of messages of a ring that are held.
const HELD: usize = 8;
/// How often a side on a paced device makes a call. In virtual time nothing else releases what the device
/// holds back.
const PACED_CALL_INTERVAL: Duration = Duration::from_micros(20);

// Mail consists of the number of a ring and one of these constants. After `CONNECTING`, bytes of the bring-up
// follow.
const CONNECTING: u8 = 0;
/// The other end has sent or received everything.
const DONE: u8 = 1;
/// The other end is gone.
const GONE: u8 = 2;

/// An end of a ring that is not connected yet.
enum UnconnectedEnd {
    Sender(SenderSetup),
    Receiver(ReceiverSetup),
    Membership(Membership),
}

impl UnconnectedEnd {
    fn end(&mut self) -> &mut dyn Unconnected {
        match self {
            Self::Sender(setup) => setup,
            Self::Receiver(setup) => setup,
            Self::Membership(seat) => seat,
        }
    }
}

enum State {
    Connecting(Box<(BringUp, UnconnectedEnd)>),
    /// Connected, and in no group.
    Sender(Box<Sender>),
    /// Connected, and in no group.
    Receiver(Box<Receiver>),
    /// Connected, and in the group.
    Member(RingId),
    /// Ended. Holds the end, unless the group dropped it.
    Over(Option<Box<dyn Send>>),
}

/// This side's end of one ring.
struct RingEnd {
    ring: usize,
    /// The role of the other end.
    with: String,
    sends: bool,
    state: State,
    /// The other end is gone, or this end has removed the ring.
    gone: bool,
    /// The other end has sent or received everything.
    done: bool,
    /// Messages taken with `try_take` and not yet released.
    held: Vec<HeldMessage>,
    /// Descriptor to sleep on, if there is one and the plan sleeps.
    fd: Option<WakeFd>,
}

struct RingActor {
    run: Arc<SoakRun>,
    /// This side's ends of rings, the sending one first. Declared before `group`, because seats must be dropped
    /// before the group.
    links: Vec<RingEnd>,
    group: Group,
    random: Random,
    /// Number of the next message to send.
    next: u64,
    leaves: bool,
}

/// Evaluates `$act` with the receiver of a link, whether or not the receiver is in the group; `None` if the
/// link has no receiver.
macro_rules! with_receiver {
    ($link:expr, $group:expr, $receiver:ident => $act:expr) => {
        match &mut $link.state {
            State::Receiver($receiver) => Some($act),
            State::Member(ring) if !$link.sends => match $group.receiver(*ring) {
                #[allow(unused_mut, reason = "some calls take it by shared reference")]
                Some(mut $receiver) => Some($act),
                None => None,
            },
            _ => None,
        }
    };
}

/// Index of a link, and the error of a call on it.
type Failure = (usize, RingError);

/// Makes the actor of `part`. It sends on ring `sends`; with `None` it is the receiving side.
pub(super) fn new(
    part: &ActorInit,
    sends: Option<usize>,
    run: Arc<SoakRun>,
) -> Result<Box<dyn Actor>, ActorError> {
    let plan = &run.plan;
    let device = open(part, plan)?;
    let mut side = RingActor {
        links: Vec::new(),
        group: Group::default(),
        random: Random::of(plan.seed, &[4, sends.unwrap_or(plan.rings) as u64]),
        next: 0,
        leaves: false,
        run: run.clone(),
    };
    let mut setups = Vec::new();
    if let Some(ring) = sends.or_else(|| plan.crosses.then_some(1)) {
        let setup = SenderSetup::new(&device, &plan.configs[0])?;
        setups.push((ring, UnconnectedEnd::Sender(setup)));
    }
    if plan.is_group && sends.is_none() {
        let mut config = GroupConfig::new(plan.configs[1].clone(), plan.rings);
        config.quantum = side.random.one_of(&[1, 3, 32]);
        side.group = Group::receiving(&device, &config)?;
        for ring in 0..plan.rings {
            setups.push((ring, UnconnectedEnd::Membership(side.group.seat()?)));
        }
    } else if plan.crosses || sends.is_none() {
        let ring = usize::from(plan.crosses && sends.is_some());
        let setup = ReceiverSetup::new(&device, &plan.configs[1])?;
        setups.push((ring, UnconnectedEnd::Receiver(setup)));
    }
    for (ring, setup) in setups {
        let with = match sends {
            Some(_) => RECEIVER.to_owned(),
            None => plan.sender(ring),
        };
        side.links.push(RingEnd::new(&*device, ring, with, setup)?);
    }
    Ok(Box::new(side))
}

/// Opens the device of an actor, with the promises of the plan.
fn open(part: &ActorInit, plan: &Plan) -> Result<Arc<dyn Device>, ActorError> {
    struct Unwatched;
    impl Interposer for Unwatched {}

    let opener = headworks::pace::opener(part.opener.clone());
    let device = ActorInit {
        opener,
        ..part.clone()
    }
    .open_device()?;
    let mut info = device.info().clone();
    info.promises = plan.promises;
    let device = InterposedDevice::with_info(device, info, Arc::new(Unwatched));
    Ok((plan.wrap_device.0)(&part.role, Arc::new(device)))
}

impl RingEnd {
    /// Starts to connect `setup`, an end of ring `ring`, to the role `with`.
    fn new(
        device: &dyn Device,
        ring: usize,
        with: String,
        mut setup: UnconnectedEnd,
    ) -> Result<Self, ActorError> {
        let sends = matches!(setup, UnconnectedEnd::Sender(_));
        let end = setup.end();
        let (tuning, greeting) = (end.connection_params(), end.greeting());
        let seed = 7 + ring as u32;
        let up = BringUp::start(device.info(), end.queue_pair(), tuning, seed, greeting)?;
        Ok(Self {
            ring,
            with,
            sends,
            state: State::Connecting(Box::new((up, setup))),
            gone: false,
            done: false,
            held: Vec::new(),
            fd: None,
        })
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// Mails the output of the bring-up.
    fn send_bring_up(&mut self, cx: &mut ActorContext<'_>) -> Result<(), ActorError> {
        if let State::Connecting(both) = &mut self.state {
            let bytes = both.0.output();
            if !bytes.is_empty() {
                let mail = [&[self.ring as u8, CONNECTING], &bytes[..]].concat();
                cx.send(&self.with, &mail)?;
            }
        }
        Ok(())
    }

    /// Returns the connected sender of a sending end.
    fn sender<'s>(&'s mut self, group: &'s mut Group) -> Option<&'s mut Sender> {
        match &mut self.state {
            State::Sender(sender) => Some(sender),
            State::Member(ring) if self.sends => group.sender(*ring),
            _ => None,
        }
    }
}

impl Actor for RingActor {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let step = self.step_rings(cx)?;
        if let State::Receiver(receiver) = &self.links[0].state {
            self.run.observations().rings[0].consumed = Some(receiver.consumed());
        }
        Ok(match step {
            Step::Wait(change) if self.run.plan.is_paced() => {
                Step::Wait(change.until(cx.now() + PACED_CALL_INTERVAL))
            }
            step => step,
        })
    }
}

impl RingActor {
    fn step_rings(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        for link in &mut self.links {
            link.send_bring_up(cx)?;
        }
        while let Some(mail) = cx.receive() {
            self.on_mail(&mail, cx)?;
        }
        if self.leaves {
            return Ok(Step::Done);
        }
        if self.links.iter().all(RingEnd::is_over) {
            return Ok(self.wait_for_inspection(cx));
        }
        // Both directions run in each step, even if one of them makes progress.
        let (sends, receives) = (self.send(cx)?, self.receive(cx)?);
        let pace = match self.links[0].sends {
            true => self.run.plan.sending,
            false => self.run.plan.receiving,
        };
        let works = sends || receives;
        if (works || self.links[0].sends) && self.random.once_in(pace.rests) {
            let rest = self.random.within(1, pace.rest.nanos().max(1));
            return Ok(Step::At(cx.now() + Duration::from_nanos(rest)));
        }
        match works {
            true => Ok(Step::Again),
            false => self.idle(cx),
        }
    }

    fn on_mail(&mut self, mail: &Mail, cx: &mut ActorContext<'_>) -> Result<(), ActorError> {
        if mail.from == COORDINATOR {
            // The coordinator mails the role that died, or nothing when every actor has to leave.
            self.leaves |= mail.bytes.is_empty();
            for link in &mut self.links {
                link.gone |= link.with.as_bytes() == mail.bytes;
            }
            return Ok(());
        }
        let [ring, what, bytes @ ..] = mail.bytes.as_slice() else {
            return Err(ActorError::new("mail without a ring and a kind"));
        };
        let at = ring_end_index(&self.links, |link| link.ring == usize::from(*ring));
        match *what {
            CONNECTING => self.connect(at, bytes, cx)?,
            DONE => self.links[at].done = true,
            _ => self.links[at].gone = true,
        }
        Ok(())
    }

    /// Hands bytes to the bring-up of a link. After that the link may be connected.
    fn connect(
        &mut self,
        at: usize,
        bytes: &[u8],
        cx: &mut ActorContext<'_>,
    ) -> Result<(), ActorError> {
        let (plan, link) = (&self.run.plan, &mut self.links[at]);
        let State::Connecting(both) = &mut link.state else {
            return Err(ActorError::new("mail of a bring-up that is already over"));
        };
        let (up, setup) = &mut **both;
        up.input(setup.end().queue_pair(), bytes)?;
        let peer = up.peer().filter(|_| up.is_connected());
        let payload = peer.map(|peer| peer.payload.clone());
        link.send_bring_up(cx)?;
        let Some(payload) = payload else {
            return Ok(());
        };
        let State::Connecting(both) = replace(&mut link.state, State::Over(None)) else {
            unreachable!("it was connecting");
        };
        let sleeps = plan.receiving.sleeps;
        link.state = match both.1 {
            UnconnectedEnd::Sender(setup) => {
                let sender = setup.finish(&payload)?;
                link.fd = wake_fd_if(plan.sending.sleeps, sender.fd())?;
                match plan.crosses {
                    true => State::Member(self.group.add_sender(sender)),
                    false => State::Sender(Box::new(sender)),
                }
            }
            UnconnectedEnd::Receiver(setup) => {
                let receiver = setup.finish(&payload)?;
                link.fd = wake_fd_if(sleeps, receiver.fd())?;
                match plan.crosses {
                    true => State::Member(self.group.add_receiver(receiver)),
                    false => State::Receiver(Box::new(receiver)),
                }
            }
            UnconnectedEnd::Membership(seat) => {
                link.fd = wake_fd_if(sleeps, self.group.fd())?;
                State::Member(self.group.admit(seat, &payload)?)
            }
        };
        Ok(())
    }

    /// Returns whether a call changed something. A failed call ends its link.
    fn changed(
        &mut self,
        called: Result<bool, Failure>,
        cx: &mut ActorContext<'_>,
    ) -> Result<bool, ActorError> {
        match called {
            Ok(changed) => Ok(changed),
            Err((at, error)) => self.end(at, Some(error), cx).map(|()| true),
        }
    }

    fn is_all_sent(&self) -> bool {
        self.next == self.run.plan.messages
    }

    /// Sends a batch. Returns whether there is more to send, and room for it.
    fn send(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, ActorError> {
        let sent = self.send_batch(cx).map_err(|error| (0, error));
        self.changed(sent, cx)
    }

    fn send_batch(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, RingError> {
        let (run, link) = (&self.run, &mut self.links[0]);
        let (ring, pace, messages) = (link.ring, run.plan.sending, run.plan.messages);
        let Some(sender) = link.sender(&mut self.group) else {
            return Ok(false);
        };
        let mut is_full = false;
        for number in self.next..messages.min(self.next + pace.batch) {
            cx.charge(pace.cost);
            match send_one(&run.plan, (ring, number), sender, &mut self.random) {
                Ok(()) => {
                    let mut observations = run.observations();
                    observations.moved += 1;
                    observations.rings[ring].tails.push(sender.sent());
                    cx.copied(run.plan.message_len(ring, number) as u64);
                    self.next += 1;
                }
                Err(SendError::Full) => {
                    is_full = true;
                    break;
                }
                Err(SendError::Broken(error)) => {
                    run.observations().rings[ring].in_doubt = true;
                    return Err(error);
                }
                Err(error) => unreachable!("the ring takes every message of the plan: {error}"),
            }
        }
        if self.random.once_in(16) {
            sender.flush()?;
        }
        Ok(!is_full && self.next < messages)
    }

    /// Receives a batch. Returns whether there may be more.
    fn receive(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, ActorError> {
        let pace = self.run.plan.receiving;
        if self.links.iter().all(|link| link.sends) {
            return Ok(false);
        }
        for _ in 0..pace.batch {
            cx.charge(pace.cost);
            if !self.receive_one(cx)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Receives a message by `try_take` or `try_recv`. Returns whether there was one, or a ring broke.
    fn receive_one(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, ActorError> {
        let mut received = Ok(None);
        if self.run.plan.receiving.holds && self.random.once_in(2) {
            let first = u64::from(self.links[0].sends);
            let at = self.random.within(first, self.links.len() as u64 - 1) as usize;
            received = match self.take(at) {
                Ok(is_taken) => Ok(is_taken.then_some(at)),
                Err(error) => Err((at, error)),
            };
        }
        if received == Ok(None) {
            received = self.receive_next();
        }
        if let Ok(Some(at)) = received {
            self.may_remove(at, cx)?;
        }
        self.changed(received.map(|at| at.is_some()), cx)
    }

    /// Receives the next message of the ring or of the group. Returns the index of its link.
    fn receive_next(&mut self) -> Result<Option<usize>, Failure> {
        let run = &self.run;
        if let State::Receiver(receiver) = &mut self.links[0].state {
            let message = receiver.try_recv().map_err(|error| (0, error))?;
            return Ok(message.map(|message| {
                run.record_message(0, &message);
                0
            }));
        }
        match self.group.try_recv() {
            Ok(None) => Ok(None),
            Ok(Some((id, message))) => {
                let at = group_member_index(&self.links, id);
                run.record_message(self.links[at].ring, &message);
                Ok(Some(at))
            }
            Err(broken) => Err((group_member_index(&self.links, broken.ring), broken.error)),
        }
    }

    /// Takes a message of a link and holds it. Returns whether there was one. At [`HELD`] messages, releases
    /// one first.
    fn take(&mut self, at: usize) -> Result<bool, RingError> {
        let (run, link) = (&self.run, &mut self.links[at]);
        let (ring, held) = (link.ring, &mut link.held);
        let random = &mut self.random;
        let taken = with_receiver!(link, self.group, receiver => {
            if held.len() == HELD {
                receiver.release(held.swap_remove(random.below(HELD as u64) as usize))?;
            }
            let taken = receiver.try_take()?;
            if let Some(taken) = &taken {
                run.record_message(ring, receiver.bytes(taken));
            }
            taken
        });
        let taken = taken.flatten();
        let found = taken.is_some();
        link.held.extend(taken);
        Ok(found)
    }

    /// Removes a ring after the plan's number of messages, even while its sender is sending.
    fn may_remove(&mut self, at: usize, cx: &mut ActorContext<'_>) -> Result<(), ActorError> {
        let link = &mut self.links[at];
        let removes = self.run.plan.removes;
        if removes.is_none_or(|(ring, after)| ring != link.ring || self.run.received(ring) < after)
        {
            return Ok(());
        }
        link.gone = true;
        self.run.observations().rings[link.ring].removed = true;
        self.end(at, None, cx)
    }

    /// Acts when nothing can be received, and there is nothing to send or no room.
    fn idle(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        for at in 0..self.links.len() {
            // The sender may wait for the slots of held messages.
            let link = &mut self.links[at];
            let held = std::mem::take(&mut link.held);
            let released = with_receiver!(link, self.group, receiver => {
                held.into_iter().try_for_each(|held| receiver.release(held))
            });
            let released = released.unwrap_or(Ok(())).map_err(|error| (at, error));
            self.changed(released.map(|()| false), cx)?;
        }
        let changed = self.step_connected(cx)?;
        for at in 0..self.links.len() {
            if self.is_complete(at) {
                self.end(at, None, cx)?;
            }
        }
        if self.links.iter().all(RingEnd::is_over) {
            return Ok(self.wait_for_inspection(cx));
        }
        if changed || self.has_room() {
            return Ok(Step::Again);
        }
        let fds = self.wake_fds();
        let mut change = WakeCondition::mail();
        if fds.is_empty() {
            change = change.or_memory();
        } else {
            self.arm_wakeups();
            let found = self.step_connected(cx)? || self.has_room();
            if found || (!self.links.iter().all(|link| link.sends) && self.receive_one(cx)?) {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Wait(
            fds.into_iter().fold(change, WakeCondition::or_fd),
        ))
    }

    /// Steps the connected ends. Returns whether something changed.
    fn step_connected(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, ActorError> {
        let has_all = self.run.has_all(0);
        let tended = match &mut self.links[0].state {
            State::Sender(sender) => sender.step().map_err(|error| (0, error)),
            State::Receiver(receiver) => {
                let stepped = receiver.step();
                // Once all is received, push the head, so that the sender sees it. Before that the ring pushes the
                // head by itself when it has to.
                let pushed = match stepped {
                    Ok(false) if has_all => receiver.push_head().map(|_| false),
                    stepped => stepped,
                };
                pushed.map_err(|error| (0, error))
            }
            _ => match self.group.step(AfterStep::Wait) {
                Ok(changed) => Ok(changed),
                Err(broken) => Err((group_member_index(&self.links, broken.ring), broken.error)),
            },
        };
        self.changed(tended, cx)
    }

    /// Returns whether an end has sent or received everything, or its ring is gone.
    fn is_complete(&mut self, at: usize) -> bool {
        let (is_all_sent, link) = (self.is_all_sent(), &mut self.links[at]);
        let has_all = match link.sends {
            true => {
                let sender = link.sender(&mut self.group);
                is_all_sent && sender.is_some_and(|sender| sender.is_drained())
            }
            false => link.done && self.run.has_all(link.ring),
        };
        link.gone || has_all
    }

    /// Returns whether there is more to send, and room for it.
    fn has_room(&mut self) -> bool {
        let is_all_sent = self.is_all_sent();
        let sender = self.links[0].sender(&mut self.group);
        !is_all_sent && sender.is_some_and(|sender| !sender.is_full())
    }

    /// Returns the descriptors of the connected ends if all have one; otherwise none, and the side waits for
    /// memory.
    fn wake_fds(&self) -> Vec<WakeFd> {
        let is_connected =
            |link: &&RingEnd| !matches!(link.state, State::Connecting(_)) && !link.is_over();
        let connected = self.links.iter().filter(is_connected);
        let fds: Option<Vec<_>> = connected.map(|link| link.fd.clone()).collect();
        fds.unwrap_or_default()
    }

    fn arm_wakeups(&mut self) {
        self.group.drain_events();
        self.group.arm();
        for link in &mut self.links {
            if let Some(sender) = link.sender(&mut self.group) {
                sender.drain_events();
                sender.arm();
            } else if !self.run.plan.is_group {
                with_receiver!(link, self.group, receiver => {
                    receiver.drain_events();
                    receiver.arm();
                });
            }
        }
    }

    /// Ends a link: records how it ended, and tells the other end.
    fn end(
        &mut self,
        at: usize,
        error: Option<RingError>,
        cx: &mut ActorContext<'_>,
    ) -> Result<(), ActorError> {
        let (link, group) = (&mut self.links[at], &mut self.group);
        if link.is_over() {
            return Ok(());
        }
        let ended = EndResult {
            error,
            told: link.gone,
        };
        let cursors = link.sender(group);
        let cursors = cursors.map(|sender| [sender.sent(), sender.published(), sender.consumed()]);
        let consumed = with_receiver!(link, group, receiver => receiver.consumed());
        link.held.clear();
        link.fd = None;
        let kept: Option<Box<dyn Send>> = match replace(&mut link.state, State::Over(None)) {
            State::Sender(sender) => Some(sender),
            State::Receiver(receiver) => Some(receiver),
            State::Member(ring) if link.sends => Some(Box::new(group.remove_sender(ring))),
            State::Member(ring) => {
                group.remove(ring);
                None
            }
            State::Connecting(_) | State::Over(_) => None,
        };
        link.state = State::Over(kept);
        let mut observations = self.run.observations();
        observations.moved += 1;
        let record = &mut observations.rings[link.ring];
        let tells = if link.sends {
            // An end that was never connected has no result.
            record.ends[0] = cursors.map(|_| ended);
            record.cursors = cursors.unwrap_or_default();
            cursors.is_some()
        } else {
            record.ends[1] = Some(ended);
            record.consumed = consumed.or(record.consumed);
            !ended.is_whole()
        };
        drop(observations);
        if tells {
            let what = if ended.is_whole() { DONE } else { GONE };
            cx.send(&link.with, &[link.ring as u8, what])?;
        }
        Ok(())
    }

    /// Acts when all links are over. The side keeps its objects until the coordinator has inspected them, or
    /// leaves at once.
    fn wait_for_inspection(&self, cx: &ActorContext<'_>) -> Step {
        let plan = &self.run.plan;
        if !plan.lingers {
            return Step::Done;
        }
        let is_kept = |link: &&RingEnd| matches!(link.state, State::Over(Some(_)));
        let objects = match self.links.iter().find(is_kept) {
            Some(link) => plan.objects(usize::from(!link.sends), false),
            None if plan.is_group && !self.links[0].sends => plan.objects(1, true),
            None => ObjectCounts::default(),
        };
        let role = cx.role().to_owned();
        self.run.observations().lingering.insert(role, objects);
        Step::Wait(WakeCondition::mail())
    }
}

/// Returns the index of the link that `is` accepts.
fn ring_end_index(links: &[RingEnd], is: impl Fn(&RingEnd) -> bool) -> usize {
    let found = links.iter().position(is);
    found.unwrap_or_else(|| unreachable!("this side has no end of that ring"))
}

fn group_member_index(links: &[RingEnd], ring: RingId) -> usize {
    let is = |link: &RingEnd| matches!(link.state, State::Member(own) if own == ring);
    ring_end_index(links, is)
}

/// Sends message `number` of a ring: by `try_send`, or by a reservation that it commits.
fn send_one(
    plan: &Plan,
    (ring, number): (usize, u64),
    sender: &mut Sender,
    random: &mut Random,
) -> Result<(), SendError> {
    let config = &plan.configs[0];
    let len = plan.message_len(ring, number);
    if random.once_in(8) {
        // A reservation that is filled and dropped sends no message.
        sender.try_reserve(len)?.fill(0xee);
    }
    let number = (plan.sends.0)(number);
    let way = random.below(3);
    if way == 0 {
        let mut bytes = vec![0; len];
        plan.fill(ring, number, &mut bytes);
        return sender.try_send(&bytes);
    }
    let room = match config.framing {
        Framing::Variable(most) if way == 2 && config.mode != Mode::Latency => {
            random.within(len as u64, most as u64) as usize
        }
        _ => len,
    };
    let mut place = sender.try_reserve(room)?;
    plan.fill(ring, number, &mut place[..len]);
    match way {
        1 => place.commit(),
        _ => place.commit_len(len),
    }
}

/// Returns a descriptor to sleep on, if the end has one and the plan lets it sleep.
fn wake_fd_if(sleeps: bool, fd: Option<BorrowedFd<'_>>) -> Result<Option<WakeFd>, ActorError> {
    Ok(fd.filter(|_| sleeps).map(WakeFd::duplicate).transpose()?)
}

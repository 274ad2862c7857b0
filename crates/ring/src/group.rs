//! Rings that one thread serves together: it receives from many, and sends on some.
//!
//! # Receiving from many
//!
//! A [`Receiver`] on its own polls the cache line of its own tail, so that a thread with a thousand of
//! them reads a thousand lines to find nothing. The rings of a group share a *tail array*: a registered
//! region in which their tails are packed, eight to a line. The greeting tells each sender the address of
//! its word. A look for new messages reads an eighth of the lines, and no ring. The rings also share one
//! completion queue and, in [`Mode::Notify`](crate::Mode::Notify), one completion channel: one descriptor
//! to sleep on, however many rings there are.
//!
//! The group hands out messages in rounds. A round begins with a look at the tail array. Every ring in
//! which there is something then has one turn of at most [`GroupConfig::quantum`] messages. A message that
//! is there when a round begins is handed out in that round or, if its ring has earlier messages, after as
//! many turns of that ring as those need. A ring that is always full makes the others wait for a quantum
//! of its messages a round, no longer.
//!
//! A ring that breaks does not disturb the others. The group hands out what was published before; then
//! [`Group::try_recv`] reports once which ring is broken, and why. The ring stays in the group until it is
//! [removed](Group::remove).
//!
//! The senders of one group are not isolated from each other: they trust each other, as they trust the
//! receiver. Every sender has the key of the whole tail array, and can write the tails of all. A sender
//! that does so breaks a ring, or makes it hand out what lies in that ring's array. The rings of a group
//! also share a protection domain, so a sender that guesses the key of another's array can write messages
//! there. Put senders that do not trust each other into groups of their own.
//!
//! # Rings that cross each other
//!
//! Two rings that cross (requests one way, answers the other) can stop each other: each sender waits for
//! space that the other thread would announce if it were not itself waiting. Put such rings into one
//! group, and step the group whenever a ring is full or empty.

mod config;
pub mod drr;
mod members;
mod membership;
mod out_of_order;
mod tail_array;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{Completion, CompletionQueue, Device, PollError, Qpn};

use crate::error::RingError;
use crate::receiver::{FoundMessage, Message, Receiver};
use crate::sender::Sender;
use crate::setup::SetupError;
pub use config::GroupConfig;
use drr::DeficitRoundRobin;
pub use members::{BrokenRing, RingId};
use members::{EndKind, Members};
pub use membership::Membership;
pub use out_of_order::OutOfOrder;
pub(crate) use tail_array::TailWord;
use tail_array::{TailArray, TailWordClaim};

/// Completions taken per poll.
const BATCH: usize = 64;
/// Most batches that one look takes.
const BATCHES: usize = 16;
/// Number of rings of the tail array whose queue pair one step checks. A round in which something is
/// received checks one.
const LOOKS: usize = 8;

/// What a thread does after [`Group::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AfterStep {
    /// The thread polls again at once, so free slots may be announced later, in batches.
    Poll,
    /// The thread waits, so everything that the other ends could wait for is announced now.
    Wait,
}

/// The rings of one thread.
///
/// - *Making*: [`Group::receiving`] makes a group that receives from many; [`Group::default`] makes one
///   for rings that are made elsewhere.
/// - *Joining and leaving*: [`Group::seat`] makes a receiving end, which is connected like any other;
///   [`Group::admit`] then adds it. [`Group::add_receiver`] and [`Group::add_sender`] add ends that are
///   connected already. [`Group::remove`] removes a receiving ring.
/// - *Receiving*: [`Group::try_recv`] receives from all rings in turn.
/// - *Driving*: call [`Group::step`] whenever there was nothing to receive or no room to send.
/// - *Sleeping*: call [`Group::arm`], then [`Group::step`] with `will_wait`. If that returns false, wait on
///   [`Group::fd`], and then call [`Group::drain_events`].
///
/// ```
/// use headworks_ring::{Group, GroupConfig, RingConfig, SenderSetup};
/// use headworks_verbs::{Provider, bringup::BringUp};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let registry = headworks_shm::Registry::open_at(dir.path().join("registry"))?;
/// # let provider = headworks_softnic::SoftProvider::on(registry);
/// let (here, there) = (provider.open(&"soft:h1".parse()?)?, provider.open(&"soft:h2".parse()?)?);
/// let config = RingConfig::variable(128, 64);
/// let mut group = Group::receiving(&there, &GroupConfig::new(config.clone(), 1000))?;
///
/// let mut senders = Vec::new();
/// for number in 0..3 {
///     let mut tx = SenderSetup::new(&here, &config)?;
///     let mut seat = group.seat()?;
///     // What the two ends tell each other goes over any byte stream; here from hand to hand.
///     let (tuning, hello) = (tx.connection_params(), tx.greeting());
///     let mut a = BringUp::start(here.info(), tx.queue_pair(), tuning, 1, hello)?;
///     let (tuning, hello) = (seat.connection_params(), seat.greeting());
///     let mut b = BringUp::start(there.info(), seat.queue_pair(), tuning, 2, hello)?;
///     a.connect_both(tx.queue_pair(), &mut b, seat.queue_pair())?;
///     let mut tx = tx.finish(&a.peer().ok_or("no peer")?.payload)?;
///     let ring = group.admit(seat, &b.peer().ok_or("no peer")?.payload)?;
///     assert_eq!(ring.index(), number);
///
///     tx.try_send(format!("from weir {number}").as_bytes())?;
///     tx.flush()?;
///     senders.push(tx);
/// }
/// for number in 0..3 {
///     let (ring, message) = group.try_recv()?.ok_or("nothing came")?;
///     assert_eq!(ring.index(), number);
///     assert_eq!(*message, *format!("from weir {number}").as_bytes());
/// }
/// assert!(group.try_recv()?.is_none());
/// # Ok(())
/// # }
/// ```
pub struct Group {
    /// Receivers: those with a word of the tail array at its index, the others at higher indices.
    receivers: Members<GroupReceiver>,
    senders: Members<Sender>,
    /// Receivers without a word of the tail array. The group looks at each of them.
    apart: Vec<u32>,
    drr: DeficitRoundRobin,
    /// Rings whose heads may have moved since the group last pushed them.
    drained: Vec<u32>,
    /// Whether messages were handed out since completions were last taken.
    busy: bool,
    /// Index of the ring whose queue pair was checked last. The next check is of the one after it.
    next_look: usize,
    /// Index of the ring whose completions carry the QPN.
    by_qpn: HashMap<Qpn, u32>,
    /// QPN of the latest end at each index of the tail array.
    qpns: Vec<Qpn>,
    /// Completions of ends that are connected and not admitted yet.
    early: Vec<Completion>,
    /// Buffer for polled completions.
    completions: Vec<Completion>,
    tail_array: Option<TailArray>,
    /// Error with which the completion queue failed; it can no longer be polled.
    failed: Option<PollError>,
    /// Fork generation of the process that made the group.
    made: ForkGeneration,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            receivers: Members::behind(0, EndKind::Receivers),
            senders: Members::behind(0, EndKind::Senders),
            apart: Vec::new(),
            drr: DeficitRoundRobin::default(),
            drained: Vec::new(),
            busy: false,
            next_look: 0,
            by_qpn: HashMap::new(),
            qpns: Vec::new(),
            early: Vec::new(),
            completions: Vec::new(),
            tail_array: None,
            failed: None,
            made: ForkGeneration::current(),
        }
    }
}

/// A receiver of a group.
struct GroupReceiver {
    // Dropped before the claim: the queue pair must be gone before another ring may use the word.
    receiver: Receiver,
    claim: Option<TailWordClaim>,
    /// Whether the ring is in the group's `drained`.
    drained: bool,
}

impl GroupReceiver {
    /// Adds the ring at `index` to the group's `drained`, unless it is there.
    #[inline(always)]
    fn list_in(&mut self, drained: &mut Vec<u32>, index: u32) {
        if !std::mem::replace(&mut self.drained, true) {
            drained.push(index);
        }
    }
}

impl Group {
    /// Makes a group that receives on `device`. It has no rings yet.
    pub fn receiving(device: &Arc<dyn Device>, config: &GroupConfig) -> Result<Self, SetupError> {
        let tail_array = TailArray::new(device, config)?;
        Ok(Self {
            receivers: Members::behind(config.capacity as u32, EndKind::Receivers),
            drr: DeficitRoundRobin::new(config.quantum),
            tail_array: Some(tail_array),
            ..Self::default()
        })
    }

    /// Makes a receiving end with a word of the tail array, to be connected to a
    /// [`SenderSetup`](crate::SenderSetup) and admitted. Returns [`SetupError::GroupFull`] if all words are
    /// taken, and [`SetupError::Ring`] if the group can serve no new ring any more.
    pub fn seat(&mut self) -> Result<Membership, SetupError> {
        self.usable()?;
        let tail_array = self.tail_array.as_mut().ok_or(SetupError::NoTailArray)?;
        let (claim, mut end) = tail_array.place()?;
        let qpn = end.queue_pair().qpn();
        let everything = tail_array.cq.depth() as usize / BATCH + 1;
        self.expect_completions(claim.index, qpn, everything);
        Ok(Membership { end, claim })
    }

    /// Returns an error if the group can serve no new ring any more.
    fn usable(&self) -> Result<(), RingError> {
        if self.made.is_foreign() {
            return Err(RingError::Forked);
        }
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Assigns the completions of `qpn`, which is not connected yet, to the end at `index` from now on.
    /// Drops earlier completions that carry this number: they are of an earlier queue pair. `everything` is
    /// the number of batches that empties the completion queue.
    fn expect_completions(&mut self, index: u32, qpn: Qpn, everything: usize) {
        let at = index as usize;
        if at >= self.qpns.len() {
            self.qpns.resize(at + 1, Qpn::default());
        }
        let before = std::mem::replace(&mut self.qpns[at], qpn);
        if self.by_qpn.get(&before) == Some(&index) {
            self.by_qpn.remove(&before);
        }
        self.by_qpn.remove(&qpn);
        self.take_completions(everything);
        self.by_qpn.insert(qpn, index);
        self.early
            .retain(|early| early.qpn != qpn && self.by_qpn.contains_key(&early.qpn));
    }

    /// Adds an end that [`Group::seat`] made and that is connected. `payload` is the other end's greeting.
    pub fn admit(&mut self, seat: Membership, payload: &[u8]) -> Result<RingId, SetupError> {
        // If a step below fails, the queue pair must go before the word: last declared, first dropped.
        let Membership { claim, end } = seat;
        self.usable()?;
        let tail_array = self.tail_array.as_ref().ok_or(SetupError::NoTailArray)?;
        if !claim.is_of(tail_array) {
            return Err(SetupError::OtherGroup);
        }
        let index = claim.index;
        let receiver = end.finish(payload)?;
        let qpn = receiver.qpn();
        let seated = GroupReceiver {
            receiver,
            claim: Some(claim),
            drained: false,
        };
        let id = self.receivers.put(index, seated);
        let early = std::mem::take(&mut self.early);
        let (ours, others) = early.into_iter().partition(|one| one.qpn == qpn);
        self.early = others;
        let ours: Vec<Completion> = ours;
        for completion in &ours {
            self.hand_over(completion);
        }
        // Its tail may have come, and been looked at, before it was admitted.
        self.drr.call(index);
        Ok(id)
    }

    /// Adds a receiving end that was made elsewhere and whose tail has its own cache line: for rings in
    /// latency mode, rings on other devices, or a few rings. Every round and every step looks at it.
    pub fn add_receiver(&mut self, receiver: Receiver) -> RingId {
        let seated = GroupReceiver {
            receiver,
            claim: None,
            drained: false,
        };
        let id = self.receivers.push(seated);
        self.apart.push(id.index);
        id
    }

    /// Adds a sending end.
    pub fn add_sender(&mut self, sender: Sender) -> RingId {
        self.senders.push(sender)
    }

    /// Removes a receiving ring. Drops it with the messages that were not handed out; its sender finds it
    /// gone. Returns whether there was one.
    pub fn remove(&mut self, ring: RingId) -> bool {
        let Some(mut seated) = self.receivers.take(ring) else {
            return false;
        };
        self.drr.forget(ring.index);
        self.apart.retain(|index| *index != ring.index);
        self.drained.retain(|index| *index != ring.index);
        self.by_qpn.remove(&seated.receiver.qpn());
        if let Some(claim) = &mut seated.claim {
            claim.consumed(seated.receiver.consumed());
        }
        true
    }

    /// Removes a sending end, and returns it.
    pub fn remove_sender(&mut self, ring: RingId) -> Option<Sender> {
        self.senders.take(ring)
    }

    /// Returns the next message, from the ring whose turn it is, where it lies. Dropping it releases its
    /// slots. An error is about one ring; call again for the others.
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<(RingId, Message<'_>)>, BrokenRing> {
        let Some((index, found)) = self.find()? else {
            return Ok(None);
        };
        Ok(self
            .receivers
            .at(index)
            .map(|(id, seated)| (id, seated.receiver.lend(found))))
    }

    /// Finds the next message: in the rest of this round, then in another one.
    #[inline]
    fn find(&mut self) -> Result<Option<(u32, FoundMessage)>, BrokenRing> {
        let mut looked = false;
        loop {
            while let Some(index) = self.drr.current() {
                let Some((_, seated)) = self.receivers.at(index) else {
                    self.drr.exhausted();
                    continue;
                };
                match seated.receiver.look() {
                    Ok(Some(found)) => {
                        seated.list_in(&mut self.drained, index);
                        self.busy = true;
                        self.drr.served();
                        return Ok(Some((index, found)));
                    }
                    Ok(None) => {
                        // The receiver may have passed over a skip.
                        if seated.receiver.has_unpushed() {
                            seated.list_in(&mut self.drained, index);
                        }
                        self.drr.exhausted();
                    }
                    // No ring is broken: the group is the parent's, which the check below reports.
                    Err(RingError::Forked) if self.made.is_foreign() => self.drr.exhausted(),
                    Err(error) => {
                        self.drr.exhausted();
                        if let Some(ring) = self.receivers.told(index) {
                            return Err(BrokenRing { ring, error });
                        }
                    }
                }
            }
            if looked {
                return Ok(None);
            }
            looked = true;
            self.own()?;
            self.look_around();
            if !self.drr.begin() {
                return Ok(None);
            }
        }
    }

    /// Returns an error in a forked child, because the group is the parent's. The error names any ring.
    fn own(&self) -> Result<(), BrokenRing> {
        if !self.made.is_foreign() {
            return Ok(());
        }
        let ring = self.receivers.any().or_else(|| self.senders.any());
        Err(BrokenRing {
            ring: ring.unwrap_or(RingId::NONE),
            error: RingError::Forked,
        })
    }

    /// Queues the rings in which there may be something.
    fn look_around(&mut self) {
        let Some(tail_array) = &mut self.tail_array else {
            return self.call_those_apart();
        };
        let sleeps = tail_array.sleeps;
        if sleeps {
            self.take_completions(BATCHES);
        } else {
            let drr = &mut self.drr;
            tail_array.look(|index| drr.call(index));
        }
        // Completions of pushed heads are taken here too, and queue pairs checked: a group that is never
        // empty is never stepped.
        if std::mem::take(&mut self.busy) {
            if !sleeps {
                self.take_completions(BATCHES);
            }
            self.look_at_queue_pairs(1);
        }
        self.call_those_apart();
    }

    fn call_those_apart(&mut self) {
        for &index in &self.apart {
            if !self.receivers.is_told(index) {
                self.drr.call(index);
            }
        }
    }

    /// Takes completions, at most `batches` batches, and hands each to its ring. Returns whether there may
    /// be more.
    fn take_completions(&mut self, batches: usize) -> bool {
        let Some(tail_array) = &self.tail_array else {
            return false;
        };
        let cq = tail_array.cq.clone();
        let mut completions = std::mem::take(&mut self.completions);
        completions.resize(BATCH, Completion::default());
        let more = self.take_into(&mut completions, &*cq, batches);
        self.completions = completions;
        more
    }

    fn take_into(
        &mut self,
        completions: &mut [Completion],
        cq: &dyn CompletionQueue,
        batches: usize,
    ) -> bool {
        for _ in 0..batches {
            match cq.poll(completions) {
                Ok(count) => {
                    for completion in &completions[..count] {
                        self.hand_over(completion);
                    }
                    if count < BATCH {
                        return false;
                    }
                }
                Err(error) => {
                    // No ring gets completions any more.
                    self.failed = Some(error);
                    for index in self.receivers.indices() {
                        if !self.receivers.is_told(index)
                            && let Some((_, seated)) = self.receivers.at(index)
                            && seated.claim.is_some()
                        {
                            seated.receiver.fail(error.into());
                            self.drr.call(index);
                        }
                    }
                    return false;
                }
            }
        }
        true
    }

    fn hand_over(&mut self, completion: &Completion) {
        // A completion of a ring that was removed is dropped.
        let Some(&index) = self.by_qpn.get(&completion.qpn) else {
            return;
        };
        match self.receivers.at(index) {
            Some((_, seated)) if seated.receiver.qpn() == completion.qpn => {
                if seated.receiver.hand_over(completion) {
                    self.drr.call(index);
                }
            }
            // The ring has not been admitted yet.
            _ => self.early.push(*completion),
        }
    }

    /// Publishes all tails, takes completions, and checks some queue pairs, different ones each time. Pushes
    /// all heads if a ring that the group sends on is full, or if the thread waits next. A thread that has
    /// nothing to send or receive must call it, after every [`SendError::Full`](crate::SendError::Full) and
    /// every empty receive.
    ///
    /// Returns whether something changed or messages may be waiting. An error is about one sender, and is
    /// reported once. [`Group::try_recv`] reports broken receivers.
    pub fn step(&mut self, next: AfterStep) -> Result<bool, BrokenRing> {
        self.own()?;
        let (mut changed, mut full, mut broken) = (false, false, None);
        for index in self.senders.indices() {
            let Some((ring, sender)) = self.senders.at(index) else {
                continue;
            };
            match sender.step() {
                Ok(more) => {
                    changed |= more;
                    full |= sender.is_full();
                }
                Err(error) if broken.is_none() && self.senders.told(index).is_some() => {
                    broken = Some(BrokenRing { ring, error });
                }
                Err(_) => {}
            }
        }
        // Completions left in the queue raise no further event: a thread that slept now would not wake.
        changed |= self.take_completions(BATCHES);
        self.busy = false;
        // After the completions, because they make the room in the send queues that heads need.
        if full || next == AfterStep::Wait {
            self.push_heads();
        }
        self.look_at_queue_pairs(LOOKS);
        for at in 0..self.apart.len() {
            self.tend(self.apart[at], true);
        }
        match broken {
            Some(broken) => Err(broken),
            None => Ok(changed || self.drr.is_waited_for()),
        }
    }

    /// Pushes the heads of all rings that may have moved.
    fn push_heads(&mut self) {
        for index in std::mem::take(&mut self.drained) {
            let Some((_, seated)) = self.receivers.at(index) else {
                continue;
            };
            // A ring that breaks here is reported when the group next looks at it.
            match seated.receiver.push_head() {
                Ok(true) => seated.drained = false,
                Ok(false) => self.drained.push(index),
                Err(_) => {
                    seated.drained = false;
                    self.drr.call(index);
                }
            }
        }
    }

    /// Checks the queue pairs of up to `count` rings of the tail array, in turn.
    fn look_at_queue_pairs(&mut self, count: usize) {
        let all = self.receivers.indices().len();
        for _ in 0..count.min(all) {
            self.next_look = (self.next_look + 1) % all;
            let index = self.next_look as u32;
            self.tend(index, false);
        }
    }

    fn tend(&mut self, index: u32, apart: bool) {
        if self.receivers.is_told(index) {
            return;
        }
        if let Some((_, seated)) = self.receivers.at(index)
            && seated.claim.is_none() == apart
            && !matches!(seated.receiver.step(), Ok(false))
        {
            self.drr.call(index);
        }
    }

    /// Lends a receiving ring, to take messages out of order or to query it.
    pub fn receiver(&mut self, ring: RingId) -> Option<OutOfOrder<'_>> {
        let seated = self.receivers.get(ring)?;
        // The head must be pushed for what the caller releases there, too.
        seated.list_in(&mut self.drained, ring.index);
        Some(OutOfOrder(&mut seated.receiver))
    }

    /// Lends a ring to send on.
    pub fn sender(&mut self, ring: RingId) -> Option<&mut Sender> {
        self.senders.get(ring)
    }

    /// Number of rings that the group receives from, including broken ones.
    pub fn len(&self) -> usize {
        self.receivers.len()
    }

    /// Returns whether the group receives from no ring.
    pub fn is_empty(&self) -> bool {
        self.receivers.len() == 0
    }

    /// Returns whether [`Group::seat`] has a word left.
    pub fn has_room(&self) -> bool {
        self.tail_array.as_ref().is_some_and(TailArray::has_room)
    }

    /// Descriptor that is readable when something may have come to any ring of the tail array, after
    /// [`Group::arm`]. `None` unless the group can sleep ([`Mode::Notify`](crate::Mode::Notify)). Rings that
    /// were made elsewhere have descriptors of their own: [`Group::receiver`] lends such a ring.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let channel = self.tail_array.as_ref()?.channel.as_ref();
        channel.map(|channel| channel.fd())
    }

    /// Arms the descriptor: the next event makes it readable. Call [`Group::step`] once more before sleeping.
    pub fn arm(&mut self) {
        if let Some(tail_array) = &self.tail_array
            && !self.made.is_foreign()
        {
            tail_array.cq.arm(false);
        }
    }

    /// Takes the events that made the descriptor readable.
    pub fn drain_events(&mut self) {
        // In a forked child the events are the parent's, like everything else.
        if self.made.is_foreign() {
            return;
        }
        if let Some(channel) = self
            .tail_array
            .as_ref()
            .and_then(|tail_array| tail_array.channel.as_ref())
        {
            while let Ok(Some(_)) = channel.next_event() {}
        }
    }
}

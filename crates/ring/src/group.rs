//! Rings that one thread serves together: it receives from many, and sends on some.
//!
//! # Receiving from many
//!
//! A [`Receiver`] by itself polls its own tail's cache line, so that a thread with a thousand of them
//! reads a thousand lines to find nothing. The rings of a group have a *board* in common: a registered region
//! in which their tails are packed, eight to a line, and where the greeting tells each sender its
//! word. Looking for something to do reads an eighth of the lines and no ring. The rings also share one
//! completion queue and, in [`Mode::Notify`](crate::Mode::Notify), one completion channel: one descriptor
//! to sleep on, whatever their number.
//!
//! Messages are handed out in rounds. A round begins with a look at the board; every ring in which there
//! is something then has one turn of at most [`GroupConfig::quantum`] messages. So a message that is
//! there when a round begins is handed out in that round, or, in the order of its ring, after as many
//! turns of that ring as are in front of it; a ring that is always full makes the others wait for a
//! quantum of its messages a round, no longer.
//!
//! A ring that breaks does not disturb the others. What was published before is handed out, then
//! [`Group::try_recv`] says once that it is broken, and which; it stays until it is
//! [removed](Group::remove).
//!
//! There is no isolation between the senders of one group: they trust each other, as they trust the receiver.
//! Every one of them has the key of the whole board, and can write the tails of all; one that does so breaks
//! a ring, or makes it hand out what lies in that ring's array. And since the rings of a group share
//! a protection domain, one that guesses the key of another's array can write messages there too. Senders that
//! do not trust each other go into groups of their own.
//!
//! # Rings that cross each other
//!
//! Two rings that cross (requests one way, answers the other) can stop each other: each sender waits
//! for space that the other thread would announce if it were not itself waiting. Such rings belong to
//! one group, and whoever finds a ring Full or Empty steps the group.

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

/// Completions taken at a time.
const BATCH: usize = 64;
/// Batches that one look takes at most.
const BATCHES: usize = 16;
/// Queue pairs of the board that one step looks at; a round in which something is received, at one.
const LOOKS: usize = 8;

/// The rings of one thread.
///
/// - *Making*: [`Group::receiving`] for a group that receives from many, [`Group::default`] for one
///   of rings that are made elsewhere.
/// - *Joining and leaving*: [`Group::seat`] makes a receiving end, which is connected as any other;
///   [`Group::admit`] then takes it in. [`Group::add_receiver`] and [`Group::add_sender`] take ends
///   that are connected already. [`Group::remove`] ends with one.
/// - *Receiving*: [`Group::try_recv`], from all of them in turn.
/// - *Driving*: [`Group::step`], whenever there was nothing to receive or no room to send.
/// - *Sleeping*: [`Group::arm`], then [`Group::step`] with `will_wait`, and if that says that there is
///   nothing, wait on [`Group::fd`]; then [`Group::drain_events`].
///
/// ```
/// use headworks_ring::{Group, GroupConfig, RingConfig, SenderSetup};
/// use headworks_verbs::{Provider, bringup::BringUp};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let fabric = headworks_shm::Registry::open_at(dir.path().join("fabric"))?;
/// # let provider = headworks_softnic::SoftProvider::on(fabric);
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
    /// Those on the board at the index of their word, others behind.
    receivers: Members<GroupReceiver>,
    senders: Members<Sender>,
    /// Receivers that are not on the board, and are looked at one by one.
    apart: Vec<u32>,
    rota: DeficitRoundRobin,
    /// Rings that gave messages since all heads were pushed.
    drained: Vec<u32>,
    /// Messages were handed out since completions were taken.
    busy: bool,
    /// The next whose queue pair a step looks at.
    next_look: usize,
    /// Whose completions have this QPN.
    by_qpn: HashMap<Qpn, u32>,
    /// The QPN of the latest end at each index of the board.
    qpns: Vec<Qpn>,
    /// Completions of ends that are connected and not admitted yet.
    early: Vec<Completion>,
    /// Where completions are put that are polled.
    completions: Vec<Completion>,
    board: Option<TailArray>,
    /// The completion queue can no longer be polled.
    failed: Option<PollError>,
    /// Which process made it.
    made: ForkGeneration,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            receivers: Members::behind(0, EndKind::Receivers),
            senders: Members::behind(0, EndKind::Senders),
            apart: Vec::new(),
            rota: DeficitRoundRobin::default(),
            drained: Vec::new(),
            busy: false,
            next_look: 0,
            by_qpn: HashMap::new(),
            qpns: Vec::new(),
            early: Vec::new(),
            completions: Vec::new(),
            board: None,
            failed: None,
            made: ForkGeneration::current(),
        }
    }
}

/// A receiver of a group.
struct GroupReceiver {
    // The queue pair goes before the word may be another's.
    receiver: Receiver,
    claim: Option<TailWordClaim>,
    /// It is among those that gave messages.
    drained: bool,
}

impl Group {
    /// A group that receives on `device`, without rings so far.
    pub fn receiving(device: &Arc<dyn Device>, config: &GroupConfig) -> Result<Self, SetupError> {
        let board = TailArray::new(device, config)?;
        Ok(Self {
            receivers: Members::behind(config.capacity as u32, EndKind::Receivers),
            rota: DeficitRoundRobin::new(config.quantum),
            board: Some(board),
            ..Self::default()
        })
    }

    /// A receiving end with a word of the board, to be connected to a [`SenderSetup`](crate::SenderSetup)
    /// and admitted. [`SetupError::GroupFull`] if all words are taken; [`SetupError::Ring`] where none can be
    /// served any more.
    pub fn seat(&mut self) -> Result<Membership, SetupError> {
        self.usable()?;
        let board = self.board.as_mut().ok_or(SetupError::NoBoard)?;
        let (claim, mut end) = board.place()?;
        let qpn = end.queue_pair().qpn();
        let everything = board.cq.depth() as usize / BATCH + 1;
        self.expect_completions(claim.index, qpn, everything);
        Ok(Membership { end, claim })
    }

    /// Whether rings can still be served that are to come.
    fn usable(&self) -> Result<(), RingError> {
        if self.made.is_foreign() {
            return Err(RingError::Forked);
        }
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// From now on completions of `qpn`, which is not connected yet, are those of the end at `index`. What
    /// completed under that number until now is an earlier one's.
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

    /// Takes in an end that was made by [`Group::seat`] and is connected; `payload` is the other end's
    /// greeting.
    pub fn admit(&mut self, seat: Membership, payload: &[u8]) -> Result<RingId, SetupError> {
        // Whatever fails, the queue pair goes before the word: last declared, first dropped.
        let Membership { claim, end } = seat;
        self.usable()?;
        let board = self.board.as_ref().ok_or(SetupError::NoBoard)?;
        if !claim.is_of(board) {
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
        // Its tail may have come before it was admitted, and been looked at.
        self.rota.call(index);
        Ok(id)
    }

    /// Takes in a receiving end that was made elsewhere and has its own tail's line: for rings in
    /// latency mode, on other devices, or few. It is looked at in every round, and by every step.
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

    /// Takes in a sending end.
    pub fn add_sender(&mut self, sender: Sender) -> RingId {
        self.senders.push(sender)
    }

    /// Ends with a receiving ring: drops it, and with it what was not handed out. Its sender finds
    /// it gone. Says whether there was one.
    pub fn remove(&mut self, ring: RingId) -> bool {
        let Some(mut seated) = self.receivers.take(ring) else {
            return false;
        };
        self.rota.forget(ring.index);
        self.apart.retain(|index| *index != ring.index);
        self.drained.retain(|index| *index != ring.index);
        self.by_qpn.remove(&seated.receiver.qpn());
        if let Some(claim) = &mut seated.claim {
            claim.consumed(seated.receiver.consumed());
        }
        true
    }

    /// Gives back a sending end.
    pub fn remove_sender(&mut self, ring: RingId) -> Option<Sender> {
        self.senders.take(ring)
    }

    /// The next message, from whichever ring's turn it is, where it lies; dropping it releases its slots. An error
    /// is about one ring; call again for the others.
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

    /// Looks for a message: in what is left of this round, then in another one.
    #[inline]
    fn find(&mut self) -> Result<Option<(u32, FoundMessage)>, BrokenRing> {
        let mut looked = false;
        loop {
            while let Some(index) = self.rota.current() {
                let Some((_, seated)) = self.receivers.at(index) else {
                    self.rota.exhausted();
                    continue;
                };
                match seated.receiver.look() {
                    Ok(Some(found)) => {
                        if !std::mem::replace(&mut seated.drained, true) {
                            self.drained.push(index);
                        }
                        self.busy = true;
                        self.rota.served();
                        return Ok(Some((index, found)));
                    }
                    Ok(None) => self.rota.exhausted(),
                    // It is no ring that is broken: see where nothing is found.
                    Err(RingError::Forked) if self.made.is_foreign() => self.rota.exhausted(),
                    Err(error) => {
                        self.rota.exhausted();
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
            if !self.rota.begin() {
                return Ok(None);
            }
        }
    }

    /// After a fork the group is the parent's: in the child every call says so, of whichever ring.
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

    /// Calls the rings in which there may be something.
    fn look_around(&mut self) {
        let Some(board) = &mut self.board else {
            return self.call_those_apart();
        };
        let sleeps = board.sleeps;
        if sleeps {
            self.take_completions(BATCHES);
        } else {
            let rota = &mut self.rota;
            board.look(|index| rota.call(index));
        }
        // Heads that were pushed have completed, or have not: a group that is never empty is never
        // stepped.
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
                self.rota.call(index);
            }
        }
    }

    /// Takes completions, so many batches at most, and hands them to the rings that they are of. Says
    /// whether there may be more.
    fn take_completions(&mut self, batches: usize) -> bool {
        let Some(board) = &self.board else {
            return false;
        };
        let cq = board.cq.clone();
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
                    // Nobody's completions come any more.
                    self.failed = Some(error);
                    for index in self.receivers.indices() {
                        if !self.receivers.is_told(index)
                            && let Some((_, seated)) = self.receivers.at(index)
                            && seated.claim.is_some()
                        {
                            seated.receiver.fail(error.into());
                            self.rota.call(index);
                        }
                    }
                    return false;
                }
            }
        }
        true
    }

    fn hand_over(&mut self, completion: &Completion) {
        // One of a ring that was removed is nobody's.
        let Some(&index) = self.by_qpn.get(&completion.qpn) else {
            return;
        };
        match self.receivers.at(index) {
            Some((_, seated)) if seated.receiver.qpn() == completion.qpn => {
                if seated.receiver.hand_over(completion) {
                    self.rota.call(index);
                }
            }
            // Its own has not been admitted.
            _ => self.early.push(*completion),
        }
    }

    /// What a thread that has nothing to send or receive must call: publishes all tails; takes
    /// completions; looks at some queue pairs, others each time; and, if a ring it sends on is full or
    /// the thread will wait now, pushes all heads. Due after every
    /// [`SendError::Full`](crate::SendError::Full) and every empty receive. Says whether something changed
    /// or messages may be waiting. An error is about one sender, and is told once; broken receivers are
    /// told of by [`Group::try_recv`].
    pub fn step(&mut self, will_wait: bool) -> Result<bool, BrokenRing> {
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
        // What is left behind is no event of its own: who sleeps now would not be woken for it.
        changed |= self.take_completions(BATCHES);
        self.busy = false;
        // Behind the completions: they make the room in the send queues that heads need.
        if full || will_wait {
            self.push_heads();
        }
        self.look_at_queue_pairs(LOOKS);
        for at in 0..self.apart.len() {
            self.tend(self.apart[at], true);
        }
        match broken {
            Some(broken) => Err(broken),
            None => Ok(changed || self.rota.is_waited_for()),
        }
    }

    /// Tells every sender how far its ring is released.
    fn push_heads(&mut self) {
        for index in std::mem::take(&mut self.drained) {
            let Some((_, seated)) = self.receivers.at(index) else {
                continue;
            };
            // A ring that breaks says so when it is looked at.
            match seated.receiver.push_head() {
                Ok(true) => seated.drained = false,
                Ok(false) => self.drained.push(index),
                Err(_) => {
                    seated.drained = false;
                    self.rota.call(index);
                }
            }
        }
    }

    /// Looks at the queue pairs of some rings of the board, in turn.
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
            self.rota.call(index);
        }
    }

    /// A receiving ring, to take messages out of order, or to ask.
    pub fn receiver(&mut self, ring: RingId) -> Option<OutOfOrder<'_>> {
        let seated = self.receivers.get(ring)?;
        // What is released there has to be told of as well.
        if !std::mem::replace(&mut seated.drained, true) {
            self.drained.push(ring.index);
        }
        Some(OutOfOrder(&mut seated.receiver))
    }

    /// A ring to send on.
    pub fn sender(&mut self, ring: RingId) -> Option<&mut Sender> {
        self.senders.get(ring)
    }

    /// Rings it receives from, broken ones with them.
    pub fn len(&self) -> usize {
        self.receivers.len()
    }

    /// Whether it receives from none.
    pub fn is_empty(&self) -> bool {
        self.receivers.len() == 0
    }

    /// Whether [`Group::seat`] has a word left.
    pub fn has_room(&self) -> bool {
        self.board.as_ref().is_some_and(TailArray::has_room)
    }

    /// Readable when something may have come to any ring of the board, after [`Group::arm`]. `None`
    /// unless the group was made to sleep on ([`Mode::Notify`](crate::Mode::Notify)). Rings that were
    /// made elsewhere have descriptors of their own: [`Group::receiver`] lends them, to arm and to ask.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let channel = self.board.as_ref()?.channel.as_ref();
        channel.map(|channel| channel.fd())
    }

    /// Asks for the descriptor to become readable; [`Group::step`] once more before sleeping.
    pub fn arm(&mut self) {
        if let Some(board) = &self.board
            && !self.made.is_foreign()
        {
            board.cq.arm(false);
        }
    }

    /// Takes the events that made the descriptor readable.
    pub fn drain_events(&mut self) {
        // The events are the parent's as the rest.
        if self.made.is_foreign() {
            return;
        }
        if let Some(channel) = self.board.as_ref().and_then(|board| board.channel.as_ref()) {
            while let Ok(Some(_)) = channel.next_event() {}
        }
    }
}

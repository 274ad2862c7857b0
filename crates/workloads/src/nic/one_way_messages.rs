//! One-way messages of 64 bytes, by two paths that differ in nothing else: WRITEs into memory that the
//! receiver polls, and SENDs into receives that it posts to an SRQ.
//!
//! With both, the sender writes the first and the last word of a slot in its own registered memory and posts
//! it, one request per call or a chain of them. One of [`SIGNAL_EVERY`] requests is signalled. At most
//! [`DEPTH`] messages are outstanding: the receiver WRITEs its head back every [`PUSH_EVERY`] messages. The
//! receiver checks the first and the last word of every message in place.

use std::sync::atomic::Ordering;

use headworks::verbs::{Completion, Opcode};
use headworks_baselines::WordMemory;

use super::endpoint::acting;
use super::rate_meter::RateMeter;
use super::requester::{Requester, polled, shape};
use super::{Made, MessagePath, Setup, Verb, VerbLoad, bad_chain};
use crate::actor_pair::{PairMail, Role, wait};
use crate::error::{Result, WorkloadError};
use crate::report::Report;
use headworks_runtime::Step;

/// Length of a message, in bytes.
pub const SIZE: usize = 64;
/// Maximum number of messages outstanding: slots of the polled memory, or receives in the SRQ.
pub const DEPTH: usize = 128;
/// One of this many requests is signalled.
pub const SIGNAL_EVERY: u64 = 32;
/// The receiver sends its head after this many messages.
pub const PUSH_EVERY: u64 = DEPTH as u64 / 4;

/// Offset of a message's last word.
const LAST: usize = SIZE - 8;
/// Attempts per step.
const TRIES: usize = 256;

/// Makes the actor for the pair's role.
pub(super) fn part(way: MessagePath, chain: usize, setup: &Setup<'_>) -> Made {
    match chain {
        1 => part_of::<1>(way, setup),
        16 => part_of::<16>(way, setup),
        _ => Err(bad_chain(chain)),
    }
}

fn part_of<const CHAIN: usize>(way: MessagePath, setup: &Setup<'_>) -> Made {
    let (verb, receives) = match way {
        MessagePath::PolledMemory => (Verb::Write, 0),
        MessagePath::SharedReceives => (Verb::Send, DEPTH as u32),
    };
    let mut shape = shape(1, 2 * DEPTH as u32);
    let mut load = VerbLoad::of(verb, SIZE);
    if setup.pair.role == Role::Receiver {
        shape.shared_receives = receives;
        // The receiver posts only its head.
        (load.verb, load.inline) = (Verb::Write, true);
    }
    let mut source = setup.source(load, &shape, DEPTH * SIZE)?;
    let promised = source.end.device.info().promises.in_order_within_write;
    if way == MessagePath::PolledMemory && (promised as usize) < SIZE {
        return Err(WorkloadError(format!(
            "the device places {promised} bytes of a WRITE in order, polling its last word needs {SIZE}"
        )));
    }
    match setup.pair.role {
        Role::Sender => {
            let head = source.end.memory(SIZE)?;
            let offered = head.region().remote(0);
            source.connect(offered, |source| sender::<CHAIN>(source, head))
        }
        Role::Receiver => {
            let meter = RateMeter::new(setup.task, 2 * DEPTH as u64);
            for slot in 0..DEPTH as u64 {
                source.receive::<1>(&[slot], place)?;
            }
            source.bytes.truncate(8);
            let offered = source.offer(0);
            source.connect(offered, |source| receiver::<CHAIN>(source, meter))
        }
    }
}

/// Returns the offset of message `number`, or of the receive with that identifier.
#[inline(always)]
fn place(number: u64) -> usize {
    number as usize % DEPTH * SIZE
}

/// Makes the actor that sends until the receiver has enough.
fn sender<const CHAIN: usize>(source: Requester, head: WordMemory) -> Made {
    let (next, taken, mut stopped) = (0, 0, false);
    let mut sender = Sender::<CHAIN> {
        source,
        head,
        next,
        taken,
    };
    acting(move |cx| {
        let mail = cx.receive_mail();
        if stopped {
            // Polling makes progress on requests that wait.
            sender.source.completed()?;
            return match mail {
                Some(_) => cx.done(&Report::None),
                None => Ok(wait()),
            };
        }
        if mail.is_some() {
            cx.send_mail(&sender.next.to_le_bytes())?;
            stopped = true;
            return Ok(Step::Again);
        }
        for _ in 0..TRIES {
            if !sender.send()? {
                std::hint::spin_loop();
            }
        }
        Ok(Step::Again)
    })
}

struct Sender<const CHAIN: usize> {
    source: Requester,
    /// The receiver stores here how many messages it has taken.
    head: WordMemory,
    next: u64,
    taken: u64,
}

impl<const CHAIN: usize> Sender<CHAIN> {
    /// Sends a chain if there is room for it.
    #[inline(always)]
    fn send(&mut self) -> Result<bool> {
        let first = self.next;
        let room = |taken: u64| first + CHAIN as u64 - taken <= DEPTH as u64;
        if !room(self.taken) {
            let taken = self.head.word(0).load(Ordering::Acquire);
            if taken < self.taken || taken > first {
                return Err(WorkloadError(format!(
                    "a head of {taken} after {first} messages"
                )));
            }
            self.taken = taken;
            if !room(taken) {
                return Ok(false);
            }
        }
        self.next += CHAIN as u64;
        for number in first..self.next {
            let word = |offset| self.source.memory.word(place(number) + offset);
            word(0).store(number, Ordering::Relaxed);
            word(LAST).store(number + 1, Ordering::Relaxed);
        }
        let is_signalled = |number: u64| (number + 1).is_multiple_of(SIGNAL_EVERY);
        self.source.post::<CHAIN>(0, first, place, is_signalled)?;
        if self.next % SIGNAL_EVERY < CHAIN as u64 {
            self.source.completed()?;
        }
        Ok(true)
    }
}

/// Makes the actor that receives and measures.
fn receiver<const CHAIN: usize>(source: Requester, mut meter: RateMeter) -> Made {
    let mut receiver = Receiver::<CHAIN> {
        source,
        next: 0,
        pushed: 0,
        pushes: 0,
    };
    // Whether the measured time is over, and how many messages the sender says that it sent.
    let (mut is_over, mut total) = (false, None);
    acting(move |cx| {
        for _ in 0..TRIES {
            if receiver.take()? == 0 {
                std::hint::spin_loop();
            }
        }
        if !is_over {
            is_over = meter.count(receiver.next, cx);
            if is_over {
                cx.send_mail(b"enough")?;
            }
            return Ok(Step::Again);
        }
        if let (None, Some(mail)) = (total, cx.receive_mail()) {
            total = Some(super::number(mail)?);
        }
        if total != Some(receiver.next) {
            return Ok(Step::Again);
        }
        cx.send_mail(b"taken")?;
        cx.done(&meter.report())
    })
}

struct Receiver<const CHAIN: usize> {
    /// Its memory is polled or received into.
    source: Requester,
    next: u64,
    pushed: u64,
    pushes: u64,
}

impl<const CHAIN: usize> Receiver<CHAIN> {
    /// Takes the messages that are there, up to a chain. Returns how many.
    #[inline(always)]
    fn take(&mut self) -> Result<usize> {
        let taken = match self.source.end.srq {
            None => self.look()?,
            Some(_) => self.receive()?,
        };
        if self.next - self.pushed >= PUSH_EVERY {
            self.push()?;
        }
        Ok(taken)
    }

    /// Takes messages by polling the memory.
    #[inline(always)]
    fn look(&mut self) -> Result<usize> {
        for taken in 0..CHAIN {
            let last = self.source.memory.word(place(self.next) + LAST);
            if last.load(Ordering::Acquire) != self.next + 1 {
                return Ok(taken);
            }
            self.check(place(self.next))?;
        }
        Ok(CHAIN)
    }

    /// Takes messages by polling the CQ, and posts the receives again.
    #[inline(always)]
    fn receive(&mut self) -> Result<usize> {
        let mut found = [Completion::default(); CHAIN];
        let count = polled(&*self.source.end.recv_cq, &mut found)?.len();
        if count == 0 {
            return Ok(0);
        }
        for completion in &found[..count] {
            if completion.opcode != Opcode::Recv || completion.byte_len as usize != SIZE {
                return Err(WorkloadError(format!("a receive ended as {completion:?}")));
            }
            self.check(place(completion.wr_id))?;
        }
        let ids = found.map(|completion| completion.wr_id);
        self.source.receive::<CHAIN>(&ids[..count], place)?;
        Ok(count)
    }

    /// Checks the next message, in the slot at `place`.
    #[inline(always)]
    fn check(&mut self, place: usize) -> Result<()> {
        let word = |offset| self.source.memory.word(place + offset);
        let [first, last] = [0, LAST].map(|offset| word(offset).load(Ordering::Relaxed));
        if first != self.next || last != self.next + 1 {
            let number = self.next;
            return Err(WorkloadError(format!(
                "message {number} reads {first} and {last}"
            )));
        }
        self.next += 1;
        Ok(())
    }

    /// WRITEs the head to the sender: how many messages this end has taken.
    fn push(&mut self) -> Result<()> {
        self.pushes += 1;
        let signalled = self.pushes.is_multiple_of(SIGNAL_EVERY);
        let head = &mut self.source.bytes;
        head.copy_from_slice(&self.next.to_ne_bytes());
        self.source
            .post::<1>(0, self.pushes, |_| 0, |_| signalled)?;
        self.pushed = self.next;
        if signalled {
            self.source.completed()?;
        }
        Ok(())
    }
}

//! One-sided requests of one caller: which comes next, whether its answer is right, and how many ended. The same in both
//! worlds, whatever carries them; and what carries them on real daemons and devices.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::ops::Range;

use headworks::net::clock;
use headworks::service::{RemoteOperation, Service, SharedMemory, Stream};
use headworks::verbs::{Completion, Instant, RemoteAddr, SendOp};
use serde::{Deserialize, Serialize};

use super::Result;
use super::native_verbs::{Native, line, open, shape};
use super::servers::ConnectionPurpose;
use crate::error::WorkloadError;
use crate::latency::Histogram;
use crate::random::{Random, mix};

/// From this size on one word in so many bytes of an answer is checked.
const SAMPLED: usize = 4096;
/// Bytes between two counters: each has a cache line of its own.
const WORD_APART: u64 = 64;

/// What callers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OneSidedOp {
    /// READs at random places of memory of another host's.
    Reads {
        /// Bytes of each, a multiple of 8.
        bytes: usize,
        /// Bytes of the memory of each host, a multiple of that.
        region: usize,
    },
    /// 1 is added to one of so many words, which is drawn.
    Adds {
        /// Words of each host.
        words: usize,
    },
    /// Messages there and back, by one caller over one connection, one at a time. Over the service alone.
    Messages {
        /// Bytes of each.
        bytes: usize,
    },
}

/// What callers of one host do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneSidedLoad {
    /// What they ask for.
    pub what: OneSidedOp,
    /// Callers: threads, each with a core of its own as long as there are any. One on real daemons and devices.
    pub callers: usize,
    /// Connections in all, or queue pairs where callers have their own: a multiple of the callers.
    pub connections: usize,
    /// Hosts that they are to, in turn.
    pub hosts: usize,
    /// Requests outstanding of each caller, over its connections in turn. On real daemons and devices the connection of
    /// each request is drawn, and each connection has a part of the memory.
    pub outstanding: usize,
}

impl OneSidedLoad {
    /// Connections of each caller.
    pub(super) fn own(&self) -> usize {
        (self.connections / self.callers).max(1)
    }
}

impl OneSidedOp {
    /// Bytes of an answer.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Reads { bytes, .. } => bytes,
            Self::Adds { .. } | Self::Messages { .. } => 8,
        }
    }

    /// Bytes of the memory that is asked.
    pub fn region(self) -> usize {
        match self {
            Self::Reads { region, .. } => region,
            Self::Adds { .. } | Self::Messages { .. } => 4096,
        }
    }

    /// Offsets of the counters.
    pub(super) fn words(self) -> impl Iterator<Item = usize> {
        let words = match self {
            Self::Adds { words } => words,
            Self::Reads { .. } | Self::Messages { .. } => 0,
        };
        (0..words).map(|word| word * WORD_APART as usize)
    }

    /// The request at that address, by verbs.
    pub(super) fn op(self, remote: RemoteAddr) -> SendOp {
        match self {
            Self::Adds { .. } => SendOp::FetchAdd { remote, add: 1 },
            Self::Reads { .. } | Self::Messages { .. } => SendOp::Read(remote),
        }
    }

    /// Fills memory that is read; counters are left at 0.
    pub(super) fn fill(self, mut write: impl FnMut(usize, &[u8])) {
        let Self::Reads { region, .. } = self else {
            return;
        };
        let words: Vec<u64> = (0..region as u64).step_by(8).map(content).collect();
        for (number, words) in words.chunks(512).enumerate() {
            let piece: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            write(number * 4096, &piece);
        }
    }

    /// Whether the answer from offset `at` is what was filled in there.
    pub(super) fn check(self, at: u64, answer: &[u8]) -> Result<()> {
        let Self::Reads { bytes, .. } = self else {
            return Ok(());
        };
        let step = if bytes <= SAMPLED { 8 } else { SAMPLED };
        let words = answer.as_chunks::<8>().0;
        for offset in (0..bytes).step_by(step).chain([bytes - 8]) {
            let found = u64::from_le_bytes(words[offset / 8]);
            let wanted = content(at + offset as u64);
            if found != wanted {
                let why = format!("byte {at} + {offset}: {found:#x} in place of {wanted:#x}");
                return Err(WorkloadError(why));
            }
        }
        Ok(())
    }
}

/// The word at that offset of memory that is read.
fn content(at: u64) -> u64 {
    mix(at + 1)
}

/// A request that is to be asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Which of those that a caller has under way.
    pub(super) slot: usize,
    /// Over which of the caller's connections.
    pub(super) connection: usize,
    /// From which offset of the other host's memory on.
    pub(super) at: u64,
}

/// What ended.
#[derive(Default)]
pub(super) struct RequestCounts {
    /// Requests asked for, ended, and ended while it was measured.
    pub(super) asked: u64,
    pub(super) ended: u64,
    pub(super) measured: u64,
    /// Of the measured ones.
    pub(super) latencies: Histogram,
}

impl RequestCounts {
    pub(super) fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.ended += other.ended;
        self.measured += other.measured;
        self.latencies.add(&other.latencies);
    }
}

/// One caller's work.
pub(super) struct RequestGenerator {
    pub(super) load: OneSidedLoad,
    /// Whether the connection of each request is drawn; else slots have theirs in turn.
    draws: bool,
    random: Random,
    /// When it is measured. Nothing is asked for after that.
    pub(super) window: Range<Instant>,
    free: Vec<usize>,
    /// Of each slot: which offset it asks, and since when.
    asked: Vec<(u64, Instant)>,
    pub(super) counts: RequestCounts,
}

impl RequestGenerator {
    pub(super) fn new(load: OneSidedLoad, draws: bool, random: Random) -> Self {
        Self {
            load,
            draws,
            random,
            window: Instant::FAR_FUTURE..Instant::FAR_FUTURE,
            free: (0..load.outstanding).rev().collect(),
            asked: vec![(0, Instant::ZERO); load.outstanding],
            counts: RequestCounts::default(),
        }
    }

    /// Whether something may be asked for.
    pub(super) fn wants(&self, now: Instant) -> bool {
        !self.free.is_empty() && now < self.window.end
    }

    /// What is asked for next, by a caller that set about it at `began`. Only if it [wants](Self::wants) to.
    pub(super) fn next(&mut self, began: Instant) -> Option<Request> {
        let slot = self.free.pop()?;
        let connection = match self.draws {
            false => slot % self.load.own(),
            true => self.random.below(self.load.own() as u64) as usize,
        };
        let at = match self.load.what {
            OneSidedOp::Reads { bytes, region } => {
                self.random.below((region / bytes) as u64) * bytes as u64
            }
            OneSidedOp::Adds { words } => self.random.below(words as u64) * WORD_APART,
            OneSidedOp::Messages { .. } => 0,
        };
        self.asked[slot] = (at, began);
        self.counts.asked += 1;
        Some(Request {
            slot,
            connection,
            at,
        })
    }

    /// An answer came; answers which offset it is from.
    pub(super) fn complete(&mut self, slot: usize, now: Instant) -> u64 {
        let (at, began) = self.asked[slot];
        self.counts.ended += 1;
        if self.window.contains(&now) {
            self.counts.measured += 1;
            self.counts.latencies.record(now.since(began));
        }
        self.free.push(slot);
        at
    }

    /// Whether nothing is asked for any more, and everything has come.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.window.end && self.free.len() == self.load.outstanding
    }
}

/// Completions that are taken at once.
const BATCH: usize = 64;

/// What carries one-sided requests.
pub(super) trait RequestTransport {
    /// Begins one.
    fn start(&mut self, request: Request) -> Result<()>;
    /// Takes the slots of those that ended. Waits for the oldest if the port can wait.
    fn take(&mut self, ended: &mut Vec<usize>) -> Result<()>;
    /// All of the memory that the first connection asks.
    fn peek(&mut self) -> Result<Vec<u8>>;
}

/// Does the work until its window is over and everything has ended. In the end the counters say how much that was.
pub(super) fn drive(work: &mut RequestGenerator, port: &mut dyn RequestTransport) -> Result<()> {
    let mut ended = Vec::new();
    loop {
        let now = clock::now();
        for slot in ended.drain(..) {
            work.complete(slot, now);
        }
        if work.is_over(now) {
            break;
        }
        while work.wants(now)
            && let Some(request) = work.next(now)
        {
            port.start(request)?;
        }
        port.take(&mut ended)?;
    }
    if let OneSidedOp::Adds { .. } = work.load.what {
        let memory = port.peek()?;
        let words = memory.as_chunks().0;
        let counted = work
            .load
            .what
            .words()
            .map(|at| u64::from_le_bytes(words[at / 8]));
        let (sum, added) = (counted.sum::<u64>(), work.counts.ended);
        if sum != added {
            let why = format!("the counters say {sum}, but {added} were added");
            return Err(WorkloadError(why));
        }
    }
    Ok(())
}

/// Over the service: each connection with the window of its memory at the other end.
pub(super) struct ServiceRequests {
    service: Service,
    what: OneSidedOp,
    windows: Vec<(Stream, u32)>,
    under_way: VecDeque<(Request, RemoteOperation)>,
    /// Of each slot that nothing is under way of.
    memory: Vec<Option<SharedMemory>>,
}

impl ServiceRequests {
    /// Connections to one of the others after the other.
    pub(super) fn open(service: Service, to: &[SocketAddr], load: OneSidedLoad) -> Result<Self> {
        let what = load.what;
        let alloc = |_| service.alloc(what.bytes() as u32).map(Some);
        let memory: Result<Vec<_>, _> = (0..load.outstanding).map(alloc).collect();
        let mut memory = memory?;
        let len = (what.region() as u64).to_le_bytes();
        let mut windows = Vec::new();
        for to in to.iter().cycle().take(load.connections) {
            let mut stream = service.connect(*to)?;
            stream.send_all(&[&[ConnectionPurpose::WriteWindow as u8], &len[..]].concat())?;
            let mut window = [0; 4];
            stream.read_exact(&mut window)?;
            windows.push((stream, u32::from_le_bytes(window)));
        }
        // A connection asks for what it needs besides when it first reads.
        for (stream, window) in &mut windows {
            let first = memory[0].take().expect("put back below");
            memory[0] = Some(stream.read_from(*window, 0, first)?);
        }
        Ok(Self {
            service,
            what,
            windows,
            under_way: VecDeque::new(),
            memory,
        })
    }
}

impl RequestTransport for ServiceRequests {
    fn start(&mut self, request: Request) -> Result<()> {
        let (stream, window) = &mut self.windows[request.connection];
        let memory = &mut self.memory[request.slot];
        let started = match self.what {
            OneSidedOp::Adds { .. } => stream.fetch_add_start(*window, request.at, 1),
            _ => stream.read_start_from(*window, request.at, memory),
        };
        self.under_way.push_back((request, started?));
        Ok(())
    }

    fn take(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        while let Some((request, mut oldest)) = self.under_way.pop_front() {
            self.windows[request.connection].0.finish(&mut oldest)?;
            if let Some(memory) = oldest.take_memory() {
                self.memory[request.slot] = Some(memory);
            }
            ended.push(request.slot);
            let next = self.under_way.front();
            if !next.is_some_and(|(_, next)| next.is_over()) {
                break;
            }
        }
        Ok(())
    }

    fn peek(&mut self) -> Result<Vec<u8>> {
        let memory = self.service.alloc(self.what.region() as u32)?;
        let (stream, window) = &mut self.windows[0];
        Ok(stream.read_from(*window, 0, memory)?.to_vec())
    }
}

/// One-sided requests over queue pairs, one for each connection.
pub(super) struct VerbsRequests {
    pub(super) native: Native,
    pub(super) what: OneSidedOp,
    /// Which memory each connection asks.
    pub(super) targets: Vec<RemoteAddr>,
}

impl VerbsRequests {
    /// Posts a request, whose number is its completion's identifier and decides where its answer goes.
    pub(super) fn post(&mut self, request: Request, number: usize) -> Result<()> {
        let Request { connection, at, .. } = request;
        let op = self.what.op(self.targets[connection].plus(at));
        let place = (self.place(number), self.what.bytes());
        self.native.post(connection, (number as u64, op), place)
    }

    /// Where the answer of that number is.
    pub(super) fn place(&self, number: usize) -> usize {
        number * self.what.bytes()
    }

    /// Queue pairs to as many at each of the programs of those names. Each connection reads its part of the memory.
    pub(super) fn open(device: &str, names: &[String], load: OneSidedLoad) -> Result<Self> {
        let what = load.what;
        let shape = shape(load.connections, load.outstanding, load.outstanding);
        // Counters are peeked at, too.
        let len = (load.outstanding * what.bytes()).max(4096);
        let mut native = Native::open(open(device)?, &shape, len)?;
        let each = load.connections / names.len();
        let part = match what {
            OneSidedOp::Reads { region, .. } => region,
            _ => 0,
        };
        let mut targets = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let memory = native.meet(&mut line(name, true)?, at * each..(at + 1) * each)?;
            targets.extend((0..each).map(|at| memory.plus((at * part) as u64)));
        }
        Ok(Self {
            native,
            what,
            targets,
        })
    }
}

impl RequestTransport for VerbsRequests {
    fn start(&mut self, request: Request) -> Result<()> {
        self.post(request, request.slot)
    }

    fn take(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        let mut found = [Completion::default(); BATCH];
        let found = self.native.ended(&mut found)?;
        ended.extend(found.iter().map(|one| one.wr_id as usize));
        Ok(())
    }

    fn peek(&mut self) -> Result<Vec<u8>> {
        let (op, place) = (SendOp::Read(self.targets[0]), (0, self.what.region()));
        self.native.post(0, (0, op), place)?;
        let mut ended = Vec::new();
        while ended.is_empty() {
            self.take(&mut ended)?;
        }
        Ok(self.native.memory.bytes(place.0, place.1))
    }
}

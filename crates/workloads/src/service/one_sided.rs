//! One-sided requests of one caller: generates them, checks the answers, and counts completions. Both worlds
//! share this, whatever carries the requests. Also the transports that carry them on real daemons and
//! devices.

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

/// Longer answers are checked at one word in this many bytes.
const SAMPLED: usize = 4096;
/// Bytes between two counters: each has its own cache line.
const WORD_APART: u64 = 64;

/// Kind of request that callers make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OneSidedOp {
    /// READs at random places of another host's memory.
    Reads {
        /// Bytes of each READ, a multiple of 8.
        bytes: usize,
        /// Bytes of memory of each host, a multiple of `bytes`.
        region: usize,
    },
    /// Each request adds 1 to a random word.
    Adds {
        /// Number of words of each host.
        words: usize,
    },
    /// Round trips of messages, by one caller over one connection, one at a time. Only over the service.
    Messages {
        /// Bytes of each message.
        bytes: usize,
        /// How the bytes travel.
        way: MessageWay,
    },
}

/// How the bytes of a message travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MessageWay {
    /// As the daemon decides, by the length.
    Any,
    /// In frames, which the receiving daemon copies.
    Frames,
    /// The receiving daemon READs them into its receive pool.
    Read,
}

/// Load of the callers of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneSidedLoad {
    /// Kind of request.
    pub what: OneSidedOp,
    /// Number of callers: threads, each with its own core as long as there are enough. One on real daemons
    /// and devices.
    pub callers: usize,
    /// Number of connections in all, or of queue pairs where callers have their own: a multiple of the
    /// callers.
    pub connections: usize,
    /// Number of hosts that the connections go to, in turn.
    pub hosts: usize,
    /// Outstanding requests of each caller, over its connections in turn. On real daemons and devices the
    /// connection of each request is random, and each connection has its own part of the memory.
    pub outstanding: usize,
}

impl OneSidedLoad {
    /// Returns the number of connections of each caller.
    pub(super) fn own(&self) -> usize {
        (self.connections / self.callers).max(1)
    }
}

impl OneSidedOp {
    /// Returns the bytes of an answer.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Reads { bytes, .. } => bytes,
            Self::Adds { .. } | Self::Messages { .. } => 8,
        }
    }

    /// Returns the bytes of the memory that requests access.
    pub fn region(self) -> usize {
        match self {
            Self::Reads { region, .. } => region,
            Self::Adds { .. } | Self::Messages { .. } => 4096,
        }
    }

    /// Returns the offsets of the counters.
    pub(super) fn words(self) -> impl Iterator<Item = usize> {
        let words = match self {
            Self::Adds { words } => words,
            Self::Reads { .. } | Self::Messages { .. } => 0,
        };
        (0..words).map(|word| word * WORD_APART as usize)
    }

    /// Returns the request at an address as a verbs operation.
    pub(super) fn op(self, remote: RemoteAddr) -> SendOp {
        match self {
            Self::Adds { .. } => SendOp::FetchAdd { remote, add: 1 },
            Self::Reads { .. } | Self::Messages { .. } => SendOp::Read(remote),
        }
    }

    /// Fills memory for READs. Counters stay 0.
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

    /// Checks that the answer from offset `at` is what [`fill`](Self::fill) wrote there.
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

/// Returns the word at an offset of memory for READs.
fn content(at: u64) -> u64 {
    mix(at + 1)
}

/// A request to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Index among the caller's outstanding requests.
    pub(super) slot: usize,
    /// Index of the caller's connection.
    pub(super) connection: usize,
    /// Offset in the other host's memory.
    pub(super) at: u64,
}

/// Counts of requests.
#[derive(Default)]
pub(super) struct RequestCounts {
    /// Requests made.
    pub(super) asked: u64,
    /// Requests completed.
    pub(super) ended: u64,
    /// Requests completed within the measured interval.
    pub(super) measured: u64,
    /// Latencies of the measured requests.
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

/// Generates one caller's requests and counts their completions.
pub(super) struct RequestGenerator {
    pub(super) load: OneSidedLoad,
    /// Whether the connection of each request is random; else slots use the connections in turn.
    draws: bool,
    random: Random,
    /// When requests are measured. No request is made after that.
    pub(super) interval: Range<Instant>,
    free: Vec<usize>,
    /// For each slot: the offset that its request asks for, and when the caller began to prepare it.
    asked: Vec<(u64, Instant)>,
    pub(super) counts: RequestCounts,
}

impl RequestGenerator {
    pub(super) fn new(load: OneSidedLoad, draws: bool, random: Random) -> Self {
        Self {
            load,
            draws,
            random,
            interval: Instant::FAR_FUTURE..Instant::FAR_FUTURE,
            free: (0..load.outstanding).rev().collect(),
            asked: vec![(0, Instant::ZERO); load.outstanding],
            counts: RequestCounts::default(),
        }
    }

    /// Returns whether a request may be made.
    pub(super) fn wants(&self, now: Instant) -> bool {
        !self.free.is_empty() && now < self.interval.end
    }

    /// Returns the next request of a caller that began to prepare it at `began`. Call only if it
    /// [wants](Self::wants).
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

    /// Records the answer of a slot. Returns the offset that the request asked for.
    pub(super) fn complete(&mut self, slot: usize, now: Instant) -> u64 {
        let (at, began) = self.asked[slot];
        self.counts.ended += 1;
        if self.interval.contains(&now) {
            self.counts.measured += 1;
            self.counts.latencies.record(now.since(began));
        }
        self.free.push(slot);
        at
    }

    /// Returns whether no further request is made and all answers have come.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.interval.end && self.free.len() == self.load.outstanding
    }
}

/// Completions taken at a time.
const BATCH: usize = 64;

/// Carries one-sided requests.
pub(super) trait RequestTransport {
    /// Starts a request.
    fn start(&mut self, request: Request) -> Result<()>;
    /// Appends the slots of completed requests to `ended`. Waits for the oldest if the transport can wait.
    fn take(&mut self, ended: &mut Vec<usize>) -> Result<()>;
    /// Reads all of the memory that the first connection accesses.
    fn peek(&mut self) -> Result<Vec<u8>>;
}

/// Makes requests until the interval is over and all have completed. Then checks the sum of the counters, if
/// any.
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
            let why = format!("{added} were added, but the counters say {sum}");
            return Err(WorkloadError(why));
        }
    }
    Ok(())
}

/// One-sided requests over the service: each connection with the export id of its memory at the other end.
pub(super) struct ServiceRequests {
    service: Service,
    what: OneSidedOp,
    exports: Vec<(Stream, u32)>,
    under_way: VecDeque<(Request, RemoteOperation)>,
    /// For each slot: memory for the answer, while no request of the slot is under way.
    memory: Vec<Option<SharedMemory>>,
}

impl ServiceRequests {
    /// Opens `load.connections` connections, to the addresses in `to` in turn.
    pub(super) fn open(service: Service, to: &[SocketAddr], load: OneSidedLoad) -> Result<Self> {
        let what = load.what;
        let alloc = |_| service.alloc(what.bytes() as u32).map(Some);
        let memory: Result<Vec<_>, _> = (0..load.outstanding).map(alloc).collect();
        let mut memory = memory?;
        let len = (what.region() as u64).to_le_bytes();
        let mut exports = Vec::new();
        for to in to.iter().cycle().take(load.connections) {
            let mut stream = service.connect(*to)?;
            stream.send_all(&[&[ConnectionPurpose::WriteExport as u8], &len[..]].concat())?;
            let mut export_id = [0; 4];
            stream.read_exact(&mut export_id)?;
            exports.push((stream, u32::from_le_bytes(export_id)));
        }
        // The first READ of a connection makes it request what else it needs.
        for (stream, export_id) in &mut exports {
            let first = memory[0].take().expect("put back below");
            memory[0] = Some(stream.read_from(*export_id, 0, first)?);
        }
        Ok(Self {
            service,
            what,
            exports,
            under_way: VecDeque::new(),
            memory,
        })
    }
}

impl RequestTransport for ServiceRequests {
    fn start(&mut self, request: Request) -> Result<()> {
        let (stream, export_id) = &mut self.exports[request.connection];
        let memory = &mut self.memory[request.slot];
        let started = match self.what {
            OneSidedOp::Adds { .. } => stream.fetch_add_start(*export_id, request.at, 1),
            _ => stream.read_start_from(*export_id, request.at, memory),
        };
        self.under_way.push_back((request, started?));
        Ok(())
    }

    fn take(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        while let Some((request, mut oldest)) = self.under_way.pop_front() {
            self.exports[request.connection].0.finish(&mut oldest)?;
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
        let (stream, export_id) = &mut self.exports[0];
        Ok(stream.read_from(*export_id, 0, memory)?.to_vec())
    }
}

/// One-sided requests over plain verbs, with one queue pair for each connection.
pub(super) struct VerbsRequests {
    pub(super) native: Native,
    pub(super) what: OneSidedOp,
    /// For each connection: the remote memory that its requests access.
    pub(super) targets: Vec<RemoteAddr>,
}

impl VerbsRequests {
    /// Posts a request. `number` is its wr_id and decides where its answer goes.
    pub(super) fn post(&mut self, request: Request, number: usize) -> Result<()> {
        let Request { connection, at, .. } = request;
        let op = self.what.op(self.targets[connection].plus(at));
        let place = (self.place(number), self.what.bytes());
        self.native.post(connection, (number as u64, op), place)
    }

    /// Returns the offset of the answer to request `number`.
    pub(super) fn place(&self, number: usize) -> usize {
        number * self.what.bytes()
    }

    /// Opens queue pairs, as many to each of the named programs. Each connection reads its own part of the
    /// memory.
    pub(super) fn open(device: &str, names: &[String], load: OneSidedLoad) -> Result<Self> {
        let what = load.what;
        let shape = shape(load.connections, load.outstanding, load.outstanding);
        // `peek` reads the counters into this memory, too.
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

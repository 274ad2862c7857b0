//! One-sided requests on real daemons and devices: over the service, and by queue pairs of a program's own.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;

use headworks::service::{Memory, Operating, Service, Stream};
use headworks::stage::clock;
use headworks::verbs::{Completion, SendOp};

use super::Result;
use super::native::{Native, OneSided, line, open, shape};
use super::requests::{Load, Request, What, Work};
use super::serving::Wish;
use crate::transports::ArmError;

/// Completions that are taken at once.
const BATCH: usize = 64;

/// What carries one-sided requests.
pub(super) trait Port {
    /// Begins one.
    fn start(&mut self, request: Request) -> Result<()>;
    /// Takes the slots of those that ended. Waits for the oldest if the port can wait.
    fn take(&mut self, ended: &mut Vec<usize>) -> Result<()>;
    /// All of the memory that the first connection asks.
    fn peek(&mut self) -> Result<Vec<u8>>;
}

/// Does the work until its window is over and everything has ended. In the end the counters say how much that was.
pub(super) fn drive(work: &mut Work, port: &mut dyn Port) -> Result<()> {
    let mut ended = Vec::new();
    loop {
        let now = clock::now();
        for slot in ended.drain(..) {
            work.came(slot, now);
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
    if let What::Adds { .. } = work.load.what {
        let memory = port.peek()?;
        let words = memory.as_chunks().0;
        let counted = work
            .load
            .what
            .words()
            .map(|at| u64::from_le_bytes(words[at / 8]));
        let (sum, added) = (counted.sum::<u64>(), work.tally.ended);
        if sum != added {
            let why = format!("the counters say {sum}, but {added} were added");
            return Err(ArmError(why));
        }
    }
    Ok(())
}

/// Over the service: each connection with the window of its memory at the other end.
pub(super) struct Windows {
    service: Service,
    what: What,
    windows: Vec<(Stream, u32)>,
    under_way: VecDeque<(Request, Operating)>,
    /// Of each slot that nothing is under way of.
    memory: Vec<Option<Memory>>,
}

impl Windows {
    /// Connections to one of the others after the other.
    pub(super) fn open(service: Service, to: &[SocketAddr], load: Load) -> Result<Self> {
        let what = load.what;
        let alloc = |_| service.alloc(what.bytes() as u32).map(Some);
        let memory: Result<Vec<_>, _> = (0..load.outstanding).map(alloc).collect();
        let mut memory = memory?;
        let len = (what.region() as u64).to_le_bytes();
        let mut windows = Vec::new();
        for to in to.iter().cycle().take(load.connections) {
            let mut stream = service.connect(*to)?;
            stream.send_all(&[&[Wish::Window as u8], &len[..]].concat())?;
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

impl Port for Windows {
    fn start(&mut self, request: Request) -> Result<()> {
        let (stream, window) = &mut self.windows[request.connection];
        let memory = &mut self.memory[request.slot];
        let started = match self.what {
            What::Adds { .. } => stream.fetch_add_start(*window, request.at, 1),
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

impl OneSided {
    /// Queue pairs to as many at each of the programs of those names. Each connection reads its part of the memory.
    pub(super) fn open(device: &str, names: &[String], load: Load) -> Result<Self> {
        let what = load.what;
        let shape = shape(load.connections, load.outstanding, load.outstanding);
        // Counters are peeked at, too.
        let len = (load.outstanding * what.bytes()).max(4096);
        let mut native = Native::open(open(device)?, &shape, len)?;
        let each = load.connections / names.len();
        let part = match what {
            What::Reads { region, .. } => region,
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

impl Port for OneSided {
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

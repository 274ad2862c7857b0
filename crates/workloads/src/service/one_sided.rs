//! One-sided requests on real daemons and devices: over the service, and by queue pairs of a program's own.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;

use headworks::service::{Memory, Operating, Service, Stream};
use headworks::stage::clock;
use headworks::verbs::{Completion, SendOp};

use super::native::{Native, OneSided, line, open, shape};
use super::requests::{Load, Request, What, Work};
use super::serving::Wish;
use super::{Result, failed};
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
        let word = |at| {
            memory[at..]
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word))
        };
        let (sum, added): (u64, _) = (work.load.what.words().map(word).sum(), work.tally.ended);
        if sum != added {
            return Err(ArmError(format!(
                "the counters say {sum}, but {added} were added"
            )));
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
        let Load {
            what,
            connections,
            outstanding,
            ..
        } = load;
        let alloc = |_| service.alloc(what.bytes() as u32).map(Some);
        let memory: Result<Vec<_>, _> = (0..outstanding).map(alloc).collect();
        let mut memory = memory.map_err(failed("memory"))?;
        let mut windows = Vec::new();
        for to in to.iter().cycle().take(connections) {
            let mut stream = service.connect(*to).map_err(failed("connecting"))?;
            let wish = [
                &[Wish::Window as u8][..],
                &(what.region() as u64).to_le_bytes(),
            ]
            .concat();
            stream.send_all(&wish).map_err(failed("asking"))?;
            let mut window = [0; 4];
            stream.read_exact(&mut window).map_err(failed("a window"))?;
            windows.push((stream, u32::from_le_bytes(window)));
        }
        // A connection asks for what it needs besides when it first reads.
        for (stream, window) in &mut windows {
            let Some(first) = memory[0].take() else { break };
            let read = stream.read_from(*window, 0, first);
            memory[0] = Some(read.map_err(failed("a READ"))?);
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
        let started = match self.what {
            What::Adds { .. } => stream.fetch_add_start(*window, request.at, 1),
            _ => {
                let memory = self.memory[request.slot].take();
                let memory = memory.ok_or_else(|| ArmError("no memory".to_owned()))?;
                stream.read_start(*window, request.at, memory)
            }
        };
        let started = started.map_err(failed("an operation"))?;
        self.under_way.push_back((request, started));
        Ok(())
    }

    fn take(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        while let Some((
            Request {
                slot, connection, ..
            },
            mut oldest,
        )) = self.under_way.pop_front()
        {
            let done = self.windows[connection].0.finish(&mut oldest);
            done.map_err(failed("an operation"))?;
            if let Some(memory) = oldest.take_memory() {
                self.memory[slot] = Some(memory);
            }
            ended.push(slot);
            if !self
                .under_way
                .front()
                .is_some_and(|(_, next)| next.is_over())
            {
                break;
            }
        }
        Ok(())
    }

    fn peek(&mut self) -> Result<Vec<u8>> {
        let memory = self.service.alloc(self.what.region() as u32);
        let (stream, window) = &mut self.windows[0];
        let read = stream.read_from(*window, 0, memory.map_err(failed("memory"))?);
        Ok(read.map_err(failed("a READ"))?.to_vec())
    }
}

impl OneSided {
    /// Queue pairs to as many at each of the programs of those names. Each connection reads its part of the memory.
    pub(super) fn open(device: &str, names: &[String], load: Load) -> Result<Self> {
        let Load {
            what,
            connections,
            outstanding,
            ..
        } = load;
        let shape = shape(connections, outstanding, outstanding);
        // Counters are peeked at, too.
        let len = (outstanding * what.bytes()).max(4096);
        let mut native = Native::open(open(device)?, &shape, len)?;
        let each = connections / names.len();
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

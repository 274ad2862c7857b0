//! Operations on memory of others': over the service, and by queue pairs of its own. The same loop asks for them.

use std::collections::VecDeque;
use std::net::SocketAddr;

use headworks::service::{Memory, Operating, Service, Stream};
use headworks::stage::clock;
use headworks::verbs::{Instant, QpCaps, RemoteAddr, SendOp};
use headworks_baselines::Shape;

use super::{Asking, By, Found, Times, What, Wish, failed, io};
use crate::random::Random;
use crate::service::native::{self, Native};
use crate::transports::ArmError;

/// By what operations are asked for.
trait Operations {
    /// Begins one; there is room for it.
    fn start(&mut self) -> Result<(), ArmError>;
    /// Takes those that are over, after it has waited for the oldest where it can wait; says how many.
    fn take(&mut self) -> Result<u64, ArmError>;
    /// What so many words of the other's say together.
    fn sum(&mut self, words: usize) -> Result<u64, ArmError>;
}

impl Asking {
    /// Measures operations on memory of others'.
    pub(super) fn operate(&self) -> Result<Found, ArmError> {
        let (What::Reads { outstanding, .. } | What::Adds { outstanding, .. }) = self.what else {
            return Err(ArmError("not that".to_owned()));
        };
        let mut by: Box<dyn Operations> = match &self.by {
            By::Service { to, others, .. } => {
                let (service, _) = self.service()?;
                let to = std::iter::once(to).chain(others).copied().collect();
                Box::new(Windows::open(&service, to, self.what)?)
            }
            By::Verbs { device, names } => Box::new(Own::open(device, names, self.what)?),
            By::Tcp { .. } => return Err(ArmError("not over TCP".to_owned())),
        };
        let words = match self.what {
            What::Adds { words, .. } => words,
            _ => 0,
        };
        let before = by.sum(words)?;
        let (total, count, nanos) = drive(&mut *by, outstanding, &self.times())?;
        if words > 0 {
            let found = by.sum(words)?.wrapping_sub(before);
            if found != total {
                return Err(ArmError(format!("{found} were counted of {total}")));
            }
        }
        Ok(match self.what {
            What::Reads { size, .. } => Found::Moved {
                bytes: count * size as u64,
                nanos,
            },
            _ => Found::Ended { count, nanos },
        })
    }
}

/// Operations that were ever over, those that were while it was measured, and for how long that was.
fn drive(
    by: &mut dyn Operations,
    outstanding: usize,
    times: &Times,
) -> Result<(u64, u64, u64), ArmError> {
    let (mut started, mut ended) = (0, 0);
    let mut from: Option<(Instant, u64)> = None;
    let mut until = None;
    loop {
        let now = clock::now();
        if from.is_none() && now >= times.warm {
            from = Some((now, ended));
        }
        if until.is_none() && now >= times.over {
            until = Some((now, ended));
        }
        let Some((over, at_end)) = until else {
            while started < ended + outstanding as u64 {
                by.start()?;
                started += 1;
            }
            ended += by.take()?;
            continue;
        };
        // What is under way is still to be seen to end.
        if ended < started {
            ended += by.take()?;
            continue;
        }
        let (began, before) = from.unwrap_or((over, at_end));
        return Ok((ended, at_end - before, over.since(began).nanos()));
    }
}

/// Bytes of each connection's memory at the other end, and connections to each of so many others.
fn parts(what: What, others: usize) -> Result<(usize, usize), ArmError> {
    let (len, connections) = match what {
        What::Reads {
            size,
            connections,
            region,
            ..
        } => {
            let each = (connections / others).max(1);
            ((region / each).max(size), connections)
        }
        What::Adds {
            words, connections, ..
        } => (words * 8, connections),
        _ => return Err(ArmError("not that".to_owned())),
    };
    match connections % others {
        0 => Ok((len, connections)),
        _ => Err(ArmError("not as many connections to each".to_owned())),
    }
}

/// What is drawn: a connection, and a place in its memory.
fn draw(random: &mut Random, what: What, len: usize) -> (usize, u64) {
    let (size, connections) = match what {
        What::Reads {
            size, connections, ..
        } => (size, connections),
        What::Adds { connections, .. } => (8, connections),
        _ => (8, 1),
    };
    let connection = random.below(connections as u64) as usize;
    let places = (len / size).max(1) as u64;
    (connection, random.below(places) * size as u64)
}

/// A connection, and what memory it has at the other end.
struct Window {
    stream: Stream,
    window: u32,
    len: usize,
}

impl Window {
    fn open(service: &Service, to: SocketAddr, len: usize) -> Result<Self, ArmError> {
        use std::io::Read;
        let mut stream = service.connect(to).map_err(failed("connecting"))?;
        let wish = [&[Wish::Window as u8][..], &(len as u64).to_le_bytes()].concat();
        stream.send_all(&wish).map_err(failed("asking"))?;
        let mut answer = [0; 16];
        stream.read_exact(&mut answer).map_err(io("a window"))?;
        let words = answer.as_chunks::<8>().0;
        let [window, len] = [0, 1].map(|at| u64::from_le_bytes(words[at]));
        Ok(Self {
            stream,
            window: window as u32,
            len: len as usize,
        })
    }
}

/// Over the service.
struct Windows {
    what: What,
    windows: Vec<Window>,
    random: Random,
    under_way: VecDeque<(usize, Operating)>,
    spare: Vec<Memory>,
}

impl Windows {
    fn open(service: &Service, to: Vec<SocketAddr>, what: What) -> Result<Self, ArmError> {
        let (len, connections) = parts(what, to.len())?;
        let mut windows = Vec::new();
        for to in to.iter().cycle().take(connections) {
            windows.push(Window::open(service, *to, len)?);
        }
        let (size, count) = match what {
            What::Reads {
                size, outstanding, ..
            } => (size, outstanding),
            _ => (len, 1),
        };
        let mut spare = Vec::new();
        for _ in 0..count {
            spare.push(service.alloc(size as u32).map_err(failed("memory"))?);
        }
        // What a connection needs besides, it asks for when it first reads.
        for Window { stream, window, .. } in &mut windows {
            let memory = spare
                .pop()
                .ok_or_else(|| ArmError("no memory".to_owned()))?;
            let read = stream.read_from(*window, 0, memory);
            spare.push(read.map_err(failed("a READ"))?);
        }
        Ok(Self {
            what,
            windows,
            random: Random::new(connections as u64),
            under_way: VecDeque::new(),
            spare,
        })
    }
}

impl Operations for Windows {
    fn start(&mut self) -> Result<(), ArmError> {
        let (at, place) = draw(&mut self.random, self.what, self.windows[0].len);
        let Window { stream, window, .. } = &mut self.windows[at];
        let started = match self.what {
            What::Reads { .. } => {
                let memory = self.spare.pop();
                let memory = memory.ok_or_else(|| ArmError("no memory".to_owned()))?;
                stream.read_start(*window, place, memory)
            }
            _ => stream.fetch_add_start(*window, place, 1),
        };
        let started = started.map_err(failed("an operation"))?;
        self.under_way.push_back((at, started));
        Ok(())
    }

    fn take(&mut self) -> Result<u64, ArmError> {
        let mut taken = 0;
        while let Some((at, mut oldest)) = self.under_way.pop_front() {
            let done = self.windows[at].stream.finish(&mut oldest);
            done.map_err(failed("an operation"))?;
            self.spare.extend(oldest.take_memory());
            taken += 1;
            if !self
                .under_way
                .front()
                .is_some_and(|(_, next)| next.is_over())
            {
                break;
            }
        }
        Ok(taken)
    }

    fn sum(&mut self, words: usize) -> Result<u64, ArmError> {
        if words == 0 {
            return Ok(0);
        }
        let memory = self.spare.pop();
        let memory = memory.ok_or_else(|| ArmError("no memory".to_owned()))?;
        let Window { stream, window, .. } = &mut self.windows[0];
        let read = stream.read_from(*window, 0, memory);
        let memory = read.map_err(failed("a READ"))?;
        let all = memory[..words * 8].as_chunks::<8>().0;
        let sum = all.iter().fold(0, |sum: u64, word| {
            sum.wrapping_add(u64::from_le_bytes(*word))
        });
        self.spare.push(memory);
        Ok(sum)
    }
}

/// Over queue pairs of its own, one for each connection, to one of the others after the other.
struct Own {
    what: What,
    native: Native,
    /// Memory of each of the others.
    targets: Vec<RemoteAddr>,
    len: usize,
    size: usize,
    random: Random,
    spare: Vec<usize>,
}

impl Own {
    fn open(device: &str, names: &[String], what: What) -> Result<Self, ArmError> {
        let (len, connections) = parts(what, names.len())?;
        let (size, outstanding) = match what {
            What::Reads {
                size, outstanding, ..
            } => (size, outstanding),
            What::Adds { outstanding, .. } => (8, outstanding),
            _ => return Err(ArmError("not that".to_owned())),
        };
        let shape = Shape {
            queue_pairs: connections,
            caps: QpCaps {
                max_send_wr: outstanding as u32,
                max_recv_wr: 1,
                ..QpCaps::default()
            },
            cq_depth: outstanding as u32 + 1,
            shared_receives: 0,
            channel: false,
        };
        let mut native = Native::open(device, &shape, outstanding * size, size)?;
        let each = connections / names.len();
        let mut targets = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let mut line = native::call(name)?;
            targets.push(native.meet(&mut line, at * each..(at + 1) * each)?);
        }
        Ok(Self {
            what,
            native,
            targets,
            len,
            size,
            random: Random::new(connections as u64),
            spare: (0..outstanding).map(|at| at * size).collect(),
        })
    }
}

impl Operations for Own {
    fn start(&mut self) -> Result<(), ArmError> {
        let (at, place) = draw(&mut self.random, self.what, self.len);
        let each = match self.what {
            What::Reads { connections, .. } | What::Adds { connections, .. } => {
                connections / self.targets.len()
            }
            _ => 1,
        };
        let target = self.targets[at / each];
        let slot = self.spare.pop();
        let slot = slot.ok_or_else(|| ArmError("no memory".to_owned()))?;
        let op = match self.what {
            // Each connection reads its part.
            What::Reads { .. } => {
                let part = (at % each * self.len) as u64;
                SendOp::Read(target.plus(part + place))
            }
            _ => SendOp::FetchAdd {
                remote: target.plus(place),
                add: 1,
            },
        };
        self.native.post(at, op, slot)
    }

    fn take(&mut self) -> Result<u64, ArmError> {
        let ended = self.native.ended()?;
        let before = self.spare.len();
        self.spare
            .extend(ended.iter().map(|one| one.wr_id as usize));
        Ok((self.spare.len() - before) as u64)
    }

    fn sum(&mut self, words: usize) -> Result<u64, ArmError> {
        let mut sum = 0u64;
        for word in 0..words {
            let remote = self.targets[0].plus((word * self.size) as u64);
            self.native.post(0, SendOp::Read(remote), 0)?;
            while self.native.ended()?.is_empty() {}
            sum = sum.wrapping_add(self.native.word(0));
        }
        Ok(sum)
    }
}

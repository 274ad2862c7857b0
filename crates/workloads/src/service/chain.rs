//! Four processes that hand a message on through rings in shared memory, and the answer back, without verbs: what a way
//! over two daemons takes at least if each process offers its processor to the others while it waits.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headworks::stage::clock;
use headworks::stage::{Spin, Waiter};
use headworks::verbs;
use headworks_baselines::{BareReceiver, BareSegment, BareSender};
use serde::{Deserialize, Serialize};

use super::asking::pingpong;
use super::control::Told;
use super::{Result, Role, failed};

/// Processes of a chain.
const LINKS: usize = 4;
/// Rings on the way there and back.
const RINGS: usize = 2 * (LINKS - 1);
/// Slots of a ring: a message is under way at a time.
const SLOTS: usize = 4;

/// A ring of another process: which descriptor of which process.
type Offer = (u32, i32);

/// A process of a chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// It takes messages from the first of each two rings, and gives them on to the second.
    rings: Vec<(Offer, Offer)>,
    /// Bytes of a message.
    size: usize,
    /// Set for the one that begins: nanoseconds before it measures, and that it measures.
    measures: Option<(u64, u64)>,
}

/// A message comes from one ring, and goes to another. Calls wait.
struct Pair {
    from: BareReceiver,
    to: BareSender,
    waiter: Waiter,
}

impl Pair {
    fn join((from, to): (Offer, Offer), size: usize) -> Result<Self> {
        let join = |(pid, fd): Offer| BareSegment::join(pid, fd, SLOTS, size.next_multiple_of(64));
        let to = BareSender::new(join(to).map_err(failed("bare ring"))?, 1, 1);
        Ok(Self {
            from: BareReceiver::new(join(from).map_err(failed("bare ring"))?, 1),
            to: to.map_err(failed("bare ring"))?,
            waiter: Waiter::new(verbs::Duration::ZERO, Spin::Yield),
        })
    }

    fn try_take(&mut self, message: &mut [u8]) -> bool {
        let len = message.len();
        let took = self
            .from
            .try_recv(len, |bytes| message.copy_from_slice(bytes));
        took.is_some()
    }
}

impl Read for Pair {
    fn read(&mut self, message: &mut [u8]) -> std::io::Result<usize> {
        while !self.try_take(message) {
            self.waiter.pass();
        }
        Ok(message.len())
    }
}

impl Write for Pair {
    fn write(&mut self, message: &[u8]) -> std::io::Result<usize> {
        while !self.to.try_send(message) {
            self.waiter.pass();
        }
        self.to.flush();
        Ok(message.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Link {
    /// Hands messages on until the process is ended, or measures.
    pub(super) fn play(&self) -> Result<f64> {
        let join = |rings: &(Offer, Offer)| Pair::join(*rings, self.size);
        let pairs: Result<Vec<Pair>> = self.rings.iter().map(join).collect();
        let mut pairs = pairs?;
        if let Some((warm, run)) = self.measures {
            let from = clock::now() + verbs::Duration::from_nanos(warm);
            let window = from..from + verbs::Duration::from_nanos(run);
            return pingpong(&mut pairs[0], self.size, window);
        }
        let mut message = vec![7; self.size];
        let mut waiter = Waiter::new(verbs::Duration::ZERO, Spin::Yield);
        loop {
            let mut did = false;
            for pair in &mut pairs {
                if pair.try_take(&mut message) {
                    pair.write_all(&message)?;
                    did = true;
                }
            }
            if !did {
                waiter.pass();
            }
        }
    }
}

/// Measures how many nanoseconds messages of so many bytes take there and back (median) over a chain, two of whose
/// processes are on each processor.
pub fn measure(
    size: usize,
    (warm, run): (Duration, Duration),
    cpus: [usize; 2],
    directory: &Path,
    stop: &AtomicBool,
) -> Result<f64> {
    let create = |_| BareSegment::create(SLOTS, size.next_multiple_of(64));
    let rings: Result<Vec<_>, _> = (0..RINGS).map(create).collect();
    let rings = rings.map_err(failed("bare ring"))?;
    let offers: Vec<Offer> = rings.iter().map(|(ring, _)| ring.offer()).collect();
    let mut links = Vec::new();
    // The one that measures comes last.
    for at in (0..LINKS).rev() {
        // On the way there a link gives on to the ring of its number, on the way back to the one as far from the end.
        let gives = (0..RINGS).filter(|ring| *ring == at || *ring == RINGS - at);
        let rings = gives.map(|ring| (offers[(ring + RINGS - 1) % RINGS], offers[ring]));
        let link = Link {
            rings: rings.collect(),
            size,
            measures: (at == 0).then_some((warm.as_nanos() as u64, run.as_nanos() as u64)),
        };
        let cpu = cpus[usize::from(at >= LINKS / 2)];
        links.push(Told::start(&Role::Link(link), cpu, directory)?);
    }
    let measuring = links.last_mut().expect("there are links");
    measuring.hear(warm + run + Duration::from_secs(20), stop)
}

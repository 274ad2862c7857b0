//! Four processes that hand a message on through rings in shared memory, and the answer back, without verbs: what a way
//! over two daemons takes at least if each process offers its processor to the others while it waits.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headworks::net::clock;
use headworks::net::{SpinMode, Waiter};
use headworks::verbs;
use headworks_baselines::{BareReceiver, BareSegment, BareSender};
use serde::{Deserialize, Serialize};

use super::control::ControlledChild;
use super::load::pingpong;
use super::{Result, Role, failed};

/// Processes of a chain.
const HOPS: usize = 4;
/// Rings on the way there and back.
const RINGS: usize = 2 * (HOPS - 1);
/// Slots of a ring: a message is under way at a time.
const SLOTS: usize = 4;

/// A ring of another process: which descriptor of which process.
type Offer = (u32, i32);

/// A process of a chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RelayHop {
    /// It takes messages from the first of each two rings, and gives them on to the second.
    rings: Vec<(Offer, Offer)>,
    /// Bytes of a message.
    size: usize,
    /// Set for the one that begins: nanoseconds before it measures, and that it measures.
    measures: Option<(u64, u64)>,
}

fn take(from: &mut BareReceiver, message: &mut [u8]) -> bool {
    let took = from.try_recv(message.len(), |bytes| message.copy_from_slice(bytes));
    took.is_some()
}

fn give(to: &mut BareSender, message: &[u8], waiter: &mut Waiter) {
    while !to.try_send(message) {
        waiter.spin_once();
    }
    to.flush();
}

impl RelayHop {
    /// Hands messages on until the process is ended, or measures.
    pub(super) fn run(&self) -> Result<f64> {
        let slot = self.size.next_multiple_of(64);
        let join = |(pid, fd)| BareSegment::join(pid, fd, SLOTS, slot).map_err(failed("bare ring"));
        let mut pairs = Vec::new();
        for (from, to) in &self.rings {
            let to = BareSender::new(join(*to)?, 1, 1).map_err(failed("bare ring"))?;
            pairs.push((BareReceiver::new(join(*from)?, 1), to));
        }
        let mut message = vec![7; self.size];
        let mut waiter = Waiter::new(verbs::Duration::ZERO, SpinMode::Yield);
        if let (Some((warm, run)), [(from, to)]) = (self.measures, &mut pairs[..]) {
            let start = clock::now() + verbs::Duration::from_nanos(warm);
            let window = start..start + verbs::Duration::from_nanos(run);
            return pingpong(window, || {
                give(to, &message, &mut waiter);
                while !take(from, &mut message) {
                    waiter.spin_once();
                }
                Ok(())
            });
        }
        loop {
            let mut did = false;
            for (from, to) in &mut pairs {
                if take(from, &mut message) {
                    give(to, &message, &mut waiter);
                    did = true;
                }
            }
            if !did {
                waiter.spin_once();
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
    for at in (0..HOPS).rev() {
        // On the way there a link gives on to the ring of its number, on the way back to the one as far from the end.
        let gives = (0..RINGS).filter(|ring| *ring == at || *ring == RINGS - at);
        let rings = gives.map(|ring| (offers[(ring + RINGS - 1) % RINGS], offers[ring]));
        let link = RelayHop {
            rings: rings.collect(),
            size,
            measures: (at == 0).then_some((warm.as_nanos() as u64, run.as_nanos() as u64)),
        };
        let cpu = cpus[usize::from(at >= HOPS / 2)];
        links.push(ControlledChild::start(
            &Role::RelayHop(link),
            cpu,
            directory,
        )?);
    }
    let measuring = links.last_mut().expect("there are links");
    measuring.receive(warm + run + Duration::from_secs(20), stop)
}

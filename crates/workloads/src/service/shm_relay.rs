//! Four processes that forward a message through rings in shared memory, and the answer back, without verbs.
//! Its latency is the lower bound for a path over two daemons where each process yields its processor while
//! it waits.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headworks::net::clock;
use headworks::net::{SpinMode, Waiter};
use headworks::verbs;
use headworks_baselines::{BareOffer, BareReceiver, BareSegment, BareSender};
use serde::{Deserialize, Serialize};

use super::control::ControlledChild;
use super::load::pingpong;
use super::{Result, Role, failed};

/// Processes in the chain.
const HOPS: usize = 4;
/// Rings for both directions.
const RINGS: usize = 2 * (HOPS - 1);
/// Slots of a ring. Only one message is in flight at a time.
const SLOTS: usize = 4;

/// A process in the chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RelayHop {
    /// Pairs of rings: the process takes messages from the first and forwards them to the second.
    rings: Vec<(BareOffer, BareOffer)>,
    /// Bytes of a message.
    size: usize,
    /// Set for the first process of the chain: nanoseconds of warm-up and of measurement.
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
    /// Forwards messages until the process is killed. The first process of the chain measures instead.
    pub(super) fn run(&self) -> Result<f64> {
        let slot = self.size.next_multiple_of(64);
        let join = |offer| BareSegment::join(offer, SLOTS, slot).map_err(failed("bare ring"));
        let mut pairs = Vec::new();
        for (from, to) in &self.rings {
            let to = BareSender::new(join(*to)?, 1, 1).map_err(failed("bare ring"))?;
            pairs.push((BareReceiver::new(join(*from)?, 1), to));
        }
        let mut message = vec![7; self.size];
        let mut waiter = Waiter::new(verbs::Duration::ZERO, SpinMode::Yield);
        if let (Some((warm, run)), [(from, to)]) = (self.measures, &mut pairs[..]) {
            let start = clock::now() + verbs::Duration::from_nanos(warm);
            let interval = start..start + verbs::Duration::from_nanos(run);
            let found = pingpong(interval, || {
                give(to, &message, &mut waiter);
                while !take(from, &mut message) {
                    waiter.spin_once();
                }
                Ok(())
            });
            return found.map(|found| found.value);
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

/// Measures the median round-trip time of messages of `size` bytes over a chain, in nanoseconds. The first
/// two processes run on the first processor, the last two on the second.
pub fn measure(
    size: usize,
    (warm, run): (Duration, Duration),
    cpus: [usize; 2],
    directory: &Path,
    stop: &AtomicBool,
) -> Result<f64> {
    let create = |_| BareSegment::create(SLOTS, size.next_multiple_of(64));
    let rings: Result<Vec<_>, _> = (0..RINGS).map(create).collect();
    let mut rings = rings.map_err(failed("bare ring"))?;
    let offers = rings.iter_mut().map(|(ring, _)| ring.offer());
    let offers: Result<Vec<BareOffer>, _> = offers.collect();
    let offers = offers.map_err(failed("bare ring"))?;
    let mut links = Vec::new();
    // The measuring process starts last, when the others are there.
    for at in (0..HOPS).rev() {
        // Process `at` forwards to ring `at` on the way there, and to ring `RINGS - at` on the way back.
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
    let measuring = links.last_mut().expect("the chain has processes");
    measuring.receive(warm + run + Duration::from_secs(20), stop)
}

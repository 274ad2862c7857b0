//! Four processes that hand a message on through rings in shared memory, and the answer back, without verbs: what a way
//! over two daemons takes at least where each process offers its processor to the others while it waits.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headworks::stage::clock;
use headworks::stage::{Spin, Waiter};
use headworks_baselines::{BareReceiver, BareSegment, BareSender};
use serde::{Deserialize, Serialize};

use super::hosts::{found, start};
use super::{Found, Role};
use crate::latency::Histogram;
use crate::transports::ArmError;

/// Processes of a chain.
const LINKS: usize = 4;
/// Slots of a ring: a message is under way at a time.
const SLOTS: usize = 4;

/// A process of a chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// Where it takes from, and gives on to: which descriptors of which process.
    takes: Vec<(u32, i32)>,
    gives: Vec<(u32, i32)>,
    /// Bytes of a message.
    size: usize,
    /// Whether it begins, and measures; the last one turns messages round.
    begins: bool,
    warm_ns: u64,
    run_ns: u64,
}

fn failed(why: impl std::fmt::Display) -> ArmError {
    ArmError::at("bare ring", why)
}

impl Link {
    fn rings(&self) -> Result<(Vec<BareReceiver>, Vec<BareSender>), ArmError> {
        let slot = self.size.next_multiple_of(64);
        let join = |of: &(u32, i32)| BareSegment::join(of.0, of.1, SLOTS, slot).map_err(failed);
        let takes = self
            .takes
            .iter()
            .map(|of| Ok(BareReceiver::new(join(of)?, 1)));
        let gives = self
            .gives
            .iter()
            .map(|of| BareSender::new(join(of)?, 1, 1).map_err(failed));
        let takes: Result<Vec<_>, ArmError> = takes.collect();
        let gives: Result<Vec<_>, ArmError> = gives.collect();
        Ok((takes?, gives?))
    }

    /// Hands messages on until it is ended, or measures.
    pub(super) fn play(&self) -> Result<Option<Found>, ArmError> {
        let (mut takes, mut gives) = self.rings()?;
        let mut waiter = Waiter::new(headworks::verbs::Duration::ZERO, Spin::Yield);
        let mut message = vec![7; self.size];
        if self.begins {
            return self.measure(&mut takes[0], &mut gives[0], &mut message, &mut waiter);
        }
        loop {
            let mut did = false;
            for (from, to) in takes.iter_mut().zip(&mut gives) {
                let took = from.try_recv(self.size, |bytes| message.copy_from_slice(bytes));
                if took.is_some() {
                    put(to, &message, &mut waiter);
                    did = true;
                }
            }
            if !did {
                waiter.pass();
            }
        }
    }

    fn measure(
        &self,
        from: &mut BareReceiver,
        to: &mut BareSender,
        message: &mut [u8],
        waiter: &mut Waiter,
    ) -> Result<Option<Found>, ArmError> {
        let nanos = headworks::verbs::Duration::from_nanos;
        let warm = clock::now() + nanos(self.warm_ns);
        let over = warm + nanos(self.run_ns);
        let mut found = Histogram::default();
        loop {
            let began = clock::now();
            if began >= over {
                return Ok(Some(Found::Latency(found.quantiles(1.0))));
            }
            put(to, message, waiter);
            while from
                .try_recv(self.size, |bytes| message.copy_from_slice(bytes))
                .is_none()
            {
                waiter.pass();
            }
            if began >= warm {
                found.record(clock::now().since(began));
            }
        }
    }
}

fn put(to: &mut BareSender, message: &[u8], waiter: &mut Waiter) {
    while !to.try_send(message) {
        waiter.pass();
    }
    to.flush();
}

/// How long messages of so many bytes take there and back over a chain, two of whose processes are on each processor.
///
/// # Errors
///
/// A process failed, or took too long.
pub fn measure(
    size: usize,
    (warm, run): (Duration, Duration),
    cpus: [usize; 2],
    directory: &Path,
    stop: &AtomicBool,
) -> Result<Found, ArmError> {
    let slot = size.next_multiple_of(64);
    // There and back between each and the next.
    let rings = (0..2 * (LINKS - 1)).map(|_| BareSegment::create(SLOTS, slot).map_err(failed));
    let rings: Result<Vec<_>, ArmError> = rings.collect();
    let rings = rings?;
    let offers: Vec<(u32, i32)> = rings.iter().map(|(ring, _)| ring.offer()).collect();
    let (there, back) = offers.split_at(LINKS - 1);
    let mut links = Vec::new();
    // Whoever measures comes last.
    for at in (0..LINKS).rev() {
        let (mut takes, mut gives) = (Vec::new(), Vec::new());
        match at {
            0 => {
                takes.push(back[0]);
                gives.push(there[0]);
            }
            at if at == LINKS - 1 => {
                takes.push(there[at - 1]);
                gives.push(back[at - 1]);
            }
            at => {
                takes.extend([there[at - 1], back[at]]);
                gives.extend([there[at], back[at - 1]]);
            }
        }
        let link = Link {
            takes,
            gives,
            size,
            begins: at == 0,
            warm_ns: warm.as_nanos() as u64,
            run_ns: run.as_nanos() as u64,
        };
        let cpu = cpus[usize::from(at >= LINKS / 2)];
        links.push(start(&Role::Link(link), Some(cpu), directory)?);
    }
    let measuring = links.pop().ok_or_else(|| failed("no links"))?;
    found(measuring, warm + run + Duration::from_secs(20), stop)
}

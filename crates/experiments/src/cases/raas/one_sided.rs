//! One-sided requests on this machine and in virtual time, by verbs, under locks and over the service.
//! Figures 2, 6, 7, 10 and 12 compare them.

use std::fmt;

use super::{Daemons, in_virtual_time, on_daemons, simulate};
use crate::cases::prelude::*;
use crate::service::Role;
use crate::service::load::{self, LoadTransport, StreamWaiting};
use crate::service::native_verbs::IdleQueuePairs;
use crate::service::virtual_time::{OneSidedLoad, OneSidedOp, RequestPath as Carrier};

/// Queue pairs of the requesting host's daemon, or of its threads.
pub(super) const QUEUE_PAIRS: Quantity = "queue pairs";
/// Size in bytes from which on responses share the link. Many are incomplete at the end, so received bytes
/// are counted instead of responses.
const LONG: usize = 4096;

/// An arm of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arm {
    name: &'static str,
    /// The transport of the requests. `Locked(0)` means that all threads share one queue pair, and `Workers(0)` that x is
    /// the number of workers.
    carrier: Carrier,
    /// Bytes of a response.
    pub(super) bytes: usize,
    /// Number of hosts that the requests go to.
    pub(super) targets: usize,
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.targets {
            1 => Ok(()),
            targets => write!(f, ", {} hosts", targets + 1),
        }
    }
}

impl Arm {
    pub(super) const fn native(name: &'static str, bytes: usize) -> Self {
        Self::new(name, Carrier::Native, bytes)
    }

    pub(super) const fn service(name: &'static str, bytes: usize) -> Self {
        Self::new(name, Carrier::Service, bytes)
    }

    pub(super) const fn workers(name: &'static str, bytes: usize) -> Self {
        Self::new(name, Carrier::Workers(0), bytes)
    }

    pub(super) const fn locked(name: &'static str, sharing: usize, bytes: usize) -> Self {
        Self::new(name, Carrier::Locked(sharing), bytes)
    }

    const fn new(name: &'static str, carrier: Carrier, bytes: usize) -> Self {
        Self {
            name,
            carrier,
            bytes,
            targets: 1,
        }
    }

    /// Returns the same arm with `targets` target hosts.
    pub(super) const fn to(self, targets: usize) -> Self {
        Self { targets, ..self }
    }

    pub(super) fn is_service(self) -> bool {
        self.carrier == Carrier::Service
    }

    /// Makes a load of READs from `region` bytes of each target host's memory.
    pub(super) fn reads(self, region: usize, callers: usize, connections: usize) -> OneSidedLoad {
        let bytes = self.bytes;
        OneSidedLoad {
            what: OneSidedOp::Reads { bytes, region },
            callers,
            connections,
            hosts: self.targets,
            outstanding: connections / callers,
        }
    }

    fn note(self, is_simulated: bool) -> ArmNote {
        let (what, waiting) = match (self.carrier, is_simulated) {
            (Carrier::Native, true) => (
                "verbs: each thread has its own queue pair for each connection, and posts each request by a separate \
                 call, as perftest does",
                "poll",
            ),
            (Carrier::Native, false) => (
                "verbs: one thread with its own queue pair for each connection, whose completion queue it polls",
                "poll",
            ),
            (Carrier::Locked(_), _) => (
                "verbs: threads share queue pairs and their completion queue under a fair lock, which they get in \
                 the order of asking; the thread that holds it takes all completions and posts a request",
                "poll",
            ),
            (Carrier::Service, true) => (
                "applications of one thread each, by one-sided operations on memory that the other end exports; the \
                 daemon of a host shares its queue pairs among all of them",
                "poll",
            ),
            (Carrier::Workers(_), _) => (
                "applications of one thread each, by one-sided operations; the workers of their daemon have a core each \
                 and carry the links to some of the other hosts each",
                "poll",
            ),
            (Carrier::Service, false) => (
                "one-sided operations of one thread over the service: all connections to a host share the queue pairs of \
                 one link",
                "adaptive",
            ),
        };
        let is_copied = !is_simulated && self.bytes > 8;
        let copies = if is_copied { "1" } else { "0" };
        arm(
            self.to_string(),
            format!("{what}; {} B each", self.bytes),
            waiting,
            copies,
        )
    }
}

/// Returns a quantity of an arm at x.
pub(super) const fn at(arm: Arm, x: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, x), quantity)
}

/// Measures points on this machine or in virtual time. `load` makes each point's load, and returns its time
/// in virtual time.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
    outcome: &mut Outcome,
    (points, sweep): (Vec<Point<Arm>>, Sweep),
    load: impl Fn(&Point<Arm>) -> (OneSidedLoad, Duration),
) -> Result<Measured<Arm>, RunError> {
    for Point { arm, .. } in &points {
        let note = arm.note(bench.testbed.is_simulated());
        if !t.arms.contains(&note) {
            t.arms.push(note);
        }
    }
    if bench.testbed.is_simulated() {
        return in_virtual_time(
            bench,
            outcome,
            (points, sweep),
            |bench, Point { arm, x, .. }| {
                let (load, run) = load(&Point::at(*arm, *x));
                let carrier = match arm.carrier {
                    Carrier::Locked(0) => Carrier::Locked(load.callers),
                    Carrier::Workers(0) => Carrier::Workers(*x as u16),
                    carrier => carrier,
                };
                let found = simulate(bench, load, carrier, run)?;
                let bytes = match arm.bytes >= LONG {
                    true => found.bytes_per_second,
                    false => found.per_second * arm.bytes as f64,
                };
                let queue_pairs = (QUEUE_PAIRS, found.queue_pairs as f64);
                Ok(Sample::of([
                    (RATE, found.per_second),
                    (BYTES, bytes),
                    queue_pairs,
                ]))
            },
        );
    }
    let hosts = points.iter().map(|point| load(point).0.hosts + 1).max();
    let plan = (points, sweep);
    on_daemons(
        bench,
        outcome,
        hosts.unwrap_or(2),
        plan,
        |bench, served, point, time| {
            let figure = request(bench, served, point.arm, load(point).0, time)?;
            let queue_pairs = match point.arm.is_service() {
                true => served.hosts.queue_pairs(0)?,
                false => point.x as f64,
            };
            Ok(Sample::of([
                (RATE, figure),
                (BYTES, figure),
                (QUEUE_PAIRS, queue_pairs),
            ]))
        },
    )
}

/// Measures one point on this machine: bytes read per second, or additions per second.
fn request(
    bench: &Bench<'_>,
    served: &Daemons,
    arm: Arm,
    load: OneSidedLoad,
    time: Wall,
) -> Result<f64, WorkloadError> {
    let what = load::LoadKind::Requests(load);
    if arm.is_service() {
        return served.ask(
            bench,
            what,
            served.streams(load.hosts, StreamWaiting::Adaptive),
            time,
        );
    }
    let mut names = Vec::new();
    let mut held = Vec::new();
    for host in 1..=load.hosts {
        let holding = IdleQueuePairs {
            device: served.hosts.device(host).to_string(),
            name: format!("held-{host}"),
            queue_pairs: load.connections / load.hosts,
            len: load.what.region(),
        };
        names.push(holding.name.clone());
        held.push(
            served
                .hosts
                .spawn_child(&Role::IdleQueuePairs(holding), bench.testbed.cpus[1])?,
        );
    }
    let device = served.hosts.device(0).to_string();
    served.ask(bench, what, LoadTransport::Verbs { device, names }, time)
}

//! A host with connections to many hosts, in virtual time: sharing of queue pairs, pacing and a receive pool together.
//!
//! The *server* is the host that is measured. It has two flows over the same queue pairs:
//!
//! - *out*: threads of the server WRITE messages of [`OUT_MESSAGE`] bytes to all other hosts, and keep a number of
//!   requests outstanding on each queue pair;
//! - *in*: the other hosts send messages of [`IN_MESSAGE`] bytes to the server, with a window for each host. Threads of
//!   the server receive them, read every byte and return the memory.
//!
//! | module | contents |
//! |---|---|
//! | `server` | the device objects of the server and of its peers; the receive memory |
//! | `actors` | the programs |

mod actors;
mod server;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use headworks::runtime::{Actor, ActorError, ActorInit, ActorRegistry, ActorSpec, Scenario, World};
use headworks::sim::{SimWorld, Usage, UsageMonitor};
use headworks::verbs::{DeviceName, Duration, Instant};

use crate::error::{Result, WorkloadError};
use crate::service::virtual_time::{Machine, quotient};
use crate::virtual_run::Drive;
use server::Objects;

/// Length of a message of the out flow, in bytes. Shorter messages make the cost of a cache miss visible.
pub const OUT_MESSAGE: usize = 512;
/// Length of a message of the in flow, in bytes: a unit of the receive pool.
pub const IN_MESSAGE: usize = 4096;
/// Requests of the out flow that are outstanding on each queue pair.
pub const DEPTH: usize = 128;
/// Limit of the requests of the out flow that are outstanding on all queue pairs together. It shortens the run: beyond
/// 2,048 queue pairs each has fewer than [`DEPTH`].
pub const OUTSTANDING_MAX: usize = 256 << 10;
/// Messages of the in flow that are outstanding in all, unless there are more hosts: each host has at least one.
pub const IN_OUTSTANDING: usize = 256;
/// Threads of the server that send, and as many that receive. Each queue pair belongs to one of each.
pub const THREADS: usize = 16;
/// Queue pairs between two hosts if connections share them: as many as the daemon has.
pub const SHARED_QUEUE_PAIRS: usize = 2;
/// Programs on the other hosts at most. A scenario has at most 1,024 actors, so with more hosts each program plays the
/// programs of several hosts, on a core of the first.
const PEER_PROGRAMS: usize = 256;
/// Length of a connection's receive ring, in bytes.
pub const RING: usize = 64 << 10;

/// Constants of the machines without which bursts drop packets, and the rates that follow hide the caches: links are
/// paused in place.
pub const LOSSLESS: [(&str, &str); 5] = [
    ("dcqcn.on", "0"),
    ("nic.rx_pause", "768"),
    ("nic.rx_resume", "640"),
    ("switch.pause", "2048"),
    ("switch.resume", "1920"),
];

/// Name of the measured host.
const SERVER: &str = "server";
/// How long a run may take beyond its planned time.
const PATIENCE: Duration = Duration::from_millis(10);

/// A host with many connections.
#[derive(Clone, Debug, PartialEq)]
pub struct SharePacePool {
    /// Number of other hosts, at least 1.
    pub hosts: usize,
    /// Number of connections in all, a multiple of `hosts`.
    pub connections: usize,
    /// Whether the connections to a host share [`SHARED_QUEUE_PAIRS`] queue pairs. Otherwise each has its own.
    pub is_shared: bool,
    /// Requests of the out flow that are outstanding on each queue pair, at most: [`DEPTH`] unless a run varies it.
    pub depth: usize,
    /// Options that are appended to the name of the server's device: empty, or those that pace it, with a comma first.
    pub pacing: String,
    /// Processor time of pacing for each request, in nanoseconds.
    pub pacing_ns: u64,
    /// Whether messages arrive in the receive pool. Otherwise each connection has a ring.
    pub is_pooled: bool,
    /// Bandwidth that an antagonist on the server would use alone, in GB/s.
    pub antagonist: f64,
}

/// Measured values of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct SharePacePoolResult {
    /// Number of queue pairs of the server.
    pub queue_pairs: usize,
    /// Payload that the server sent, in bytes a second.
    pub out_per_s: f64,
    /// Payload that arrived at the server, in bytes a second.
    pub in_per_s: f64,
    /// Requests of the out flow that were outstanding, on all queue pairs together.
    pub outstanding: usize,
    /// Payload that the server sent in the first half of the measured time, over that of the second half. `None` if it
    /// sent nothing in the second half.
    pub drift: Option<f64>,
    /// Misses of the WQE cache for each request that the server sent. `None` if it sent none.
    pub wqe_misses: Option<f64>,
    /// Misses of the context cache for each message that the server sent or received. `None` if there was none.
    pub icm_misses: Option<f64>,
    /// Share of the lines that DMA wrote on the server and that were cached. `None` if it wrote none.
    pub ddio_hits: Option<f64>,
    /// Packets that were dropped, at any host.
    pub dropped: u64,
    /// Messages of the server that found no receive, and packets that were sent again at any host.
    pub repeated: u64,
}

impl SharePacePool {
    /// Returns the number of queue pairs of the server.
    pub fn queue_pairs(&self) -> usize {
        match self.is_shared {
            true => SHARED_QUEUE_PAIRS * self.hosts,
            false => self.connections,
        }
    }

    /// Returns how many requests of the out flow are outstanding on each queue pair.
    pub fn depth(&self) -> usize {
        self.depth.min(OUTSTANDING_MAX / self.queue_pairs()).max(1)
    }

    /// Returns how many messages of the in flow each host has outstanding.
    fn window(&self) -> usize {
        (IN_OUTSTANDING / self.hosts).max(1)
    }

    /// Runs the load on such machines for `times`: warm-up and measured time, in virtual time.
    ///
    /// # Errors
    ///
    /// An actor failed, a request failed, or `stop` was set.
    pub fn measure(
        &self,
        machine: &Machine,
        times: (Duration, Duration),
        stop: &AtomicBool,
    ) -> Result<SharePacePoolResult> {
        if self.hosts == 0 || !self.connections.is_multiple_of(self.hosts) {
            let why = "the number of connections must be a multiple of the number of hosts";
            return Err(WorkloadError(why.to_owned()));
        }
        let from = Instant::ZERO + times.0;
        let run = Run {
            load: self.clone(),
            machine: machine.clone(),
            measured: (from, from + times.1),
            monitor: Arc::default(),
            state: Arc::default(),
        };
        let mut actors = ActorRegistry::new();
        let mut parts = Vec::new();
        // Every role is an actor of one host. The first that is made also makes the objects of all hosts.
        let mut add = |host: &str, role: String, make: MakeActor| -> Result<()> {
            let device = run.device(host, "")?;
            parts.push(ActorSpec::new(role.clone(), role.clone()).on(device));
            let run = run.clone();
            actors.register(&role, move |part: &ActorInit| {
                run.prepare(part)?;
                make(&run)
            });
            Ok(())
        };
        for thread in 0..THREADS {
            add(
                SERVER,
                format!("sends{thread}"),
                Box::new(move |run| actors::sender(run, thread)),
            )?;
            add(
                SERVER,
                format!("receives{thread}"),
                Box::new(move |run| actors::receiver(run, thread)),
            )?;
        }
        for program in 0..self.hosts.min(PEER_PROGRAMS) {
            let name = peer_name(program);
            let role = name.clone();
            add(
                &name,
                role,
                Box::new(move |run| actors::peers(run, program)),
            )?;
        }
        add(SERVER, "counts".to_owned(), Box::new(actors::counter))?;
        let count = parts.len();
        let world = SimWorld::new(actors, machine.preset.clone(), machine.seed)
            .with_antagonist(SERVER, self.antagonist);
        run.monitor.get_or_init(|| world.usage_monitor());
        let running = world.start(&Scenario::of(parts));
        let mut running = running.map_err(|e| WorkloadError::at("scenario", e))?;
        let drive = Drive {
            actors: count,
            limit: run.measured.1 + PATIENCE,
            every: Duration::from_micros(100),
            stop,
        };
        drive.to_end(&mut *running, |_, _| Ok(()))?;
        drop(running);
        run.result()
    }
}

/// Makes an actor of a run.
type MakeActor = Box<dyn Fn(&Run) -> Result<Box<dyn Actor>, ActorError> + Send + Sync>;

fn peer_name(host: usize) -> String {
    format!("peer{host}")
}

/// A run. Clones share its state.
#[derive(Clone)]
struct Run {
    load: SharePacePool,
    machine: Machine,
    /// Begin and end of the measured time.
    measured: (Instant, Instant),
    monitor: Arc<OnceLock<Arc<UsageMonitor>>>,
    state: Arc<Mutex<RunState>>,
}

#[derive(Default)]
struct RunState {
    /// The objects of all hosts, once they are made.
    objects: Option<Objects>,
    /// Messages of the in flow that the server has consumed, by sending host. A sender reads its window there, so that
    /// credit costs no time and no bandwidth.
    consumed: Vec<u64>,
    /// Counters at the begin, in the middle and at the end of the measured time.
    readings: Vec<Usage>,
}

impl Run {
    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device of a host, with further options.
    fn device(&self, host: &str, options: &str) -> Result<DeviceName> {
        let name = format!("sim:{},host={host}{options}", self.machine.preset.name);
        name.parse().map_err(|e| WorkloadError::at("device", e))
    }

    /// Makes the objects of all hosts, unless they are there.
    fn prepare(&self, part: &ActorInit) -> Result<(), ActorError> {
        let mut state = self.state();
        if state.objects.is_none() {
            state.objects = Some(Objects::make(self, &part.opener)?);
            state.consumed = vec![0; self.load.hosts];
        }
        Ok(())
    }

    /// Returns what was measured.
    fn result(&self) -> Result<SharePacePoolResult> {
        let state = self.state();
        let [first, middle, last] = &state.readings[..] else {
            return Err(WorkloadError("nothing was measured".to_owned()));
        };
        let all = last.since(first);
        let sent = |usage: &Usage| {
            let server = usage.hosts.iter().find(|host| host.host == SERVER);
            server.map_or(0, |host| host.counters.bytes_out) as f64
        };
        let halves = [middle.since(first), last.since(middle)];
        let [early, late] = halves.each_ref().map(sent);
        let server = all.hosts.iter().find(|host| host.host == SERVER);
        let server = server.ok_or_else(|| WorkloadError("the server is missing".to_owned()))?;
        let receiving = server.receiving.unwrap_or_default();
        // `over` is in picoseconds.
        let seconds = all.over as f64 * 1e-12;
        let counters = &server.counters;
        let sent_messages = counters.requests as f64;
        let arrived = counters.bytes_in as f64 / IN_MESSAGE as f64;
        let lines = (receiving.dma_hits + receiving.dma_misses) as f64;
        Ok(SharePacePoolResult {
            queue_pairs: self.load.queue_pairs(),
            out_per_s: counters.bytes_out as f64 / seconds,
            in_per_s: counters.bytes_in as f64 / seconds,
            outstanding: self.load.queue_pairs() * self.load.depth(),
            drift: quotient(early, late),
            wqe_misses: quotient(counters.wqe_misses as f64, sent_messages),
            icm_misses: quotient(counters.icm_misses as f64, sent_messages + arrived),
            ddio_hits: quotient(receiving.dma_hits as f64, lines),
            dropped: all
                .hosts
                .iter()
                .filter_map(|host| host.receiving)
                .map(|host| host.dropped)
                .sum(),
            repeated: all
                .hosts
                .iter()
                .map(|host| host.counters.sent_again + host.counters.not_ready)
                .sum(),
        })
    }
}

//! Collective operations of MPI in virtual time: eight processes on two hosts move messages by READs into receive
//! memory, while an antagonist may use the memory of both hosts.
//!
//! Each operation is a table of [`Message`]s ([`Pattern::steps`]). A process begins a step when its part of the step
//! before is over: it has all messages to it, and the receivers have all messages from it.
//!
//! A message between hosts is announced by its sender and READ by its receiver, a part of it on each port. The process
//! copies what has arrived from the receive memory to the buffer of the operation, and adds it to what is there if the
//! operation reduces. A message within a host is copied by its receiver from the sender's buffer. Processes copy only in
//! name: the simulation counts the time and the memory accesses of the copies, and no bytes move.
//!
//! | module | contents |
//! |---|---|
//! | `steps` | the operations as tables |
//! | `process` | a process |

mod process;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use headworks::runtime::{Actor, ActorError, ActorRegistry, ActorSpec, Scenario, World};
use headworks::sim::{HostCounters, SimWorld, Usage, UsageMonitor};
use headworks::verbs::{Device, DeviceName, Duration, Instant, QueuePair, RemoteAddr};

pub use self::steps::{Message, Pattern};
use crate::error::{Result, WorkloadError};
use crate::service::virtual_time::Machine;
use crate::virtual_run::{Drive, connect};

/// Processes, and hosts that they run on.
pub const PROCESSES: usize = 8;
/// See [`PROCESSES`].
pub const HOSTS: usize = 2;
/// Bytes of the receive pool of a host. Its processes share it equally.
pub const POOL: u64 = 8 << 20;
/// Processes on a host.
const LOCAL: usize = PROCESSES / HOSTS;
/// READs in flight on a host in arms with windows, and on a queue pair in all arms.
const READS: u32 = 32;
const READ_DEPTH: u32 = 16;
/// How long a run may take beyond its planned time. The last operation begins before the planned end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Way of messages between hosts into the buffer of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReceiveWay {
    /// READ into an area of each connection that holds a whole message, and copied from there.
    Areas,
    /// As [`ReceiveWay::Areas`], but copies out of the areas cost nothing, except of what is added to other data.
    AreasFreeCopies,
    /// READ into the process's part of the host's receive pool, with its windows, and copied from there.
    Pool,
}

/// Placement of the processes on the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// The first half of the processes on the first host.
    Block,
    /// Processes on the hosts in turn.
    Cyclic,
}

impl Placement {
    /// Returns the number of the host that a process runs on.
    fn host_of(self, rank: usize) -> usize {
        match self {
            Self::Block => rank / LOCAL,
            Self::Cyclic => rank % HOSTS,
        }
    }
}

/// An operation that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The operation.
    pub pattern: Pattern,
    /// Bytes of a message as MPI's benchmarks name it ([`Pattern::steps`]).
    pub bytes: u64,
    /// Placement of the processes.
    pub placement: Placement,
    /// Way of messages between hosts.
    pub way: ReceiveWay,
    /// Whether receive memory is released by slices of 4 KiB, each when it is copied. If not, it is released when all
    /// that one READ brought is copied.
    pub by_slices: bool,
}

/// Measured values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectiveResult {
    /// Operations that were measured.
    pub count: usize,
    /// Mean time of an operation over all processes and operations, in nanoseconds.
    pub mean_ns: f64,
    /// Mean time of the slowest process of each operation, in nanoseconds.
    pub slowest_ns: f64,
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Bytes that arrived at both hosts.
    pub arrived: u64,
    /// Lines that the RNICs wrote and that were cached, and lines that were not, of both hosts.
    pub dma_hits: u64,
    /// See `dma_hits`.
    pub dma_misses: u64,
    /// Share of the time for which an RNIC paused a port, averaged over all ports.
    pub paused: f64,
    /// Bytes that the RNICs and the processors of both hosts moved to or from memory, and those of the antagonists.
    pub memory: u64,
    /// See `memory`.
    pub memory_antagonist: u64,
}

impl Collective {
    /// Repeats the operation on such machines for `times`: warm-up and measured time, in virtual time. At least one
    /// operation is measured. All that begin in the measured time are.
    ///
    /// # Errors
    ///
    /// An actor failed, a request failed, or `stop` was set.
    pub fn measure(
        &self,
        machine: &Machine,
        times: (Duration, Duration),
        stop: &AtomicBool,
    ) -> Result<CollectiveResult> {
        let from = Instant::ZERO + times.0;
        let run = Run {
            collective: *self,
            steps: Arc::new(self.pattern.steps(PROCESSES)),
            machine: machine.clone(),
            measured: (from, from + times.1),
            monitor: Arc::default(),
            state: Arc::default(),
        };
        let mut actors = ActorRegistry::new();
        let mut parts = Vec::new();
        for rank in 0..PROCESSES {
            let (role, run) = (format!("process{rank}"), run.clone());
            parts.push(ActorSpec::new(role.clone(), role.clone()).on(run.device(rank)?));
            actors.register(&role, move |part| {
                let process = process::Process::new(run.clone(), rank, part)?;
                Ok(Box::new(process) as Box<dyn Actor>)
            });
        }
        let world = SimWorld::new(actors, machine.preset.clone(), machine.seed);
        run.monitor.get_or_init(|| world.usage_monitor());
        let running = world.start(&Scenario::of(parts));
        let mut running = running.map_err(|e| WorkloadError::at("scenario", e))?;
        let drive = Drive {
            actors: PROCESSES,
            limit: run.measured.1 + PATIENCE,
            every: Duration::from_millis(1),
            stop,
        };
        drive.to_end(&mut *running, |_, _| Ok(()))?;
        drop(running);
        run.result()
    }
}

/// A run. Clones share its state.
#[derive(Clone)]
struct Run {
    collective: Collective,
    steps: Arc<Vec<Vec<Message>>>,
    machine: Machine,
    /// Begin and end of the measured time.
    measured: (Instant, Instant),
    monitor: Arc<OnceLock<Arc<UsageMonitor>>>,
    state: Arc<Mutex<RunState>>,
}

/// Number of an operation, step in it, and index of a message in the step.
type MessageId = (usize, usize, usize);

/// State that the processes share. MPI exchanges it by short messages and shared memory. Each time is the earliest at
/// which the other processes see the entry.
#[derive(Default)]
struct RunState {
    /// Queue pairs that their process has not taken yet: by process and peer. Those of two processes that are there are
    /// connected.
    queue_pairs: HashMap<(usize, usize), Vec<Box<dyn QueuePair>>>,
    /// Devices that processes have opened, by process.
    devices: HashMap<usize, Arc<dyn Device>>,
    /// Buffers of the operation, by process: address for READs, and address in this program.
    buffers: HashMap<usize, (RemoteAddr, usize)>,
    /// Messages that may be READ or copied, and messages that their receivers have.
    announced: HashMap<MessageId, Instant>,
    taken: HashMap<MessageId, Instant>,
    /// Processes that have ended the current operation.
    arrived: usize,
    /// Number of the current operation, and when it begins.
    current: (usize, Instant),
    is_over: bool,
    /// Time of each process in each measured operation, in nanoseconds.
    times: Vec<Vec<u64>>,
    /// Counters at the begin of the first measured operation, and at the end of the last one.
    readings: Vec<Usage>,
}

impl Run {
    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ports(&self) -> usize {
        self.machine.preset.ports as usize
    }

    fn host_of(&self, rank: usize) -> usize {
        self.collective.placement.host_of(rank)
    }

    /// Returns the device of a process. Processes of a host share its RNIC.
    fn device(&self, rank: usize) -> Result<DeviceName> {
        let (preset, host) = (&self.machine.preset.name, self.host_of(rank));
        let name = format!("sim:{preset},host=h{host}");
        name.parse().map_err(|e| WorkloadError::at("device", e))
    }

    /// Returns the peers of a process on the other host.
    fn remotes(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let placement = self.collective.placement;
        let host_of = move |rank| placement.host_of(rank);
        (0..PROCESSES).filter(move |peer| host_of(*peer) != host_of(rank))
    }

    /// Connects the queue pairs of a process to those of its peers that are there already.
    fn connect(
        &self,
        device: &Arc<dyn Device>,
        state: &mut RunState,
        rank: usize,
    ) -> Result<(), ActorError> {
        state.devices.insert(rank, device.clone());
        for peer in self.remotes(rank) {
            let Some(mut theirs) = state.queue_pairs.remove(&(peer, rank)) else {
                continue;
            };
            let their_device = state
                .devices
                .get(&peer)
                .cloned()
                .ok_or_else(|| ActorError::new("no device"))?;
            let mut ours = state
                .queue_pairs
                .remove(&(rank, peer))
                .ok_or_else(|| ActorError::new("no queue pairs"))?;
            for (ours, theirs) in ours.iter_mut().zip(&mut theirs) {
                connect((&**device, &mut **ours), (&*their_device, &mut **theirs))?;
            }
            state.queue_pairs.insert((rank, peer), ours);
            state.queue_pairs.insert((peer, rank), theirs);
        }
        Ok(())
    }

    /// Returns what was measured.
    fn result(&self) -> Result<CollectiveResult> {
        let state = self.state();
        let [first, last] = &state.readings[..] else {
            return Err(WorkloadError("nothing was measured".to_owned()));
        };
        let all = last.since(first);
        let times = state.times.iter().flatten();
        let sum: u64 = times.sum();
        let count = state.times.len();
        let slowest = state.times.iter().filter_map(|one| one.iter().max());
        let hosts = || all.hosts.iter().filter_map(|host| host.receiving);
        let sum_of =
            |value: fn(&HostCounters) -> u64| hosts().map(|host| value(&host)).sum::<u64>();
        let paused = sum_of(|host| host.paused) as f64 / all.over as f64;
        Ok(CollectiveResult {
            count,
            mean_ns: sum as f64 / (count * PROCESSES) as f64,
            slowest_ns: slowest.sum::<u64>() as f64 / count as f64,
            // `over` is in picoseconds.
            seconds: all.over as f64 * 1e-12,
            arrived: all.hosts.iter().map(|host| host.counters.bytes_in).sum(),
            dma_hits: sum_of(|host| host.dma_hits),
            dma_misses: sum_of(|host| host.dma_misses),
            paused: paused / (HOSTS * self.ports()) as f64,
            memory: sum_of(|host| host.memory_rnic + host.memory_processors),
            memory_antagonist: sum_of(|host| host.memory_antagonist),
        })
    }
}

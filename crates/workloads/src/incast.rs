//! Incast in virtual time: many hosts send long WRITEs to one host whose memory an antagonist may use, and feed idle
//! hosts beside that. A program on the contended host may signal the senders.
//!
//! Each sender has a host of its own and sends two flows:
//!
//! - the *contended flow*: WRITEs of [`MESSAGE`] bytes to the contended host, as many as it can;
//! - the *victim flow*: WRITEs of [`VICTIM_MESSAGE`] bytes to an idle host, at [`VICTIM_SHARE`] of the sender's links.
//!   [`SENDERS_PER_IDLE_HOST`] senders share an idle host.
//!
//! Both flows use all ports of the sender, with a queue pair for each port.
//!
//! | module | contents |
//! |---|---|
//! | `sender` | the program on a sending host |
//! | `receiver` | the program on the contended host: it counts, and signals the senders |

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use headworks::runtime::{
    Actor, ActorError, ActorRegistry, ActorSpec, DeviceOpener, Scenario, World,
};
use headworks::sim::{Preset, SimWorld, Usage, UsageMonitor};
use headworks::verbs::{Device, DeviceName, Duration, Instant, QpCaps, RemoteAddr};
use headworks_baselines::{End, EndSizes, WordMemory};

use crate::error::{Result, WorkloadError};
use crate::latency::{Histogram, Quantiles};
use crate::service::virtual_time::Machine;
use crate::virtual_run::{Drive, connect};

/// Length of a message of the contended flow, in bytes.
pub const MESSAGE: usize = 256 << 10;
/// Length of a message of the victim flow, in bytes.
pub const VICTIM_MESSAGE: usize = 64 << 10;
/// Demand of a sender's victim flow, as a share of the rate of the sender's links.
pub const VICTIM_SHARE: f64 = 0.1;
/// Senders that share an idle host.
pub const SENDERS_PER_IDLE_HOST: usize = 4;
/// Messages of the contended flow that are outstanding on each queue pair.
pub const DEPTH: usize = 2;
/// Messages of the victim flow that are outstanding on each queue pair at most. A message that is due while so many
/// are outstanding is not sent.
pub const VICTIM_DEPTH: usize = 4;
/// Memory of the contended host that the senders write to, in bytes. They share it equally. It is longer than the
/// ways in which DMA allocates, whatever the number of senders.
pub const RECEIVE_MEMORY: usize = 32 << 20;
/// Length in bytes of the WRITEs into which a sender cuts its messages if signals limit its link: what the link's rate
/// lets pass at a time.
pub const SLICE: usize = 16 << 10;
/// Least time between two signals, as the daemon's receive pool has it.
pub const SIGNALS_EVERY: Duration = Duration::from_millis(1);
/// Length of a window over which goodput is counted.
pub const WINDOW: Duration = Duration::from_millis(1);

/// Name of the contended host.
const CONTENDED: &str = "contended";
/// How long a run may take beyond its planned time.
const PATIENCE: Duration = Duration::from_millis(100);

/// Limit of the senders' rates beside the network itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Options that are appended to the name of a sender's device; empty, or those that pace it, with a comma first.
    pub device_options: String,
    /// Whether a signal cuts the rate of the sender's whole RNIC. The device must be paced.
    pub cuts_rnic: bool,
    /// Whether a signal cuts the rate of the contended flow alone, by the rule of the daemon.
    pub cuts_link: bool,
}

impl Control {
    fn signals(&self) -> bool {
        self.cuts_rnic || self.cuts_link
    }
}

/// An incast.
#[derive(Clone, Debug, PartialEq)]
pub struct Incast {
    /// Number of sending hosts, at least one.
    pub senders: usize,
    /// Whether there is a contended flow. Without it, the victim flows are alone.
    pub is_contended: bool,
    /// Bandwidth that an antagonist on the contended host would use alone, in GB/s.
    pub antagonist: f64,
    /// The control loop.
    pub control: Control,
}

/// Measured values.
#[derive(Clone, Debug, PartialEq)]
pub struct IncastResult {
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Bytes that arrived at the contended host in each [`WINDOW`].
    pub windows: Vec<f64>,
    /// Bytes that arrived at the idle hosts.
    pub victim_bytes: u64,
    /// Share of the time for which the contended RNIC paused a port of the switch, averaged over its ports.
    pub paused: f64,
    /// Share of the time for which the switch paused a link of a sender, averaged over all their links.
    pub held: f64,
    /// Packets that were dropped, by the switch or by RNICs.
    pub dropped: u64,
    /// Packets that were sent again.
    pub sent_again: u64,
    /// Signals that the contended host gave. Each goes to all senders.
    pub signals: u64,
    /// Times of messages of the contended flow, from when a sender may begin them to their completion.
    pub messages: Quantiles,
    /// Times of messages of the victim flow, from when they are due to their completion.
    pub victim_messages: Quantiles,
    /// Bytes of the contended flow that completed, by sender.
    pub by_sender: Vec<f64>,
}

impl IncastResult {
    /// Returns the goodput of the contended host, in bytes a second.
    pub fn goodput(&self) -> f64 {
        self.windows.iter().sum::<f64>() / self.seconds
    }

    /// Returns the goodput of all idle hosts, in bytes a second.
    pub fn victim_goodput(&self) -> f64 {
        self.victim_bytes as f64 / self.seconds
    }
}

/// Returns the standard deviation of `values` over their mean; `NaN` if there are none or they are all zero.
pub fn variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / count;
    variance.sqrt() / mean
}

impl Incast {
    /// Runs the incast on such machines for `times`: warm-up and measured time, in virtual time.
    ///
    /// # Errors
    ///
    /// An actor failed, a request failed, or `stop` was set.
    pub fn measure(
        &self,
        machine: &Machine,
        times: (Duration, Duration),
        stop: &AtomicBool,
    ) -> Result<IncastResult> {
        let from = Instant::ZERO + times.0;
        let run = Run {
            incast: self.clone(),
            machine: machine.clone(),
            measured: (from, from + times.1),
            monitor: Arc::default(),
            state: Arc::default(),
        };
        let mut actors = ActorRegistry::new();
        let mut parts = Vec::new();
        let mut add = |role: String, device: DeviceName| {
            parts.push(ActorSpec::new(role.clone(), role).on(device));
        };
        let for_receiver = run.clone();
        actors.register(CONTENDED, move |_| {
            Ok(Box::new(receiver::Receiver::new(for_receiver.clone())) as Box<dyn Actor>)
        });
        add(CONTENDED.to_owned(), run.device(CONTENDED, "")?);
        for number in 0..self.senders {
            let (role, run) = (sender_name(number), run.clone());
            add(
                role.clone(),
                run.device(&role, &self.control.device_options)?,
            );
            actors.register(&role, move |part| {
                let sender = sender::Sender::new(run.clone(), number, part)?;
                Ok(Box::new(sender) as Box<dyn Actor>)
            });
        }
        let count = parts.len();
        let world = SimWorld::new(actors, machine.preset.clone(), machine.seed)
            .with_antagonist(CONTENDED, self.antagonist);
        run.monitor.get_or_init(|| world.usage_monitor());
        let running = world.start(&Scenario::of(parts));
        let mut running = running.map_err(|e| WorkloadError::at("scenario", e))?;
        let drive = Drive {
            actors: count,
            limit: run.measured.1 + PATIENCE,
            every: Duration::from_millis(1),
            stop,
        };
        drive.to_end(&mut *running, |_, _| Ok(()))?;
        drop(running);
        run.result()
    }

    /// Returns the number of idle hosts.
    fn idle_hosts(&self) -> usize {
        self.senders.div_ceil(SENDERS_PER_IDLE_HOST)
    }
}

fn sender_name(number: usize) -> String {
    format!("sender{number}")
}

fn idle_name(number: usize) -> String {
    format!("idle{number}")
}

/// A run. Clones share its state.
#[derive(Clone)]
struct Run {
    incast: Incast,
    machine: Machine,
    /// Begin and end of the measured time.
    measured: (Instant, Instant),
    monitor: Arc<OnceLock<Arc<UsageMonitor>>>,
    state: Arc<Mutex<RunState>>,
}

#[derive(Default)]
struct RunState {
    /// Ends of queue pairs on hosts that only receive, by host.
    remotes: BTreeMap<String, Remote>,
    messages: Histogram,
    victim_messages: Histogram,
    by_sender: Vec<f64>,
    signals: u64,
    /// Counters at the begin of the measured time, and at the end of each window.
    looks: Vec<Usage>,
}

/// A host that only receives.
struct Remote {
    end: End,
    memory: WordMemory,
}

impl Run {
    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn preset(&self) -> &Preset {
        &self.machine.preset
    }

    fn ports(&self) -> usize {
        self.preset().ports as usize
    }

    /// Returns the device of a host, with further options.
    fn device(&self, host: &str, options: &str) -> Result<DeviceName> {
        let name = format!("sim:{},host={host}{options}", self.preset().name);
        name.parse().map_err(|e| WorkloadError::at("device", e))
    }

    /// Returns whether an event at `now` belongs to the measured time.
    fn measures(&self, now: Instant) -> bool {
        (self.measured.0..self.measured.1).contains(&now)
    }

    /// Makes a queue pair for each port of `ours` to the host called `host`, which has `len` bytes of memory. Returns
    /// the address of that memory.
    fn connect(
        &self,
        opener: &DeviceOpener,
        ours: &mut End,
        sizes: &EndSizes,
        (host, len): (&str, usize),
    ) -> Result<RemoteAddr, ActorError> {
        let theirs = sizes_of(self.ports(), 1);
        let mut state = self.state();
        if !state.remotes.contains_key(host) {
            let device: Arc<dyn Device> = opener(&self.device(host, "")?)?;
            let end = End::open(device, &theirs)?;
            let memory = end.memory(len)?;
            state
                .remotes
                .insert(host.to_owned(), Remote { end, memory });
        }
        let remote = state.remotes.get_mut(host);
        let remote = remote.ok_or_else(|| ActorError::new("no such host"))?;
        let (from, to) = (ours.queue_pairs.len(), remote.end.queue_pairs.len());
        ours.populate(sizes)?;
        remote.end.populate(&theirs)?;
        let (our_device, their_device) = (ours.device.clone(), remote.end.device.clone());
        let pairs = ours.queue_pairs[from..]
            .iter_mut()
            .zip(&mut remote.end.queue_pairs[to..]);
        for (ours, theirs) in pairs {
            connect((&*our_device, &mut **ours), (&*their_device, &mut **theirs))?;
        }
        Ok(remote.memory.region().remote(0))
    }

    /// Returns what was measured.
    fn result(&self) -> Result<IncastResult> {
        let state = self.state();
        let (Some(first), Some(last)) = (state.looks.first(), state.looks.last()) else {
            return Err(WorkloadError("nothing was measured".to_owned()));
        };
        let all = last.since(first);
        // `over` is in picoseconds.
        let seconds = all.over as f64 * 1e-12;
        let arrived = |usage: &Usage| {
            let mut hosts = usage.hosts.iter();
            let contended = hosts.find(|host| host.host == CONTENDED);
            contended.map_or(0, |host| host.counters.bytes_in)
        };
        let windows = state.looks.windows(2);
        let windows = windows.map(|pair| (arrived(&pair[1]) - arrived(&pair[0])) as f64);
        let of = |prefix: &'static str| {
            let hosts = all.hosts.iter();
            hosts.filter(move |host| host.host.starts_with(prefix))
        };
        let receiving = |prefix| of(prefix).filter_map(|host| host.receiving);
        let paused: u64 = receiving(CONTENDED).map(|host| host.paused).sum();
        let held: u64 = receiving("sender").map(|host| host.held).sum();
        let share = |time: u64, links: usize| time as f64 / all.over as f64 / links as f64;
        Ok(IncastResult {
            seconds,
            windows: windows.collect(),
            victim_bytes: of("idle").map(|host| host.counters.bytes_in).sum(),
            paused: share(paused, self.ports()),
            held: share(held, self.ports() * self.incast.senders),
            dropped: receiving("").map(|host| host.dropped).sum(),
            sent_again: of("").map(|host| host.counters.sent_again).sum(),
            signals: state.signals,
            messages: state.messages.quantiles(1.0),
            victim_messages: state.victim_messages.quantiles(1.0),
            by_sender: state.by_sender.clone(),
        })
    }
}

/// Returns the sizes of `queue_pairs` queue pairs that hold `requests` requests each and receive nothing.
fn sizes_of(queue_pairs: usize, requests: usize) -> EndSizes {
    EndSizes {
        queue_pairs,
        caps: QpCaps {
            max_send_wr: requests as u32,
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth: (4 * queue_pairs * requests) as u32,
        shared_receives: 0,
        channel: false,
    }
}

//! A storage server that receives messages by READs into receive memory, as Jet does, where time is virtual.
//!
//! Each connection has a number of messages under way: one is announced, the server READs it, a device such as an SSD
//! reads it from memory during some time, and then the next one is announced. The announcement takes a fixed time and
//! no bandwidth. The receive memory is the [receive pool's](headworks_rxpool::receiver::Receiver), with its admission
//! and windows, or an area that is used in turn from its beginning to its end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use headworks::verbs::{Access, AllocRequest, Duration, Instant, Pages, RemoteAddr};
use headworks_runtime::{ActorContext, Step};
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::AppLimits;
use headworks_rxpool::receiver::{Announcement, LinkId, Receiver, ReceiverEvent, TransferId};
use headworks_rxpool::units::UNIT;
use serde::{Deserialize, Serialize};

use super::endpoint::acting;
use super::requester::Requester;
use super::verb_load::{finished, pair};
use super::{Made, Setup, Verb, VerbLoad};
use crate::actor_pair::{BEGIN, PairMail};
use crate::error::{Result, WorkloadError};
use crate::latency::Histogram;
use crate::random::Random;
use crate::report::Report;

/// Distribution of the time for which a message stays in memory after it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StayTime {
    /// Always the same.
    Fixed,
    /// Exponential.
    Exponential,
    /// Pareto with shape 2.5: few messages stay for very long.
    Pareto,
}

impl StayTime {
    /// Draws a time with this mean.
    fn draw(self, mean_ns: u64, random: &mut Random) -> u64 {
        const SHAPE: f64 = 2.5;
        let (mean, rest) = (mean_ns as f64, 1.0 - random.unit());
        let drawn = match self {
            Self::Fixed => mean,
            Self::Exponential => -rest.ln() * mean,
            Self::Pareto => mean * (SHAPE - 1.0) / SHAPE * rest.powf(-1.0 / SHAPE),
        };
        drawn as u64
    }
}

/// Load of a storage server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StorageLoad {
    /// Bytes of a message.
    pub size: usize,
    /// Connections, and messages under way on each.
    pub connections: usize,
    /// See `connections`.
    pub outstanding: usize,
    /// Bytes of receive memory.
    pub memory: u64,
    /// Whether the memory that was released most recently is used next, as in the pool. If not, the memory is used in
    /// turn, as areas of connections are.
    pub is_pool: bool,
    /// Whether at most 32 READs and 8 MiB of READs are in flight.
    pub has_windows: bool,
    /// Whether memory is released by slices of 4 KiB, each when the device has read it. If not, a message's memory is
    /// released when the device has read all of it.
    pub by_slices: bool,
    /// Mean time for which a message stays in memory, in nanoseconds, and its distribution.
    pub stay_ns: u64,
    /// See `stay_ns`.
    pub stay: StayTime,
}

/// Time from the end of a message to the announcement of the next one.
const ANNOUNCE_NS: u64 = 4_000;
/// READs that a queue pair may have in flight.
const READ_DEPTH: usize = 16;
/// Processor time for an event of the receive memory, in nanoseconds: taking or releasing memory.
const EVENT_NS: u64 = 40;
/// Releases that one step does at most.
const RELEASES: usize = 256;

/// Makes the actor of `load` for the pair's role.
pub(super) fn part(load: StorageLoad, setup: &Setup<'_>) -> Made {
    let reads = VerbLoad {
        queue_pairs: load.connections,
        depth: READ_DEPTH,
        ..VerbLoad::of(Verb::Read, load.size)
    };
    let (warm_ns, run_ns) = (setup.task.warm_ns, setup.task.run_ns);
    pair(reads, setup, move |source| {
        server(load, source, (warm_ns, run_ns))
    })
}

/// Returns the configuration of the receive memory.
fn memory_config(load: &StorageLoad) -> PoolConfig {
    let unlimited = PoolConfig {
        reads: 1024,
        read_bytes: load.memory.max(PoolConfig::default().read_bytes),
        ..PoolConfig::default()
    };
    let windows = match load.has_windows {
        true => PoolConfig::default(),
        false => unlimited,
    };
    let config = PoolConfig {
        budget: load.memory,
        ..windows
    };
    match load.is_pool {
        true => config,
        // An area has no escape: it is used up, and then there is none.
        false => PoolConfig {
            is_in_turn: true,
            cache_safe: Some(2 * u64::from(UNIT)),
            cache_danger: Some(u64::from(UNIT)),
            mem_esc: Some(0),
            ..config
        },
    }
}

/// Memory to be read by the device, and released after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaving {
    transfer: TransferId,
    held: HeldExtent,
    from: u32,
    units: u32,
}

/// A message under way.
struct Message {
    connection: usize,
    announced: Instant,
    stay_ns: u64,
    /// Extents that arrived, where memory is released by whole messages.
    extents: Vec<HeldExtent>,
    /// Bytes that have arrived, and units that were not released.
    arrived: u64,
    left: u32,
}

struct Server {
    load: StorageLoad,
    receiver: Receiver,
    app: AppId,
    links: Vec<LinkId>,
    target: RemoteAddr,
    random: Random,
    messages: HashMap<TransferId, Message>,
    /// Connections whose next message is announced at that time.
    announcements: BinaryHeap<Reverse<(u64, usize)>>,
    /// Memory that is released at that time, by number.
    releases: BinaryHeap<Reverse<(u64, u64)>>,
    leaving: HashMap<u64, Leaving>,
    number: u64,
    done: u64,
    latency: Histogram,
}

fn server(load: StorageLoad, source: Requester, (warm_ns, run_ns): (u64, u64)) -> Made {
    let config = memory_config(&load);
    let bytes = u64::from(config.memory_units()) * u64::from(UNIT);
    let buffer = source.end.device.alloc(&AllocRequest {
        pages: Pages::PreferHuge,
        ..AllocRequest::of(bytes as usize)
    });
    let buffer = buffer.map_err(|e| WorkloadError::at("receive memory", e))?;
    let region = source.end.pd.register(&buffer, Access::LOCAL_WRITE);
    let region = region.map_err(|e| WorkloadError::at("receive memory", e))?;
    let receiver = Receiver::new(&config, region.into(), source.end.send_cq.clone());
    let mut receiver = receiver.map_err(|e| WorkloadError::at("receive memory", e))?;
    let app = receiver.add_app(AppLimits {
        class: Class::Normal,
        quota: u32::MAX,
    });
    let depth = READ_DEPTH as u32;
    let target = source.target;
    let Requester { end, .. } = source;
    let links = end.queue_pairs.into_iter();
    let links = links.map(|qp| receiver.add_link(qp, depth)).collect();
    let mut random = Random::new(load.size as u64);
    // Programs do not begin at the same time.
    let begins = (0..load.connections * load.outstanding)
        .map(|at| Reverse((random.below(50_000), at % load.connections)))
        .collect();
    let mut server = Server {
        load,
        receiver,
        app,
        links,
        target,
        random,
        messages: HashMap::new(),
        announcements: begins,
        releases: BinaryHeap::new(),
        leaving: HashMap::new(),
        number: 0,
        done: 0,
        latency: Histogram::default(),
    };
    let _device = end.device;
    let mut phase = Phase::Warm;
    acting(move |cx| {
        let _ = &_device;
        server.step(cx)?;
        let now = cx.now().nanos();
        match phase {
            Phase::Warm if now >= warm_ns => {
                phase = Phase::Ready;
                cx.report_and_go_on(&Report::Ready)?;
            }
            Phase::Ready if cx.receive_mail().is_some_and(|mail| mail == BEGIN) => {
                phase = Phase::Measured(now);
                (server.done, server.latency) = (0, Histogram::default());
            }
            Phase::Measured(began) if now >= began + run_ns => {
                return finished(
                    cx,
                    Report::Served {
                        messages: server.done,
                        nanos: now - began,
                        latency: server.latency.quantiles(1.0),
                    },
                );
            }
            _ => {}
        }
        Ok(Step::Again)
    })
}

/// Progress of the measurement.
enum Phase {
    Warm,
    Ready,
    /// Since that time, in nanoseconds.
    Measured(u64),
}

impl Server {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<()> {
        let now = cx.now();
        let mut events = self.announce(now)?;
        let stepped = self.receiver.step(now);
        stepped.map_err(|e| WorkloadError::at("receive memory", e))?;
        while let Some(event) = self.receiver.event() {
            events += 1;
            match event {
                ReceiverEvent::Arrived {
                    transfer,
                    at,
                    held,
                    len,
                } => self.arrived(transfer, (at, held, len), now),
                ReceiverEvent::Done(transfer) => self.arrived_whole(transfer, now),
                ReceiverEvent::Failed { why, .. } => {
                    return Err(WorkloadError::at("READs", why));
                }
                ReceiverEvent::Copy(_) | ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
            }
        }
        events += self.release(cx, now)?;
        cx.charge(Duration::from_nanos(EVENT_NS * events));
        Ok(())
    }

    /// Announces the messages that are due. Returns their number.
    fn announce(&mut self, now: Instant) -> Result<u64> {
        let mut count = 0;
        while let Some(&Reverse((at, connection))) = self.announcements.peek()
            && at <= now.nanos()
        {
            self.announcements.pop();
            let announced = self.receiver.announce(Announcement {
                link: self.links[connection],
                app: self.app,
                from: self.target.plus((connection * self.load.size) as u64),
                len: self.load.size as u64,
            });
            let id = announced.map_err(|e| WorkloadError::at("announcing", e))?;
            let message = Message {
                connection,
                announced: now,
                stay_ns: self.load.stay.draw(self.load.stay_ns, &mut self.random),
                extents: Vec::new(),
                arrived: 0,
                left: 0,
            };
            self.messages.insert(id, message);
            count += 1;
        }
        Ok(count)
    }

    /// Handles an extent that has arrived: with slices, the device reads them one after the other.
    fn arrived(
        &mut self,
        transfer: TransferId,
        (at, held, len): (u64, HeldExtent, u32),
        now: Instant,
    ) {
        let Some(message) = self.messages.get_mut(&transfer) else {
            return;
        };
        message.left += held.extent.units;
        message.arrived += u64::from(len);
        if !self.load.by_slices {
            message.extents.push(held);
            return;
        }
        let (stay, unit) = (message.stay_ns, u64::from(UNIT));
        let all = (self.load.size as u64).div_ceil(unit);
        for slice in 0..u64::from(held.extent.units.min(len.div_ceil(UNIT))) {
            let number = at / unit + slice;
            let due = now.nanos() + stay * (number + 1) / all;
            self.leave(due, transfer, held, (slice as u32, 1));
        }
    }

    /// Handles the end of a message's arrival.
    fn arrived_whole(&mut self, transfer: TransferId, now: Instant) {
        let Some(message) = self.messages.get_mut(&transfer) else {
            return;
        };
        self.done += 1;
        self.latency.record(now.since(message.announced));
        let due = now.nanos() + message.stay_ns;
        for held in std::mem::take(&mut message.extents) {
            self.leave(due, transfer, held, (0, held.extent.units));
        }
    }

    fn leave(
        &mut self,
        due: u64,
        transfer: TransferId,
        held: HeldExtent,
        (from, units): (u32, u32),
    ) {
        self.number += 1;
        self.releases.push(Reverse((due, self.number)));
        let leaving = Leaving {
            transfer,
            held,
            from,
            units,
        };
        self.leaving.insert(self.number, leaving);
    }

    /// Has the device read what is due, and releases it. Returns the number of releases.
    fn release(&mut self, cx: &mut ActorContext<'_>, now: Instant) -> Result<u64> {
        let mut count = 0;
        while count < RELEASES as u64
            && let Some(&Reverse((due, number))) = self.releases.peek()
            && due <= now.nanos()
        {
            self.releases.pop();
            let Some(leaving) = self.leaving.remove(&number) else {
                continue;
            };
            let Leaving {
                transfer,
                held,
                from,
                units,
            } = leaving;
            let offset = held.extent.offset() + u64::from(from) * u64::from(UNIT);
            let memory = self.receiver.region().buffer();
            let begin = memory.as_ptr().wrapping_add(offset as usize);
            cx.device_reads(begin, units as usize * UNIT as usize);
            let released = self.receiver.release(self.app, held, from, units, now);
            released.map_err(|e| WorkloadError::at("releasing", e))?;
            count += 1;
            let Some(message) = self.messages.get_mut(&transfer) else {
                continue;
            };
            message.left -= units;
            // A message is over when everything that has come is released, and all of it has come.
            let is_over = message.left == 0 && message.arrived == self.load.size as u64;
            if is_over && let Some(message) = self.messages.remove(&transfer) {
                let next = now.nanos() + ANNOUNCE_NS;
                self.announcements.push(Reverse((next, message.connection)));
            }
        }
        Ok(count)
    }
}

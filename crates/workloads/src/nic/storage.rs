//! A storage server that receives messages by READs into receive memory, as Jet does, where time is virtual.
//!
//! Each connection has a number of messages under way: one is announced, the server READs it, a device such as an SSD
//! reads it from memory during some time, and then the next one is announced. The announcement takes a fixed time and
//! no bandwidth. Messages of 4 KiB are sent by SENDs into shared receives (module `short_messages`). The grant of such
//! messages is a WRITE of eight bytes.
//!
//! The receive memory is the [receive pool's](headworks_rxpool::receiver::Receiver), with its admission and windows, or an
//! area that is used in turn from its beginning to its end.
//!
//! Some messages may be [`Stragglers`], which stay in memory for much longer than the others. If the pool then asks for a
//! copy of the application's data, the server copies what stragglers occupy, and releases it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use headworks::verbs::{Access, AllocRequest, Device, Duration, Instant, Pages, RemoteAddr};
use headworks_baselines::End;
use headworks_runtime::{ActorContext, Step};
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::AppLimits;
use headworks_rxpool::receiver::{Announcement, LinkId, Receiver, ReceiverEvent, TransferId};
use headworks_rxpool::units::UNIT;
use serde::{Deserialize, Serialize};

mod short_messages;
#[cfg(test)]
mod tests;

use self::short_messages::{SHORT, ShortServer};
use super::endpoint::acting;
use super::requester::Requester;
use super::verb_load::{finished, loaded_shape, pair};
use super::{Made, Setup, Verb, VerbLoad};
use crate::actor_pair::{BEGIN, PairMail, Role};
use crate::cpu_prices::Stragglers;
use crate::error::{Result, WorkloadError};
use crate::latency::Histogram;
use crate::random::Random;
use crate::report::{Report, StorageSample};

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
    /// Bytes of the longest message, and of the shortest one, at least 4,096. Each message has one of the powers of two
    /// from the shortest to the longest one, and all are equally frequent. Messages of 4,096 bytes are sent by SENDs.
    pub size: usize,
    /// See `size`.
    pub least: usize,
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
    /// Nanoseconds between two samples of the receive memory; 0 for none.
    pub sample_ns: u64,
}

impl StorageLoad {
    fn has_short_messages(&self) -> bool {
        self.least <= SHORT
    }

    /// Draws the bytes of a message. Loads whose messages are all alike draw nothing.
    fn draw_size(&self, random: &mut Random) -> usize {
        let sizes = (self.size / self.least).ilog2() + 1;
        match sizes {
            1 => self.size,
            sizes => self.least << random.below(sizes.into()),
        }
    }
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
    let times = (setup.task.warm_ns, setup.task.run_ns);
    let prices = setup.pair.prices;
    let stragglers = prices.map_or(Stragglers::NONE, |prices| prices.stragglers);
    let load_of = (load, stragglers);
    if !load.has_short_messages() {
        return pair(reads, setup, move |source| {
            server(load_of, source, None, times)
        });
    }
    let is_server = setup.pair.role == Role::Sender;
    let mut shape = loaded_shape(&reads, (load.connections * READ_DEPTH) as u32, 0);
    shape.caps.max_send_wr = READ_DEPTH as u32;
    let bulk = setup.source(reads, &shape, load.size * load.connections)?;
    let short = short_messages::end(&load, setup, is_server)?;
    let offered = (bulk.offer(0), short.offer(0));
    bulk.connect(offered.0, move |bulk| {
        short.connect(offered.1, move |short| match is_server {
            true => server(load_of, bulk, Some(ShortServer::new(&load, short)?), times),
            false => short_messages::client(load, bulk, short),
        })
    })
}

/// Returns the configuration of receive memory of that many bytes.
fn memory_config(load: &StorageLoad) -> PoolConfig {
    receive_memory(load.memory, load.is_pool, load.has_windows)
}

/// Returns the configuration of receive memory of `bytes` bytes: a pool, or areas that are used in turn. Windows limit
/// the READs in flight as in the pool's default.
pub(crate) fn receive_memory(bytes: u64, is_pool: bool, has_windows: bool) -> PoolConfig {
    let unlimited = PoolConfig {
        reads: 1024,
        read_bytes: bytes.max(PoolConfig::default().read_bytes),
        ..PoolConfig::default()
    };
    let windows = match has_windows {
        true => PoolConfig::default(),
        false => unlimited,
    };
    let config = PoolConfig {
        budget: bytes,
        ..windows
    };
    match is_pool {
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
enum Leaving {
    /// Units of an extent.
    Extent {
        transfer: TransferId,
        held: HeldExtent,
        from: u32,
        units: u32,
    },
    /// The memory of a receive.
    Short { connection: usize, slot: usize },
    /// Units of an extent that were released when their data was copied.
    Copied { transfer: TransferId, units: u32 },
}

/// A message under way.
struct Message {
    connection: usize,
    size: u64,
    announced: Instant,
    stay_ns: u64,
    is_straggler: bool,
    /// Extents that arrived, where memory is released by whole messages.
    extents: Vec<HeldExtent>,
    /// Bytes that have arrived, and units that were not released.
    arrived: u64,
    left: u32,
}

struct Server {
    load: StorageLoad,
    stragglers: Stragglers,
    short: Option<ShortServer>,
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
    /// Bytes of the messages that are done.
    bytes: u64,
    latency: Histogram,
    samples: Vec<StorageSample>,
    /// Keeps the device open.
    _device: Arc<dyn Device>,
}

/// Makes the server's program.
fn server(
    load: (StorageLoad, Stragglers),
    source: Requester,
    short: Option<ShortServer>,
    (warm_ns, run_ns): (u64, u64),
) -> Made {
    let mut server = Server::new(load, source, short)?;
    let mut phase = Phase::Warm;
    acting(move |cx| {
        server.step(cx)?;
        let now = cx.now().nanos();
        if let Phase::Measured(_) = phase {
            server.sample(now);
        }
        match phase {
            Phase::Warm if now >= warm_ns => {
                phase = Phase::Ready;
                cx.report_and_go_on(&Report::Ready)?;
            }
            Phase::Ready if cx.receive_mail().is_some_and(|mail| mail == BEGIN) => {
                phase = Phase::Measured(now);
                server.begin(now);
            }
            Phase::Measured(began) if now >= began + run_ns => {
                return finished(cx, server.report(now - began));
            }
            _ => {}
        }
        Ok(Step::Again)
    })
}

/// Makes the receiver of `load`, whose memory it allocates and registers on the device of `end`.
fn receiver_of(load: &StorageLoad, end: &End) -> Result<Receiver> {
    let config = memory_config(load);
    let bytes = u64::from(config.memory_units()) * u64::from(UNIT);
    let buffer = end.device.alloc(&AllocRequest {
        pages: Pages::PreferHuge,
        ..AllocRequest::of(bytes as usize)
    });
    let buffer = buffer.map_err(|e| WorkloadError::at("receive memory", e))?;
    let region = end.pd.register(&buffer, Access::LOCAL_WRITE);
    let region = region.map_err(|e| WorkloadError::at("receive memory", e))?;
    let receiver = Receiver::new(&config, region.into(), end.send_cq.clone());
    receiver.map_err(|e| WorkloadError::at("receive memory", e))
}

/// Progress of the measurement.
enum Phase {
    Warm,
    Ready,
    /// Since that time, in nanoseconds.
    Measured(u64),
}

impl Server {
    /// Makes a server that READs over the queue pairs of `source`.
    fn new(
        (load, stragglers): (StorageLoad, Stragglers),
        source: Requester,
        short: Option<ShortServer>,
    ) -> Result<Self> {
        let mut receiver = receiver_of(&load, &source.end)?;
        let app = receiver.add_app(AppLimits {
            class: Class::Normal,
            quota: u32::MAX,
        });
        let target = source.target;
        let Requester { end, .. } = source;
        let links = end.queue_pairs.into_iter();
        let links = links.map(|qp| receiver.add_link(qp, READ_DEPTH as u32));
        let links = links.collect();
        let mut random = Random::new(load.size as u64);
        // Programs do not begin at the same time.
        let begins = (0..load.connections * load.outstanding)
            .map(|at| Reverse((random.below(50_000), at % load.connections)))
            .collect();
        Ok(Self {
            load,
            stragglers,
            short,
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
            bytes: 0,
            latency: Histogram::default(),
            samples: Vec::new(),
            _device: end.device,
        })
    }

    /// Begins the measured time.
    fn begin(&mut self, now: u64) {
        (self.done, self.bytes) = (0, 0);
        self.latency = Histogram::default();
        self.sample(now);
    }

    /// Returns what was done in the measured time, which took `nanos`.
    fn report(&mut self, nanos: u64) -> Report {
        Report::Stored {
            messages: self.done,
            bytes: self.bytes,
            nanos,
            latency: self.latency.quantiles(1.0),
            samples: std::mem::take(&mut self.samples),
        }
    }

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
                ReceiverEvent::Copy(_) => self.copy_stragglers(cx, now)?,
                ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
            }
        }
        events += self.take_short(now)?;
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
            count += 1;
            let size = self.load.draw_size(&mut self.random);
            if size <= SHORT
                && let Some(short) = &mut self.short
            {
                short.grant(connection)?;
                continue;
            }
            let announced = self.receiver.announce(Announcement {
                link: self.links[connection],
                app: self.app,
                from: self.target.plus((connection * self.load.size) as u64),
                len: size as u64,
            });
            let id = announced.map_err(|e| WorkloadError::at("announcing", e))?;
            let (stay_ns, is_straggler) = self.draw_stay();
            let message = Message {
                connection,
                size: size as u64,
                announced: now,
                stay_ns,
                is_straggler,
                extents: Vec::new(),
                arrived: 0,
                left: 0,
            };
            self.messages.insert(id, message);
        }
        Ok(count)
    }

    /// Draws how long a message stays in memory, and whether it is a straggler. Without stragglers, nothing more is drawn.
    fn draw_stay(&mut self) -> (u64, bool) {
        let stay_ns = self.load.stay.draw(self.load.stay_ns, &mut self.random);
        let Stragglers { per_million, stay } = self.stragglers;
        match per_million > 0 && self.random.below(1_000_000) < per_million {
            true => (stay.nanos(), true),
            false => (stay_ns, false),
        }
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
        let all = message.size.div_ceil(unit);
        for slice in 0..u64::from(held.extent.units.min(len.div_ceil(UNIT))) {
            let number = at / unit + slice;
            let due = now.nanos() + stay * (number + 1) / all;
            self.leave(
                due,
                Leaving::Extent {
                    transfer,
                    held,
                    from: slice as u32,
                    units: 1,
                },
            );
        }
    }

    /// Handles short messages that have arrived. Returns their number.
    fn take_short(&mut self, now: Instant) -> Result<u64> {
        let Some(short) = &mut self.short else {
            return Ok(0);
        };
        let messages = short.take()?;
        let count = messages.len() as u64;
        for message in messages {
            self.done += 1;
            self.bytes += SHORT as u64;
            self.latency.record(now.since(message.sent));
            let (stay, _) = self.draw_stay();
            let (connection, slot) = (message.connection, message.slot);
            self.leave(now.nanos() + stay, Leaving::Short { connection, slot });
        }
        Ok(count)
    }

    /// Takes a sample of the receive memory if one is due.
    fn sample(&mut self, now: u64) {
        let every = self.load.sample_ns;
        let last = self
            .samples
            .last()
            .map(|sample| sample.at_ns / every.max(1));
        if every == 0 || last.is_some_and(|last| now / every <= last) {
            return;
        }
        let pool = self.receiver.pool();
        let (used, counters) = (pool.used(self.app), pool.counters());
        let bytes = |units: u32| u64::from(units) * u64::from(UNIT);
        self.samples.push(StorageSample {
            at_ns: now,
            bytes: self.bytes,
            held: bytes(used.held),
            replaced: bytes(pool.replaced()),
            replacements: counters.replacements,
            copies: counters.copies,
            signals: counters.signals,
        });
    }

    /// Handles the end of a message's arrival.
    fn arrived_whole(&mut self, transfer: TransferId, now: Instant) {
        let Some(message) = self.messages.get_mut(&transfer) else {
            return;
        };
        self.done += 1;
        self.bytes += message.size;
        self.latency.record(now.since(message.announced));
        let due = now.nanos() + message.stay_ns;
        for held in std::mem::take(&mut message.extents) {
            self.leave(
                due,
                Leaving::Extent {
                    transfer,
                    held,
                    from: 0,
                    units: held.extent.units,
                },
            );
        }
    }

    fn leave(&mut self, due: u64, leaving: Leaving) {
        self.number += 1;
        self.releases.push(Reverse((due, self.number)));
        self.leaving.insert(self.number, leaving);
    }

    /// Copies what stragglers occupy of the pool to other memory, and releases it.
    fn copy_stragglers(&mut self, cx: &mut ActorContext<'_>, now: Instant) -> Result<()> {
        let of_straggler = |(number, leaving): (&u64, &Leaving)| match leaving {
            Leaving::Extent { transfer, .. } => {
                let message = self.messages.get(transfer);
                message
                    .is_some_and(|message| message.is_straggler)
                    .then_some(*number)
            }
            Leaving::Short { .. } | Leaving::Copied { .. } => None,
        };
        let mut numbers: Vec<u64> = self.leaving.iter().filter_map(of_straggler).collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(&Leaving::Extent {
                transfer,
                held,
                from,
                units,
            }) = self.leaving.get(&number)
            else {
                continue;
            };
            let (begin, len) = self.memory_of(held, from, units);
            cx.reads(begin, len);
            cx.copied(len as u64);
            let released = self.receiver.release(self.app, held, from, units, now);
            released.map_err(|e| WorkloadError::at("releasing", e))?;
            self.leaving
                .insert(number, Leaving::Copied { transfer, units });
        }
        Ok(())
    }

    /// Returns the address and the length of units of an extent.
    fn memory_of(&self, held: HeldExtent, from: u32, units: u32) -> (*const u8, usize) {
        let offset = held.extent.offset() + u64::from(from) * u64::from(UNIT);
        let memory = self.receiver.region().buffer();
        let begin = memory.as_ptr().wrapping_add(offset as usize);
        (begin, units as usize * UNIT as usize)
    }

    /// Notes that units of a message are not needed any more. The next message is announced when this one is over.
    fn ended(&mut self, transfer: TransferId, units: u32, now: Instant) {
        let Some(message) = self.messages.get_mut(&transfer) else {
            return;
        };
        message.left -= units;
        // A message is over when everything that has come is released, and all of it has come.
        let is_over = message.left == 0 && message.arrived == message.size;
        if is_over && let Some(message) = self.messages.remove(&transfer) {
            self.announce_later(message.connection, now);
        }
    }

    /// Has the next message of a connection announced.
    fn announce_later(&mut self, connection: usize, now: Instant) {
        let next = now.nanos() + ANNOUNCE_NS;
        self.announcements.push(Reverse((next, connection)));
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
            count += 1;
            match leaving {
                Leaving::Extent {
                    transfer,
                    held,
                    from,
                    units,
                } => {
                    let (begin, len) = self.memory_of(held, from, units);
                    cx.device_reads(begin, len);
                    let released = self.receiver.release(self.app, held, from, units, now);
                    released.map_err(|e| WorkloadError::at("releasing", e))?;
                    self.ended(transfer, units, now);
                }
                Leaving::Short { connection, slot } => {
                    if let Some(short) = &self.short {
                        cx.device_reads(short.place(slot), SHORT);
                        short.receive(slot)?;
                    }
                    self.announce_later(connection, now);
                }
                // The device reads the copy, which is in memory that the model leaves out.
                Leaving::Copied { transfer, units } => self.ended(transfer, units, now),
            }
        }
        Ok(count)
    }
}

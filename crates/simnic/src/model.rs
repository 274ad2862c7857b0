//! The discrete-event model: hosts, their RNICs and the network between them.
//!
//! | module | contents |
//! |---|---|
//! | `host` | an RNIC: its units, pipes, caches, counters |
//! | `qp_states` | creation and state transitions of queue pairs |
//! | `queues` | queue pairs, completion queues, receives: their state |
//! | `send` | a request from its doorbell to the wire |
//! | `packet_arrival` | a packet from the wire to memory |
//! | `read_response` | responses to READs and atomics |
//! | `datagram` | datagrams |
//! | `instrumentation` | input for traces and utilisation tables |
//! | `fault_apply` | applies the faults that rules decide ([`crate::faults`]) |
//! | `object_counts` | counts of existing objects |
//! | `acknowledge` | acknowledgements, retries, the end of a request |
//! | `receiving_side` | the receiving host's memory, congestion and notifications |
//!
//! A message of one packet is four events: a sending unit takes it, it arrives at the other host, its bytes
//! are placed, its acknowledgement arrives. Everything between two events is computed at the first: a unit or
//! a pipe tells when its service ends ([`crate::hardware_units`]).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_verbs::{AsyncEvent, Duration, QpState, Status};
use slab::Slab;

use crate::completion_channel::SimChannel;
use crate::event_queue::EventQueue;
use crate::faults::Faults;
use crate::hardware_units::{NEVER, NS, Pipe, Ps, ns};
use crate::preset::Preset;
use crate::registered_memory::Regions;
use crate::wqe::cache_key;
use headworks_faults::Random;

mod acknowledge;
mod datagram;
mod fault_apply;
mod host;
mod instrumentation;
mod object_counts;
mod packet_arrival;
mod qp_states;
mod queues;
mod read_response;
mod receiving_side;
mod send;
mod unreliable;

pub(crate) use datagram::AddressHandles;
use datagram::DatagramHeader;
pub use host::Counters;
pub(crate) use host::Host;
pub(crate) use instrumentation::{ActorTime, Instrumentation};
pub use object_counts::ObjectCounts;
pub(crate) use queues::{Armed, Cq, Qp, Srq};
pub use receiving_side::Backlog;
pub(crate) use receiving_side::{ReceivingConstants, ReceivingSide};
use unreliable::UnreliablePart;

/// Number of low bits of a QPN that hold the queue pair's index. The bits above hold the index's generation.
const QP_NUMBER: u32 = 18;

static NETWORKS: AtomicU64 = AtomicU64::new(1);

/// All queue pairs by index, each with the generation of its index.
pub(crate) type Qps = Vec<(u32, Option<Box<Qp>>)>;

/// A scheduled event. Kept small, because the event queue moves it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A doorbell reaches the RNIC: requests before `upto` are posted.
    Doorbell { qp: QpRef, upto: u64 },
    /// A quiet doorbell, which has no `Doorbell` event, reaches a queue pair that has nothing else to send.
    Called { qp: QpRef },
    /// A sending unit becomes idle.
    Idle { host: u32, unit: usize },
    /// Packets reach the other host's RNIC.
    Arrive(PieceId),
    /// The packets have passed the receiving unit, and their bytes are written to memory.
    Place(PieceId),
    /// An acknowledgement or a NAK reaches the requester.
    Acknowledge {
        qp: QpRef,
        psn: u64,
        answer: Acknowledge,
    },
    /// The next part of a response is sent.
    Respond { qp: QpRef },
    /// An acknowledgement may be overdue.
    Timeout { qp: QpRef },
    /// A pause after an RNR NAK is over.
    Resume { qp: QpRef },
    /// A fault rule has a queue pair fail.
    Fails { qp: QpRef },
    /// A fault rule has the completion queue of a queue pair's requests overrun.
    Overruns { qp: QpRef },
    /// A change becomes visible on a host.
    HostChanged { host: u32 },
    /// A notification of congestion (CNP) reaches a sender.
    Notification { qp: QpRef },
    /// Fault rules are asked about the antagonist on a host.
    Memory { host: u32 },
    /// A completion queue notifies its channel. `life` is that of the queue which was armed.
    Channel { cq: u32, life: u32 },
}

/// A queue pair between two resets, identified by an index and a `life` that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpRef {
    pub(crate) index: u32,
    pub(crate) life: u32,
}

/// Index of a piece under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceId(u32);

impl PieceId {
    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }
}

/// Packets of a message that travel together.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The queue pair that sent it.
    pub(crate) from: QpRef,
    /// The queue pair that it is addressed to.
    pub(crate) to: QpRef,
    /// Number of the requester's request that it belongs to.
    pub(crate) wqe: u64,
    pub(crate) psn: u64,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) packets: u16,
    pub(crate) kind: PieceKind,
    pub(crate) last: bool,
    /// Index of the port that it leaves by, and of the port that it arrives at.
    pub(crate) port: u8,
    /// Time at which it had passed the receiving unit.
    pub(crate) received: Ps,
}

impl Piece {
    /// Returns the bytes that travel with it. A SEND or WRITE of a reliable connection has none: its bytes stay at the
    /// sender until it is placed.
    pub(crate) fn payload_bytes(&self) -> &[u8] {
        match &self.kind {
            PieceKind::Bytes | PieceKind::ReadRequest => &[],
            PieceKind::Response(bytes) => bytes,
            PieceKind::Datagram(label) => &label.bytes,
            PieceKind::Unreliable(part) => &part.bytes,
        }
    }
}

/// Kind of message that a piece belongs to.
#[derive(Debug)]
pub(crate) enum PieceKind {
    /// A SEND or a WRITE of a reliable connection.
    Bytes,
    /// A READ or an atomic.
    ReadRequest,
    /// A response, with its bytes.
    Response(Box<[u8]>),
    /// A datagram.
    Datagram(Box<DatagramHeader>),
    /// A SEND or a WRITE of an unreliable connection, with its bytes.
    Unreliable(Box<UnreliablePart>),
}

/// An acknowledgement or a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledge {
    /// All packets before this number were received.
    Ack,
    /// RNR NAK; the sender must pause for this many nanoseconds.
    RnrNak(u32),
    /// A packet is missing: another sequence number was expected.
    SequenceNak,
    /// The request cannot be carried out.
    Nak(Status),
}

/// The actor that is acting, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActingActor {
    pub(crate) host: u32,
    pub(crate) now: Ps,
    /// No event after this time may be processed before another actor has acted.
    pub(crate) limit: Ps,
    /// Whether it has done work, rather than only looked.
    pub(crate) has_worked: bool,
}

/// State of all hosts, RNICs and the network.
pub(crate) struct Model {
    pub(crate) preset: Preset,
    pub(crate) cost: Costs,
    pub(crate) now: Ps,
    pub(crate) event_queue: EventQueue<Event>,
    /// Packets under way.
    pub(crate) pieces: Slab<Piece>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) qps: Qps,
    pub(crate) free_qps: VecDeque<u32>,
    pub(crate) cqs: Vec<Option<Cq>>,
    /// Counts the completion channels: each of them holds a clone.
    pub(crate) channels: Arc<()>,
    pub(crate) srqs: Vec<Option<Srq>>,
    pub(crate) regions: Regions,
    pub(crate) handles: AddressHandles,
    pub(crate) random: Random,
    /// Constants of the receiving hosts' memory and of congestion, if the preset models them.
    pub(crate) receiving: Option<Box<ReceivingConstants>>,
    /// Fault injection, if there are rules.
    pub(crate) faults: Option<Box<Faults>>,
    pub(crate) acting: Option<ActingActor>,
    /// Time of calls that come from outside of a world.
    pub(crate) outside: Ps,
    pub(crate) next_pd: u32,
    /// Number of times that a device was opened.
    pub(crate) opened: u32,
    /// Identifies this network among those of all processes.
    pub(crate) network: u64,
    pub(crate) events: u64,
    /// Hosts with a reported change, and its time, since the world last took this list.
    pub(crate) changed_hosts: Vec<(u32, Ps)>,
    /// Whether a world's actors use the model and may wait for changes.
    pub(crate) has_actors: bool,
    /// Computing time of each actor.
    pub(crate) actors: Vec<ActorTime>,
    /// Tracing, if it is on.
    pub(crate) instrumentation: Option<Box<Instrumentation>>,
    next_life: u32,
}

/// The preset's costs, in picoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) post: Ps,
    pub(crate) ring: Ps,
    pub(crate) inline_line: Ps,
    pub(crate) post_recv: Ps,
    pub(crate) poll_empty: Ps,
    pub(crate) poll_cqe: Ps,
    pub(crate) doorbell: Ps,
    pub(crate) dma_read: Ps,
    pub(crate) dma_write: Ps,
    pub(crate) tx: Ps,
    pub(crate) tx_latency: Ps,
    pub(crate) rx_latency: Ps,
    pub(crate) respond: Ps,
    pub(crate) packet: Ps,
    pub(crate) rx: Ps,
    pub(crate) ack: Ps,
    pub(crate) atomic: Ps,
    pub(crate) wire: Ps,
    /// Header bytes of a PCIe write packet, and log2 of its maximum payload.
    pub(crate) tlp: (u64, u32),
    /// Header bytes of a PCIe read completion, and log2 of its maximum payload.
    pub(crate) completion: (u64, u32),
    pub(crate) header: u64,
    pub(crate) reth: u64,
    /// Time of an acknowledgement on the link.
    pub(crate) ack_time: Ps,
    /// Longest time that a request's packets may still take to leave once its unit is done: they wait in the
    /// buffer.
    pub(crate) ahead: Ps,
    pub(crate) burst: u32,
    pub(crate) blueflame: u64,
}

/// Returns `bytes` plus the headers of the packets that carry them.
#[inline]
fn with_headers(bytes: u64, (header, payload): (u64, u32)) -> u64 {
    bytes + header * ((bytes + (1 << payload) - 1) >> payload)
}

impl Costs {
    /// Returns the bytes that a DMA read of `bytes` puts on the bus.
    #[inline]
    pub(crate) fn read(&self, bytes: u64) -> u64 {
        with_headers(bytes, self.completion)
    }

    /// Returns the bytes that a DMA write of `bytes` puts on the bus.
    #[inline]
    pub(crate) fn write(&self, bytes: u64) -> u64 {
        with_headers(bytes, self.tlp)
    }

    fn of(preset: &Preset) -> Self {
        Self {
            post: ns(preset.post_ns),
            ring: ns(preset.doorbell_cpu_ns),
            inline_line: ns(preset.inline_ns),
            post_recv: ns(preset.post_recv_ns),
            poll_empty: ns(preset.poll_empty_ns),
            poll_cqe: ns(preset.poll_cqe_ns),
            doorbell: ns(preset.doorbell_ns),
            dma_read: ns(preset.dma_read_ns),
            dma_write: ns(preset.dma_write_ns),
            tx: ns(preset.tx_ns),
            tx_latency: ns(preset.tx_latency_ns),
            rx_latency: ns(preset.rx_latency_ns),
            respond: ns(preset.respond_ns),
            packet: ns(preset.packet_ns),
            rx: ns(preset.rx_ns),
            ack: ns(preset.ack_ns),
            atomic: ns(preset.atomic_ns),
            wire: ns(2.0 * preset.propagation_ns + preset.switch_ns),
            tlp: (preset.tlp_bytes, preset.tlp_payload.ilog2()),
            completion: (preset.completion_bytes, preset.completion_payload.ilog2()),
            header: preset.header_bytes,
            reth: preset.reth_bytes,
            ack_time: Pipe::new(preset.link_gbps).time(preset.ack_bytes),
            ahead: Pipe::new(preset.link_gbps).time((preset.tx_buffer_kib * 1024.0) as u64)
                + ns(preset.dma_read_ns)
                + ns(preset.tx_latency_ns),
            burst: preset.burst_packets as u32,
            blueflame: preset.blueflame_bytes,
        }
    }
}

impl Model {
    pub(crate) fn new(preset: Preset, seed: u64) -> Self {
        Self {
            cost: Costs::of(&preset),
            receiving: ReceivingConstants::of(&preset).map(Box::new),
            preset,
            now: 0,
            event_queue: EventQueue::default(),
            pieces: Slab::new(),
            hosts: Vec::new(),
            qps: Vec::new(),
            free_qps: VecDeque::new(),
            cqs: Vec::new(),
            channels: Arc::default(),
            srqs: Vec::new(),
            regions: Regions::default(),
            handles: AddressHandles::default(),
            random: Random::new(seed),
            faults: None,
            acting: None,
            outside: 0,
            next_pd: 1,
            opened: 0,
            // The process id keeps networks of different processes apart.
            network: u64::from(std::process::id()) << 32 | NETWORKS.fetch_add(1, Ordering::Relaxed),
            events: 0,
            changed_hosts: Vec::new(),
            has_actors: false,
            actors: Vec::new(),
            instrumentation: None,
            next_life: 1,
        }
    }

    /// Returns the host called `name`, and creates it if there is none.
    pub(crate) fn host(&mut self, name: &str) -> io::Result<u32> {
        if let Some(found) = self.hosts.iter().position(|host| host.name == name) {
            return Ok(found as u32);
        }
        let seed = self.random.bits();
        let number = self.hosts.len() as u32;
        self.hosts
            .push(Host::new(number, name, &self.preset, seed)?);
        if let Some(constants) = &self.receiving {
            let random = Random::of(seed, &[number.into()]);
            let side = ReceivingSide::new(
                **constants,
                self.hosts[number as usize].ports.count(),
                random,
            );
            self.hosts[number as usize].receiving = Some(Box::new(side));
            self.schedule_antagonist(number);
        }
        self.trace_host(number);
        self.set_clock(number);
        Ok(number)
    }

    /// Returns the caller's time.
    pub(crate) fn time(&self) -> Ps {
        self.acting.map_or(self.outside, |acting| acting.now)
    }

    /// Advances the caller's time by `cost`.
    #[inline]
    pub(crate) fn spend(&mut self, cost: Ps) {
        match &mut self.acting {
            Some(acting) => {
                acting.now += cost;
                self.hosts[acting.host as usize].counters.cpu += cost;
            }
            None => self.outside += cost,
        }
    }

    /// Advances the caller's time by `cost` and marks an acting actor as having done work.
    #[inline]
    pub(crate) fn work(&mut self, cost: Ps) {
        self.spend(cost);
        if let Some(acting) = &mut self.acting {
            acting.has_worked = true;
        }
    }

    /// Processes the events up to the caller's time.
    #[inline]
    pub(crate) fn catch_up(&mut self) {
        match self.acting {
            // A change may wake another actor, which acts from then on: no later event may have happened.
            Some(acting) => self.run_until_change(acting.now.min(acting.limit)),
            None => self.run(self.outside),
        }
    }

    /// Lets time pass for callers outside of a world.
    pub(crate) fn advance(&mut self, by: Duration) {
        let then = self.outside.saturating_add(by.nanos().saturating_mul(NS));
        self.outside = then.min(NEVER - 1).max(self.outside);
        self.run(self.outside);
    }

    /// Processes all events up to `limit`.
    #[inline]
    pub(crate) fn run(&mut self, limit: Ps) {
        if self.instrumentation.is_some() {
            return self.run_traced(limit, false);
        }
        while let Some((at, event)) = self.event_queue.take(limit) {
            debug_assert!(at >= self.now, "{event:?} in the past");
            self.now = at;
            self.events += 1;
            self.happen(event);
        }
    }

    /// Processes events up to `limit`, or until a watched host has a visible change.
    pub(crate) fn run_until_change(&mut self, limit: Ps) {
        if self.instrumentation.is_some() {
            return self.run_traced(limit, true);
        }
        while self.changed_hosts.is_empty()
            && let Some((at, event)) = self.event_queue.take(limit)
        {
            debug_assert!(at >= self.now, "{event:?} in the past");
            self.now = at;
            self.events += 1;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(faults) = &mut self.faults {
            faults.run_digest.happened(self.now, &event, &self.pieces);
        }
        match event {
            Event::Doorbell { qp, upto } => self.rung(qp, upto),
            Event::Called { qp } => self.called(qp),
            Event::Idle { host, unit } => self.idle(host, unit),
            Event::Arrive(piece) => self.on_packets(piece),
            Event::Place(piece) => {
                let piece = self.pieces.remove(piece.place());
                self.place(piece);
            }
            Event::Acknowledge { qp, psn, answer } => self.on_acknowledge(qp, psn, answer),
            Event::Respond { qp } => self.respond(qp),
            Event::Timeout { qp } => self.on_timeout(qp),
            Event::Resume { qp } => self.resume(qp),
            Event::Fails { qp } => {
                if self.qp(qp).is_some() {
                    self.fail_silently(qp.index);
                }
            }
            Event::Overruns { qp } => {
                if let Some((cq, host)) = self.qp(qp).map(|qp| (qp.send_cq, qp.host)) {
                    self.overruns(cq, host);
                }
            }
            Event::HostChanged { host } => {
                self.hosts[host as usize].change_times.mark_reported();
                self.changed_hosts.push((host, self.now));
            }
            Event::Notification { qp } => self.on_notification(qp),
            Event::Memory { host } => self.set_antagonist(host),
            Event::Channel { cq, life } => self.channel_event(cq, life),
        }
    }

    /// Schedules the arrival of packets at a host's RNIC.
    #[inline]
    pub(crate) fn put_arrival(&mut self, at: Ps, piece: Piece) {
        let id = PieceId(self.pieces.insert(piece) as u32);
        self.event_queue.put(at, Event::Arrive(id));
    }

    /// Returns a piece that is under way.
    pub(crate) fn piece(&self, id: PieceId) -> Option<&Piece> {
        self.pieces.get(id.place())
    }

    /// Returns the queue pair, unless it was destroyed or reset since `qp` was taken.
    #[inline]
    pub(crate) fn qp(&mut self, qp: QpRef) -> Option<&mut Qp> {
        let (_, found) = self.qps.get_mut(qp.index as usize)?;
        found.as_deref_mut().filter(|found| found.life == qp.life)
    }

    /// Returns the queue pair `qpn` of a host, if there is one.
    pub(crate) fn qp_of(&self, host: u32, qpn: u32) -> Option<&Qp> {
        let (generation, found) = self.qps.get((qpn & ((1 << QP_NUMBER) - 1)) as usize)?;
        let found = found.as_deref()?;
        (*generation == qpn >> QP_NUMBER && found.host == host).then_some(found)
    }

    /// Returns a `life` for a queue pair or a completion queue. No two are equal.
    pub(crate) fn life(&mut self) -> u32 {
        self.next_life += 1;
        self.next_life
    }

    /// Adds a queue pair and returns its index; `None` if all indices are in use.
    pub(crate) fn enter(&mut self, make: impl FnOnce(QpRef, u32) -> Box<Qp>) -> Option<u32> {
        let index = match self.free_qps.pop_front() {
            Some(index) => index,
            None if self.qps.len() >= 1 << QP_NUMBER => return None,
            None => {
                self.qps.push((1, None));
                self.qps.len() as u32 - 1
            }
        };
        let life = self.life();
        let slot = &mut self.qps[index as usize];
        let qpn = slot.0 << QP_NUMBER | index;
        let mut qp = make(QpRef { index, life }, qpn);
        let host = &mut self.hosts[qp.host as usize];
        host.qps += 1;
        host.contexts += 1;
        qp.context = host.contexts;
        qp.unit = host.contexts as usize % host.tx.len();
        qp.port = ((host.contexts - 1) % host.ports.count() as u64) as u8;
        slot.1 = Some(qp);
        Some(index)
    }

    /// Removes a queue pair and frees its index.
    pub(crate) fn leave(&mut self, index: u32) {
        let slot = &mut self.qps[index as usize];
        if let Some(qp) = slot.1.take() {
            slot.0 = if slot.0 + 1 < 1 << (24 - QP_NUMBER) {
                slot.0 + 1
            } else {
                1
            };
            self.free_qps.push_back(index);
            let host = &mut self.hosts[qp.host as usize];
            host.qps -= 1;
            host.icm.forget(qp.context);
            for number in qp.first..qp.posted() {
                host.requests.forget(cache_key(index, number));
            }
        }
    }

    /// Raises an asynchronous event on a host.
    pub(crate) fn raise_async_event(&mut self, host: u32, event: AsyncEvent) {
        self.hosts[host as usize].raise_async_event(event);
    }

    /// Moves a queue pair to the error state and drops its queued responses, so it answers nothing more.
    pub(crate) fn fail_silently(&mut self, index: u32) {
        if let (_, Some(qp)) = &mut self.qps[index as usize] {
            qp.responses.clear();
        }
        self.fail(index, true);
    }

    /// Moves a queue pair to the error state; queued responses are still sent. If `told`, raises
    /// [`AsyncEvent::QpFatal`].
    pub(crate) fn fail(&mut self, index: u32, told: bool) {
        let Some(qp) = self.qps[index as usize].1.as_deref_mut() else {
            return;
        };
        if qp.state == QpState::Error {
            return;
        }
        qp.state = QpState::Error;
        let (host, qpn) = (qp.host, qp.qpn);
        if told {
            qp.events += 1;
            let qpn = headworks_verbs::Qpn::new(qpn).unwrap_or_default();
            self.raise_async_event(host, AsyncEvent::QpFatal(qpn));
        }
        self.flush(index);
        self.last_receive(index);
        // The new state is visible even if no request completes.
        let now = self.now.max(self.time());
        self.note_change(host, now);
    }

    /// Raises [`AsyncEvent::QpLastWqe`] once: a failed queue pair takes no more of its SRQ's receives.
    pub(crate) fn last_receive(&mut self, index: u32) {
        let Some(qp) = self.qps[index as usize].1.as_deref_mut() else {
            return;
        };
        if qp.srq.is_some() && !std::mem::replace(&mut qp.settled, true) {
            qp.events += 1;
            let (host, qpn) = (qp.host, qp.qpn);
            let qpn = headworks_verbs::Qpn::new(qpn).unwrap_or_default();
            self.raise_async_event(host, AsyncEvent::QpLastWqe(qpn));
        }
    }

    /// Notes that memory or a completion of a host changes at that
    /// time. Does nothing outside of a world, where nothing waits.
    #[inline(always)]
    pub(crate) fn note_change(&mut self, host: u32, at: Ps) {
        if self.has_actors {
            self.note_change_for_actors(host, at);
        }
    }

    #[inline(never)]
    fn note_change_for_actors(&mut self, host: u32, at: Ps) {
        let told = self.hosts[host as usize].change_times.add(self.now, at);
        if let Some(at) = told {
            self.event_queue.put(at, Event::HostChanged { host });
        }
    }

    /// Schedules an event for the next visible change on a host.
    pub(crate) fn watch_for_changes(&mut self, host: u32) {
        let told = self.hosts[host as usize].change_times.watch(self.now);
        if let Some(at) = told {
            self.event_queue.put(at, Event::HostChanged { host });
        }
    }

    /// Returns a completion queue's channel. Returns `None` if the queue has none, or if it has been replaced since
    /// `life`.
    pub(crate) fn channel_of(&self, cq: u32, life: u32) -> Option<SimChannel> {
        let found = self.cqs.get(cq as usize)?.as_ref()?;
        found.channel.clone().filter(|_| found.life == life)
    }
}

//! The model: hosts, their RNICs, the network between them, and what happens there, event by event.
//!
//! | module | what |
//! |---|---|
//! | `host` | an RNIC: its units, pipes, caches, counters |
//! | `qp_states` | queue pairs made, and moved from state to state |
//! | `queues` | queue pairs, completion queues, receives: what they hold |
//! | `send` | a request from its doorbell to the wire |
//! | `packet_arrival` | a packet from the wire to memory |
//! | `read_response` | what READs and atomics bring, on its way back |
//! | `datagram` | datagrams |
//! | `instrumentation` | what a trace and a table of utilisation are told |
//! | `fault_apply` | what rules have go wrong ([`crate::faults`]) |
//! | `object_counts` | how many objects there are |
//! | `acknowledge` | acknowledgements, retries, the end of a request |
//!
//! One message of one packet is four events: a sending unit takes it, it arrives at the other host, its
//! bytes are placed, its acknowledgement comes. Everything between is worked out where it begins: a unit or a
//! pipe says when its turn ends ([`crate::hardware_units`]).

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
use crate::random::Random;
use crate::registered_memory::Regions;
use crate::wqe::cache_key;

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
mod send;

pub(crate) use datagram::AddressHandles;
use datagram::DatagramHeader;
pub use host::Counters;
pub(crate) use host::Host;
pub(crate) use instrumentation::{ActorTime, Instrumentation};
pub use object_counts::ObjectCounts;
pub(crate) use queues::{Armed, Cq, Qp, Srq};

/// Bits of a queue pair's number that say which; the others say which use of it.
const QP_NUMBER: u32 = 18;

static NETWORKS: AtomicU64 = AtomicU64::new(1);

/// All queue pairs by index, each with which use of its number it is.
pub(crate) type Qps = Vec<(u32, Option<Box<Qp>>)>;

/// What happens. Small: the event queue moves it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A doorbell reaches the RNIC: requests up to this one are posted.
    Doorbell { qp: QpRef, upto: u64 },
    /// One does of which the queue pair hears when it has nothing else to send.
    Called { qp: QpRef },
    /// A sending unit has nothing to do.
    Idle { host: u32, unit: usize },
    /// Packets reach the other host's RNIC.
    Arrive(PieceId),
    /// They are through the receiving unit, and their bytes go to memory.
    Place(PieceId),
    /// An answer without bytes reaches the one who sent.
    Acknowledge {
        qp: QpRef,
        psn: u64,
        answer: Acknowledge,
    },
    /// The next part of an answer goes.
    Respond { qp: QpRef },
    /// An acknowledgement may be overdue.
    Timeout { qp: QpRef },
    /// A pause for want of a receive is over.
    Resume { qp: QpRef },
    /// A queue pair fails by itself.
    Fails { qp: QpRef },
    /// Something can be seen on a host.
    HostChanged { host: u32 },
    /// A completion channel has something to say: of this use of its queue's number.
    Channel { cq: u32, life: u32 },
}

/// One use of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpRef {
    pub(crate) index: u32,
    pub(crate) life: u32,
}

/// Which piece of those under way.
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
    /// Who sent it.
    pub(crate) from: QpRef,
    /// For whom it is.
    pub(crate) to: QpRef,
    /// Which request of the one who asked.
    pub(crate) wqe: u64,
    pub(crate) psn: u64,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) packets: u16,
    pub(crate) kind: PieceKind,
    pub(crate) last: bool,
    /// When it was through the receiving unit.
    pub(crate) received: Ps,
}

impl Piece {
    /// The bytes that travel with it; others are at the sender until it comes.
    pub(crate) fn payload_bytes(&self) -> &[u8] {
        match &self.kind {
            PieceKind::Bytes | PieceKind::ReadRequest => &[],
            PieceKind::Response(bytes) => bytes,
            PieceKind::Datagram(label) => &label.bytes,
        }
    }
}

/// What a piece is of.
#[derive(Debug)]
pub(crate) enum PieceKind {
    /// A SEND or a WRITE.
    Bytes,
    /// A READ or an atomic.
    ReadRequest,
    /// What comes back: these bytes.
    Response(Box<[u8]>),
    /// A datagram.
    Datagram(Box<DatagramHeader>),
}

/// An answer without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledge {
    /// All before this number is done.
    Ack,
    /// There is no receive: not before so many nanoseconds are over.
    RnrNak(u32),
    /// Another number was expected.
    SequenceNak,
    /// The request cannot be carried out.
    Nak(Status),
}

/// Who is acting, and what time it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActingActor {
    pub(crate) host: u32,
    pub(crate) now: Ps,
    /// Nothing may happen after this before others have acted.
    pub(crate) limit: Ps,
    /// It has done something, and not only looked.
    pub(crate) has_worked: bool,
}

/// Everything.
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
    /// Each completion channel has one.
    pub(crate) channels: Arc<()>,
    pub(crate) srqs: Vec<Option<Srq>>,
    pub(crate) regions: Regions,
    pub(crate) handles: AddressHandles,
    pub(crate) random: Random,
    /// What goes wrong.
    pub(crate) faults: Option<Box<Faults>>,
    pub(crate) acting: Option<ActingActor>,
    /// What time it is for whoever calls from outside of a world.
    pub(crate) outside: Ps,
    pub(crate) next_pd: u32,
    /// Openings of devices so far.
    pub(crate) opened: u32,
    /// Of all networks of this process, which one.
    pub(crate) network: u64,
    pub(crate) events: u64,
    /// Hosts on which something could be seen since somebody asked.
    pub(crate) changed_hosts: Vec<(u32, Ps)>,
    /// There are actors, who may wait for something that can be seen.
    pub(crate) has_actors: bool,
    /// What each actor computed.
    pub(crate) actors: Vec<ActorTime>,
    /// Who wants to know what happens when, if anybody does.
    pub(crate) instrumentation: Option<Box<Instrumentation>>,
    next_life: u32,
}

/// The preset in picoseconds.
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
    /// What a packet of the bus that writes has beside its bytes, and the power of two that those are at most.
    pub(crate) tlp: (u64, u32),
    /// The same of one that brings what is read.
    pub(crate) completion: (u64, u32),
    pub(crate) header: u64,
    pub(crate) reth: u64,
    /// What an acknowledgement takes on the link.
    pub(crate) ack_time: Ps,
    /// How long before it has left a unit may be done with a request: what it leaves behind waits on the chip.
    pub(crate) ahead: Ps,
    pub(crate) burst: u32,
    pub(crate) blueflame: u64,
}

/// Bytes with the headers of the packets that they take.
#[inline]
fn with_headers(bytes: u64, (header, payload): (u64, u32)) -> u64 {
    bytes + header * ((bytes + (1 << payload) - 1) >> payload)
}

impl Costs {
    /// What a DMA read of so many bytes has the bus carry.
    #[inline]
    pub(crate) fn read(&self, bytes: u64) -> u64 {
        with_headers(bytes, self.completion)
    }

    /// The same of a DMA write.
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
            tlp: (preset.tlp_bytes as u64, (preset.tlp_payload as u64).ilog2()),
            completion: (
                preset.completion_bytes as u64,
                (preset.completion_payload as u64).ilog2(),
            ),
            header: preset.header_bytes as u64,
            reth: preset.reth_bytes as u64,
            ack_time: Pipe::new(preset.link_gbps).time(preset.ack_bytes as u64),
            ahead: Pipe::new(preset.link_gbps).time((preset.tx_buffer_kib * 1024.0) as u64)
                + ns(preset.dma_read_ns)
                + ns(preset.tx_latency_ns),
            burst: preset.burst_packets as u32,
            blueflame: preset.blueflame_bytes as u64,
        }
    }
}

impl Model {
    pub(crate) fn new(preset: Preset, seed: u64) -> Self {
        Self {
            cost: Costs::of(&preset),
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
            // Networks of other processes are others.
            network: u64::from(std::process::id()) << 32 | NETWORKS.fetch_add(1, Ordering::Relaxed),
            events: 0,
            changed_hosts: Vec::new(),
            has_actors: false,
            actors: Vec::new(),
            instrumentation: None,
            next_life: 1,
        }
    }

    /// The host of that name, made if there is none.
    pub(crate) fn host(&mut self, name: &str) -> io::Result<u32> {
        if let Some(found) = self.hosts.iter().position(|host| host.name == name) {
            return Ok(found as u32);
        }
        let seed = self.random.bits();
        let number = self.hosts.len() as u32;
        self.hosts
            .push(Host::new(number, name, &self.preset, seed)?);
        self.trace_host(number);
        self.set_clock(number);
        Ok(number)
    }

    /// What time it is for whoever calls.
    pub(crate) fn time(&self) -> Ps {
        self.acting.map_or(self.outside, |acting| acting.now)
    }

    /// Whoever calls computes for so long.
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

    /// Somebody computes something, and does not only look.
    #[inline]
    pub(crate) fn work(&mut self, cost: Ps) {
        self.spend(cost);
        if let Some(acting) = &mut self.acting {
            acting.has_worked = true;
        }
    }

    /// What has happened up to now, for whoever calls.
    #[inline]
    pub(crate) fn catch_up(&mut self) {
        match self.acting {
            // Whoever sees something acts from then on: nothing later may have happened.
            Some(acting) => self.run_until_change(acting.now.min(acting.limit)),
            None => self.run(self.outside),
        }
    }

    /// Lets time pass for whoever calls from outside of a world.
    pub(crate) fn advance(&mut self, by: Duration) {
        let then = self.outside.saturating_add(by.nanos().saturating_mul(NS));
        self.outside = then.min(NEVER - 1).max(self.outside);
        self.run(self.outside);
    }

    /// Everything that happens until `limit`.
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

    /// Everything that happens until `limit`, or until somebody who watches can see something.
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
            Event::HostChanged { host } => {
                self.hosts[host as usize].change_times.mark_reported();
                self.changed_hosts.push((host, self.now));
            }
            Event::Channel { cq, life } => self.channel_event(cq, life),
        }
    }

    /// Packets reach a host's RNIC at that time.
    #[inline]
    pub(crate) fn put_arrival(&mut self, at: Ps, piece: Piece) {
        let id = PieceId(self.pieces.insert(piece) as u32);
        self.event_queue.put(at, Event::Arrive(id));
    }

    /// Packets under way.
    pub(crate) fn piece(&self, id: PieceId) -> Option<&Piece> {
        self.pieces.get(id.place())
    }

    /// A queue pair in its present use.
    #[inline]
    pub(crate) fn qp(&mut self, qp: QpRef) -> Option<&mut Qp> {
        let (_, found) = self.qps.get_mut(qp.index as usize)?;
        found.as_deref_mut().filter(|found| found.life == qp.life)
    }

    /// The queue pair of that number on a host, if there is one.
    pub(crate) fn qp_of(&self, host: u32, qpn: u32) -> Option<&Qp> {
        let (generation, found) = self.qps.get((qpn & ((1 << QP_NUMBER) - 1)) as usize)?;
        let found = found.as_deref()?;
        (*generation == qpn >> QP_NUMBER && found.host == host).then_some(found)
    }

    /// A life for a queue pair or a completion queue: no two are alike.
    pub(crate) fn life(&mut self) -> u32 {
        self.next_life += 1;
        self.next_life
    }

    /// Enters a queue pair: its index and number.
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
        slot.1 = Some(qp);
        Some(index)
    }

    /// Takes a queue pair out.
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

    /// Tells a host's program of something that no completion tells of.
    pub(crate) fn raise_async_event(&mut self, host: u32, event: AsyncEvent) {
        self.hosts[host as usize].raise_async_event(event);
    }

    /// A queue pair fails by itself, and answers nothing any more.
    pub(crate) fn fail_silently(&mut self, index: u32) {
        if let (_, Some(qp)) = &mut self.qps[index as usize] {
            qp.responses.clear();
        }
        self.fail(index, true);
    }

    /// A queue pair fails; what it was asked for before that still goes.
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
        // Nothing may complete, and whoever watches can see the state all the same.
        let now = self.now.max(self.time());
        self.note_change(host, now);
    }

    /// A queue pair that failed takes no more of its SRQ's receives.
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

    /// Memory or a completion of a host changes at that time. Outside of a world nobody waits.
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

    /// Somebody wants to know when something can be seen on a host.
    pub(crate) fn watch_for_changes(&mut self, host: u32) {
        let told = self.hosts[host as usize].change_times.watch(self.now);
        if let Some(at) = told {
            self.event_queue.put(at, Event::HostChanged { host });
        }
    }

    /// The channel of a queue in its present use.
    pub(crate) fn channel_of(&self, cq: u32, life: u32) -> Option<SimChannel> {
        let found = self.cqs.get(cq as usize)?.as_ref()?;
        found.channel.clone().filter(|_| found.life == life)
    }
}

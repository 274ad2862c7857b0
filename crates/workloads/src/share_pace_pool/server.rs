//! The device objects of the server and of its peers, and the server's receive memory.

use std::collections::HashMap;
use std::sync::Arc;

use headworks::runtime::{ActorError, DeviceOpener};
use headworks::verbs::{
    Access, AllocRequest, CompletionQueue, CqInit, Device, Instant, Pages, ProtectionDomain,
    QpCaps, QpInit, QpType, Qpn, QueuePair, RecvWr, Region, RemoteAddr, Sge, SharedReceiveQueue,
    SrqInit,
};
use headworks_baselines::{End, EndSizes, WordMemory};
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::{AppLimits, ReceivePool};

use super::{IN_MESSAGE, OUT_MESSAGE, RING, Run, SERVER, THREADS, peer_name};
use crate::error::{Result, WorkloadError};
use crate::virtual_run::connect;

/// Memory of a peer, in bytes: the target of WRITEs, and the source of its own messages.
const PEER_MEMORY: usize = 64 << 10;
/// Messages that a connection's ring holds.
pub(super) const SLOTS: usize = RING / IN_MESSAGE;

/// The objects of all hosts. Actors take their parts out.
pub(super) struct Objects {
    pub(super) sending: Vec<Option<SendingPart>>,
    pub(super) receiving: Vec<Option<ReceivingPart>>,
    pub(super) peers: Vec<Option<PeerPart>>,
    pub(super) memory: ReceiveMemory,
    /// The memory of the bytes that the server sends.
    _source: Region,
    /// The paced or plain device of the server, which must outlive its objects.
    _device: Arc<dyn Device>,
}

/// A queue pair of a sending thread.
pub(super) struct SendingQueuePair {
    pub(super) qp: Box<dyn QueuePair>,
    pub(super) target: RemoteAddr,
    /// Requests that were posted before the first completion was taken.
    pub(super) filled: usize,
}

/// The objects of a sending thread.
pub(super) struct SendingPart {
    pub(super) queue_pairs: Vec<SendingQueuePair>,
    pub(super) cq: Arc<dyn CompletionQueue>,
    /// The bytes that it sends.
    pub(super) source: Sge,
}

/// The objects of a receiving thread.
pub(super) struct ReceivingPart {
    pub(super) cq: Arc<dyn CompletionQueue>,
    /// The host that a queue pair leads to.
    pub(super) hosts: HashMap<Qpn, usize>,
}

/// The objects of another host.
pub(super) struct PeerPart {
    pub(super) end: End,
    pub(super) memory: WordMemory,
    /// The server's ring of this host's first connection. The rings of its other connections follow.
    pub(super) rings: Option<RemoteAddr>,
}

/// Where messages arrive.
pub(super) struct ReceiveMemory {
    region: Region,
    srq: Arc<dyn SharedReceiveQueue>,
    /// The pool and its user; `None` if connections have rings.
    pool: Option<(ReceivePool, AppId)>,
    /// The extents of posted receives, by the receive's identifier.
    held: Vec<Option<HeldExtent>>,
}

impl ReceiveMemory {
    fn make(
        run: &Run,
        device: &dyn Device,
        pd: &dyn ProtectionDomain,
    ) -> Result<Self, WorkloadError> {
        let load = &run.load;
        let config = PoolConfig::default();
        let len = match load.is_pooled {
            true => config.memory_units() as usize * IN_MESSAGE,
            false => load.connections * RING,
        };
        // Huge pages keep misses of translations out of the comparison.
        let region = memory(device, pd, len)?;
        let receives = load.window() * load.hosts;
        let init = SrqInit {
            max_wr: receives as u32,
            max_sge: 1,
            limit: 0,
        };
        let srq = pd.create_srq(&init);
        let mut made = Self {
            region,
            srq: srq.map_err(failed("receive queue"))?,
            pool: load.is_pooled.then(|| {
                let mut pool = ReceivePool::new(&config);
                let app = pool.add(AppLimits {
                    class: Class::Normal,
                    quota: u32::MAX,
                });
                (pool, app)
            }),
            held: vec![None; receives],
        };
        for id in 0..receives {
            made.post(id)?;
        }
        Ok(made)
    }

    /// Posts the receive with an identifier. In the pool, it takes an extent.
    fn post(&mut self, id: usize) -> Result<(), WorkloadError> {
        let sge = match &mut self.pool {
            Some((pool, app)) => {
                let held = pool.get(*app, 1).map_err(failed("receive pool"))?;
                self.held[id] = Some(held);
                let at = held.extent.offset() as usize;
                Some(self.region.sge(at, IN_MESSAGE as u32))
            }
            None => None,
        };
        let wr = RecvWr {
            wr_id: id as u64,
            sges: sge.as_slice(),
        };
        let posted = self.srq.post_recv(&[wr]);
        posted.map_err(failed("posting a receive"))
    }

    /// Handles a message that has arrived: has `reads` read it, returns its memory and posts the receive again. `place`
    /// is the offset of the message if it lies in a ring.
    pub(super) fn consume(
        &mut self,
        id: usize,
        place: usize,
        now: Instant,
        mut reads: impl FnMut(*const u8, usize),
    ) -> Result<(), WorkloadError> {
        let held = self.held[id].take();
        let place = held.map_or(place, |held| held.extent.offset() as usize);
        let begin = self.region.buffer().as_ptr().wrapping_add(place);
        if let (Some((pool, app)), Some(held)) = (&mut self.pool, held) {
            pool.arrived(*app, held, now);
        }
        reads(begin.cast_const(), IN_MESSAGE);
        if let (Some((pool, app)), Some(held)) = (&mut self.pool, held) {
            let released = pool.release(*app, held, 0, 1);
            released.map_err(failed("receive pool"))?;
        }
        self.post(id)
    }
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> WorkloadError {
    move |why| WorkloadError::at(what, why)
}

/// Allocates and registers memory on huge pages.
fn memory(
    device: &dyn Device,
    pd: &dyn ProtectionDomain,
    len: usize,
) -> Result<Region, WorkloadError> {
    let buffer = device.alloc(&AllocRequest {
        pages: Pages::PreferHuge,
        ..AllocRequest::of(len)
    });
    let buffer = buffer.map_err(failed("memory"))?;
    let region = pd.register(&buffer, Access::ALL);
    region.map_err(failed("memory"))
}

impl Objects {
    /// Makes the objects of all hosts, and connects all queue pairs.
    pub(super) fn make(run: &Run, opener: &DeviceOpener) -> Result<Self, ActorError> {
        let load = &run.load;
        let paced = headworks::pace::opener(opener.clone());
        let device = paced(&run.device(SERVER, &load.pacing)?)?;
        let pd = device.alloc_pd().map_err(failed("protection domain"))?;
        let receive_memory = ReceiveMemory::make(run, &*device, &*pd)?;
        let source = memory(&*device, &*pd, OUT_MESSAGE)?;
        let (per_host, depth) = (load.queue_pairs() / load.hosts, load.depth());
        let cq = |depth: usize| {
            let init = CqInit {
                depth: depth as u32,
                channel: None,
                timestamps: false,
            };
            device.create_cq(&init).map_err(failed("completion queue"))
        };
        let receives = load.window() * load.hosts;
        let own = load.queue_pairs().div_ceil(THREADS);
        let mut sending = Vec::new();
        let mut receiving = Vec::new();
        for _ in 0..THREADS {
            sending.push(SendingPart {
                queue_pairs: Vec::new(),
                cq: cq(2 * own * depth)?,
                source: source.sge(0, OUT_MESSAGE as u32),
            });
            receiving.push(ReceivingPart {
                cq: cq(2 * receives)?,
                hosts: HashMap::new(),
            });
        }
        let mut peers = Vec::new();
        for host in 0..load.hosts {
            peers.push(Some(peer(run, opener, (host, per_host), &receive_memory)?));
        }
        for number in 0..load.queue_pairs() {
            let (host, thread) = (number % load.hosts, number % THREADS);
            let init = QpInit {
                qp_type: QpType::Rc,
                send_cq: sending[thread].cq.clone(),
                recv_cq: receiving[thread].cq.clone(),
                srq: Some(receive_memory.srq.clone()),
                caps: QpCaps {
                    max_send_wr: depth as u32,
                    max_recv_wr: 0,
                    ..QpCaps::default()
                },
                signal_all: false,
            };
            let mut qp = pd.create_qp(&init).map_err(failed("queue pair"))?;
            let peer = peers[host].as_mut();
            let peer = peer.ok_or_else(|| ActorError::new("no such peer"))?;
            connect(
                (&*device, &mut *qp),
                (
                    &*peer.end.device,
                    &mut *peer.end.queue_pairs[number / load.hosts],
                ),
            )?;
            receiving[thread].hosts.insert(qp.qpn(), host);
            sending[thread].queue_pairs.push(SendingQueuePair {
                qp,
                target: peer.memory.region().remote(0),
                filled: 0,
            });
        }
        Ok(Self {
            sending: sending.into_iter().map(Some).collect(),
            receiving: receiving.into_iter().map(Some).collect(),
            peers,
            memory: receive_memory,
            _source: source,
            _device: device,
        })
    }
}

/// Makes the objects of host number `host`, with `queue_pairs` queue pairs.
fn peer(
    run: &Run,
    opener: &DeviceOpener,
    (host, queue_pairs): (usize, usize),
    receive_memory: &ReceiveMemory,
) -> Result<PeerPart, ActorError> {
    let load = &run.load;
    let device = opener(&run.device(&peer_name(host), "")?)?;
    // A message may be consumed before its sender has taken the completion.
    let requests = 4 * load.window().max(4);
    let sizes = EndSizes {
        queue_pairs,
        caps: QpCaps {
            max_send_wr: requests as u32,
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth: (requests * queue_pairs) as u32,
        shared_receives: 0,
        channel: false,
    };
    let mut end = End::open(device, &sizes)?;
    end.populate(&sizes)?;
    let memory = end.memory(PEER_MEMORY)?;
    let connections = load.connections / load.hosts;
    let rings = receive_memory.region.remote(0);
    Ok(PeerPart {
        end,
        memory,
        rings: (!load.is_pooled).then(|| rings.plus((host * connections * RING) as u64)),
    })
}

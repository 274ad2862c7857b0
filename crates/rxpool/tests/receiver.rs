//! The pool on the software RNIC: transfers of every size through a pool that is much smaller, failures, slow and
//! leaving applications, slices that are processed on threads, and payloads of a sender.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use headworks_ring::view_of;
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::AppLimits;
use headworks_rxpool::receiver::{
    AnnounceError, Announcement, LinkId, Receiver, ReceiverError, ReceiverEvent, TransferError,
    TransferId,
};
use headworks_rxpool::units::{EXTENT_MAX, UNIT, units_of};
use headworks_shm::{Registry, View};
use headworks_softnic::SoftProvider;
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::completion::{CompletionQueue, CqInit, Status};
use headworks_verbs::{
    Access, AllocRequest, BringUp, Device, Duration, Instant, ProtectionDomain, Provider, QpAttr,
    QpCaps, QpInit, QpState, QpType, QueuePair, Region, RemoteAddr,
};
use proptest::prelude::*;

#[cfg(feature = "crc32c")]
#[path = "receiver/slices.rs"]
mod slices;

#[path = "receiver/sends.rs"]
mod sends;

/// Bytes of the sending host's memory.
const SOURCE: usize = 3 << 20;
/// READs in flight on a queue pair.
const DEPTH: u32 = 4;
const LIMITS: AppLimits = AppLimits {
    class: Class::Normal,
    quota: u32::MAX,
};

fn config() -> PoolConfig {
    PoolConfig {
        budget: EXTENT_MAX.into(),
        straggler_time: Duration::from_micros(1000),
        ..PoolConfig::default()
    }
}

struct Host {
    device: Arc<dyn Device>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
}

impl Host {
    fn new(provider: &SoftProvider, name: &str) -> Self {
        let device = provider.open(&name.parse().unwrap()).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device
            .create_cq(&CqInit {
                depth: 256,
                channel: None,
                timestamps: false,
            })
            .unwrap();
        Self { device, pd, cq }
    }

    fn region(&self, len: usize, access: Access) -> Arc<Region> {
        let buffer = self.device.alloc(&AllocRequest::of(len)).unwrap();
        Arc::new(self.pd.register(&buffer, access).unwrap())
    }

    fn queue_pair(&self) -> Box<dyn QueuePair> {
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps: QpCaps::default(),
            signal_all: false,
        };
        self.pd.create_qp(&init).unwrap()
    }
}

/// A sending host with memory full of a pattern, and a receiver on another.
struct World {
    sender: Host,
    host: Host,
    source: Arc<Region>,
    pattern: Vec<u8>,
    pool: View,
    receiver: Receiver,
    /// The sender's ends of the links.
    others: Vec<Box<dyn QueuePair>>,
    now: Instant,
    began: std::time::Instant,
    _directory: tempfile::TempDir,
}

impl World {
    fn new(config: &PoolConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open_at(directory.path().join("fabric")).unwrap();
        let provider = SoftProvider::on(registry);
        let [sender, host] = ["soft:h0", "soft:h1"].map(|name| Host::new(&provider, name));
        let source = sender.region(SOURCE, Access::REMOTE_READ);
        let pattern: Vec<u8> = (0..SOURCE as u64)
            .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        view_of(&source, 0).write(0, &pattern).unwrap();
        let len = config.memory_units() as usize * UNIT as usize;
        let region = host.region(len, Access::LOCAL_WRITE);
        let receiver = Receiver::new(config, region.clone(), host.cq.clone()).unwrap();
        Self {
            sender,
            source,
            pattern,
            pool: view_of(&region, 0),
            receiver,
            host,
            others: Vec::new(),
            now: Instant::from_nanos(1_000_000),
            began: std::time::Instant::now(),
            _directory: directory,
        }
    }

    fn link(&mut self) -> LinkId {
        let mut ends = [&self.sender, &self.host].map(Host::queue_pair);
        let [other, own] = &mut ends;
        let params = ConnectionParams::default();
        let start = |host: &Host, qp: &mut dyn QueuePair, access| {
            let params = ConnectionParams { access, ..params };
            BringUp::start(host.device.info(), qp, params, 7, Vec::new()).unwrap()
        };
        let mut one = start(&self.sender, &mut **other, Access::REMOTE_READ);
        let mut two = start(&self.host, &mut **own, Access::NONE);
        one.connect_both(&mut **other, &mut two, &mut **own)
            .unwrap();
        let [other, own] = ends;
        self.others.push(other);
        self.receiver.add_link(own, DEPTH)
    }

    fn announce(&mut self, link: LinkId, app: AppId, at: usize, len: usize) -> TransferId {
        self.announce_from(link, app, self.source.remote(at), len as u64)
    }

    fn announce_from(
        &mut self,
        link: LinkId,
        app: AppId,
        from: RemoteAddr,
        len: u64,
    ) -> TransferId {
        let announced = Announcement {
            link,
            app,
            from,
            len,
        };
        self.receiver.announce(announced).unwrap()
    }

    fn step(&mut self) -> bool {
        self.now += Duration::from_micros(10);
        let did = self.receiver.step(self.now).unwrap();
        // The sender's host makes progress, too.
        let mut nothing = [];
        self.sender.cq.poll(&mut nothing).unwrap();
        did
    }

    fn bytes(&self, held: HeldExtent, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let offset = held.extent.offset() as usize;
        self.pool.read(offset, &mut bytes).unwrap();
        bytes
    }

    fn release(&mut self, app: AppId, held: HeldExtent) {
        let units = held.extent.units;
        let released = self.receiver.release(app, held, 0, units, self.now);
        assert_eq!(released, Ok(()));
    }

    /// Steps once. Returns whether something happened, or a READ is in flight: the device tries again for a while
    /// before it gives a peer up.
    fn is_busy(&mut self) -> bool {
        let is_slow = self.began.elapsed().as_secs() > 60;
        self.step() || self.receiver.in_flight() != (0, 0) && !is_slow
    }

    /// Steps until nothing happens any more, and returns all events.
    fn settle(&mut self) -> Vec<ReceiverEvent> {
        let mut events = Vec::new();
        let mut quiet = 0;
        while quiet < 20 {
            quiet = if self.is_busy() { 0 } else { quiet + 1 };
            events.extend(std::iter::from_fn(|| self.receiver.event()));
        }
        events
    }

    /// Asserts that nothing is held, promised or in flight.
    fn assert_empty(&self) {
        let pool = self.receiver.pool();
        assert_eq!(pool.available(), config().budget_units());
        assert_eq!(self.receiver.in_flight(), (0, 0));
        assert_eq!(pool.reserved(), 0);
    }
}

/// What has arrived of a transfer.
struct Expected {
    app: AppId,
    at: usize,
    len: usize,
    arrived: usize,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// All bytes of all transfers arrive in order, through a pool that is smaller than most of them, whatever is
    /// released when, in whole or in units.
    #[test]
    fn all_bytes_arrive_through_a_small_pool(
        transfers in proptest::collection::vec(
            (0usize..3, 0usize..2, 0..SOURCE, prop_oneof![1usize..9000, 9000usize..1_500_000]),
            1..25,
        ),
        lag in 0usize..4,
        in_units in any::<bool>(),
        reads in 1u32..9,
    ) {
        let mut world = World::new(&PoolConfig { reads, ..config() });
        let links = [(); 3].map(|()| world.link());
        let low = AppLimits { class: Class::Low, quota: 40 };
        let apps = [world.receiver.add_app(LIMITS), world.receiver.add_app(low)];
        let mut expected = BTreeMap::new();
        for (link, app, at, len) in transfers {
            let len = len.min(SOURCE - at);
            let id = world.announce(links[link], apps[app], at, len);
            expected.insert(id, Expected { app: apps[app], at, len, arrived: 0 });
        }
        let mut held: VecDeque<(AppId, HeldExtent)> = VecDeque::new();
        let mut quiet = 0;
        while !expected.is_empty() {
            quiet = if world.is_busy() { 0 } else { quiet + 1 };
            prop_assert!(quiet < 1000, "{} transfers stand still", expected.len());
            while let Some(event) = world.receiver.event() {
                match event {
                    ReceiverEvent::Arrived { transfer, at, held: one, len } => {
                        let known = expected.get_mut(&transfer).unwrap();
                        prop_assert_eq!(at as usize, known.arrived, "out of order");
                        let from = known.at + known.arrived;
                        let bytes = world.bytes(one, len);
                        prop_assert!(bytes == world.pattern[from..][..len as usize]);
                        prop_assert_eq!(u64::from(one.extent.units), units_of(len.into()));
                        known.arrived += len as usize;
                        held.push_back((known.app, one));
                    }
                    ReceiverEvent::Done(transfer) => {
                        let known = expected.remove(&transfer).unwrap();
                        prop_assert_eq!(known.arrived, known.len);
                    }
                    ReceiverEvent::Failed { why, .. } => prop_assert!(false, "{}", why),
                    ReceiverEvent::Copy(_) | ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
                }
            }
            let (reads, bytes) = world.receiver.in_flight();
            prop_assert!(reads <= world.others.len() as u32 * DEPTH);
            prop_assert!(bytes <= u64::from(EXTENT_MAX));
            // A consumer that lags a few extents behind, but not when nothing else would go on.
            while held.len() > if quiet > 10 { 0 } else { lag } {
                let (app, one) = held.pop_front().unwrap();
                match in_units {
                    false => world.release(app, one),
                    true => for unit in 0..one.extent.units {
                        prop_assert!(world.receiver.release(app, one, unit, 1, world.now).is_ok());
                    },
                }
            }
        }
        for (app, one) in held {
            world.release(app, one);
        }
        world.assert_empty();
    }
}

#[test]
fn a_wrong_key_fails_the_transfers_of_its_link_alone() {
    let mut world = World::new(&config());
    let (bad, good) = (world.link(), world.link());
    let app = world.receiver.add_app(LIMITS);
    let mut from = world.source.remote(0);
    from.rkey ^= 0x5555;
    let len = 600_000;
    let announced = Announcement {
        link: bad,
        app,
        from,
        len,
    };
    let wrong = world.receiver.announce(announced).unwrap();
    let behind = world.announce(bad, app, 0, 100);
    let fine = world.announce(good, app, 0, 100);
    let events = world.settle();
    let failed = |transfer| {
        let why = TransferError::Read(Status::RemoteAccess);
        ReceiverEvent::Failed { transfer, why }
    };
    assert!(events.contains(&failed(wrong)), "{events:?}");
    assert!(events.contains(&ReceiverEvent::Done(fine)), "{events:?}");
    // The one behind was READ before the link failed, or failed with it.
    let done = events.contains(&ReceiverEvent::Done(behind));
    assert!(done || events.contains(&failed(behind)), "{events:?}");
    for event in events {
        if let ReceiverEvent::Arrived { held, .. } = event {
            world.release(app, held);
        }
    }
    world.assert_empty();
    assert_eq!(
        world.receiver.announce(announced),
        Err(AnnounceError::Link),
        "the link has failed"
    );
    world.receiver.remove_link(bad);
}

#[test]
fn a_peer_that_is_gone_fails_its_transfers_and_leaves_nothing() {
    let mut world = World::new(&config());
    let link = world.link();
    let app = world.receiver.add_app(LIMITS);
    let transfer = world.announce(link, app, 0, 1_000_000);
    let dead = QpAttr::to_state(QpState::Error);
    world.others[0].modify(&dead).unwrap();
    world.others.clear();
    let events = world.settle();
    let failed = events.iter().any(
        |event| matches!(event, ReceiverEvent::Failed { transfer: one, .. } if *one == transfer),
    );
    assert!(failed, "{events:?}");
    world.assert_empty();
}

#[test]
fn an_application_that_never_releases_stops_only_itself() {
    let mut world = World::new(&PoolConfig {
        mem_esc: Some(0),
        ..config()
    });
    let (first, second) = (world.link(), world.link());
    let half = AppLimits {
        quota: 32,
        ..LIMITS
    };
    let (stalled, other) = (world.receiver.add_app(half), world.receiver.add_app(half));
    world.announce(first, stalled, 0, 1_000_000);
    let mut left = 20;
    world.announce(second, other, 0, 100_000);
    let mut quiet = 0;
    let mut copied = Vec::new();
    while left > 0 {
        quiet = if world.is_busy() { 0 } else { quiet + 1 };
        assert!(quiet < 1000, "{left} transfers are left");
        while let Some(event) = world.receiver.event() {
            match event {
                ReceiverEvent::Arrived { held, .. } => {
                    // Only the other application consumes.
                    let units = held.extent.units;
                    let _ = world.receiver.release(other, held, 0, units, world.now);
                }
                ReceiverEvent::Done(_) => {
                    left -= 1;
                    world.announce(second, other, 0, 100_000);
                }
                ReceiverEvent::Copy(app) => copied.push(app),
                event => assert_eq!(event, ReceiverEvent::Signal),
            }
        }
    }
    assert_eq!(world.receiver.pool().used(stalled).held, 32);
    // Let its extents become stragglers: then it is named, and no other.
    world.now += Duration::from_micros(5000);
    world.announce(second, other, 0, 130_000);
    copied.extend(world.settle().iter().filter_map(|event| match event {
        ReceiverEvent::Copy(app) => Some(*app),
        _ => None,
    }));
    assert_eq!(copied.first(), Some(&stalled));
    world.receiver.remove_app(stalled);
    world.receiver.remove_app(other);
    world.settle();
    world.assert_empty();
}

#[test]
fn an_application_leaves_while_it_is_read_for() {
    let mut world = World::new(&config());
    let link = world.link();
    let app = world.receiver.add_app(LIMITS);
    let transfer = world.announce(link, app, 0, 1_000_000);
    world.step();
    assert_ne!(world.receiver.in_flight().0, 0);
    world.receiver.remove_app(app);
    let from = world.source.remote(0);
    let len = 1;
    let late = Announcement {
        link,
        app,
        from,
        len,
    };
    assert_eq!(world.receiver.announce(late), Err(AnnounceError::App));
    let events = world.settle();
    assert!(
        !events.contains(&ReceiverEvent::Done(transfer)),
        "{events:?}"
    );
    world.assert_empty();
    // The link serves others.
    let app = world.receiver.add_app(LIMITS);
    let transfer = world.announce(link, app, 0, 5000);
    assert!(world.settle().contains(&ReceiverEvent::Done(transfer)));
}

#[test]
fn wrong_announcements_and_short_memory_are_refused() {
    let mut world = World::new(&config());
    let link = world.link();
    let app = world.receiver.add_app(LIMITS);
    let mut announced = Announcement {
        link,
        app,
        from: world.source.remote(0),
        len: 0,
    };
    assert_eq!(
        world.receiver.announce(announced),
        Err(AnnounceError::Length(0))
    );
    announced.len = u64::MAX;
    assert_eq!(
        world.receiver.announce(announced),
        Err(AnnounceError::Length(u64::MAX))
    );
    let short = world.host.region(4096, Access::LOCAL_WRITE);
    let refused = Receiver::new(&config(), short, world.host.cq.clone());
    assert!(matches!(
        refused,
        Err(ReceiverError::Memory { got: 4096, .. })
    ));
}

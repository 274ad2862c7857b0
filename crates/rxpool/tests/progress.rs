//! An application that reads a connection gets its bytes, even if others hold the whole pool. The rules of landing and
//! admission run with the real pool, under every short schedule and under random long ones.

use std::collections::VecDeque;

use headworks_rxpool::admission::{Admission, Admitted, Class, Estimate};
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::landing::{Grant, Landing, LandingStep};
use headworks_rxpool::pool::{AppLimits, ReceivePool};
use headworks_rxpool::units::{EXTENT_MAX, UNIT, units_of};
use headworks_verbs::{Duration, Instant};
use proptest::prelude::*;

/// Bytes of a connection's own ring that the sender may use.
const PROMISED: u32 = UNIT / 2;
/// Bytes of the ring that the sender may not use.
const RESERVE: u32 = UNIT / 2;
/// Rounds in which the connection that is read must get all of its bytes.
const ROUNDS: usize = 4000;
const ESTIMATE: Estimate = Estimate {
    rate: 1_000_000_000,
    residence: Duration::from_micros(200),
};

/// Bytes that have arrived and were not read.
#[derive(Clone, Copy, Debug)]
enum Arrived {
    Pool(HeldExtent, u32),
    Ring(u32),
    InLine(u32),
}

impl Arrived {
    fn bytes(self) -> u32 {
        match self {
            Self::Pool(_, bytes) | Self::Ring(bytes) | Self::InLine(bytes) => bytes,
        }
    }
}

/// Bytes of a stream that have not all arrived, in their order.
#[derive(Clone, Copy, Debug)]
enum Coming {
    /// Bytes of a transfer that are left.
    Transfer(u64),
    /// Bytes in line behind a transfer.
    InLine(u32),
}

#[derive(Clone)]
struct Connection {
    app: AppId,
    class: Class,
    landing: Landing,
    /// Whether the first transfer waits for admission.
    waits: bool,
    /// The first transfer, if it was admitted.
    admitted: Option<Admitted<usize>>,
    coming: VecDeque<Coming>,
    in_flight: VecDeque<Arrived>,
    arrived: VecDeque<Arrived>,
    /// Bytes in line that were not read.
    in_line: u32,
    /// Bytes that were announced.
    announced: u64,
    /// Bytes that the application has read.
    read: u64,
}

/// A receiving host: a pool, and connections of applications.
#[derive(Clone)]
struct Host {
    pool: ReceivePool,
    admission: Admission<usize>,
    connections: Vec<Connection>,
    config: PoolConfig,
}

impl Host {
    /// A host whose pool has one block. The first two connections are of one application, which may hold less.
    fn new(reads: u32) -> Self {
        let config = PoolConfig {
            budget: EXTENT_MAX.into(),
            mem_esc: Some(0),
            reads,
            ..PoolConfig::default()
        };
        config.check().unwrap();
        let mut pool = ReceivePool::new(&config);
        let apps = [(Class::Low, 40), (Class::High, u32::MAX)]
            .map(|(class, quota)| (pool.add(AppLimits { class, quota }), class));
        let connections = [0, 0, 1].map(|at| Connection {
            app: apps[at].0,
            class: apps[at].1,
            landing: Landing::default(),
            waits: false,
            admitted: None,
            coming: VecDeque::new(),
            in_flight: VecDeque::new(),
            arrived: VecDeque::new(),
            in_line: 0,
            announced: 0,
            read: 0,
        });
        Self {
            pool,
            admission: Admission::new(&config),
            connections: connections.into(),
            config,
        }
    }

    fn announce(&mut self, at: usize, bytes: u64) {
        let connection = &mut self.connections[at];
        connection.landing.announced(bytes).unwrap();
        connection.coming.push_back(Coming::Transfer(bytes));
        connection.announced += bytes;
    }

    /// Bytes come in line, as far as the sender may send them. Returns whether it may.
    fn come_in_line(&mut self, at: usize) -> bool {
        let connection = &mut self.connections[at];
        let bytes = PROMISED - connection.in_line;
        if bytes == 0 {
            return false;
        }
        connection.in_line += bytes;
        connection.landing.came(bytes.into());
        connection.announced += u64::from(bytes);
        match connection.coming.is_empty() {
            true => connection.arrived.push_back(Arrived::InLine(bytes)),
            false => connection.coming.push_back(Coming::InLine(bytes)),
        }
        true
    }

    /// Takes the receiver's next step on a connection. Returns whether something was begun.
    fn step(&mut self, at: usize) -> bool {
        let connection = &mut self.connections[at];
        let Some(first) = connection.landing.first() else {
            return false;
        };
        if !connection.waits && connection.admitted.is_none() {
            let app = (connection.app, connection.class);
            self.admission.announce(at, app, first, ESTIMATE);
            connection.waits = true;
        }
        while let Some(admitted) = self.admission.admit(&mut self.pool) {
            let of = &mut self.connections[admitted.transfer()];
            assert!(of.waits && of.admitted.is_none());
            of.waits = false;
            of.admitted = Some(admitted);
        }
        self.pool.set_contended(self.admission.lacks_memory());
        let connection = &mut self.connections[at];
        let may = match connection.admitted {
            Some(_) => self.pool.may_get(connection.app),
            None => 0,
        };
        let grant = match may {
            _ if !self.admission.may_read(self.config.fragment) => Grant::Soon,
            0 => Grant::Short,
            may => Grant::Units(may),
        };
        let in_ring = |one: &Arrived| matches!(one, Arrived::Ring(_));
        let is_used =
            connection.in_flight.iter().any(in_ring) || connection.arrived.iter().any(in_ring);
        let ring = if is_used { 0 } else { RESERVE };
        match connection.landing.next(grant, self.config.fragment, ring) {
            LandingStep::Nothing | LandingStep::Wait => return false,
            LandingStep::Pool(bytes) => {
                let wanted = units_of(bytes.into()) as u32;
                let held = self.pool.get_up_to(connection.app, wanted);
                let held = held.expect("it is free");
                let bytes = bytes.min(held.extent.len());
                self.admission.read_begun(bytes);
                connection.in_flight.push_back(Arrived::Pool(held, bytes));
                if connection.landing.begun(bytes) {
                    let admitted = connection.admitted.take().unwrap();
                    self.admission.end(admitted, &mut self.pool);
                }
            }
            LandingStep::Ring(bytes) => {
                self.admission.read_begun(bytes);
                connection.in_flight.push_back(Arrived::Ring(bytes));
                if connection.landing.begun(bytes) {
                    if std::mem::take(&mut connection.waits) {
                        let app = (connection.app, connection.class);
                        assert!(self.admission.withdraw(at, app));
                    }
                    if let Some(admitted) = connection.admitted.take() {
                        self.admission.end(admitted, &mut self.pool);
                    }
                }
            }
        }
        true
    }

    /// Completes the oldest READ of a connection.
    fn complete(&mut self, at: usize) -> bool {
        let connection = &mut self.connections[at];
        let Some(arrived) = connection.in_flight.pop_front() else {
            return false;
        };
        self.admission.read_ended(arrived.bytes());
        if let Arrived::Pool(held, _) = arrived {
            assert!(self.pool.arrived(connection.app, held, Instant::ZERO));
        }
        connection.arrived.push_back(arrived);
        let Some(Coming::Transfer(left)) = connection.coming.front_mut() else {
            panic!("a transfer is first");
        };
        *left -= u64::from(arrived.bytes());
        if *left == 0 {
            connection.coming.pop_front();
        }
        while let Some(Coming::InLine(bytes)) = connection.coming.front().copied() {
            connection.coming.pop_front();
            connection.arrived.push_back(Arrived::InLine(bytes));
        }
        true
    }

    /// The application reads what arrived first on a connection.
    fn read(&mut self, at: usize) -> bool {
        let connection = &mut self.connections[at];
        let Some(arrived) = connection.arrived.pop_front() else {
            return false;
        };
        match arrived {
            Arrived::Pool(held, _) => {
                let units = held.extent.units;
                self.pool.release(connection.app, held, 0, units).unwrap();
            }
            Arrived::InLine(bytes) => connection.in_line -= bytes,
            Arrived::Ring(_) => {}
        }
        let consumed = connection.landing.consumed(arrived.bytes().into());
        assert_eq!(consumed, Ok(()));
        connection.read += u64::from(arrived.bytes());
        true
    }

    /// Goes on with all connections, of which only the application of `which` reads. It must get all of its bytes.
    fn check_progress(mut self, which: usize) {
        for _ in 0..ROUNDS {
            let connection = &self.connections[which];
            if connection.read == connection.announced {
                return;
            }
            let mut did = false;
            for at in 0..self.connections.len() {
                did |= self.step(at);
                did |= self.complete(at);
            }
            did |= self.read(which);
            let connection = &self.connections[which];
            assert!(
                did,
                "connection {which} stands still after {} of {} bytes",
                connection.read, connection.announced
            );
        }
        panic!("connection {which} does not get its bytes");
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Announce(usize, u64),
    InLine(usize),
    Step(usize),
    Complete(usize),
    Read(usize),
}

impl Action {
    /// Returns whether the action did anything.
    fn apply(self, host: &mut Host) -> bool {
        match self {
            Self::Announce(at, bytes) => {
                host.announce(at, bytes);
                true
            }
            Self::InLine(at) => host.come_in_line(at),
            Self::Step(at) => host.step(at),
            Self::Complete(at) => host.complete(at),
            Self::Read(at) => host.read(at),
        }
    }
}

/// Tries every schedule of up to `left` further actions.
fn explore(host: &Host, left: usize, states: &mut usize) {
    *states += 1;
    for which in 0..host.connections.len() {
        host.clone().check_progress(which);
    }
    if left == 0 {
        return;
    }
    for at in 0..host.connections.len() {
        let actions = [
            Action::Announce(at, u64::from(EXTENT_MAX) + 1),
            Action::Announce(at, 5000),
            Action::InLine(at),
            Action::Step(at),
            Action::Complete(at),
            Action::Read(at),
        ];
        for action in actions {
            let mut next = host.clone();
            if action.apply(&mut next) {
                explore(&next, left - 1, states);
            }
        }
    }
}

#[test]
fn every_short_schedule_leads_on_with_the_pool_full_and_empty() {
    let mut states = 0;
    explore(&Host::new(2), 5, &mut states);
    // One connection holds the whole pool, and its application reads nothing.
    let mut full = Host::new(2);
    full.announce(2, EXTENT_MAX.into());
    while full.step(2) {}
    assert_eq!(full.pool.available(), 0);
    explore(&full, 5, &mut states);
    assert!(states > 10_000, "{states} states");
}

fn action() -> impl Strategy<Value = Action> {
    let bytes = prop_oneof![1u64..5000, 5000u64..600_000];
    prop_oneof![
        1 => (0usize..3, bytes).prop_map(|(at, bytes)| Action::Announce(at, bytes)),
        1 => (0usize..3).prop_map(Action::InLine),
        3 => (0usize..3).prop_map(Action::Step),
        2 => (0usize..3).prop_map(Action::Complete),
        1 => (0usize..3).prop_map(Action::Read),
    ]
}

proptest! {
    #[test]
    fn whoever_reads_gets_its_bytes_after_any_schedule(
        actions in proptest::collection::vec(action(), 0..100),
        reads in 1u32..5,
    ) {
        let mut host = Host::new(reads);
        for action in actions {
            action.apply(&mut host);
        }
        for which in 0..host.connections.len() {
            host.clone().check_progress(which);
        }
    }
}

//! A daemon that sleeps while a transfer waits for memory of the receive pool. No time passes, so nothing but a release can
//! wake it.

use std::io;
use std::io::Write;
use std::sync::{Arc, Mutex};

use headworks_client::connection::{Connection, KeptMemory, Received, Wake};
use headworks_daemon::limits::{DaemonLimits, PoolPages};
use headworks_daemon::snapshot::{PoolSnapshot, Traffic};
use headworks_verbs::Duration;

use crate::host_pair::{HostPair, ONE, identity, pass};

/// Bytes of a transfer. The application may not hold as much of the pool.
const LEN: u32 = 2 << 20;
/// Bytes of a READ.
const PIECE: usize = 64 << 10;

/// Sends a transfer that exhausts what the receiving application may hold. Returns that application's end.
fn waiting_transfer() -> (HostPair, Box<Connection>, Box<Connection>) {
    transfer_with(&DaemonLimits::default())
}

/// As [`waiting_transfer`], between daemons with these limits.
fn transfer_with(limits: &DaemonLimits) -> (HostPair, Box<Connection>, Box<Connection>) {
    let identities = [identity(0, Some(ONE)), identity(1, Some(ONE))];
    let mut pair = HostPair::with_limits(identities, limits);
    assert_eq!(pair.connect(), Ok(()));
    let (mut near, mut far) = pair.ends();
    let extent = pair.alloc(0, LEN);
    near.refresh(pair.hosts[0].application.slabs());
    let (lent, _) = near.sending.lend(extent).unwrap();
    assert!(lent.is_some());
    let _ = near.nudge();
    pair.settle();
    far.refresh(pair.hosts[1].application.slabs());
    (pair, near, far)
}

fn received(pair: &HostPair) -> u64 {
    let domain = &pair.hosts[1].daemon.snapshot().domains[0];
    domain.applications[0].traffic.received
}

/// Lets the receiving daemon fall asleep: it is armed, and finds nothing to do.
fn fall_asleep(pair: &mut HostPair) {
    pair.settle();
    pair.hosts[1].daemon.arm();
    pair.settle();
    assert!(pair.hosts[1].daemon.is_idle());
    let before = received(pair);
    assert!(!pair.step());
    assert_eq!(received(pair), before);
}

/// Wakes the daemon, as an application does.
fn wake(pair: &mut HostPair) {
    pair.hosts[1].daemon.disarm();
    pair.settle();
}

#[test]
fn reading_wakes_a_daemon_that_waits_for_memory() {
    let (mut pair, _near, mut far) = waiting_transfer();
    let mut read = 0;
    while read + (PIECE as u64) < LEN.into() {
        fall_asleep(&mut pair);
        let before = received(&pair);
        let (some, woken) = far.receiving.recv(&mut [0; PIECE]).unwrap();
        assert_eq!(some, Received::Bytes(PIECE));
        read += PIECE as u64;
        if before == u64::from(LEN) {
            // Nothing waits any more, and no memory is wanted.
            assert_eq!(woken, Wake::No);
            continue;
        }
        assert_eq!(woken, Wake::Needed, "{read} bytes were read");
        wake(&mut pair);
        assert!(received(&pair) > before, "the transfer does not go on");
    }
    assert!(read > u64::from(LEN) / 2);
}

#[test]
fn dropping_what_was_kept_wakes_a_daemon_that_waits_for_memory() {
    let (mut pair, _near, mut far) = waiting_transfer();
    let mut kept: Vec<KeptMemory> = Vec::new();
    while let (Some((_, one)), _) = far.receiving.keep().unwrap() {
        kept.push(one);
        pair.settle();
    }
    assert!(!kept.is_empty() && received(&pair) < LEN.into());
    for one in kept {
        fall_asleep(&mut pair);
        let before = received(&pair);
        assert_eq!(one.release(), Wake::Needed);
        wake(&mut pair);
        assert!(received(&pair) > before, "the transfer does not go on");
    }
}

/// A pool that one transfer exhausts.
fn small_pool() -> DaemonLimits {
    DaemonLimits {
        pool_bytes: 256 << 10,
        pool_quota: 100,
        ..DaemonLimits::default()
    }
}

/// State of the receiving daemon: of its pool, and of its application.
fn pool_and_traffic(pair: &HostPair) -> (PoolSnapshot, Traffic) {
    let domain = &pair.hosts[1].daemon.snapshot().domains[0];
    (domain.pool, domain.applications[0].traffic)
}

/// Lets so much time pass that what the application holds counts as late, and lets the escape controller act.
fn hold_for_long(pair: &mut HostPair) {
    for _ in 0..4 {
        pass(Duration::from_millis(60));
        pair.settle();
    }
}

#[test]
fn an_application_that_keeps_all_that_it_received_is_not_counted_as_copied_out() {
    let (mut pair, _near, mut far) = transfer_with(&small_pool());
    let mut kept: Vec<KeptMemory> = Vec::new();
    for _ in 0..2 {
        while let (Some((_, one)), _) = far.receiving.keep().unwrap() {
            kept.push(one);
            pair.settle();
        }
        hold_for_long(&mut pair);
    }
    let (pool, traffic) = pool_and_traffic(&pair);
    // As much is replaced as can be, and the pool is in danger all the same.
    assert_eq!((pool.replaced, pool.signals > 0), (64 << 10, true));
    assert_eq!((pool.copies, traffic.copied_out), (0, 0));
}

#[test]
fn bytes_that_an_application_does_not_read_are_copied_out_and_counted() {
    let (mut pair, _near, _far) = transfer_with(&small_pool());
    hold_for_long(&mut pair);
    let (pool, traffic) = pool_and_traffic(&pair);
    assert!(pool.copies > 0 && traffic.copied_out > 0, "{pool:?}");
}

#[test]
fn a_reset_is_counted_while_the_application_still_keeps_its_memory() {
    let (mut pair, near, mut far) = transfer_with(&small_pool());
    let mut kept: Vec<KeptMemory> = Vec::new();
    while let (Some((_, one)), _) = far.receiving.keep().unwrap() {
        kept.push(one);
        pair.settle();
    }
    hold_for_long(&mut pair);
    assert_eq!(pool_and_traffic(&pair).1.reset, 0);
    for _ in 0..2 {
        pass(Duration::from_secs(11));
        pair.settle();
    }
    let (pool, traffic) = pool_and_traffic(&pair);
    assert_eq!((pool.resets, traffic.reset), (1, 1));
    // Closing the connection does not count it again.
    assert!(!kept.is_empty());
    for one in kept {
        let _ = one.release();
    }
    for (host, handle) in [(0, near.handle()), (1, far.handle())] {
        pair.hosts[host].application.close(handle);
    }
    pair.settle();
    let domain = &pair.hosts[1].daemon.snapshot().domains[0];
    assert_eq!(domain.object_counts.connections, 0);
    assert_eq!(pool_and_traffic(&pair).1.reset, 1);
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_lack_of_huge_pages_is_logged_once_for_each_tenant() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        // No part of such a pool is as long as a huge page.
        let (pair, ..) = transfer_with(&DaemonLimits {
            pool_bytes: 1 << 20,
            pool_pages: PoolPages::Huge,
            ..DaemonLimits::default()
        });
        // The second daemon has two parts of its workers.
        assert_eq!(pool_and_traffic(&pair).0.bytes, 512 << 10);
    });
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = said
        .lines()
        .filter(|one| one.contains("pool_pages"))
        .collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[1].contains("of 1048576 bytes, has ordinary pages"),
        "{said}"
    );
}

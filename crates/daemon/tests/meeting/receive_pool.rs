//! A daemon that sleeps while a transfer waits for memory of the receive pool. No time passes, so nothing but a release can
//! wake it.

use headworks_client::connection::{Connection, KeptMemory, Received, Wake};

use crate::host_pair::{HostPair, ONE, identity};

/// Bytes of a transfer. The application may not hold as much of the pool.
const LEN: u32 = 2 << 20;
/// Bytes of a READ.
const PIECE: usize = 64 << 10;

/// Sends a transfer that exhausts what the receiving application may hold. Returns that application's end.
fn waiting_transfer() -> (HostPair, Box<Connection>, Box<Connection>) {
    let mut pair = HostPair::new([identity(0, Some(ONE)), identity(1, Some(ONE))]);
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

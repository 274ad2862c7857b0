//! Streams through the daemons of [`headworks::testing`].

use std::io::{Read, Write};
use std::path::Path;

use headworks::daemon::limits::DaemonLimits;
use headworks::net::clock;
use headworks::service::{Service, ServiceError, Stream};
use headworks::testing::{Daemons, DaemonsBuilder, DaemonsError, Rules, rules};
use headworks::verbs::Duration;

const PORT: u16 = 7000;
/// How long something may take that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connects an application of host 0 to one of host 1. Returns both ends.
fn connect(daemons: &Daemons) -> (Stream, Stream) {
    let [near, far] = [0, 1].map(|host| daemons.attach(host, "test").expect("a daemon"));
    streams(daemons, &near, &far)
}

fn streams(daemons: &Daemons, near: &Service, far: &Service) -> (Stream, Stream) {
    let listener = far.listen(PORT, 4).expect("a free port");
    let to = daemons.address(1, PORT);
    let mut ends = std::thread::scope(|scope| {
        let calling = scope.spawn(|| near.connect(to).expect("connects"));
        let until = Some(clock::now() + PATIENCE);
        let far = listener.accept_by(until).expect("is called");
        (calling.join().expect("connects"), far)
    });
    ends.0.set_deadline(Some(clock::now() + PATIENCE));
    ends.1.set_deadline(Some(clock::now() + PATIENCE));
    ends
}

/// Sends `len` bytes from `from` to `to`, and checks each.
fn transfer(from: &mut Stream, to: &mut Stream, len: usize) -> std::io::Result<()> {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
    let mut received = vec![0; len];
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| from.write_all(&bytes));
        let read = to.read_exact(&mut received);
        sending.join().expect("no panic").and(read)
    })?;
    assert!(received == bytes, "the bytes differ");
    Ok(())
}

fn hostile(seed: u64) -> DaemonsBuilder {
    let options = format!("hostile,seed={seed}");
    Daemons::builder(2)
        .options(0, &*options)
        .options(1, &*options)
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).expect("a directory").count()
}

#[test]
fn hostile_devices_inject_faults_and_bytes_arrive_all_the_same() {
    for seed in 1..=3 {
        let daemons = hostile(seed).start().expect("starts");
        let (mut near, mut far) = connect(&daemons);
        let before = [daemons.faults(0), daemons.faults(1)];
        // Long enough for bulk transfers, in either direction.
        transfer(&mut near, &mut far, 300_000).expect("arrives");
        transfer(&mut far, &mut near, 300_000).expect("arrives");
        assert!(daemons.faults(0) > before[0], "seed {seed}");
        assert!(daemons.faults(1) > before[1], "seed {seed}");
    }
}

#[test]
fn devices_without_rules_inject_nothing() {
    let daemons = Daemons::builder(2)
        .options(1, "hostile")
        .start()
        .expect("starts");
    let (mut near, mut far) = connect(&daemons);
    transfer(&mut near, &mut far, 10_000).expect("arrives");
    assert_eq!(daemons.faults(0), 0);
    assert!(daemons.faults(1) > 0);
}

#[test]
fn the_rules_of_the_sending_host_decide() {
    for killer in [0, 1] {
        // Setting up the link takes some requests.
        let rules = Rules::new(1).with(rules::kill_after(40));
        let daemons = Daemons::builder(2).rules(killer, rules.clone());
        let daemons = daemons.start().expect("starts");
        let (mut near, mut far) = connect(&daemons);
        // The receiving host sends a few credits and no more.
        let sent = (0..200).try_for_each(|_| {
            near.write_all(&[7; 1000])?;
            far.read_exact(&mut [0; 1000])
        });
        match killer {
            0 => {
                let error = sent.expect_err("the queue pair is dead");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                assert!(rules.verdicts() > 0);
            }
            _ => sent.expect("no request of the other host is killed"),
        }
        assert_eq!(daemons.faults(killer), rules.verdicts());
    }
}

#[test]
fn after_a_queue_pair_died_the_next_connection_gets_another() {
    let rules = Rules::new(1).with(rules::kill_after(40));
    let daemons = Daemons::builder(2).rules(0, rules).start().expect("starts");
    let [near, far] = [0, 1].map(|host| daemons.attach(host, "test").expect("a daemon"));
    for _ in 0..3 {
        let (mut one, mut other) = streams(&daemons, &near, &far);
        transfer(&mut one, &mut other, 1000).expect("arrives");
        let broken = (0..200).find_map(|_| transfer(&mut one, &mut other, 1000).err());
        assert!(broken.is_some());
    }
}

#[test]
fn a_killed_daemon_is_gone_for_its_applications_and_reset_for_others() {
    let daemons = Daemons::start(2).expect("starts");
    let [near, far] = [0, 1].map(|host| daemons.attach(host, "test").expect("a daemon"));
    let (mut one, mut other) = streams(&daemons, &near, &far);
    transfer(&mut one, &mut other, 1000).expect("arrives");
    daemons.kill(0).expect("ends");
    assert!(!daemons.is_running(0) && daemons.is_running(1));
    assert!(matches!(one.recv(&mut [0]), Err(ServiceError::DaemonGone)));
    assert!(near.is_gone() && !far.is_gone());
    assert!(matches!(other.recv(&mut [0]), Err(ServiceError::Reset(_))));
    let refused = daemons.attach(0, "test").expect_err("nobody is there");
    assert!(matches!(refused, ServiceError::NoDaemon { .. }));
    daemons.kill(0).expect("is gone already");
}

#[test]
fn a_stopped_daemon_says_farewell_and_a_killed_one_does_not() {
    for is_killed in [false, true] {
        let daemons = Daemons::start(2).expect("starts");
        let [near, far] = [0, 1].map(|host| daemons.attach(host, "test").expect("a daemon"));
        let (mut one, _other) = streams(&daemons, &near, &far);
        match is_killed {
            true => daemons.kill(0).expect("ends"),
            false => daemons.stop(0).expect("ends"),
        }
        let error = one.recv(&mut [0]).expect_err("the daemon is gone");
        let is_reset = matches!(error, ServiceError::Reset(_));
        assert_eq!(is_reset, !is_killed, "{error}");
        assert!(!daemons.is_running(0));
    }
}

#[test]
fn a_restarted_daemon_serves_at_the_same_address_and_socket() {
    let daemons = hostile(5).start().expect("starts");
    for host in [0, 1] {
        let (mut near, mut far) = connect(&daemons);
        transfer(&mut near, &mut far, 1000).expect("arrives");
        let socket = daemons.socket(host).to_owned();
        let address = daemons.address(host, 1);
        // Both a daemon that runs and one that does not can be restarted.
        daemons.restart(host).expect("starts again");
        daemons.stop(host).expect("ends");
        daemons.restart(host).expect("starts again");
        assert!(daemons.is_running(host));
        assert_eq!(daemons.socket(host), socket);
        assert_eq!(daemons.address(host, 1), address);
    }
    let (mut near, mut far) = connect(&daemons);
    transfer(&mut near, &mut far, 100_000).expect("arrives");
}

#[test]
fn two_pairs_at_a_time_do_not_disturb_each_other() {
    let ours = Daemons::start(2).expect("starts");
    let theirs = hostile(3).start().expect("starts");
    let addresses = [0, 1].map(|host| [ours.address(host, 1), theirs.address(host, 1)]);
    assert!(addresses.iter().all(|[ours, theirs]| ours != theirs));
    // The same port is free in each.
    let (mut near, mut far) = connect(&ours);
    let (mut other_near, mut other_far) = connect(&theirs);
    transfer(&mut near, &mut far, 100_000).expect("arrives");
    transfer(&mut other_near, &mut other_far, 100_000).expect("arrives");
    assert_eq!(ours.faults(0) + ours.faults(1), 0);
    // An application of one pair does not reach the other.
    let stranger = ours.attach(0, "test").expect("a daemon");
    assert!(stranger.connect(theirs.address(1, PORT)).is_err());
    drop(theirs);
    assert!(matches!(
        other_near.recv(&mut [0]),
        Err(ServiceError::DaemonGone)
    ));
    transfer(&mut far, &mut near, 100_000).expect("arrives");
}

#[test]
fn a_device_that_cannot_be_opened_is_an_error_and_leaves_nothing() {
    let parent = tempfile::tempdir().expect("a directory");
    let builder = || Daemons::builder(2).below(parent.path());
    let refused = builder().options(1, "hostil").start();
    assert!(matches!(refused, Err(DaemonsError::Device(_))));
    let limits = DaemonLimits {
        workers: 0,
        ..DaemonLimits::default()
    };
    let refused = builder().limits(limits).start();
    assert!(matches!(refused, Err(DaemonsError::Daemon(_))));
    assert_eq!(entries(parent.path()), 0);
    let missing = parent.path().join("missing");
    let refused = builder().below(missing).start();
    assert!(matches!(refused, Err(DaemonsError::Directory { .. })));
}

//! The daemons' receive pool: who gets memory while others hold it, and what becomes of those that do not read.
#![cfg(all(feature = "daemon", feature = "soft"))]

use std::collections::BTreeMap;
use std::io::{Read, Write};

use headworks::daemon::limits::{DaemonLimits, PoolClass};
use headworks::net::clock;
use headworks::service::{Reset, Service, ServiceError, Stream};
use headworks::testing::Daemons;
use headworks::verbs::Duration;

/// Bytes of each stream.
const LEN: usize = 1 << 20;
const PIECE: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Connects applications of host 0 to applications of host 1, `each` connections for each of `names`.
struct Streams {
    services: Vec<Service>,
    senders: Vec<Stream>,
    receivers: Vec<Vec<Stream>>,
}

impl Streams {
    fn new(daemons: &Daemons, names: &[&str], each: usize) -> Self {
        let sending = daemons.attach(0, "sender").expect("a daemon");
        let mut all = Self {
            services: vec![],
            senders: vec![],
            receivers: vec![],
        };
        for (at, name) in names.iter().enumerate() {
            let service = daemons.attach(1, name).expect("a daemon");
            let port = 7000 + at as u16;
            let listener = service.listen(port, 8).expect("a port");
            let mut receivers = Vec::new();
            for _ in 0..each {
                let near = sending.connect(daemons.address(1, port)).expect("connects");
                let mut far = listener.accept().expect("a caller");
                far.set_deadline(Some(clock::now() + PATIENCE));
                all.senders.push(near);
                receivers.push(far);
            }
            all.receivers.push(receivers);
            all.services.push(service);
        }
        all.services.push(sending);
        all
    }
}

/// Sends `len` bytes on a thread of its own.
fn send(mut stream: Stream, len: usize) -> std::thread::JoinHandle<Stream> {
    std::thread::spawn(move || {
        stream.set_deadline(Some(clock::now() + PATIENCE));
        let mut at = 0;
        while at < len {
            let bytes: Vec<u8> = (at..len.min(at + PIECE)).map(byte).collect();
            stream.write_all(&bytes).expect("is sent");
            at += bytes.len();
        }
        stream
    })
}

fn check(stream: &mut Stream, len: usize) {
    let mut at = 0;
    let mut bytes = vec![0; PIECE];
    while at < len {
        let here = PIECE.min(len - at);
        stream.read_exact(&mut bytes[..here]).expect("arrives");
        let wrong = (0..here).find(|offset| bytes[*offset] != byte(at + offset));
        assert_eq!(wrong.map(|offset| at + offset), None, "a wrong byte");
        at += here;
    }
}

/// Three connections of an application that reads none of them, and one of another that reads. All hold more than the pool
/// has.
fn one_stalls(limits: DaemonLimits) {
    let is_little = limits.memory_each <= 1 << 20;
    let daemons = Daemons::builder(2).limits(limits).start().expect("starts");
    let names = ["stalled", "reading"];
    let Streams {
        services,
        mut senders,
        mut receivers,
    } = Streams::new(&daemons, &names, 3);
    let len = LEN;
    let of_reading = senders.split_off(3);
    let stalled: Vec<_> = senders.into_iter().map(|one| send(one, len)).collect();
    let reading: Vec<_> = of_reading.into_iter().map(|one| send(one, len)).collect();
    let mut reads = receivers.pop().expect("two applications");
    let mut late = receivers.pop().expect("two applications");
    // With little memory, the applications use it up.
    let mut used = Vec::new();
    for len in [64 << 10, 4 << 10, 1 << 10] {
        while is_little && let Ok(memory) = services[1].alloc(len) {
            used.push(memory);
        }
    }
    for stream in &mut reads {
        check(stream, len);
    }
    reading
        .into_iter()
        .for_each(|one| drop(one.join().expect("no panic")));
    // The one that did not read has lost nothing. It drains one connection while the others hold what they hold.
    for stream in &mut late {
        check(stream, len);
    }
    stalled
        .into_iter()
        .for_each(|one| drop(one.join().expect("no panic")));
}

fn small_pool() -> DaemonLimits {
    DaemonLimits {
        pool_bytes: 256 << 10,
        pool_quota: 100,
        ..DaemonLimits::default()
    }
}

#[test]
fn applications_attach_and_receive_whatever_the_length_of_slabs() {
    for slab_bytes in [64 << 10, 128 << 10, 256 << 10, 512 << 10] {
        let daemons = Daemons::builder(2).limits(DaemonLimits {
            slab_bytes,
            ..DaemonLimits::default()
        });
        let daemons = daemons.start().expect("starts");
        let mut all = Streams::new(&daemons, &["one"], 2);
        let sent: Vec<_> = all.senders.drain(..).map(|one| send(one, LEN)).collect();
        for stream in &mut all.receivers[0] {
            check(stream, LEN);
        }
        for one in sent {
            drop(one.join().expect("no panic"));
        }
    }
}

#[test]
fn whoever_reads_gets_its_bytes_while_others_hold_the_pool() {
    // Nothing counts as late within this test.
    one_stalls(DaemonLimits {
        pool_straggler_time: 10_000,
        ..small_pool()
    });
}

#[test]
fn what_is_not_read_is_copied_out_and_others_go_on() {
    one_stalls(DaemonLimits {
        pool_straggler_time: 1,
        ..small_pool()
    });
}

#[test]
fn every_class_gets_its_bytes() {
    let classes = [("stalled", PoolClass::High), ("reading", PoolClass::Low)];
    let classes = classes.map(|(name, class)| (name.to_owned(), class));
    one_stalls(DaemonLimits {
        classes: BTreeMap::from(classes),
        ..small_pool()
    });
}

#[test]
fn a_quota_leaves_memory_for_others() {
    one_stalls(DaemonLimits {
        pool_quota: 10,
        pool_straggler_time: 10_000,
        workers: 2,
        ..small_pool()
    });
}

#[test]
fn a_connection_makes_progress_without_any_memory_but_its_ring() {
    one_stalls(DaemonLimits {
        pool_straggler_time: 10_000,
        slab_bytes: 1 << 20,
        memory_each: 1 << 20,
        ring_max: 4096,
        // A ring holds pieces that are announced.
        bulk_min: 1024,
        ..small_pool()
    });
}

#[test]
fn an_application_that_exits_gives_its_memory_back() {
    let daemons = Daemons::builder(2).limits(DaemonLimits {
        pool_straggler_time: 10_000,
        ..small_pool()
    });
    let daemons = daemons.start().expect("starts");
    for _ in 0..5 {
        let all = Streams::new(&daemons, &["leaving", "staying"], 2);
        let len = 1 << 20;
        let mut receivers = all.receivers.into_iter();
        let leaving = receivers.next().expect("two applications");
        let mut staying = receivers.next().expect("two applications");
        let mut senders = all.senders;
        let of_staying = senders.split_off(2);
        // These fill the pool, and are reset.
        let lost: Vec<_> = senders
            .into_iter()
            .map(|mut one| std::thread::spawn(move || while one.write_all(&[7; PIECE]).is_ok() {}))
            .collect();
        let mut services = all.services;
        let mut first = leaving.into_iter();
        let mut one = first.next().expect("two connections");
        one.read_exact(&mut [0; 100]).expect("arrives");
        drop((one, first));
        drop(services.remove(0));
        lost.into_iter()
            .for_each(|one| one.join().expect("no panic"));
        let sent: Vec<_> = of_staying.into_iter().map(|one| send(one, len)).collect();
        for stream in &mut staying {
            check(stream, len);
        }
        sent.into_iter()
            .for_each(|one| drop(one.join().expect("no panic")));
    }
}

#[test]
fn connections_of_applications_that_keep_memory_for_ever_are_reset_and_others_go_on() {
    let limits = DaemonLimits {
        pool_straggler_time: 1,
        pool_reset_time: 50,
        ..small_pool()
    };
    let daemons = Daemons::builder(2).limits(limits).start().expect("starts");
    let mut streams = Streams::new(&daemons, &["reading"], 2);
    let reading: Vec<_> = streams
        .senders
        .drain(..)
        .map(|one| send(one, LEN))
        .collect();
    let sending = daemons.attach(0, "sender").expect("a daemon");
    let until = clock::now() + PATIENCE;
    let (mut services, mut keeps, mut senders) = (Vec::new(), Vec::new(), Vec::new());
    let (mut kept, mut is_reset) = (Vec::new(), false);
    // One application alone may leave so much of the pool that it is not short. So more and more come, which keep all that
    // lies in the pool, and read the rest, until a stream is reset.
    while !is_reset {
        assert!(clock::now() < until, "no stream is ever reset");
        let service = daemons.attach(1, "keeping").expect("a daemon");
        let port = 7100 + services.len() as u16;
        let listener = service.listen(port, 1).expect("a port");
        let mut near = sending.connect(daemons.address(1, port)).expect("connects");
        let mut far = listener.accept().expect("a caller");
        far.set_nonblocking(true);
        services.push(service);
        keeps.push(far);
        senders.push(std::thread::spawn(move || {
            near.set_deadline(Some(until));
            while near.write_all(&[7; PIECE]).is_ok() {}
            near.send(&[7]).expect_err("the stream is reset")
        }));
        let next = clock::now() + Duration::from_millis(200);
        while !is_reset && clock::now() < next {
            for stream in &mut keeps {
                match stream.recv_chunk() {
                    Ok(chunk) if chunk.is_in_pool() => kept.push(chunk),
                    Ok(_) => {}
                    Err(ServiceError::ChunksKept | ServiceError::WouldBlock) => {
                        std::thread::yield_now();
                    }
                    Err(why) => {
                        assert!(matches!(why, ServiceError::Reset(Reset::Kept)), "{why}");
                        assert!(why.to_string().contains("kept received memory"), "{why}");
                        is_reset = true;
                    }
                }
            }
        }
    }
    // The chunks still hold the bytes that the sender sent. A chunk keeps its connection open.
    drop(keeps);
    for chunk in kept {
        assert!(chunk.iter().all(|byte| *byte == 7));
    }
    for one in senders {
        let why = one.join().expect("no panic");
        assert!(matches!(why, ServiceError::Reset(Reset::ByPeer)), "{why}");
    }
    for stream in &mut streams.receivers[0] {
        check(stream, LEN);
    }
    reading
        .into_iter()
        .for_each(|one| drop(one.join().expect("no panic")));
    // A new connection of such an application works.
    let listener = services[0].listen(7099, 1).expect("a port");
    let near = sending.connect(daemons.address(1, 7099)).expect("connects");
    let mut far = listener.accept().expect("a caller");
    far.set_deadline(Some(clock::now() + PATIENCE));
    let near = send(near, LEN);
    check(&mut far, LEN);
    drop(near.join().expect("no panic"));
}

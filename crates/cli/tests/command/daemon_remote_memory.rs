//! Memory that one application exports and another one accesses.

use std::io::Read;
use std::thread;

use headworks::service::{Outcome, Refusal, Rights, Service, ServiceError, Stream};
use headworks::verbs::Instant;
use rustix::process::Signal;

use crate::daemon::{Daemons, DataPath, locked, test_on_both_paths, to};

fn pair(path: DataPath, client: &Service, server: &Service, port: u16) -> (Stream, Stream) {
    let listener = server.listen(port, 1).expect("the port is free");
    let near = client.connect(to(1, port)).expect("connects");
    path.check(&near);
    (near, listener.accept().expect("accepts"))
}

fn refused<T: std::fmt::Debug>(result: Result<T, ServiceError>, why: Outcome) {
    let error = result.expect_err("it cannot be");
    assert!(
        matches!(error, ServiceError::Operation(found) if found == why),
        "{error}"
    );
}

/// Sends the number of an export over the stream, and returns it as received.
fn told(from: &mut Stream, to: &mut Stream, export_id: u32) -> u32 {
    from.send_all(&export_id.to_le_bytes()).unwrap();
    let mut bytes = [0; 4];
    let mut got = 0;
    while got < 4 {
        got += to.recv(&mut bytes[got..]).unwrap();
    }
    u32::from_le_bytes(bytes)
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 15) as u8
}

test_on_both_paths!(
    memory_is_read_written_and_changed_as_far_as_that_is_allowed,
    concurrent_remote_additions_are_counted_exactly,
    revoked_memory_is_no_longer_accessed,
    a_connection_cannot_reclaim_the_memory_of_another,
    a_failed_revocation_can_be_retried_later,
    operations_end_with_the_connection,
);

fn memory_is_read_written_and_changed_as_far_as_that_is_allowed(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = pair(path, &client, &server, 7000);
    for len in [8usize, 64, 65_536, 4 << 20] {
        let memory = server.alloc(len as u32).unwrap();
        let mut export = far.export(memory, Rights::ALL).unwrap();
        let export_id = told(&mut far, &mut near, export.id());
        let mut memory = client.alloc(len as u32).unwrap();
        for (at, place) in memory.iter_mut().enumerate() {
            *place = byte(at);
        }
        let memory = near.write_to(export_id, 0, memory).unwrap();
        let mut seen = vec![0; len];
        export.read(0, &mut seen).unwrap();
        assert!(
            seen.iter()
                .enumerate()
                .all(|(at, found)| *found == byte(at))
        );
        export.write(len - 8, &7u64.to_le_bytes()).unwrap();
        let memory = near.read_from(export_id, 0, memory).unwrap();
        assert_eq!(memory[len - 8..], 7u64.to_le_bytes());
        assert!((0..len - 8).all(|at| memory[at] == byte(at)));
        let last = len as u64 - 8;
        assert_eq!(near.fetch_add(export_id, last, 3).unwrap(), 7);
        assert_eq!(near.compare_swap(export_id, last, 9, 1).unwrap(), 10);
        assert_eq!(near.compare_swap(export_id, last, 10, 1).unwrap(), 10);
        assert_eq!(export.word(len - 8).unwrap(), 1);
        // Out of bounds, not aligned, or no such export.
        refused(near.read_from(export_id, 1, memory), Outcome::OutOfBounds);
        refused(near.fetch_add(export_id, last + 8, 1), Outcome::OutOfBounds);
        refused(near.fetch_add(export_id, 4, 1), Outcome::OutOfBounds);
        refused(near.fetch_add(export_id, u64::MAX, 1), Outcome::OutOfBounds);
        refused(near.fetch_add(export_id + 1, 0, 1), Outcome::NoExport);
        let memory = far.revoke(export).unwrap();
        refused(near.fetch_add(export_id, last, 1), Outcome::NoExport);
        // With read access only.
        let export = far.export(memory, Rights::READ).unwrap();
        let export_id = told(&mut far, &mut near, export.id());
        let memory = client.alloc(8).unwrap();
        let memory = near.read_from(export_id, last, memory).unwrap();
        refused(near.write_to(export_id, last, memory), Outcome::Denied);
        refused(near.fetch_add(export_id, last, 1), Outcome::Denied);
        drop(far.revoke(export).unwrap());
    }
    // The stream of the same connection is not affected.
    assert_eq!(told(&mut near, &mut far, 77), 77);
    drop((near, far, client, server));
    daemons.end();
}

fn concurrent_remote_additions_are_counted_exactly(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    const THREADS: u64 = 4;
    const EACH: u64 = 2000;
    let counter = |stream: &mut Stream, other: &mut Stream| {
        let mut memory = server.alloc(64).unwrap();
        memory.fill(0);
        let export = stream.export(memory, Rights::ATOMIC).unwrap();
        let export_id = told(stream, other, export.id());
        (export, export_id)
    };
    // Each connection has an export of its own, so what one thread counts is exact.
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (mut near, mut far) = pair(path, &client, &server, 7000 + number as u16);
            let (export, export_id) = counter(&mut far, &mut near);
            let thread = thread::spawn(move || {
                let mut under_way = std::collections::VecDeque::new();
                let mut sum = 0;
                for _ in 0..EACH {
                    if under_way.len() == 20 {
                        let mut first = under_way.pop_front().unwrap();
                        let before = near.finish(&mut first).unwrap();
                        // Operations are executed in the order in which they were started.
                        assert_eq!(before, sum);
                        sum += 1;
                    }
                    under_way.push_back(near.fetch_add_start(export_id, 0, 1).unwrap());
                }
                for mut one in under_way {
                    let before = near.finish(&mut one).unwrap();
                    assert_eq!(before, sum);
                    sum += 1;
                }
                near
            });
            (thread, far, export)
        })
        .collect();
    for (thread, far, export) in threads {
        drop(thread.join().unwrap());
        assert_eq!(export.word(0).unwrap(), EACH);
        drop(far);
    }
    drop((client, server));
    daemons.end();
}

fn revoked_memory_is_no_longer_accessed(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = pair(path, &client, &server, 7000);
    const LEN: usize = 1 << 20;
    for round in 0..20 {
        let mut memory = server.alloc(LEN as u32).unwrap();
        memory.fill(0);
        let export = far.export(memory, Rights::WRITE).unwrap();
        let export_id = told(&mut far, &mut near, export.id());
        let client = client.clone();
        let writer = thread::spawn(move || {
            let mut written = 0u8;
            let mut memory = client.alloc(LEN as u32).unwrap();
            loop {
                written = written.wrapping_add(1);
                memory.fill(written);
                match near.write_to(export_id, 0, memory) {
                    Ok(back) => memory = back,
                    Err(ServiceError::Operation(Outcome::NoExport)) => return near,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        // The export is revoked at a different moment of a WRITE in each round.
        let mut last = [0];
        while last[0] < round {
            export.read(LEN - 1, &mut last).unwrap();
        }
        let mut memory = far.revoke(export).unwrap();
        memory.fill(0xee);
        near = writer.join().unwrap();
        assert!(memory.iter().all(|found| *found == 0xee), "round {round}");
    }
    drop((near, far, client, server));
    daemons.end();
}

fn a_connection_cannot_reclaim_the_memory_of_another(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut own, mut far) = pair(path, &client, &server, 7000);
    let (mut other, beyond) = pair(path, &client, &server, 7001);
    other.set_nonblocking(true);
    let is_misuse = |error: &ServiceError| matches!(error, ServiceError::Refused(Refusal::Misuse));
    // A loan that is being sent.
    let loan = own.lend(client.alloc(5000).unwrap(), 5000).unwrap();
    let left = other.reclaim(loan).unwrap_err();
    assert!(is_misuse(&left.error), "{left}");
    let mut buffer = [0; 5000];
    far.read_exact(&mut buffer).unwrap();
    let memory = own.reclaim(left.loan).unwrap();
    // An export that the other end may use.
    let export = own.export(memory, Rights::READ).unwrap();
    let left = other.revoke(export).unwrap_err();
    assert!(is_misuse(&left.error), "{left}");
    let memory = own.revoke(left.export).unwrap();
    // Memory that is being read into.
    let export = far.export(server.alloc(5000).unwrap(), Rights::READ);
    let export = export.unwrap();
    // An export frame precedes the bytes that follow it, but not an operation that names the export.
    let export_id = told(&mut far, &mut own, export.id());
    let mut reading = own.read_start(export_id, 0, memory).unwrap();
    let error = other.finish(&mut reading).unwrap_err();
    assert!(is_misuse(&error), "{error}");
    assert!(reading.take_memory().is_none());
    own.finish(&mut reading).unwrap();
    assert!(reading.take_memory().is_some());
    drop((own, far, other, beyond, export, client, server));
    daemons.end();
}

fn a_failed_revocation_can_be_retried_later(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = pair(path, &client, &server, 7000);
    let export = far.export(server.alloc(64).unwrap(), Rights::ALL);
    let export = export.unwrap();
    let export_id = told(&mut far, &mut near, export.id());
    // The other host does not answer. Revoking waits no longer than it may, and the export is not forgotten.
    daemons.sides[0].signal(Signal::STOP);
    far.set_deadline(Some(Instant::ZERO));
    let left = far.revoke(export).unwrap_err();
    assert!(matches!(left.error, ServiceError::Deadline), "{left}");
    far.set_nonblocking(true);
    let left = far.revoke(left.export).unwrap_err();
    assert!(matches!(left.error, ServiceError::WouldBlock), "{left}");
    daemons.sides[0].signal(Signal::CONT);
    far.set_nonblocking(false);
    far.set_deadline(None);
    assert_eq!(far.revoke(left.export).unwrap().len(), 64);
    refused(near.fetch_add(export_id, 0, 1), Outcome::NoExport);
    // An operation that is not waited for ends by itself, and its resources become free again.
    let export = far.export(server.alloc(64).unwrap(), Rights::ALL);
    let export_id = told(&mut far, &mut near, export.unwrap().id());
    daemons.sides[1].signal(Signal::STOP);
    near.set_deadline(Some(Instant::ZERO));
    // As many operations as its ring has room for. The ring of a direct connection at the daemon is shorter.
    let fit = match path {
        DataPath::Daemons => 20,
        DataPath::Direct => 2,
    };
    for _ in 0..fit {
        let error = near.fetch_add(export_id, 0, 1).unwrap_err();
        assert!(matches!(error, ServiceError::Deadline), "{error}");
    }
    daemons.sides[1].signal(Signal::CONT);
    near.set_deadline(None);
    assert_eq!(near.fetch_add(export_id, 0, 1).unwrap(), fit);
    near.set_nonblocking(true);
    for before in fit + 1..700 {
        assert_eq!(near.fetch_add(export_id, 0, 1).unwrap(), before);
    }
    drop((near, far, client, server));
    daemons.end();
}

fn operations_end_with_the_connection(path: DataPath) {
    let _one = locked();
    let mut daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    // Either the other application drops the connection, or its daemon dies.
    for is_daemon in [false, true] {
        let (mut near, mut far) = pair(path, &client, &server, 7000);
        let export = far.export(server.alloc(4096).unwrap(), Rights::ALL);
        let export = export.unwrap();
        let export_id = told(&mut far, &mut near, export.id());
        let counts = thread::spawn(move || {
            loop {
                if let Err(error) = near.fetch_add(export_id, 0, 1) {
                    return error;
                }
            }
        });
        while export.word(0).unwrap() < 100 {
            thread::yield_now();
        }
        match is_daemon {
            false => drop(far),
            true => daemons.sides[1].signal(Signal::KILL),
        }
        let error = counts.join().unwrap();
        assert!(
            matches!(error, ServiceError::Reset(_) | ServiceError::Operation(_)),
            "{error}"
        );
    }
    daemons.sides[1].wait();
    daemons.sides[1] = daemons.daemon(1);
    drop((client, server));
    daemons.end();
}

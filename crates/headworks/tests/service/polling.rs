//! Many streams in one poller.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use headworks::service::{Interest, PollEvent, Poller, Service, ServiceError, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::daemon::DaemonProcess;
use crate::{LIMIT, connected};

/// Calls `test` with a daemon whose connections go through it, and with one whose connections are direct.
pub(super) fn both_ways(test: impl Fn(&DaemonProcess)) {
    for is_direct in [false, true] {
        test(&DaemonProcess::start_with(is_direct));
    }
}

/// Waits until something is reported.
fn reports(poller: &mut Poller) -> Vec<PollEvent> {
    let mut events = Vec::new();
    poller.wait(&mut events, Some(LIMIT)).expect("polls");
    assert!(!events.is_empty(), "nothing was reported in time");
    events
}

/// Asks for reports without waiting.
fn reports_now(poller: &mut Poller) -> Vec<PollEvent> {
    let mut events = Vec::new();
    let none = Some(Duration::ZERO);
    poller.wait(&mut events, none).expect("polls");
    events
}

fn readable(key: u64) -> PollEvent {
    PollEvent {
        key,
        is_readable: true,
        is_writable: false,
        is_hung_up: false,
    }
}

fn writable(key: u64) -> PollEvent {
    PollEvent {
        is_readable: false,
        is_writable: true,
        ..readable(key)
    }
}

/// Sends until nothing fits.
fn fill(stream: &mut Stream) -> usize {
    let mut sent = 0;
    loop {
        match stream.send(&[7; 10_000]) {
            Ok(len) => sent += len,
            Err(ServiceError::WouldBlock) => return sent,
            Err(error) => panic!("{error}"),
        }
    }
}

fn drain(stream: &mut Stream) -> usize {
    let mut read = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.recv(&mut buffer) {
            Ok(len) => read += len,
            Err(ServiceError::WouldBlock) => return read,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_stream_is_reported_until_everything_was_received() {
    both_ways(|daemon: &DaemonProcess| {
        let service = daemon.attach();
        let (mut near, mut far) = connected(&service);
        let mut poller = Poller::new(&service).expect("a poller");
        poller.add(&mut far, 5, Interest::RECEIVE).expect("adds");
        assert_eq!(reports_now(&mut poller), []);
        let nothing = far.recv(&mut [0; 8]);
        assert!(matches!(nothing, Err(ServiceError::WouldBlock)), "it waits");
        for round in 0..50 {
            near.send_all(b"abcdefgh").expect("sends");
            assert_eq!(reports(&mut poller), [readable(5)], "round {round}");
            assert_eq!(far.recv(&mut [0; 5]).expect("receives"), 5);
            assert_eq!(reports(&mut poller), [readable(5)], "three bytes are left");
            assert_eq!(far.recv(&mut [0; 5]).expect("receives"), 3, "a short read");
            assert_eq!(reports_now(&mut poller), [], "everything was received");
        }
        near.end().expect("ends");
        assert_eq!(reports(&mut poller), [readable(5)]);
        assert_eq!(far.recv(&mut [0; 5]).expect("receives"), 0);
        assert_eq!(reports(&mut poller), [readable(5)], "an end stays");
        poller.remove(&mut far).expect("removes");
        assert_eq!(reports_now(&mut poller), []);
        assert!(matches!(
            poller.remove(&mut far),
            Err(ServiceError::NotInPoller)
        ));
        // Its calls wait again.
        far.send_all(b"x").expect("sends");
        assert_eq!(near.recv(&mut [0; 5]).expect("receives"), 1);
    });
}

#[test]
fn an_edge_triggered_stream_is_reported_once_for_each_arrival() {
    both_ways(|daemon: &DaemonProcess| {
        let service = daemon.attach();
        let (mut near, mut far) = connected(&service);
        let mut poller = Poller::new(&service).expect("a poller");
        let interest = Interest::BOTH.edge_triggered();
        poller.add(&mut far, 1, interest).expect("adds");
        assert_eq!(
            reports(&mut poller),
            [writable(1)],
            "there is room at first"
        );
        assert_eq!(reports_now(&mut poller), []);
        for _ in 0..20 {
            near.send_all(b"12345678").expect("sends");
            assert_eq!(reports(&mut poller), [readable(1)]);
            assert_eq!(reports_now(&mut poller), [], "nothing new has arrived");
            far.recv(&mut [0; 4]).expect("receives");
            assert_eq!(reports_now(&mut poller), [], "still not");
            near.send_all(b"9").expect("sends");
            assert_eq!(reports(&mut poller), [readable(1)], "more has arrived");
            assert_eq!(drain(&mut far), 5);
        }
        // Room is news after a call found none.
        let sent = fill(&mut far);
        assert_eq!(reports_now(&mut poller), []);
        let mut left = sent;
        let mut buffer = vec![0; 1 << 16];
        let mut events = Vec::new();
        while left > 0 {
            left -= near.recv(&mut buffer).expect("receives");
        }
        while events.is_empty() {
            events = reports(&mut poller);
        }
        assert_eq!(events, [writable(1)]);
        assert_eq!(reports_now(&mut poller), []);
        // Also if the poller did not look between the failed call and the room.
        let mut left = fill(&mut far);
        while left > 0 {
            left -= near.recv(&mut buffer).expect("receives");
        }
        assert_eq!(reports(&mut poller), [writable(1)]);
    });
}

#[test]
fn a_connection_that_is_not_established_yet_is_reported_once() {
    for is_direct in [false, true] {
        let daemon = DaemonProcess::start_with(is_direct);
        let service = daemon.attach();
        let listener = service.listen(0, 8).expect("listens");
        let to = listener.local_addr().expect("an address");
        let mut poller = Poller::new(&service).expect("a poller");
        let start = || service.connect_polled(to).expect("starts");
        let mut first = start();
        poller.add_pending(&first, 1).expect("adds");
        poller.add_pending(&first, 2).expect("adds again");
        assert_eq!(reports(&mut poller), [writable(2)]);
        assert_eq!(reports_now(&mut poller), []);
        assert!(first.finish().expect("no error").is_some());
        // One that was finished, dropped or removed before is not reported.
        let (mut second, third, fourth, fifth) = (start(), start(), start(), start());
        for (pending, key) in [(&second, 3), (&third, 4), (&fourth, 5), (&fifth, 6)] {
            poller.add_pending(pending, key).expect("adds");
        }
        let _connected = loop {
            if let Some(stream) = second.finish().expect("no error") {
                break stream;
            }
        };
        drop(third);
        poller.remove_pending(&fourth);
        assert_eq!(reports(&mut poller), [writable(6)]);
        drop((fourth, fifth));
        assert_eq!(reports_now(&mut poller), []);
        // Nor is it when the daemon is gone.
        let quiet = service.listen(0, 1).expect("listens");
        poller.add_listener(&quiet, 7).expect("adds");
        drop(daemon);
        let gone = PollEvent {
            is_hung_up: true,
            ..readable(7)
        };
        assert_eq!(reports(&mut poller), [gone]);
    }
}

#[test]
fn room_is_reported_while_there_is_some() {
    both_ways(|daemon: &DaemonProcess| {
        let service = daemon.attach();
        let (mut near, mut far) = connected(&service);
        let mut poller = Poller::new(&service).expect("a poller");
        poller.add(&mut near, 9, Interest::SEND).expect("adds");
        for _ in 0..5 {
            assert_eq!(reports(&mut poller), [writable(9)]);
            assert_eq!(reports(&mut poller), [writable(9)]);
            let mut sent = fill(&mut near);
            // The daemon may carry some more before everything is full.
            loop {
                let mut events = Vec::new();
                let soon = Some(Duration::from_millis(50));
                poller.wait(&mut events, soon).expect("polls");
                if events.is_empty() {
                    break;
                }
                sent += fill(&mut near);
            }
            let mut buffer = vec![0; 1 << 16];
            while sent > 0 {
                sent -= far.recv(&mut buffer).expect("receives");
            }
        }
        poller
            .modify(&mut near, Interest::RECEIVE)
            .expect("modifies");
        assert_eq!(reports_now(&mut poller), []);
    });
}

#[test]
fn a_poller_finds_callers_dropped_streams_and_reused_numbers() {
    both_ways(|daemon: &DaemonProcess| {
        let service = daemon.attach();
        let other = daemon.attach();
        let listener = service.listen(0, 4).expect("listens");
        let at = listener.local_addr().expect("an address");
        let mut poller = Poller::new(&service).expect("a poller");
        poller.add_listener(&listener, 0).expect("adds");
        assert_eq!(reports_now(&mut poller), []);
        for round in 1..30u64 {
            let mut caller = thread::scope(|scope| {
                let caller = scope.spawn(|| other.connect(at).expect("connects"));
                assert_eq!(reports(&mut poller), [readable(0)]);
                caller.join().expect("no panic")
            });
            let mut accepted = listener.try_accept().expect("accepts").expect("a caller");
            poller
                .add(&mut accepted, round, Interest::RECEIVE)
                .expect("adds");
            let again = poller.add(&mut accepted, 77, Interest::RECEIVE);
            assert!(matches!(again, Err(ServiceError::InPoller)));
            assert!(matches!(accepted.readiness(), Err(ServiceError::InPoller)));
            let foreign = poller.add(&mut caller, 77, Interest::RECEIVE);
            assert!(matches!(foreign, Err(ServiceError::OtherSession)));
            caller.send_all(b"hello").expect("sends");
            assert_eq!(reports(&mut poller), [readable(round)]);
            // Dropped with something to receive, it is not reported any more.
            drop(accepted);
            assert_eq!(reports_now(&mut poller), []);
            let reset = caller.recv(&mut [0; 8]);
            assert!(matches!(reset, Err(ServiceError::Reset(_))), "{reset:?}");
        }
        poller.remove_listener(&listener);
        let _caller = other.connect(at).expect("connects");
        assert_eq!(reports_now(&mut poller), []);
    });
}

#[test]
fn a_reset_and_the_end_of_the_daemon_are_reported() {
    let daemon = DaemonProcess::start();
    let service = daemon.attach();
    let (mut near, mut far) = connected(&service);
    let (_kept, mut other) = connected(&service);
    let mut poller = Poller::new(&service).expect("a poller");
    let listener = service.listen(0, 1).expect("listens");
    poller.add_listener(&listener, 3).expect("adds");
    poller.add(&mut far, 1, Interest::RECEIVE).expect("adds");
    poller.add(&mut other, 2, Interest::NONE).expect("adds");
    // Unread bytes reset the other end.
    far.send_all(b"never read").expect("sends");
    near.peek().expect("arrives");
    drop(near);
    let hung_up = |key| PollEvent {
        is_hung_up: true,
        ..readable(key)
    };
    assert_eq!(reports(&mut poller), [hung_up(1)]);
    assert!(matches!(far.recv(&mut [0; 8]), Err(ServiceError::Reset(_))));
    poller.remove(&mut far).expect("removes");
    assert_eq!(reports_now(&mut poller), []);
    drop(daemon);
    let mut events = reports(&mut poller);
    events.sort_unstable_by_key(|event| event.key);
    let quiet = PollEvent {
        is_readable: false,
        ..hung_up(2)
    };
    assert_eq!(events, [quiet, hung_up(3)]);
    let gone = other.recv(&mut [0; 8]);
    assert!(matches!(gone, Err(ServiceError::DaemonGone)), "{gone:?}");
}

#[test]
fn a_waker_and_the_time_end_a_wait() {
    let daemon = DaemonProcess::start();
    let service = daemon.attach();
    let mut poller = Poller::new(&service).expect("a poller");
    let waker = poller.waker();
    let mut events = Vec::new();
    for _ in 0..20 {
        thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            poller.wait(&mut events, Some(LIMIT)).expect("polls");
        });
        assert_eq!(events, []);
    }
    waker.wake();
    poller
        .wait(&mut events, None)
        .expect("a wake-up before the wait");
    let short = Some(Duration::from_millis(20));
    poller.wait(&mut events, short).expect("polls");
    assert_eq!(events, []);
}

#[test]
fn the_descriptor_of_a_poller_tells_when_there_are_reports() {
    both_ways(|daemon: &DaemonProcess| {
        let service = daemon.attach();
        let (mut near, mut far) = connected(&service);
        let mut poller = Poller::new(&service).expect("a poller");
        poller.add(&mut far, 1, Interest::RECEIVE).expect("adds");
        for _ in 0..100 {
            assert_eq!(reports_now(&mut poller), []);
            near.send_all(b"news").expect("sends");
            let limit = Timespec::try_from(LIMIT).expect("fits");
            // It may be readable for nothing.
            let mut events = Vec::new();
            while events.is_empty() {
                let mut fds = [PollFd::new(&poller, PollFlags::IN)];
                assert_eq!(poll(&mut fds, Some(&limit)).expect("polls"), 1);
                events = reports_now(&mut poller);
            }
            assert_eq!(events, [readable(1)]);
            assert_eq!(far.recv(&mut [0; 8]).expect("receives"), 4);
        }
    });
}

/// Echoes what arrives at any of the streams until all have ended.
pub(super) fn echo(service: &Service, mut streams: Vec<Stream>) {
    let mut poller = Poller::new(service).expect("a poller");
    for (key, stream) in (0..).zip(&mut streams) {
        poller.add(stream, key, Interest::RECEIVE).expect("adds");
    }
    let mut left = streams.len();
    let mut events = Vec::new();
    let mut buffer = [0; 4096];
    let mut unsent: Vec<Vec<u8>> = vec![Vec::new(); streams.len()];
    while left > 0 {
        poller.wait(&mut events, Some(LIMIT)).expect("polls");
        assert!(!events.is_empty(), "nothing was reported in time");
        for event in &events {
            let at = event.key as usize;
            let stream = &mut streams[at];
            if event.is_readable && unsent[at].is_empty() {
                match stream.recv(&mut buffer) {
                    Ok(0) => {
                        left -= 1;
                        poller.remove(stream).expect("removes");
                        stream.end().expect("ends");
                        continue;
                    }
                    Ok(len) => unsent[at].extend_from_slice(&buffer[..len]),
                    Err(ServiceError::WouldBlock) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            let had = unsent[at].len();
            while !unsent[at].is_empty() {
                match stream.send(&unsent[at]) {
                    Ok(sent) => drop(unsent[at].drain(..sent)),
                    Err(ServiceError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let interest = match unsent[at].is_empty() {
                true => Interest::RECEIVE,
                false => Interest::SEND,
            };
            if event.is_writable || (had > 0 && !unsent[at].is_empty()) {
                poller.modify(stream, interest).expect("modifies");
            }
        }
    }
}

/// A poller serves many streams of one session, while other threads of the session wait for their own streams, one of
/// which handles the session's packets.
#[test]
fn a_poller_and_waiting_threads_share_a_session() {
    both_ways(|daemon: &DaemonProcess| {
        const STREAMS: usize = 300;
        const THREADS: usize = 4;
        let service = daemon.attach();
        let (mut near, far): (Vec<Stream>, Vec<Stream>) =
            (0..STREAMS).map(|_| connected(&service)).unzip();
        thread::scope(|scope| {
            scope.spawn(|| echo(&service, far));
            let each = STREAMS / THREADS;
            for streams in near.chunks_mut(each) {
                scope.spawn(move || {
                    for round in 1..=20usize {
                        // Longer than the rings now and then.
                        let len = if round == 10 { 200_000 } else { round * 7 };
                        let bytes: Vec<u8> = (0..len).map(|at| (at * round) as u8).collect();
                        for stream in streams.iter_mut() {
                            let (mut sent, mut got) = (0, Vec::new());
                            let mut buffer = [0; 4096];
                            stream.set_nonblocking(true);
                            while sent < len {
                                match stream.send(&bytes[sent..]) {
                                    Ok(some) => sent += some,
                                    Err(ServiceError::WouldBlock) => {
                                        stream.set_nonblocking(false);
                                        let some = stream.recv(&mut buffer).expect("receives");
                                        got.extend_from_slice(&buffer[..some]);
                                        stream.set_nonblocking(true);
                                    }
                                    Err(error) => panic!("{error}"),
                                }
                            }
                            stream.set_nonblocking(false);
                            while got.len() < len {
                                let some = stream.recv(&mut buffer).expect("receives");
                                got.extend_from_slice(&buffer[..some]);
                            }
                            assert!(got == bytes, "other bytes came back");
                        }
                    }
                    for stream in streams {
                        stream.end().expect("ends");
                        assert_eq!(stream.recv(&mut [0; 8]).expect("the end"), 0);
                    }
                });
            }
        });
    });
}

/// Sends messages on the streams, which the other ends echo, and receives each before the next. Ends the streams.
pub(super) fn play(streams: &mut [Stream], rounds: usize) {
    for round in 0..rounds {
        let message = round.to_le_bytes();
        for stream in streams.iter_mut() {
            stream.send_all(&message).expect("sends");
        }
        for stream in streams.iter_mut() {
            let mut echoed = [0; 8];
            stream.read_exact(&mut echoed).expect("receives in time");
            assert_eq!(echoed, message);
        }
    }
    for stream in streams {
        stream.end().expect("ends");
        assert_eq!(stream.recv(&mut [0; 8]).expect("the end"), 0);
    }
}

/// Each of two pollers of one session takes numbers out of the wake sets that belong to streams of the other.
#[test]
fn two_pollers_of_a_session_each_report_their_streams() {
    both_ways(|daemon: &DaemonProcess| {
        const STREAMS: usize = 20;
        let service = daemon.attach();
        let ends =
            || -> (Vec<Stream>, Vec<Stream>) { (0..STREAMS).map(|_| connected(&service)).unzip() };
        // The streams of a poller that was dropped are added to the others.
        let ((mut near, mut far), (mut others, mut far_others)) = (ends(), ends());
        let mut dropped = Poller::new(&service).expect("a poller");
        for (key, stream) in (0..).zip(far.iter_mut().chain(&mut far_others)) {
            dropped.add(stream, key, Interest::BOTH).expect("adds");
        }
        assert_eq!(reports(&mut dropped).len(), 2 * STREAMS);
        drop(dropped);
        thread::scope(|scope| {
            scope.spawn(|| echo(&service, far));
            scope.spawn(|| echo(&service, far_others));
            scope.spawn(|| play(&mut near, 200));
            scope.spawn(|| play(&mut others, 200));
        });
    });
}

/// A poller made for a moment neither disarms what another one sleeps on nor keeps its reports.
#[test]
fn a_poller_that_comes_and_goes_takes_no_wake_ups_from_another() {
    both_ways(|daemon: &DaemonProcess| {
        let service = daemon.attach();
        let (mut near, far) = (0..4)
            .map(|_| connected(&service))
            .unzip::<_, _, Vec<_>, _>();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| echo(&service, far));
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut poller = Poller::new(&service).expect("a poller");
                    // Its own stream has it drain the sets.
                    let (_near, mut far) = connected(&service);
                    poller.add(&mut far, 1, Interest::RECEIVE).expect("adds");
                    for _ in 0..20 {
                        assert_eq!(reports_now(&mut poller), []);
                    }
                }
            });
            scope.spawn(|| {
                play(&mut near, 1_000);
                is_over.store(true, Ordering::Relaxed);
            });
        });
    });
}

/// The daemon dies while it carries lent bytes of a direct stream. Both ends are told, and a stream that needs no daemon is
/// not.
#[test]
fn the_end_of_a_daemon_that_carries_bytes_of_a_direct_stream_is_reported() {
    for is_edge_triggered in [false, true] {
        let mut daemon = DaemonProcess::start_with(true);
        let service = daemon.attach();
        let (mut near, mut far) = connected(&service);
        let (_other, mut idle) = connected(&service);
        let memory = service.alloc(4096).expect("memory");
        let mut poller = Poller::new(&service).expect("a poller");
        let receive = Interest {
            is_edge_triggered,
            ..Interest::RECEIVE
        };
        poller.add(&mut far, 1, receive).expect("adds");
        let send = Interest::SEND.edge_triggered();
        poller.add(&mut near, 2, send).expect("adds");
        poller.add(&mut idle, 3, receive).expect("adds");
        assert_eq!(reports(&mut poller), [writable(2)]);
        daemon.freeze();
        let loan = near.lend(memory, 4096).expect("lends");
        let left = near.reclaim(loan).expect_err("it is lent");
        assert!(matches!(left.error, ServiceError::WouldBlock), "{left:?}");
        let nothing = far.recv(&mut [0; 8]);
        assert!(
            matches!(nothing, Err(ServiceError::WouldBlock)),
            "{nothing:?}"
        );
        assert_eq!(reports_now(&mut poller), []);
        daemon.end(Signal::KILL);
        let mut told = Vec::new();
        while !(told.contains(&1) && told.contains(&2)) {
            let events = reports(&mut poller);
            told.extend(events.iter().map(|event| event.key));
        }
        assert!(!told.contains(&3), "it goes on");
        let gone = far.recv(&mut [0; 8]);
        assert!(matches!(gone, Err(ServiceError::DaemonGone)), "{gone:?}");
        let left = near.reclaim(left.loan).expect_err("it is lost");
        assert!(matches!(left.error, ServiceError::DaemonGone), "{left:?}");
    }
}

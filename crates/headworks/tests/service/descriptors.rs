//! Descriptors of direct connections, which a thread of the session makes ready.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use headworks::service::{Interest, Poller, Reset, Service, ServiceError, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::daemon::{DaemonProcess, until as until_true, until_asleep};
use crate::polling::{echo, play};
use crate::{LIMIT, connected, this_thread};

/// Returns what poll(2) reports of a descriptor within `limit`.
fn polled(of: &mut Stream, asked: PollFlags, limit: Duration) -> PollFlags {
    let fd = of.fd().expect("a descriptor");
    let mut fds = [PollFd::new(&fd, asked)];
    let limit = Timespec::try_from(limit).expect("a time");
    poll(&mut fds, Some(&limit)).expect("poll(2)");
    fds[0].revents()
}

/// Waits until poll(2) reports `asked`.
fn until(of: &mut Stream, asked: PollFlags) {
    let reported = polled(of, asked, LIMIT);
    assert!(reported.contains(asked), "{reported:?}");
}

/// Calls `act` until it would wait and the descriptor is not ready. A report that was under way may come once more.
fn until_unready(
    of: &mut Stream,
    asked: PollFlags,
    mut act: impl FnMut(&mut Stream) -> Result<usize, ServiceError>,
) {
    let began = Instant::now();
    loop {
        match act(of) {
            Ok(_) => continue,
            Err(ServiceError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
        if !polled(of, asked, Duration::ZERO).intersects(asked) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "it stays ready");
    }
}

fn direct(service: &Service) -> (Stream, Stream) {
    let (mut near, far) = connected(service);
    assert!(near.is_direct() && far.is_direct());
    near.set_nonblocking(true);
    (near, far)
}

/// Connects two services. The end of the second is the first that is returned.
fn between(client: &Service, server: &Service) -> (Stream, Stream) {
    let listener = server.listen(0, 1).expect("listens");
    let at = listener.local_addr().expect("an address");
    let far = client.connect(at).expect("connects");
    let mut near = listener.accept_timeout(LIMIT).expect("accepts");
    assert!(near.is_direct() && far.is_direct());
    near.set_nonblocking(true);
    (near, far)
}

/// The thread that makes descriptors ready keeps nothing: once its streams are dropped, the session ends with its service.
#[test]
fn a_session_ends_after_its_streams_with_descriptors() {
    let daemon = DaemonProcess::start_with(true);
    let client = daemon.attach();
    for _ in 0..3 {
        let server = daemon.attach();
        let streams: Vec<_> = (0..3).map(|_| between(&client, &server)).collect();
        for (mut near, mut far) in streams {
            until(&mut near, PollFlags::OUT);
            far.send_all(b"still there").expect("sends");
            until(&mut near, PollFlags::IN);
        }
        drop(server);
        until_true("the session's end", || {
            daemon.metrics("headworks_application_connections").len() == 1
        });
    }
}

#[test]
fn a_descriptor_is_readable_while_something_is_there() {
    let daemon = DaemonProcess::start_with(true);
    let (mut near, mut far) = direct(&daemon.attach());
    let mut bytes = [0; 8];
    // What arrived before there was a descriptor is reported, too.
    far.send_all(b"early").expect("sends");
    for text in [&b"early"[..], b"later", b"more"] {
        until(&mut near, PollFlags::IN);
        assert_eq!(near.recv(&mut bytes).expect("receives"), text.len());
        assert_eq!(bytes[..text.len()], *text);
        until_unready(&mut near, PollFlags::IN, |near| near.recv(&mut [0; 8]));
        let next: &[u8] = match text {
            b"early" => b"later",
            b"later" => b"more",
            _ => break,
        };
        far.send_all(next).expect("sends");
    }
    // A part that is left keeps it readable.
    far.send_all(b"two parts").expect("sends");
    until(&mut near, PollFlags::IN);
    assert_eq!(near.recv(&mut bytes[..3]).expect("receives"), 3);
    until(&mut near, PollFlags::IN);
    assert_eq!(near.recv(&mut bytes).expect("receives"), 6);
    // So does the end.
    until_unready(&mut near, PollFlags::IN, |near| near.recv(&mut [0; 8]));
    far.end().expect("ends");
    until(&mut near, PollFlags::IN);
    assert_eq!(near.recv(&mut bytes).expect("the end"), 0);
}

#[test]
fn a_descriptor_is_writable_while_there_is_room() {
    let daemon = DaemonProcess::start_with(true);
    let (mut near, mut far) = direct(&daemon.attach());
    let piece = vec![7; 1 << 16];
    until(&mut near, PollFlags::OUT);
    let mut left = 0;
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..20 {
        until_unready(&mut near, PollFlags::OUT, |near| {
            let sent = near.send(&piece)?;
            left += sent;
            Ok(sent)
        });
        while left > 0 {
            left -= far.recv(&mut bytes).expect("receives");
        }
        until(&mut near, PollFlags::OUT);
    }
}

#[test]
fn calls_of_a_stream_with_a_descriptor_may_wait() {
    let daemon = DaemonProcess::start_with(true);
    let (mut near, mut far) = direct(&daemon.attach());
    near.set_nonblocking(false);
    near.fd().expect("a descriptor");
    const LEN: usize = 8 << 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = vec![0; 100_000];
            let mut left = LEN;
            while left > 0 {
                let len = far.recv(&mut bytes).expect("receives");
                left -= len;
                far.send_all(&bytes[..len.min(64)]).expect("sends");
            }
            far.end().expect("ends");
        });
        let (mut reader, mut writer) = near.split();
        scope.spawn(move || writer.send_all(&vec![5; LEN]).expect("sends"));
        while reader.recv(&mut [0; 4096]).expect("receives") > 0 {}
    });
}

/// A call sleeps on the descriptor, and then receives a part of what arrived.
#[test]
fn bytes_that_a_waiting_call_leaves_keep_the_descriptor_readable() {
    let daemon = DaemonProcess::start_with(true);
    let (mut near, mut far) = direct(&daemon.attach());
    near.fd().expect("a descriptor");
    for _ in 0..20 {
        near.set_nonblocking(false);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tell.send(this_thread()).expect("is heard");
                assert_eq!(near.recv(&mut [0; 10]).expect("receives"), 10);
            });
            until_asleep(told.recv().expect("a thread"));
            far.send_all(&[7; 100]).expect("sends");
        });
        until(&mut near, PollFlags::IN);
        near.set_nonblocking(true);
        until_unready(&mut near, PollFlags::IN, |near| near.recv(&mut [0; 64]));
    }
}

#[test]
fn a_descriptor_hangs_up_when_the_peer_resets_the_connection() {
    let daemon = DaemonProcess::start_with(true);
    let (mut near, far) = direct(&daemon.attach());
    until(&mut near, PollFlags::OUT);
    near.send_all(b"not read").expect("sends");
    drop(far);
    until(&mut near, PollFlags::HUP);
    for _ in 0..2 {
        let reset = near.recv(&mut [0; 8]);
        assert!(
            matches!(reset, Err(ServiceError::Reset(Reset::ByPeer))),
            "{reset:?}"
        );
        let reset = near.send(b"too late");
        assert!(matches!(reset, Err(ServiceError::Reset(_))), "{reset:?}");
    }
}

/// What a stream is told by does not change, and the stream says which it is.
#[test]
fn a_stream_has_a_descriptor_or_is_in_a_poller() {
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let (mut near, _far) = direct(&service);
    let mut poller = Poller::new(&service).expect("a poller");
    poller.add(&mut near, 1, Interest::BOTH).expect("is added");
    let refused = near.fd().map(drop);
    assert!(
        matches!(refused, Err(ServiceError::InPoller)),
        "{refused:?}"
    );
    poller.remove(&mut near).expect("is removed");
    near.fd().expect("a descriptor");
    let refused = poller.add(&mut near, 1, Interest::BOTH);
    assert!(
        matches!(refused, Err(ServiceError::HasDescriptor)),
        "{refused:?}"
    );
}

/// Echoes what arrives at the streams as epoll(7) reports them, with edges, until all have ended.
fn echo_by_epoll(mut streams: Vec<Stream>) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    for (at, stream) in streams.iter_mut().enumerate() {
        let data = epoll::EventData::new_u64(at as u64);
        let fd = stream.readiness().expect("a descriptor").clone();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, fd.as_fd(), data, flags).expect("is added");
    }
    let mut ended = 0;
    let mut events = Vec::with_capacity(16);
    let mut bytes = [0; 512];
    while ended < streams.len() {
        events.clear();
        let limit = Timespec::try_from(LIMIT).expect("a time");
        let into = rustix::buffer::spare_capacity(&mut events);
        let some = epoll::wait(&epoll, into, Some(&limit)).expect("waits");
        assert!(some > 0, "{ended} of {} have ended", streams.len());
        for event in &events {
            let stream = &mut streams[event.data.u64() as usize];
            loop {
                match stream.recv(&mut bytes) {
                    Ok(0) => {
                        ended += 1;
                        stream.end().expect("ends");
                        let fd = stream.fd().expect("a descriptor");
                        epoll::delete(&epoll, fd).expect("is deleted");
                        break;
                    }
                    // The callers never have more under way than fits.
                    Ok(len) => assert_eq!(stream.send(&bytes[..len]).expect("sends"), len),
                    Err(ServiceError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

/// The thread that makes descriptors ready has a poller of its own beside the callers'.
#[test]
fn a_poller_and_descriptors_of_one_session_each_report_their_streams() {
    const STREAMS: usize = 20;
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let ends = || -> (Vec<Stream>, Vec<Stream>) {
        let ends = (0..STREAMS).map(|_| direct(&service));
        ends.map(|(near, far)| (far, near)).unzip()
    };
    let ((mut near, far), (mut others, far_others)) = (ends(), ends());
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&service, far));
        scope.spawn(|| echo_by_epoll(far_others));
        scope.spawn(|| play(&mut near, 200));
        scope.spawn(|| play(&mut others, 200));
    });
}

/// A thread answers on many connections as epoll(7) reports them, with edges. Threads of another session call.
#[test]
fn many_connections_are_served_by_epoll() {
    const CONNECTIONS: usize = 50;
    const ROUNDS: usize = 200;
    let daemon = DaemonProcess::start_with(true);
    let (client, server) = (daemon.attach(), daemon.attach());
    let (near, mut far): (Vec<_>, Vec<_>) =
        (0..CONNECTIONS).map(|_| between(&client, &server)).unzip();
    std::thread::scope(|scope| {
        scope.spawn(|| echo_by_epoll(near));
        for chunk in far.chunks_mut(CONNECTIONS / 2) {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let len = 1 + round * 7 % 300;
                    for stream in chunk.iter_mut() {
                        stream.send_all(&vec![round as u8; len]).expect("sends");
                    }
                    for stream in chunk.iter_mut() {
                        let mut bytes = [0; 512];
                        let mut got = 0;
                        while got < len {
                            got += stream.recv(&mut bytes[..len - got]).expect("receives");
                        }
                    }
                }
                chunk
                    .iter_mut()
                    .for_each(|stream| stream.end().expect("ends"));
            });
        }
    });
}

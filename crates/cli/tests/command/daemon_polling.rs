//! Polled connections, and sending and receiving without copies.

use std::os::fd::AsFd;
use std::thread;

use headworks::service::{Refusal, Service, ServiceError, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::daemon::{Daemons, DataPath, locked, serve, test_on_both_paths, to};
use crate::test_env::until;

/// Returns what a descriptor is ready for now.
fn ready(fd: impl AsFd) -> PollFlags {
    let mut fds = [PollFd::new(&fd, PollFlags::IN | PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll");
    fds[0].revents()
}

fn until_ready(stream: &mut Stream, what: PollFlags) {
    until("a descriptor", || {
        ready(stream.fd().expect("a descriptor")).contains(what)
    });
}

fn would_block<T: std::fmt::Debug>(result: Result<T, ServiceError>) {
    let error = result.expect_err("it would have to wait");
    assert!(matches!(error, ServiceError::WouldBlock), "{error}");
}

/// Waits until there is nothing to receive and the descriptor says so. It may be ready in vain for a while.
fn until_quiet(stream: &mut Stream) {
    until("nothing", || {
        would_block(stream.recv(&mut [0; 8]));
        ready(stream.fd().expect("a descriptor")) == PollFlags::OUT
    });
}

/// Connects a client to a server, both polled.
fn pair(client: &Service, server: &Service, port: u16) -> (Stream, Stream) {
    let mut listener = server.listen(port, 8).expect("the port is free");
    assert_eq!(ready(listener.fd().unwrap()), PollFlags::OUT);
    assert!(listener.try_accept().unwrap().is_none());
    let mut connecting = client.connect_start(to(1, port)).unwrap();
    let mut near = None;
    until("the connection", || {
        near = near.take().or_else(|| {
            // The connection is not complete before its descriptor is ready.
            let is_ready = ready(&connecting).contains(PollFlags::OUT);
            is_ready.then(|| connecting.finish().unwrap())?
        });
        near.is_some()
    });
    until("somebody who connects", || {
        ready(listener.fd().unwrap()).contains(PollFlags::IN)
    });
    let mut far = listener.try_accept().unwrap().expect("somebody");
    assert!(listener.try_accept().unwrap().is_none());
    assert_eq!(ready(listener.fd().unwrap()), PollFlags::OUT);
    far.set_nonblocking(true);
    (near.expect("connected"), far)
}

#[test]
fn descriptors_are_ready_exactly_when_their_objects_are() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = pair(&client, &server, 7000);
    let mut buffer = vec![0; 1 << 20];
    for stream in [&mut near, &mut far] {
        stream.fd().unwrap();
        until_quiet(stream);
    }
    // Bytes arrive, and are received in two halves.
    assert_eq!(near.send(b"halves").unwrap(), 6);
    until_ready(&mut far, PollFlags::IN);
    until("a half", || matches!(far.recv(&mut buffer[..3]), Ok(3)));
    // The bytes can be received a little before the daemon has made the descriptor ready.
    until_ready(&mut far, PollFlags::IN | PollFlags::OUT);
    assert_eq!(far.recv(&mut buffer[..3]).unwrap(), 3);
    until_quiet(&mut far);
    // While nobody reads, the room runs out. It is back once all has been read.
    let mut sent = 0;
    until("no room", || match near.send(&buffer) {
        Ok(more) => {
            sent += more;
            false
        }
        // Room may appear again soon: how much fits on the way is found out piece by piece.
        Err(_) => !ready(near.fd().unwrap()).contains(PollFlags::OUT),
    });
    let mut got = 0;
    until("all of it", || {
        got += far.recv(&mut buffer).unwrap_or(0);
        // All has arrived once there is room again although nothing was sent.
        got == sent
    });
    until_ready(&mut near, PollFlags::OUT);
    until_quiet(&mut far);
    // The end of the stream counts as something to receive, forever.
    near.end().unwrap();
    until_ready(&mut far, PollFlags::IN);
    until("the end", || matches!(far.recv(&mut buffer), Ok(0)));
    for _ in 0..3 {
        assert_eq!(far.recv(&mut buffer).unwrap(), 0);
        // The descriptor may become ready a little after the end can be received.
        until_ready(&mut far, PollFlags::IN);
    }
    // The other direction goes on.
    assert_eq!(far.send(b"back").unwrap(), 4);
    until_ready(&mut near, PollFlags::IN);
    until("it", || matches!(near.recv(&mut buffer), Ok(4)));
    drop((near, far));
    // A reset reports a hang-up.
    let (mut near, far) = pair(&client, &server, 7001);
    near.send(b"unread").unwrap();
    until("it is there", || {
        drop(near.send(b"more"));
        ready(near.fd().unwrap()).contains(PollFlags::OUT)
    });
    drop(far);
    until_ready(&mut near, PollFlags::HUP);
    let error = near.send(&buffer).unwrap_err();
    assert!(matches!(error, ServiceError::Reset(_)), "{error}");
    // Nobody listens at this port.
    let mut connecting = client.connect_start(to(1, 7002)).unwrap();
    until("the answer", || ready(&connecting).contains(PollFlags::HUP));
    let error = connecting.finish().unwrap_err();
    assert!(
        matches!(error, ServiceError::Refused(Refusal::Refused)),
        "{error}"
    );
    drop((near, client, server));
    daemons.end();
}

#[test]
fn a_dead_daemon_hangs_up_polled_descriptors() {
    let _one = locked();
    let mut daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = pair(&client, &server, 7000);
    let mut listener = server.listen(7001, 1).unwrap();
    listener.fd().unwrap();
    far.fd().unwrap();
    daemons.sides[1].signal(Signal::KILL);
    for stream in [&mut near, &mut far] {
        until_ready(stream, PollFlags::HUP);
        let error = stream.recv(&mut [0; 8]).unwrap_err();
        assert!(
            matches!(error, ServiceError::Reset(_) | ServiceError::DaemonGone),
            "{error}"
        );
    }
    until("the listener", || {
        ready(listener.fd().unwrap()).contains(PollFlags::HUP)
    });
    assert!(listener.try_accept().is_err());
    daemons.sides[1].wait();
    daemons.sides[1] = daemons.daemon(1);
    drop((near, far, listener, client, server));
    daemons.end();
}

/// A stream of known bytes, and how much of it was sent and came back.
struct Echoed {
    stream: Stream,
    total: usize,
    sent: usize,
    got: usize,
}

impl Echoed {
    /// Sends and receives as much as possible. Returns whether everything has come back.
    fn go_on(&mut self, buffer: &mut [u8]) -> bool {
        while self.sent < self.total {
            let len = (self.total - self.sent).min(9000);
            let piece: Vec<u8> = (self.sent..self.sent + len).map(byte).collect();
            match self.stream.send(&piece) {
                Ok(sent) => self.sent += sent,
                Err(ServiceError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        while self.got < self.total {
            match self.stream.recv(buffer) {
                Ok(len) => {
                    assert!(len > 0, "ended after {} of {}", self.got, self.total);
                    for (at, found) in (self.got..).zip(&buffer[..len]) {
                        assert_eq!(*found, byte(at), "at {at} of {}", self.total);
                    }
                    self.got += len;
                }
                Err(ServiceError::WouldBlock) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 13) as u8
}

/// One thread at each end, asleep in poll(2) whenever nothing is ready.
#[test]
fn a_thread_serves_hundreds_of_connections() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let mut listener = server.listen(7000, 1 << 10).unwrap();
    const STREAMS: usize = 300;
    let echo = thread::spawn(move || {
        let mut streams: Vec<(Stream, Vec<u8>)> = Vec::new();
        let (mut accepted, mut buffer) = (0, vec![0; 1 << 16]);
        while accepted < STREAMS || !streams.is_empty() {
            while let Some(mut stream) = listener.try_accept().unwrap() {
                stream.set_nonblocking(true);
                stream.fd().unwrap();
                streams.push((stream, Vec::new()));
                accepted += 1;
            }
            streams.retain_mut(|(stream, back)| {
                loop {
                    if !back.is_empty() {
                        match stream.send(back) {
                            Ok(sent) => drop(back.drain(..sent)),
                            Err(ServiceError::WouldBlock) => return true,
                            Err(error) => panic!("{error}"),
                        }
                        continue;
                    }
                    match stream.recv(&mut buffer) {
                        Ok(0) => return false,
                        Ok(len) => back.extend(&buffer[..len]),
                        Err(ServiceError::WouldBlock) => return true,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            for (stream, back) in &mut streams {
                let flags = match back.is_empty() {
                    true => PollFlags::IN,
                    false => PollFlags::OUT,
                };
                fds.push(PollFd::from_borrowed_fd(stream.fd().unwrap(), flags));
            }
            if accepted < STREAMS {
                let fd = listener.fd().unwrap();
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            }
            if !fds.is_empty() {
                poll(&mut fds, None).unwrap();
            }
        }
        listener
    });
    let mut connecting: Vec<_> = (0..STREAMS)
        .map(|_| client.connect_start(to(1, 7000)).unwrap())
        .collect();
    let mut echoed: Vec<Echoed> = Vec::new();
    let (mut begun, mut buffer) = (0, vec![0; 1 << 16]);
    while begun < STREAMS || !echoed.is_empty() {
        connecting.retain_mut(|one| match one.finish().unwrap() {
            None => true,
            Some(stream) => {
                let total = begun * 997 % 200_000;
                begun += 1;
                echoed.push(Echoed {
                    stream,
                    total,
                    sent: 0,
                    got: 0,
                });
                false
            }
        });
        echoed.retain_mut(|one| !one.go_on(&mut buffer));
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        for one in &connecting {
            fds.push(PollFd::new(one, PollFlags::OUT));
        }
        for one in &mut echoed {
            let flags = match one.sent < one.total {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            let fd = one.stream.fd().unwrap();
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        }
        if !fds.is_empty() {
            poll(&mut fds, None).unwrap();
        }
    }
    drop(echo.join().unwrap());
    drop((client, server));
    daemons.end();
}

test_on_both_paths!(lending_and_peeking_copy_no_bytes);

fn lending_and_peeking_copy_no_bytes(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let listener = server.listen(7000, 1).unwrap();
    let mut near = client.connect(to(1, 7000)).unwrap();
    let mut far = listener.accept().unwrap();
    path.check(&far);
    const LEN: usize = 256 << 10;
    const ROUNDS: usize = 20;
    let receiver = thread::spawn(move || {
        let mut got = 0;
        loop {
            let peeked = far.peek().unwrap();
            if peeked.is_empty() {
                return got;
            }
            for (at, found) in (got..).zip(&*peeked) {
                assert_eq!(*found, byte(at), "at {at}");
            }
            // Consumed in pieces: the rest is returned by the next peek.
            let len = peeked.len().min(50_000);
            peeked.consume(len).unwrap();
            got += len;
        }
    });
    let mut sent = 0;
    let mut free: Vec<_> = (0..2).map(|_| client.alloc(LEN as u32).unwrap()).collect();
    let mut lent = std::collections::VecDeque::new();
    for _ in 0..ROUNDS {
        let mut memory = match free.pop() {
            Some(memory) => memory,
            None => near.reclaim(lent.pop_front().unwrap()).unwrap(),
        };
        assert_eq!(memory.len(), LEN);
        for (at, place) in (sent..).zip(&mut *memory) {
            *place = byte(at);
        }
        lent.push_back(near.lend(memory, LEN).unwrap());
        sent += LEN;
    }
    for loan in lent {
        drop(near.reclaim(loan).unwrap());
    }
    // Memory of another service, or a length beyond the memory, is refused and not sent.
    let other = daemons.attach(0);
    let refused = |loan: Result<_, ServiceError>| loan.map(drop).unwrap_err().to_string();
    let error = refused(near.lend(other.alloc(4096).unwrap(), 1));
    assert!(error.contains("did not allocate"), "{error}");
    let error = refused(near.lend(client.alloc(4096).unwrap(), 1 << 20));
    assert!(error.contains("a loan of 1048576 bytes of 4096"), "{error}");
    near.end().unwrap();
    assert_eq!(receiver.join().unwrap(), LEN * ROUNDS);
    drop((near, listener, other, client, server));
    daemons.end();
}

/// Lent memory comes back, and so does the room that it took, even if the connection is reset.
#[test]
fn polling_for_lent_memory_reports_room_and_resets() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let (mut near, mut far) = pair(&client, &server, 7000);
    let mut memory = client.alloc(30_000).unwrap();
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..300 {
        let mut loan = near.lend(memory, 30_000).unwrap();
        let mut got = 0;
        memory = loop {
            got += far.recv(&mut buffer).unwrap_or(0);
            loan = match near.reclaim(loan) {
                Ok(memory) => break memory,
                Err(left) => {
                    assert!(matches!(left.error, ServiceError::WouldBlock), "{left}");
                    left.loan
                }
            };
        };
        until_ready(&mut near, PollFlags::OUT);
        until("the rest", || {
            got += far.recv(&mut buffer).unwrap_or(0);
            got == 30_000
        });
    }
    // The connection is reset while memory is lent.
    let loan = near.lend(memory, 30_000).unwrap();
    drop(far);
    until_ready(&mut near, PollFlags::HUP);
    let error = near.send(b"more").unwrap_err();
    assert!(matches!(error, ServiceError::Reset(_)), "{error}");
    let (mut loan, mut memory) = (Some(loan), None);
    until("the memory", || {
        match near.reclaim(loan.take().expect("not yet")) {
            Ok(back) => memory = Some(back),
            Err(left) => {
                assert!(matches!(left.error, ServiceError::WouldBlock), "{left}");
                loan = Some(left.loan);
            }
        }
        memory.is_some()
    });
    let memory = memory.expect("it is back");
    assert_eq!(memory.len(), 30_000);
    near.set_nonblocking(false);
    drop((memory, near, client, server));
    daemons.end();
}

/// A connection that is abandoned while it is being opened does not stay at the other end.
#[test]
fn connections_that_are_given_up_are_gone() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    for _ in 0..20 {
        drop(client.connect_start(to(1, 7000)).unwrap());
    }
    serve(&server, 7000);
    for _ in 0..20 {
        drop(client.connect_start(to(1, 7000)).unwrap());
    }
    let mut stream = client.connect(to(1, 7000)).unwrap();
    stream.send_all(b"there").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(stream.recv(&mut buffer).unwrap(), 5);
    drop((stream, client, server));
    daemons.end();
}

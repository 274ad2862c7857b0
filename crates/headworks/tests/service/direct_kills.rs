//! Applications with direct connections are killed at any moment, while they connect, exchange bytes and close. The other end
//! sees a reset, and the daemon has freed everything. `HEADWORKS_LONG` plays 200 rounds, other runs 20.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use headworks::service::{Listener, Reset, Service, ServiceError, Stream};

use crate::LIMIT;
use crate::daemon::{DaemonProcess, until};

/// Connections that a victim has at a time.
const STREAMS: usize = 3;

/// Exchanges bytes on a stream that the other end echoes: by `send`, and now and then from memory that `lender` lends. A loan
/// that is out when the stream fails stays allocated, so only victims lend.
fn exchange(
    stream: &mut Stream,
    round: usize,
    lender: Option<&Service>,
) -> Result<(), ServiceError> {
    let mut buffer = vec![0; 20_000];
    for len in [1, 64, 1 + round * 997 % 2_000] {
        stream.send_all(&buffer[..len])?;
        let mut left = len;
        while left > 0 {
            left -= stream.recv(&mut buffer)?;
        }
    }
    if let Some(service) = lender.filter(|_| round.is_multiple_of(5)) {
        let loan = stream.lend(service.alloc(5_000)?, 5_000)?;
        let mut left = 5_000;
        while left > 0 {
            left -= stream.recv(&mut buffer)?;
        }
        drop(stream.reclaim(loan));
    }
    Ok(())
}

/// Connects over and over, and exchanges bytes.
fn call(service: &Service, to: SocketAddr) -> Result<(), ServiceError> {
    for round in 0.. {
        let mut stream = service.connect(to)?;
        assert!(stream.is_direct());
        for part in 0..10 {
            exchange(&mut stream, round + part, Some(service))?;
        }
    }
    Ok(())
}

/// Echoes until the stream ends. Counts the bytes.
fn echo(mut stream: Stream, echoed: &AtomicU64) -> Result<(), ServiceError> {
    stream.set_read_timeout(Some(LIMIT));
    stream.set_write_timeout(Some(LIMIT));
    let mut buffer = vec![0; 20_000];
    loop {
        match stream.recv(&mut buffer)? {
            0 => return Ok(()),
            len => stream.send_all(&buffer[..len])?,
        }
        echoed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Connections that are served now, calls that were answered, and connections that ended by a reset.
#[derive(Default)]
struct Served {
    now: AtomicU64,
    echoed: AtomicU64,
    resets: AtomicU64,
    /// How a connection ended that ended in another way.
    wrong: std::sync::Mutex<Vec<String>>,
}

fn serve(listener: Listener, served: Arc<Served>) {
    loop {
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(error) => {
                let wrong = format!("accept: {error}");
                return served.wrong.lock().expect("no panic").push(wrong);
            }
        };
        served.now.fetch_add(1, Ordering::SeqCst);
        let served = served.clone();
        thread::spawn(move || {
            match echo(stream, &served.echoed) {
                Ok(()) => {}
                Err(ServiceError::Reset(Reset::ByPeer)) => {
                    served.resets.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => served
                    .wrong
                    .lock()
                    .expect("no panic")
                    .push(error.to_string()),
            }
            served.now.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Runs a victim that connects to `to`, or without it listens and says where.
pub(crate) fn run_victim(service: &Service, to: Option<SocketAddr>) {
    match to {
        Some(to) => thread::scope(|scope| {
            for _ in 0..STREAMS {
                scope.spawn(|| call(service, to).expect("until it is killed"));
            }
        }),
        None => {
            let listener = service.listen(0, 64).expect("listens");
            println!("listens at {}", listener.local_addr().expect("an address"));
            serve(listener, Arc::default());
        }
    }
}

#[test]
fn a_killed_application_resets_its_direct_connections_and_leaves_nothing() {
    let rounds = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 200,
        None => 20,
    };
    let daemon = DaemonProcess::start_with(true);
    let service = daemon.attach();
    let listener = service.listen(0, 64).expect("listens");
    let at = listener.local_addr().expect("an address");
    let served = Arc::new(Served::default());
    thread::spawn({
        let served = served.clone();
        move || serve(listener, served)
    });
    // Memory of all applications: at first, of this one.
    let memory = || daemon.metrics("headworks_application_memory_bytes");
    let idle = memory()[0];
    for round in 0..rounds {
        let is_connecting = round % 2 == 0;
        let (mut victim, there) = daemon.start_victim(is_connecting.then_some(at));
        // The victim is killed after a number of answers, and a number of turns.
        let (answers, turns) = (1 + round * 7_919 % 300, round * 104_729 % 3_000);
        let ended = AtomicU64::new(0);
        thread::scope(|scope| {
            let before = served.echoed.load(Ordering::Relaxed);
            let answered = Arc::new(AtomicU64::new(before));
            if let Some(there) = there {
                for _ in 0..STREAMS {
                    let (service, answered, ended) = (&service, answered.clone(), &ended);
                    scope.spawn(move || {
                        let mut error = None;
                        for part in 0.. {
                            let called = service.connect(there).and_then(|mut stream| {
                                stream.set_read_timeout(Some(LIMIT));
                                stream.set_write_timeout(Some(LIMIT));
                                for at in 0..10 {
                                    exchange(&mut stream, part + at, None)?;
                                    answered.fetch_add(3, Ordering::Relaxed);
                                }
                                Ok(())
                            });
                            if let Err(why) = called {
                                error = Some(why);
                                break;
                            }
                        }
                        let error = error.expect("the loop ends by an error");
                        let is_of_death = matches!(
                            error,
                            ServiceError::Reset(Reset::ByPeer) | ServiceError::Refused(_)
                        );
                        assert!(is_of_death, "{error}");
                        ended.fetch_add(1, Ordering::SeqCst);
                    });
                }
            }
            until("the victim at work", || {
                let all = answered.load(Ordering::Relaxed) + served.echoed.load(Ordering::Relaxed);
                all >= 2 * before + answers
            });
            for _ in 0..turns {
                thread::yield_now();
            }
            victim.kill().expect("kills");
            victim.wait().expect("ends");
            until("the connections end", || {
                assert_eq!(*served.wrong.lock().expect("no panic"), [""; 0]);
                match is_connecting {
                    true => daemon.metric("headworks_connections") == 0,
                    false => ended.load(Ordering::SeqCst) == STREAMS as u64,
                }
            });
        });
        until("no connection is left", || {
            served.now.load(Ordering::SeqCst) == 0 && daemon.metric("headworks_connections") == 0
        });
        assert_eq!(*served.wrong.lock().expect("no panic"), [""; 0]);
        until("the memory is freed", || memory() == [idle]);
    }
    assert!(
        served.resets.load(Ordering::SeqCst) > 0,
        "nothing was reset"
    );
}

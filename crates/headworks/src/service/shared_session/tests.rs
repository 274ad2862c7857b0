//! Tests calls against a fake daemon that breaks the protocol.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use headworks_client::Doorbell;
use headworks_client::socket_message::{Reply, VERSION};
use headworks_net::packets::PacketListener;
use headworks_shm::{HugePages, SegmentRequest, WordRef};

use super::*;

/// A fake daemon whose packets a test determines. Its socket is in a directory of its own.
struct Daemon {
    folder: tempfile::TempDir,
    listener: PacketListener,
}

impl Daemon {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = PacketListener::bind(&folder.path().join("d.sock"), 0o600);
        let listener = listener.expect("a socket");
        Self { folder, listener }
    }

    /// Runs `says` on a connection that `application` makes. The value that `says` returns is dropped after
    /// the daemon has hung up.
    fn serve<T>(
        &self,
        says: impl FnOnce(&PacketSocket) -> T + Send,
        application: impl FnOnce(&Path),
    ) {
        let path = self.folder.path().join("d.sock");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = soon("the call", || self.listener.accept().expect("listens"));
                let said = says(&socket);
                drop(socket);
                drop(said);
            });
            application(&path);
        });
    }
}

fn soon<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{what} did not come"
        );
        std::thread::yield_now();
    }
}

/// Waits for the application's next request.
fn heard(by: &PacketSocket) -> Request {
    let packet = soon("a request", || match by.recv().expect("a socket") {
        RecvOutcome::Packet(packet) => Some(packet.bytes),
        RecvOutcome::WouldBlock => None,
        RecvOutcome::Closed => panic!("the application has gone"),
    });
    Request::decode(&packet).expect("a request")
}

fn say(by: &PacketSocket, reply: &Reply) {
    assert!(by.send(&reply.encode(), None).expect("is heard"));
}

#[test]
fn a_late_reply_to_a_failed_call_is_released() {
    let (after, failed) = mpsc::channel();
    let (before, answered) = mpsc::channel();
    let says = move |socket: &PacketSocket| {
        take(socket);
        let Request::Listen { request, .. } = heard(socket) else {
            panic!("something else is asked");
        };
        assert!(socket.send(b"no reply", None).expect("is heard"));
        failed.recv().expect("it fails");
        let reply = Reply::Listening {
            request,
            listener: 5,
            port: 7000,
        };
        say(socket, &reply);
        before.send(()).expect("it waits");
        let given_back = heard(socket);
        assert!(
            matches!(given_back, Request::Unlisten { listener: 5 }),
            "{given_back:?}"
        );
    };
    Daemon::new().serve(says, |path| {
        let shared = SharedSession::attach(path, "test").expect("a daemon");
        let answer = shared.answer(None, |session| session.listen(7000, 1));
        let error = answer.err().expect("no answer");
        assert!(matches!(error, ServiceError::Contract(_)), "{error}");
        after.send(()).expect("it waits");
        answered.recv().expect("it answers");
        let mut state = shared.lock().expect("no child");
        shared.exchange(&mut state).expect("a daemon");
    });
}

/// Returns the error of a call that finds that the daemon has hung up for the reason `why`.
fn error_after_hangup(why: Refusal) -> ServiceError {
    let (over, is_over) = mpsc::channel::<()>();
    let (attached, is_attached) = mpsc::channel();
    let says = move |socket: &PacketSocket| {
        take(socket);
        is_attached.recv().expect("it attaches");
        say(socket, &Reply::Over { why });
        over
    };
    let mut error = None;
    Daemon::new().serve(says, |path| {
        let shared = SharedSession::attach(path, "test").expect("a daemon");
        attached.send(()).expect("it waits");
        // The channel closes after the daemon has hung up.
        let hung_up = is_over.recv();
        assert!(hung_up.is_err(), "nothing is sent");
        let answer = shared.answer(None, |session| session.alloc(1));
        error = answer.err();
        assert!(shared.is_gone());
    });
    error.expect("no answer")
}

#[test]
fn the_call_finding_a_hangup_returns_its_reason_and_a_stopped_daemon_is_gone() {
    let error = error_after_hangup(Refusal::Misuse);
    let is_told = matches!(error, ServiceError::Refused(Refusal::Misuse));
    assert!(is_told, "{error}");
    let error = error_after_hangup(Refusal::Stopping);
    assert!(matches!(error, ServiceError::DaemonGone), "{error}");
}

#[test]
fn a_daemon_that_stops_refuses_who_attaches() {
    let says = |socket: &PacketSocket| {
        heard(socket);
        let why = Refusal::Stopping;
        say(socket, &Reply::Over { why });
    };
    Daemon::new().serve(says, |path| {
        let error = SharedSession::attach(path, "test").expect_err("refused");
        let is_told = matches!(error, ServiceError::Refused(Refusal::Stopping));
        assert!(is_told, "{error}");
    });
}

/// How long a daemon that never answers is waited for.
const SHORT: headworks_verbs::Duration = headworks_verbs::Duration::from_millis(50);

#[test]
fn a_daemon_that_never_answers_is_given_up() {
    let daemon = Daemon::new();
    let path = daemon.folder.path().join("d.sock");
    // It does not even accept.
    let error = SharedSession::attach_within(&path, "test", SHORT).expect_err("no answer");
    let text = error.to_string();
    assert!(matches!(error, ServiceError::DaemonSilent { .. }), "{text}");
    assert!(text.contains("d.sock") && text.contains("0.05 s"), "{text}");
    // Callers fill the backlog.
    let mut callers = Vec::new();
    let error = loop {
        match PacketSocket::dial_within(&path, SHORT) {
            Ok(caller) => callers.push(caller),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let error = SharedSession::attach_within(&path, "test", SHORT).expect_err("no room");
    assert!(
        matches!(error, ServiceError::DaemonSilent { .. }),
        "{error}"
    );
}

/// The socket of a stopped daemon fills up. Calls then fail, and what they said arrives when the daemon goes on.
#[test]
fn packets_that_a_stopped_daemon_does_not_take_are_kept() {
    let (full, is_full) = mpsc::channel();
    let (resume, goes_on) = mpsc::channel();
    let (read, all_read) = mpsc::channel();
    let says = move |socket: &PacketSocket| {
        take(socket);
        let sent: u32 = is_full.recv().expect("it fills the socket");
        for number in 0..sent {
            let request = heard(socket);
            assert_eq!(request, Request::Unlisten { listener: number });
            if number == 0 {
                resume.send(()).expect("it waits");
            }
        }
        read.send(()).expect("it waits");
    };
    Daemon::new().serve(says, |path| {
        let mut shared = SharedSession::attach(path, "test").expect("a daemon");
        Arc::get_mut(&mut shared).expect("nobody else's").patience = SHORT;
        let mut state = shared.lock().expect("no child");
        let mut sent = 0;
        let error = loop {
            state.session.unlisten(sent);
            sent += 1;
            if let Err(error) = shared.exchange(&mut state) {
                break error;
            }
        };
        assert!(
            matches!(error, ServiceError::DaemonSilent { .. }),
            "{error}"
        );
        // A call that may not wait leaves the packet queued.
        state.session.unlisten(sent);
        sent += 1;
        shared.exchange_now(&mut state).expect("no wait");
        full.send(sent).expect("it waits");
        goes_on.recv().expect("it goes on");
        soon("the rest", || shared.exchange(&mut state).ok());
        all_read.recv().expect("everything arrives, in order");
    });
}

/// Threads of [`every_thread_is_woken_for_its_own_connection_and_by_the_end_of_the_daemon`], more than there are cores
/// on most machines, and how often each waits.
const THREADS: usize = 40;
const ROUNDS: u64 = 200;
/// Threads that wait until the daemon is gone.
const LEFT: usize = 2;

/// Returns a thread's event count, the word that it waits for, and the word by which it says that it has seen that.
fn words_of(slab: &View, thread: usize) -> (EventCountRef, [WordRef; 2]) {
    let at = 1024 + 64 * thread;
    let word = |offset| slab.word_ref(offset).expect("in the slab");
    let event_count = slab.event_count_ref(at).expect("in the slab");
    (event_count, [word(at + 8), word(at + 16)])
}

/// Has a thread's news come, as a daemon does.
fn tell(socket: &PacketSocket, slab: &View, thread: usize, round: u64) {
    let (event_count, [news, _]) = words_of(slab, thread);
    news.store(round, Ordering::Release);
    let handle = thread as u32;
    match event_count.notify_waiter() {
        None => {}
        Some(WakeBy::Word) => event_count.wake(),
        Some(WakeBy::Message | WakeBy::Set) => say(socket, &Reply::Rang { handle }),
    }
}

/// Waits until a thread has seen its news.
fn has_seen(slab: &View, thread: usize, round: u64) {
    let (_, [_, seen]) = words_of(slab, thread);
    soon("a thread", || {
        (seen.load(Ordering::Acquire) == round).then_some(())
    });
}

#[test]
fn every_thread_is_woken_for_its_own_connection_and_by_the_end_of_the_daemon() {
    let says = move |socket: &PacketSocket| {
        let slab = View::from(Arc::new(take(socket)));
        for round in 1..=ROUNDS {
            for number in 0..THREADS {
                // In another order each time.
                let thread = (number * 7 + round as usize) % THREADS;
                tell(socket, &slab, thread, round);
            }
            for thread in 0..THREADS {
                has_seen(&slab, thread, round);
            }
        }
        // All sleep, and then all but two have what they wait for: those notice the end nevertheless.
        for thread in 0..THREADS {
            let (event_count, _) = words_of(&slab, thread);
            soon("a thread", || event_count.is_armed().then_some(()));
        }
        for thread in LEFT..THREADS {
            tell(socket, &slab, thread, ROUNDS + 1);
            has_seen(&slab, thread, ROUNDS + 1);
        }
    };
    Daemon::new().serve(says, |path| {
        let shared = SharedSession::attach(path, "test").expect("a daemon");
        let slab = shared
            .lock()
            .expect("no child")
            .session
            .slabs()
            .slab(0)
            .cloned();
        let slab = slab.expect("a slab");
        let waits = |thread: usize| {
            let (event_count, [news, seen]) = words_of(&slab, thread);
            let mut history = PollHistory::default();
            let mut wait = |round: u64| {
                let on = SleepsOn {
                    is_direct: false,
                    handle: thread as u32,
                    event_count: event_count.clone(),
                };
                shared.wait_on(&on, &mut history, None, |look| {
                    match look {
                        LookFor::Sleep(_, WakeBy::Word) => event_count.arm_to_sleep(),
                        LookFor::Sleep(_, WakeBy::Message | WakeBy::Set) => event_count.arm(false),
                        LookFor::Poll => {}
                    }
                    Ok((news.load(Ordering::Acquire) == round).then_some(()))
                })
            };
            for round in 1..=ROUNDS {
                wait(round).expect("its news");
                seen.store(round, Ordering::Release);
            }
            match wait(ROUNDS + 1) {
                Ok(()) => seen.store(ROUNDS + 1, Ordering::Release),
                Err(error) => {
                    assert!(thread < LEFT, "thread {thread}: {error}");
                    assert!(matches!(error, ServiceError::DaemonGone), "{error}");
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || waits(thread));
            }
        });
    });
}

/// Attaches the application. Returns its slab.
fn take(by: &PacketSocket) -> SharedSegment {
    assert!(matches!(heard(by), Request::Attach { .. }));
    let len = 4096;
    let request = SegmentRequest {
        name: "slab",
        len,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let slab = SharedSegment::create(&request).expect("memory");
    let file = Some(slab.fd());
    let slab_reply = Reply::Slab {
        number: 0,
        is_read_only: false,
    };
    assert!(by.send(&slab_reply.encode(), file).expect("is heard"));
    let handles = 64;
    let doorbell = Extent {
        slab: 0,
        offset: 0,
        len: Doorbell::bytes(handles) as u32,
    };
    let reply = Reply::Attached {
        version: VERSION,
        doorbell,
        handles: handles as u32,
        address: std::net::Ipv4Addr::LOCALHOST.into(),
    };
    say(by, &reply);
    assert!(matches!(heard(by), Request::Features { .. }));
    slab
}

//! The daemons' receive pool when senders die, when all applications stop reading, and when the daemon sleeps.
#![cfg(all(feature = "daemon", feature = "soft"))]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::client::Reset;
use headworks::daemon::limits::{DaemonLimits, PoolClass};
use headworks::daemon::metrics::parse;
use headworks::net::clock;
use headworks::runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorRegistry, ActorSpec, Processes, Scenario,
    Step, WakeCondition, World, child_entry_in_test, no_device_opener,
};
use headworks::service::{CHUNKS_MAX, Chunk, Loan, Service, ServiceError, Stream};
use headworks::testing::{Daemons, FaultPoint, Rules, Verdict, rules};
use headworks::verbs::{Duration, Opcode};

const PIECE: usize = 64 << 10;
/// Bytes of a transfer of which only a small part is READ.
const LONG: u32 = 1 << 30;
/// Bytes of it that have contents.
const FILLED: usize = 1 << 20;
/// Time after which something that must happen counts as a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serializes the tests: daemons of several tests have threads of the same names.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

/// Sum of a metric of a host's daemon over the rows that have this label. An empty label is any.
fn metric_of(daemons: &Daemons, host: usize, name: &str, label: (&str, &str)) -> u64 {
    let text = daemons.metrics(host).expect("the daemon runs");
    let samples = parse(&text).expect("metrics");
    let is_meant = |sample: &headworks::daemon::metrics::Sample| {
        let has_label = label.0.is_empty() || sample.label(label.0) == label.1;
        sample.name == format!("headworks_{name}") && has_label
    };
    let found: Vec<_> = samples.iter().filter(|one| is_meant(one)).collect();
    assert!(!found.is_empty(), "no metric {name} {label:?}");
    found.iter().map(|sample| sample.value as u64).sum()
}

fn metric(daemons: &Daemons, host: usize, name: &str) -> u64 {
    metric_of(daemons, host, name, ("", ""))
}

/// Waits until `is_so`.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = clock::now() + PATIENCE;
    while !is_so() {
        assert!(clock::now() < limit, "never: {what}");
        std::thread::yield_now();
    }
}

fn has_free_pool(daemons: &Daemons, host: usize) -> bool {
    let [free, all] = ["pool_free_bytes", "pool_bytes"].map(|name| metric(daemons, host, name));
    let others = ["pool_waiting", "pool_reads_bytes", "pool_replaced_bytes"];
    free == all && others.iter().all(|name| metric(daemons, host, name) == 0)
}

/// Connects an application of one host to another application's port.
fn connect(
    daemons: &Daemons,
    (from, to): (&Service, &Service),
    (host, port): (usize, u16),
) -> (Stream, Stream) {
    let listener = to.listen(port, 8).expect("a port");
    let mut near = from.connect(daemons.address(host, port)).expect("connects");
    let mut far = listener.accept().expect("a caller");
    let until = Some(clock::now() + PATIENCE);
    near.set_deadline(until);
    far.set_deadline(until);
    (near, far)
}

fn check(stream: &mut Stream, from: usize, len: usize) {
    let mut got = vec![0; len];
    stream.read_exact(&mut got).expect("arrives");
    let wrong = (0..len).find(|at| got[*at] != byte(from + at));
    assert_eq!(wrong, None, "a wrong byte");
}

/// Sends `len` bytes on a thread of its own.
fn send(mut stream: Stream, len: usize) -> std::thread::JoinHandle<Stream> {
    std::thread::spawn(move || {
        for at in (0..len).step_by(PIECE) {
            let piece = bytes(at, PIECE.min(len - at));
            stream.write_all(&piece).expect("is sent");
        }
        stream
    })
}

/// An application in a process of its own: it sends one very long message, and does nothing more.
struct LongSender {
    socket: PathBuf,
    to: SocketAddr,
    sending: Option<(Service, Stream, Loan)>,
}

impl LongSender {
    fn new(part: &ActorInit) -> Result<Self, ActorError> {
        let args = String::from_utf8_lossy(&part.args);
        let (to, socket) = args.split_once(' ').ok_or("no address")?;
        Ok(Self {
            socket: socket.into(),
            to: to.parse().map_err(|_| "no address")?,
            sending: None,
        })
    }
}

impl Actor for LongSender {
    fn step(&mut self, _: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.sending.is_none() {
            let failed = |error: ServiceError| error.to_string();
            let service = Service::attach(&self.socket, "long sender").map_err(failed)?;
            let mut memory = service.alloc(LONG).map_err(failed)?;
            memory[..FILLED].copy_from_slice(&bytes(0, FILLED));
            let mut stream = service.connect(self.to).map_err(failed)?;
            let loan = stream.lend(memory, LONG as usize).map_err(failed)?;
            self.sending = Some((service, stream, loan));
        }
        Ok(Step::Wait(WakeCondition::mail()))
    }
}

/// Runs only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    let mut actors = ActorRegistry::new();
    actors.register("sends", |part| Ok(Box::new(LongSender::new(part)?)));
    child_entry_in_test(&actors, no_device_opener());
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Application,
    Daemon,
}

/// Number of READs that are delayed from now on.
type DelayedReads = Arc<AtomicU32>;

/// Rules of a device that delay as many READs, so that they are in flight when the sender dies.
fn delayed_reads(delayed: DelayedReads) -> Rules {
    Rules::new(1).with(rules::by(move |event, _| {
        let begins = event.point == FaultPoint::Begin && event.turn == 0;
        if !begins || event.op != Opcode::Read {
            return None;
        }
        let less = |left: u32| left.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        delayed.fetch_update(set, fetch, less).ok()?;
        Some(Verdict::WaitFor(Duration::from_millis(500)))
    }))
}

/// A message of 1 GiB is sent from host 0 to host 1, which READs a small part of it. Then the sender dies.
fn a_sender_of_a_long_message_dies(victim: Victim) {
    let _alone = alone();
    let limits = DaemonLimits {
        pool_bytes: 1 << 20,
        memory_each: 2 << 30,
        ..DaemonLimits::default()
    };
    let delayed = DelayedReads::default();
    let daemons = Daemons::builder(3)
        .rules(1, delayed_reads(delayed.clone()))
        .limits(limits)
        .start()
        .expect("starts");
    let [other, receiver, third] = [0, 1, 2].map(|host| daemons.attach(host, "test"));
    let (other, receiver) = (other.expect("a daemon"), receiver.expect("a daemon"));
    let third = third.expect("a daemon");
    // Streams of other applications: from the host of the sender, and from a third one.
    let reading = daemons.attach(1, "reading").expect("a daemon");
    let mut steady = vec![
        connect(&daemons, (&other, &reading), (1, 1)),
        connect(&daemons, (&third, &reading), (1, 2)),
    ];
    let mut at = 0;
    let mut go_on = |steady: &mut [(Stream, Stream)]| {
        for (near, far) in steady {
            for round in 0..10 {
                near.send_all(&bytes(at + round, PIECE)).expect("is sent");
                check(far, at + round, PIECE);
            }
        }
        at += 1;
    };
    go_on(&mut steady);

    let listener = receiver.listen(7000, 8).expect("a port");
    let to = daemons.address(1, 7000);
    let args = format!("{to} {}", daemons.socket(0).display());
    let sender = ActorSpec::new("sender", "sends").with_args(args.into_bytes());
    let world = Processes::of_this_test("child_process_entry");
    let mut running = world.start(&Scenario::of([sender])).expect("starts");
    let until_late = clock::now() + PATIENCE;
    let mut far = listener.accept_by(Some(until_late)).expect("a caller");
    far.set_deadline(Some(until_late));
    check(&mut far, 0, 3 * PIECE / 2);
    let of_receiver = ("name", "test");
    until("the pool is used", || {
        metric_of(&daemons, 1, "application_pool_bytes", of_receiver) > 0
    });
    assert!(metric(&daemons, 0, "qp_group_announced_total") > 0);
    go_on(&mut steady);
    // The next READs are in flight when the sender dies.
    delayed.store(4, Ordering::Relaxed);
    check(&mut far, 3 * PIECE / 2, 2 * PIECE);
    until("READs are in flight", || {
        metric(&daemons, 1, "pool_reads_bytes") > 0
    });

    match victim {
        Victim::Application => running.kill("sender").expect("kills"),
        Victim::Daemon => daemons.kill(0).expect("it ran"),
    }
    let mut came = 0;
    let error = loop {
        let mut into = vec![0; PIECE];
        match far.recv(&mut into) {
            Ok(0) => panic!("the stream ended as if it were complete"),
            Ok(len) => came += len,
            Err(error) => break error,
        }
    };
    let reason = match victim {
        Victim::Application => Reset::ByPeer,
        Victim::Daemon => Reset::Unreachable,
    };
    assert!(
        matches!(error, ServiceError::Reset(why) if why == reason),
        "{error}"
    );
    assert!(came < LONG as usize / 10, "{came} bytes came");
    if victim == Victim::Daemon {
        steady.remove(0);
    }
    go_on(&mut steady);
    // The connection is still open at this end.
    until("the pool is free", || has_free_pool(&daemons, 1));
    go_on(&mut steady);
    if victim == Victim::Daemon {
        daemons.restart(0).expect("starts again");
        let again = daemons.attach(0, "again").expect("a daemon");
        go_on(&mut [connect(&daemons, (&again, &reading), (1, 3))]);
    }
    drop(far);
}

#[test]
fn a_killed_application_with_a_long_message_on_its_way_leaves_the_receiver_its_pool() {
    a_sender_of_a_long_message_dies(Victim::Application);
}

#[test]
fn a_killed_daemon_with_a_long_message_on_its_way_leaves_the_receiver_its_pool() {
    a_sender_of_a_long_message_dies(Victim::Daemon);
}

/// Metrics that do not change any more once nothing gets memory.
const EXHAUSTED: [&str; 6] = [
    "pool_replaced_bytes",
    "application_copied_out_bytes_total",
    "pool_free_bytes",
    "pool_waiting",
    "application_received_bytes_total",
    "application_beside_pool_bytes_total",
];

/// Applications of all classes stop reading until nothing has memory any more. Whichever connection is read then gets
/// its bytes.
#[test]
fn each_class_gets_its_bytes_after_all_of_them_exhausted_the_pool() {
    let _alone = alone();
    const LEN: usize = 512 << 10;
    const EACH: usize = 12;
    let names = ["high", "normal", "low"];
    let classes = [("high", PoolClass::High), ("low", PoolClass::Low)];
    let classes = classes.map(|(name, class)| (name.to_owned(), class));
    let daemons = Daemons::builder(2).limits(DaemonLimits {
        pool_bytes: 256 << 10,
        pool_quota: 100,
        pool_straggler_time: 1,
        slab_bytes: 1 << 20,
        memory_each: 1 << 20,
        ring_max: 128 << 10,
        bulk_max: 8192,
        // Short pieces are to be READ although the pool is in danger.
        copy_below: 1,
        classes: BTreeMap::from(classes),
        ..DaemonLimits::default()
    });
    let daemons = daemons.start().expect("starts");
    // Each stream's sender has memory of its own, so that none waits for another one.
    let mut services = Vec::new();
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for (number, name) in names.into_iter().enumerate() {
        let to = daemons.attach(1, name).expect("a daemon");
        for each in 0..EACH {
            let from = daemons.attach(0, "sender").expect("a daemon");
            let port = 7000 + (number * EACH + each) as u16;
            let (near, far) = connect(&daemons, (&from, &to), (1, port));
            senders.push(near);
            receivers.push(far);
            services.push(from);
        }
        services.push(to);
    }
    let sending: Vec<_> = senders.into_iter().map(|one| send(one, LEN)).collect();
    let level = |name| metric(&daemons, 1, name);
    // Memory that is left is less than a transfer is expected to take. All ways to get more are used up: extents are
    // replaced, bytes are copied out until the applications are at their limits of memory, and nothing changes.
    let mut steady = (0, Vec::new());
    until("the pool is exhausted", || {
        let state: Vec<u64> = EXHAUSTED.into_iter().map(level).collect();
        let [replaced, copied, free, waiting, ..] = state[..] else {
            return false;
        };
        let is_short = free < level("pool_bytes") / 6;
        let is_over = replaced > 0 && copied > 0 && is_short && waiting as usize > EACH;
        let times = if state == steady.1 { steady.0 + 1 } else { 0 };
        steady = (times, state);
        is_over && times > 500
    });
    // One connection of each class is read, the lowest first, while the others hold what they hold.
    for number in (0..names.len()).rev() {
        check(&mut receivers[number * EACH], 0, LEN);
    }
    for (number, receiver) in receivers.iter_mut().enumerate() {
        if !number.is_multiple_of(EACH) {
            check(receiver, 0, LEN);
        }
    }
    let senders = sending.into_iter().map(|one| one.join().expect("no panic"));
    let _open: Vec<Stream> = senders.collect();
    until("the pool is free", || has_free_pool(&daemons, 1));
}

/// Returns whether the thread of a host's daemon sleeps.
fn is_asleep(host: usize) -> bool {
    // The kernel keeps 15 bytes of a thread's name.
    let name = format!("daemon of h{}", host + 1);
    let tasks = std::fs::read_dir("/proc/self/task").expect("a process");
    let asleep = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (from, to) = (stat.find('(')?, stat.rfind(')')?);
        (stat[from + 1..to] == name).then(|| stat[to..].starts_with(") S"))
    });
    asleep.eq([true])
}

/// The receiving daemon has nothing to do until the application releases memory. It has no time limit either, so that
/// only the release can wake it.
#[test]
fn the_release_of_a_chunk_wakes_a_daemon_that_waits_for_it() {
    let _alone = alone();
    let daemons = Daemons::start(2).expect("starts");
    let [near, far] = [0, 1].map(|host| daemons.attach(host, "test").expect("a daemon"));
    let (mut sender, mut receiver) = connect(&daemons, (&near, &far), (1, 7000));
    let memory = near.alloc((CHUNKS_MAX * 2 * PIECE) as u32);
    let mut memory = memory.expect("memory");
    let len = memory.len();
    memory.copy_from_slice(&bytes(0, len));
    let _loan = sender.lend(memory, len).expect("lends");
    // The application keeps all chunks that it may.
    let (mut kept, mut at) = (Vec::<Chunk>::new(), 0);
    while kept.len() < CHUNKS_MAX {
        let chunk = receiver.recv_chunk().expect("arrives");
        assert!(chunk.is_in_pool() && *chunk == bytes(at, chunk.len()));
        at += chunk.len();
        kept.push(chunk);
    }
    assert!(at < len, "the transfer is not over");
    for chunk in kept {
        let sleeps = metric(&daemons, 1, "sleeps_total");
        // A look wakes the daemon. So the next one comes only when it sleeps again.
        until("the daemon sleeps", || is_asleep(1));
        assert!(metric(&daemons, 1, "sleeps_total") > sleeps);
        until("the daemon sleeps again", || is_asleep(1));
        drop(chunk);
        let next = receiver.recv_chunk().expect("arrives");
        assert!(next.is_in_pool() && *next == bytes(at, next.len()));
        at += next.len();
    }
    assert_eq!(at, len, "the transfer is over");
}

/// A host whose receive pool is in danger signals its peers. They slow down what they send to it, and nothing else.
#[test]
fn signals_of_one_host_do_not_concern_another_one() {
    let _alone = alone();
    let daemons = Daemons::builder(3).limits(DaemonLimits {
        pool_bytes: 256 << 10,
        pool_quota: 100,
        pool_straggler_time: 10_000,
        ..DaemonLimits::default()
    });
    let daemons = daemons.start().expect("starts");
    let attach = |host, name: &str| daemons.attach(host, name).expect("a daemon");
    let sender = attach(0, "sender");
    let (stalled, reading, idle) = (
        attach(1, "stalled"),
        attach(1, "reading"),
        attach(2, "idle"),
    );
    // The application that stops reading exhausts the pool of its host. Lent memory is not torn, so each READ takes a
    // quarter of the pool, and nothing is left.
    let mut late = Vec::new();
    for port in 1..5 {
        let (mut near, far) = connect(&daemons, (&sender, &stalled), (1, port));
        let mut memory = sender.alloc(1 << 20).expect("memory");
        memory[..].copy_from_slice(&bytes(0, 1 << 20));
        let loan = near.lend(memory, 1 << 20).expect("is lent");
        late.push((near, loan, far));
    }
    // Frames, which a signal slows down, go to both hosts.
    let short = |host, to, port| connect(&daemons, (&sender, to), (host, port));
    let mut streams = [short(1, &reading, 7), short(2, &idle, 7)];
    let of = |host: usize| daemons.address(host, 0).ip().to_string();
    let signals = |host| {
        let name = "qp_group_signals_received_total";
        metric_of(&daemons, 0, name, ("host", &of(host)))
    };
    let mut at = 0;
    until("there are signals", || {
        for (near, far) in &mut streams {
            near.send_all(&bytes(at, 4000)).expect("is sent");
            check(far, at, 4000);
        }
        at += 4000;
        signals(1) >= 5
    });
    assert_eq!(signals(2), 0, "the idle host signals");
    assert_eq!(metric(&daemons, 2, "qp_group_signals_sent_total"), 0);
    for (_near, _loan, mut far) in late {
        check(&mut far, 0, 1 << 20);
    }
}

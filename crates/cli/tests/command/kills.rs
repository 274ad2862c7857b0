//! Rounds in which an application or a daemon is killed at any moment. Its peers notice, nobody else is
//! affected, and nothing is left over. `HEADWORKS_LONG` runs two hundred rounds; other runs do as many as fit
//! in a short time.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use headworks::runtime::testing;
use headworks::service::{Rights, Service, ServiceError};
use rustix::process::Signal;

use crate::daemon::{Daemons, DataPath, echo, exchange, locked, test_on_both_paths, to};
use crate::daemon_operation::{scraped, value};
use crate::test_env::{CommandProcess, LIMIT, NOTICE, until};

/// Socket of the victim, which is this test's program started again.
const VICTIM: &str = "HEADWORKS_TEST_KILLS";
/// Port of the victim's other end, and port that each host connects to on itself.
const FAR: u16 = 7000;
const OWN: u16 = 7100;

/// Bytes that fit in the first ring of a direct connection. Without a daemon no ring grows: an application that sends more
/// before it receives would wait for an echo that waits for it.
const FITS: usize = 1500;

/// Uses a bit of everything until this process or its daemon is killed.
fn run_victim(socket: &OsStr) -> ! {
    let work = || -> Result<(), ServiceError> {
        let service = Service::attach(socket, "casualty")?;
        for round in 0usize.. {
            let mut stream = service.connect(to(1, FAR))?;
            let export = stream.export(service.alloc(4096)?, Rights::ALL)?;
            // A descriptor would put the connection on the path through the daemons.
            if round % 2 == 0 && !stream.is_direct() {
                stream.fd()?;
            }
            // The echo treats lent bytes like any other bytes.
            let mut memory = service.alloc(100_000)?;
            memory.fill(7);
            let loan = stream.lend(memory, 100_000)?;
            let mut got = 0;
            let mut buffer = vec![0; 65_536];
            while got < 100_000 {
                match stream.recv(&mut buffer)? {
                    // The far end closes a direct connection when its daemon is gone, because the lent bytes are lost.
                    0 => return Err(ServiceError::DaemonGone),
                    len => got += len,
                }
            }
            drop(stream.reclaim(loan));
            drop(stream.revoke(export));
            let total = match stream.is_direct() {
                true => FITS,
                false => 300_000,
            };
            exchange(stream, total)?;
        }
        Ok(())
    };
    let ended = work();
    std::process::exit(i32::from(ended.is_err()))
}

/// Application without a connection to the victim: it exchanges bytes with its own host over and over.
struct ConnectionWitness {
    exchanges: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ServiceError>>,
}

impl ConnectionWitness {
    fn of(service: &Service, host: usize) -> Self {
        let (exchanges, is_over) = (Arc::new(AtomicU64::new(0)), Arc::<AtomicBool>::default());
        let (count, over, service) = (exchanges.clone(), is_over.clone(), service.clone());
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                exchange(service.connect(to(host, OWN))?, FITS)?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Self {
            exchanges,
            is_over,
            thread,
        }
    }

    /// Checks that it completes a few more exchanges.
    fn goes_on(&self, host: usize) {
        let before = self.exchanges.load(Ordering::Relaxed);
        until(&format!("the witness on host {host}"), || {
            assert!(!self.thread.is_finished(), "the witness on host {host}");
            self.exchanges.load(Ordering::Relaxed) > before + 2
        });
    }

    fn end(self) -> Result<(), ServiceError> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

/// Echoes for every caller. Returns the number of current connections, and of all so far.
fn serve_with_counters(
    path: DataPath,
    service: &Service,
    port: u16,
) -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let (now, ever) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let listener = service.listen(port, 1 << 10).expect("the port is free");
    let counts = (now.clone(), ever.clone());
    thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            path.check(&stream);
            now.fetch_add(1, Ordering::Relaxed);
            ever.fetch_add(1, Ordering::Relaxed);
            let now = now.clone();
            thread::spawn(move || {
                let _ = echo(stream);
                now.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    counts
}

/// Application that echoes for every caller as long as its daemon runs.
struct Host {
    service: Service,
    now: Arc<AtomicU64>,
    ever: Arc<AtomicU64>,
}

impl Host {
    fn at(daemons: &Daemons, host: usize) -> Self {
        let service = daemons.attach(host);
        let (now, ever) = serve_with_counters(daemons.path, &service, FAR);
        serve_with_counters(daemons.path, &service, OWN);
        Self { service, now, ever }
    }
}

/// Resources of a daemon that must not grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Leftovers {
    /// Open descriptors, except those of memory.
    pub(crate) descriptors: usize,
    /// Open descriptors of memory. A session keeps the slabs that it has had, and a soft host those of its
    /// peers.
    pub(crate) files: usize,
    pub(crate) queue_pairs: f64,
    /// Bytes in use of the memory that it shares.
    pub(crate) memory: f64,
}

/// Descriptors that a daemon opens only when it first needs them: to wake peers, and a pipe for each further worker
/// that comes to carry a link, of the four that the second daemon has.
const LAZY: usize = 4 + 2 * 3;
/// Most slabs that the applications of both hosts come to need, including a peer's slabs that are released
/// only when the next peer is reached.
const SLABS: usize = 128;
/// Number of times that a daemon's open files are counted; the smallest count is used.
const LOOKS: u32 = 100;

/// Number of files that a process has open: those that are not memory, and those that are.
fn open_files(side: &CommandProcess) -> (usize, usize) {
    let all = std::fs::read_dir(format!("/proc/{}/fd", side.0.id()));
    let all = all.expect("its descriptors").flatten();
    let is_memory = |of: &PathBuf| of.to_string_lossy().starts_with("/memfd:");
    let files = all.filter_map(|one| std::fs::read_link(one.path()).ok());
    let (memory, others): (Vec<_>, Vec<_>) = files.partition(is_memory);
    (others.len(), memory.len())
}

impl Leftovers {
    pub(crate) fn is_no_more_than(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors + LAZY
            && self.files <= SLABS
            && self.queue_pairs <= before.queue_pairs
            && self.memory <= before.memory
    }

    pub(crate) fn of(daemons: &Daemons, host: usize) -> Self {
        let text = scraped(daemons, host);
        // Some descriptors are open for a moment only, such as that of the metrics request above.
        let looks = (0..LOOKS).map(|_| open_files(&daemons.sides[host]));
        let (descriptors, files) = looks.min().expect("some");
        Self {
            descriptors,
            files,
            queue_pairs: value(&text, "headworks_queue_pairs{", "user="),
            memory: value(&text, "headworks_memory_used_bytes{", "user="),
        }
    }
}

/// Returns a daemon's resources once this test's application is the only one and has no connection. If
/// `before` is given, waits a little for them to shrink to that, because the daemon closes files in the
/// background.
pub(crate) fn leftovers_at_rest(
    daemons: &Daemons,
    host: usize,
    before: Option<Leftovers>,
) -> Leftovers {
    let began = Instant::now();
    loop {
        let text = scraped(daemons, host);
        let applications = text.matches("\nheadworks_application_connections{").count();
        if value(&text, "headworks_connections{", "user=") == 0.0 && applications == 1 {
            break;
        }
        assert!(
            began.elapsed() < LIMIT,
            "daemon {host} is not at rest: {text}"
        );
        thread::yield_now();
    }
    let began = Instant::now();
    loop {
        let left = Leftovers::of(daemons, host);
        if before.is_none_or(|before| left.is_no_more_than(&before)) || began.elapsed() > NOTICE {
            return left;
        }
        thread::yield_now();
    }
}

/// Victim of a round: an application, or the daemon of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Application,
    Daemon(usize),
}

impl Victim {
    /// Returns the victim for a point of the test, or `None` at its end. Victims of a kind follow each other,
    /// so that the survivors' resources can be compared over many rounds.
    fn of(progress: f64) -> Option<Self> {
        match progress {
            ..0.6 => Some(Self::Application),
            0.6..0.8 => Some(Self::Daemon(1)),
            0.8..1.0 => Some(Self::Daemon(0)),
            _ => None,
        }
    }
}

/// How long rounds go on without `HEADWORKS_LONG`, on each path.
const ENOUGH: Duration = Duration::from_secs(12);
/// Least number of rounds; on slow devices, the number of rounds.
const FEW: f64 = 5.0;
const MANY: f64 = 200.0;

fn progress(round: u64, began: Instant) -> f64 {
    let round = round as f64;
    match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => round / MANY,
        None if testing::is_slow_device() => round / FEW,
        None => (round / FEW).min(began.elapsed().as_secs_f64() / ENOUGH.as_secs_f64()),
    }
}

test_on_both_paths!(a_kill_is_noticed_by_the_peers_alone);

fn a_kill_is_noticed_by_the_peers_alone(path: DataPath) {
    if let Some(socket) = std::env::var_os(VICTIM) {
        run_victim(&socket);
    }
    let _one = locked();
    let mut daemons = Daemons::start_on(path);
    let mut missed: BTreeMap<Victim, Vec<Duration>> = BTreeMap::new();
    // Resources of each daemon after the first round since it started.
    let mut left: [Option<Leftovers>; 2] = [None; 2];
    let mut services = [0, 1].map(|host| Host::at(&daemons, host));
    let (mut round, start) = (0, Instant::now());
    while let Some(victim) = Victim::of(progress(round, start)) {
        let witnesses = [0, 1].map(|host| ConnectionWitness::of(&services[host].service, host));
        let Host { now, ever, .. } = &services[1];
        let before = ever.load(Ordering::Relaxed);
        let own = "kills::a_kill_is_noticed_by_the_peers_alone::direct";
        let mut application = daemons.another_process(own, VICTIM);
        // The moment differs from round to round.
        let enough = 1 + (round * 7919) % 13;
        until("the victim at work", || {
            ever.load(Ordering::Relaxed) >= before + enough
        });
        for _ in 0..(round * 104_729) % 5000 {
            thread::yield_now();
        }
        let killed = match victim {
            Victim::Application => {
                application.0.kill().unwrap();
                None
            }
            Victim::Daemon(host) => {
                daemons.sides[host].signal(Signal::KILL);
                Some(host)
            }
        };
        let began = Instant::now();
        // The far end's connections end, by a reset or because their daemon is gone. The near end's process
        // ends then.
        until("the end of the victim's connections", || {
            now.load(Ordering::Relaxed) == 0 && application.has_ended()
        });
        let took = began.elapsed();
        assert!(took < NOTICE, "round {round}, {victim:?}: after {took:?}");
        missed.entry(victim).or_default().push(took);
        for (host, witness) in witnesses.iter().enumerate() {
            if killed != Some(host) {
                witness.goes_on(host);
            }
        }
        application.wait();
        for (host, witness) in witnesses.into_iter().enumerate() {
            let ended = witness.end();
            if killed != Some(host) {
                ended.unwrap();
            }
        }
        if let Some(host) = killed {
            daemons.sides[host].wait();
            daemons.sides[host] = daemons.daemon(host);
            services[host] = Host::at(&daemons, host);
            left[host] = None;
        }
        for host in (0..2).filter(|host| killed != Some(*host)) {
            let now = leftovers_at_rest(&daemons, host, left[host]);
            // The other daemon, which lost its peer, has released what it had for that peer.
            let then = *left[host].get_or_insert(now);
            assert!(
                now.is_no_more_than(&then),
                "round {round}, host {host}: {then:?}, then {now:?}"
            );
        }
        round += 1;
    }
    println!("{round} rounds in {:?}; left {left:?}", start.elapsed());
    for (victim, times) in &mut missed {
        times.sort();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{victim:?}, {} times: missed after {median:?} (median), {most:?} (most)",
            times.len()
        );
    }
    assert_eq!(missed.len(), 3, "a kind of victim was never killed");
    drop(services);
    daemons.end();
}

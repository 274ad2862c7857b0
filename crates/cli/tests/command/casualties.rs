//! Rounds in which somebody is killed at any moment: whoever has to do with him hears of it, nobody else does, and
//! nothing is left. `HEADWORKS_LONG` has two hundred of them.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use headworks::service::{Rights, Service, ServiceError};
use rustix::process::Signal;

use crate::common::{NOTICE, Side, until};
use crate::daemon::{Daemons, echo, exchange, locked, to};
use crate::operate::{scraped, value};

/// Where the application that is to be killed attaches: the test starts itself again as that one.
const VICTIM: &str = "HEADWORKS_TEST_CASUALTY";
/// The port that the victim's other end listens at, and that of a host's own.
const FAR: u16 = 7000;
const OWN: u16 = 7100;

/// Does a bit of everything until it is killed, or its daemon is.
fn live(socket: &OsStr) -> ! {
    let work = || -> Result<(), ServiceError> {
        let service = Service::attach(socket.as_ref(), "casualty")?;
        for round in 0usize.. {
            let mut stream = service.connect(to(1, FAR))?;
            let export = stream.export(service.alloc(4096)?, Rights::ALL)?;
            if round % 2 == 0 {
                stream.fd()?;
            }
            // What it says is echoed as any other bytes.
            let mut memory = service.alloc(100_000)?;
            memory.fill(7);
            let loan = stream.lend(memory, 100_000)?;
            let mut got = 0;
            let mut buffer = vec![0; 65_536];
            while got < 100_000 {
                got += stream.recv(&mut buffer)?;
            }
            drop(stream.reclaim(loan));
            drop(stream.revoke(export));
            exchange(stream, 300_000)?;
        }
        Ok(())
    };
    let ended = work();
    std::process::exit(i32::from(ended.is_err()))
}

/// Whoever has nothing to do with it: exchanges bytes with its own host, over and over.
struct Witness {
    exchanges: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ServiceError>>,
}

impl Witness {
    fn of(service: &Service, host: usize) -> Self {
        let (exchanges, is_over) = (Arc::new(AtomicU64::new(0)), Arc::<AtomicBool>::default());
        let (count, over, service) = (exchanges.clone(), is_over.clone(), service.clone());
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                exchange(service.connect(to(host, OWN))?, 20_000)?;
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

    /// It goes on, for a few exchanges more.
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

/// Serves whoever connects; counts those who are, and the connections that there were.
fn serve_counted(service: &Service, port: u16) -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let (now, ever) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let listener = service.listen(port, 1 << 10).expect("the port is free");
    let counts = (now.clone(), ever.clone());
    thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
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

/// An application that serves whoever connects, for as long as its daemon is there.
struct Host {
    service: Service,
    now: Arc<AtomicU64>,
    ever: Arc<AtomicU64>,
}

impl Host {
    fn at(daemons: &Daemons, host: usize) -> Self {
        let service = daemons.attach(host);
        let (now, ever) = serve_counted(&service, FAR);
        serve_counted(&service, OWN);
        Self { service, now, ever }
    }
}

fn descriptors(side: &Side) -> usize {
    let all = std::fs::read_dir(format!("/proc/{}/fd", side.0.id()));
    all.expect("its descriptors").count()
}

#[test]
fn whoever_is_killed_is_missed_by_his_peers_alone() {
    if let Some(socket) = std::env::var_os(VICTIM) {
        live(&socket);
    }
    let _one = locked();
    let rounds = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 200,
        None => 8,
    };
    let mut daemons = Daemons::start();
    let mut longest = Duration::ZERO;
    let mut left: [Vec<(usize, f64)>; 2] = Default::default();
    let mut services = [0, 1].map(|host| Host::at(&daemons, host));
    for round in 0..rounds {
        let witnesses = [0, 1].map(|host| Witness::of(&services[host].service, host));
        let Host { now, ever, .. } = &services[1];
        let before = ever.load(Ordering::Relaxed);
        let own = "casualties::whoever_is_killed_is_missed_by_his_peers_alone";
        let mut victim = daemons.another_process(own, VICTIM);
        // At another moment each time.
        let enough = 1 + (round * 7919) % 13;
        until("the victim at work", || {
            ever.load(Ordering::Relaxed) >= before + enough
        });
        for _ in 0..(round * 104_729) % 5000 {
            thread::yield_now();
        }
        let killed = match round % 8 {
            0..6 => {
                victim.0.kill().unwrap();
                None
            }
            of => {
                let host = of as usize - 6;
                daemons.sides[host].signal(Signal::KILL);
                Some(host)
            }
        };
        let began = Instant::now();
        // At the far end nobody is left: reset, or without a daemon.
        until("the end of the victim's connections", || {
            now.load(Ordering::Relaxed) == 0
        });
        let took = began.elapsed();
        assert!(took < NOTICE, "round {round}: after {took:?}");
        longest = longest.max(took);
        for (host, witness) in witnesses.iter().enumerate() {
            if killed != Some(host) {
                witness.goes_on(host);
            }
        }
        victim.0.kill().unwrap();
        victim.wait();
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
            left[host].clear();
        }
        for host in (0..2).filter(|host| killed != Some(*host)) {
            let mut text = String::new();
            until("a daemon at rest", || {
                text = scraped(&daemons, host);
                let is_over = value(&text, "headworks_connections{", "user=") == 0.0;
                is_over && !text.contains("casualty")
            });
            let memory = value(&text, "headworks_memory_used_bytes{", "user=");
            left[host].push((descriptors(&daemons.sides[host]), memory));
        }
    }
    println!("missed after {longest:?} at most, {rounds} rounds; descriptors, bytes {left:?}");
    for counts in &left {
        let (Some(first), Some(last)) = (counts.first(), counts.last()) else {
            continue;
        };
        assert!(last.0 <= first.0 + 2, "descriptors are left: {counts:?}");
        assert!(last.1 <= first.1, "memory is left: {counts:?}");
    }
    drop(services);
    daemons.end();
}

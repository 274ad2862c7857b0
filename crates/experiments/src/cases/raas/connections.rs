//! Ten thousand connections over which nothing goes: how soon they are there, what they take, and what is left of them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{PORT, PROCESSES, note, pinning};
use crate::bench::Bench;
use crate::error::RunError;
use crate::experiment::{About, Programmed, RunsOn};
use crate::format::csv::{Cell, Table};
use crate::outcome::Outcome;
use crate::service::Role;
use crate::service::app::{App, By, Order, Said};
use crate::service::control::Told;
use crate::service::hosts::Hosts;
use crate::service::rusage::{Memory, Work, memory};
use crate::stats::Spread;
use crate::testbed::Testbed;
use crate::transports::ArmError;

const CONNECTIONS: usize = 10_000;
/// Threads that open them, each one after the other.
const THREADS: usize = 8;
/// Until daemons sleep that have had something to do.
const SETTLING: Duration = Duration::from_millis(500);
/// How long it is looked whether they do.
const IDLE: Duration = Duration::from_secs(3);
/// What takes so long has hung.
const LIMIT: Duration = Duration::from_secs(60);
/// How often it is asked whether connections are gone.
const ASKED_EVERY: Duration = Duration::from_millis(2);

const SERVICE: &str = "service";

/// A figure of a round.
type Column = (&'static str, fn(&Found) -> f64);

/// Keys, and what each is.
const COLUMNS: [Column; 16] = [
    ("open_10000_s", |found| found.open_s),
    ("idle_bytes_each", |found| found.idle.each(0..4)),
    ("idle_bytes_each_opening", |found| {
        found.idle.each(0..1) + found.idle.each(2..3)
    }),
    ("idle_bytes_each_accepting", |found| {
        found.idle.each(1..2) + found.idle.each(3..4)
    }),
    ("idle_bytes_each_daemons_own", |found| found.idle.each(2..4)),
    ("idle_mapped_bytes_each", |found| found.idle.mapped_each()),
    ("idle_cpu_s", |found| found.work.ran_ns as f64 / 1e9),
    ("idle_wakeups", |found| found.work.switches as f64),
    ("idle_connections", |found| found.connections),
    ("idle_queue_pairs", |found| found.queue_pairs),
    ("used_bytes_each", |found| found.used.each(0..4)),
    ("used_mapped_bytes_each", |found| found.used.mapped_each()),
    ("closed_s", |found| found.closed_s),
    ("closed_bytes_each", |found| found.closed.each(0..4)),
    ("closed_shared_in_use_bytes", |found| found.closed_in_use),
    ("closed_queue_pairs", |found| found.closed_queue_pairs),
];

/// How it presents itself, its metrics and what runs it.
pub static CONNECTIONS_CASE: Programmed = Programmed {
    about: About {
        paper: None,
        runs_on: RunsOn::Real(PROCESSES),
        ..About::new(
            "service-connections",
            "10,000 connections between two applications: how soon they are open, and what they take while nothing goes.",
            "Seconds until 10,000 connections are open at both ends; then, while nothing goes over them, bytes that for each \
               both daemons and both applications take more than before (their own, and all that the kernel has allocated \
               for what they share, counted once; mapped: how much was touched, PSS), processor time and context switches of \
               both daemons over 3 seconds; the same bytes after one went each way over each; and, once all were closed, \
               what is left.",
        )
    },
    keys: &[
        "open_10000_s",
        "idle_bytes_each",
        "idle_bytes_each_opening",
        "idle_bytes_each_accepting",
        "idle_bytes_each_daemons_own",
        "idle_mapped_bytes_each",
        "idle_cpu_s",
        "idle_wakeups",
        "idle_connections",
        "idle_queue_pairs",
        "used_bytes_each",
        "used_mapped_bytes_each",
        "closed_s",
        "closed_bytes_each",
        "closed_shared_in_use_bytes",
        "closed_queue_pairs",
    ],
    stated: &[],
    figures: &[],
    run: run_connections_case,
};

/// What a round found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    open_s: f64,
    idle: More,
    work: Work,
    connections: f64,
    queue_pairs: f64,
    used: More,
    closed_s: f64,
    closed: More,
    closed_in_use: f64,
    closed_queue_pairs: f64,
}

/// Memory of both applications and then of both daemons, the opening host first, and how much more it is than it was
/// before. What an application shares with its daemon is among the application's.
#[derive(Clone, Copy, Debug, Default)]
struct More {
    before: [Memory; 4],
    now: [Memory; 4],
}

impl More {
    fn sum(&self, which: Range<usize>, of: fn(Memory) -> u64) -> f64 {
        let of = |memory: &Memory| of(*memory) as f64;
        which
            .map(|at| of(&self.now[at]) - of(&self.before[at]))
            .sum()
    }

    /// Bytes for each connection.
    fn each(&self, which: Range<usize>) -> f64 {
        self.sum(which, Memory::bytes) / CONNECTIONS as f64
    }

    fn mapped_each(&self) -> f64 {
        self.sum(0..4, |memory| memory.mapped) / CONNECTIONS as f64
    }
}

fn run_connections_case(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let mut outcome = bench.pinned(pinning);
    let what = format!(
        "two applications and two daemons, new ones in each round; {THREADS} threads connect, each one connection after \
             the other"
    );
    outcome.arms = vec![note(SERVICE, &what, "adaptive", "0")];
    let rounds = bench.alternate_arms(
        &[CONNECTIONS],
        |_| SERVICE,
        |connections| format!("{connections} connections"),
        |bench, _| measure(bench).map(Some),
    )?;
    let why = rounds.failures.get(SERVICE);
    let found: Vec<Found> = rounds.samples.into_iter().flatten().flatten().collect();
    let why = why.map_or("no round gave a figure", String::as_str);
    record(&mut outcome, &found, why);
    Ok(outcome)
}

fn record(outcome: &mut Outcome, found: &[Found], why: &str) {
    let mut table = Table::new(&["figure", "median", "low", "high", "repeats"]);
    for (key, of) in COLUMNS {
        let all: Vec<f64> = found.iter().map(of).collect();
        let spread = Spread::of(&all);
        let cell = |value: fn(Spread) -> f64| Cell::from(spread.map(value));
        table.push(vec![
            key.into(),
            cell(|spread| spread.median),
            cell(|spread| spread.low),
            cell(|spread| spread.high),
            cell(|spread| spread.repeats as f64),
        ]);
        outcome.measured_or(key, spread, why);
    }
    outcome.points = table;
    outcome.repeats = found.len();
}

fn measure(bench: &Bench<'_>) -> Result<Found, ArmError> {
    let Testbed { devices, cpus, .. } = &bench.place;
    let stop = bench.stop();
    let hosts = Hosts::start(devices, cpus, stop)?;
    let start = |host: usize| {
        let app = App {
            by: By::Service {
                socket: hosts.socket(host),
                first: hosts.at(1, PORT),
            },
            number: 0,
            asks: host == 0,
            connections: CONNECTIONS,
            holds: Some(THREADS),
        };
        hosts.begin(&Role::App(app), cpus[host])
    };
    let mut both = [start(0)?, start(1)?];
    hear(&mut both, Said::Ready, stop)?;
    let daemons = [hosts.daemon(0), hosts.daemon(1)];
    let all = [both[0].pid(), both[1].pid(), daemons[0], daemons[1]];
    let taken = || -> Result<[Memory; 4], ArmError> {
        let taken = memory(&all)?;
        Ok(std::array::from_fn(|at| taken[at]))
    };
    let before = taken()?;
    let more = || -> Result<More, ArmError> {
        let now = taken()?;
        Ok(More { before, now })
    };

    let mut found = Found::default();
    let began = Instant::now();
    tell(&mut both, Order::Connect)?;
    hear(&mut both, Said::Connected, stop)?;
    found.open_s = began.elapsed().as_secs_f64();

    std::thread::sleep(SETTLING);
    let work = Work::of(&daemons)?;
    std::thread::sleep(IDLE);
    found.work = Work::of(&daemons)?.since(work);
    found.idle = more()?;
    found.connections = hosts.metric(0, "headworks_connections")?;
    found.queue_pairs = hosts.queue_pairs(0)?;

    tell(&mut both, Order::Use)?;
    hear(&mut both, Said::Used, stop)?;
    std::thread::sleep(SETTLING);
    found.used = more()?;

    let began = Instant::now();
    tell(&mut both, Order::Close)?;
    hear(&mut both, Said::Closed, stop)?;
    for host in 0..2 {
        until_none(&hosts, host, began, stop)?;
    }
    found.closed_s = began.elapsed().as_secs_f64();
    std::thread::sleep(SETTLING);
    found.closed = more()?;
    found.closed_in_use = in_use(&hosts)?;
    found.closed_queue_pairs = hosts.queue_pairs(0)?;
    Ok(found)
}

/// Bytes of memory shared with applications that both daemons have in use.
fn in_use(hosts: &Hosts) -> Result<f64, ArmError> {
    let of = |host| hosts.metric(host, "headworks_memory_used_bytes");
    Ok(of(0)? + of(1)?)
}

/// Both are told that.
fn tell(both: &mut [Told; 2], order: Order) -> Result<(), ArmError> {
    both.iter_mut().try_for_each(|one| one.tell(&order))
}

/// Both say that they have done that.
fn hear(both: &mut [Told; 2], what: Said, stop: &AtomicBool) -> Result<(), ArmError> {
    let mut both = both.iter_mut();
    both.try_for_each(|one| one.hear_that(what, LIMIT, stop))
}

/// Until a daemon has no connection any more.
fn until_none(
    hosts: &Hosts,
    host: usize,
    began: Instant,
    stop: &AtomicBool,
) -> Result<(), ArmError> {
    while hosts.metric(host, "headworks_connections")? > 0.0 {
        if began.elapsed() > LIMIT || stop.load(Ordering::Relaxed) {
            return Err(ArmError("connections are not gone".to_owned()));
        }
        std::thread::sleep(ASKED_EVERY);
    }
    Ok(())
}

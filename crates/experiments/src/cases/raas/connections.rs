//! Ten thousand idle connections: the time to open them, what they cost, and what remains after they are
//! closed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{PORT, PROCESSES, pin};
use crate::cases::prelude::*;
use crate::service::Role;
use crate::service::control::ControlledChild;
use crate::service::controlled_app::{AppCommand, AppReply, AppTransport, ControlledApp};
use crate::service::daemon_hosts::{DaemonHosts, DaemonOptions};
use crate::service::rusage::{CpuTimes, MemoryUsage, memory, pause};

const CONNECTIONS: usize = 10_000;
/// Number of direct ones: two applications have at most 2,048.
const DIRECT_CONNECTIONS: usize = 2_000;
/// Threads that open connections, each one after the other.
const THREADS: usize = 8;
/// Time after which idle daemons sleep; and the time for which their activity is then measured.
const SETTLING: Wall = Wall::from_millis(500);
const IDLE: Wall = Wall::from_secs(3);
/// Time after which a step counts as hung.
const LIMIT: Wall = Wall::from_secs(60);
/// Interval at which a daemon is asked whether connections are gone.
const ASKED_EVERY: Wall = Wall::from_millis(2);

const SERVICE: &str = "service";
const DIRECT: &str = "direct";
/// The metrics of each arm. Each is a row.
const FIGURES: [Quantity; 16] = [
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
];

/// The experiment `service-connections`.
pub static CONNECTIONS_CASE: Case<&str> = Case {
    about: About {
        runs_on: PROCESSES,
        ..About::new(
            "service-connections",
            "10,000 connections between two applications, and 2,000 direct ones: how long opening them takes, and what idle \
             ones cost.",
            "Seconds until all connections are open at both ends: 10,000 through daemons, or 2,000 direct ones. Then, while they are idle: the growth in bytes \
             per connection of both daemons and both applications (their own memory, and all memory that the kernel \
             has allocated for them to share, counted once; mapped: the part that was touched, PSS), and the \
             processor time and context switches of both daemons and both applications over 3 seconds. The bytes again after one message \
             each way over each connection. Finally, what is left after all were closed.",
        )
    },
    table: || {
        let what = format!(
            "two applications and two daemons, started anew in each round; {THREADS} threads connect, each one \
             connection after the other"
        );
        let direct = format!("{what}; the connections are direct");
        let mut t = Table::new(vec![
            arm(SERVICE, what, "adaptive", "0"),
            arm(DIRECT, direct, "adaptive", "0"),
        ]);
        let of = |point: &Point<_>| Expr::At(*point, point.load);
        t.arm()
            .cell("figure", |point| point.load.into())
            .median("median", of);
        t.median("low", move |point| of(point).all(|spread| spread.low));
        t.median("high", move |point| of(point).all(|spread| spread.high));
        t.repeats(of);
        for figure in FIGURES {
            t.metric(figure, of(&Point::of(figure, SERVICE, CONNECTIONS as u64)));
            let direct = of(&Point::of(figure, DIRECT, DIRECT_CONNECTIONS as u64));
            let figure = figure.replace("10000", "2000");
            t.metric(format!("direct_{figure}"), direct);
        }
        t
    },
    measure: |bench, _, outcome| {
        pin(bench, outcome);
        let arms = [(SERVICE, CONNECTIONS), (DIRECT, DIRECT_CONNECTIONS)];
        let arms = arms.map(|(arm, connections)| Point::at(arm, connections as u64));
        let sweep = Sweep::over("connections", Wall::ZERO, Wall::ZERO);
        let measured = bench.measure(arms.to_vec(), sweep, |bench, point, _| {
            sample(bench, point.x as usize, point.arm == DIRECT).map(Some)
        })?;
        let rows = arms.iter().flat_map(|all| {
            let of = |load| (Point { load, ..*all }, measured.samples(*all).to_vec());
            FIGURES.map(of)
        });
        let rows: Vec<_> = rows.collect();
        Ok(Measured::new(rows, measured.failures))
    },
};

/// Memory of both applications and then of both daemons, the opening host first: before, and now. Memory that
/// an application shares with its daemon is counted as the application's.
struct MemoryGrowth {
    before: [MemoryUsage; 4],
    now: [MemoryUsage; 4],
    connections: usize,
}

impl MemoryGrowth {
    /// Returns the growth for each connection, summed over some of the processes.
    fn each(&self, which: Range<usize>, of: fn(MemoryUsage) -> u64) -> f64 {
        let more = |at: usize| of(self.now[at]) as f64 - of(self.before[at]) as f64;
        which.map(more).sum::<f64>() / self.connections as f64
    }

    fn bytes(&self, which: Range<usize>) -> f64 {
        self.each(which, MemoryUsage::bytes)
    }

    fn mapped(&self) -> f64 {
        self.each(0..4, |memory| memory.mapped)
    }
}

fn sample(bench: &Bench<'_>, connections: usize, is_direct: bool) -> Result<Sample, WorkloadError> {
    let Testbed { devices, cpus, .. } = &bench.testbed;
    let stop = bench.stop();
    let options = [is_direct; 2].map(|is_direct| DaemonOptions {
        is_direct,
        ..DaemonOptions::default()
    });
    let hosts = DaemonHosts::start_with(devices, cpus, &options, stop)?;
    let start = |host: usize| {
        let app = ControlledApp {
            by: AppTransport::Service {
                socket: hosts.socket(host),
                first: hosts.at(1, PORT),
            },
            number: 0,
            asks: host == 0,
            connections,
            holds: Some(THREADS),
        };
        hosts.spawn_child(&Role::App(app), cpus[host])
    };
    let mut both = [start(0)?, start(1)?];
    expect_from_both(&mut both, AppReply::Ready, stop)?;
    let daemons = [hosts.daemon(0), hosts.daemon(1)];
    let all = [both[0].pid(), both[1].pid(), daemons[0], daemons[1]];
    let taken = || -> Result<[MemoryUsage; 4], WorkloadError> {
        let taken = memory(&all)?;
        Ok(std::array::from_fn(|at| taken[at]))
    };
    let before = taken()?;
    let grown = || -> Result<MemoryGrowth, WorkloadError> {
        let now = taken()?;
        Ok(MemoryGrowth {
            before,
            now,
            connections,
        })
    };
    let metric = |host, name: &str| hosts.metric(host, &format!("headworks_{name}"));

    let began = Instant::now();
    send_to_both(&mut both, AppCommand::Connect)?;
    expect_from_both(&mut both, AppReply::Connected, stop)?;
    let open_s = began.elapsed().as_secs_f64();

    pause(SETTLING, stop)?;
    let work = CpuTimes::of(&all)?;
    pause(IDLE, stop)?;
    let work = CpuTimes::of(&all)?.since(work);
    let idle = grown()?;
    let (open, queue_pairs) = (metric(0, "connections")?, hosts.queue_pairs(0)?);

    send_to_both(&mut both, AppCommand::Use)?;
    expect_from_both(&mut both, AppReply::Used, stop)?;
    pause(SETTLING, stop)?;
    let used = grown()?;

    let began = Instant::now();
    send_to_both(&mut both, AppCommand::Close)?;
    expect_from_both(&mut both, AppReply::Closed, stop)?;
    for host in 0..2 {
        while metric(host, "connections")? > 0.0 {
            if began.elapsed() > LIMIT || stop.load(Ordering::Relaxed) {
                return Err(WorkloadError("connections are not gone".to_owned()));
            }
            std::thread::sleep(ASKED_EVERY);
        }
    }
    let closed_s = began.elapsed().as_secs_f64();
    pause(SETTLING, stop)?;
    let closed = grown()?;
    let in_use = metric(0, "memory_used_bytes")? + metric(1, "memory_used_bytes")?;
    let values = [
        open_s,
        idle.bytes(0..4),
        idle.bytes(0..1) + idle.bytes(2..3),
        idle.bytes(1..2) + idle.bytes(3..4),
        idle.bytes(2..4),
        idle.mapped(),
        work.ran_ns as f64 / 1e9,
        work.switches as f64,
        open,
        queue_pairs,
        used.bytes(0..4),
        used.mapped(),
        closed_s,
        closed.bytes(0..4),
        in_use,
        hosts.queue_pairs(0)?,
    ];
    Ok(Sample::of(FIGURES.into_iter().zip(values)))
}

/// Sends a command to both applications.
fn send_to_both(both: &mut [ControlledChild; 2], order: AppCommand) -> Result<(), WorkloadError> {
    both.iter_mut().try_for_each(|one| one.send(&order))
}

/// Waits for a reply from both applications.
fn expect_from_both(
    both: &mut [ControlledChild; 2],
    what: AppReply,
    stop: &AtomicBool,
) -> Result<(), WorkloadError> {
    let mut both = both.iter_mut();
    both.try_for_each(|one| one.expect_reply(what, LIMIT, stop))
}

//! One of several receiving applications stalls: what the others and the receive pool do meanwhile.

use std::time::Instant;

use rustix::process::{Signal, kill_process};

use super::hosts::{PROCESSES, PoolLevel, Receiver, StreamingHosts};
use crate::cases::prelude::*;
use crate::service::daemon_hosts::DaemonOptions;
use crate::service::rusage::pause;
use crate::service::streaming::{StreamingCount, UNLIMITED};

/// The application that stalls, and the others.
const STALLING: &str = "stalling";
const OTHERS: [&str; 3] = ["other-1", "other-2", "other-3"];
/// Streams of each application, and bytes of a message.
const STREAMS: u32 = 8;
const MESSAGE: u32 = 64 << 10;
/// Time for which the senders send as much as they can, to find out how much that is; then for which they settle.
const FULL_LOAD: Wall = Wall::from_millis(400);
const SETTLING: Wall = Wall::from_millis(300);
/// Interval of the measurements.
const EVERY: Wall = Wall::from_millis(100);
/// Number of intervals before the stall, while it lasts, and after it.
const BEFORE: usize = 8;
const STALLED: usize = 35;
const RESUMED: usize = 10;
/// Interval, counted from the stall, from which on the throughput of [`AFTER_3S`] counts.
const LATER: usize = 30;
/// Time to start the processes.
const OVERHEAD: Wall = Wall::from_millis(500);

/// How the application stalls.
const STOPPED: &str = "stopped";
const NOT_READING: &str = "not reading";
const UNLIMITED_SHARE: &str = "stopped, no quota";
const ARMS: [&str; 3] = [STOPPED, NOT_READING, UNLIMITED_SHARE];

/// Bytes per second: of the other applications together, and of what the daemon receives for the one that stalls.
const OF_OTHERS: Quantity = "others";
const OF_STALLING: Quantity = "stalling";
/// Bytes of the pool: free, replaced, held by the application that stalls, and held by it for long.
const FREE: Quantity = "free";
const REPLACED: Quantity = "replaced";
const HELD: Quantity = "held";
const LATE: Quantity = "late";
/// Bytes since the measurement began: copied out of the pool, and read without the pool, both of the application that
/// stalls, and read without the pool of the others.
const COPIED_OUT: Quantity = "copied out";
const PIECEWISE: Quantity = "piecewise";
const OTHERS_PIECEWISE: Quantity = "others' piecewise";
/// The others' throughput in bytes per second, in the first sample of a run: before the stall, three seconds after it
/// began, in the worst interval while it lasts, and after the application went on.
const BEFORE_STALL: Quantity = "before";
const AFTER_3S: Quantity = "after 3 s";
const WORST: Quantity = "worst";
const AFTER_RESUMING: Quantity = "after resuming";
/// Most bytes in an interval, in the first sample: replaced, and held by the application that stalls.
const MOST_REPLACED: Quantity = "most replaced";
const MOST_HELD: Quantity = "most held";

/// The experiment `jet-escape`.
pub static ESCAPE: Case<&str> = Case {
    about: About {
        runs_on: PROCESSES,
        ..About::new(
            "jet-escape",
            "One of four receiving applications stalls: throughput of the others, and the daemon's receive pool.",
            "Bytes per second that the other applications read, every 100 ms, and what the daemon's metrics say of its \
             pool at the same time: bytes that are free, replaced, and held by the application that stalls; bytes \
             copied out of the pool, and bytes read without it. The application stalls for 3.5 s: its process is \
             stopped, or it does not read. By default no application may hold more than half of the \
             pool. The senders send half as much as the machine can carry.",
        )
    },
    table,
    measure: |bench, _, outcome| {
        let [here, there] = bench.testbed.cpus;
        outcome.pinning = format!(
            "the sending application and its daemon on cpu {here}, all receiving applications and their daemon on cpu \
             {there}"
        );
        let points = grid("", &ARMS, &[0]);
        let sweep = Sweep::over("", OVERHEAD, Wall::ZERO);
        let measured = bench.measure_lists(&points, sweep, |bench, point| run(bench, point.arm))?;
        Ok(measured)
    },
};

/// Returns the time of an interval in seconds, counted from the stall.
fn seconds(point: &Point<&'static str>) -> f64 {
    (point.x as f64 - BEFORE as f64) * EVERY.as_millis() as f64 / 1e3
}

fn first(arm: &'static str, quantity: Quantity) -> Expr<&'static str> {
    Expr::At(Point::at(arm, 0), quantity)
}

fn table() -> Table<&'static str> {
    let what = |how: &str| {
        format!(
            "{} receiving applications with {STREAMS} streams each, of which one {how}",
            1 + OTHERS.len()
        )
    };
    let mut t = Table::new(vec![
        arm(
            STOPPED,
            what("is stopped (SIGSTOP) and continued"),
            "adaptive",
            "2",
        ),
        arm(
            UNLIMITED_SHARE,
            what("is stopped and continued; each may hold all of the pool, not half of it"),
            "adaptive",
            "2",
        ),
        arm(
            NOT_READING,
            what("does not read its streams for a while"),
            "adaptive",
            "2",
        ),
    ]);
    t.arm().cell("time [s]", |point| seconds(point).into());
    for (header, quantity) in [
        ("others [B/s]", OF_OTHERS),
        ("stalling [B/s]", OF_STALLING),
        ("pool free [B]", FREE),
        ("replaced [B]", REPLACED),
        ("held by the stalling one [B]", HELD),
        ("held by it for long [B]", LATE),
        ("copied out [B]", COPIED_OUT),
        ("piecewise [B]", PIECEWISE),
        ("others' piecewise [B]", OTHERS_PIECEWISE),
    ] {
        t.value(header, quantity);
    }
    t.repeats(|point| Expr::At(*point, OF_OTHERS)).unlisted();
    let over_before = |arm, quantity| first(arm, quantity) / first(arm, BEFORE_STALL);
    let after = |arm| over_before(arm, AFTER_3S);
    t.metric("others_after_3s", Expr::Lowest(ARMS.map(after).to_vec()));
    for (arm, key) in [
        (STOPPED, "stopped"),
        (NOT_READING, "not_reading"),
        (UNLIMITED_SHARE, "no_quota"),
    ] {
        t.metric(format!("{key}_others_after_3s"), after(arm));
        let key = |what: &str| format!("{key}_{what}");
        t.metric(key("others_worst_100ms"), over_before(arm, WORST));
        t.metric(
            key("others_after_resuming"),
            over_before(arm, AFTER_RESUMING),
        );
        t.metric(
            key("others_before_gb_per_s"),
            first(arm, BEFORE_STALL) / 1e9,
        );
        t.metric(key("most_held_mib"), first(arm, MOST_HELD) / MIB as f64);
        t.metric(
            key("most_replaced_mib"),
            first(arm, MOST_REPLACED) / MIB as f64,
        );
        let last = Point::at(arm, (BEFORE + STALLED + RESUMED) as u64 - 1);
        let at_end = |quantity| Expr::At(last, quantity) / MIB as f64;
        t.metric(key("copied_out_mib"), at_end(COPIED_OUT));
        t.metric(key("piecewise_mib"), at_end(PIECEWISE));
        t.metric(key("others_piecewise_mib"), at_end(OTHERS_PIECEWISE));
    }
    let axes = || (Axis::linear("time [s]"), Axis::linear("throughput [GB/s]"));
    t.marks(
        "throughput.svg",
        "One application stalls at 0 s",
        axes(),
        |point| {
            [("others", OF_OTHERS), ("stalling", OF_STALLING)]
                .map(|(of, quantity)| mark(point, of, quantity, 1e9))
                .to_vec()
        },
    );
    let axes = (Axis::linear("time [s]"), Axis::linear("memory [MiB]"));
    t.marks(
        "pool.svg",
        "The receive pool, while one application stalls at 0 s",
        axes,
        |point| {
            [
                ("free", FREE),
                ("held by the stalling one", HELD),
                ("replaced", REPLACED),
                ("copied out, in total", COPIED_OUT),
            ]
            .map(|(of, quantity)| mark(point, of, quantity, MIB as f64))
            .to_vec()
        },
    );
    t.note(
        "Expected by us: others_after_3s of at least 0.9. The paper states no such value. It is the others' throughput \
         from 3.0 to 3.5 s after the stall began over that of the 0.8 s before it, in the worst arm. Since the \
         senders send half of what the machine can carry, an application that stalls makes the others no faster.",
    );
    t
}

fn mark(
    point: &Point<&'static str>,
    of: &str,
    quantity: Quantity,
    unit: f64,
) -> Mark<&'static str> {
    let line = format!("{}: {of}", point.arm);
    (
        line,
        Expr::Is(seconds(point)),
        Expr::At(*point, quantity) / unit,
    )
}

/// A moment of a run.
struct Moment {
    at: Instant,
    /// Bytes that the other applications have read.
    others: Vec<StreamingCount>,
    pool: PoolLevel,
    stalling: AppLevel,
    others_piecewise: f64,
}

/// Values of the daemon's metrics for the application that stalls.
#[derive(Clone, Copy)]
struct AppLevel {
    received: f64,
    held: f64,
    late: f64,
    copied_out: f64,
    piecewise: f64,
}

impl Moment {
    fn now(hosts: &mut StreamingHosts, bench: &Bench<'_>) -> Result<Self, WorkloadError> {
        let others = 1..=OTHERS.len();
        let others = others.map(|other| hosts.count(other, bench.stop()));
        let others = others.collect::<Result<_, _>>()?;
        let at = Instant::now();
        let metrics = hosts.metrics()?;
        let of = |name: &str| metrics.of_application(STALLING, name);
        let piecewise = OTHERS.map(|name| metrics.of_application(name, "beside_pool_bytes_total"));
        Ok(Self {
            at,
            others,
            pool: metrics.pool(),
            stalling: AppLevel {
                received: of("received_bytes_total"),
                held: of("pool_bytes"),
                late: of("pool_late_bytes"),
                copied_out: of("copied_out_bytes_total"),
                piecewise: of("beside_pool_bytes_total"),
            },
            others_piecewise: piecewise.iter().sum(),
        })
    }

    /// Returns the others' bytes per second since an earlier moment.
    fn others_since(&self, before: &Self) -> f64 {
        let both = self.others.iter().zip(&before.others);
        both.map(|(now, before)| now.per_second_since(*before))
            .sum()
    }
}

fn run(bench: &Bench<'_>, arm: &str) -> Result<Vec<Sample>, WorkloadError> {
    let stop = bench.stop();
    let names = [STALLING].into_iter().chain(OTHERS);
    let receivers: Vec<_> = names
        .map(|name| Receiver {
            name,
            streams: STREAMS,
        })
        .collect();
    let (cpus, mut options) = (bench.testbed.cpus, <[DaemonOptions; 2]>::default());
    if arm == UNLIMITED_SHARE {
        options[1].config = "[limits]\npool_quota = 100\n".to_owned();
    }
    let mut hosts = StreamingHosts::start(bench, cpus, &options, &receivers, MESSAGE)?;
    hosts.connect(stop)?;
    let all = receivers.len();
    hosts.send(UNLIMITED, stop)?;
    pause(SETTLING, stop)?;
    let from = counts(&mut hosts, all, bench)?;
    pause(FULL_LOAD, stop)?;
    let until = counts(&mut hosts, all, bench)?;
    let both = until.iter().zip(&from);
    let most: f64 = both
        .map(|(until, from)| until.per_second_since(*from))
        .sum();
    hosts.send((most / 2.0 / all as f64) as u64, stop)?;
    pause(SETTLING, stop)?;

    let mut moments = vec![Moment::now(&mut hosts, bench)?];
    let began = moments[0].at;
    for interval in 1..=BEFORE + STALLED + RESUMED {
        let due = began + EVERY * interval as u32;
        pause(due.saturating_duration_since(Instant::now()), stop)?;
        moments.push(Moment::now(&mut hosts, bench)?);
        match interval {
            BEFORE => stall(&mut hosts, arm, true, bench)?,
            resumed if resumed == BEFORE + STALLED => stall(&mut hosts, arm, false, bench)?,
            _ => {}
        }
    }
    Ok(samples(&moments))
}

/// Stalls the application, or lets it go on.
fn stall(
    hosts: &mut StreamingHosts,
    arm: &str,
    stalls: bool,
    bench: &Bench<'_>,
) -> Result<(), WorkloadError> {
    if arm == NOT_READING {
        return hosts.read(0, !stalls, bench.stop());
    }
    let signal = if stalls { Signal::STOP } else { Signal::CONT };
    let sent = kill_process(hosts.receiver(0), signal);
    sent.map_err(|why| WorkloadError::at("a signal to an application", why))
}

fn counts(
    hosts: &mut StreamingHosts,
    receivers: usize,
    bench: &Bench<'_>,
) -> Result<Vec<StreamingCount>, WorkloadError> {
    let counted = (0..receivers).map(|receiver| hosts.count(receiver, bench.stop()));
    counted.collect()
}

/// Makes a sample of each interval. The first one has the figures of the whole run as well.
fn samples(moments: &[Moment]) -> Vec<Sample> {
    let first = &moments[0];
    let mut samples: Vec<Sample> = moments
        .windows(2)
        .map(|both| {
            let (before, now) = (&both[0], &both[1]);
            let time = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
            let (of, since) = (now.stalling, first.stalling);
            Sample::of([
                (OF_OTHERS, now.others_since(before)),
                (OF_STALLING, (of.received - before.stalling.received) / time),
                (FREE, now.pool.free),
                (REPLACED, now.pool.replaced),
                (HELD, of.held),
                (LATE, of.late),
                (COPIED_OUT, of.copied_out - since.copied_out),
                (PIECEWISE, of.piecewise - since.piecewise),
                (
                    OTHERS_PIECEWISE,
                    now.others_piecewise - first.others_piecewise,
                ),
            ])
        })
        .collect();
    let rate = |from: usize, until: usize| moments[until].others_since(&moments[from]);
    let resumed = BEFORE + STALLED;
    let stalled = &samples[BEFORE..resumed];
    let highest = |quantity| {
        let values = stalled.iter().map(|sample| sample.get(quantity));
        values.fold(0.0, f64::max)
    };
    let worst = stalled.iter().map(|sample| sample.get(OF_OTHERS));
    let whole = [
        (BEFORE_STALL, rate(0, BEFORE)),
        (AFTER_3S, rate(BEFORE + LATER, resumed)),
        (WORST, worst.fold(f64::INFINITY, f64::min)),
        (AFTER_RESUMING, rate(resumed, resumed + RESUMED)),
        (MOST_REPLACED, highest(REPLACED)),
        (MOST_HELD, highest(HELD)),
    ];
    let one = std::mem::take(&mut samples[0]);
    samples[0] = whole.into_iter().fold(one, |sample, (quantity, value)| {
        sample.with(quantity, value)
    });
    samples
}

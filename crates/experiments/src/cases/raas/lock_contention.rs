//! Figures 2 and 7: threads that share queue pairs under locks, compared with the same threads over the
//! service, which shares one queue pair without a lock.

use super::one_sided::{self, Arm, at};
use super::{paper, rows};
use crate::cases::prelude::*;
use crate::service::virtual_time::OneSidedLoad;

/// Bytes of a READ, which the paper does not state. Long READs would not do: the link limits them, whichever
/// thread posts them.
const SIZE: usize = 64;
const PAGE: usize = 4096;
/// Bytes of each host's memory that is read.
const REGION: usize = 1 << 20;
/// Requests outstanding for each thread.
const OUTSTANDING: usize = 16;
/// Measured time of a point.
const RUN: Duration = Duration::from_millis(2);
const THREADS: [u64; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
/// Total numbers of threads when three or six share each of several queue pairs.
const ALL_THREADS: [u64; 3] = [6, 12, MOST];
const MOST: u64 = 18;

const NATIVE: Arm = Arm::native("native", SIZE);
const SERVICE: Arm = Arm::service("service", SIZE);
const LOCKED: Arm = Arm::locked("locked", 0, SIZE);
const LOCKED_3: Arm = Arm::locked("locked, q = 3", 3, SIZE);
const LOCKED_6: Arm = Arm::locked("locked, q = 6", 6, SIZE);
const PAGES_3: Arm = Arm::locked("locked, q = 3, 4 KiB", 3, PAGE);
const PAGES_6: Arm = Arm::locked("locked, q = 6, 4 KiB", 6, PAGE);
const PAGES_SERVICE: Arm = Arm::service("service, 4 KiB", PAGE);

fn rate(arm: Arm, threads: u64) -> Expr<Arm> {
    at(arm, threads, RATE)
}

const fn about(
    name: &'static str,
    figure: &'static str,
    line: &'static str,
    measures: &'static str,
) -> About {
    About {
        paper: paper(figure),
        runs_on: RunsOn::Simulated,
        ..About::new(name, line, measures)
    }
}

/// Figure 2.
pub static FIG2: Case<Arm> = Case {
    about: about(
        "raas-fig2",
        "Figure 2",
        "READs of 1 to 9 threads that share one queue pair under a lock.",
        "READs of 64 B per second at random addresses, 16 outstanding per thread: by 1 to 9 threads on one queue \
         pair under a lock, by the same threads with a queue pair each, and by the same threads over the service. \
         Simulated. The paper states neither what its threads send nor how many requests are outstanding.",
    ),
    table: || {
        let title = "READs of 64 B by threads that share a queue pair";
        let axes = (Axis::linear("threads"), Axis::linear("[1/s]"));
        let mut t = rows("fig2.svg", title, axes, RATE);
        for n in [3, 9] {
            let locked = || rate(LOCKED, n);
            t.metric(format!("locked_{n}_over_1"), locked() / rate(LOCKED, 1));
            t.metric(
                format!("locked_{n}_over_native_{n}"),
                locked() / rate(NATIVE, n),
            );
        }
        for n in [1, 3, 9] {
            t.metric(format!("locked_{n}_million_per_s"), rate(LOCKED, n) / 1e6);
        }
        t.metric("service_9_million_per_s", rate(SERVICE, 9) / 1e6);
        t.note(
            "The paper's 66 % and 56 % (III-B) are no predictions here: `cpu.lock_waiter` is fitted to them. \
             docs/simulation.md lists them under \"Raw devices: papers and presets\".",
        );
        t
    },
    measure: |bench, t, outcome| {
        measure(
            bench,
            t,
            outcome,
            grid("", &[LOCKED, NATIVE, SERVICE], &THREADS),
        )
    },
};

/// Figure 7.
pub static FIG7: Case<Arm> = Case {
    about: about(
        "raas-fig7",
        "Figure 7",
        "READs of threads that share queue pairs under locks, three or six to a queue pair, against the same threads \
         over the service.",
        "READs of 64 B per second at random addresses, 16 outstanding per thread: by three and six threads that \
         share one queue pair under a lock; by 6, 12 and 18 threads, of which three or six share each queue pair; by \
         the same threads with a queue pair each; and by the same threads over the service, where the daemon has one \
         queue pair for all. With three and six threads also READs of 4 KiB. In addition, 18 threads read from two \
         and three other hosts instead of one; each thread then has a queue pair or connection to each of these \
         hosts. Simulated.",
    ),
    table: || {
        let title = "READs of 64 B by threads, three or six of which share a queue pair";
        let axes = |x| (Axis::linear(x), Axis::linear("[1/s]"));
        let mut t: Table<Arm> = rows("fig7.svg", title, axes("threads"), RATE);
        let title = "READs of 64 B by 18 threads, three or six of which share queue pairs";
        t.chart("fig7-hosts.svg", title, axes("hosts"), |point| {
            let alone = point.arm.to(1).to_string();
            let is_drawn = point.arm.bytes == SIZE && point.x == MOST;
            is_drawn.then(|| (alone, point.arm.targets as f64 + 1.0, rate(point.arm, MOST)))
        });
        for (q, locked, pages) in [(3, LOCKED_3, PAGES_3), (6, LOCKED_6, PAGES_6)] {
            let over = |threads, ours, theirs| rate(ours, threads) / rate(theirs, threads);
            let key = format!("service_over_locked_q{q}");
            t.metric(format!("{key}_4k"), over(q, PAGES_SERVICE, pages));
            t.metric(key.clone(), over(q, SERVICE, locked));
            t.metric(format!("{key}_18_threads"), over(MOST, SERVICE, locked));
            t.metric(format!("locked_q{q}_million_per_s"), rate(locked, q) / 1e6);
            t.metric(
                format!("{key}_4_hosts"),
                over(MOST, SERVICE.to(3), locked.to(3)),
            );
            for suffix in ["", "_4k", "_18_threads", "_4_hosts"] {
                let above = "derived: the service does more than locks (VI-A)";
                t.of(&format!("{key}{suffix}"))
                    .paper(Claim::More(1.0), above);
            }
            let grown = rate(locked.to(3), MOST) / rate(locked, MOST);
            t.metric(format!("locked_q{q}_4_over_2_hosts"), grown);
        }
        let stated = "derived: not sensitive to the cluster size (VI-A)";
        t.metric(
            "service_4_over_2_hosts",
            rate(SERVICE.to(3), MOST) / rate(SERVICE, MOST),
        )
        .paper(Claim::About(1.0), stated);
        for (key, arm, threads) in [
            ("service_3_million_per_s", SERVICE, 3),
            ("service_18_million_per_s", SERVICE, MOST),
            ("native_18_million_per_s", NATIVE, MOST),
        ] {
            t.metric(key, rate(arm, threads) / 1e6);
        }
        let says =
            "threads that contend for a lock do less than with queue pairs of their own (VI-A)";
        let less = [(3, LOCKED_3), (6, LOCKED_6)].map(|(q, arm)| {
            let over = rate(arm, q) / rate(NATIVE, q);
            (format!("q = {q}: times"), over, Claim::Below(0.95))
        });
        t.sentence(says, less);
        t.note(
            "In the cluster, one lock covers the queue pairs to all hosts of the threads that share them. The points \
             of three and four hosts are separate arms, which have the number of hosts in their names.",
        );
        t
    },
    measure: |bench, t, outcome| {
        let mut points = grid("", &[LOCKED_3, NATIVE, SERVICE], &[3]);
        let all = [LOCKED_3, LOCKED_6, NATIVE, SERVICE];
        points.extend(grid("", &all, &ALL_THREADS));
        points.extend(grid("", &[PAGES_3, PAGES_SERVICE], &[3]));
        points.extend(grid("", &[PAGES_6, PAGES_SERVICE], &[6]));
        for targets in [2, 3] {
            points.extend(grid("", &all.map(|arm| arm.to(targets)), &[MOST]));
        }
        measure(bench, t, outcome, points)
    },
};

/// Measures points whose x is the number of threads. Each thread has a connection to each target host.
fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
    outcome: &mut Outcome,
    points: Vec<Point<Arm>>,
) -> Result<Measured<Arm>, RunError> {
    let sweep = Sweep::over("threads", Wall::ZERO, Wall::ZERO);
    one_sided::measure(bench, t, outcome, (points, sweep), |point| {
        let (arm, threads) = (point.arm, point.x as usize);
        let load = OneSidedLoad {
            outstanding: OUTSTANDING,
            ..arm.reads(REGION, threads, threads * arm.targets)
        };
        (load, RUN)
    })
}

//! Applications that share a small receive pool: equal ones, ones of different classes, and one that does not release
//! what it holds.

use super::hosts::{PROCESSES, Receiver, StreamingHosts};
use crate::cases::prelude::*;
use crate::service::daemon_hosts::DaemonOptions;
use crate::service::rusage::pause;
use crate::service::streaming::{StreamingCount, UNLIMITED};

/// The applications. Where there are classes, each has the one that it is named after.
const APPLICATIONS: [&str; 3] = ["high", "normal", "low"];
/// Place of the application that keeps what it receives, in the arm [`KEEPING`].
const KEEPER: usize = 2;
/// Streams of each application, and bytes of a message.
const STREAMS: u32 = 16;
const MESSAGE: u32 = 64 << 10;
/// Bytes of the pool: much less than all streams can have under way.
const POOL: u32 = 1 << 20;
/// Parts of the pool that an application may hold, in percent.
const QUOTAS: [u64; 3] = [20, USUAL, 100];
/// The daemon's default.
const USUAL: u64 = 50;
/// Time to start the processes.
const OVERHEAD: Wall = Wall::from_millis(800);
const WARM: Wall = Wall::from_millis(300);
const LEAST_TIME: Wall = Wall::from_millis(500);
/// Interval at which the daemon is asked how much of the pool each application holds.
const EVERY: Wall = Wall::from_millis(50);

const EQUAL: &str = "equal";
const CLASSES: &str = "classes";
const KEEPING: &str = "one keeps";

/// Throughput of each application in bytes per second, in their order.
const THROUGHPUT: [Quantity; 3] = ["high", "normal", "low"];
/// Throughput of all applications, and of all but [`KEEPER`].
const ALL: Quantity = "all";
const OTHERS: Quantity = "others";
/// Bytes of the pool that each application holds, averaged over time.
const HELD: [Quantity; 3] = ["high held", "normal held", "low held"];
/// Bytes read without the pool, as a fraction of all bytes of all applications.
const PIECEWISE: Quantity = "piecewise";

fn of(arm: &'static str, quota: u64, quantity: Quantity) -> Expr<&'static str> {
    Expr::At(Point::at(arm, quota), quantity)
}

/// The experiment `jet-qos`.
pub static QOS: Case<&str> = Case {
    about: About {
        runs_on: PROCESSES,
        ..About::new(
            "jet-qos",
            "Three applications share a receive pool of 1 MiB: equal ones, classes, and one that keeps what it has.",
            "Bytes per second that each of three receiving applications reads, and the part of the daemon's receive pool \
             that each holds, averaged over samples of the daemon's metrics. All three have the same load, more than \
             the machine can carry. In one arm they have the classes high, normal and low. In another one the third \
             application stops to read, so that it keeps what it has received, with three quotas.",
        )
    },
    table,
    measure: |bench, _, outcome| {
        let [here, there] = bench.testbed.cpus;
        outcome.pinning = format!(
            "the sending application and its daemon on cpu {here}, all receiving applications and their daemon on cpu \
             {there}"
        );
        let mut points = vec![Point::at(EQUAL, USUAL)];
        points.push(Point::at(CLASSES, USUAL));
        points.extend(grid("", &[KEEPING], &QUOTAS));
        let sweep = Sweep::over("%", OVERHEAD, Wall::from_secs(2));
        let measured = bench.measure(points, sweep, |bench, point, time| {
            sample(bench, point, time.max(LEAST_TIME)).map(Some)
        })?;
        Ok(measured.by_arm())
    },
};

/// Text of the receiving daemon's configuration file.
fn config(arm: &str, quota: u64) -> String {
    let limits = format!("[limits]\npool_bytes = {POOL}\npool_quota = {quota}\n");
    if arm != CLASSES {
        return limits;
    }
    let classes = APPLICATIONS.map(|name| format!("{name} = \"{name}\"\n"));
    format!("{limits}[limits.classes]\n{}", classes.concat())
}

/// The metrics for which the applications have classes.
fn of_classes() -> [(&'static str, Expr<&'static str>); 3] {
    let rate = |at: usize| of(CLASSES, USUAL, THROUGHPUT[at]);
    let held = |at: usize| of(CLASSES, USUAL, HELD[at]);
    [
        ("classes_high_over_low", rate(0) / rate(2)),
        ("classes_high_over_normal", rate(0) / rate(1)),
        ("classes_held_high_over_low", held(0) / held(2)),
    ]
}

fn table() -> Table<&'static str> {
    let daemon = "a daemon on each of two hosts, with a receive pool of 1 MiB; an application sends to three, over 16 \
                  streams each, as much as it can";
    let mut t = Table::new(vec![
        arm(EQUAL, daemon, "adaptive", "2"),
        arm(
            CLASSES,
            "the same; the receiving applications have the classes high, normal and low",
            "adaptive",
            "2",
        ),
        arm(
            KEEPING,
            "the same without classes; the third application stops to read",
            "adaptive",
            "2",
        ),
    ]);
    t.arm().x("quota [%]");
    for (name, (rate, held)) in APPLICATIONS.iter().zip(THROUGHPUT.iter().zip(HELD)) {
        t.median(format!("{name} [GB/s]"), |point| {
            Expr::At(*point, rate) / 1e9
        });
        t.value(format!("held by {name} [B]"), held);
    }
    t.value("read piecewise", PIECEWISE);
    t.repeats(|point| Expr::At(*point, THROUGHPUT[0]));
    let all = |quantities: [Quantity; 3]| quantities.map(|one| of(EQUAL, USUAL, one)).to_vec();
    let least = Expr::Lowest(all(THROUGHPUT)) / Expr::Highest(all(THROUGHPUT));
    t.metric("equal_least_over_most", least);
    let least = Expr::Lowest(all(HELD)) / Expr::Highest(all(HELD));
    t.metric("equal_held_least_over_most", least);
    let total = || of(EQUAL, USUAL, ALL);
    t.metric("equal_gb_per_s", total() / 1e9);
    t.metric("equal_piecewise", of(EQUAL, USUAL, PIECEWISE));
    for (key, expr) in of_classes() {
        t.metric(key, expr);
    }
    for quota in QUOTAS {
        let key = |what: &str| format!("keeping_quota_{quota}_{what}");
        let others = of(KEEPING, quota, OTHERS);
        t.metric(key("others_over_equal"), others / total());
        let held = of(KEEPING, quota, HELD[KEEPER]) / f64::from(POOL);
        t.metric(key("held"), held);
        t.metric(key("piecewise"), of(KEEPING, quota, PIECEWISE));
    }
    t.note(
        "The key \"others_over_equal\" is the throughput of the two applications that read, beside one that does not, \
         over that of three that read. It is 1 if the one that keeps its memory harms nobody. \"Held\" is the part of \
         the pool that it holds, without what was replaced or copied out.",
    );
    t
}

fn sample(
    bench: &Bench<'_>,
    point: &Point<&'static str>,
    time: Wall,
) -> Result<Sample, WorkloadError> {
    let stop = bench.stop();
    let receivers = APPLICATIONS.map(|name| Receiver {
        name,
        streams: STREAMS,
    });
    let options = DaemonOptions {
        config: config(point.arm, point.x),
        ..DaemonOptions::default()
    };
    let options = [DaemonOptions::default(), options];
    let mut hosts =
        StreamingHosts::start(bench, bench.testbed.cpus, &options, &receivers, MESSAGE)?;
    hosts.connect(stop)?;
    hosts.send(UNLIMITED, stop)?;
    pause(WARM, stop)?;
    if point.arm == KEEPING {
        hosts.read(KEEPER, false, stop)?;
        pause(WARM, stop)?;
    }
    let counts = |hosts: &mut StreamingHosts| -> Result<Vec<StreamingCount>, WorkloadError> {
        let all = 0..APPLICATIONS.len();
        all.map(|receiver| hosts.count(receiver, stop)).collect()
    };
    let from = counts(&mut hosts)?;
    let mut held = [0.0; APPLICATIONS.len()];
    let looks = (time.as_nanos() / EVERY.as_nanos()).max(1);
    for _ in 0..looks {
        pause(EVERY, stop)?;
        let metrics = hosts.metrics()?;
        for (held, name) in held.iter_mut().zip(APPLICATIONS) {
            *held += metrics.of_application(name, "pool_bytes") / looks as f64;
        }
    }
    let until = counts(&mut hosts)?;
    let metrics = hosts.metrics()?;
    let all = |name: &str| -> f64 {
        let all = APPLICATIONS.map(|application| metrics.of_application(application, name));
        all.iter().sum()
    };
    let piecewise = all("piecewise_bytes_total") / all("received_bytes_total").max(1.0);
    let rates = until.iter().zip(from);
    let rates = rates.map(|(until, from)| until.per_second_since(from));
    let rates: Vec<f64> = rates.collect();
    let (all, others) = (rates.iter().sum(), rates[..KEEPER].iter().sum());
    let sample = Sample::of(THROUGHPUT.into_iter().zip(rates));
    let sample = sample.with(ALL, all).with(OTHERS, others);
    let sample = HELD
        .into_iter()
        .zip(held)
        .fold(sample, |sample, (quantity, held)| {
            sample.with(quantity, held)
        });
    Ok(sample.with(PIECEWISE, piecewise))
}

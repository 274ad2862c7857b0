//! Ten to a thousand streams between two daemons: throughput, and the memory that the receiving host has for each.

use super::hosts::{PROCESSES, Receiver, StreamingHosts};
use crate::cases::prelude::*;
use crate::service::daemon_hosts::DaemonOptions;
use crate::service::rusage::{MemoryUsage, memory, pause, process_cpu_ns};
use crate::service::streaming::UNLIMITED;

/// Numbers of streams.
const STREAMS: [u64; 3] = [LEAST, 100, MOST];
const LEAST: u64 = 10;
const MOST: u64 = 1000;
/// Bytes of a message.
const MESSAGE: u32 = 64 << 10;
/// Time to start the processes and to open the streams.
const OVERHEAD: Wall = Wall::from_millis(500);
/// Time for which the streams have sent before the measurement begins, and the least time of a measurement.
const WARM: Wall = Wall::from_millis(300);
const LEAST_TIME: Wall = Wall::from_millis(500);

const SERVICE: &str = "service";
const SHORT: &str = "service, short rings";
const TCP: &str = "tcp";
/// Bytes of the longest egress ring of [`SHORT`]: as many as a ring of [`SERVICE`] has if there are many.
const RING: u32 = 128 << 10;

/// Processor time per byte, in nanoseconds: of both daemons, and of both applications.
const CPU: Quantity = "cpu";
const APPLICATIONS_CPU: Quantity = "applications' cpu";
/// Growth of the receiving side's memory in bytes for each stream: all of it, the application's own memory, the
/// daemon's own memory, and memory that both share.
const MEMORY: Quantity = "memory";
const OF_APPLICATION: Quantity = "of the application";
const OF_DAEMON: Quantity = "of the daemon";
const SHARED: Quantity = "shared";
/// Fraction of the bytes that the pool had no memory for, and of those that were copied out of it.
const PIECEWISE: Quantity = "piecewise";
const COPIED_OUT: Quantity = "copied out";

fn of(streams: u64, quantity: Quantity) -> Expr<&'static str> {
    Expr::At(Point::at(SERVICE, streams), quantity)
}

/// The experiment `service-streams`.
pub static STREAMS_CASE: Case<&str> = Case {
    about: About {
        runs_on: PROCESSES,
        ..About::new(
            "service-streams",
            "10, 100 and 1,000 streams between two daemons, all of which send as much as they can.",
            "Bytes per second that the receiving application reads, over all streams together; the growth of the \
             receiving host's memory for each stream while all of them send: the daemon and the application with all \
             memory that they share, without the receive pool, which a daemon allocates as a whole when the first \
             application attaches; the processor time of both daemons, and of both \
             applications, for each byte.",
        )
    },
    table,
    measure: |bench, _, outcome| {
        let [here, there] = bench.testbed.cpus;
        outcome.pinning = format!(
            "the sending application and its daemon on cpu {here}, the receiving application and its daemon on cpu \
             {there}"
        );
        let points = grid("", &[SERVICE, SHORT, TCP], &STREAMS);
        let sweep = Sweep::over("streams", OVERHEAD, Wall::from_secs(2));
        let measured = bench.measure(points, sweep, |bench, point, time| {
            sample(bench, point, time.max(LEAST_TIME)).map(Some)
        })?;
        Ok(measured.by_arm())
    },
};

fn table() -> Table<&'static str> {
    let what = "one application on each of two hosts, each with one thread that waits in epoll(7); the sender copies \
                messages of 64 KiB, the receiver reads them in place; all processes are started anew for each point";
    let short = "the same, but no ring of the sender is longer than 128 KiB, as it is with 1,000 streams anyway: ten \
                 streams have rings of up to 4 MiB otherwise";
    let tcp = "the same applications over TCP on loopback; the receiver copies";
    let mut t = Table::new(vec![
        arm(SERVICE, what, "adaptive", "2"),
        arm(SHORT, short, "adaptive", "2"),
        arm(TCP, tcp, "block", "2"),
    ]);
    let throughput = |point: &Point<_>| Expr::At(*point, BYTES) / 1e9;
    t.arm()
        .x("streams")
        .spread("throughput [GB/s]", throughput)
        .value("memory for each stream [B]", MEMORY)
        .value("of the application [B]", OF_APPLICATION)
        .value("of the daemon [B]", OF_DAEMON)
        .value("shared [B]", SHARED)
        .value("processor time of the daemons [ns/B]", CPU)
        .value(
            "processor time of the applications [ns/B]",
            APPLICATIONS_CPU,
        )
        .value("read piecewise", PIECEWISE)
        .value("copied out", COPIED_OUT)
        .repeats(throughput);
    t.metric("streams_1000_over_10", of(MOST, BYTES) / of(LEAST, BYTES));
    t.metric("streams_100_over_10", of(100, BYTES) / of(LEAST, BYTES));
    let tcp = |streams| Expr::At(Point::at(TCP, streams), BYTES);
    let short = |streams| Expr::At(Point::at(SHORT, streams), BYTES);
    t.metric("short_rings_1000_over_10", short(MOST) / short(LEAST));
    t.metric("tcp_1000_over_10", tcp(MOST) / tcp(LEAST));
    for streams in STREAMS {
        let key = format!("streams_{streams}_over_tcp");
        t.metric(key, of(streams, BYTES) / tcp(streams));
    }
    t.metric("stream_memory", of(MOST, MEMORY));
    for streams in STREAMS {
        let rate = of(streams, BYTES) / 1e9;
        t.metric(format!("streams_{streams}_gb_per_s"), rate);
        let key = format!("streams_{streams}_daemons_cpu_ns_per_byte");
        t.metric(key, of(streams, CPU));
        let key = format!("streams_{streams}_applications_cpu_ns_per_byte");
        t.metric(key, of(streams, APPLICATIONS_CPU));
    }
    t.metric("streams_1000_piecewise", of(MOST, PIECEWISE));
    let axes = (Axis::log("streams"), Axis::linear("throughput [GB/s]"));
    t.lines("streams.svg", "Messages of 64 KiB", axes, throughput);
    t.note(
        "With few streams a sender has long rings, so that much is sent at a time: short_rings_1000_over_10 shows what remains \
         when the number of streams alone differs.",
    );
    t.note(
        "Expected by us: streams_1000_over_10 of at least 0.97, and stream_memory of at most 65,536. The paper states no \
         such values. The memory for each of 10 streams includes what does not depend on their number.",
    );
    t
}

fn sample(
    bench: &Bench<'_>,
    point: &Point<&'static str>,
    time: Wall,
) -> Result<Sample, WorkloadError> {
    let (stop, streams) = (bench.stop(), point.x as u32);
    let receiver = Receiver {
        name: "receiver",
        streams,
    };
    let (cpus, mut options) = (
        bench.testbed.cpus,
        [DaemonOptions::default(), DaemonOptions::default()],
    );
    if point.arm == SHORT {
        options[0].config = format!("[limits]\nring_max = {RING}\n");
    }
    let mut hosts = match point.arm {
        TCP => StreamingHosts::start_tcp(bench, receiver, MESSAGE)?,
        _ => StreamingHosts::start(bench, cpus, &options, &[receiver], MESSAGE)?,
    };
    let applications = [hosts.sender(), hosts.receiver(0)];
    let daemons = [0, 1].map(|host| hosts.daemons.daemon(host));
    // Memory that several processes have open is counted for the first of them here. A software RNIC opens memory of
    // other hosts, so the sending application comes before the receiving daemon. What only both daemons have open counts
    // for the receiving one, so its memory is not more than what is found.
    let all = [applications[1], applications[0], daemons[1], daemons[0]];
    let receiving = || -> Result<[MemoryUsage; 2], WorkloadError> {
        let all = memory(&all)?;
        Ok([all[0], all[2]])
    };
    let cpu = || -> Result<[u64; 2], WorkloadError> {
        Ok([process_cpu_ns(&daemons)?, process_cpu_ns(&applications)?])
    };
    let before = receiving()?;
    hosts.connect(stop)?;
    hosts.send(UNLIMITED, stop)?;
    pause(WARM, stop)?;
    let (from, cpu_before) = (hosts.count(0, stop)?, cpu()?);
    pause(time, stop)?;
    let (until, cpu_after) = (hosts.count(0, stop)?, cpu()?);
    let grown = receiving()?;
    let bytes = until.bytes - from.bytes;
    if bytes == 0 {
        return Err(WorkloadError(
            "nothing arrived during the measurement".to_owned(),
        ));
    }
    let growth = |process: usize, of: fn(&MemoryUsage) -> u64| {
        (of(&grown[process]) as f64 - of(&before[process]) as f64) / f64::from(streams)
    };
    let own = [0, 1].map(|process| growth(process, |memory| memory.own));
    let shared = growth(0, |memory| memory.shared) + growth(1, |memory| memory.shared);
    let metric = |name: &str| {
        let name = format!("headworks_application_{name}_bytes_total");
        hosts.daemons.metric(1, &name)
    };
    let received = metric("received")?.max(1.0);
    let [of_daemons, of_applications] =
        [0, 1].map(|at| (cpu_after[at] - cpu_before[at]) as f64 / bytes as f64);
    let mut values = vec![
        (BYTES, until.per_second_since(from)),
        (APPLICATIONS_CPU, of_applications),
    ];
    // The figures of the processes leave out the memory that the kernel uses for TCP.
    if point.arm != TCP {
        values.extend([
            (CPU, of_daemons),
            (MEMORY, own[0] + own[1] + shared),
            (OF_APPLICATION, own[0]),
            (OF_DAEMON, own[1]),
            (SHARED, shared),
            (PIECEWISE, metric("beside_pool")? / received),
            (COPIED_OUT, metric("copied_out")? / received),
        ]);
    }
    Ok(Sample::of(values))
}

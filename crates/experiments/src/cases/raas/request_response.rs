//! Request and response between applications of two hosts: compared with TCP, over one connection and many, and
//! beside a stream that sends all it can.

use std::time::Instant;

use super::{Daemons, HUNG, OVERHEAD, PROCESSES, asking, on_daemons, rows, warm_and_run};
use crate::cases::prelude::*;
use crate::service::Role;
use crate::service::load::{LoadFigure, LoadKind, LoadTransport, StreamWaiting};
use crate::service::many_streams::{ManyStreams, ManyStreamsFigure, ManyStreamsKind, MessageSizes};
use crate::service::rusage::process_cpu_ns;

/// Bytes of a request, and of a piece of a stream; and the pieces of memory that the stream sends from.
const SIZE: usize = 64;
const PIECE: usize = 256 << 10;
const LENT: usize = 8;
/// Requests per second, sent independently of the responses. A point with x = 0 sends one request at a time.
const LOADS: [u64; 3] = [1000, 5000, 20_000];

const SERVICE: &str = "service";
const ASLEEP: &str = "service, asleep";
const TCP: &str = "tcp, blocking, two cores";
const TCP_ONE: &str = "tcp, blocking, one core";
const TCP_SPINNING: &str = "tcp, spinning, two cores";
const LOADED: &str = "service, loaded";
const TCP_LOADED: &str = "tcp, blocking, two cores, loaded";
const DIRECT: &str = "direct";
const DIRECT_SPINNING: &str = "direct, spinning";
const DIRECT_LOADED: &str = "direct, loaded";
/// One stream over TCP, with buffers of the kernel's choice and of these sizes.
const TCP_BUFFERS: [(&str, Option<u32>); 3] = [
    (TCP, None),
    ("tcp, buffers of 256 KiB", Some(256 << 10)),
    ("tcp, buffers of 4 MiB", Some(4 << 20)),
];
/// The load of one stream, and the bytes of a send.
const ONE_STREAM: &str = "one stream, 1 MiB sends";
const STREAM_PIECE: usize = 1 << 20;

fn of(arm: &'static str, x: u64) -> Expr<&'static str> {
    Expr::At(Point::at(arm, x), VALUE)
}

/// A load of many connections: its name, its name in keys, and what it is.
struct Many {
    name: &'static str,
    key: &'static str,
    what: ManyStreamsKind,
    /// Unit of its rate in keys, and its size.
    unit: (&'static str, f64),
}

/// Number of connections, and of threads.
const CONNECTIONS: u32 = 300;
const THREADS: u32 = 200;
/// The loads of many connections.
const MANY: [Many; 4] = [
    Many {
        name: "300 connections",
        key: "daemons_300",
        what: ManyStreamsKind::Echo {
            connections: CONNECTIONS,
        },
        unit: ("gb_per_s", 1e9),
    },
    Many {
        name: "200 threads, 64 B",
        key: "threads_200_64",
        what: ManyStreamsKind::Threads {
            threads: THREADS,
            sizes: MessageSizes::Fixed(SIZE),
        },
        unit: ("kmsg_per_s", SIZE as f64 * 1e3),
    },
    Many {
        name: "200 threads, 64 B to 256 KiB",
        key: "threads_200_mix",
        what: ManyStreamsKind::Threads {
            threads: THREADS,
            sizes: MessageSizes::PowersOfTwo(SIZE, PIECE),
        },
        unit: ("gb_per_s", 1e9),
    },
    Many {
        name: "connect, request, close",
        key: "connect",
        what: ManyStreamsKind::Connect { size: SIZE },
        unit: ("per_s", 1.0),
    },
];

/// Least time of such a load: each of the threads exchanges several of the longest messages.
const MANY_TIME: Wall = Wall::from_secs(1);

/// Processor time of all processes per byte that came back, in nanoseconds.
const CPU: Quantity = "cpu";

fn many(arm: &'static str, load: &'static str, quantity: Quantity) -> Expr<&'static str> {
    Expr::At(Point::of(load, arm, 0), quantity)
}

/// Request and response, compared with TCP.
pub static VS_TCP: Case<&str> = Case {
    about: About {
        runs_on: PROCESSES,
        ..About::new(
            "service-vs-tcp",
            "Request and response through two daemons and over the direct path, against TCP on loopback.",
            "Round trip of 64 bytes, one at a time: over the service with its default waiting and with both \
             applications asleep in poll(2) between messages, and over TCP with blocking and with spinning sockets. \
             The same under an open-loop load, measured from the time at which each message should have been sent \
             (median). Then rates over many connections, with the processor time of all processes for each byte: 300 \
             connections of one thread at each end, which waits in epoll(7) or with a poller of the service; 200 \
             threads at each end that exchange messages with blocking calls; connections that last for one request, \
             made one after the other; and one stream. Last, the same over the direct path: the applications share \
             memory, as applications of one machine do where their daemons allow it.",
        )
    },
    table: || {
        let mut t = Table::new(notes());
        let measured = |point: &Point<&'static str>| match point.load {
            "" => Expr::At(*point, VALUE),
            _ => Expr::At(*point, RATE),
        };
        t.arm()
            .cell("load", |point| point.load.into())
            .x("load [msg/s]")
            .value("median [ns]", VALUE)
            .value("99th percentile [ns]", P99)
            .value("rate [B/s or 1/s]", RATE)
            .value("processor time [ns/B]", CPU)
            .median("low", move |point| measured(point).all(|spread| spread.low))
            .median("high", move |point| {
                measured(point).all(|spread| spread.high)
            })
            .repeats(measured);
        let axes = (Axis::linear("load [msg/s]"), Axis::log("median [ns]"));
        let title = "64 bytes there and back (0: one at a time)";
        t.chart("latency.svg", title, axes, |point| {
            let is_latency = point.load.is_empty();
            is_latency.then(|| {
                (
                    point.arm.to_string(),
                    point.x as f64,
                    of(point.arm, point.x),
                )
            })
        });
        for (key, ours, theirs) in [
            ("median_over_tcp_64b", SERVICE, TCP),
            ("asleep_over_tcp_64b", ASLEEP, TCP),
            ("median_over_tcp_one_core_64b", SERVICE, TCP_ONE),
            ("median_over_tcp_spinning_64b", SERVICE, TCP_SPINNING),
        ] {
            t.metric(key, of(ours, 0) / of(theirs, 0));
        }
        for (name, arm) in [
            ("service", SERVICE),
            ("service_asleep", ASLEEP),
            ("tcp_blocking", TCP),
            ("tcp_blocking_one_core", TCP_ONE),
            ("tcp_spinning", TCP_SPINNING),
        ] {
            t.metric(format!("{name}_64b_us"), of(arm, 0) / 1e3);
        }
        for load in LOADS {
            let over = of(LOADED, load) / of(TCP_LOADED, load);
            t.metric(format!("loaded_over_tcp_{load}_per_s"), over);
        }
        for (key, ours, theirs) in [
            ("direct_median_over_tcp_64b", DIRECT, TCP),
            (
                "direct_spinning_over_tcp_spinning_64b",
                DIRECT_SPINNING,
                TCP_SPINNING,
            ),
        ] {
            t.metric(key, of(ours, 0) / of(theirs, 0));
        }
        t.metric("direct_64b_us", of(DIRECT, 0) / 1e3);
        t.metric("direct_spinning_64b_us", of(DIRECT_SPINNING, 0) / 1e3);
        for (load, name) in [(1000, "1k"), (5000, "5k")] {
            for (quantity, suffix) in [(VALUE, ""), (P99, "_p99")] {
                let at = |arm| Expr::At(Point::at(arm, load), quantity);
                let over = at(DIRECT_LOADED) / at(TCP_LOADED);
                t.metric(format!("direct_loaded_{name}_over_tcp{suffix}"), over);
            }
        }
        let best = TCP_BUFFERS.map(|(arm, _)| many(arm, ONE_STREAM, RATE));
        let best = || Expr::Highest(best.to_vec());
        for (key, arm) in [("stream", SERVICE), ("direct_stream", DIRECT)] {
            let rate = || many(arm, ONE_STREAM, RATE);
            t.metric(format!("{key}_over_tcp"), rate() / best());
            t.metric(format!("{key}_gb_per_s"), rate() / 1e9);
        }
        t.metric("tcp_stream_gb_per_s", best() / 1e9);
        for Many {
            name, key, unit, ..
        } in MANY
        {
            let direct = format!("direct_{}", key.trim_start_matches("daemons_"));
            let over = many(DIRECT, name, RATE) / many(TCP, name, RATE);
            t.metric(format!("{direct}_over_tcp"), over);
            t.metric(
                format!("{direct}_{}", unit.0),
                many(DIRECT, name, RATE) / unit.1,
            );
            let rate = |arm| many(arm, name, RATE);
            t.metric(format!("{key}_over_tcp"), rate(SERVICE) / rate(TCP));
            t.metric(format!("{key}_{}", unit.0), rate(SERVICE) / unit.1);
            let tcp = key.trim_start_matches("daemons_");
            t.metric(format!("tcp_{tcp}_{}", unit.0), rate(TCP) / unit.1);
            let cpu = |arm| many(arm, name, CPU);
            t.metric(format!("{key}_cpu_over_tcp"), cpu(SERVICE) / cpu(TCP));
        }
        t
    },
    measure: |bench, _, outcome| {
        let alone = [
            SERVICE,
            ASLEEP,
            TCP,
            TCP_ONE,
            TCP_SPINNING,
            DIRECT,
            DIRECT_SPINNING,
        ];
        let mut points = grid("", &alone, &[0]);
        points.extend(grid("", &[LOADED, TCP_LOADED, DIRECT_LOADED], &LOADS));
        for load in MANY {
            points.extend(grid(load.name, &[SERVICE, TCP, DIRECT], &[0]));
        }
        points.extend(grid(ONE_STREAM, &[SERVICE, DIRECT], &[0]));
        points.extend(grid(ONE_STREAM, &TCP_BUFFERS.map(|(arm, _)| arm), &[0]));
        let mut direct = None;
        let sweep = Sweep::over("per s", OVERHEAD, Wall::from_secs(1));
        on_daemons(
            bench,
            outcome,
            2,
            (points, sweep),
            |bench, served, point, time| {
                let [here, there] = bench.testbed.cpus;
                let is_direct = [DIRECT, DIRECT_SPINNING, DIRECT_LOADED].contains(&point.arm);
                let served = match (is_direct, &mut direct) {
                    (false, _) => served,
                    (true, Some(direct)) => direct,
                    (true, none) => none.insert(Daemons::start_direct(bench)?),
                };
                let buffers = TCP_BUFFERS.iter().find(|(arm, _)| *arm == point.arm);
                let buffers = buffers.and_then(|(_, buffers)| *buffers);
                let mut tcp = |cpu, spinning| {
                    let to = served.tcp(bench, cpu)?;
                    Ok::<_, WorkloadError>(LoadTransport::Tcp {
                        to,
                        spinning,
                        buffers,
                    })
                };
                let by = match point.arm {
                    SERVICE | LOADED | DIRECT | DIRECT_LOADED => {
                        served.streams(1, StreamWaiting::Adaptive)
                    }
                    ASLEEP => served.streams(1, StreamWaiting::Asleep),
                    DIRECT_SPINNING => served.streams(1, StreamWaiting::Spinning),
                    TCP_ONE => tcp(here, false)?,
                    TCP_SPINNING => tcp(there, true)?,
                    _ => tcp(there, false)?,
                };
                if point.load == ONE_STREAM {
                    let bulk = LoadKind::Bulk {
                        size: STREAM_PIECE,
                        lent: 0,
                    };
                    let rate = served.ask(bench, bulk, by, time.max(MANY_TIME))?;
                    return Ok(Sample::of([(RATE, rate)]));
                }
                if let Some(load) = MANY.iter().find(|load| load.name == point.load) {
                    return ask_many(bench, served, load.what, by, time);
                }
                let what = match point.x {
                    0 => LoadKind::PingPong { size: SIZE },
                    load => LoadKind::Load {
                        size: SIZE,
                        per_second: load as f64,
                    },
                };
                let found = served.ask_figure(bench, what, by, time)?;
                let p99 = found.p99_ns.map(|p99| (P99, p99));
                Ok(Sample::of([(VALUE, found.value)].into_iter().chain(p99)))
            },
        )
    },
};

/// Measures a load of many connections: rate, and processor time per byte.
fn ask_many(
    bench: &Bench<'_>,
    served: &Daemons,
    what: ManyStreamsKind,
    by: LoadTransport,
    time: Wall,
) -> Result<Sample, WorkloadError> {
    let (warm, run) = warm_and_run(time.max(MANY_TIME));
    let role = Role::ManyStreams(ManyStreams {
        what,
        by,
        warm_ns: warm.as_nanos() as u64,
        run_ns: run.as_nanos() as u64,
    });
    let others = served.hosts.pids();
    let before = process_cpu_ns(&others)?;
    let mut child = served.hosts.spawn_child(&role, bench.testbed.cpus[0])?;
    let figure: ManyStreamsFigure = child.receive(warm + run + HUNG, bench.stop())?;
    let cpu_ns = process_cpu_ns(&others)? - before + figure.cpu_ns;
    Ok(Sample::of([
        (RATE, figure.per_second),
        (CPU, cpu_ns as f64 / figure.bytes as f64),
    ]))
}

fn notes() -> Vec<ArmNote> {
    let service = "streams of the service, through a daemon on each side; all four processes poll for a bounded \
                   time, yielding their processor to each other, and then sleep";
    let asleep = "as service, but both applications sleep in poll(2) whenever nothing has arrived";
    let tcp = "TCP connections on loopback, TCP_NODELAY, between the two processors";
    let spinning =
        "TCP between the two processors, with nonblocking sockets that are read in a loop";
    let direct = "streams of the service between two applications that share memory, with two daemons that have \
                  nothing to do; both poll for a bounded time, yielding their processor to each other, and then sleep";
    let loaded = "the service; one thread sends at the given times, another receives";
    vec![
        arm(SERVICE, service, "adaptive", "5 each way"),
        arm(ASLEEP, asleep, "block", "5 each way"),
        arm(TCP, tcp, "block", "2 each way"),
        arm(
            TCP_ONE,
            "TCP with both ends on the first processor",
            "block",
            "2 each way",
        ),
        arm(TCP_SPINNING, spinning, "poll", "2 each way"),
        arm(LOADED, loaded, "adaptive", "5 each way"),
        arm(
            TCP_LOADED,
            "TCP; one thread sends at the given times, another receives",
            "block",
            "2 each way",
        ),
        arm(
            TCP_BUFFERS[1].0,
            "TCP, with buffers of this size in the kernel",
            "block",
            "2",
        ),
        arm(
            TCP_BUFFERS[2].0,
            "TCP, with buffers of this size in the kernel",
            "block",
            "2",
        ),
        arm(DIRECT, direct, "adaptive", "2 each way"),
        arm(
            DIRECT_SPINNING,
            "as direct; both applications poll without an end",
            "poll",
            "2 each way",
        ),
        arm(
            DIRECT_LOADED,
            "as direct; one thread sends at the given times, another receives",
            "adaptive",
            "2 each way",
        ),
    ]
}

const IDLE: &str = "ping-pong alone";
const BUSY: &str = "ping-pong beside the stream";
const ALONE: &str = "stream alone";
const BESIDE: &str = "stream beside the ping-pong";

/// Request and response beside a stream between the same two hosts, over the same link.
pub static FAIRNESS: Case<&str> = Case {
    about: About {
        runs_on: PROCESSES,
        ..About::new(
            "service-fairness",
            "Request and response beside a stream that sends as fast as it can, over one link.",
            "Round trip of 64 bytes, one at a time, alone and beside a stream that sends messages of 256 KiB without \
             copies; and the throughput of that stream, alone and beside the round trips.",
        )
    },
    table: || {
        let x = Axis::linear("size of the ping-pong's messages [B]");
        let title = "Ping-pong (median) and stream, alone and beside each other";
        let mut t = rows("fairness.svg", title, (x, Axis::log("[ns], [B/s]")), VALUE);
        let note = |name, what, copies| arm(name, what, "adaptive", copies);
        let lent = "messages of 256 KiB from lent memory, read in place";
        t.arms = vec![
            note(IDLE, "64 bytes there and back, one at a time", "5 each way"),
            note(ALONE, lent, "1"),
            note(
                BUSY,
                "the ping-pong, measured while the stream runs",
                "5 each way",
            ),
            note(BESIDE, "the stream, measured while the ping-pong runs", "1"),
        ];
        let of = |arm| of(arm, SIZE as u64);
        for (key, of) in [
            ("pingpong_loaded_over_idle", of(BUSY) / of(IDLE)),
            ("bulk_beside_over_alone", of(BESIDE) / of(ALONE)),
            ("pingpong_idle_us", of(IDLE) / 1e3),
            ("pingpong_loaded_us", of(BUSY) / 1e3),
            ("bulk_alone_gb_per_s", of(ALONE) / 1e9),
            ("bulk_beside_gb_per_s", of(BESIDE) / 1e9),
        ] {
            t.metric(key, of);
        }
        t
    },
    measure: |bench, _, outcome| {
        let points = grid("", &[IDLE, ALONE, BUSY, BESIDE], &[SIZE as u64]);
        let sweep = Sweep::over("B", OVERHEAD, Wall::from_secs(2));
        on_daemons(bench, outcome, 2, (points, sweep), beside)
    },
};

/// Shortest time for which the load beside outlasts the measured one. It also begins before the measured load
/// is warm.
const LONGER: Wall = Wall::from_millis(200);

/// Measures one load, with another one running beside it where the arm has two.
fn beside(
    bench: &Bench<'_>,
    served: &mut Daemons,
    point: &Point<&'static str>,
    time: Wall,
) -> Result<Sample, WorkloadError> {
    let (warm, run) = warm_and_run(time);
    let (cpu, limit) = (bench.testbed.cpus[0], time + HUNG);
    let asking = |what, times| asking(what, served.streams(1, StreamWaiting::Adaptive), times);
    let pingpong = LoadKind::PingPong { size: SIZE };
    let bulk = LoadKind::Bulk {
        size: PIECE,
        lent: LENT,
    };
    let (what, beside) = match point.arm {
        IDLE => (pingpong, None),
        BUSY => (pingpong, Some(bulk)),
        ALONE => (bulk, None),
        _ => (bulk, Some(pingpong)),
    };
    let for_ = warm + OVERHEAD + run + LONGER;
    let began = Instant::now();
    let longer = |what| {
        served
            .hosts
            .spawn_child(&asking(what, (Wall::ZERO, for_)), cpu)
    };
    let beside = beside.map(longer).transpose()?;
    let before = if beside.is_some() {
        OVERHEAD
    } else {
        Wall::ZERO
    };
    let measured = asking(what, (warm + before, run));
    let figure = served
        .hosts
        .run_child(&measured, cpu, limit, bench.stop())?;
    if let Some(mut beside) = beside {
        if began.elapsed() > for_ {
            let why = "the load in the background ended before the measured one";
            return Err(WorkloadError(why.to_owned()));
        }
        beside.receive::<LoadFigure>(limit, bench.stop())?;
    }
    Ok(figure.value.into())
}

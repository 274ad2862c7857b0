//! Figure 11: the latency that the service adds to a message, by size, and the throughput that it costs a
//! stream.

use super::{
    Daemons, OVERHEAD, in_virtual_time, machine, on_daemons, paper, rows, simulate, warm_and_run,
};
use crate::cases::prelude::*;
use crate::nic::{Verb, VerbLoad as Posted};
use crate::nic_measurements::half_round_trip;
use crate::service::load::{LoadKind, StreamWaiting};
use crate::service::shm_relay;
use crate::service::virtual_time::{self, MessageWay, OneSidedLoad};

/// Sizes in virtual time, and on this machine.
const SIZES: [u64; 8] = [8, 64, 512, 4096, 16 << 10, 64 << 10, PIECE, 1 << 20];
const SIZES_HERE: [u64; 6] = [8, 64, 512, 4096, 64 << 10, 1 << 20];
/// Bytes of a message where throughput is measured.
const PIECE: u64 = 256 << 10;
/// Number of such messages in flight.
const PIECES: usize = 8;
/// Sizes among which the border between frames and READs lies.
const BORDER_SIZES: [u64; 7] = [
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
];
/// Measured time of the service in virtual time; then the warm-up and the measured time of verbs.
const RUN: Duration = Duration::from_millis(20);
const NATIVE_TIMES: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(5));

const SERVICE: &str = "service";
const NATIVE: &str = "native send";
const COPIED_NATIVE: &str = "native send, copied";
const CHAIN: &str = "four processes";
const FRAMES: &str = "service, all in frames";
const READ: &str = "service, all by READ";
const LENT: &str = "service, zero copy";
const COPIED: &str = "service, copied";
const WRITES: &str = "native write";

/// Returns an arm's value: latency in nanoseconds, or throughput in bytes per second.
fn of(arm: &'static str, size: u64) -> Expr<&'static str> {
    Expr::At(Point::at(arm, size), VALUE)
}

/// Figure 11.
pub static FIG11: Case<&str> = Case {
    about: About {
        paper: paper("Figure 11"),
        ..About::new(
            "raas-fig11",
            "Latency by size, and throughput of messages of 256 KiB: the service against verbs and against processes \
             that only relay.",
            "Latency of one message at a time, over the service and by SEND over a queue pair between two \
             applications: half a round trip on simulated RNICs, a round trip on this machine. On this machine also \
             a round trip of 64 bytes through four processes that relay it in shared memory; and bytes per second in \
             messages of 256 KiB, over the service without copies and with copies, and by WRITE.",
        )
    },
    table,
    measure: |bench, t, outcome| {
        t.arms = notes(bench.testbed.is_simulated());
        if bench.testbed.is_simulated() {
            let mut points = grid("", &[SERVICE, NATIVE, COPIED_NATIVE], &SIZES);
            points.extend(grid("", &[FRAMES, READ], &BORDER_SIZES));
            let sweep = Sweep::over("B", Wall::ZERO, Wall::ZERO);
            return in_virtual_time(bench, outcome, (points, sweep), one_way);
        }
        t.note(format!(
            "The points of {LENT}, {COPIED} and {WRITES} are bytes per second."
        ));
        let mut points = grid("", &[SERVICE, NATIVE], &SIZES_HERE);
        points.push(Point::at(CHAIN, 64));
        points.extend(grid("", &[LENT, COPIED, WRITES], &[PIECE]));
        let sweep = Sweep::over("B", OVERHEAD, Wall::from_secs(1));
        on_daemons(bench, outcome, 2, (points, sweep), on_this_machine)
    },
};

fn table() -> Table<&'static str> {
    let axes = (Axis::log("size [B]"), Axis::log("median [ns]"));
    let mut t = rows(
        "fig11.svg",
        "Latency by size, one message at a time",
        axes,
        VALUE,
    );
    let [service, native, chain] = [SERVICE, NATIVE, CHAIN].map(|arm| move || of(arm, 64));
    let [lent, copied, writes] = [LENT, COPIED, WRITES].map(|arm| move || of(arm, PIECE));
    for (key, of) in [
        ("rtt_over_bare_chain_64b", service() / chain()),
        ("throughput_over_native_256k", lent() / writes()),
        ("copied_over_native_256k", copied() / writes()),
        ("service_64b_us", service() / 1e3),
        ("chain_64b_us", chain() / 1e3),
        ("native_64b_us", native() / 1e3),
        ("added_over_native_64b_us", (service() - native()) / 1e3),
        ("zero_copy_256k_gb_per_s", lent() / 1e9),
        ("copied_256k_gb_per_s", copied() / 1e9),
        ("native_256k_gb_per_s", writes() / 1e9),
    ] {
        t.metric(key, of);
    }
    for (size, name) in [(8, "8b"), (64, "64b"), (4096, "4k"), (16 << 10, "16k")] {
        let added = (of(SERVICE, size) - of(NATIVE, size)) / 1e3;
        t.metric(format!("latency_added_{name}_us"), added).paper(
            Claim::Between(1.0, 2.0),
            "VI-A: about 1 to 2 µs below 64 KB",
        );
    }
    // The reading of native RDMA that is less favourable to the service comes first.
    for (of_native, suffix, reading) in [
        (
            NATIVE,
            "",
            ["VI-A: no overhead at 64 KB", "VI-A: 37 % less at 256 KB"],
        ),
        (
            COPIED_NATIVE,
            "_copied",
            [
                "VI-A: no overhead at 64 KB, if native RDMA copies (V-A: memcpy)",
                "VI-A: 37 % less at 256 KB, if native RDMA copies (V-A: memcpy)",
            ],
        ),
    ] {
        let sizes = [
            (64 << 10, "64k", Claim::About(1.0)),
            (PIECE, "256k", Claim::Exactly(0.63)),
        ];
        for ((size, name, claim), section) in sizes.into_iter().zip(reading) {
            let over = of(SERVICE, size) / of(of_native, size);
            t.metric(format!("latency_{name}_over_native{suffix}"), over)
                .paper(claim, section);
        }
    }
    // Latency by READ minus latency in frames.
    for size in BORDER_SIZES {
        let over = (of(READ, size) - of(FRAMES, size)) / 1e3;
        t.metric(format!("read_over_frames_{}k_us", size >> 10), over);
    }
    for (key, arm) in [
        ("latency_native_8b_us", NATIVE),
        ("latency_service_8b_us", SERVICE),
    ] {
        t.metric(key, of(arm, 8) / 1e3);
    }
    t.note(
        "The paper compares with \"native RDMA\" (VI-A). It does not say whether native RDMA copies a message into \
         registered memory and out of it (V-A names memcpy and memreg), so both readings are printed. The paper \
         explains the gain at 256 KB by pipelining: applications and the service work on pieces of a message at the \
         same time. That is a gain over a program that copies a whole message before it sends it. SENDs from \
         registered memory fill the link already.",
    );
    t
}

fn ended(found: Option<f64>) -> Result<f64, WorkloadError> {
    found.ok_or_else(|| WorkloadError("no message completed in the measured time".to_owned()))
}

/// Measures half a round trip in virtual time.
fn one_way(bench: &Bench<'_>, point: &Point<&'static str>) -> Result<Sample, WorkloadError> {
    let bytes = point.x as usize;
    let way = match point.arm {
        SERVICE => Some(MessageWay::Any),
        FRAMES => Some(MessageWay::Frames),
        READ => Some(MessageWay::Read),
        _ => None,
    };
    if let Some(way) = way {
        let load = OneSidedLoad {
            what: virtual_time::OneSidedOp::Messages { bytes, way },
            callers: 1,
            connections: 1,
            hosts: 1,
            outstanding: 1,
        };
        let found = simulate(bench, load, virtual_time::RequestPath::Service, RUN)?;
        return Ok((found.latency.p50_ns / 2.0).into());
    }
    let preset = machine(bench)?.preset;
    // The message is copied into registered memory before the SEND, and out of it afterwards.
    let copies = 2.0 * (preset.copy_ns + bytes as f64 * 8.0 / preset.copy_gbps);
    let load = Posted {
        work_ns: if point.arm == COPIED_NATIVE {
            copies as u64
        } else {
            0
        },
        ..Posted::of(Verb::Send, bytes)
    };
    let found = half_round_trip(&load, &bench.testbed, NATIVE_TIMES)?;
    Ok(ended(found.map(|found| found.p50_ns))?.into())
}

fn on_this_machine(
    bench: &Bench<'_>,
    served: &mut Daemons,
    point: &Point<&'static str>,
    time: Wall,
) -> Result<Sample, WorkloadError> {
    let size = point.x as usize;
    let (warm, run) = warm_and_run(time);
    let times = [warm, run].map(|time| Duration::from_nanos(time.as_nanos() as u64));
    let ask = |what| {
        served.ask(
            bench,
            what,
            served.streams(1, StreamWaiting::Adaptive),
            time,
        )
    };
    let value = match point.arm {
        NATIVE => {
            let found =
                half_round_trip(&Posted::of(Verb::Send, size), &bench.testbed, times.into())?;
            ended(found.map(|found| found.p50_ns * 2.0))?
        }
        CHAIN => {
            let (cpus, directory) = (bench.testbed.cpus, served.hosts.directory());
            shm_relay::measure(size, (warm, run), cpus, directory, bench.stop())?
        }
        WRITES => {
            // Each WRITE has its own source and destination, as the lent pieces have.
            let load = Posted {
                queue_pairs: PIECES,
                ..Posted::of(Verb::Write, size)
            };
            ended(load.rate(&bench.testbed, 1, times.into())?)? * size as f64
        }
        LENT => ask(LoadKind::Bulk { size, lent: PIECES })?,
        COPIED => ask(LoadKind::Bulk { size, lent: 0 })?,
        _ => ask(LoadKind::PingPong { size })?,
    };
    Ok(value.into())
}

fn notes(is_simulated: bool) -> Vec<ArmNote> {
    if is_simulated {
        let service =
            "streams of the service; both applications and both daemons poll all the time";
        let copied = "as native send; each message is copied into registered memory before the SEND and out of it afterwards";
        return vec![
            arm(SERVICE, service, "poll", "4; 2 from 16 KiB on"),
            arm(
                FRAMES,
                "as service; every message goes in frames, which the receiving daemon copies to the connection's ring",
                "poll",
                "4",
            ),
            arm(
                READ,
                "as service; every message is announced, and READ into the receive pool: a round trip more on the wire",
                "poll",
                "2",
            ),
            arm(NATIVE, "SEND between registered buffers", "poll", "0"),
            arm(COPIED_NATIVE, copied, "poll", "2"),
        ];
    }
    let native = "SEND between two processes over a queue pair of their own";
    let chain = "64 bytes relayed through rings in shared memory; two processes share each processor and yield it to \
                 each other while they wait";
    let lent = "256 KiB sent from lent memory; the receiver reads the first byte in place";
    let writes = "WRITEs of 256 KiB over 8 queue pairs, each between buffers of its own; nobody reads the bytes";
    vec![
        arm(
            SERVICE,
            "a stream, through a daemon on each side",
            "adaptive",
            "5 each way; from 16 KiB on 3",
        ),
        arm(NATIVE, native, "poll", "1 each way"),
        arm(CHAIN, chain, "poll", "3 each way"),
        arm(LENT, lent, "adaptive", "1"),
        arm(
            COPIED,
            "256 KiB copied into the stream and out of it",
            "adaptive",
            "2",
        ),
        arm(WRITES, writes, "poll", "1"),
    ]
}

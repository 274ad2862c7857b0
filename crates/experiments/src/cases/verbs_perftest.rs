//! perftest on the software RNIC, as an unmodified program.

use std::fmt;

use super::prelude::*;
use crate::verbs_perftest::{
    PerftestDevice, PerftestFigures, PerftestProgram, installed, run, version,
};

/// The RNIC of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// The software RNIC, by the drop-in libibverbs.
    Software,
    /// An RDMA device of this machine, by the installed libibverbs.
    Installed,
}
use Arm::{Installed, Software};

impl Arm {
    fn note(self) -> ArmNote {
        match self {
            Software => arm(
                "software",
                "the software RNIC, by the drop-in libibverbs (`headworks verbs`)",
                "poll",
                "1",
            ),
            Installed => arm(
                "installed",
                "the first two RDMA devices of this machine, or the only one, by the installed libibverbs",
                "poll",
                "the device's",
            ),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.note().name)
    }
}

/// The programs, which are also the names of loads; their sizes; and how many messages a second are assumed when their number is
/// chosen, on the software RNIC.
const PROGRAMS: [(&str, &[u64], f64); 6] = [
    ("ib_write_bw", &[64, 4096, 65536, MIB], 4e6),
    ("ib_read_bw", &[64, 65536], 4e6),
    ("ib_send_bw", &[64, 65536], 4e6),
    ("ib_write_lat", &[64, 4096], 1e6),
    ("ib_read_lat", &[64], 1e6),
    ("ib_send_lat", &[64], 1e6),
];
const WRITE_BW: &str = "ib_write_bw";
const WRITE_LAT: &str = "ib_write_lat";
const SEND_BW: &str = "ib_send_bw";
/// Other devices are assumed to be so much slower at most.
const SLOWER: f64 = 100.0;
/// Most bytes a second that are assumed.
const BYTES_PER_S: f64 = 2e10;
/// Time to start, connect and end both processes.
const OVERHEAD: Wall = Wall::from_millis(150);
/// Time limit of one run.
const LIMIT: Wall = Wall::from_secs(60);

/// The experiment `verbs-perftest`.
pub static VERBS_PERFTEST: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Real("it runs perftest, which knows devices of libibverbs only"),
        ..About::new(
            "verbs-perftest",
            "perftest, unmodified, on the software RNIC and on an RDMA device of this machine.",
            "Bandwidth and message rate of WRITE, READ and SEND by size, and their latency, as the programs of perftest \
             print them, between two pinned processes. With an RDMA device, such as the kernel's rxe, its figures are in \
             the same table.",
        )
    },
    table,
    measure,
};

fn is_latency(load: &str) -> bool {
    load.ends_with("_lat")
}

fn table() -> Table<Arm> {
    let mut t = Table::new([Software, Installed].map(Arm::note).to_vec());
    t.cell("program", |point| point.load.into()).arm();
    t.x("size [B]");
    t.spread("rate [M/s]", |point| rate_of(point) * 1e-6);
    t.spread("bandwidth [GB/s]", |point| {
        rate_of(point) * (point.x as f64 * 1e-9)
    });
    t.spread("typical latency [µs]", |point| {
        Expr::At(*point, P50) * 1e-3
    });
    t.spread("99th percentile [µs]", |point| {
        Expr::At(*point, P99) * 1e-3
    });
    t.repeats(|point| main_quantity(*point));
    for arm in [Software, Installed] {
        let at = |load, size, quantity| Expr::At(Point::of(load, arm, size), quantity);
        t.metric(
            format!("{arm}_write64k_gb_per_s"),
            at(WRITE_BW, 65536, RATE) * (65536.0 * 1e-9),
        );
        t.metric(
            format!("{arm}_write64_latency_us"),
            at(WRITE_LAT, 64, P50) * 1e-3,
        );
        t.metric(
            format!("{arm}_send64_mmsg_per_s"),
            at(SEND_BW, 64, RATE) * 1e-6,
        );
    }
    t.notes.extend(NOTES.map(String::from));
    t
}

const NOTES: [&str; 3] = [
    "perftest's clients and servers exchange addresses over TCP on loopback, with GID index 1 on the software RNIC, and elsewhere with \
     that of the first IPv4 address. They send one buffer again and again, which stays in the processor's cache.",
    "Latencies are half a round trip, as perftest prints them: with two decimals. The rate of messages below 1 KiB is what perftest \
     prints; that of longer ones is computed from the printed bandwidth.",
    "Both ends poll. On the software RNIC the client's core does the copying of WRITEs and SENDs, and of READs; the server's core polls.",
];

fn rate_of(point: &Point<Arm>) -> Expr<Arm> {
    Expr::At(*point, RATE).when(!is_latency(point.load))
}

fn main_quantity(point: Point<Arm>) -> Expr<Arm> {
    Expr::At(point, if is_latency(point.load) { P50 } else { RATE })
}

fn measure(
    bench: &mut Bench<'_>,
    _: &mut Table<Arm>,
    outcome: &mut Outcome,
) -> Result<Measured<Arm>, RunError> {
    *outcome = bench.pinned(|[here, there]| {
        format!("client on cpu {here}, server on cpu {there}, for both devices")
    });
    let perftest = version(bench.stop());
    bench.check()?;
    let perftest = perftest.map_err(|why| RunError::Failed(why.to_string()))?;
    outcome.versions.push(("perftest".into(), perftest));
    let real = installed().map_err(|why| why.to_string());
    if let Ok(PerftestDevice::Installed([first, second], index)) = &real {
        let about = format!("{first} (server) and {second} (client), GID index {index}");
        outcome.versions.push(("installed devices".into(), about));
    }
    let mut points = Vec::new();
    for (program, sizes, _) in PROGRAMS {
        for arm in [Software, Installed] {
            let is_there = arm == Software || real.is_ok();
            let sizes = sizes.iter().filter(|_| is_there);
            points.extend(sizes.map(|size| Point::of(program, arm, *size)));
        }
    }
    let sweep = Sweep::over("B", OVERHEAD, Wall::from_millis(500));
    let mut measured = bench.measure(points, sweep, |bench, point, time| {
        sample(bench, point, time, real.as_ref().ok())
    })?;
    if let Err(why) = real {
        measured.failures.insert(Installed.to_string(), why);
    }
    Ok(measured)
}

fn sample(
    bench: &Bench<'_>,
    point: &Point<Arm>,
    time: Wall,
    real: Option<&PerftestDevice>,
) -> Result<Option<Sample>, WorkloadError> {
    let known = PROGRAMS.iter().find(|(name, ..)| *name == point.load);
    let Some((name, _, per_second)) = known.copied() else {
        return Ok(None);
    };
    let slower = match point.arm {
        Software => 1.0,
        Installed => SLOWER,
    };
    let per_second = f64::min(per_second, BYTES_PER_S / point.x as f64) / slower;
    let program = PerftestProgram {
        name,
        size: point.x as usize,
        // perftest takes no fewer than five.
        count: ((time.as_secs_f64() * per_second) as u64).max(200),
    };
    let device = match (point.arm, real) {
        (Installed, Some(device)) => device,
        _ => &PerftestDevice::Software,
    };
    let cpus = bench.testbed.cpus;
    Ok(Some(
        match run(program, device, cpus, LIMIT, bench.stop())? {
            PerftestFigures::Rate(rate) => Sample::of([(RATE, rate)]),
            PerftestFigures::Latency { typical, p99 } => {
                Sample::of([(P50, typical * 1e3), (P99, p99 * 1e3)])
            }
        },
    ))
}

//! The ring compared with the same ring without verbs, with UCX and with the kernel's byte streams.

mod file_transfer;

use std::collections::BTreeMap;
use std::fmt;

use super::prelude::*;
use crate::transports::job::{Buffering, RingMode, StreamKind, Waiting};
use crate::transports::machine_limits;
use crate::{child_programs, ucx_perftest};

/// An arm of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// A channel between two actors of this program.
    Channel(Channel),
    /// `ucx_perftest` with active messages.
    UcxAm,
    /// `ucx_perftest` with puts.
    UcxPut,
    /// Copying from one array to another.
    Memcpy,
    /// A cache line that two threads pass to each other.
    CacheLine,
    /// A file through `headworks pipe`.
    Pipe,
    /// The same file over TCP.
    TcpFile,
}
use Arm::{CacheLine, Memcpy, Pipe, TcpFile, UcxAm, UcxPut};

impl Arm {
    /// Returns the arm's name, its description, whether both ends poll, and its copies.
    fn note(self) -> ArmNote {
        let ucx_am = "ucx_perftest, ucp_am_bw and ucp_am_lat";
        let ucx_put =
            "ucx_perftest, ucp_put_bw and ucp_put_lat: the receiver does not take messages";
        let memcpy = "slot by slot from one array to another of the same size as the ring's";
        let c2c = "half the round trip of a flag on a cache line between two threads";
        match self {
            Self::Channel(channel) => channel.note(),
            UcxAm => arm("ucx-am", ucx_am, "poll", "1 (16 KiB and more: cma)"),
            UcxPut => arm("ucx-put", ucx_put, "poll", "1"),
            Memcpy => arm("memcpy", memcpy, "-", "1"),
            CacheLine => arm("c2c", c2c, "poll", "0"),
            Pipe => arm("pipe", "a file", "-", "-"),
            TcpFile => arm("tcp-file", "a file", "-", "-"),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.note().name)
    }
}

const fn ring(mode: RingMode) -> Arm {
    Arm::Channel(Channel::Ring(mode))
}

const fn stream(transport: StreamKind, waiting: Waiting, buffering: Buffering) -> Arm {
    Arm::Channel(Channel::Stream(transport, waiting, buffering))
}

const BARE: Arm = Arm::Channel(Channel::Bare);
const RING: Arm = ring(RingMode::Default);
const UNBATCHED: Arm = ring(RingMode::Unbatched);
const IN_LATENCY_MODE: Arm = ring(RingMode::Latency);
const TCP: Arm = stream(StreamKind::Tcp, Waiting::Blocking, Buffering::None);
const UNIX: Arm = stream(StreamKind::Unix, Waiting::Blocking, Buffering::None);
/// The arms that are also measured under load.
const UNDER_LOAD: [Arm; 4] = [RING, IN_LATENCY_MODE, TCP, UNIX];

/// The loads, as in the column `kind`: one-way messages whose bytes are not touched, or are touched;
/// ping-pong; and messages at a rate, which is the point's x in percent of the arm's highest rate. Touched
/// rates have no rows of their own but a column in the rows of plain ones.
const RATES: &str = "rate";
const TOUCHED: &str = "touched";
const LATENCY: &str = "latency";
const LOADED: &str = "load";
/// The transfer of a file, which has no row.
const FILE: &str = "file";

/// The metric of the instructions of a post, which are counted in a separate run.
const INSTRUCTIONS: &str = "post_write_instructions";
/// Messages per second that the sender offers.
const OFFERED: Quantity = "offered";

const SIZES: &[u64] = &[8, 64, 512, 4096, 65536, MIB];
/// A quick run measures fewer sizes, so that each point gets enough time.
const QUICK_SIZES: &[u64] = &[64, 4096, MIB];
/// Slots of a ring: the default, and few enough that large messages stay in the cache.
const SLOTS: u64 = 128;
const FEW_SLOTS: u64 = 4;
/// Bytes of a message under load, and the loads in percent.
const LOADED_SIZE: u64 = 64;
const PERCENT: [u64; 5] = [10, 30, 50, 70, 90];
/// Time to start, connect and end a pair of processes.
const OVERHEAD: Wall = Wall::from_millis(40);

/// The experiment `ring-vs-peers`.
pub static RING_VS_PEERS: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Real(
            "it measures sockets, pipes and memory of this machine beside the ring, by the wall clock",
        ),
        ..About::new(
            "ring-vs-peers",
            "The ring between two processes of one machine, against other ways to carry its messages.",
            "Message rate and bandwidth by size, both plain (the receiver reads a word of each message) and touched \
             (the sender writes and the receiver sums every byte); one-way latency by ping-pong; and latency under \
             an open-loop load.",
        )
    },
    table,
    measure,
};

fn channels() -> Vec<Channel> {
    let rings = [RingMode::Default, RingMode::Unbatched, RingMode::Latency];
    let mut all = vec![Channel::Bare];
    all.extend(rings.map(Channel::Ring));
    for transport in [StreamKind::Unix, StreamKind::Pipe, StreamKind::Tcp] {
        for buffering in [Buffering::None, Buffering::Buffered] {
            let waiting = [Waiting::Spinning, Waiting::Blocking];
            all.extend(waiting.map(|waiting| Channel::Stream(transport, waiting, buffering)));
        }
    }
    all
}

fn arms() -> impl Iterator<Item = Arm> {
    let channels = channels().into_iter().map(Arm::Channel);
    channels.chain([UcxAm, UcxPut, Memcpy, CacheLine])
}

/// Returns whether the application gathers messages in a buffer.
const fn gathers(arm: Arm) -> bool {
    matches!(arm, Arm::Channel(Channel::Stream(.., Buffering::Buffered)))
}

/// Returns whether the arm is measured with that load and size.
fn is_measured(load: &str, arm: Arm, size: u64, is_quick: bool) -> bool {
    // Gathering makes no difference to large messages, and is not meant for latency.
    match (load, arm) {
        (LATENCY, CacheLine) => size == 64,
        (LATENCY, _) if arm == Memcpy || gathers(arm) => false,
        (LATENCY, _) => size == 64 || size == 4096 && !is_quick,
        (_, Arm::Channel(_)) if gathers(arm) && size > 4096 => false,
        (TOUCHED, Arm::Channel(_)) => size != 4096 || !is_quick,
        (RATES, Memcpy) => size == MIB,
        (RATES, arm) => arm != CacheLine,
        _ => false,
    }
}

/// Returns the points. Those that are compared are next to each other.
fn plan(is_quick: bool) -> Vec<Point<Arm>> {
    let sizes = if is_quick { QUICK_SIZES } else { SIZES };
    let slots = |load, arm, size| match arm {
        Memcpy | Arm::Channel(Channel::Bare | Channel::Ring(_))
            if load != LATENCY && size == MIB =>
        {
            &[SLOTS, FEW_SLOTS][..]
        }
        _ => &[SLOTS],
    };
    let mut points = Vec::new();
    for &size in sizes {
        for load in [RATES, TOUCHED, LATENCY] {
            for arm in arms().filter(|arm| is_measured(load, *arm, size, is_quick)) {
                let slots = slots(load, arm, size).iter();
                points.extend(slots.map(|n| Point::of(load, arm, size).with(*n)));
            }
        }
    }
    points
}

const fn rate(arm: Arm, size: u64) -> Point<Arm> {
    Point::of(RATES, arm, size).with(SLOTS)
}

const fn latency(arm: Arm) -> Point<Arm> {
    Point::of(LATENCY, arm, 64).with(SLOTS)
}

const fn file(arm: Arm) -> Point<Arm> {
    Point::of(FILE, arm, 0)
}

/// Returns the main quantity of a point: its rate or its median latency.
fn value(point: Point<Arm>) -> Expr<Arm> {
    let quantity = match point.load {
        LATENCY | LOADED => P50,
        FILE => VALUE,
        _ => RATE,
    };
    Expr::At(point, quantity)
}

/// Returns the rate with every byte touched, for the row of the plain rate.
fn touched(point: &Point<Arm>) -> Expr<Arm> {
    let load = TOUCHED;
    Expr::At(Point { load, ..*point }, RATE).when(point.load == RATES)
}

/// Converts a rate of messages of the point's size to GB/s.
fn gb_per_s(point: &Point<Arm>, rate: Expr<Arm>) -> Expr<Arm> {
    rate * (point.x as f64 * 1e-9)
}

fn table() -> Table<Arm> {
    let mut t = Table::new(arms().map(Arm::note).collect());
    t.arm().cell("kind", |point| point.load.into());
    t.cell("size [B]", |point| match point.load {
        LOADED => (LOADED_SIZE as f64).into(),
        _ => (point.x as f64).into(),
    });
    let rate = |point: &Point<Arm>| Expr::At(*point, RATE);
    t.n("slots").spread("plain [msg/s]", rate);
    t.spread("touched [msg/s]", touched);
    t.median("plain [GB/s]", move |point| gb_per_s(point, rate(point)));
    t.median("touched [GB/s]", |point| gb_per_s(point, touched(point)));
    t.value("p50 [ns]", P50).value("p99 [ns]", P99);
    t.value("p99.9 [ns]", P999);
    t.cell("load [%]", |point| {
        (point.load == LOADED).then_some(point.x as f64).into()
    });
    t.value("offered [msg/s]", OFFERED);
    t.repeats(|point| value(*point));
    metrics(&mut t);
    let axes = |y| (Axis::log("message size [B]"), Axis::log(y));
    let drawn = |point: &Point<Arm>, load| {
        let is_drawn = point.load == load && point.n == SLOTS && point.arm != Memcpy;
        Expr::At(*point, RATE).when(is_drawn)
    };
    let title = "Message rate over size";
    t.lines("rate.svg", title, axes("rate [msg/s]"), move |point| {
        drawn(point, RATES)
    });
    let (title, touched) = ("Bandwidth over size", "every byte written and summed");
    let bandwidth = || axes("bandwidth [GB/s]");
    t.lines("bandwidth.svg", title, bandwidth(), move |point| {
        gb_per_s(point, drawn(point, RATES))
    });
    let title = format!("{title}, {touched}");
    t.lines("bandwidth-touched.svg", title, bandwidth(), move |point| {
        gb_per_s(point, drawn(point, TOUCHED))
    });
    let title = "99th percentile of the one-way latency of 64 B under load";
    let axes = (
        Axis::linear("load [% of the arm's own peak]"),
        Axis::log("p99 [ns]"),
    );
    t.lines("latency-under-load.svg", title, axes, |point| {
        Expr::At(*point, P99).when(point.load == LOADED)
    });
    t.notes.extend(NOTES.map(String::from));
    t
}

/// Returns an arm's name in metrics.
fn key(arm: Arm) -> String {
    match arm {
        Arm::Channel(Channel::Ring(_)) => "ring".into(),
        other => other.to_string().replace('-', "_"),
    }
}

fn metrics(t: &mut Table<Arm>) {
    const MODE: Arm = IN_LATENCY_MODE;
    let few = |arm| rate(arm, MIB).with(FEW_SLOTS);
    for (key, ours, theirs) in [
        ("ring64_over_bare", rate(RING, 64), rate(BARE, 64)),
        ("ring4k_over_bare", rate(RING, 4096), rate(BARE, 4096)),
        ("ring64_over_ucx_am", rate(RING, 64), rate(UcxAm, 64)),
        (
            "ring64_unbatched_over_ucx_am",
            rate(UNBATCHED, 64),
            rate(UcxAm, 64),
        ),
        ("latency64_over_half_c2c", latency(MODE), latency(CacheLine)),
        ("latency64_over_ucx_am", latency(MODE), latency(UcxAm)),
        ("ring1m_over_memcpy", rate(RING, MIB), rate(Memcpy, MIB)),
        ("ring1m_n4_over_memcpy", few(RING), few(Memcpy)),
        ("pipe_over_tcp", file(Pipe), file(TcpFile)),
    ] {
        t.metric(key, value(ours) / value(theirs));
    }
    for arm in [RING, UNBATCHED, MODE, BARE, UcxAm, UcxPut, TCP, UNIX] {
        let mode = match arm {
            UNBATCHED => "_unbatched",
            MODE => "_latency_mode",
            _ => "",
        };
        let key = format!("{}64{mode}_mmsg_per_s", key(arm));
        t.metric(key, value(rate(arm, 64)) * 1e-6);
    }
    for (name, size, slots, arms) in [
        ("4k", 4096, SLOTS, &[RING, BARE, UcxAm][..]),
        ("1m", MIB, SLOTS, &[RING, BARE, UcxAm, Memcpy]),
        ("1m_n4", MIB, FEW_SLOTS, &[RING, BARE, Memcpy]),
    ] {
        for arm in arms {
            let key = format!("{}{name}_gb_per_s", key(*arm));
            let point = rate(*arm, size).with(slots);
            t.metric(key, gb_per_s(&point, value(point)));
        }
    }
    for arm in [Pipe, TcpFile] {
        t.metric(format!("{}_gb_per_s", key(arm)), value(file(arm)));
    }
    for arm in [UcxAm, UcxPut, TCP, UNIX] {
        let key = format!("{}_latency64_p50_ns", key(arm));
        t.metric(key, value(latency(arm)));
    }
    t.metric("ring64_default_latency_p50_ns", value(latency(RING)));
    t.metric("half_c2c_ns", value(latency(CacheLine)));
    for (key, arm) in [
        ("one_way_64b_net_ns", RING),
        ("one_way_64b_net_latency_mode_ns", MODE),
    ] {
        t.metric(key, value(latency(arm)) - value(latency(CacheLine)));
    }
    for (name, quantity) in [("p50", P50), ("p99", P99), ("p999", P999)] {
        let key = format!("latency64_{name}_ns");
        t.metric(key, Expr::At(latency(MODE), quantity));
    }
    t.declare([INSTRUCTIONS]);
}

const NOTES: [&str; 3] = [
    "The buffered streams gather messages in the application, up to 64 KiB a call. Their rate at small sizes is \
     therefore that of large calls, and their latency is not measured. The others pass one message a call, as the \
     ring does.",
    "Every arm reads messages where they were received. memcpy and the rings use their whole arrays in turn. \
     ucx_perftest sends the same buffer again and again, which stays in the processor's cache. The cache line goes \
     between two threads of one process, which makes no difference to the processors.",
    "ucx_perftest neither writes nor reads the bytes of its messages, so it has no touched figures. It prints one \
     percentile only. The cache line is timed in batches, the arms' ping-pongs with one clock read per round trip. \
     Latency under load counts from the intended send time.",
];

fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
    outcome: &mut Outcome,
) -> Result<Measured<Arm>, RunError> {
    *outcome = bench.pinned(|[here, there]| {
        format!("sender on cpu {here}, receiver on cpu {there}, for every arm and external program")
    });
    let ucx = ucx_perftest::version(bench.stop()).map_err(|why| why.to_string());
    bench.check()?;
    outcome.versions.push(match &ucx {
        Ok(version) => {
            let version = format!("{version}, UCX_TLS={}", ucx_perftest::TRANSPORTS);
            ("UCX (ucx_perftest)".into(), version)
        }
        Err(why) => ("UCX".into(), format!("skipped: {why}")),
    });
    let buffers = bench.once("choosing socket buffers", Buffers::choose)??;
    let mut points = plan(bench.options.quick);
    points.retain(|point| ucx.is_ok() || !matches!(point.arm, UcxAm | UcxPut));
    let sweep = Sweep::over("B", OVERHEAD, Wall::from_millis(250)).share(0.62);
    let mut measured = bench.measure(points, sweep, |bench, point, run| {
        sample(bench, point, run, &buffers)
    })?;
    if let Err(why) = ucx {
        let failures = [UcxAm, UcxPut].map(|arm| (arm.to_string(), why.clone()));
        measured.failures.extend(failures);
    }
    let peak = |arm: Arm| value(rate(arm, LOADED_SIZE)).median(&measured);
    let points = grid(LOADED, &UNDER_LOAD, &PERCENT).into_iter();
    let mut points: Vec<_> = points.map(|point| point.with(SLOTS)).collect();
    points.retain(|point| peak(point.arm).is_some());
    let sweep = Sweep::over("%", OVERHEAD, Wall::from_millis(500)).share(0.5);
    let loaded = bench.measure(points, sweep, |bench, point, run| {
        let per_second = peak(point.arm).unwrap_or_default() * point.x as f64 / 100.0;
        let workload = Workload::Load { per_second };
        let sample = buffers.send(bench, &rate(point.arm, LOADED_SIZE), workload, run)?;
        Ok(sample.map(|sample| sample.with(OFFERED, per_second)))
    })?;
    measured.add(loaded);
    match bench.once("instructions of a post", |bench| {
        child_programs::post_instructions(&bench.options.device, bench.stop())
    })? {
        Ok((instructions, version)) => {
            outcome.versions.push(("Valgrind".into(), version));
            outcome.measured(INSTRUCTIONS, Spread::single(instructions));
        }
        Err(why) => outcome.skip(INSTRUCTIONS, why.to_string()),
    }
    measured.add(file_transfer::measure(bench, t)?);
    Ok(measured.without_rows(|point| matches!(point.load, TOUCHED | FILE)))
}

/// Measures `point` for `run`; returns `None` if that was too short.
fn sample(
    bench: &Bench<'_>,
    point: &Point<Arm>,
    run: Wall,
    buffers: &Buffers,
) -> Result<Option<Sample>, WorkloadError> {
    let (cpus, size) = (bench.testbed.cpus, point.x as usize);
    let ucx = |name, most: f64| -> Result<_, WorkloadError> {
        let rate = f64::min(most, 1e10 / point.x as f64);
        let count = ((run.as_secs_f64() * rate) as u64).max(64);
        let warm = (count / 5).max(16);
        let test = ucx_perftest::PerftestRun {
            name,
            size,
            count,
            warm,
        };
        let end = ucx_perftest::run(test, cpus, bench.stop())?;
        Ok(match point.load {
            LATENCY => (P50, end.p50_us * 1e3),
            _ => (RATE, end.per_second),
        })
    };
    let found = match (point.arm, point.load) {
        (Arm::Channel(_), LATENCY) => return buffers.send(bench, point, Workload::PingPong, run),
        (Arm::Channel(_), _) => {
            return patiently(run, |run| buffers.send(bench, point, Workload::Rate, run));
        }
        (UcxAm, LATENCY) => ucx("ucp_am_lat", 1e6)?,
        (UcxPut, LATENCY) => ucx("ucp_put_lat", 1e6)?,
        (UcxAm, _) => ucx("ucp_am_bw", 6e6)?,
        (UcxPut, _) => ucx("ucp_put_bw", 4e7)?,
        (Memcpy, _) => {
            let rate = machine_limits::array_to_array(cpus[0], size, point.n as usize, run)?;
            (RATE, rate)
        }
        _ => (P50, machine_limits::half_cache_line_round_trip(cpus, run)?),
    };
    Ok(Some(Sample::of([found])))
}

/// The best kernel buffer size by stream and by whether messages exceed 4 KiB; `None` is the system's
/// default.
struct Buffers(BTreeMap<(Channel, bool), Option<usize>>);

impl Buffers {
    /// Chooses the fastest of three buffer sizes for every stream, for messages of up to 4 KiB and for larger
    /// ones.
    fn choose(bench: &Bench<'_>) -> Result<Self, RunError> {
        let run = Wall::from_millis(if bench.options.quick { 5 } else { 60 });
        let mut chosen = BTreeMap::new();
        for channel in channels() {
            let Channel::Stream(transport, ..) = channel else {
                continue;
            };
            let largest = if transport == StreamKind::Pipe { 1 } else { 4 } << 20;
            for size in [4096, MIB]
                .into_iter()
                .filter(|size| is_measured(RATES, Arm::Channel(channel), *size, false))
            {
                let key = (channel, size > 4096);
                let point = Point::of(RATES, Arm::Channel(channel), size);
                let mut fastest = (0.0, None);
                for buffer in [None, Some(256 << 10), Some(largest)] {
                    bench.check()?;
                    // A size that the system refuses gives no rate, so it is not chosen.
                    let tried = Self(BTreeMap::from([(key, buffer)]));
                    let sent = tried.send(bench, &point, Workload::Rate, run);
                    let rate = sent.ok().flatten().map_or(0.0, |sample| sample.get(RATE));
                    if rate > fastest.0 {
                        fastest = (rate, buffer);
                    }
                }
                chosen.insert(key, fastest.1);
            }
        }
        Ok(Self(chosen))
    }

    /// Sends messages of the point's size between two actors.
    fn send(
        &self,
        bench: &Bench<'_>,
        point: &Point<Arm>,
        workload: Workload,
        run: Wall,
    ) -> Result<Option<Sample>, WorkloadError> {
        let Arm::Channel(channel) = point.arm else {
            return Ok(None);
        };
        let dir = private_dir()?;
        let mut job = job(channel, workload, [point.x, point.n], run, &dir);
        job.touch = point.load == TOUCHED;
        job.buffer = self.0.get(&(channel, point.x > 4096)).copied().flatten();
        let reports = bench.testbed.run_pair(job)?;
        Ok(reports.iter().find_map(|report| match report {
            Report::Latency(found) if found.count > 0 => Some((*found).into()),
            other => Some(Sample::of([(RATE, other.per_second()?)])),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_quick_run_keeps_every_arm_and_no_point_is_planned_twice() {
        let arms = |is_quick| -> BTreeSet<String> {
            let points = plan(is_quick).into_iter();
            points.map(|point| point.arm.to_string()).collect()
        };
        let noted = table().arms.into_iter().map(|note| note.name);
        assert_eq!(arms(true), arms(false));
        assert_eq!(arms(true), noted.collect());
        let points = plan(false);
        let different: BTreeSet<_> = points.iter().collect();
        assert_eq!(different.len(), points.len());
    }
}

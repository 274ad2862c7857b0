//! Measuring one point once, and choosing kernel buffers before.

use std::collections::BTreeMap;
use std::time::Duration;

use super::arms::{channels, sensible};
use super::points::{Point, Sample, Ucx, What};
use crate::bench::Bench;
use crate::latency::Quantiles;
use crate::runner::RunError;
use crate::transports::job::{Channel, Job, Report, Transport, Workload};
use crate::transports::{ArmError, local};
use crate::ucx;

/// The two sizes at which buffers are chosen: for messages up to the first, and for larger ones.
const PROBED_SIZES: [usize; 2] = [4096, 1 << 20];
/// Kernel buffers that are tried, of sockets and of pipes. `None` is the system's own choice.
const SOCKET_BUFFERS: [Option<usize>; 3] = [None, Some(256 << 10), Some(4 << 20)];
const PIPE_BUFFERS: [Option<usize>; 3] = [None, Some(256 << 10), Some(1 << 20)];

/// How often a rate is tried, each time for longer.
const TRIES: u32 = 3;

/// The best kernel buffer by stream and by whether messages are large.
pub(super) type Buffers = BTreeMap<(Channel, bool), Option<usize>>;

/// Measures `point` for `run`; nothing if that was too short.
pub(super) fn sample(
    bench: &Bench<'_>,
    point: &Point,
    run: Duration,
    buffers: &Buffers,
) -> Result<Option<Sample>, ArmError> {
    let cpus = bench.place.cpus;
    match point.what {
        What::Rate(channel, touch) => {
            let buffer = buffer(buffers, channel, point.size);
            let mut run = run;
            for _ in 0..TRIES {
                let [_, got] = pair(bench, channel, Workload::Rate, point, touch, run, buffer)?;
                if let Some(rate) = got.per_second() {
                    return Ok(Some(Sample::PerSecond(rate)));
                }
                // On a busy machine the receiver may have slept all that time.
                run *= 4;
            }
            Ok(None)
        }
        What::Latency(channel) => {
            let buffer = buffer(buffers, channel, point.size);
            let report = pair(
                bench,
                channel,
                Workload::PingPong,
                point,
                false,
                run,
                buffer,
            )?[0]
                .clone();
            Ok(match report {
                Report::Latency(q) if q.count > 0 => Some(Sample::Latency(q)),
                _ => None,
            })
        }
        What::UcxRate(kind) => {
            let (name, most) = match kind {
                Ucx::Am => ("ucp_am_bw", 6e6),
                Ucx::Put => ("ucp_put_bw", 4e7),
            };
            let rate = f64::min(most, 1e10 / point.size as f64);
            let end = ucx::run(ucx_test(name, point.size, rate, run), cpus, bench.stop())
                .map_err(|e| ArmError(e.to_string()))?;
            Ok(Some(Sample::PerSecond(end.per_second)))
        }
        What::UcxLatency(kind) => {
            let name = match kind {
                Ucx::Am => "ucp_am_lat",
                Ucx::Put => "ucp_put_lat",
            };
            let end = ucx::run(ucx_test(name, point.size, 1e6, run), cpus, bench.stop())
                .map_err(|e| ArmError(e.to_string()))?;
            let p50_ns = end.p50_us * 1e3;
            let unknown = f64::NAN;
            Ok(Some(Sample::Latency(Quantiles {
                count: 1,
                p50_ns,
                p99_ns: unknown,
                p999_ns: unknown,
                max_ns: unknown,
                mean_ns: unknown,
            })))
        }
        What::Memcpy => local::array_to_array(cpus[0], point.size, point.slots, run)
            .map(|rate| Some(Sample::PerSecond(rate))),
        What::HalfCacheLine => local::half_cache_line_round_trip(cpus, run).map(|nanos| {
            Some(Sample::Latency(Quantiles {
                count: 1,
                p50_ns: nanos,
                ..Quantiles::default()
            }))
        }),
    }
}

fn ucx_test(name: &'static str, size: usize, rate: f64, run: Duration) -> ucx::Test {
    let count = ((run.as_secs_f64() * rate) as u64).max(64);
    ucx::Test {
        name,
        size,
        count,
        warm: (count / 5).max(16),
    }
}

/// Runs one pair in a private directory.
pub(super) fn pair(
    bench: &Bench<'_>,
    channel: Channel,
    workload: Workload,
    point: &Point,
    touch: bool,
    run: Duration,
    buffer: Option<usize>,
) -> Result<[Report; 2], ArmError> {
    let dir = tempfile::Builder::new()
        .prefix("headworks-")
        .tempdir()
        .map_err(|e| ArmError::at("private directory", e))?;
    let run_ns = run.as_nanos() as u64;
    bench.place.run_pair(Job {
        channel,
        workload,
        size: point.size,
        slots: point.slots,
        touch,
        run_ns: run_ns / 5 * 4,
        warm_ns: run_ns / 5,
        buffer,
        yields: false,
        counted: false,
        together: false,
        dir: dir.path().to_owned(),
    })
}

pub(super) fn buffer(buffers: &Buffers, channel: Channel, size: usize) -> Option<usize> {
    buffers
        .get(&(channel, size > PROBED_SIZES[0]))
        .copied()
        .flatten()
}

/// The best of three buffers for every stream, for small messages and for large ones.
pub(super) fn choose_buffers(bench: &Bench<'_>) -> Result<Buffers, RunError> {
    let run = Duration::from_millis(if bench.options.quick { 5 } else { 60 });
    let mut best = Buffers::new();
    for channel in channels() {
        let Channel::Stream(transport, ..) = channel else {
            continue;
        };
        let tried = if transport == Transport::Pipe {
            PIPE_BUFFERS
        } else {
            SOCKET_BUFFERS
        };
        for (large, size) in [false, true].into_iter().zip(PROBED_SIZES) {
            if !sensible(channel, size) {
                continue;
            }
            let point = Point {
                what: What::Rate(channel, false),
                size,
                slots: 1,
            };
            let mut fastest = (0.0, None);
            for buffer in tried {
                bench.check()?;
                // A size the system does not allow is not a candidate.
                let rate = pair(bench, channel, Workload::Rate, &point, false, run, buffer)
                    .ok()
                    .and_then(|[_, got]| got.per_second())
                    .unwrap_or(0.0);
                if rate > fastest.0 {
                    fastest = (rate, buffer);
                }
            }
            best.insert((channel, large), fastest.1);
        }
    }
    Ok(best)
}
